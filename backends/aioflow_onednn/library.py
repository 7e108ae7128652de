"""The oneDNN library: a library named by the user, the system's, or that of the wheel onednn-cpu-gomp.

`AIOFLOW_ONEDNN` is the path of a library, or `off`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from aioflow.errors import FailedPreconditionError, InternalError, NotFoundError, ResourceExhaustedError
from aioflow.loading.installed import files_called
from aioflow.release import install_command
from aioflow_numpy.addresses import address_of
from aioflow_onednn.codes import Algorithm, CpuRuntime, Query, Status

SETTING: Final = "AIOFLOW_ONEDNN"
_SONAME: Final = "libdnnl.so.3"
_OPENMP: Final = "libgomp.so.1"
_WAIT: Final = "GOMP_SPINCOUNT"
_TURNS: Final = "4000"  # of a loop, about 40 µs: longer than Python takes from one layer to the next
_WHEEL: Final = "onednn-cpu-gomp"
_CPU: Final = 1  # dnnl_cpu
_IN_ORDER: Final = 1  # dnnl_stream_default_flags
_IMPLEMENTATION: Final = 8  # dnnl_query_impl_info_str
_SOFT: Final = 1  # omp_pause_soft: threads end, settings stay
_MANY: Final = 12  # DNNL_MAX_NDIMS

DimsArray = c_int64 * _MANY
BoundCall: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and its arguments


@dataclass(frozen=True, slots=True)
class Version:
    """The version of the library and its threading runtime."""

    major: int
    minor: int
    patch: int
    runtime: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class _VersionRecord(ctypes.Structure):
    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


class ExecArgument(ctypes.Structure):
    """The C struct dnnl_exec_arg_t: a memory object and its role as an argument of the primitive."""

    _fields_ = (("code", c_int), ("memory", c_void_p))


# Of dnnl_cpu_isa_t: dnnl_cpu_isa_avx512_core beyond dnnl_cpu_isa_avx2; dnnl_cpu_isa_avx2_vnni and
# dnnl_cpu_isa_avx512_core_vnni beyond these two; and dnnl_cpu_isa_avx512_core_bf16 beyond the last.
_AVX512: Final = 0x20
_VNNI: Final = 0x8 | 0x40
_BF16: Final = 0x80
_HANDLE: Final = POINTER(c_void_p)
_DIMS: Final = POINTER(c_int64)
# The functions in use, with the types of their arguments; each returns a status.
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "engine_create": (_HANDLE, c_int, c_size_t),
    "stream_create": (_HANDLE, c_void_p, c_uint),
    "stream_destroy": (c_void_p,),
    "memory_desc_create_with_strides": (_HANDLE, c_int, _DIMS, c_int, _DIMS),
    "memory_desc_create_with_tag": (_HANDLE, c_int, _DIMS, c_int, c_int),
    "memory_desc_destroy": (c_void_p,),
    "memory_create": (_HANDLE, c_void_p, c_void_p, c_void_p),
    "memory_set_data_handle": (c_void_p, c_void_p),
    "memory_destroy": (c_void_p,),
    "primitive_attr_create": (_HANDLE,),
    "primitive_attr_destroy": (c_void_p,),
    "primitive_attr_set_scratchpad_mode": (c_void_p, c_int),
    "primitive_attr_set_post_ops": (c_void_p, c_void_p),
    "post_ops_create": (_HANDLE,),
    "post_ops_append_eltwise": (c_void_p, c_int, c_float, c_float),
    "post_ops_append_binary": (c_void_p, c_int, c_void_p),
    "post_ops_destroy": (c_void_p,),
    "primitive_create": (_HANDLE, c_void_p),
    "primitive_execute": (c_void_p, c_void_p, c_int, POINTER(ExecArgument)),
    "primitive_destroy": (c_void_p,),
    "primitive_desc_destroy": (c_void_p,),
    "primitive_desc_query": (c_void_p, c_int, c_int, c_void_p),
    "sgemm": (
        *(c_char, c_char, c_int64, c_int64, c_int64),
        *(c_float, c_void_p, c_int64, c_void_p, c_int64),
        *(c_float, c_void_p, c_int64),
    ),
    "matmul_primitive_desc_create": (_HANDLE, *(c_void_p,) * 6),
    "reorder_primitive_desc_create": (_HANDLE, *(c_void_p,) * 5),
    "pooling_forward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int, c_int),
        *(c_void_p,) * 2,
        *(_DIMS,) * 5,
        c_void_p,
    ),
    "pooling_backward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int),
        *(c_void_p,) * 2,
        *(_DIMS,) * 5,
        *(c_void_p,) * 2,
    ),
    "softmax_forward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int, c_int),
        *(c_void_p,) * 2,
        *(c_int, c_void_p),
    ),
    "batch_normalization_forward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int),
        *(c_void_p,) * 2,
        *(c_float, c_uint, c_void_p),
    ),
    "batch_normalization_backward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int),
        *(c_void_p,) * 3,
        *(c_float, c_uint),
        *(c_void_p,) * 2,
    ),
    "layer_normalization_forward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int),
        *(c_void_p,) * 3,
        *(c_float, c_uint, c_void_p),
    ),
    "lrn_forward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int, c_int),
        *(c_void_p,) * 2,
        *(c_int64, c_float, c_float, c_float),
        c_void_p,
    ),
    "lrn_backward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int),
        *(c_void_p,) * 3,
        *(c_int64, c_float, c_float, c_float),
        *(c_void_p,) * 2,
    ),
    "convolution_forward_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int, c_int),
        *(c_void_p,) * 4,
        *(_DIMS,) * 4,
        c_void_p,
    ),
    "convolution_backward_data_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int),
        *(c_void_p,) * 3,
        *(_DIMS,) * 4,
        *(c_void_p,) * 2,
    ),
    "convolution_backward_weights_primitive_desc_create": (
        *(_HANDLE, c_void_p, c_int),
        *(c_void_p,) * 4,
        *(_DIMS,) * 4,
        *(c_void_p,) * 2,
    ),
}
# Functions that only store a value keep the interpreter's lock: releasing it takes longer than they do.
_SHORT: Final = frozenset({"memory_set_data_handle"})


class PostOps(NamedTuple):
    """Operations that a primitive applies to each number of its result.

    Attributes:
        algorithm, alpha, beta: The last operation and its two parameters; None for no operation.
        adds: Whether a number of another array is added first.
    """

    algorithm: Algorithm | None
    alpha: float = 0.0
    beta: float = 0.0
    adds: bool = False


class Library:
    """The loaded library, with an engine for the processor.

    Args:
        path: Path or name of the shared library.

    Attributes:
        path: As the argument.
        version: Version of the library.
        has_wide_vectors: Whether it computes with vectors of 512 bits.
        has_int8: Whether it has instructions that add products of 8-bit integers exactly.
        has_bfloat16: Whether it has instructions for bfloat16.
        has_team: Whether OpenMP's threads may be used: they sleep after spinning for a moment, and can be ended.
        engine: Handle of the engine.
        attributes: Attributes of every primitive. The scratchpad is the caller's, so that a primitive may run in any
            thread, and in several at once.

    Raises:
        OSError: the library cannot be loaded.
        AttributeError: the library lacks a function.
        FailedPreconditionError: the library has another version, or its threads cannot be controlled.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with _openmp_waits_for_a_moment() as is_so:
            self._library, self._short = ctypes.CDLL(path), ctypes.PyDLL(path)
        self.version = self._asked_version()
        if self.version.major != 3:
            raise FailedPreconditionError(f"{path} is oneDNN {self.version}", expected="oneDNN 3", actual=self.version)
        self._functions = {name: self._function(name, types) for name, types in _SIGNATURES.items()}
        instructions = self._library.dnnl_get_effective_cpu_isa()
        self.has_wide_vectors, self.has_bfloat16 = bool(instructions & _AVX512), bool(instructions & _BF16)
        self.has_int8 = bool(instructions & _VNNI)
        self._threads, self._set_threads = self._openmp()
        self._ended_by = self._pause()
        self.has_team = is_so and self.version.runtime == CpuRuntime.OPENMP and self._ended_by is not None
        self._own = threading.local()
        self._execute = self._functions["primitive_execute"]
        self.engine = self.made("engine_create", _CPU, 0)
        self.attributes = self._new_attributes()

    def call(self, name: str, *arguments: Any, threads: int = 1) -> None:
        """Call a function of the library. Raise InternalError or ResourceExhaustedError if it fails."""
        status = self._by(threads, self._functions[name], *arguments)
        if status:
            self.fail(name, status)

    def made(self, name: str, *arguments: Any, threads: int = 1) -> int:
        """Return the handle that a function creates. Raise the same errors as `call`."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments, threads=threads)
        return handle.value or 0

    @contextmanager
    def attributes_with(self, activation: PostOps | None, result: int) -> Iterator[int]:
        """Provide the attributes of a primitive that ends with an activation, for the duration of the block.

        An added array has the same memory layout as the result.
        """
        if activation is None:
            yield self.attributes
            return
        # These attributes belong to one primitive. All others share `attributes`.
        attributes, post_ops = self._new_attributes(), self.made("post_ops_create")
        try:
            if activation.adds:
                self.call("post_ops_append_binary", post_ops, Algorithm.BINARY_ADD, result)
            if activation.algorithm is not None:
                self.call("post_ops_append_eltwise", post_ops, *activation[:3])
            self.call("primitive_attr_set_post_ops", attributes, post_ops)  # copies `post_ops`
            yield attributes
        finally:
            self.call("post_ops_destroy", post_ops)
            self.call("primitive_attr_destroy", attributes)

    def _new_attributes(self) -> int:
        made = self.made("primitive_attr_create")
        self.call("primitive_attr_set_scratchpad_mode", made, 1)
        return made

    def function(self, name: str) -> Any:
        """Return the C function, which returns a status, for calls without overhead."""
        return self._functions[name]

    def thread_functions(self) -> tuple[int, int]:
        """Return the addresses of the functions that get and set the calling thread's thread count.

        The addresses are 0 without OpenMP.
        """
        if self.version.runtime == CpuRuntime.SEQUENTIAL:
            return 0, 0
        return address_of(self._threads), address_of(self._set_threads)

    def described(self, primitive_desc: int, query: Query) -> int:
        """Return the memory descriptor of an argument; the primitive descriptor owns it."""
        return int(self._query(primitive_desc, *query.value) or 0)

    def implementation(self, primitive_desc: int) -> str:
        """Return the name of the implementation, such as "jit:avx2" or "gemm:jit"."""
        name = c_char_p()
        self.call("primitive_desc_query", primitive_desc, _IMPLEMENTATION, 0, byref(name))
        return (name.value or b"").decode("ascii", "replace")

    def size(self, memory_desc: int) -> int:
        """Return the bytes of memory that a descriptor describes."""
        return int(self._size(memory_desc))

    def equal(self, one: int, other: int) -> bool:
        """Return True if two descriptors describe the same layout."""
        return bool(self._equal(one, other))

    def execute(self, primitive: int, count: int, arguments: Any, threads: int = 1) -> None:
        """Run a primitive with the number of threads that it was made for.

        Args:
            primitive: Handle of the primitive.
            count: Number of arguments.
            arguments: The arguments, an array of `ExecArgument`.
            threads: Number of threads of OpenMP.

        Raises:
            InternalError: the primitive fails.
            ResourceExhaustedError: the library has no memory for it.
        """
        before = self._threads()
        if before != threads:
            self._set_threads(threads)
        try:
            status = self._execute(primitive, self.stream(), count, arguments)
        finally:
            if before != threads:
                self._set_threads(before)
        if status:
            self.fail("primitive_execute", status)

    def step(self, primitive: int, stream: int, count: int, arguments: Any) -> BoundCall:
        """Return the step that runs a primitive, for `execute_all`.

        A `step_to` with the primitive's number of threads must precede it.
        """
        return self._execute, (primitive, stream, count, arguments)

    def step_to(self, threads: int) -> BoundCall:
        """Return the step that sets the number of threads for the primitives after it."""
        # This function returns None, after which `execute_all` goes on.
        return self._set_threads, (threads,)

    def execute_all(self, steps: Iterable[BoundCall]) -> bool:
        """Run steps until one returns anything other than 0 or None, such as a status of the library.

        Afterwards this thread has its previous number of OpenMP threads again.

        Returns:
            Whether all steps were run.
        """
        before = self._threads()
        try:
            for function, arguments in steps:
                if function(*arguments):
                    return False
        finally:
            self._set_threads(before)
        return True

    def _by(self, threads: int, function: Callable[..., int], *arguments: Any) -> int:
        """Call a function with this number of OpenMP threads, and restore the previous number.

        A primitive runs with the number of threads that is set when its descriptor is made.
        """
        before = self._threads()
        if before == threads:
            return function(*arguments)
        try:
            self._set_threads(threads)
            return function(*arguments)
        finally:
            self._set_threads(before)

    def stream(self) -> int:
        """Return this thread's stream."""
        try:
            found: int = self._own.stream
        except AttributeError:
            found = self._own.stream = self.new_stream()
        return found

    def new_stream(self) -> int:
        """Return a new stream, which may be used in any thread, for primitives that run one after another."""
        return self.made("stream_create", self.engine, _IN_ORDER)

    def _function(self, name: str, types: tuple[Any, ...]) -> Any:
        function = getattr(self._short if name in _SHORT else self._library, f"dnnl_{name}")
        function.argtypes, function.restype = types, c_int
        return function

    def _asked_version(self) -> Version:
        self._library.dnnl_version.restype = POINTER(_VersionRecord)
        record = self._library.dnnl_version().contents
        for name, types, result in (
            ("primitive_desc_query_md", (c_void_p, c_int, c_int), c_void_p),
            ("memory_desc_get_size", (c_void_p,), c_size_t),
            ("memory_desc_equal", (c_void_p, c_void_p), c_int),
        ):
            function = getattr(self._library, f"dnnl_{name}")
            function.argtypes, function.restype = types, result
        self._query = self._library.dnnl_primitive_desc_query_md
        self._size = self._library.dnnl_memory_desc_get_size
        self._equal = self._library.dnnl_memory_desc_equal
        return Version(record.major, record.minor, record.patch, record.cpu_runtime)

    def _openmp(self) -> tuple[Callable[[], int], Callable[[int], object]]:
        """Return the functions that get and set the number of OpenMP threads for the calling thread."""
        if self.version.runtime == CpuRuntime.SEQUENTIAL:
            return (lambda: 1), (lambda count: None)
        if self.version.runtime != CpuRuntime.OPENMP:
            raise FailedPreconditionError(
                f"{self.path} uses an unsupported threading runtime",
                expected="a build with OpenMP or without threads",
                actual=f"DNNL_CPU_RUNTIME {self.version.runtime}",
            )
        # Looked up in the library, these are of the OpenMP that it is linked with.
        get, put = self._short.omp_get_max_threads, self._short.omp_set_num_threads
        get.argtypes, get.restype = (), c_int
        put.argtypes, put.restype = (c_int,), None
        return get, put

    def _pause(self) -> Callable[[int], int] | None:
        """Return the function that ends OpenMP's threads of the calling thread; None before OpenMP 5."""
        try:
            pause = self._library.omp_pause_resource_all
        except AttributeError:
            return None
        pause.argtypes, pause.restype = (c_int,), c_int
        found: Callable[[int], int] = pause
        return found

    def end_team(self) -> None:
        """End OpenMP's threads of the calling thread. In a forked child, OpenMP would wait for them."""
        if self._ended_by is not None:
            self._ended_by(_SOFT)

    def fail(self, name: str, status: int) -> None:
        """Raise the error for a status."""
        if status == Status.OUT_OF_MEMORY:
            raise ResourceExhaustedError(f"oneDNN: not enough memory for {name}")
        raise InternalError(f"oneDNN: dnnl_{name} failed", expected=Status.SUCCESS.name, actual=Status(status).name)


@cache
def library() -> Library:
    """Return the library of this process.

    Raises:
        NotFoundError: no library can be loaded; the error has the reasons.
        FailedPreconditionError: the library is unsuitable or switched off.
    """
    setting = os.environ.get(SETTING, "")
    if setting == "off":
        raise FailedPreconditionError("oneDNN is switched off", expected=f"{SETTING} unset, or a path", actual="off")
    problems: list[str] = []
    # A library that the user names is the only one that is tried.
    for path in [setting] if setting else _candidates():
        try:
            return Library(path)
        except (OSError, AttributeError) as error:
            problems.append(str(error))
    raise NotFoundError(
        "oneDNN was not found", expected=f"`{install_command('onednn')}`", actual="; ".join(problems) or "no library"
    )


@contextmanager
def _openmp_waits_for_a_moment() -> Iterator[bool]:
    """Make OpenMP's threads spin for microseconds, not milliseconds, if the block loads OpenMP.

    Yield True if that takes effect or the user has set the variable, and False if OpenMP is loaded already.
    """
    if _WAIT in os.environ:  # the user's setting
        yield True
        return
    if not sys.platform.startswith("linux") or _is_loaded(_OPENMP):
        yield False
        return
    # OpenMP reads the variable only once, when it is loaded.
    os.environ[_WAIT] = _TURNS
    try:
        yield True
    finally:
        del os.environ[_WAIT]


def _is_loaded(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _candidates() -> list[str]:
    if sys.platform != "linux":
        return []
    return [_SONAME, *_of_wheel()]


def _of_wheel() -> list[str]:
    return files_called(_SONAME, _WHEEL)

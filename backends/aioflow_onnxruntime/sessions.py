"""onnxruntime's sessions for parts of steps."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import onnxruntime

from aioflow.compiler.ir import ClientGraph, Node, OutputSpec
from aioflow.compiler.sizes import telling, with_shapes
from aioflow.concurrency.stopping import current_work, reserve
from aioflow.errors import InvalidArgumentError, NotFoundError, OpError, ResourceExhaustedError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, num_elements
from aioflow.graph.traits import Role
from aioflow.interop.onnx.exporting.regions import index_of_input, inexact_in, model_of
from aioflow.memory.copying import native
from aioflow.memory.values import Array

InputShapes: TypeAlias = tuple[tuple[int, ...], ...]
# The shapes of inputs, and the values of inputs that determine shapes.
InputKey: TypeAlias = tuple[InputShapes, tuple[bytes, ...]]

OPSET: Final = 20
EXCHANGED: Final = frozenset(  # dtypes of arrays that onnxruntime accepts from NumPy and returns
    {
        *(dtypes.float16, dtypes.float32, dtypes.float64, dtypes.bool_),
        *(dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64),
        *(dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64),
    }
)
_NAMES: Final = {"float32": "float", "float64": "double"}  # onnxruntime's names of dtypes
_REMEMBERED: Final = 1024  # cached combinations of input shapes
_MUCH: Final = 1 << 24  # bytes of constants from which on free memory is returned to the system
# The maximum bytes of a folded constant: `_FOLDED`, and `_WIDER` times the bytes of the inputs of its node. Quantized
# weights, which become floats, are within that.
_FOLDED: Final = 1 << 20
_WIDER: Final = 16
_FEW: Final = 64  # maximum elements of an input that determines shapes
_ANY: Final[InputKey] = ((), ())
# Disabled optimizations of onnxruntime: this one rounds once instead of twice.
_INEXACT: Final = ("DoubleQDQPairsRemover",)
_SILENT: Final = 4  # log level FATAL: onnxruntime's errors also come as exceptions
_BY_TYPE: Final = {f"tensor({_NAMES.get(dtype.name, dtype.name)})": dtype for dtype in EXCHANGED}
_FAILED_NODE: Final = re.compile(r"Name:'([^']*)'")
_NO_OP: Final = re.compile("is not a registered function/op")
_NO_MEMORY: Final = re.compile("bad_alloc|allocate memory|Failed to allocate")


class _Largest(NamedTuple):
    """The largest value of a part, for inputs of certain shapes."""

    size: int  # bytes
    node: Node


class LoadedModel:
    """A model that is ready to run, on the host."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self.inputs = [each.name for each in session.get_inputs()]
        self._outputs = [each.name for each in session.get_outputs()]

    def run(self, values: Iterable[Array]) -> tuple[Array, ...]:
        """Return the outputs for these inputs, in new arrays.

        Raises:
            OpError: onnxruntime fails.
            Stopped: the step was stopped.
        """
        feeds = {name: np.asarray(value) for name, value in zip(self.inputs, values, strict=True)}
        options = onnxruntime.RunOptions()
        options.log_severity_level = _SILENT
        work = current_work()
        if work is None:
            return self._run(feeds, options)

        def stop() -> None:
            # onnxruntime looks at this between two nodes.
            options.terminate = True

        work.watchers.append(stop)
        try:
            work.check()  # the step may have been stopped before the watcher was added
            return self._run(feeds, options)
        except OpError:
            work.check()
            raise
        finally:
            work.watchers.remove(stop)

    def _run(self, feeds: Mapping[str, Array], options: onnxruntime.RunOptions) -> tuple[Array, ...]:
        try:
            found: list[Array] = self._session.run(self._outputs, feeds, options)
        except Exception as error:  # the classes of its errors are no part of its interface
            raise _failure(error) from error
        for value in found:
            reserve(value.nbytes)
        return tuple(found)


def _failure(error: Exception) -> OpError:
    """Return an aioflow error for one of onnxruntime."""
    text = str(error)
    kind = ResourceExhaustedError if _NO_MEMORY.search(text) else InvalidArgumentError
    return kind(f"onnxruntime: {text}")


class EnginePart:
    """A part of a step that is ready to run.

    Args:
        graph: The part.
        session: Session of its model.
        held: As the attribute.

    Attributes:
        admits_all: Whether all sizes in it are known, so that `admits` need not look at the inputs.
        held: The constants whose memory the session uses.

    Raises:
        InvalidArgumentError: no inputs would be supported.
    """

    def __init__(self, graph: ClientGraph, session: onnxruntime.InferenceSession, held: Mapping[str, Array]) -> None:
        self._graph = graph
        specs = [spec for read in graph.read_outputs().values() for spec in read]
        self.admits_all = all(num_elements(spec.dims) is not None for spec in specs)
        self._telling = sorted(telling(graph))
        self._largest: dict[InputKey, _Largest | None] = {}
        if self.admits_all:
            self._largest[_ANY] = found = _largest_in(graph)
            if found is None:
                raise InvalidArgumentError("onnxruntime may give other results for values of these sizes")
        self._model = LoadedModel(session)
        self._read = [index_of_input(name) for name in self._model.inputs]
        self.held = held

    def admits(self, values: Sequence[Array]) -> bool:
        """Return True if onnxruntime's results for inputs of these shapes match those of the part's own nodes.

        They do not match if the nodes reject the shapes, if sizes depend on values, or if rounding would be much
        coarser.

        Raises:
            ResourceExhaustedError: a value would exceed the size limit; the error has the node that would make it.
        """
        largest = self._largest[_ANY] if self.admits_all else self._largest_for(values)
        if largest is None:
            return False
        try:
            reserve(largest.size)
        except ResourceExhaustedError as error:
            raise error.at(largest.node.name, largest.node.op, largest.node.source) from None
        return True

    def _largest_for(self, values: Sequence[Array]) -> _Largest | None:
        shapes, told = tuple(np.shape(value) for value in values), {n: np.asarray(values[n]) for n in self._telling}
        if any(array.size > _FEW for array in told.values()):
            return None
        given = (shapes, tuple(array.tobytes() for array in told.values()))
        try:
            return self._largest[given]
        except KeyError:
            if len(self._largest) >= _REMEMBERED:
                # All at once, which is simple and rare: the entries are found again.
                self._largest.clear()
        try:
            found = _largest_in(with_shapes(self._graph, dict(enumerate(shapes)), told))
        except OpError:
            found = None
        self._largest[given] = found
        return found

    def run(self, values: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for the inputs of the whole part, in new arrays.

        Raises:
            OpError: onnxruntime fails; the error has the failed node, if it is one of the part.
            Stopped: the step was stopped.
        """
        try:
            return self._model.run([values[index] for index in self._read])
        except OpError as error:
            named = _FAILED_NODE.search(error.message)
            node = None if named is None else self._node(named[1])
            if node is None:
                raise
            raise error.at(node.name, node.op, node.source) from error.__cause__

    def _node(self, name: str) -> Node | None:
        # Nodes of the model that translate one node of the part are named "name of that node/own name".
        while name and name not in self._graph.nodes:
            name = name.rpartition("/")[0]
        return self._graph.nodes.get(name)


def _largest_in(graph: ClientGraph) -> _Largest | None:
    """Return the largest of the values in a part that are larger than all inputs of their nodes together.

    Return None if translations have other results, if sizes are unknown, and if a value is empty: onnxruntime ends the
    process for some ops of no elements, and for others returns uninitialized memory.
    """
    if inexact_in(graph):
        return None
    found = _Largest(0, next(iter(graph.nodes.values())))
    for name, read in graph.read_outputs().items():
        node = graph.nodes[name]
        if not all(num_elements(spec.dims) for spec in read):
            return None
        made = max(map(_size, read), default=0)
        if node.role not in (Role.FEED, Role.CONSTANT) and made > sum(
            _size(graph.spec(edge)) for edge in set(node.inputs)
        ):
            found = max(found, _Largest(made, node), key=attrgetter("size"))
    return found


def _size(spec: OutputSpec) -> int:
    return (num_elements(spec.dims) or 0) * spec.dtype.np_dtype.itemsize


def made(graph: ClientGraph, provider: str, threads: int) -> EnginePart:
    """Return the session of a part. This takes as long as onnxruntime takes to optimize the model.

    Args:
        graph: The part.
        provider: As for `engine.Engine`.
        threads: Number of threads that compute one run.

    Raises:
        UnsupportedError: the part has no translation.
        ResourceExhaustedError: constants in it would be folded into much larger ones.
        Exception: onnxruntime rejects the model.
    """
    _check_folding(graph)
    model, constants = model_of(graph, OPSET)
    held = {name: np.ascontiguousarray(native(array)).reshape(array.shape) for name, array in constants.items()}
    text, provider = model.SerializeToString(), provider_of(provider)
    try:
        session = _session(text, provider, options_for(threads), held)
    except Exception:  # an optimization of onnxruntime fails on some models that it runs without
        plain = options_for(threads)
        plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = _session(text, provider, plain, held)
    if sum(array.nbytes for array in held.values()) >= _MUCH:
        _return_free_memory()
    return EnginePart(graph, session, held)


def _return_free_memory() -> None:
    """Make glibc return free memory to the system.

    Otherwise glibc keeps the memory that onnxruntime has used to make a session: once to twice the size of the
    weights.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # missing in musl
        if trim is not None:
            trim(0)


def provider_of(text: str) -> str:
    """Return the full name of an execution provider, given its name in `SessionConfig.delegate`.

    Raises:
        NotFoundError: the installed onnxruntime does not have it.
    """
    known = onnxruntime.get_available_providers()
    chosen = text or "CPU"
    for name in (chosen, f"{chosen}ExecutionProvider"):
        if name in known:
            return name
    raise NotFoundError("onnxruntime has no such execution provider", expected=f"one of {known}", actual=text)


def options_for(threads: int) -> onnxruntime.SessionOptions:
    """Return the options of a session whose runs compute in this number of threads."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = threads
    # The nodes of a part run one after another.
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it keeps a block of memory per set of shapes and saves no time
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Otherwise activations are quantized to bytes.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return options


def _check_folding(graph: ClientGraph) -> None:
    """Raise ResourceExhaustedError if values that depend on constants alone are much larger than these.

    onnxruntime folds such values when it makes the session, whatever their size.
    """
    constant: set[str] = set()
    for name, read in graph.read_outputs().items():
        node = graph.nodes[name]
        if node.role is Role.CONSTANT:
            constant.add(name)
        elif node.inputs and constant.issuperset(edge.node for edge in node.inputs):
            constant.add(name)
            size, most = sum(map(_size, read)), _FOLDED + _WIDER * sum(_size(graph.spec(edge)) for edge in node.inputs)
            if size > most:
                raise ResourceExhaustedError(
                    "folded constants would be too large",
                    node=name,
                    op_type=node.op,
                    expected=f"at most {most} bytes",
                    actual=size,
                )


def model_session(model: bytes, threads: int) -> onnxruntime.InferenceSession:
    """Return a session of a complete model, on the CPU.

    Raises:
        NotFoundError: onnxruntime does not have an op of the model.
        OpError: onnxruntime rejects the model.
    """
    try:
        return _session(model, provider_of(""), options_for(threads))
    except Exception as error:  # the classes of its errors are no part of its interface
        if _NO_OP.search(str(error)):
            raise NotFoundError("onnxruntime has no such op", expected="a registered op", actual=str(error)) from error
        raise _failure(error) from error


def kinds_of(session: onnxruntime.InferenceSession) -> list[tuple[DType, Dims]]:
    """Return the dtype of each output, and its shape as far as it is known.

    Raises:
        InvalidArgumentError: an output is not a tensor, or has a dtype that is not exchanged with onnxruntime.
    """
    found: list[tuple[DType, Dims]] = []
    for each in session.get_outputs():
        dtype = _BY_TYPE.get(each.type)
        if dtype is None:
            raise InvalidArgumentError(
                f"onnxruntime returns {each.name!r} in an unsupported type",
                expected=f"one of {[*_BY_TYPE]}",
                actual=each.type,
            )
        dims = tuple(size if isinstance(size, int) and size >= 0 else None for size in each.shape)
        found.append((dtype, dims or None))  # onnxruntime reports () both for scalars and for unknown ranks
    return found


def _session(
    model: bytes, provider: str, options: onnxruntime.SessionOptions, held: Mapping[str, Array] | None = None
) -> onnxruntime.InferenceSession:
    """Return a session.

    Args:
        model: The serialized model.
        provider: Full name of the execution provider.
        options: Options of the session.
        held: Values that are stored outside the model, by name. The session uses their memory.

    Raises:
        Exception: onnxruntime rejects the model.
    """
    if held:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in held.values()]
        # For onnxruntime's optimizers; by itself this would copy the values, hence the second call below.
        options.add_external_initializers(list(held), values)
        for name, value in zip(held, values, strict=True):
            options.add_initializer(name, value)  # for onnxruntime's kernels
    return onnxruntime.InferenceSession(
        model, options, providers=[provider], enable_fallback=0, disabled_optimizers=list(_INEXACT)
    )

"""The kernel registry, keyed by op, device type and dtypes.

A kernel body is an ordinary function. Its parameters follow the op's signature, one per input (a sequence for a
sequence input); keyword-only parameters are attributes of the op, but for `folders`: those in which the kernel may open
files. A first parameter called `xp` gets the backend's array namespace. `kernel` registers a body, `binder` a function
that returns the body for one node (for kernels that specialise on attributes, constants, resources or random state),
`elementwise` a whole table of ufuncs.

A value at run time is an array of the backend or, on the CPU, a NumPy scalar in the place of a 0-d array.
"""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

from aioflow.errors import AlreadyRegisteredError, InvalidArgumentError, UnimplementedError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.graph.boundary import GIVES_BACK
from aioflow.graph.dtypes import DType, as_dtype, resource, string, variant
from aioflow.graph.opdef import LOADING, OPS, REGISTERING
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.reading import GROUPS
from aioflow.work.forking import Locked, not_forked
from aioflow.work.importing import Namespace, gives_way, importing
from aioflow.work.stopping import claim

__all__ = [
    "ANY_DEVICE",
    "HOST",
    "KERNELS",
    "ArrayBackend",
    "Binding",
    "BodySteps",
    "KernelDef",
    "Ufunc",
    "binder",
    "elementwise",
    "kernel",
    "read_by_kernels",
]

ANY_DEVICE: Final = "*"
HOST: Final = "CPU"  # the device type whose arrays are NumPy's, in the host's memory
_HANDLES: Final = frozenset({resource, variant})
_FOLDERS: Final = "folders"
Converter: TypeAlias = Callable[[Any], Any]
Body: TypeAlias = Callable[..., Any]
T = TypeVar("T")


class ArrayBackend(Protocol):
    """What a kernel may ask of the device that it runs on: a part of `runtime.backend_api.BackendDevice`."""

    @property
    def device_type(self) -> str:
        """ "CPU", "GPU", …; `HOST` where arrays are NumPy's own, in the host's memory, and nowhere else."""

    @property
    def xp(self) -> Any:
        """The array namespace: NumPy's functions, of NumPy or another library. Products and linear algebra come from it
        alone, as methods and operators of arrays do not tell the backend. Its arrays have NumPy's methods, and where
        they have one element, `bool` and `int` give its value.
        """

    def generator(self, seed: int, seed2: int) -> Any:
        """A random generator with NumPy's `Generator` methods; (0, 0) seeds from the operating system."""

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, Body]:
        """The callable of a kernel for one node, and the definition that holds for it: on the host the kernel's own.

        Small values, such as constants and shapes, are NumPy's on every device. A device with memory of its own brings
        them to its arrays where they meet; `runtime.host_values.HostValues` does all of that.
        """

    def to_device(self, value: Any) -> Awaitable[Any]:
        """A copy of a host array (or NumPy scalar) on the device."""

    def to_host(self, value: Any) -> Awaitable[Any]:
        """A copy of a device array in host memory, which is the caller's."""

    def on_host(self, value: Any) -> Any:
        """A value as NumPy has it, for a kernel that must look at it: an array of the device is copied, which waits
        until it has been computed. What is on the host goes through.
        """

    def copy_from(self, array: Any, other: Any) -> Any:
        """This device's copy of an array of another device of the backend, from card to card where that can be."""

    def share(self, array: Any) -> Any:
        """The array as an object with `__dlpack__`, for other libraries that use the device."""


class BodySteps(Protocol):
    """The function that a node names, for its kernel to call as steps of their own, on the node's device.

    Attributes:
        digest: Equal for functions that do the same.
        is_repeatable: Whether a call may be made again, since it changes nothing.
    """

    digest: bytes
    is_repeatable: bool

    async def run(self, values: Sequence[Any]) -> list[Any]:
        """What it gives for these arguments; arrays that are the caller's own.

        Raises:
            OpError: a node inside failed; it is named.
        """

    def call(self, values: Sequence[Any], step: Any) -> list[Any]:
        """The same in this thread, as a part of the running step, if there is one; only of a body without branches,
        loops and nodes that wait.
        """


@dataclass(frozen=True, slots=True)
class Binding:
    """The node that a kernel is being bound for, with what lives longer than one step.

    Attributes:
        name, op_type, attrs: The node.
        input_dtypes, input_dims, output_dtypes, output_dims: Its flat inputs and outputs.
        constants: For each flat input the value, if it is a constant, otherwise None.
        backend: The backend of its device.
        resources: The device's resource manager.
        state: The session's table of kernel state by node name; use `shared`.
        folders: Where the worker's graphs may open files. Whatever a kernel opens, it asks them for.
        body: The function that it names, or None.
        reproducible: Whether results must be those of the device's own kernels, to the bit
            (`SessionConfig.reproducible`): a kernel of another package that rounds in another way gives way to them.
    """

    name: str
    op_type: str
    attrs: Mapping[str, Any]
    input_dtypes: tuple[DType, ...]
    input_dims: tuple[Dims, ...]
    output_dtypes: tuple[DType, ...]
    output_dims: tuple[Dims, ...]
    constants: tuple[Any, ...]
    backend: ArrayBackend
    resources: Any
    state: dict[str, Any]
    folders: AllowedFolders = ANYWHERE
    body: BodySteps | None = None
    reproducible: bool = False

    @property
    def xp(self) -> Any:
        """The backend's array namespace."""
        return self.backend.xp

    @property
    def gives_back(self) -> bool:
        """Whether the element that the node takes is put back if the fetches of the step are not delivered."""
        return GIVES_BACK in self.attrs

    @property
    def is_host(self) -> bool:
        """Whether arrays are NumPy's own, in the host's memory."""
        return self.backend.device_type == HOST

    def shared(self, make: Callable[[], T]) -> T:
        """State of this node that all steps of the session share, made on first use."""
        if self.name not in self.state:
            self.state[self.name] = make()
        found: T = self.state[self.name]
        return found


@dataclass(frozen=True, slots=True)
class KernelDef:
    """An implementation of an op for a device type and dtypes.

    Attributes:
        bind: Makes the callable for one node: it takes the op's inputs and returns its output (a tuple for several).
        dtypes: For some type attributes, the dtypes that this kernel takes.
        host: Inputs that must live in host memory, each with a converter that is applied before the body sees it (once
            only, if the input is a constant).
        takes: Inputs that are handles, each with the class of the resources that the body can work on.
        makes: The class of the resource that the (first) output is a handle of.
        opaque: The body does not look at its inputs: handles and lists of tensors may be among them, too. Other kernels
            are not given any for inputs of any dtype, unless `dtypes` says so.
        is_async: The body is a coroutine function, or one that returns its result where it need not wait, and else an
            awaitable; a method `describe` of that says what it waits for (see `sync/waiting.py`).
        fresh: Every output is a new buffer: no input, resource or constant shares its memory.
        retains: The body may keep an input beyond the call (a variable assigned, an element enqueued).
        takes_out: The body accepts a keyword argument `out`: None, or the buffer for its (single) output, which may be
            one of its inputs. Implies elementwise: the output at an index depends on the inputs at that index alone.
        expression: A Python expression for the same, such as "{0} + {1}", for generated code.
        exact_c: An element of the output in C, given the elements {0}, {1}, …, for generated code of the host; (T) is a
            cast to the type of {0}, and of C's functions there are sqrt, floor, ceil, rint and fabs, for every type.
            For numbers and bools of the types that C has, it gives the body's result to the last bit.
        label, priority: A kernel with a label is chosen only by a node that asks for it in `_kernel`; among the rest
            the highest priority wins, then the device's own kernel over a portable one.
        takes_step: The body accepts a keyword argument `step`, the running step.
        sends: The body hands its input to another device as it is, so nothing may be written over it afterwards. It
            runs even where its input is dead, and passes that on.
        elastic: What it takes follows from the values of its inputs (a shape, a count), and not only from their sizes.
            The body calls `stopping.claim` before it does anything else that could be told from outside: a step on the
            event loop is begun again in a thread where the claim is too large for that.
        acts_itself: The body says when it has an effect (`stopping.acting`). At other times it may be stopped, as a
            body without effects may be at any time; one that says nothing is waited for.
        synchronises: The body looks at a value (a size that depends on values, a check), so the host waits there for a
            device that computes ahead, and what it is part of cannot be captured.
        host_results: The outputs are in host memory, wherever the inputs are.
        opens_files: It opens or lists files whose names it is given: those that are in `Binding.folders`, no others.
    """

    op: str
    bind: Callable[[Binding], Body]
    device_type: str = ANY_DEVICE
    dtypes: Mapping[str, frozenset[DType]] = field(default_factory=dict)
    host: Mapping[str, Converter] = field(default_factory=dict)
    is_async: bool = False
    fresh: bool = False
    retains: bool = False
    takes_out: bool = False
    expression: str | None = None
    exact_c: str = ""
    label: str = ""
    priority: int = 0
    takes_step: bool = False
    sends: bool = False
    takes: Mapping[str, type] = field(default_factory=dict)
    makes: type | None = None
    opaque: bool = False
    elastic: bool = False
    acts_itself: bool = False
    synchronises: bool = False
    host_results: bool = False
    opens_files: bool = False

    def accepts(self, device_type: str, attrs: Mapping[str, Any]) -> bool:
        """Return whether the kernel serves a node with these attributes on that kind of device.

        The answer may depend on `read_by_kernels(attrs)` alone: placement caches it by that.
        """
        if self.device_type not in (ANY_DEVICE, device_type) or self.label != attrs.get("_kernel", ""):
            return False
        if self.device_type == ANY_DEVICE and device_type != HOST and _has_strings(attrs):
            return False  # strings live in host memory alone
        if not self.opaque and self._reads_handles(attrs):
            return False
        return all(attrs.get(name) in allowed for name, allowed in self.dtypes.items())

    def _reads_handles(self, attrs: Mapping[str, Any]) -> bool:
        """Whether an input of any dtype is a handle or a list of tensors, of which the kernel does not speak."""
        for arg in OPS.get(self.op).inputs:
            name = arg.type_attr or arg.list_attr
            if name is not None and name not in self.dtypes:
                value = attrs.get(name)
                if value in _HANDLES or (isinstance(value, tuple) and any(each in _HANDLES for each in value)):
                    return True
        return False


class KernelRegistry:
    """All kernels, by op.

    Args:
        package: The package that has those of aioflow; its `modules(family)` are what there is to import. They are
            imported, a family of ops at a time, when somebody asks for a kernel: a program that builds graphs, or only
            imports aioflow, need not wait for them.
    """

    def __init__(self, package: str = "") -> None:
        self._package = package
        self._known: dict[str, list[KernelDef]] = {}
        self._origins: dict[Hashable, Namespace] = {}  # of each, by its key, the module that registered it
        self._offered: dict[str, list[tuple[Callable[[], KernelDef], Namespace]]] = {}
        self._settled: set[str] = set()  # the ops whose kernels are all made
        self._offers = Locked()  # between who offers a kernel and who has just made all that were offered
        self._here = threading.local()

    @property
    def _kernels(self) -> dict[str, list[KernelDef]]:
        self.load()
        return self._known

    def load(self) -> None:
        """Have those that come with aioflow, and all that were offered."""
        if self._package:
            with not_forked():
                for name in import_module(self._package).modules():
                    import_module(name)
            self._package = ""
        for op in list(self._offered):
            self._settle(op)

    @contextmanager
    def trusting(self) -> Iterator[None]:
        """While the block runs, which loads a package of kernels, this thread only offers what it registers."""
        before, self._here.trusts = getattr(self._here, "trusts", False), True
        try:
            yield
        finally:
            self._here.trusts = before

    def offer(self, op: str, make: Callable[[], KernelDef]) -> None:
        """Register what `make` gives.

        Aioflow's own, and those of a package that is loaded as one (`trusting`), are made when somebody first asks for
        a kernel of the op, since that needs the op. Those of anybody else at once, and after these: who brings a second
        kernel for the same is told so there and then.

        Raises:
            NotFoundError, InvalidArgumentError, AlreadyRegisteredError: as `register`, and what `make` raises.
        """
        origin = importing()
        own = origin.get("__name__", "").startswith("aioflow.kernels.")
        if own or getattr(self._here, "trusts", False):
            with self._offers.lock:
                if op not in self._settled:
                    self._offered.setdefault(op, []).append((cache(make), origin))  # made once, though it is cut off
                    return
        if not own:
            self._settle(op)
        self._add(make(), origin)

    def _settle(self, op: str) -> None:
        """Have all kernels of an op made."""
        if op in self._settled:
            return
        with not_forked(), REGISTERING:
            home = OPS.home(op).split(".")
            if self._package and home[:2] == ["aioflow", "ops"]:
                new = [name for name in import_module(self._package).modules(home[2]) if name not in sys.modules]
                if new:
                    claim(0, LOADING)
                for name in new:
                    import_module(name)
            while not self._is_all(op):
                make, origin = self._offered[op][0]
                self._add(make(), origin)
                self._offered[op].pop(0)

    def _is_all(self, op: str) -> bool:
        """Whether all kernels that were offered for an op are made; whoever offers one later makes it at once."""
        with self._offers.lock:
            if self._offered.get(op):
                return False
            self._offered.pop(op, None)
            self._settled.add(op)
            return True

    def register(self, kernel_def: KernelDef) -> KernelDef:
        """Add a kernel, in the place of what an import that was cut off has left of it.

        Raises:
            NotFoundError: the op is not defined.
            AlreadyRegisteredError: there is one for the same op, device type, dtypes, label and priority.
        """
        return self._add(kernel_def, importing())

    def _add(self, kernel_def: KernelDef, origin: Namespace) -> KernelDef:
        OPS.get(kernel_def.op)
        known, key = self._known.setdefault(kernel_def.op, []), _key(kernel_def)
        if any(other is kernel_def for other in known):
            return kernel_def  # an interrupt came just then
        if any(_key(other) == key for other in known):
            if not gives_way(self._origins[key], origin):
                raise AlreadyRegisteredError(
                    f"op {kernel_def.op!r} already has such a kernel",
                    op_type=kernel_def.op,
                    expected="another device, other dtypes, a higher priority, or a label",
                    actual=_describe(kernel_def),
                )
            known[:] = [other for other in known if _key(other) != key]
        self._origins[key] = origin
        known.append(kernel_def)
        return kernel_def

    def _of(self, op_type: str) -> list[KernelDef]:
        self._settle(op_type)
        return self._known.get(op_type, [])

    def find(
        self, op_type: str, device_type: str, attrs: Mapping[str, Any], below: float = math.inf
    ) -> KernelDef | None:
        """The kernel that a node with these attributes gets on that kind of device, or None. Only those of a priority
        below `below` are looked at, for a kernel that leaves some nodes to the next one.
        """
        fitting = [k for k in self._of(op_type) if k.priority < below and k.accepts(device_type, attrs)]
        if not fitting:
            return None
        return max(fitting, key=lambda k: (k.priority, k.device_type != ANY_DEVICE))

    def get(self, op_type: str, device_type: str, attrs: Mapping[str, Any], below: float = math.inf) -> KernelDef:
        """As `find`. Raises UnimplementedError that lists the kernels there are."""
        found = self.find(op_type, device_type, attrs, below)
        if found is None:
            types: dict[str, str] = {k: v.name for k, v in attrs.items() if isinstance(v, DType)}
            types |= {"_kernel": attrs["_kernel"]} if attrs.get("_kernel") else {}
            existing = "; ".join(_describe(k) for k in self._of(op_type)) or "no kernel at all"
            raise UnimplementedError(
                f"no kernel of op {op_type!r} fits the node",
                op_type=op_type,
                expected=existing,
                actual=f"{device_type} with {types}",
            )
        return found

    def for_op(self, op_type: str) -> list[KernelDef]:
        """All kernels of an op."""
        return list(self._of(op_type))

    def __iter__(self) -> Iterator[KernelDef]:
        return (k for kernels in self._kernels.values() for k in kernels)


def _key(kernel_def: KernelDef) -> Hashable:
    """What no two kernels have in common."""
    dtypes = frozenset(kernel_def.dtypes.items())
    return kernel_def.op, kernel_def.device_type, dtypes, kernel_def.label, kernel_def.priority


def read_by_kernels(attrs: Mapping[str, Any]) -> Hashable:
    """Return what decides which kernels serve a node of an op: the label and the dtypes."""
    single = [(name, value) for name, value in attrs.items() if isinstance(value, DType)]
    several = [(name, tuple(value)) for name, value in attrs.items() if _are_dtypes(value)]
    return attrs.get("_kernel", ""), *single, *several


def _are_dtypes(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(each, DType) for each in value)


def _has_strings(attrs: Mapping[str, Any]) -> bool:
    return any(value is string or (isinstance(value, list | tuple) and string in value) for value in attrs.values())


def _describe(kernel_def: KernelDef) -> str:
    device = "any device" if kernel_def.device_type == ANY_DEVICE else kernel_def.device_type
    limits = [f"{n} in {{{', '.join(sorted(t.name for t in ts))}}}" for n, ts in kernel_def.dtypes.items()]
    if kernel_def.label:
        limits.append(f"for nodes with _kernel={kernel_def.label!r}")
    return f"{device} ({', '.join(limits)})" if limits else device


KERNELS: Final = KernelRegistry("aioflow.kernels")


def _dtype_sets(dtypes: Mapping[str, Iterable[Any] | str] | None) -> dict[str, frozenset[DType]]:
    """{"T": "floats ints bool"} or {"T": [float32, …]} as sets."""
    result: dict[str, frozenset[DType]] = {}
    for attr, allowed in (dtypes or {}).items():
        names = allowed.split() if isinstance(allowed, str) else allowed
        result[attr] = frozenset(as_dtype(t) for n in names for t in GROUPS.get(n, (n,)))
    return result


def _handles(op: str, takes: type | Mapping[str, type] | None) -> Mapping[str, type]:
    if takes is None or isinstance(takes, Mapping):
        return takes or {}
    return {arg.name: takes for arg in OPS.get(op).inputs if arg.dtype is resource}


class KernelOptions(TypedDict, total=False):
    """What may be said of a kernel when it is registered: see `KernelDef`."""

    fresh: bool
    retains: bool
    takes_out: bool
    takes_step: bool
    exact_c: str
    label: str
    priority: int
    makes: type | None
    opaque: bool
    elastic: bool
    acts_itself: bool
    synchronises: bool
    host_results: bool
    opens_files: bool


def kernel(
    op: str,
    *,
    device: str = ANY_DEVICE,
    dtypes: Mapping[str, Iterable[Any] | str] | None = None,
    host: Mapping[str, Converter] | None = None,
    takes: type | Mapping[str, type] | None = None,
    expression: str | None = None,
    **options: Unpack[KernelOptions],
) -> Callable[[Body], Body]:
    """Register a body for `op`; the body itself is returned. See `KernelDef` for the arguments.

    `takes` may be one class for all inputs of dtype resource.

    Raises:
        InvalidArgumentError: the body's parameters do not follow the op's signature.
    """

    _require_op(op)

    def made(body: Body) -> KernelDef:
        if _FOLDERS in inspect.signature(body).parameters:
            options["opens_files"] = True
        return _checked(
            KernelDef(
                op,
                _bind_body(op, body),
                device,
                _dtype_sets(dtypes),
                dict(host or {}),
                inspect.iscoroutinefunction(body),
                expression=expression,
                takes=_handles(op, takes),
                **options,
            )
        )

    def register(body: Body) -> Body:
        KERNELS.offer(op, partial(made, body))
        return body

    return register


def binder(
    op: str,
    *,
    device: str = ANY_DEVICE,
    dtypes: Mapping[str, Iterable[Any] | str] | None = None,
    host: Mapping[str, Converter] | None = None,
    takes: type | Mapping[str, type] | None = None,
    is_async: bool = False,
    **options: Unpack[KernelOptions],
) -> Callable[[Callable[[Binding], Body]], Callable[[Binding], Body]]:
    """Register a function that makes the body for one node, given its `Binding`. See `kernel` for the arguments."""

    _require_op(op)

    def made(bind: Callable[[Binding], Body]) -> KernelDef:
        return _checked(
            KernelDef(
                op,
                bind,
                device,
                _dtype_sets(dtypes),
                dict(host or {}),
                is_async,
                takes=_handles(op, takes),
                **options,
            )
        )

    def register(bind: Callable[[Binding], Body]) -> Callable[[Binding], Body]:
        KERNELS.offer(op, partial(made, bind))
        return bind

    return register


def _require_op(op: Any) -> None:
    """Raise InvalidArgumentError for a decorator without its parentheses, which would register nothing."""
    if not isinstance(op, str):
        raise InvalidArgumentError("a kernel needs its op", expected='the name of an op: `@kernel("Tanh")`', actual=op)


def _checked(kernel_def: KernelDef) -> KernelDef:
    """The kernel. Raises InvalidArgumentError where it speaks of what its op does not have: it would never be chosen,
    or its converter never be called.
    """
    op_def = OPS.get(kernel_def.op)
    inputs = [arg.name for arg in op_def.inputs]
    types = [name for name, attr in op_def.attrs.items() if attr.kind in ("type", "list(type)")]
    for option, given, known in (
        ("host", kernel_def.host, inputs),
        ("takes", kernel_def.takes, inputs),
        ("dtypes", kernel_def.dtypes, types),
    ):
        for name in given:
            if name not in known:
                raise _misfit(kernel_def.op, f"{option}= of a kernel names {name!r}", f"one of {known}", name)
    for name, dtypes in kernel_def.dtypes.items():
        allowed = op_def.attrs[name].allowed
        if allowed is not None and not dtypes & set(allowed):
            names = [", ".join(sorted(dtype.name for dtype in some)) for some in (allowed, dtypes)]
            raise _misfit(kernel_def.op, f"dtypes= of a kernel: {name!r} is never one of these", names[0], names[1])
    if kernel_def.device_type != kernel_def.device_type.upper():
        raise _misfit(
            kernel_def.op, "device= of a kernel", f"{kernel_def.device_type.upper()!r}", kernel_def.device_type
        )
    return kernel_def


def _misfit(op: str, message: str, expected: str, actual: Any) -> InvalidArgumentError:
    return InvalidArgumentError(message, op_type=op, expected=expected, actual=actual)


def _bind_body(op: str, body: Body) -> Callable[[Binding], Body]:
    parameters = list(inspect.signature(body).parameters.values())
    takes_xp = bool(parameters) and parameters[0].name == "xp"
    attrs = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != _FOLDERS]
    takes_folders = any(p.name == _FOLDERS for p in parameters)
    positional = [p for p in parameters[takes_xp:] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given_names = [p.name for p in positional if p.default is p.empty]
    op_def = OPS.get(op)
    names = [a.name for a in op_def.inputs]
    unknown = [a for a in attrs if a not in op_def.attrs]
    unnamed = [p.name for p in positional if p.name in op_def.attrs and p.name not in names]
    swapped = sorted(given_names) == sorted(names) and given_names != names
    if len(given_names) != len(names) or unknown or unnamed or swapped:
        raise InvalidArgumentError(
            f"the kernel body {body.__name__} does not follow the signature of op {op}",
            op_type=op,
            expected=f"inputs {names} in this order, and after a * any of the attributes {sorted(op_def.attrs)}",
            actual=f"def {body.__name__}{inspect.signature(body)}",
        )

    def bind(binding: Binding) -> Body:
        first = (binding.xp,) if takes_xp else ()
        given = {name: binding.attrs[name] for name in attrs}
        if takes_folders:
            given[_FOLDERS] = binding.folders
        return partial(body, *first, **given) if first or given else body

    return bind


@dataclass(frozen=True, slots=True)
class Ufunc:
    """One row of an `elementwise` table: the function's name in `xp`, and the same as an operator expression, and in C
    (as `KernelDef.exact_c`).
    """

    name: str
    expression: str | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    exact_c: str = ""


def elementwise(table: Mapping[str, Ufunc | str]) -> None:
    """Register ops that are one ufunc of the array namespace each."""
    for op, row in table.items():
        ufunc = Ufunc(row) if isinstance(row, str) else row
        KERNELS.offer(op, partial(_ufunc_kernel, op, ufunc))


def _ufunc_kernel(op: str, ufunc: Ufunc) -> KernelDef:
    return _checked(
        KernelDef(
            op,
            partial(_namespace_function, ufunc.name),
            dtypes=_dtype_sets(ufunc.dtypes),
            fresh=True,
            takes_out=True,
            expression=ufunc.expression,
            exact_c=ufunc.exact_c,
        )
    )


def _namespace_function(name: str, binding: Binding) -> Body:
    found: Body = getattr(binding.xp, name)
    return found

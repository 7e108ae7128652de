"""The kernel registry, keyed by op, device type and dtypes.

A kernel body is an ordinary function. Its parameters follow the op's signature, one per input (a sequence for a
sequence input). Keyword-only parameters are attributes of the op, except `folders`, the folders in which the kernel may
open files. A first parameter named `xp` receives the backend's array namespace. `kernel` registers a body, `binder` a
function that returns the body for one node (for kernels that specialize on attributes, constants, resources or random
state), `elementwise` a whole table of ufuncs.

A value at run time is an array of the backend or, on the CPU, a NumPy scalar instead of a 0-d array.
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

from aioflow.concurrency.forking import Locked, not_forked
from aioflow.concurrency.stopping import reserve
from aioflow.errors import AlreadyRegisteredError, InvalidArgumentError, UnimplementedError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.graph.boundary import GIVES_BACK
from aioflow.graph.dtypes import DType, as_dtype, resource, string, variant
from aioflow.graph.opdef import LOADING, OPS, REGISTERING
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.signature.reading import GROUPS
from aioflow.loading.importing import Globals, gives_way, importing
from aioflow.memory.values import Array, Namespace, Value

ANY_DEVICE: Final = "*"
HOST: Final = "CPU"  # the device type whose arrays are NumPy arrays in host memory
_HANDLES: Final = frozenset({resource, variant})
_FOLDERS: Final = "folders"
Converter: TypeAlias = Callable[[Any], object]
KernelBody: TypeAlias = Callable[..., Any]
DTypes: TypeAlias = Mapping[str, Iterable[Any] | str] | None  # what `as_dtype` accepts, and names of groups
T = TypeVar("T")


class ArrayBackend(Protocol):
    """The interface of a device that kernels may use, a part of `extend.BackendDevice`."""

    @property
    def device_type(self) -> str:
        """Type in device names: "GPU", …; "CPU" if and only if arrays are NumPy arrays in host memory."""

    @property
    def xp(self) -> Namespace:
        """The array namespace: NumPy's functions, from NumPy or another library.

        Call products and linear algebra only through it, because methods and operators of arrays bypass the backend.
        Its arrays have NumPy's methods; `bool` and `int` of an array with one element return the element's value.
        """

    def generator(self, seed: int, seed2: int) -> Any:
        """Return a random generator with the methods of NumPy's `Generator`, whose results are arrays of the device.

        The seeds are any int64, also negative. Equal pairs give equal numbers; (0, 0) seeds from the operating system.
        """

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, KernelBody]:
        """Return the kernel's callable for one node, and the definition that applies: on the host the kernel's own.

        Small values, such as constants and shapes, are NumPy arrays on every device. A device with its own memory
        copies them to the device when they meet its arrays; `extend.HostValues` implements that.
        """

    def to_device(self, value: Array) -> Awaitable[Array]:
        """Copy a host array (or NumPy scalar) to the device."""

    def to_host(self, value: Array) -> Awaitable[Array]:
        """Copy a device array to host memory. The caller owns the copy."""

    def on_host(self, value: Any) -> Any:
        """Return a value as a NumPy array, for a kernel that must look at it.

        A device array is copied, which waits until it has been computed. A host value is returned unchanged.
        """

    def copy_from(self, array: Array, other: Any) -> Array:
        """Copy an array from another device of the backend to this one, directly between GPUs if possible."""

    def share(self, array: Array) -> object:
        """Return the array as an object with `__dlpack__`, for other libraries that use the device."""


class BodySteps(Protocol):
    """The function that a node names. Its kernel calls it as separate steps on the node's device.

    Attributes:
        digest: Equal for functions that compute the same.
        is_repeatable: Whether a call may be repeated because it changes nothing.
        is_callable: Whether `call` is available: the body has no branches, loops and nodes that wait.
    """

    digest: bytes
    is_repeatable: bool
    is_callable: bool

    async def run(self, values: Sequence[Value]) -> list[Value]:
        """Run the function with these arguments. The caller owns the returned arrays.

        Raises:
            OpError: a node inside failed; the error names it.
        """

    def call(self, values: Sequence[Value], step: Any) -> list[Value]:
        """Run the function in this thread, as a part of the running step if there is one.

        Only for a body without branches, loops and nodes that wait.
        """


@dataclass(frozen=True, slots=True)
class Binding:
    """The node that a kernel is bound for, with the objects that outlive one step.

    Attributes:
        name, op_type, attrs: The node.
        input_dtypes, input_dims, output_dtypes, output_dims: Its flat inputs and outputs.
        constants: The value of each flat input that is a constant, otherwise None.
        backend: The backend of its device.
        resources: The device's resource manager.
        state: The session's table of kernel state by node name; use `shared`.
        folders: The folders in which the worker's graphs may open files. A kernel must open every file through them.
        body: The function that the node names, or None.
        reproducible: Whether results must be those of the device's own kernels, to the bit
            (`SessionConfig.reproducible`). Then a kernel of another package that rounds differently is not used.
    """

    name: str
    op_type: str
    attrs: Attrs
    input_dtypes: tuple[DType, ...]
    input_dims: tuple[Dims, ...]
    output_dtypes: tuple[DType, ...]
    output_dims: tuple[Dims, ...]
    constants: tuple[Array | None, ...]
    backend: ArrayBackend
    resources: Any
    state: dict[str, Any]
    folders: AllowedFolders = ANYWHERE
    body: BodySteps | None = None
    reproducible: bool = False

    @property
    def xp(self) -> Namespace:
        """The backend's array namespace."""
        return self.backend.xp

    @property
    def gives_back(self) -> bool:
        """True if the element that the node takes is put back when the step's fetches are not delivered."""
        return GIVES_BACK in self.attrs

    @property
    def is_host(self) -> bool:
        """True if arrays are NumPy arrays in host memory."""
        return self.backend.device_type == HOST

    def shared(self, make: Callable[[], T]) -> T:
        """Return state of this node that all steps of the session share, made on first use."""
        if self.name not in self.state:
            self.state[self.name] = make()
        found: T = self.state[self.name]
        return found


@dataclass(frozen=True, slots=True)
class KernelDef:
    """An implementation of an op for a device type and dtypes.

    Attributes:
        bind: Makes the callable for one node, which maps the op's inputs to its output (a tuple for several).
        dtypes: The dtypes that this kernel accepts for some type attributes.
        host: Inputs that must live in host memory, each with a converter that is applied before the body sees it (once
            only, if the input is a constant).
        takes: Inputs that are handles, each with the class of the resources that the body supports.
        makes: The class of the resource that the (first) output is a handle of.
        opaque: The body does not look at its inputs, so they may be handles and lists of tensors. Other kernels do not
            receive these for inputs of any dtype, unless `dtypes` includes them.
        is_async: The body is a coroutine function, or a function that returns its result if it need not wait, and
            otherwise an awaitable. A method `describe` of the awaitable describes the wait (see `sync/waiting.py`).
        fresh: Every output is a new buffer: no input, resource or constant shares its memory.
        retains: The body may keep an input beyond the call (a variable assigned, an element enqueued).
        takes_out: The body accepts a keyword argument `out`: None, or the buffer for its (single) output, which may be
            one of its inputs. Implies elementwise: the output at an index depends on the inputs at that index alone.
        expression: An equivalent Python expression, such as "{0} + {1}", for generated code.
        exact_c: An element of the output in C, given the elements {0}, {1}, …, for generated code of the host. (T) is a
            cast to the type of {0}. The available C functions are sqrt, floor, ceil, rint and fabs, for every type. For
            numbers and bools of the types that C has, it returns the body's result to the last bit.
        label: A kernel with a label is chosen only for a node that requests it in `_kernel`.
        priority: Among the kernels that fit a node the highest priority wins, then the device's own kernel over a
            portable one.
        takes_step: The body accepts a keyword argument `step`, the running step.
        sends: The body passes its input to another device without a copy, so the input must not be overwritten
            afterwards. The body runs even if its input is dead, and passes the deadness on.
        elastic: The cost depends on the values of its inputs (a shape, a count), and not only on their sizes. The body
            calls `stopping.reserve` before it has any visible effect, because a step on the event loop is restarted
            in a thread if the reservation is too large for the loop.
        acts_itself: The body marks the sections in which it has an effect (`stopping.critical_section`). Outside of
            them it may be stopped, as a body without effects may be at any time. Other bodies with effects are awaited.
        synchronises: The body looks at a value (a size that depends on values, a check). There the host waits for a
            device that computes ahead, and the surrounding part cannot be captured.
        host_results: The outputs are in host memory, wherever the inputs are.
        opens_files: The body opens or lists files by names from its inputs, and only inside `Binding.folders`.
    """

    op: str
    bind: Callable[[Binding], KernelBody]
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

    def accepts(self, device_type: str, attrs: Attrs) -> bool:
        """Return whether the kernel serves a node with these attributes on that kind of device.

        The result must depend on `read_by_kernels(attrs)` alone, because placement caches it by that key.
        """
        if self.device_type not in (ANY_DEVICE, device_type) or self.label != attrs.get("_kernel", ""):
            return False
        if self.device_type == ANY_DEVICE and device_type != HOST and _has_strings(attrs):
            return False  # strings exist only in host memory
        if not self.opaque and self._reads_handles(attrs):
            return False
        return all(attrs.get(name) in allowed for name, allowed in self.dtypes.items())

    def _reads_handles(self, attrs: Attrs) -> bool:
        """Return whether an input of any dtype is a handle or a list of tensors that `dtypes` does not mention."""
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
        package: The package of aioflow's own kernels; its `modules(family)` lists the modules. A family of ops is
            imported on the first request for one of its kernels, so a program that only builds graphs does not load it.
    """

    def __init__(self, package: str = "") -> None:
        self._package = package
        self._known: dict[str, list[KernelDef]] = {}
        self._origins: dict[Hashable, Globals] = {}  # maps each kernel's key to the module that registered it
        self._offered: dict[str, list[tuple[Callable[[], KernelDef], Globals]]] = {}
        self._completed: set[str] = set()  # the ops whose offered kernels are all made
        self._offers = Locked()  # excludes an offer during the decision that all offered kernels are made
        self._here = threading.local()

    @property
    def _kernels(self) -> dict[str, list[KernelDef]]:
        self.load()
        return self._known

    def load(self) -> None:
        """Import all of aioflow's kernels, and make all offered ones."""
        if self._package:
            with not_forked():
                for name in import_module(self._package).modules():
                    import_module(name)
            # After the imports, so that an interrupted load is repeated.
            self._package = ""
        # A copy, since `_complete` removes the op.
        for op in list(self._offered):
            self._complete(op)

    @contextmanager
    def trusting(self) -> Iterator[None]:
        """Treat kernels that this thread registers in the block as offers; the block loads a package of kernels."""
        before, self._here.trusts = getattr(self._here, "trusts", False), True
        try:
            yield
        finally:
            self._here.trusts = before

    def offer(self, op: str, make: Callable[[], KernelDef]) -> None:
        """Register the result of `make`.

        For aioflow's own kernels, and those of a package loaded under `trusting`, `make` is called on the first request
        for a kernel of the op, because it needs the op. Any other kernel is made at once, after these, so that the
        caller gets the error if it duplicates an existing kernel.

        Raises:
            NotFoundError, InvalidArgumentError, AlreadyRegisteredError: as `register`, and what `make` raises.
        """
        origin = importing()
        own = origin.get("__name__", "").startswith("aioflow.kernels.")
        if own or getattr(self._here, "trusts", False):
            with self._offers.lock:
                # Under the lock, so that `_is_all` cannot complete the op between this test and the append.
                if op not in self._completed:
                    # `cache`: made once, even if an interrupt cuts off `_complete`.
                    self._offered.setdefault(op, []).append((cache(make), origin))
                    return
        if not own:
            self._complete(op)
        self._add(make(), origin)

    def _complete(self, op: str) -> None:
        """Make all kernels of an op."""
        # Without a lock, since no op ever leaves the set.
        if op in self._completed:
            return
        with not_forked(), REGISTERING:
            # The kernels of `aioflow.ops.<family>` are in `aioflow.kernels.<family>`.
            home = OPS.home(op).split(".")
            if self._package and home[:2] == ["aioflow", "ops"]:
                new = [name for name in import_module(self._package).modules(home[2]) if name not in sys.modules]
                if new:
                    # On an event loop, this moves the imports to a thread.
                    reserve(0, LOADING)
                for name in new:
                    import_module(name)
            # Until `_is_all` has decided, other threads may offer further kernels.
            while not self._is_all(op):
                make, origin = self._offered[op][0]
                self._add(make(), origin)
                # Removed last, so that an interrupt leaves it in place and the next call repeats it.
                self._offered[op].pop(0)

    def _is_all(self, op: str) -> bool:
        """Return whether all offered kernels of an op are made. From then on `offer` makes a kernel at once."""
        with self._offers.lock:
            if self._offered.get(op):
                return False
            self._offered.pop(op, None)
            self._completed.add(op)
            return True

    def register(self, kernel_def: KernelDef) -> KernelDef:
        """Add a kernel, and replace one that an interrupted import of the same module has left.

        Raises:
            NotFoundError: the op is not defined.
            AlreadyRegisteredError: a kernel with the same op, device type, dtypes, label and priority exists.
        """
        return self._add(kernel_def, importing())

    def _add(self, kernel_def: KernelDef, origin: Globals) -> KernelDef:
        # Raises NotFoundError for an op that is not defined.
        OPS.get(kernel_def.op)
        known, key = self._known.setdefault(kernel_def.op, []), _key(kernel_def)
        if any(other is kernel_def for other in known):
            # A repeated call after an interrupt, which came just after the kernel was added.
            return kernel_def
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
        self._complete(op_type)
        return self._known.get(op_type, [])

    def find(self, op_type: str, device_type: str, attrs: Attrs, below: float = math.inf) -> KernelDef | None:
        """Return the kernel for a node with these attributes on that kind of device, or None.

        Only kernels with a priority below `below` are considered, for a kernel that leaves some nodes to the next one.
        """
        fitting = [k for k in self._of(op_type) if k.priority < below and k.accepts(device_type, attrs)]
        if not fitting:
            return None
        return max(fitting, key=lambda k: (k.priority, k.device_type != ANY_DEVICE))

    def get(self, op_type: str, device_type: str, attrs: Attrs, below: float = math.inf) -> KernelDef:
        """Return the kernel like `find`, or raise UnimplementedError, which lists the existing kernels."""
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
        """Return all kernels of an op."""
        return list(self._of(op_type))

    def __iter__(self) -> Iterator[KernelDef]:
        return (k for kernels in self._kernels.values() for k in kernels)


def _key(kernel_def: KernelDef) -> Hashable:
    """Return the identity of a kernel; no two registered kernels share it."""
    dtypes = frozenset(kernel_def.dtypes.items())
    return kernel_def.op, kernel_def.device_type, dtypes, kernel_def.label, kernel_def.priority


def read_by_kernels(attrs: Attrs) -> Hashable:
    """Return the facts that decide which kernels serve a node of an op: the label and the dtypes."""
    single = [(name, value) for name, value in attrs.items() if isinstance(value, DType)]
    several = [(name, tuple(value)) for name, value in attrs.items() if _are_dtypes(value)]
    return attrs.get("_kernel", ""), *single, *several


def _are_dtypes(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(each, DType) for each in value)


def _has_strings(attrs: Attrs) -> bool:
    return any(value is string or (isinstance(value, list | tuple) and string in value) for value in attrs.values())


def _describe(kernel_def: KernelDef) -> str:
    device = "any device" if kernel_def.device_type == ANY_DEVICE else kernel_def.device_type
    limits = [f"{n} in {{{', '.join(sorted(t.name for t in ts))}}}" for n, ts in kernel_def.dtypes.items()]
    if kernel_def.label:
        limits.append(f"for nodes with _kernel={kernel_def.label!r}")
    return f"{device} ({', '.join(limits)})" if limits else device


KERNELS: Final = KernelRegistry("aioflow.kernels")


def _dtype_sets(dtypes: DTypes) -> dict[str, frozenset[DType]]:
    """Convert {"T": "floats ints bool"} or {"T": [float32, …]} to sets of dtypes."""
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
    """The keyword options of a registration; see `KernelDef`."""

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
    dtypes: DTypes = None,
    host: Mapping[str, Converter] | None = None,
    takes: type | Mapping[str, type] | None = None,
    expression: str | None = None,
    **options: Unpack[KernelOptions],
) -> Callable[[KernelBody], KernelBody]:
    """Register the decorated body for `op`, and return the body. See `KernelDef` for the arguments.

    `takes` may be one class for all inputs of dtype resource.

    Raises:
        InvalidArgumentError: the body's parameters do not follow the op's signature.
    """

    _require_op(op)

    def made(body: KernelBody) -> KernelDef:
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

    def register(body: KernelBody) -> KernelBody:
        KERNELS.offer(op, partial(made, body))
        return body

    return register


def binder(
    op: str,
    *,
    device: str = ANY_DEVICE,
    dtypes: DTypes = None,
    host: Mapping[str, Converter] | None = None,
    takes: type | Mapping[str, type] | None = None,
    is_async: bool = False,
    **options: Unpack[KernelOptions],
) -> Callable[[Callable[[Binding], KernelBody]], Callable[[Binding], KernelBody]]:
    """Register a function that makes the body for one node, given its `Binding`. See `kernel` for the arguments."""

    _require_op(op)

    def made(bind: Callable[[Binding], KernelBody]) -> KernelDef:
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

    def register(bind: Callable[[Binding], KernelBody]) -> Callable[[Binding], KernelBody]:
        KERNELS.offer(op, partial(made, bind))
        return bind

    return register


def _require_op(op: object) -> None:
    """Raise InvalidArgumentError for a decorator without its parentheses, which would register nothing."""
    if not isinstance(op, str):
        raise InvalidArgumentError("a kernel needs its op", expected='the name of an op: `@kernel("Tanh")`', actual=op)


def _checked(kernel_def: KernelDef) -> KernelDef:
    """Return the kernel after a check of its options against the op.

    Raises:
        InvalidArgumentError: an option names something that the op does not have. The kernel would never be chosen, or
            its converter never called.
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


def _misfit(op: str, message: str, expected: str, actual: object) -> InvalidArgumentError:
    return InvalidArgumentError(message, op_type=op, expected=expected, actual=actual)


def _bind_body(op: str, body: KernelBody) -> Callable[[Binding], KernelBody]:
    parameters = list(inspect.signature(body).parameters.values())
    takes_xp = bool(parameters) and parameters[0].name == "xp"
    attrs = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != _FOLDERS]
    takes_folders = any(p.name == _FOLDERS for p in parameters)
    positional = [p for p in parameters[takes_xp:] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given_names = [p.name for p in positional if p.default is p.empty]
    op_def = OPS.get(op)
    names = [a.name for a in op_def.inputs]
    unknown = [a for a in attrs if a not in op_def.attrs]
    # An attribute before the `*` would silently receive an input.
    unnamed = [p.name for p in positional if p.name in op_def.attrs and p.name not in names]
    # So would the names of the inputs in another order.
    swapped = sorted(given_names) == sorted(names) and given_names != names
    if len(given_names) != len(names) or unknown or unnamed or swapped:
        raise InvalidArgumentError(
            f"the kernel body {body.__name__} does not follow the signature of op {op}",
            op_type=op,
            expected=f"inputs {names} in this order, and after a * any of the attributes {sorted(op_def.attrs)}",
            actual=f"def {body.__name__}{inspect.signature(body)}",
        )

    def bind(binding: Binding) -> KernelBody:
        first = (binding.xp,) if takes_xp else ()
        given = {name: binding.attrs[name] for name in attrs}
        if takes_folders:
            given[_FOLDERS] = binding.folders
        return partial(body, *first, **given) if first or given else body

    return bind


@dataclass(frozen=True, slots=True)
class Ufunc:
    """One row of an `elementwise` table.

    Attributes:
        name: The function's name in `xp`.
        expression: An equivalent operator expression.
        dtypes: As `KernelDef.dtypes`.
        exact_c: As `KernelDef.exact_c`.
    """

    name: str
    expression: str | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    exact_c: str = ""


def elementwise(table: Mapping[str, Ufunc | str]) -> None:
    """Register ops that are each one ufunc of the array namespace."""
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


def _namespace_function(name: str, binding: Binding) -> KernelBody:
    found: KernelBody = getattr(binding.xp, name)
    return found

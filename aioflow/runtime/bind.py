"""Bind nodes to kernels: from plain data to callables, once for each registered subgraph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from aioflow.compiler.growth import grows
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.errors import (
    AioflowError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnknownError,
)
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.graph.boundary import BOUNDARY
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.signature.arguments import per_argument, places
from aioflow.graph.traits import Effect
from aioflow.kernels.convert import OF_ONE_ELEMENT, Handle, as_array
from aioflow.kernels.one_shape import may_differ, of_one_shape
from aioflow.kernels.registry import HOST, KERNELS, ArrayBackend, Binding, Body, BodySteps, Converter, KernelDef
from aioflow.runtime.growing import claiming
from aioflow.work.copying import copied
from aioflow.work.frozen import is_frozen
from aioflow.work.stopping import batches

__all__ = [
    "Argument",
    "BoundNode",
    "Choice",
    "Fetched",
    "Guard",
    "LiftedLoop",
    "Passing",
    "bind_graph",
    "converter",
    "gather",
    "kernel_error",
    "own",
    "rebound",
    "to_keep",
]

# The predicates under which a node runs, outermost first, each with the side that it must take.
Guard: TypeAlias = tuple[tuple[Edge, bool], ...]


class Fetched:
    """A converter for a device with memory of its own: the value is fetched first.

    Attributes:
        convert: Works on what is in host memory.
    """

    __slots__ = ("_on_host", "convert")

    def __init__(self, convert: Converter, on_host: Converter) -> None:
        self.convert = convert
        self._on_host = on_host

    def __call__(self, value: Any) -> Any:
        """As `convert`."""
        return self.convert(self._on_host(value))


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel: the outputs it is made of, whether it is a sequence, and its converter to a host
    value.
    """

    sources: tuple[Edge, ...]
    is_sequence: bool
    convert: Converter | None

    @property
    def passes(self) -> bool:
        """Whether the kernel gets the values themselves, or what shares their memory."""
        convert = self.convert.convert if isinstance(self.convert, Fetched) else self.convert
        return convert is None or convert is as_array or isinstance(convert, Handle)


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node with the callable that computes it, and the guard under which it runs.

    Attributes:
        claims: The callable claims the size of what it makes, whatever the kernel does.
    """

    node: Node
    kernel: KernelDef
    call: Body
    arguments: tuple[Argument, ...]
    guard: Guard = ()
    claims: bool = field(default=False, kw_only=True)

    @property
    def reads(self) -> tuple[Edge, ...]:
        """The values that it needs: its inputs, and the predicates of its guard."""
        return (*self.node.inputs, *(predicate for predicate, _ in self.guard)) if self.guard else self.node.inputs

    @property
    def keeps(self) -> tuple[Edge, ...]:
        """The inputs that it may hold beyond the call."""
        return self.node.inputs if self.kernel.retains else ()

    @property
    def has_effects(self) -> bool:
        """Whether it changes something that others see: then it is never run twice, and always waited for."""
        effect = traits_of(self.node.op).effect
        return self.kernel.sends or effect in (Effect.KEEPS, Effect.CHANGES)

    @property
    def is_waited_for(self) -> bool:
        """Whether the call as a whole has an effect, as far as can be told."""
        return self.has_effects and not self.kernel.acts_itself

    @property
    def unpacks(self) -> bool:
        """Whether the callable returns a tuple of outputs rather than one output (or nothing)."""
        outputs = OPS.get(self.node.op).outputs
        return len(outputs) > 1 or any(a.is_sequence for a in outputs)

    def outputs_of(self, result: Any) -> tuple[Any, ...]:
        """The outputs, from what the callable returned."""
        if self.unpacks:
            return tuple(result)
        return (result,) if self.node.outputs else ()


@dataclass(frozen=True, slots=True)
class Choice(BoundNode):
    """A Merge. It reads (predicate, value if false, value if true), or one value where the other is always dead.

    Attributes:
        indices: Its second output, for each value: which input of the Merge it was.
    """

    indices: tuple[Any, ...] = ()

    @property
    def has_effects(self) -> bool:
        """It only chooses."""
        return False

    @property
    def unpacks(self) -> bool:
        """As the Merge."""
        return True


@dataclass(frozen=True, slots=True)
class Passing(BoundNode):
    """A node that lifting adds: it hands on the one value that it reads, or only looks at it."""

    @property
    def has_effects(self) -> bool:
        """It only hands on."""
        return False

    @property
    def unpacks(self) -> bool:
        """It has at most one output."""
        return False


@dataclass(frozen=True, slots=True)
class LiftedLoop(BoundNode):
    """A whole loop as one node. Its callable takes the values that enter and returns those that leave.

    Attributes:
        kept: The positions of the inputs that a node inside may keep.
    """

    kept: frozenset[int] = frozenset()

    @property
    def has_effects(self) -> bool:
        """It is not what acts: the nodes inside say so themselves."""
        return False

    @property
    def unpacks(self) -> bool:
        """It always returns a tuple."""
        return True

    @property
    def keeps(self) -> tuple[Edge, ...]:
        """The inputs that a node inside may hold beyond the loop."""
        return tuple(self.node.inputs[i] for i in sorted(self.kept))


def bind_graph(
    graph: ClientGraph,
    backend: ArrayBackend,
    resources: Any,
    state: dict[str, Any],
    folders: AllowedFolders = ANYWHERE,
    prepare: Callable[[Node], BodySteps] | None = None,
    *,
    reproducible: bool = False,
) -> list[BoundNode]:
    """Every node that computes, bound to its kernel, in topological order.

    Args:
        folders: Where the nodes may open files.
        prepare: Makes the bodies of nodes ready to be run; without it, nodes that have some cannot be bound.
        reproducible: As `SessionConfig.reproducible`.

    Raises:
        UnimplementedError: there is no kernel for a node on this kind of device.
        InvalidArgumentError: a kernel cannot be bound to such attributes.
    """
    working = (node for node in batches(graph.nodes.values(), 64) if not _is_interpreted(node))
    return [_bind(node, graph, backend, resources, state, folders, prepare, reproducible) for node in working]


def _bind(
    node: Node,
    graph: ClientGraph,
    backend: ArrayBackend,
    resources: Any,
    state: dict[str, Any],
    folders: AllowedFolders,
    prepare: Callable[[Node], BodySteps] | None,
    reproducible: bool,
) -> BoundNode:
    specs = [graph.spec(edge) for edge in node.inputs]
    binding = Binding(
        node.name,
        node.op,
        node.attrs,
        tuple(s.dtype for s in specs),
        tuple(s.dims for s in specs),
        tuple(s.dtype for s in node.outputs),
        tuple(s.dims for s in node.outputs),
        tuple(_constant(graph, edge) for edge in node.inputs),
        backend,
        resources,
        state,
        folders,
        None if node.body is None or prepare is None else prepare(node),
        reproducible,
    )
    try:
        kernel, call = backend.bind(KERNELS.get(node.op, backend.device_type, node.attrs), binding)
        arguments = tuple(_arguments(node, kernel, graph, backend))
        if may_differ(node.op, binding.input_dims):
            return BoundNode(node, replace(kernel, expression=None), of_one_shape(call), arguments)
        if not grows(node, kernel, graph):
            return BoundNode(node, kernel, call, arguments)
        return BoundNode(node, replace(kernel, expression=None), claiming(call, kernel, node), arguments, claims=True)
    except Exception as error:  # attributes of the right kinds whose values no kernel can be made for
        explained = kernel_error(error, node)
        raise explained from explained.__cause__


def _constant(graph: ClientGraph, edge: Edge) -> Any:
    source = graph.nodes[edge.node]
    return source.attrs["value"] if source.op == "Const" else None


def _arguments(node: Node, kernel: KernelDef, graph: ClientGraph, backend: ArrayBackend) -> list[Argument]:
    found: list[Argument] = []
    for arg, sources in per_argument(OPS.get(node.op).inputs, node.attrs, node.inputs):
        convert = converter(kernel, arg.name, backend)
        kind = kernel.takes.get(arg.name)
        if kind is not None and not all(_is_handle_of(kind, edge, graph, backend) for edge in sources):
            convert = Handle(kind)
        found.append(Argument(tuple(sources), arg.is_sequence, convert))
    return found


def converter(kernel: KernelDef, name: str, backend: ArrayBackend) -> Converter | None:
    """What makes the host value that the kernel takes for that input of a value on the device; None for a tensor."""
    convert = kernel.host.get(name)
    if convert is None or backend.device_type == HOST or convert in OF_ONE_ELEMENT:
        return convert
    return Fetched(convert, backend.on_host)


def _is_handle_of(kind: type, edge: Edge, graph: ClientGraph, backend: ArrayBackend) -> bool:
    """Whether the value is certainly a resource of that kind, so that nobody need look at it in each step."""
    source = graph.nodes[edge.node]
    while traits_of(source.op).steers and source.op != "Merge" and source.inputs:
        edge = source.inputs[0]
        source = graph.nodes[edge.node]
    maker = KERNELS.find(source.op, backend.device_type, source.attrs)
    return maker is not None and edge.port == 0 and maker.makes is not None and issubclass(maker.makes, kind)


def _is_interpreted(node: Node) -> bool:
    """Whether the runtime itself knows what to do, so that there is no kernel."""
    return node.op in BOUNDARY or traits_of(node.op).steers


def own(value: Any) -> Any:
    """A copy that the engine may keep; scalars and handles are immutable and need none."""
    return copied(value) if getattr(value, "ndim", False) else value


def to_keep(value: Any) -> Any:
    """The same for a kernel that keeps what it gets, which may have what nobody writes to."""
    return value if is_frozen(value) else own(value)


def gather(bound: BoundNode, values: Mapping[Edge, Any], fed: Set[Edge] = frozenset()) -> list[Any]:
    """The positional arguments of a kernel, from the values of the outputs that it reads.

    Those in `fed` share memory with what the caller fed; a kernel that keeps its inputs gets copies of them.
    """
    copied = fed if bound.kernel.retains else frozenset[Edge]()
    result: list[Any] = []
    for argument in bound.arguments:
        items = [to_keep(values[edge]) if edge in copied else values[edge] for edge in argument.sources]
        if argument.convert is not None:
            items = [argument.convert(item) for item in items]
        result.append(tuple(items) if argument.is_sequence else items[0])
    return result


def rebound(bound: BoundNode, node: Node) -> BoundNode:
    """The bound node with its edges as they are now."""
    if node is bound.node:
        return bound
    every = zip(bound.arguments, places(len(a.sources) for a in bound.arguments), strict=True)
    return replace(bound, node=node, arguments=tuple(replace(a, sources=node.inputs[place]) for a, place in every))


# What a kernel may raise, and what it means; the first row that fits decides. Nothing foreign is an OutOfRangeError,
# which says that a source has ended: a queue runner would take a fault for the end of its input.
_FOREIGN: tuple[tuple[type[BaseException], type[OpError]], ...] = (
    (MemoryError, ResourceExhaustedError),
    (IndexError, InvalidArgumentError),
    (ArithmeticError, InvalidArgumentError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
)


def kernel_error(error: Exception, node: Node) -> OpError:
    """The typed error for whatever a kernel raised, with the node attached."""
    if isinstance(error, OpError):
        return error.at(node.name, node.op, node.source)
    if isinstance(error, AioflowError):
        return UnknownError(str(error)).at(node.name, node.op, node.source)
    kind = next((to for foreign, to in _FOREIGN if isinstance(error, foreign)), UnknownError)
    made = kind(f"{type(error).__name__}: {error}").at(node.name, node.op, node.source)
    made.__cause__ = error
    return made

"""Bind nodes to kernels: from plain data to callables, once per registered subgraph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from aioflow.compiler.control_flow import Guard
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.concurrency.stopping import batches
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
from aioflow.graph.traits import Effect, Role
from aioflow.kernels.convert import OF_ONE_ELEMENT, ResourceConverter, as_array
from aioflow.kernels.one_shape import may_differ, of_one_shape
from aioflow.kernels.registry import HOST, KERNELS, ArrayBackend, Binding, BodySteps, Converter, KernelBody, KernelDef
from aioflow.kernels.resources import ResourceManager
from aioflow.memory.copying import copied
from aioflow.memory.frozen import is_frozen
from aioflow.memory.values import Array, Value
from aioflow.runtime.growing import claiming, grows


class HostConverter:
    """A converter for a device with its own memory: it copies the value to the host first.

    Attributes:
        convert: The converter for the value in host memory.
    """

    __slots__ = ("_on_host", "convert")

    def __init__(self, convert: Converter, on_host: Converter) -> None:
        self.convert = convert
        self._on_host = on_host

    def __call__(self, value: Value) -> Value:
        """Convert a value."""
        return self.convert(self._on_host(value))


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel.

    Attributes:
        sources: The node outputs whose values form the argument.
        is_sequence: Whether it is a sequence.
        convert: Converter to a host value, if any.
    """

    sources: tuple[Edge, ...]
    is_sequence: bool
    convert: Converter | None

    @property
    def passes(self) -> bool:
        """True if the kernel receives the values themselves, or objects that share their memory."""
        convert = self.convert.convert if isinstance(self.convert, HostConverter) else self.convert
        return convert is None or convert is as_array or isinstance(convert, ResourceConverter)


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node with the callable that computes it, and the predicates under which it runs.

    Attributes:
        node: The node: `node.name`, `node.op` (the op's name) and `node.attrs`.
        kernel: The definition of its kernel.
        call: The callable.
        arguments: The arguments of the callable.
        guard: The predicates under which the node runs.
        claims: Whether the callable itself reserves the memory of its result, whatever the kernel does.
    """

    node: Node
    kernel: KernelDef
    call: KernelBody
    arguments: tuple[Argument, ...]
    guard: Guard = ()
    claims: bool = field(default=False, kw_only=True)

    @property
    def reads(self) -> tuple[Edge, ...]:
        """The values that the node needs: its inputs and its predicates."""
        return (*self.node.inputs, *(predicate for predicate, _ in self.guard)) if self.guard else self.node.inputs

    @property
    def keeps(self) -> tuple[Edge, ...]:
        """The inputs that the kernel may hold beyond the call."""
        return self.node.inputs if self.kernel.retains else ()

    @property
    def has_effects(self) -> bool:
        """True if the node changes something visible to others: then it never runs twice, and is always waited for."""
        effect = traits_of(self.node.op).effect
        return self.kernel.sends or effect in (Effect.KEEPS, Effect.CHANGES)

    @property
    def is_waited_for(self) -> bool:
        """True if the call must not be abandoned: it may have effects, and the kernel marks no critical sections."""
        return self.has_effects and not self.kernel.acts_itself

    @property
    def unpacks(self) -> bool:
        """True if the callable returns a tuple of outputs rather than one output (or nothing)."""
        outputs = OPS.get(self.node.op).outputs
        return len(outputs) > 1 or any(a.is_sequence for a in outputs)

    def outputs_of(self, result: Any) -> tuple[Value, ...]:
        """Return the outputs, given the callable's result."""
        if self.unpacks:
            return tuple(result)
        return (result,) if self.node.outputs else ()


@dataclass(frozen=True, slots=True)
class Choice(BoundNode):
    """A Merge. It reads (predicate, value if false, value if true), or one value if the other is always dead.

    Attributes:
        indices: The Merge's second output for each value: the index of the input that the value comes from.
    """

    indices: tuple[Value, ...] = ()

    @property
    def has_effects(self) -> bool:
        """Always False: the node only selects a value."""
        return False

    @property
    def unpacks(self) -> bool:
        """Always True, as for a Merge."""
        return True


@dataclass(frozen=True, slots=True)
class Passing(BoundNode):
    """A node added by loop raising: it passes on the one value that it reads, or only inspects it."""

    @property
    def has_effects(self) -> bool:
        """Always False: the node only passes its value on."""
        return False

    @property
    def unpacks(self) -> bool:
        """Always False: the node has at most one output."""
        return False


@dataclass(frozen=True, slots=True)
class RaisedLoop(BoundNode):
    """A whole loop as one node. Its callable takes the values that enter the loop and returns those that leave it.

    Attributes:
        kept: Positions of the inputs that a node inside may keep.
    """

    kept: frozenset[int] = frozenset()

    @property
    def has_effects(self) -> bool:
        """Always False: the nodes inside report their own effects."""
        return False

    @property
    def unpacks(self) -> bool:
        """Always True."""
        return True

    @property
    def keeps(self) -> tuple[Edge, ...]:
        """The inputs that a node inside may hold beyond the loop."""
        return tuple(self.node.inputs[i] for i in sorted(self.kept))


def bind_graph(
    graph: ClientGraph,
    backend: ArrayBackend,
    resources: ResourceManager,
    state: dict[str, object],
    folders: AllowedFolders = ANYWHERE,
    prepare: Callable[[Node], BodySteps] | None = None,
    *,
    reproducible: bool = False,
) -> list[BoundNode]:
    """Return each node that computes, bound to its kernel, in topological order.

    Args:
        graph: The subgraph of one device.
        backend: The device.
        resources: The worker's resources.
        state: Kernel state of the session.
        folders: Folders in which the nodes may open files.
        prepare: Makes the bodies of nodes executable; without it, nodes with bodies cannot be bound.
        reproducible: As `SessionConfig.reproducible`.

    Raises:
        UnimplementedError: a node has no kernel for this kind of device.
        InvalidArgumentError: a kernel does not support a node's attributes.
    """
    working = (node for node in batches(graph.nodes.values(), 64) if not _is_interpreted(node))
    return [_bind(node, graph, backend, resources, state, folders, prepare, reproducible) for node in working]


def _bind(
    node: Node,
    graph: ClientGraph,
    backend: ArrayBackend,
    resources: ResourceManager,
    state: dict[str, object],
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
        # Without `expression`, which generated code would use in place of the wrapped callable.
        if may_differ(node.op, binding.input_dims):
            return BoundNode(node, replace(kernel, expression=None), of_one_shape(call), arguments)
        if not grows(node, kernel, graph):
            return BoundNode(node, kernel, call, arguments)
        return BoundNode(node, replace(kernel, expression=None), claiming(call, kernel, node), arguments, claims=True)
    except Exception as error:  # valid attributes for whose values no kernel can be made
        explained = kernel_error(error, node)
        raise explained from explained.__cause__


def _constant(graph: ClientGraph, edge: Edge) -> Array | None:
    source = graph.nodes[edge.node]
    return source.attrs["value"] if source.role is Role.CONSTANT else None


def _arguments(node: Node, kernel: KernelDef, graph: ClientGraph, backend: ArrayBackend) -> list[Argument]:
    found: list[Argument] = []
    for arg, sources in per_argument(OPS.get(node.op).inputs, node.attrs, node.inputs):
        convert = converter(kernel, arg.name, backend)
        kind = kernel.takes.get(arg.name)
        if kind is not None and not all(_is_handle_of(kind, edge, graph, backend) for edge in sources):
            convert = ResourceConverter(kind)
        found.append(Argument(tuple(sources), arg.is_sequence, convert))
    return found


def converter(kernel: KernelDef, name: str, backend: ArrayBackend) -> Converter | None:
    """Return the converter of a device value to the host value that the kernel takes, or None for a tensor."""
    convert = kernel.host.get(name)
    if convert is None or backend.device_type == HOST or convert in OF_ONE_ELEMENT:
        return convert
    return HostConverter(convert, backend.on_host)


def _is_handle_of(kind: type, edge: Edge, graph: ClientGraph, backend: ArrayBackend) -> bool:
    """Return True if the value is known to be a resource of that kind, so that steps need not check it."""
    source = graph.nodes[edge.node]
    # A Merge has several sources, which may be resources of different kinds.
    while traits_of(source.op).is_control_flow and source.role is not Role.MERGE and source.inputs:
        edge = source.inputs[0]
        source = graph.nodes[edge.node]
    maker = KERNELS.find(source.op, backend.device_type, source.attrs)
    return maker is not None and edge.port == 0 and maker.makes is not None and issubclass(maker.makes, kind)


def _is_interpreted(node: Node) -> bool:
    """Return True if the runtime interprets the node itself, without a kernel."""
    return node.op in BOUNDARY or traits_of(node.op).is_control_flow


def own(value: Any) -> Value:
    """Return a copy that the engine may keep. Scalars and handles are immutable and returned as they are."""
    return copied(value) if getattr(value, "ndim", False) else value


def to_keep(value: Value) -> Value:
    """Return a value that a kernel may keep: the value itself if it is frozen, else a copy as by `own`."""
    return value if is_frozen(value) else own(value)


def gather(bound: BoundNode, values: Mapping[Edge, Value], fed: Set[Edge] = frozenset()) -> list[Value]:
    """Return the positional arguments of a kernel.

    Args:
        bound: The node.
        values: Values of the outputs that it reads.
        fed: Outputs that share memory with the caller's feeds. A kernel that keeps its inputs receives copies of them.
    """
    copied = fed if bound.kernel.retains else frozenset[Edge]()
    result: list[Value] = []
    for argument in bound.arguments:
        items = [to_keep(values[edge]) if edge in copied else values[edge] for edge in argument.sources]
        if argument.convert is not None:
            items = [argument.convert(item) for item in items]
        result.append(tuple(items) if argument.is_sequence else items[0])
    return result


def rebound(bound: BoundNode, node: Node) -> BoundNode:
    """Return the bound node with the edges of `node`, an edited version of `bound.node`."""
    if node is bound.node:
        return bound
    every = zip(bound.arguments, places(len(a.sources) for a in bound.arguments), strict=True)
    return replace(bound, node=node, arguments=tuple(replace(a, sources=node.inputs[place]) for a, place in every))


# Foreign exceptions of kernels and their typed errors; the first match decides. No exception becomes an
# OutOfRangeError: it means that a source has ended, so a queue runner would take a bug for the end of its input.
_FOREIGN: tuple[tuple[type[BaseException], type[OpError]], ...] = (
    (MemoryError, ResourceExhaustedError),
    (IndexError, InvalidArgumentError),
    (ArithmeticError, InvalidArgumentError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
)


def kernel_error(error: Exception, node: Node) -> OpError:
    """Return the typed error for an exception raised by a kernel, with the node attached."""
    if isinstance(error, OpError):
        return error.at(node.name, node.op, node.source)
    # An error of the engine without a code of its own.
    if isinstance(error, AioflowError):
        return UnknownError(str(error)).at(node.name, node.op, node.source)
    kind = next((to for foreign, to in _FOREIGN if isinstance(error, foreign)), UnknownError)
    made = kind(f"{type(error).__name__}: {error}").at(node.name, node.op, node.source)
    # Callers raise the result `from` its own cause, which here is the foreign exception.
    made.__cause__ = error
    return made

"""State that new nodes inherit from enclosing `with` blocks: name, device, control inputs, colocation, container.

Scopes are stored in context variables, not in thread locals or on the graph, so every asyncio task and every thread has
its own. A block is a change of the scope around it. Blocks may be left in any order: the blocks that are still open
then apply as if the others had never been entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import ref

from aioflow.arguments import check_kind, check_text
from aioflow.concurrency.context_stack import ContextStack, EnteredBlock
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.definitions import NODE_NAME, SCOPE_NAME
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role
from aioflow.graph.views import NodeView

AnyNode = TypeVar("AnyNode", bound=NodeView)


class Scoped:
    """A graph whose new nodes inherit from scopes, as a base class.

    Attributes:
        mark: An object that identifies the graph without keeping it alive.
    """

    mark: object

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """Return `name` under the current name scope, with a suffix if it is taken."""
        raise NotImplementedError

    def name_scope(self, name: str | None) -> AbstractContextManager[str]:
        """Prefix the names of new nodes. The block yields the prefix with its "/"."""
        return name_scope(self, name)

    def get_name_scope(self) -> str:
        """Return the current name scope without its final "/"; "" at the root."""
        return current_scope(self).name

    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> AbstractContextManager[None]:
        """Set the gradient of new nodes of these ops to another one registered with `RegisterGradient`."""
        return gradient_override_map(self, op_type_map)

    def container(self, name: str) -> AbstractContextManager[str]:
        """Keep the resources of new stateful nodes in the container with this name."""
        return container(self, name)


class Controller:
    """One `control_dependencies` block: its control inputs, and the nodes created inside it.

    A node that reads another node of the same block depends on the block's control inputs already, and gets no second
    edge. The nodes are weak references: a context may hold a block for longer than the graph lives.
    """

    __slots__ = ("_inputs", "_members")

    def __init__(self, inputs: Iterable[NodeView], members: set[ref[Any]] | None = None) -> None:
        self._inputs = tuple(map(ref, inputs))
        self._members: set[ref[Any]] = set() if members is None else members

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The control inputs."""
        return tuple(op for known in self._inputs if (op := known()) is not None)

    def add(self, op: NodeView) -> None:
        """Register a node that was created in the block."""
        self._members.add(ref(op))

    def holds_one_of(self, ops: Iterable[NodeView]) -> bool:
        """Return True if one of `ops` was created in the block."""
        # Two weak references to one live object are equal and hash alike, so a fresh one finds the stored one.
        return not self._members.isdisjoint(map(ref, ops))

    def inside(self, around: Iterable[Controller]) -> Controller:
        """Return this block without the control inputs that the blocks in `around` already have."""
        # The members are shared: when the scope is computed again, the nodes created so far still belong to the block.
        known = {op for controller in around for op in controller.inputs}
        return Controller((op for op in self.inputs if op not in known), self._members)


class NamedNodes(Generic[AnyNode]):
    """Nodes by name: those of a graph, or those of a function, whose body is a context with its own nodes.

    Attributes:
        nodes: The nodes.
        names: Names in use, in lower case, with the number of times that each was requested.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, AnyNode] = {}
        self.names: dict[str, int] = {}

    def unique(self, name: str, mark_as_used: bool = True) -> str:
        """Return `name`, with a suffix `_1`, `_2`, … if it is taken."""
        # As in TensorFlow, names that differ only by case count as the same.
        key = name.lower()
        count = self.names.get(key, 0)
        if mark_as_used:
            self.names[key] = count + 1
        if count == 0:
            return name
        # The search starts at the number of earlier requests, so that it does not try all suffixes each time.
        while f"{key}_{count}" in self.names:
            count += 1
        if mark_as_used:
            self.names[key] = count + 1
            # The generated name is taken too: a later request for it, literally, gets a suffix of its own.
            self.names[f"{key}_{count}"] = 1
        return f"{name}_{count}"

    @contextmanager
    def undone_on_error(self, first: int) -> Iterator[None]:
        """Remove the nodes from position `first` on if the block raises."""
        try:
            yield
        except BaseException:
            # A copy of the keys: entries are deleted while iterating. Dictionaries keep the order of creation.
            for name in list(self.nodes)[first:]:
                del self.nodes[name]
            raise


class Context(Protocol):
    """The branch or loop that is being built; implemented in `ops.control.contexts`.

    Attributes:
        outer: The enclosing context, None at the top level.
        is_loop: True if nodes inside may run any number of times.
    """

    outer: Any
    is_loop: bool

    def admit(
        self, name: str, op_type: str, inputs: tuple[Any, ...], control: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the actual inputs and control inputs of a new node in this context.

        Raises:
            InvalidArgumentError: one of them is inside a loop that does not contain the node.
        """

    def stand_in(self, op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Return an existing tensor with the value of such a node, or None if there is no such tensor."""

    def check_readable(self, source: Any) -> None:
        """Raise InvalidArgumentError if nodes outside may not read or wait for `source`, a node inside."""


class Scope(NamedTuple):
    """The scopes of one graph that are open in the current context."""

    name: str = ""
    devices: tuple[Any, ...] = ()  # of kind `graph.DeviceLike`
    controllers: tuple[Controller, ...] = ()
    colocation: tuple[str, ...] = ()
    colocated_device: str = ""
    container: str = ""
    variable_scope: Any = None
    context: Context | None = None
    call: Any = None  # the node
    gradients: Mapping[str, str] = MappingProxyType({})
    differentiation: str = ""  # name of the call of `gradients` that creates the node

    def under(self, name: str) -> str:
        """Return `name` prefixed with this name scope."""
        # The root scope has no slash.
        return f"{self.name}/{name}" if self.name else name

    def bare(self, context: Context | None) -> Scope:
        """Return this scope in `context` (None: the top level), without control inputs and device requests."""
        return self._replace(context=context, controllers=(), colocation=(), colocated_device="", devices=())


_EMPTY: Final = Scope()
ScopeChange: TypeAlias = Callable[[Scope], Scope]


class _Block:
    """An open scope of one graph, which it does not keep alive.

    Attributes:
        graph: The mark of the graph.
        around: The entry of the enclosing block of that graph, or None.
        scope: The scope of new nodes inside, valid while all blocks that enclosed it at entry are open.
    """

    __slots__ = ("_change", "_outer", "around", "graph", "scope")

    def __init__(self, graph: object, around: EnteredBlock[_Block] | None, outer: Scope, change: ScopeChange) -> None:
        self.graph = graph
        self.around = around
        self._change = change
        self._outer = outer
        self.scope = change(outer)

    def inside(self, outer: Scope) -> Scope:
        """Return the scope of new nodes inside this block if `outer` encloses it."""
        # `change` is a pure function of the outer scope, so its result is reused while the outer one is the same
        # object.
        return self.scope if outer is self._outer else self._change(outer)


_SCOPES: Final[ContextStack[_Block]] = ContextStack("aioflow_scopes", weak=False)


def current_scope(graph: Scoped) -> Scope:
    """Return the scopes of `graph` that are open in the current context."""
    stack = _SCOPES.entries()
    return _innermost(stack, graph.mark)[1] if stack else _EMPTY


def _innermost(stack: Sequence[EnteredBlock[_Block]], mark: object) -> tuple[EnteredBlock[_Block] | None, Scope]:
    """Return the entry of the innermost block of the graph with that mark, and the scope inside it."""
    # Blocks of several graphs share one stack; the innermost one of this graph counts.
    for entry in reversed(stack):
        block = entry.value
        if block is None:
            block = _SCOPES.seen(entry)
        if block is not None and block.graph is mark:
            around = block.around
            # Each enclosing block is checked: blocks may be left in any order, so an outer one may be gone.
            while around is not None:
                outer = around.value
                if outer is None:
                    # An enclosing block was left before this one: compute the scope from the open blocks.
                    return entry, _worked_out(mark)
                around = outer.around
            return entry, block.scope
    return None, _EMPTY


def _worked_out(mark: object) -> Scope:
    """Return the scope of new nodes, computed from all open blocks of the graph."""
    scope = _EMPTY
    for entry in _SCOPES.entries():
        block = _SCOPES.seen(entry)
        if block is not None and block.graph is mark:
            scope = block.inside(scope)
    return scope


@contextmanager
def enter_scope(graph: Scoped, change: ScopeChange) -> Iterator[Scope]:
    """Apply `change` to the scope of new nodes of `graph` inside the block."""
    mark = graph.mark
    # The scope is computed once, on entry. Creating a node then only reads it.
    block = _Block(mark, *_innermost(_SCOPES.entries(), mark), change)
    entry = _SCOPES.enter(block)
    try:
        yield block.scope
    finally:
        _SCOPES.leave(entry)


def in_loop(scope: Scope) -> bool:
    """Return True if new nodes run once per iteration of a loop."""
    context = scope.context
    while context is not None and not context.is_loop:
        context = context.outer
    return context is not None


def body_of(scope: Scope) -> NamedNodes[Any] | None:
    """Return the function body that new nodes go to while a function is traced, or None if they go to the graph."""
    context: Any = scope.context
    while context is not None and not isinstance(context, NamedNodes):
        context = context.outer
    return context


@contextmanager
def name_scope(graph: Scoped, name: str | None) -> Iterator[str]:
    """Prefix the names of new nodes. A name that ends in "/" is used unchanged; None or "" resets to the root.

    Args:
        graph: The graph of the nodes.
        name: The name of the scope.

    Yields:
        The full prefix with its "/", or "".

    Raises:
        DTypeError: the name is not a str.
        InvalidArgumentError: the name is malformed.
    """
    scope = current_scope(graph)
    if name is not None:
        check_text(name, "the name of a scope")
    if not name:
        prefix = ""
    elif name.endswith("/"):
        prefix = name[:-1]
    else:
        # Inside a scope a part may begin with "_"; at the root the name of a node may not, as in TensorFlow.
        if not (SCOPE_NAME if scope.name else NODE_NAME).fullmatch(name):
            raise InvalidArgumentError(
                f"{name!r} is not a valid scope name", expected="letters, digits, _.-/", actual=name
            )
        prefix = graph.unique_name(name)
    with enter_scope(graph, lambda outer: outer._replace(name=prefix)):
        yield prefix + "/" if prefix else ""


@contextmanager
def device(graph: Scoped, target: Any) -> Iterator[None]:
    """Request a device for new nodes. None discards the outer scopes.

    A function gets the node, whose `device` is the request of the scopes inside this one. Its result replaces that
    request; None leaves it unchanged.

    Raises:
        DTypeError: `target` is of another type.
        InvalidArgumentError: the name is malformed.
    """
    if target is not None and not callable(target) and not isinstance(target, DeviceSpec):
        check_text(target, "a device")
    if isinstance(target, str):
        target = DeviceSpec.from_string(target)
    with enter_scope(graph, lambda outer: outer._replace(devices=(*outer.devices, target))):
        yield


@contextmanager
def control_dependencies(graph: Scoped, inputs: Iterable[NodeView] | None) -> Iterator[None]:
    """Make new nodes wait for `inputs`, except for those that an enclosing block adds already.

    None discards the outer blocks and leaves the branches and loops that are being built.
    """
    # Without duplicates, and in the order given.
    block = None if inputs is None else Controller(dict.fromkeys(inputs))

    def waiting(outer: Scope) -> Scope:
        if block is None:
            # TensorFlow 1 leaves the control flow context too: such nodes run once, outside of the loop.
            return outer._replace(controllers=(), context=None)
        return outer._replace(controllers=(*outer.controllers, block.inside(outer.controllers)))

    with enter_scope(graph, waiting):
        yield


@contextmanager
def colocate_with(graph: Scoped, op: NodeView | None, ignore_existing: bool = False) -> Iterator[None]:
    """Put new nodes on the device of `op`, overriding the enclosing device scopes. None discards the outer blocks."""
    added = None if op is None else (op.colocated_with, op.device)

    def colocated(outer: Scope) -> Scope:
        if added is None:
            return outer._replace(colocation=(), colocated_device="")
        groups, device = ((), "") if ignore_existing else (outer.colocation, outer.colocated_device)
        joined = tuple(dict.fromkeys(groups + added[0]))
        # Device requests outside the block don't apply inside: the group's device decides.
        return outer._replace(colocation=joined, colocated_device=added[1] or device, devices=())

    with enter_scope(graph, colocated):
        yield


@contextmanager
def container(graph: Scoped, name: str) -> Iterator[str]:
    """Put the resources of new stateful nodes into the container `name`."""
    check_text(name, "the name of a container")
    with enter_scope(graph, lambda outer: outer._replace(container=name)):
        yield name


@contextmanager
def gradient_override_map(graph: Scoped, overrides: Mapping[str, str]) -> Iterator[None]:
    """Override the gradients of new nodes: each op in `overrides` uses the gradient registered under the given name."""
    check_kind(overrides, Mapping, "op_type_map", "a mapping of names to names")
    for op_type, gradient in overrides.items():
        check_text(op_type, "the name of an op")
        check_text(gradient, "the name of a gradient")
    with enter_scope(graph, lambda outer: outer._replace(gradients={**outer.gradients, **overrides})):
        yield


def through_context(
    context: Context | None,
    name: str,
    op_type: str,
    inputs: tuple[Any, ...],
    control: tuple[Any, ...],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the inputs and control inputs of a new node, with outside values brought into its control flow context."""
    if context is not None:
        return context.admit(name, op_type, inputs, control)
    # Only an Exit takes a value out of a loop.
    for source in (*(t.op for t in inputs), *control):
        if source.control_flow_context is not None and traits_of(op_type).role is not Role.EXIT:
            source.control_flow_context.check_readable(source)
    return inputs, control


def request_device(op: NodeView, scope: Scope) -> None:
    """Set the node's device from the open scopes.

    An inner scope overrides an outer one, component by component. Colocation overrides both.

    Raises:
        DTypeError: a function of `device` returns neither a device nor None.
    """
    # From the inside out: inner requests come first, and outer ones only fill the components left open.
    for target in reversed(scope.devices):
        if target is None:
            break
        if callable(target):
            wanted = target(op)
            if wanted is not None:
                op.device = _spec(wanted).to_string()
        else:
            # `override` lets the parts set so far, from inner scopes, win over the outer target.
            op.device = _spec(target).override(_spec(op.device)).to_string()
    if scope.colocated_device:
        op.device = scope.colocated_device


def _spec(device: Any) -> DeviceSpec:
    if isinstance(device, DeviceSpec):
        return device
    if isinstance(device, str):
        return DeviceSpec.from_string(device)
    raise DTypeError("not a device", expected="a device name or None", actual=repr(device))


def control_inputs_for(scope: Scope, data_inputs: Iterable[NodeView]) -> tuple[Any, ...]:
    """Return the control inputs that the open blocks add to a node with these data inputs."""
    sources = set(data_inputs)
    found: dict[NodeView, None] = {}
    for controller in scope.controllers:
        # A node that reads another node of the block waits for the block's inputs through that node.
        if not controller.holds_one_of(sources):
            # A data edge waits as well, so it needs no control edge beside it.
            found.update(dict.fromkeys(op for op in controller.inputs if op not in sources))
    return tuple(found)

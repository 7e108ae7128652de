"""What a new node inherits from the `with` statements around it: name, device, control inputs, colocation, container.

Scopes live in one context variable, never in thread locals or on the graph, so that every asyncio task and every thread
builds under its own. The value is immutable: entering a scope replaces it, leaving puts the old one back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.graph.device_spec import DeviceSpec

if TYPE_CHECKING:
    from aioflow.graph.graph import Graph, Operation, Tensor

__all__ = [
    "Body",
    "Context",
    "Controller",
    "Scope",
    "body_of",
    "current_scope",
    "enter_graph",
    "enter_scope",
    "innermost_graph",
]

DeviceLike: TypeAlias = "str | DeviceSpec | Callable[[Operation], Any] | None"


class Controller:
    """One `control_dependencies` block: its control inputs, and the nodes made inside it.

    A node that reads another node of the same block waits for the block's control inputs already, and gets no second
    edge.
    """

    __slots__ = ("inputs", "members")

    def __init__(self, inputs: tuple[Operation, ...]) -> None:
        self.inputs = inputs
        self.members: set[Operation] = set()


class Body:
    """Nodes by name: those of a graph, or those of a function, whose body is a context with nodes of its own.

    Attributes:
        nodes: The nodes.
        names: The names in use, in lower case, with how many times each was asked for.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Operation] = {}
        self.names: dict[str, int] = {}

    def unique(self, name: str, mark_as_used: bool = True) -> str:
        """`name`, with `_1`, `_2`, … where it is taken."""
        key = name.lower()
        count = self.names.get(key, 0)
        if mark_as_used:
            self.names[key] = count + 1
        if count == 0:
            return name
        while f"{key}_{count}" in self.names:
            count += 1
        if mark_as_used:
            self.names[key] = count + 1
            self.names[f"{key}_{count}"] = 1
        return f"{name}_{count}"

    @contextmanager
    def undone_on_error(self, first: int) -> Iterator[None]:
        """Where the block raises, take the nodes away from the one at position `first` on."""
        try:
            yield
        except BaseException:
            for name in list(self.nodes)[first:]:
                del self.nodes[name]
            raise


class Context(Protocol):
    """The branch or the loop that is being built: what `ops.control_flow_contexts` puts around new nodes.

    Attributes:
        outer: The one around it, None at the top.
        is_loop: Whether what is inside runs any number of times.
    """

    outer: Any
    is_loop: bool

    def admit(
        self, name: str, op_type: str, inputs: tuple[Tensor, ...], control: tuple[Operation, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Operation, ...]]:
        """The inputs and control inputs that a new node inside really gets.

        Raises:
            InvalidArgumentError: one of them is inside a loop that the node is not in.
        """

    def stand_in(self, op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """What such a node would give, if that can be had without it; otherwise None."""

    def check_readable(self, source: Operation) -> None:
        """Raise InvalidArgumentError where nodes outside may not read or wait for `source`, a node inside."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The scopes of one graph that are open in the current context."""

    name: str = ""
    devices: tuple[DeviceLike, ...] = ()
    controllers: tuple[Controller, ...] = ()
    colocation: tuple[str, ...] = ()
    colocated_device: str = ""
    container: str = ""
    variable_scope: Any = None
    context: Context | None = None
    call: Operation | None = None
    gradients: Mapping[str, str] = field(default_factory=dict)
    differentiation: str = ""  # the name of the call of `gradients` that makes the node


_EMPTY: Final = Scope()
_SCOPES: Final[ContextVar[tuple[tuple[Graph, Scope], ...]]] = ContextVar("aioflow_scopes", default=())
_GRAPHS: Final[ContextVar[tuple[Graph, ...]]] = ContextVar("aioflow_default_graphs", default=())


_NAME: Final = re.compile(r"[A-Za-z0-9_.\\/>-]*")  # under another scope any of these may be the first
_ROOT_NAME: Final = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


def innermost_graph() -> Graph | None:
    """The graph of the innermost open `as_default` block here, or None."""
    stack = _GRAPHS.get()
    return stack[-1] if stack else None


@contextmanager
def enter_graph(graph: Graph) -> Iterator[Graph]:
    """Make `graph` the default inside the block."""
    token = _GRAPHS.set((*_GRAPHS.get(), graph))
    try:
        yield graph
    finally:
        _GRAPHS.reset(token)


def current_scope(graph: Graph) -> Scope:
    """The scopes of `graph` that are open in the current context."""
    for owner, scope in _SCOPES.get():
        if owner is graph:
            return scope
    return _EMPTY


@contextmanager
def enter_scope(graph: Graph, scope: Scope) -> Iterator[Scope]:
    """Replace the scopes of `graph` inside the block."""
    others = tuple(pair for pair in _SCOPES.get() if pair[0] is not graph)
    token = _SCOPES.set(((graph, scope), *others))
    try:
        yield scope
    finally:
        _SCOPES.reset(token)


def in_loop(scope: Scope) -> bool:
    """Whether new nodes run once an iteration of some loop."""
    context = scope.context
    while context is not None and not context.is_loop:
        context = context.outer
    return context is not None


def body_of(scope: Scope) -> Body | None:
    """Where new nodes go: into the function that is being traced, or, if None, into the graph."""
    context: Any = scope.context
    while context is not None and not isinstance(context, Body):
        context = context.outer
    return context


@contextmanager
def name_scope(graph: Graph, name: str | None) -> Iterator[str]:
    """Prefix the names of new nodes. A name that ends in "/" is taken as it is; None or "" goes back to the root.

    Yields:
        The full prefix with its "/", or "".
    """
    scope = current_scope(graph)
    if not name:
        prefix = ""
    elif name.endswith("/"):
        prefix = name[:-1]
    else:
        if not (_NAME if scope.name else _ROOT_NAME).fullmatch(name):
            raise InvalidArgumentError(
                f"{name!r} is not a valid scope name", expected="letters, digits, _.-/", actual=name
            )
        prefix = graph.unique_name(name)
    with enter_scope(graph, replace(scope, name=prefix)):
        yield prefix + "/" if prefix else ""


@contextmanager
def device(graph: Graph, target: DeviceLike) -> Iterator[None]:
    """Ask for a device for new nodes. None closes off the outer scopes.

    A function gets the node, whose `device` is what the scopes inside this one ask for, and its answer takes the place
    of that; a function that wants to add to it returns it with its addition.
    """
    if isinstance(target, str):
        target = DeviceSpec.from_string(target)
    scope = current_scope(graph)
    with enter_scope(graph, replace(scope, devices=(*scope.devices, target))):
        yield


@contextmanager
def control_dependencies(graph: Graph, inputs: Iterable[Operation] | None) -> Iterator[None]:
    """Make new nodes wait for `inputs`, those left out that a block around makes them wait for already; None closes off
    the outer blocks, and goes out of the branches and loops that are being built.
    """
    scope = current_scope(graph)
    controllers: tuple[Controller, ...] = ()
    context = None if inputs is None else scope.context
    if inputs is not None:
        known = {op for controller in scope.controllers for op in controller.inputs}
        added = tuple(op for op in dict.fromkeys(inputs) if op not in known)
        controllers = (*scope.controllers, Controller(added))
    with enter_scope(graph, replace(scope, controllers=controllers, context=context)):
        yield


@contextmanager
def colocate_with(graph: Graph, op: Operation | None, ignore_existing: bool = False) -> Iterator[None]:
    """Put new nodes on the device of `op`, whatever the device scopes around say. None closes off the outer blocks."""
    scope = current_scope(graph)
    if op is None:
        inner = replace(scope, colocation=(), colocated_device="")
    else:
        outer, device = ((), "") if ignore_existing else (scope.colocation, scope.colocated_device)
        groups = tuple(dict.fromkeys(outer + op.colocation_groups()))
        inner = replace(scope, colocation=groups, colocated_device=op.device or device, devices=())
    with enter_scope(graph, inner):
        yield


@contextmanager
def container(graph: Graph, name: str) -> Iterator[str]:
    """Keep the resources of new stateful nodes in the container of that name."""
    with enter_scope(graph, replace(current_scope(graph), container=name)):
        yield name


@contextmanager
def gradient_override_map(graph: Graph, overrides: Mapping[str, str]) -> Iterator[None]:
    """Give new nodes of these ops the gradients that are registered under the other names."""
    scope = current_scope(graph)
    with enter_scope(graph, replace(scope, gradients={**scope.gradients, **overrides})):
        yield


def request_device(op: Operation, scope: Scope) -> None:
    """Set the device that the open scopes ask for: inner scopes win, part by part; colocation wins over them."""
    for target in reversed(scope.devices):
        if target is None:
            break
        if callable(target):
            wanted = target(op)
            if wanted is not None:
                op.device = _spec(wanted).to_string()
        else:
            op.device = _spec(target).override(_spec(op.device)).to_string()
    if scope.colocated_device:
        op.device = scope.colocated_device


def _spec(device: Any) -> DeviceSpec:
    if isinstance(device, DeviceSpec):
        return device
    if isinstance(device, str):
        return DeviceSpec.from_string(device)
    raise InvalidArgumentError("not a device", expected="a device name or None", actual=repr(device))


def control_inputs_for(scope: Scope, data_inputs: Iterable[Operation]) -> tuple[Operation, ...]:
    """The control inputs that the open blocks add to a node with these data inputs."""
    sources = set(data_inputs)
    found: dict[Operation, None] = {}
    for controller in scope.controllers:
        if sources.isdisjoint(controller.members):
            found.update(dict.fromkeys(op for op in controller.inputs if op not in sources))
    return tuple(found)

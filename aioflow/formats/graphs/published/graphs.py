"""Conversion of whole graphs to and from `GraphDef` messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from aioflow.errors import DTypeError, InvalidArgumentError, OpError, UnimplementedError
from aioflow.formats.graphs.published.attributes import attributes_of, value_of, write_attributes
from aioflow.formats.graphs.published.functions import function_of, write_function
from aioflow.formats.graphs.published.tensors import Room
from aioflow.graph.definitions import FunctionDef, NodeDef
from aioflow.graph.dtypes import int64
from aioflow.graph.opdef import OPS
from aioflow.protos import Message, message

# Conversion of priority queues: in aioflow the first component is the priority; the published definition omits it

# Also the prefix of PriorityQueueV2.
_OP: Final = "PriorityQueue"


def with_priority(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node in aioflow's form."""
    made = dict(attrs)
    if op.startswith(_OP):
        if isinstance(attrs.get("component_types", ()), tuple):
            made["component_types"] = (int64, *attrs.get("component_types", ()))
        if isinstance(attrs.get("shapes"), tuple) and attrs["shapes"]:
            made["shapes"] = ((), *attrs["shapes"])
    return made


def without_priority(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node in the published form."""
    made = dict(attrs)
    if op.startswith(_OP):
        for key in ("component_types", "shapes"):
            if isinstance(attrs.get(key), tuple):
                made[key] = attrs[key][1:]
    return made


# TensorFlow raises this number when the meaning of ops changes. No op in aioflow has changed since this version.
PRODUCER: Final = 2000
# The highest consumer version that a producer may require.
_NEWEST: Final = 3000
# Producers before this version wrote a placeholder of unknown shape as a scalar.
_KNOWN_SHAPES: Final = 24

# Called with op, node name and reason for each node or function that aioflow cannot represent.
Refuse: TypeAlias = Callable[[str, str, str], None]


def definition_of(
    graph: Message, refuse: Refuse | None = None, producer: Message = None
) -> tuple[tuple[NodeDef, ...], tuple[FunctionDef, ...]]:
    """Return the nodes and functions of a GraphDef message, without the refused ones.

    Args:
        graph: The GraphDef message.
        refuse: Called for each node or function that aioflow cannot represent. Without it, that is an error.
        producer: An OpList message with the producer's ops. An attribute that aioflow's op lacks is dropped if it has
            the producer's default.

    Raises:
        DTypeError, UnimplementedError: aioflow cannot represent a node or function, and `refuse` is None.
        UnimplementedError: the graph requires a later version.
        InvalidArgumentError: something in the graph is malformed; the error names the node.
        ResourceExhaustedError: the constants are much larger than their encoded form.
    """
    needed = graph.versions.min_consumer
    if needed > _NEWEST:
        raise UnimplementedError("the graph needs a later version", expected=f"at most {_NEWEST}", actual=needed)
    reader = _Reader(graph, refuse, producer)
    nodes = [reader.node(node, tuple(node.input)) for node in graph.node]
    gradients = {gradient.function_name: gradient.gradient_func for gradient in graph.library.gradient}
    functions = [reader.function(each, gradients) for each in reader.library.values()]
    return tuple(node for node in nodes if node is not None), tuple(f for f in functions if f is not None)


class _Reader:
    """A reader of the nodes and functions of one graph."""

    def __init__(self, graph: Message, refuse: Refuse | None, producer: Message) -> None:
        self._refuse = refuse
        self._room = Room()
        self._old_shapes = 0 < graph.versions.producer < _KNOWN_SHAPES
        self._defaults = _defaults(producer, self._room)
        self.library = {each.signature.name: each for each in graph.library.function}
        if len(self.library) < len(graph.library.function):
            raise InvalidArgumentError("the library has a function twice", actual=sorted(self.library))

    def node(self, node: Message, inputs: tuple[str, ...]) -> NodeDef | None:
        try:
            attrs = with_priority(node.op, attributes_of(node, self._room))
            self._drop_defaults(node.op, attrs)
            if self._old_shapes and node.op == "Placeholder" and attrs.get("shape") == ():
                attrs["shape"] = None
            return NodeDef(node.name, node.op, inputs, node.device, attrs)
        except (DTypeError, UnimplementedError) as error:
            # Errors of these kinds mean that the graph is valid elsewhere; only these can be refused.
            self._refused(node.op, node.name, error)
            return None
        except OpError as error:
            # Malformed data is an error even if unknown ops are refused.
            raise error.at(node.name, node.op, None) from error.__cause__

    def function(self, function: Message, gradients: Mapping[str, str]) -> FunctionDef | None:
        name = function.signature.name
        try:
            return function_of(function, self.library, gradients.get(name, ""), self.node)
        except (DTypeError, UnimplementedError) as error:
            self._refused("function", name, error)
            return None

    def _refused(self, op: str, name: str, error: OpError) -> None:
        if self._refuse is None:
            raise error.at(name, op, None) from error.__cause__
        actual = "" if error.actual is None else f", not {error.actual}"
        self._refuse(op, name, f"{error.message}{actual}")

    def _drop_defaults(self, op: str, attrs: dict[str, Any]) -> None:
        known = OPS.get(op).attrs if op in OPS else None
        defaults = self._defaults.get(op)
        if known is None or defaults is None:
            return
        for key in [key for key in attrs if key in defaults and key not in known and attrs[key] == defaults[key]]:
            del attrs[key]


def _defaults(producer: Message, room: Room) -> dict[str, dict[str, Any]]:
    """Return the default values of the attributes of the producer's ops."""
    return {
        op.name: {a.name: value_of(a.default_value, room) for a in op.attr if a.HasField("default_value")}
        for op in (() if producer is None else producer.op)
    }


def message_of(nodes: Sequence[NodeDef], functions: Sequence[FunctionDef]) -> Message:
    """Return the GraphDef message of nodes and functions.

    Raises:
        InvalidArgumentError: a function reads an unknown output.
    """
    made = message("GraphDef")()
    # Readers apply the rules of the producer's version, such as those on old shapes.
    made.versions.producer = PRODUCER
    for node in nodes:
        added = made.node.add()
        _write_node(added, node)
        added.input.extend(node.inputs)
    library = {function.name: function for function in functions}
    for function in functions:
        write_function(made.library.function.add(), function, library, _write_node)
        if function.gradient:
            made.library.gradient.add(function_name=function.name, gradient_func=function.gradient)
    return made


def _write_node(made: Message, node: NodeDef) -> None:
    made.name, made.op, made.device = node.name, node.op, node.device
    write_attributes(made, node.op, without_priority(node.op, node.attrs))

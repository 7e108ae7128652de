"""Conversion of `FunctionDef` to and from the message of that name.

In the message, an input "node:output:1" is the second tensor of the output with that name; in a graph, inputs look like
"node:3". The ops' signatures relate the two forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.formats.graphs.published.tensors import dtype_of, shape_of, write_shape
from aioflow.graph.definitions import FunctionArg, FunctionDef, InputRef, NodeDef
from aioflow.graph.opdef import OPS
from aioflow.graph.traits import Effect
from aioflow.protos import Message

FunctionLibrary: TypeAlias = Mapping[str, Message]
# A port with this many digits or more is malformed.
_DIGITS = 10
# Number of colons in "node:output:1".
_READS = 2


def function_of(
    message: Message,
    library: FunctionLibrary,
    gradient: str,
    node_of: Callable[[Message, tuple[str, ...]], NodeDef | None],
) -> FunctionDef:
    """Return the function that a FunctionDef message describes.

    Args:
        message: The FunctionDef message.
        library: The messages of all functions, by name.
        gradient: The name of the function that computes its gradient, or "".
        node_of: Returns the definition of a node, given its inputs, or None if the node was refused.

    Raises:
        InvalidArgumentError: a node reads an unknown output, or a result is missing.
        UnimplementedError: the dtypes depend on the call.
    """
    signature = message.signature
    if signature.attr:
        raise UnimplementedError(
            f"function {signature.name!r} is generic: it has attributes",
            expected="fixed dtypes",
            actual=[attr.name for attr in signature.attr],
        )
    # Made before the nodes: an input may refer to a node that follows.
    reads = _Reads(message, library)
    found = [node_of(node, tuple(reads.flat(text) for text in node.input)) for node in message.node_def]
    nodes = tuple(node for node in found if node is not None)
    missing = [arg.name for arg in signature.output_arg if arg.name not in message.ret]
    if missing:
        raise InvalidArgumentError(
            f"function {signature.name!r} does not return all of its results", expected=missing, actual="none"
        )
    return FunctionDef(
        signature.name,
        tuple(
            FunctionArg(arg.name, dtype_of(arg.type), _dims(message, i)) for i, arg in enumerate(signature.input_arg)
        ),
        tuple(FunctionArg(arg.name, dtype_of(arg.type)) for arg in signature.output_arg),
        nodes,
        tuple(reads.flat(message.ret[arg.name]) for arg in signature.output_arg),
        _effects(message, nodes),
        gradient,
    )


def _dims(message: Message, index: int) -> Any:
    """Return the known shape of an argument, or None."""
    if index not in message.arg_attr or "_output_shapes" not in message.arg_attr[index].attr:
        return None
    shapes = message.arg_attr[index].attr["_output_shapes"].list.shape
    return shape_of(shapes[0]) if len(shapes) == 1 else None


def _effects(message: Message, nodes: Sequence[NodeDef]) -> tuple[str, ...]:
    """Return the names of the nodes that always run: the control returns and, as in TensorFlow, nodes with effects."""
    # The map of a message has no order of its own; sorting makes the result reproducible.
    named = dict.fromkeys(message.control_ret[name] for name in sorted(message.control_ret))
    changes = (node.name for node in nodes if node.op in OPS and OPS.get(node.op).traits.effect is Effect.CHANGES)
    return tuple(dict.fromkeys((*named, *changes)))


class _Reads:
    """A resolver of the inputs of a function's nodes."""

    def __init__(self, message: Message, library: FunctionLibrary) -> None:
        self._nodes = {node.name: node for node in message.node_def}
        self._library = library

    def flat(self, text: str) -> str:
        """Convert "node:output:1" to "node:3". Return arguments and control inputs unchanged.

        Raises:
            InvalidArgumentError: the node has no such output.
        """
        # One colon or none: an argument, a control input or a result.
        if text.count(":") != _READS:
            return text
        name, output, index = text.split(":")
        node = self._nodes.get(name)
        if node is None or not (index.isascii() and index.isdigit() and len(index) < _DIGITS):
            raise InvalidArgumentError(f"unknown input {text!r}", expected="an output of a node of the function")
        return str(InputRef(name, _first(node, output, text, self._library) + int(index)))


def _first(node: Message, output: str, text: str, library: FunctionLibrary) -> int:
    first = 0
    for name, count in _outputs_of_message(node, library):
        if name == output:
            return first
        first += count
    if node.op in OPS or node.op in library:
        raise InvalidArgumentError(f"unknown input {text!r}", expected="an output of that op").at(
            node.name, node.op, None
        )
    # An unknown op; the caller refuses its node.
    return 0


def _outputs_of_message(node: Message, library: FunctionLibrary) -> Iterator[tuple[str, int]]:
    if node.op in library:
        yield from ((arg.name, 1) for arg in library[node.op].signature.output_arg)
        return
    if node.op not in OPS:
        return
    for arg in OPS.get(node.op).outputs:
        attr = arg.number_attr or arg.list_attr
        if attr is None:
            yield arg.name, 1
        elif attr in node.attr:
            value = node.attr[attr]
            yield arg.name, value.i if arg.number_attr else len(value.list.type)
        else:
            # The node leaves the attribute out, so its default gives the number of tensors.
            yield arg.name, arg.count({attr: _default(node.name, node.op, attr)})


def _default(node: str, op: str, attr: str) -> Any:
    """Return the default of an attribute that a node omits."""
    known = OPS.get(op).attrs[attr]
    if not known.has_default:
        raise InvalidArgumentError(f"attribute {attr!r} is missing", expected="a value").at(node, op, None)
    return known.default


def write_function(
    message: Message,
    function: FunctionDef,
    library: Mapping[str, FunctionDef],
    write_node: Callable[[Message, NodeDef], None],
) -> None:
    """Write a function into the message.

    Args:
        message: The FunctionDef message to fill.
        function: The function.
        library: All functions, by name.
        write_node: Writes a node, without its inputs, into a message.

    Raises:
        InvalidArgumentError: a node or a result reads an unknown output.
    """
    signature = message.signature
    signature.name = function.name
    for i, arg in enumerate(function.inputs):
        signature.input_arg.add(name=arg.name, type=arg.dtype.as_datatype_enum)
        if arg.dims is not None:
            write_shape(message.arg_attr[i].attr["_output_shapes"].list.shape.add(), arg.dims)
    for arg in function.outputs:
        signature.output_arg.add(name=arg.name, type=arg.dtype.as_datatype_enum)
    nodes = {node.name: node for node in function.nodes}
    signature.is_stateful = any(node.op in OPS and OPS.get(node.op).stateful for node in function.nodes)
    for node in function.nodes:
        made = message.node_def.add()
        write_node(made, node)
        made.input.extend(_named(text, nodes, library) for text in node.inputs)
    for arg, text in zip(function.outputs, function.returns, strict=True):
        message.ret[arg.name] = _named(text, nodes, library)
    for name in function.control_returns:
        message.control_ret[name] = name
        signature.control_output.append(name)


def _named(text: str, nodes: Mapping[str, NodeDef], library: Mapping[str, FunctionDef]) -> str:
    """Convert "node:3" to "node:output:1"."""
    ref = InputRef.parse(text)
    # Arguments have no outputs by name.
    if ref.port < 0 or ref.node not in nodes:
        return text if ref.port < 0 else ref.node
    left = ref.port
    for name, count in _outputs_of_node(nodes[ref.node], library):
        if left < count:
            return f"{ref.node}:{name}:{left}"
        left -= count
    raise InvalidArgumentError(f"unknown input {text!r}", expected="an output of the node", actual=text)


def _outputs_of_node(node: NodeDef, library: Mapping[str, FunctionDef]) -> Iterator[tuple[str, int]]:
    if node.op in library:
        yield from ((arg.name, 1) for arg in library[node.op].outputs)
        return
    for arg in OPS.get(node.op).outputs:
        attr = arg.number_attr or arg.list_attr
        missing = {attr: _default(node.name, node.op, attr)} if attr and attr not in node.attrs else {}
        yield arg.name, arg.count({**node.attrs, **missing})

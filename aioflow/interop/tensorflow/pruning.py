"""Pruning of GraphDef messages, because exported models also hold nodes for training, saving and other calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from aioflow.errors import InvalidArgumentError
from aioflow.protos import Message, message


def node_of(name: str) -> str:
    """Return the node of a tensor or control input: "node" for "node", "node:1", "node:output:1" and "^node"."""
    return name.removeprefix("^").partition(":")[0]


def pruned(graph: Message, wanted: Iterable[str]) -> Message:
    """Return a GraphDef with only the nodes and functions that the wanted nodes need.

    Args:
        graph: A GraphDef.
        wanted: Names of nodes or tensors.

    Raises:
        InvalidArgumentError: the graph lacks a wanted node, or a node that one of them needs.
    """
    nodes = {node.name: node for node in graph.node}
    library = {function.signature.name: function for function in graph.library.function}
    kept = _reached(nodes, wanted)
    made = message("GraphDef")()
    made.versions.CopyFrom(graph.versions)
    made.node.extend(node for node in graph.node if node.name in kept)
    # A function that is differentiated needs its gradient function, which no node names.
    gradients = {entry.function_name: entry.gradient_func for entry in graph.library.gradient}
    called = _called(made.node, library, gradients)
    made.library.function.extend(each for name, each in library.items() if name in called)
    made.library.gradient.extend(entry for entry in graph.library.gradient if entry.function_name in called)
    return made


def _reached(nodes: Mapping[str, Message], wanted: Iterable[str]) -> set[str]:
    left, kept = [(node_of(name), "") for name in wanted], set[str]()
    while left:
        name, reader = left.pop()
        if name in kept:
            continue
        if name not in nodes:
            raise InvalidArgumentError(
                f"the graph has no node {name!r}",
                expected="all nodes that its signatures and nodes name",
                actual=reader or name,
            )
        kept.add(name)
        # Control inputs count, too.
        left += [(node_of(text), name) for text in nodes[name].input]
    return kept


def _called(nodes: Iterable[Message], library: Mapping[str, Message], gradients: Mapping[str, str]) -> set[str]:
    left = [name for node in nodes for name in _functions(node)]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name in found or name not in library:
            continue
        found.add(name)
        left += [other for node in library[name].node_def for other in _functions(node)]
        left += [gradients[name]] if name in gradients else []
    return found


def _functions(node: Message) -> Iterator[str]:
    """Yield the names of the functions that a node may call, the op's own name among them."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)

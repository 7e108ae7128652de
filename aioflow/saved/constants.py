"""Large constants: stored in the file of the weights under names of their own, to which the graph refers.

The graph stays small, constants are mapped like the weights, and equal ones are stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from aioflow.arguments import brief
from aioflow.errors import DataLossError
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.memory.values import Array

LARGE: Final = 4096  # in bytes: smaller constants stay in the graph
_STORED: Final = "_stored_"  # prefix of an attribute whose value is the name of a stored constant


def without_constants(definition: GraphDef) -> tuple[GraphDef, dict[str, Array]]:
    """Return the definition without its large constants, and the constants by name.

    The name states where the first such constant is: "constant:node:attribute", or "constant:function:node:attribute".
    No variable has such a name, since names of nodes contain no colons.
    """
    names: dict[TensorData, str] = {}

    def taken(nodes: Iterable[NodeDef], where: str = "") -> tuple[NodeDef, ...]:
        return tuple(_without(node, where, names) for node in nodes)

    # `names` is filled by both calls, so constants of functions and of the graph are shared.
    nodes = taken(definition.nodes)
    functions = tuple(replace(f, nodes=taken(f.nodes, f"{f.name}:")) for f in definition.functions)
    values = {name: data.to_array() for data, name in names.items()}
    return replace(definition, nodes=nodes, functions=functions), values


def _without(node: NodeDef, where: str, names: dict[TensorData, str]) -> NodeDef:
    large = [key for key, value in node.attrs.items() if isinstance(value, TensorData) and _is_large(value)]
    if not large:
        return node
    attrs: dict[str, Any] = dict(node.attrs)
    for key in large:
        # Equal constants share the name of the first.
        attrs[_STORED + key] = names.setdefault(attrs.pop(key), f"constant:{where}{node.name}:{key}")
    return replace(node, attrs=attrs)


def _is_large(value: TensorData) -> bool:
    """Return True if the constant is moved to the weights.

    Quantized constants stay in the graph: among the weights they would be plain integers.
    """
    # A tuple holds strings, which are no bytes of a tensor file.
    return not isinstance(value.data, tuple) and len(value.data) >= LARGE and not value.dtype.is_quantized


def with_constants(definition: GraphDef, read: Callable[[str], Array]) -> GraphDef:
    """Return the definition with its stored constants. Calls `read` once for each name.

    Raises:
        DataLossError: the name of a constant is not text.
    """
    found: dict[str, TensorData] = {}
    for name in _spoken_of(definition):
        if not isinstance(name, str):
            raise DataLossError("a constant has no name", expected="text", actual=brief(name))
        if name not in found:
            found[name] = TensorData.of(read(name))
    if not found:
        return definition
    functions = tuple(replace(f, nodes=tuple(_with(node, found) for node in f.nodes)) for f in definition.functions)
    return replace(definition, nodes=tuple(_with(node, found) for node in definition.nodes), functions=functions)


def _spoken_of(definition: GraphDef) -> Iterator[object]:
    for node in (*definition.nodes, *(node for function in definition.functions for node in function.nodes)):
        yield from (value for key, value in node.attrs.items() if key.startswith(_STORED))


def _with(node: NodeDef, found: Mapping[str, TensorData]) -> NodeDef:
    if not any(key.startswith(_STORED) for key in node.attrs):
        return node
    attrs: dict[str, Any] = {
        key.removeprefix(_STORED): found[str(value)] if key.startswith(_STORED) else value
        for key, value in node.attrs.items()
    }
    return replace(node, attrs=attrs)

"""What a folder says of the ops that its graph uses, so that another release can tell what is new in it.

A release may give an op a new attribute, with a default that leaves the op as it was. A definition of an earlier
release lacks that attribute, and the default fills it in. A definition of a later one has it: an earlier release drops
it where it has that default, which only the writer knows. So the defaults are written down, in the form of a definition
whose nodes stand for ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.graph.opdef import OPS

__all__ = ["ops_used", "without_new_attributes"]


def ops_used(definition: GraphDef) -> GraphDef:
    """The ops of a definition, with the defaults of their attributes."""
    nodes = [*definition.nodes, *(node for function in definition.functions for node in function.nodes)]
    names = sorted({node.op for node in nodes if node.op in OPS})
    return GraphDef(tuple(NodeDef(f"op/{name}", name, attrs=_defaults(name)) for name in names))


def _defaults(op: str) -> dict[str, Any]:
    return {attr.name: _plain(attr.default) for attr in OPS.get(op).attrs.values() if attr.has_default}


def _plain(value: Any) -> Any:
    return TensorData.of(value) if isinstance(value, np.ndarray) else value


def without_new_attributes(definition: GraphDef, ops: GraphDef) -> GraphDef:
    """The definition without attributes that are not known here and have the defaults that its producer's ops give."""
    defaults = {op.op: op.attrs for op in ops.nodes}
    functions = tuple(replace(function, nodes=_known(function.nodes, defaults)) for function in definition.functions)
    return replace(definition, nodes=_known(definition.nodes, defaults), functions=functions)


def _known(nodes: Iterable[NodeDef], defaults: Mapping[str, Mapping[str, Any]]) -> tuple[NodeDef, ...]:
    return tuple(_without(node, defaults.get(node.op, {})) for node in nodes)


def _without(node: NodeDef, defaults: Mapping[str, Any]) -> NodeDef:
    known = OPS.get(node.op).attrs if node.op in OPS else node.attrs
    new = [key for key in node.attrs if key not in known and key in defaults and node.attrs[key] == defaults[key]]
    return replace(node, attrs={key: value for key, value in node.attrs.items() if key not in new}) if new else node

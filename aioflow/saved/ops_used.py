"""The record of the ops that a graph uses, by which another release recognizes new attributes.

A release may add an attribute to an op, with a default that leaves the op unchanged. A definition of an earlier release
lacks the attribute, and the default applies. A definition of a later release has it. An earlier release may drop it if
it has its default value, which only the writer knows. So the writer records the defaults, as a definition with one node
per op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from aioflow.graph.definitions import AttrValue
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.graph.opdef import OPS


def ops_used(definition: GraphDef) -> GraphDef:
    """Return the ops of a definition, with the defaults of their attributes."""
    nodes = [*definition.nodes, *(node for function in definition.functions for node in function.nodes)]
    names = sorted({node.op for node in nodes if node.op in OPS})
    return GraphDef(tuple(NodeDef(f"op/{name}", name, attrs=_defaults(name)) for name in names))


def _defaults(op: str) -> dict[str, AttrValue]:
    return {attr.name: _plain(attr.default) for attr in OPS.get(op).attrs.values() if attr.has_default}


def _plain(value: Any) -> Any:
    return TensorData.of(value) if isinstance(value, np.ndarray) else value


def without_new_attributes(definition: GraphDef, ops: GraphDef) -> GraphDef:
    """Return the definition without unknown attributes that have the default values recorded in `ops`."""
    defaults = {op.op: op.attrs for op in ops.nodes}
    functions = tuple(replace(function, nodes=_known(function.nodes, defaults)) for function in definition.functions)
    return replace(definition, nodes=_known(definition.nodes, defaults), functions=functions)


def _known(nodes: Iterable[NodeDef], defaults: Mapping[str, Mapping[str, AttrValue]]) -> tuple[NodeDef, ...]:
    return tuple(_without(node, defaults.get(node.op, {})) for node in nodes)


def _without(node: NodeDef, defaults: Mapping[str, AttrValue]) -> NodeDef:
    known = OPS.get(node.op).attrs if node.op in OPS else node.attrs
    # An attribute with another value changes the op's meaning, so it stays and the import reports it.
    new = [key for key in node.attrs if key not in known and key in defaults and node.attrs[key] == defaults[key]]
    return replace(node, attrs={key: value for key, value in node.attrs.items() if key not in new}) if new else node

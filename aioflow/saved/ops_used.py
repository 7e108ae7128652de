"""What a folder says of the ops that its graph uses, so that another release can tell what is new in it.

A release may give an op a new attribute, with a default that leaves the op as it was. A definition of an earlier
release lacks that attribute, and the default fills it in. A definition of a later one has it: an earlier release drops
it where it has that default, which only the writer knows. So the attributes with defaults are written down, with their
kinds, in the form of a definition whose nodes stand for ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from aioflow.errors import DataLossError
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.graph.opdef import OPS, OpDef
from aioflow.graph.signature.attributes import KINDS, AttrDef, item_kind

__all__ = ["all_nodes", "ops_from", "ops_used"]


def all_nodes(definition: GraphDef) -> Iterator[NodeDef]:
    """The nodes of a definition, and of its functions."""
    yield from definition.nodes
    for function in definition.functions:
        yield from function.nodes


def ops_used(definition: GraphDef) -> GraphDef:
    """The ops of a definition with the attributes that have defaults."""
    names = sorted({node.op for node in all_nodes(definition) if node.op in OPS})
    return GraphDef(tuple(NodeDef(f"op/{name}", name, attrs=_defaults(OPS.get(name))) for name in names))


def _defaults(op_def: OpDef) -> dict[str, Any]:
    return {a.name: (a.kind, _plain(a.default)) for a in op_def.attrs.values() if a.has_default}


def _plain(value: Any) -> Any:
    return TensorData.of(value) if isinstance(value, np.ndarray) else value


def ops_from(definition: GraphDef) -> list[OpDef]:
    """The ops as their producer had them, as `import_graph_def(producer_op_list=)` takes them.

    Raises:
        DataLossError: the definition is none of ops.
    """
    return [OpDef(node.op, (), (), dict(_attributes(node.attrs.items()))) for node in definition.nodes]


def _attributes(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, AttrDef]]:
    for name, value in items:
        kind = value[0] if isinstance(value, tuple) and len(value) == 2 else None
        if not isinstance(kind, str) or item_kind(kind) not in KINDS:
            raise DataLossError("the list of ops is damaged", expected="kinds and defaults", actual=name)
        default = value[1].to_array() if isinstance(value[1], TensorData) else value[1]
        yield name, AttrDef(name, kind, default, has_default=True)

"""Lowering of ops that only aioflow has to ops that TensorFlow publishes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from aioflow.graph.definitions import NodeDef, TensorData
from aioflow.graph.dtypes import DType, resource
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.opdef import OPS
from aioflow.graph.signature.arguments import ArgDef

_SHAPES: Final = "_output_shapes"

_Rule: TypeAlias = Callable[[NodeDef], list[NodeDef]]


def lowered(definition: GraphDef) -> GraphDef:
    """Return the definition with TensorFlow's ops wherever equivalent ones exist. Other ops stay unchanged.

    Snapshots of a `train.Saver`, which a later step writes, are left out.
    """
    nodes = tuple(_lowered(_without_snapshots(definition.nodes)))
    functions = tuple(replace(f, nodes=tuple(_lowered(f.nodes))) for f in definition.functions)
    return replace(definition, nodes=nodes, functions=functions)


def importable(definition: GraphDef) -> GraphDef:
    """Return the lowered definition in a form that TensorFlow and TensorBoard can import, for inspection.

    An op that TensorFlow lacks becomes a `PyFunc` whose token is the op's name.
    """
    definition = lowered(definition)
    library = {function.name for function in definition.functions}
    functions = tuple(replace(f, nodes=_known(f.nodes, library)) for f in definition.functions)
    return replace(definition, nodes=_known(definition.nodes, library), functions=functions)


def _known(nodes: Sequence[NodeDef], library: Collection[str]) -> tuple[NodeDef, ...]:
    return tuple(node if node.op in library else _published(node) for node in nodes)


def _published(node: NodeDef) -> NodeDef:
    """Return the node, or its replacement if TensorFlow does not have the op."""
    op_def = OPS.find(node.op)
    if op_def is None or op_def.published:
        return node
    private = {key: value for key, value in node.attrs.items() if key.startswith("_")}
    types = {"Tin": _dtypes(op_def.inputs, node.attrs), "Tout": _dtypes(op_def.outputs, node.attrs)}
    return replace(node, op="PyFunc", attrs={**private, "token": node.op, **types})


def _dtypes(args: Sequence[ArgDef], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    found: list[DType] = []
    for arg in args:
        if arg.list_attr is not None:
            found += attrs[arg.list_attr]
        else:
            dtype: Any = arg.dtype if arg.type_attr is None else attrs[arg.type_attr]
            found += [dtype] * arg.count(attrs)
    return tuple(found)


def _without_snapshots(nodes: Sequence[NodeDef]) -> list[NodeDef]:
    """Return the nodes without holders of a saver's snapshot, and without all nodes that read or wait for these."""
    gone: set[str] = set()
    left = list(nodes)
    while True:
        # Nodes may be in any order, so the search repeats until nothing more depends on what is gone.
        found = {n.name for n in left if n.op == "_SnapshotHolder" or any(ref.node in gone for ref in n.refs())}
        if not found:
            return left
        gone |= found
        left = [node for node in left if node.name not in found]


def _lowered(nodes: Sequence[NodeDef]) -> list[NodeDef]:
    return [made for node in nodes for made in _RULES.get(node.op, _unchanged)(node)]


def _unchanged(node: NodeDef) -> list[NodeDef]:
    return [node]


def _named(op: str) -> _Rule:
    """Return the rule that only replaces the op's name."""
    return lambda node: [replace(node, op=op)]


def _checked_ids(node: NodeDef) -> list[NodeDef]:
    """Return an Identity of the indices, which the lookup checks too."""
    attrs = {key: value for key, value in node.attrs.items() if key.startswith("_")}
    return [replace(node, op="Identity", attrs={**attrs, "T": node.attrs["Tids"]})]


def _hole(node: NodeDef) -> list[NodeDef]:
    """Return a zero, which stands in a list for a tensor that is never read."""
    dtype = node.attrs["dtype"]
    # Zero bytes are a value of numbers and bools only; other holes stay as they are.
    if not isinstance(dtype, DType) or not (dtype.is_numeric or dtype.is_bool):
        return [node]
    zero = TensorData(dtype, (), b"\0" * dtype.size)
    return [replace(node, op="Const", attrs={**node.attrs, "value": zero})]


def _initialized_value(node: NodeDef) -> list[NodeDef]:
    """Return a branch: the variable's value if it is initialized, otherwise the initial value."""
    handle, initial, *control = node.inputs
    dtype, name = node.attrs["dtype"], node.name

    def made(part: str, op: str, inputs: Sequence[str], **attrs: Any) -> NodeDef:
        return NodeDef(f"{name}/{part}", op, tuple(inputs), node.device, attrs)

    has_value = made("is_initialized", "VarIsInitializedOp", [handle, *control])
    # The handle goes only where the variable has a value: reading it would fail.
    side = made("handle", "Switch", [handle, has_value.name], T=resource)
    value = made("value", "ReadVariableOp", [f"{side.name}:1"], dtype=dtype)
    other = made("initial", "Switch", [initial, has_value.name], T=dtype)
    private = {key: value for key, value in node.attrs.items() if key.startswith("_")}
    shapes: Any = private.get(_SHAPES)
    if shapes is not None:
        private[_SHAPES] = (*shapes, ())  # for the second output, the number of the live input
    attrs = {**private, "T": dtype, "N": 2}
    # Output 0 of a Switch is live if its predicate is false, so the initial value is input 0 of the Merge.
    return [has_value, side, value, other, NodeDef(name, "Merge", (other.name, value.name), node.device, attrs)]


_RULES: Final[Mapping[str, _Rule]] = {
    "_Hole": _hole,
    "_SnapshotVariable": _named("ReadVariableOp"),
    "_SaveBundle": _named("SaveV2"),
    "_InitializedValue": _initialized_value,
    "AioflowCheckedIds": _checked_ids,
}

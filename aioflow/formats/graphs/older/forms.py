"""Replacement of older ops: by the newer form of the same op, or by several nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.definitions import NodeDef, TensorData
from aioflow.graph.dtypes import int32, resource, string
from aioflow.graph.opdef import OPS, OpDef

# Returns a node name that is not in use yet, derived from its argument.
Fresh: TypeAlias = Callable[[str], str]

VARIABLES: Final = ("Variable", "VariableV2")
_NAMED: Final[Mapping[str, str]] = {
    "Assign": "AssignVariableOp",
    "AssignAdd": "AssignAddVariableOp",
    "AssignSub": "AssignSubVariableOp",
    "IsVariableInitialized": "VarIsInitializedOp",
}
_ON_REFERENCES: Final = ("Apply", "SparseApply", "Scatter", "CountUpTo", "ConditionalAccumulator", "Accumulator")
_CONTROL_FLOW: Final = re.compile(r"Ref(Switch|Merge|Enter|Exit|NextIteration|Identity)")
_VERSION: Final = re.compile(r"V\d+")


def newer_form(op: str) -> str | None:
    """Return the resource op that replaces `op`, an op on references or string handles, or None for other ops."""
    # An op that aioflow defines under its older name needs no newer form.
    if op in OPS:
        return None
    if op in _NAMED:
        return _NAMED[op]
    control_flow = _CONTROL_FLOW.fullmatch(op)
    if control_flow is not None:
        return control_flow[1]
    if op.startswith(_ON_REFERENCES) and f"Resource{op}" in OPS:
        return f"Resource{op}"
    # V2 becomes V3, and an op without a version V2 or V3.
    base = op[:-2] if _VERSION.fullmatch(op[-2:]) else op
    versions = (f"{base}V{number}" for number in (2, 3))
    # A newer version on values, not on handles, is another op and no replacement.
    return next((name for name in versions if name in OPS and _has_handles(OPS.get(name))), None)


def _has_handles(op_def: OpDef) -> bool:
    return any(arg.dtype is resource for arg in (*op_def.inputs, *op_def.outputs))


# ── ops that expand into several nodes ────────────────────────────────────────────────────────────────────────────────


def expanded(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    """Return the nodes that replace `node`; the last one has its name and its outputs."""
    rule = None if node.op in OPS else _RULES.get(node.op)
    return [node] if rule is None else rule(node, fresh)


class _Nodes:
    """Builder of the nodes that replace one node."""

    def __init__(self, node: NodeDef, fresh: Fresh) -> None:
        self._node = node
        self._fresh = fresh
        self.data = [text for text in node.inputs if not text.startswith("^")]
        self._control = [text for text in node.inputs if text.startswith("^")]
        self.attrs: dict[str, Any] = dict(node.attrs)
        self._made: list[NodeDef] = []

    def require(self, inputs: int, *attrs: str) -> None:
        """Raise InvalidArgumentError if the node has fewer than `inputs` inputs or lacks one of `attrs`."""
        missing = [name for name in attrs if name not in self.attrs]
        if len(self.data) < inputs or missing:
            error = InvalidArgumentError(
                "the node does not fit its op", expected=f"{inputs} inputs, {list(attrs)}", actual=len(self.data)
            )
            raise error.at(self._node.name, self._node.op, None)

    def constant(self, name: str, value: Any) -> str:
        data = TensorData.of(np.asarray(value))
        return self.node(name, "Const", (), {"value": data, "dtype": data.dtype})

    def node(self, name: str, op: str, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        made = NodeDef(self._fresh(f"{self._node.name}/{name}"), op, tuple(inputs), self._node.device, attrs)
        self._made.append(made)
        return made.name

    def vector(self, name: str, text: str) -> str:
        """Reshape the scalar string `text` to a vector of one element."""
        attrs = {"T": string, "Tshape": int32}
        return self.node(name, "Reshape", (text, self.constant(f"{name}/shape", np.int32([1]))), attrs)  # type: ignore[arg-type]  # NumPy's classes make arrays too

    def last(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any]) -> list[NodeDef]:
        # Attributes of the older op don't apply to the newer one, except private ones such as colocation.
        private = {key: value for key, value in self.attrs.items() if key.startswith("_")}
        node = self._node
        # The last node has the name, so it also waits for what the node waited for.
        return [*self._made, NodeDef(node.name, op, (*inputs, *self._control), node.device, {**private, **attrs})]


def _placeholder(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    return [NodeDef(node.name, "Placeholder", node.inputs, node.device, node.attrs)]


def _stack(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    nodes = _Nodes(node, fresh)
    nodes.require(0, "elem_type")
    # The older op has no limit, which a negative size stands for.
    return nodes.last("StackV2", [nodes.constant("max_size", np.int32(-1))], nodes.attrs)


def _save(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    nodes = _Nodes(node, fresh)
    nodes.require(2, "T")
    count = len(nodes.attrs["T"]) if isinstance(nodes.attrs["T"], tuple) else 0
    # An empty slice stands for the whole tensor.
    slices = nodes.constant("slices", np.array([b""] * count, object))
    return nodes.last("SaveV2", [*nodes.data[:2], slices, *nodes.data[2:]], {"dtypes": nodes.attrs["T"]})


def _save_slices(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    nodes = _Nodes(node, fresh)
    nodes.require(3, "T")
    return nodes.last("SaveV2", nodes.data, {"dtypes": nodes.attrs["T"]})


def _restore(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    nodes = _Nodes(node, fresh)
    nodes.require(2, "dt")
    if node.op == "RestoreSlice":
        nodes.require(3)
        part = nodes.vector("slice", nodes.data[2])
    else:
        part = nodes.constant("slice", np.array([b""], object))
    inputs = [nodes.data[0], nodes.vector("name", nodes.data[1]), part]
    return nodes.last("RestoreV2", inputs, {"dtypes": (nodes.attrs["dt"],)})


def _pack(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    nodes = _Nodes(node, fresh)
    nodes.require(2, "dtype")
    handle, flow = nodes.data[:2]
    return nodes.last("TensorArrayGatherV3", [handle, _all_indices(nodes, handle, flow), flow], nodes.attrs)


def _unpack(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    nodes = _Nodes(node, fresh)
    nodes.require(3, "T")
    handle, value, flow = nodes.data[:3]
    return nodes.last("TensorArrayScatterV3", [handle, _all_indices(nodes, handle, flow), value, flow], nodes.attrs)


def _all_indices(nodes: _Nodes, handle: str, flow: str) -> str:
    size = nodes.node("size", "TensorArraySizeV3", (handle, flow), {})
    bounds = nodes.constant("start", np.int32(0)), size, nodes.constant("step", np.int32(1))
    return nodes.node("indices", "Range", bounds, {"Tidx": int32})


def _select(node: NodeDef, fresh: Fresh) -> list[NodeDef]:
    """Select the reference with the given index by a chain of switches and merges, one of each per input.

    GatherV2 looks up the index first, so that an index out of range is an error.
    """
    nodes = _Nodes(node, fresh)
    nodes.require(2, "T")
    (index, *given), control = nodes.data, [text for text in node.inputs if text.startswith("^")]
    places = nodes.constant("places", np.arange(len(given), dtype=np.int32))
    types = dict.fromkeys(("Tparams", "Tindices", "Taxis"), int32)
    place = nodes.node("place", "GatherV2", (places, index, nodes.constant("axis", np.int32(0)), *control), types)
    attrs, chosen = {"T": nodes.attrs["T"]}, ""
    for i, other in enumerate(given):
        here = nodes.node(f"is_{i}", "Equal", (place, nodes.constant(f"number_{i}", np.int32(i))), {"T": int32})
        own = f"{nodes.node(f'input_{i}', 'RefSwitch', (other, here), attrs)}:1"
        if chosen:
            before = nodes.node(f"before_{i}", "RefSwitch", (chosen, here), attrs)
            own = nodes.node(f"chosen_{i}", "RefMerge", (before, own), {**attrs, "N": 2})
        chosen = own
    return nodes.last("RefIdentity", [chosen], attrs)


_RULES: Final[Mapping[str, Callable[[NodeDef, Fresh], list[NodeDef]]]] = {
    "PlaceholderV2": _placeholder,
    "RefSelect": _select,
    "Stack": _stack,
    "Save": _save,
    "SaveSlices": _save_slices,
    "Restore": _restore,
    "RestoreSlice": _restore,
    "TensorArrayPack": _pack,
    "TensorArrayUnpack": _unpack,
}

"""The part of a graph that a model folder stores: a self-contained definition of what the signatures need.

Inputs become placeholders. Device requests of nodes are dropped, since a model is loaded on other machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.definitions import AttrValue
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.graphdef import GraphDef, InputRef, NodeDef, TensorData, functions_of
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.shapes import Dims
from aioflow.interop.model import Signature
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.ops.lookup.definitions import is_kept_table

PLACEHOLDER: Final = "Placeholder"
VARIABLE: Final = "VarHandleOp"


def ref_of(tensor: Tensor) -> InputRef:
    """Return the reference by which a definition names a tensor."""
    return InputRef(tensor.op.name, tensor.value_index)


def pruned(graph: Graph, signatures: Mapping[str, Signature], assets: Iterable[Tensor]) -> GraphDef:
    """Return the definition that the signatures need, with a placeholder for each asset's path.

    Raises:
        UnsupportedError: nodes depend on state that only this process has; the error lists them all.
        InvalidArgumentError: an output is inside the body of a function call.
    """
    whole = graph.as_graph_def()
    nodes = {node.name: node for node in whole.nodes}
    paths = {ref_of(tensor): tensor for tensor in assets}
    computed: dict[str, None] = {}
    for signature in signatures.values():
        # Per signature: an input of one may be computed by another.
        fed = {ref_of(tensor) for tensor in signature.inputs.values()} | set(paths)
        _walk(nodes, [ref_of(tensor) for tensor in signature.outputs.values()], fed, computed)
    given = {ref: tensor for s in signatures.values() for tensor in s.inputs.values() for ref in [ref_of(tensor)]}
    stand_ins = {
        ref.node: _placeholder(ref.node, tensor.dtype, tensor.dims)
        for ref, tensor in {**given, **paths}.items()
        # A node that another signature computes, or that has other outputs, cannot be replaced.
        if ref.node not in computed and len(tensor.op.outputs) == 1
    }
    for ref in given:
        if ref.node not in stand_ins:  # another output of the node may be computed, so the node stays
            _walk(nodes, [ref], set(paths), computed)
    kept = [stand_ins.get(node.name) or node for node in whole.nodes if node.name in computed or node.name in stand_ins]
    functions = functions_of(kept, graph.functions)
    _check(kept, [node for function in functions for node in function.nodes], set(stand_ins))
    names = {node.name for node in kept}
    return GraphDef(tuple(_anywhere(node, names) for node in kept), whole.version, functions)


def _placeholder(name: str, dtype: dtypes.DType, dims: Dims) -> NodeDef:
    return NodeDef(name, PLACEHOLDER, attrs={"dtype": dtype, "shape": dims})


def _walk(nodes: Mapping[str, NodeDef], roots: list[InputRef], fed: set[InputRef], found: dict[str, None]) -> None:
    """Add to `found` the nodes that compute `roots` from the tensors in `fed`."""
    waiting = [ref for ref in roots if ref not in fed]
    while waiting:
        name = waiting.pop().node
        if name in found:
            continue
        if name not in nodes:
            raise InvalidArgumentError(
                f"{name!r} is inside a called function",
                expected="an output that the function returns",
                actual=name,
            )
        if nodes[name].op == PLACEHOLDER and any(ref.node == name for ref in fed):
            continue  # reached by a control edge only
        found[name] = None
        waiting += [ref for ref in nodes[name].refs() if ref not in fed]


def _anywhere(node: NodeDef, names: set[str]) -> NodeDef:
    """Return the node without its device, and with only those colocation constraints whose nodes exist."""
    attrs = dict(node.attrs)
    groups: Any = attrs.pop("_class", ())
    # Colocation with a dropped node would be an error at the import.
    beside = tuple(g for g in groups if not g.startswith("loc:@") or g.removeprefix("loc:@") in names)
    return replace(node, device="", attrs=attrs | ({"_class": beside} if beside else {}))


def _check(nodes: Iterable[NodeDef], inner: Iterable[NodeDef], fed: set[str]) -> None:
    found = [UnsupportedOp(n.op, n.name, why) for n in nodes if n.name not in fed and (why := _cannot_travel(n.op))]
    found += [UnsupportedOp(n.op, n.name, why) for n in inner if (why := _cannot_travel(n.op, inside=True))]
    if found:
        raise UnsupportedError("the model", found, "saved")


def _cannot_travel(op: str, inside: bool = False) -> str:
    """Return the reason why a node cannot be saved, or "" if it can."""
    traits = traits_of(op)
    if op == VARIABLE:
        return "a variable created inside a function" if inside else ""
    if is_kept_table(op):
        return "a table created inside a function" if inside else ""
    if op == PLACEHOLDER:
        return "" if inside else "it must be fed, and is not an input of the signature"
    if traits.stays_home:
        return f"it {traits.stays_home}"
    if traits.kind == "waiting":
        return "it waits for other steps of this process"
    if traits.kind == "handle" and op in OPS and "shared_name" in OPS.get(op).attrs:
        return "its contents are not saved in checkpoints"
    return ""


# ── the record of the ops that a graph uses, by which another release recognizes new attributes ───────────────────────
#
# A release may add an attribute to an op, with a default that leaves the op unchanged. A definition of an earlier
# release lacks the attribute, and the default applies. A definition of a later release has it. An earlier release may
# drop it if it has its default value, which only the writer knows. So the writer records the defaults, as a definition
# with one node per op.


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

"""Shape-driven simplification, like grappler's "shape materialization" and the shape rules of XLA's simplifier.

Shapes and sizes become constants. A node that would return its input unchanged is removed, because for that shape there
is nothing to reshape, tile, slice or sum. A sum of floats over an axis of size one stays: it turns -0.0 into 0.0. If a
copy is removed, the input must have the memory layout of the copy: see `Rewriting.copied`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.rewrite import Evaluate, RewriteRule, Rewriting, sweep
from aioflow.graph.shapes import Dims, is_compatible, num_elements
from aioflow.memory.values import Array


def shapes(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph without the nodes that static shapes make unnecessary."""
    return sweep(graph, _simplified)


def _simplified(node: Node, rewriting: Rewriting) -> Node | None:
    rule = _RULES.get(node.op)
    return None if rule is None else rule(node, rewriting)


# ── shapes as values ──────────────────────────────────────────────────────────────────────────────────────────────────


def _shape(dims: Dims) -> tuple[int, ...] | None:
    return None if num_elements(dims) is None else tuple(d for d in dims or () if d is not None)


def _rank(dims: Dims) -> int | None:
    return None if dims is None else len(dims)


_VALUES: Final[Mapping[str, Callable[[Dims], int | tuple[int, ...] | None]]] = {
    "Rank": _rank,
    "Shape": _shape,
    "ShapeN": _shape,
    "Size": num_elements,
}


def _known(node: Node, rewriting: Rewriting) -> Node | None:
    """Replace Shape, ShapeN, Size or Rank by constants, alive in the same branch and iteration as the inputs."""
    found = [_VALUES[node.op](rewriting.spec(edge).dims) for edge in node.inputs]
    anchors = rewriting.anchors(node.inputs)
    if anchors is None or any(v is None or np.max(v, initial=0) > node.outputs[0].dtype.max for v in found):
        return None  # a value too large for its dtype fails when the step runs
    values = [np.array(v, s.dtype.np_dtype) for v, s in zip(found, node.outputs, strict=True)]
    control = (*node.control, *anchors)
    made = rewriting.as_constant(node, values[0], control)
    if made is not None:
        rewriting.replace_outputs(node, values[1:], made.control)
    return made


# ── operations without effect ─────────────────────────────────────────────────────────────────────────────────────────


def _unchanged_shape(node: Node, rewriting: Rewriting) -> bool:
    """Return whether the result certainly has the shape of the first input."""
    dims = rewriting.spec(node.inputs[0]).dims
    return num_elements(dims) is not None and dims == node.outputs[0].dims


def _reshaped(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a Reshape or BroadcastTo to the shape of its input.

    The shape must be constant: a computed one may not fit.
    """
    shape = rewriting.constant(node.inputs[1])
    if shape is None or not _unchanged_shape(node, rewriting) or (node.op == "BroadcastTo" and (shape < 0).any()):
        return None
    return rewriting.passed_on(node, node.inputs[0])


_INVERSE: Final[Mapping[str, str]] = {"ExpandDims": "Squeeze", "Squeeze": "ExpandDims"}


def _inserted_and_removed(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a Squeeze of an ExpandDims, or the reverse, that restores the original shape."""
    inner = rewriting.node(node.inputs[0])
    if inner.op != _INVERSE[node.op]:
        return None
    edge = inner.inputs[0]
    dims = rewriting.spec(edge).dims
    same = num_elements(dims) is not None and dims == node.outputs[0].dims
    return rewriting.passed_on(node, edge) if same else None


def _ensured(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove an EnsureShape or PlaceholderWithDefault of a value that is known to have the shape."""
    dims = rewriting.spec(node.inputs[0]).dims
    known = num_elements(dims) is not None and is_compatible(node.attrs["shape"], dims)
    return rewriting.passed_on(node, node.inputs[0]) if known else None


def _tiled(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a Tile by one along each axis."""
    return rewriting.copied(node, node.inputs[0]) if _unchanged_shape(node, rewriting) else None


def _padded(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a Pad, PadV2 or MirrorPad by zero elements."""
    paddings = rewriting.constant(node.inputs[1])
    dims = rewriting.spec(node.inputs[0]).dims
    nothing = paddings is not None and dims is not None and paddings.shape == (len(dims), 2) and not paddings.any()
    return rewriting.copied(node, node.inputs[0]) if nothing else None


def _sliced(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a Slice of the whole input."""
    begin, size = (rewriting.constant(edge) for edge in node.inputs[1:])
    dims = rewriting.spec(node.inputs[0]).dims
    if begin is None or size is None or dims is None or not begin.shape == size.shape == (len(dims),) or begin.any():
        return None
    whole = all(s in (-1, d) for s, d in zip(size.tolist(), dims, strict=True))
    return rewriting.passed_on(node, node.inputs[0]) if whole else None


def _strided(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a StridedSlice of the whole input, such as x[:, :]."""
    bounds = [rewriting.constant(edge) for edge in node.inputs[1:]]
    dims = rewriting.spec(node.inputs[0]).dims
    other = any(node.attrs[mask] for mask in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask"))
    if other or dims is None or any(b is None or b.ndim != 1 or b.size > len(dims) for b in bounds):
        return None
    # Dimensions beyond the items are taken whole.
    items = zip(*(b.tolist() for b in bounds if b is not None), dims, strict=False)
    masks = node.attrs["begin_mask"], node.attrs["end_mask"]
    whole = all(_takes_all(axis, item, masks) for axis, item in enumerate(items))
    return rewriting.passed_on(node, node.inputs[0]) if whole else None


def _takes_all(axis: int, item: tuple[int, int, int, int | None], masks: tuple[int, int]) -> bool:
    begin, end, stride, size = item
    from_start = masks[0] >> axis & 1 or begin == 0
    to_end = masks[1] >> axis & 1 or (size is not None and end >= size)
    return bool(stride == 1 and from_start and to_end)


def _split(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a Split into one part."""
    axis, dims = rewriting.constant(node.inputs[0]), rewriting.spec(node.inputs[1]).dims
    if axis is None or axis.size != 1 or dims is None:
        return None
    valid = -len(dims) <= axis.item() < len(dims)
    return rewriting.passed_on(node, node.inputs[1]) if valid and node.attrs["num_split"] == 1 else None


def _transposed(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a Transpose that keeps the order of axes."""
    order = rewriting.constant(node.inputs[1])
    dims = rewriting.spec(node.inputs[0]).dims
    same = order is not None and dims is not None and order.tolist() == list(range(len(dims)))
    return rewriting.passed_on(node, node.inputs[0]) if same else None


# Return whether a reduction of one element returns all its bits unchanged, for the dtype of the value.
_Holds: TypeAlias = Callable[[Edge, Rewriting], bool]


def _for_integers(edge: Edge, rewriting: Rewriting) -> bool:
    return rewriting.spec(edge).dtype.is_integer


def _for_numbers(edge: Edge, rewriting: Rewriting) -> bool:
    dtype = rewriting.spec(edge).dtype
    # Kernels of 16-bit floats compute in another type.
    return dtype.is_integer or (dtype.is_floating and dtype.size >= 4)


def _for_bools(edge: Edge, rewriting: Rewriting) -> bool:
    return rewriting.spec(edge).dtype.is_bool


_REDUCTIONS: Final[Mapping[str, _Holds]] = {
    "All": _for_bools,
    "Any": _for_bools,
    "Max": _for_numbers,
    "Mean": _for_integers,
    "Min": _for_numbers,
    "Prod": _for_numbers,
    "Sum": _for_integers,
}


def _reduced(node: Node, rewriting: Rewriting) -> Node | None:
    """Remove a reduction over no axes, or over axes of size one that are kept."""
    value, axes = node.inputs[0], rewriting.constant(node.inputs[1])
    dims = rewriting.spec(value).dims
    if axes is None or not _REDUCTIONS[node.op](value, rewriting) or not _is_of_one(axes, dims, node):
        return None
    return rewriting.copied(node, value)


def _is_of_one(axes: Array, dims: Dims, node: Node) -> bool:
    chosen: list[int] = axes.reshape(-1).tolist()
    if dims is None or not all(-len(dims) <= axis < len(dims) for axis in chosen):
        return False
    # An axis that is named twice is an error, which the kernel has to report.
    distinct = {axis % len(dims) for axis in chosen}
    kept = not chosen or node.attrs["keep_dims"]
    return bool(kept and len(distinct) == len(chosen) and all(dims[axis] == 1 for axis in distinct))


_RULES: Final[Mapping[str, RewriteRule]] = {
    **dict.fromkeys(_VALUES, _known),
    **dict.fromkeys(("ExpandDims", "Squeeze"), _inserted_and_removed),
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), _padded),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(("BroadcastTo", "Reshape"), _reshaped),
    **dict.fromkeys(("EnsureShape", "PlaceholderWithDefault"), _ensured),
    "Slice": _sliced,
    "Split": _split,
    "StridedSlice": _strided,
    "Tile": _tiled,
    "Transpose": _transposed,
}

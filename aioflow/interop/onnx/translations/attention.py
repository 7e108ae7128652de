"""Attention as one op: heads, caches, masks, windows.

Where onnx's function repeats keys and values for the heads that share them, the heads of a group are put one behind
the other instead, as more queries; and only queries are scaled, unless the dtype is so narrow that products overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.sizes import axis_of, rank_of
from aioflow.interop.onnx.translating import Node, translation
from aioflow.interop.onnx.translations.dimensions import Size, int32, shape_of, size_of
from aioflow.ops.apply import constant, make
from aioflow.ops.math.reduction import reduce_max

__all__ = ["Mask", "Scoring", "attended", "flattened", "heads", "in_order", "scattered"]

_HEADS = (0, 2, 1, 3)  # [batch, steps, heads, size] and [batch, heads, steps, size]


@dataclass(frozen=True)
class Mask:
    """What a query may see.

    Attributes:
        bias: Added to the scores, -inf where nothing may be seen; None if all may be.
        may_hide_all: Whether there may be queries that see nothing.
    """

    bias: Tensor | None
    may_hide_all: bool


@dataclass(frozen=True)
class Scoring:
    """How the scores of keys become shares.

    Attributes:
        scale: What products are multiplied by; None for 1 / √size.
        cap: No score is further from 0; 0 for none.
        precision: The dtype of the softmax; None for that of the scores.
    """

    scale: float | None = None
    cap: float = 0.0
    precision: DType | None = None


@translation("Attention")
def attention(
    node: Node,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:
    flat = rank_of(node, q) == 3
    if flat:
        count, shared = node.required("q_num_heads"), node.required("kv_num_heads")
        q, k, v = heads(q, count), heads(k, shared), heads(v, shared)
    before: Size = 0 if past_key is None else size_of(past_key, 2)
    if past_key is not None and past_value is not None:
        k, v = make("ConcatV2", [past_key, k], 2), make("ConcatV2", [past_value, v], 2)
    seen = _mask(node, q, k, mask, before, lengths if past_key is None else None, lengths)
    scoring = Scoring(node.attr("scale"), node.attr("softcap", 0.0), node.dtype("softmax_precision", q.dtype))
    y, stages = attended(q, k, v, seen, scoring)
    return flattened(y) if flat else y, k, v, stages[node.attr("qk_matmul_output_mode", 0)]


def flattened(x: Tensor) -> Tensor:
    """Return [batch, heads, steps, size] as [batch, steps, heads x size]."""
    return make("Reshape", make("Transpose", x, _HEADS), shape_of([size_of(x, 0), size_of(x, 2), -1]))


def heads(x: Tensor, count: int = -1, size: int = -1) -> Tensor:
    """Return [batch, steps, heads x size] as [batch, heads, steps, size], by the number or the size of the heads."""
    width = size_of(x, 2)
    if isinstance(width, int):
        count, size = (count, width // count) if count > 0 else (width // size, size)
    return make("Transpose", make("Reshape", x, shape_of([size_of(x, 0), size_of(x, 1), count, size])), _HEADS)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scoring: Scoring) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the result, and the way to it: scores, capped ones, masked ones and shares."""
    scores = _ungrouped(make("BatchMatMulV2", *_scaled(_grouped(q, k), k, scoring.scale), adj_y=True), q)
    stages = [scores]
    if scoring.cap:
        scores = make("Tanh", scores / scoring.cap) * scoring.cap
    stages.append(scores)
    if mask.bias is not None:
        scores = scores + mask.bias
    stages.append(scores)
    shares = _shares(scores, mask, scoring.precision or scores.dtype)
    stages.append(shares)
    return _ungrouped(make("BatchMatMulV2", _grouped(shares, k), v), q), stages


def _shares(scores: Tensor, mask: Mask, precise: DType) -> Tensor:
    """Softmax; 0 for a query that sees nothing."""
    sees = None
    if mask.bias is not None and mask.may_hide_all:
        sees = make("Greater", reduce_max(mask.bias, -1, True), -np.inf)
        scores = make("SelectV2", sees, scores, 0)
    shares = make("Cast", make("Softmax", make("Cast", scores, DstT=precise)), DstT=scores.dtype)
    return shares if sees is None else make("SelectV2", sees, shares, 0)


def _scaled(q: Tensor, k: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    size, narrow = size_of(q, 3), q.dtype.size < 4
    if scale is None and isinstance(size, Tensor):
        factor = make("Rsqrt", make("Cast", size, DstT=dtypes.float64))
        part = make("Cast", make("Sqrt", factor) if narrow else factor, DstT=q.dtype)
        return q * part, k * part if narrow else k
    number = scale if scale is not None else 1 / math.sqrt(size) if isinstance(size, int) else 1.0
    return (q * math.sqrt(number), k * math.sqrt(number)) if narrow else (q * number, k)


def _grouped(x: Tensor, k: Tensor) -> Tensor:
    """With the heads that share keys as steps of one: [batch, shared, heads / shared x steps, size]."""
    if size_of(x, 1) == size_of(k, 1):
        return x
    return make("Reshape", x, shape_of([size_of(x, 0), size_of(k, 1), -1, size_of(x, 3)]))


def _ungrouped(x: Tensor, q: Tensor) -> Tensor:
    if size_of(x, 1) == size_of(q, 1):
        return x
    return make("Reshape", x, shape_of([size_of(q, 0), size_of(q, 1), size_of(q, 2), size_of(x, 3)]))


# ── masks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mask(
    node: Node, q: Tensor, k: Tensor, mask: Tensor | None, before: Size, cached: Tensor | None, lengths: Tensor | None
) -> Mask:
    """The mask of the node with all that hides keys besides.

    Args:
        before: How many keys precede those of the queries.
        cached: For each sequence how many keys there are, if its queries are the last of them.
        lengths: For each sequence how many keys are no padding.
    """
    queries, keys = size_of(q, 2), size_of(k, 2)
    conditions = _ordered(node, queries, keys, before, cached)
    if lengths is not None:
        there = make("Reshape", make("Cast", lengths, DstT=dtypes.int32), [-1, 1, 1, 1])
        conditions.append(make("Less", make("Range", 0, keys, 1), there))
    bias = None
    if mask is not None:
        mask = _filled(mask, keys)
        if mask.dtype.is_bool:
            conditions.append(mask)
        else:
            bias = mask
    may_hide_all = mask is not None or lengths is not None or node.attr("left_window_size", -1) >= 0
    if not conditions:
        return Mask(bias, may_hide_all)
    allowed = conditions[0]
    for each in conditions[1:]:
        allowed = make("LogicalAnd", allowed, each)
    least = constant(np.array(-np.inf, q.dtype.np_dtype))
    return Mask(make("SelectV2", allowed, 0 if bias is None else bias, least), may_hide_all)


def _ordered(node: Node, queries: Size, keys: Size, before: Size, cached: Tensor | None) -> list[Tensor]:
    """Which keys each query may see by where they stand: not those after it, and not those out of its window."""
    left, right = node.attr("left_window_size", -1), node.attr("right_window_size", -1)
    causal = bool(node.attr("is_causal", 0))
    if not causal and left < 0 and right < 0:
        return []
    if cached is not None:
        offset = make("Reshape", make("Cast", cached, DstT=dtypes.int32), [-1, 1, 1, 1]) - queries
    else:
        offset = constant(np.int32(before)) if isinstance(before, int) else before
    return in_order(queries, keys, offset, causal=causal, left=left, right=right)


def in_order(
    queries: Size, keys: Size, offset: Tensor, *, causal: bool = True, left: int = -1, right: int = -1
) -> list[Tensor]:
    """Conditions on the keys that a query sees.

    Args:
        offset: How many keys precede that of the first query.
        causal: Hide the keys behind that of the query.
        left, right: How many keys before and behind that are seen; negative for all.
    """
    positions = make("ExpandDims", make("Range", 0, queries, 1), 1) + offset
    distance = positions - make("Range", 0, keys, 1)
    found = [make("GreaterEqual", distance, 0)] if causal else []
    if left >= 0:
        found.append(make("LessEqual", distance, left))
    if right >= 0:
        found.append(make("GreaterEqual", distance, -right))
    return found


def _filled(mask: Tensor, keys: Size) -> Tensor:
    """With all keys: those that it does not tell of are hidden."""
    given = size_of(mask, -1)
    if isinstance(given, int) and given == keys:
        return mask
    missing = keys - given
    missing = make("Maximum", missing, 0) if isinstance(missing, Tensor) else max(missing, 0)
    rank = len(mask.dims or ())
    paddings = make("Reshape", shape_of([*[0] * (2 * rank - 1), missing]), [rank, 2])
    return make("PadV2", mask, paddings, False if mask.dtype.is_bool else -np.inf)


@translation("TensorScatter")
def tensor_scatter(node: Node, cache: Tensor, update: Tensor, starts: Tensor | None = None) -> Tensor:
    """The cache with each sequence's update at its place along an axis; round the end if the mode is "circular"."""
    axis, rank = axis_of(node, cache, node.attr("axis", -2)), rank_of(node, cache)
    if axis == 0:
        return node.refuse("axis=0, which is that of the sequences")
    begin = make("Reshape", constant(np.zeros(1, np.int32)) if starts is None else int32(starts), [-1, 1])
    return scattered(cache, update, begin, axis, rank, node.attr("mode", "linear") == "circular")


def scattered(cache: Tensor, update: Tensor, begin: Tensor, axis: int, rank: int, circular: bool = False) -> Tensor:
    """Return the cache with each sequence's update at its place: `begin` has a row for each, or one for all."""
    size, added = size_of(cache, axis), size_of(update, axis)
    place = make("Range", 0, size, 1) - begin
    if circular:
        place = make("FloorMod", place, size)
    place = make("BroadcastTo", place, shape_of([size_of(cache, 0), size]))
    new = make("LogicalAnd", make("GreaterEqual", place, 0), make("Less", place, added))
    taken = make("GatherV2", update, make("SelectV2", new, place, 0), axis, batch_dims=1)
    spread = shape_of([size_of(cache, 0), *[1] * (axis - 1), size, *[1] * (rank - axis - 1)])
    return make("SelectV2", make("Reshape", new, spread), taken, cache)

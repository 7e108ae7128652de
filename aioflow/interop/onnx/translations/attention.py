"""The Attention op: heads, caches, masks, windows.

onnx's reference function repeats keys and values for the heads that share them. Here the heads of a group are
concatenated instead, as further queries. Only queries are scaled, unless the dtype is so narrow that products overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import Size, axis_of, int32, rank_of, shape_of, size_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops.apply import constant, make
from aioflow.ops.math.reduction import reduce_max

_HEADS = (0, 2, 1, 3)  # between [batch, steps, heads, size] and [batch, heads, steps, size]


@dataclass(frozen=True)
class Mask:
    """The keys visible to queries.

    Attributes:
        bias: Added to the scores, -inf for hidden keys; None if all keys are visible.
        may_hide_all: Whether all keys may be hidden from a query.
    """

    bias: Tensor | None
    may_hide_all: bool


@dataclass(frozen=True)
class Scoring:
    """The computation of attention weights from scores.

    Attributes:
        scale: Factor of the scores; None for 1 / √size.
        cap: Bound on the absolute value of scores; 0 for no bound.
        precision: Dtype of the softmax; None for that of the scores.
    """

    scale: float | None = None
    cap: float = 0.0
    precision: DType | None = None


@translation("Attention")
def attention(
    node: OnnxNode,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:
    # Rank 3 is [batch, steps, heads · size], rank 4 has the heads apart.
    flat = rank_of(node, q) == 3
    if flat:
        count, shared = node.required("q_num_heads"), node.required("kv_num_heads")
        q, k, v = heads(q, count), heads(k, shared), heads(v, shared)
    before: Size = 0 if past_key is None else size_of(past_key, 2)
    if past_key is not None and past_value is not None:
        k, v = make("ConcatV2", [past_key, k], 2), make("ConcatV2", [past_value, v], 2)
    # With a cache in the inputs, `before` gives the position; only without one do the lengths.
    seen = _mask(node, q, k, mask, before, lengths if past_key is None else None, lengths)
    scoring = Scoring(node.attr("scale"), node.attr("softcap", 0.0), node.dtype("softmax_precision", q.dtype))
    y, stages = attended(q, k, v, seen, scoring)
    return flattened(y) if flat else y, k, v, stages[node.attr("qk_matmul_output_mode", 0)]


def flattened(x: Tensor) -> Tensor:
    """Return [batch, heads, steps, size] as [batch, steps, heads x size]."""
    return make("Reshape", make("Transpose", x, _HEADS), shape_of([size_of(x, 0), size_of(x, 2), -1]))


def heads(x: Tensor, count: int = -1, size: int = -1) -> Tensor:
    """Return [batch, steps, heads x size] as [batch, heads, steps, size], by the number or the size of the heads."""
    # A known width gives both sizes, so the static shape has no unknown size.
    width = size_of(x, 2)
    if isinstance(width, int):
        count, size = (count, width // count) if count > 0 else (width // size, size)
    return make("Transpose", make("Reshape", x, shape_of([size_of(x, 0), size_of(x, 1), count, size])), _HEADS)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scoring: Scoring) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the result and its stages: scores, capped scores, masked scores and attention weights."""
    scores = _ungrouped(make("BatchMatMulV2", *_scaled(_grouped(q, k), k, scoring.scale), adj_y=True), q)
    stages = [scores]
    if scoring.cap:
        # cap · tanh(scores / cap).
        scores = make("Tanh", scores / scoring.cap) * scoring.cap
    stages.append(scores)
    if mask.bias is not None:
        scores = scores + mask.bias
    stages.append(scores)
    shares = _shares(scores, mask, scoring.precision or scores.dtype)
    stages.append(shares)
    return _ungrouped(make("BatchMatMulV2", _grouped(shares, k), v), q), stages


def _shares(scores: Tensor, mask: Mask, precise: DType) -> Tensor:
    """Return the softmax of the scores, and 0 for a query from which all keys are hidden."""
    sees = None
    if mask.bias is not None and mask.may_hide_all:
        sees = make("Greater", reduce_max(mask.bias, -1, True), -np.inf)
        # The softmax of a row of -inf alone is NaN.
        scores = make("SelectV2", sees, scores, 0)
    shares = make("Cast", make("Softmax", make("Cast", scores, DstT=precise)), DstT=scores.dtype)
    return shares if sees is None else make("SelectV2", sees, shares, 0)


def _scaled(q: Tensor, k: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    size, narrow = size_of(q, 3), q.dtype.size < 4
    if scale is None and isinstance(size, Tensor):
        # 1 / √size.
        factor = make("Rsqrt", make("Cast", size, DstT=dtypes.float64))
        part = make("Cast", make("Sqrt", factor) if narrow else factor, DstT=q.dtype)
        return q * part, k * part if narrow else k
    # In 16 bits the products of unscaled keys may overflow, so queries and keys get a factor of √scale each.
    number = scale if scale is not None else 1 / math.sqrt(size) if isinstance(size, int) else 1.0
    return (q * math.sqrt(number), k * math.sqrt(number)) if narrow else (q * number, k)


def _grouped(x: Tensor, k: Tensor) -> Tensor:
    """Return the heads that share keys as steps of one head: [batch, shared, heads / shared x steps, size]."""
    if size_of(x, 1) == size_of(k, 1):
        return x
    return make("Reshape", x, shape_of([size_of(x, 0), size_of(k, 1), -1, size_of(x, 3)]))


def _ungrouped(x: Tensor, q: Tensor) -> Tensor:
    if size_of(x, 1) == size_of(q, 1):
        return x
    return make("Reshape", x, shape_of([size_of(q, 0), size_of(q, 1), size_of(q, 2), size_of(x, 3)]))


# ── masks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mask(
    node: OnnxNode,
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    before: Size,
    cached: Tensor | None,
    lengths: Tensor | None,
) -> Mask:
    """Return the mask of the node, combined with all other conditions that hide keys.

    Args:
        node: Node being translated.
        q: Queries.
        k: Keys.
        mask: The node's own mask.
        before: Number of keys that precede those of the queries.
        cached: Number of keys of each sequence, if its queries belong to the last of them.
        lengths: Number of keys of each sequence that are not padding.
    """
    queries, keys = size_of(q, 2), size_of(k, 2)
    conditions = _ordered(node, queries, keys, before, cached)
    if lengths is not None:
        # To broadcast over [batch, heads, queries, keys].
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


def _ordered(node: OnnxNode, queries: Size, keys: Size, before: Size, cached: Tensor | None) -> list[Tensor]:
    """Return the conditions that hide keys by position: those after a query and those outside its window."""
    left, right = node.attr("left_window_size", -1), node.attr("right_window_size", -1)
    causal = bool(node.attr("is_causal", 0))
    if not causal and left < 0 and right < 0:
        return []
    if cached is not None:
        # The queries are the last of the keys in the cache.
        offset = make("Reshape", make("Cast", cached, DstT=dtypes.int32), [-1, 1, 1, 1]) - queries
    else:
        offset = constant(np.int32(before)) if isinstance(before, int) else before
    return in_order(queries, keys, offset, causal=causal, left=left, right=right)


def in_order(
    queries: Size, keys: Size, offset: Tensor, *, causal: bool = True, left: int = -1, right: int = -1
) -> list[Tensor]:
    """Return conditions for the keys visible to each query, by position.

    Args:
        queries: Number of queries.
        keys: Number of keys.
        offset: Number of keys before that of the first query.
        causal: Whether to hide the keys after that of the query.
        left: Number of visible keys before that of the query; negative for all.
        right: Number of visible keys after that of the query; negative for all.
    """
    positions = make("ExpandDims", make("Range", 0, queries, 1), 1) + offset
    # Positive for keys before the query, [queries, keys].
    distance = positions - make("Range", 0, keys, 1)
    found = [make("GreaterEqual", distance, 0)] if causal else []
    if left >= 0:
        found.append(make("LessEqual", distance, left))
    if right >= 0:
        found.append(make("GreaterEqual", distance, -right))
    return found


def _filled(mask: Tensor, keys: Size) -> Tensor:
    """Return the mask extended to all keys. Keys beyond the given mask are hidden."""
    given = size_of(mask, -1)
    if isinstance(given, int) and given == keys:
        return mask
    # A mask may be shorter than the keys.
    missing = keys - given
    missing = make("Maximum", missing, 0) if isinstance(missing, Tensor) else max(missing, 0)
    rank = len(mask.dims or ())
    paddings = make("Reshape", shape_of([*[0] * (2 * rank - 1), missing]), [rank, 2])
    return make("PadV2", mask, paddings, False if mask.dtype.is_bool else -np.inf)


@translation("TensorScatter")
def tensor_scatter(node: OnnxNode, cache: Tensor, update: Tensor, starts: Tensor | None = None) -> Tensor:
    """Write each sequence's update into the cache at its position along an axis.

    In the mode "circular", positions beyond the end wrap around.
    """
    axis, rank = axis_of(node, cache, node.attr("axis", -2)), rank_of(node, cache)
    if axis == 0:
        return node.refuse("axis=0, which is that of the sequences")
    begin = make("Reshape", constant(np.zeros(1, np.int32)) if starts is None else int32(starts), [-1, 1])
    return scattered(cache, update, begin, axis, rank, node.attr("mode", "linear") == "circular")


def scattered(cache: Tensor, update: Tensor, begin: Tensor, axis: int, rank: int, circular: bool = False) -> Tensor:
    """Return the cache with each sequence's update at its position.

    `begin` has one row per sequence, or one for all.
    """
    size, added = size_of(cache, axis), size_of(update, axis)
    # For each place of the cache, its index in the update; negative or too large if the update does not cover it.
    place = make("Range", 0, size, 1) - begin
    if circular:
        place = make("FloorMod", place, size)
    place = make("BroadcastTo", place, shape_of([size_of(cache, 0), size]))
    new = make("LogicalAnd", make("GreaterEqual", place, 0), make("Less", place, added))
    # Index 0 where nothing is taken, since Gather rejects indices out of range.
    taken = make("GatherV2", update, make("SelectV2", new, place, 0), axis, batch_dims=1)
    spread = shape_of([size_of(cache, 0), *[1] * (axis - 1), size, *[1] * (rank - axis - 1)])
    return make("SelectV2", make("Reshape", new, spread), taken, cache)

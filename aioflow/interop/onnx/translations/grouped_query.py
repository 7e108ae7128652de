"""com.microsoft: attention of language models, whose heads share keys and whose cache is part of the op."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import int32, rank_of, scalar_of, shape_of, size_of
from aioflow.interop.onnx.translating import OnnxNode, microsoft, refuse_inputs, refuse_unless
from aioflow.interop.onnx.translations.attention import (
    Mask,
    Scoring,
    attended,
    flattened,
    heads,
    in_order,
    scattered,
)
from aioflow.ops.apply import constant, make, make_list

# ── com.microsoft: rotary position embeddings ─────────────────────────────────────────────────────────────────────────


@microsoft("RotaryEmbedding", "interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim", "scale")
def rotary_embedding(node: OnnxNode, x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Translate RotaryEmbedding.

    The positions are a single number for the first step, or one for each step of each sequence.
    """
    refuse_unless(node, is_packed_batching=0, scale=1.0)
    rank = rank_of(node, x)
    if rank == 3:
        count = node.attr("num_heads", 0)  # 0 means that whole heads are rotated
        x = heads(x, count) if count else heads(x, size=2 * _pairs(node, cosines))
    elif rank != 4:
        raise node.wrong("the input", "rank 3 or 4", rank)
    if rank_of(node, positions) == 1:
        positions = make("AddV2", make("Reshape", int32(positions), []), make("Range", 0, size_of(x, 2), 1))
    y = rotated(node, x, positions, (cosines, sines), bool(node.attr("interleaved", 0)))
    return flattened(y) if rank == 3 else y


def _pairs(node: OnnxNode, cosines: Tensor) -> int:
    pairs = size_of(cosines, 1)
    return pairs if isinstance(pairs, int) else node.refuse("tables of an unknown number of columns")


def rotated(node: OnnxNode, x: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], interleaved: bool) -> Tensor:
    """Rotate pairs of elements of [batch, heads, steps, size] by angles that depend on their positions.

    Args:
        node: Node being translated.
        x: The elements.
        positions: One for each step, [steps], or for each step of each sequence, [batch, steps].
        tables: Cosines and sines, a row for each position and a column for each pair.
        interleaved: Whether pairs are neighbors; otherwise they join the first and the second half.
    """
    half = _pairs(node, tables[0])
    cosine, sine = (make("GatherV2", table, positions, 0) for table in tables)
    if rank_of(node, positions) == 2:
        # [batch, steps, pairs] to [batch, 1, steps, pairs], for all heads.
        cosine, sine = make("ExpandDims", cosine, 1), make("ExpandDims", sine, 1)
    turning, rest = _cut(x, 2 * half)
    if interleaved:
        shape = [size_of(x, axis) for axis in range(3)]
        a, b = make_list("Unpack", make("Reshape", turning, shape_of([*shape, half, 2])), num=2, axis=4)
        # A rotation of (a, b) by the angle of the position.
        pair = [a * cosine - b * sine, b * cosine + a * sine]
        y = make("Reshape", make("Pack", pair, axis=4), shape_of([*shape, 2 * half]))
        return make("ConcatV2", [y, *rest], 3) if rest else y
    a, b = make_list("Split", 3, turning, num_split=2)
    return make("ConcatV2", [a * cosine - b * sine, b * cosine + a * sine, *rest], 3)


def _cut(x: Tensor, size: int) -> tuple[Tensor, list[Tensor]]:
    """Return the first `size` elements of the last of four axes, and the others, if there may be any."""
    if size_of(x, 3) == size:
        return x, []
    edge = [0, 0, 0, size]
    # The masks open the begins of all axes, and the ends of all but the last.
    first = make("StridedSlice", x, [0] * 4, edge, [1] * 4, begin_mask=15, end_mask=7)
    return first, [make("StridedSlice", x, edge, [0] * 4, [1] * 4, begin_mask=7, end_mask=15)]


class _Steps(NamedTuple):
    """Positions of the queries in their sequences.

    Attributes:
        starts: Position of the first query in each sequence, [batch, 1].
        total: Number of keys of the longest sequence, a scalar.
    """

    starts: Tensor
    total: Tensor


@microsoft(
    "GroupQueryAttention",
    *("do_rotary", "kv_num_heads", "local_window_size", "num_heads", "rotary_interleaved", "scale", "softcap"),
    *("causal", "k_quant_type", "kv_cache_bit_width", "qk_output", "sliding_window_cache", "smooth_softmax"),
    *("v_quant_type", "qk_norm_epsilon"),
)
def group_query_attention(
    node: OnnxNode,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    lengths: Tensor,
    total: Tensor,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
    positions: Tensor | None = None,
    bias: Tensor | None = None,
    *others: Tensor | None,
) -> tuple[Tensor, ...]:
    """Translate grouped-query attention. `lengths` are the lengths of the sequences minus 1."""
    _refuse_variants(node, *others)
    queries, keys, values = _split(node, q, k, v)
    steps = _steps(queries, lengths, total)
    if node.attr("do_rotary", 0):
        if cosines is None or sines is None:
            raise node.wrong("the inputs", "tables of cosines and sines", "none")
        if positions is None:
            positions = make("AddV2", steps.starts, make("Range", 0, size_of(queries, 2), 1))
            # Positions of padding may exceed the tables.
            positions = make("Minimum", positions, size_of(cosines, 0) - 1)
        interleaved = bool(node.attr("rotary_interleaved", 0))
        queries, keys = (rotated(node, x, positions, (cosines, sines), interleaved) for x in (queries, keys))
    cache_k, cache_v = _cached(past_key, keys, steps), _cached(past_value, values, steps)
    seen_k, seen_v = _first(cache_k, steps.total), _first(cache_v, steps.total)
    scoring = Scoring(node.attr("scale", 0.0) or None, node.attr("softcap", 0.0))
    y, _ = attended(queries, seen_k, seen_v, _mask(node, queries, steps, bias), scoring)
    return flattened(y), cache_k, cache_v


def _refuse_variants(node: OnnxNode, *others: Tensor | None) -> None:
    names = ("head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens")
    refuse_inputs(node, **dict(zip(names, others, strict=False)))
    refuse_unless(node, causal=1, k_quant_type="NONE", v_quant_type="NONE", kv_cache_bit_width=0, qk_output=0)
    refuse_unless(node, sliding_window_cache=0)
    if node.attr("local_window_size", -1) == 0:
        node.refuse("local_window_size=0")
    if node.attr("smooth_softmax", 0) > 0:
        node.refuse("smooth_softmax=1")
    if node.wants(3):
        node.refuse("the output of the scores")


def _split(node: OnnxNode, q: Tensor, k: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the heads of queries, keys and values. `q` may contain all three."""
    count, shared = node.required("num_heads"), node.required("kv_num_heads")
    if k is not None and v is not None:
        return heads(q, count), heads(k, shared), heads(v, shared)
    if k is not None or v is not None:
        raise node.wrong("the inputs", "keys and values, or neither", "one of them")
    # The packed form has the heads of queries, keys and values side by side.
    packed = heads(q, count + 2 * shared)
    queries, keys, values = make_list("SplitV", packed, [count, shared, shared], 1, num_split=3)
    return queries, keys, values


def _steps(queries: Tensor, lengths: Tensor, total: Tensor) -> _Steps:
    """Return the positions of the queries. A prompt starts at 0; later queries end where their sequence ends."""
    count, total = size_of(queries, 2), int32(scalar_of(total))
    # `lengths` are one less than the lengths, so the first of `count` queries is at length - count.
    starts = make("Reshape", int32(lengths), [-1, 1]) + 1 - count
    return _Steps(make("SelectV2", make("Equal", total, count), 0, starts), total)


def _cached(past: Tensor | None, new: Tensor, steps: _Steps) -> Tensor:
    """Return the cache with the new entries, extended to the length of the longest sequence if it was shorter."""
    if past is None:
        return new
    missing = make("Maximum", steps.total - size_of(past, 2), 0)
    # (before, after) of the four axes; only axis 2, the steps, grows at its end.
    paddings = make("Reshape", shape_of([0, 0, 0, 0, 0, missing, 0, 0]), [4, 2])
    return scattered(make("Pad", past, paddings), new, steps.starts, 2, 4)


def _first(cache: Tensor, total: Tensor) -> Tensor:
    end = make("Pack", [0, 0, total, 0], axis=0)
    return make("StridedSlice", cache, [0] * 4, end, [1] * 4, begin_mask=15, end_mask=11)


def _mask(node: OnnxNode, queries: Tensor, steps: _Steps, bias: Tensor | None) -> Mask:
    window = node.attr("local_window_size", -1)
    offset = make("Reshape", steps.starts, [-1, 1, 1, 1])
    # The window includes the key of the query itself, which `left` does not count.
    seen, *others = in_order(size_of(queries, 2), steps.total, offset, left=window - 1 if window > 0 else -1)
    for each in others:
        seen = make("LogicalAnd", seen, each)
    least = constant(np.array(-np.inf, queries.dtype.np_dtype))
    return Mask(make("SelectV2", seen, 0 if bias is None else bias, least), may_hide_all=bias is not None)

"""com.microsoft: attention as onnxruntime fuses it, with projections, caches and several forms of masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import Size, int32, rank_of, shape_of, size_of
from aioflow.interop.onnx.translating import OnnxNode, microsoft, refuse_inputs, refuse_unless
from aioflow.interop.onnx.translations.attention import Mask, Scoring, attended, flattened, heads, in_order
from aioflow.interop.onnx.translations.math import product
from aioflow.ops.apply import constant, make, make_list

_HIDDEN: Final = -10000.0  # added to the scores of keys that a mask hides


def _pieces(x: Tensor, sizes: Sequence[Size] | None, axis: int) -> list[Tensor]:
    """Split a tensor along an axis into three parts, of these sizes or equal ones."""
    if sizes is None:
        return make_list("Split", axis, x, num_split=3)
    return make_list("SplitV", x, shape_of(sizes), axis, num_split=3)


def _scoring(node: OnnxNode) -> Scoring:
    return Scoring(node.attr("scale", 0.0) or None)  # 0 selects the default scale, as a missing attribute does


@microsoft(
    "Attention",
    *("mask_filter_value", "num_heads", "qkv_hidden_sizes", "scale", "unidirectional"),
    *("do_rotary", "past_present_share_buffer", "rotary_embedding_dim"),
)
def attention(
    node: OnnxNode,
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_length: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    refuse_unless(node, do_rotary=0, past_present_share_buffer=0, rotary_embedding_dim=0)
    refuse_inputs(node, past_sequence_length=past_length)
    projected = product(x, weights)
    if bias is not None:
        projected = make("AddV2", projected, bias)
    count = node.required("num_heads")
    # [batch, steps, sizes of q, k and v side by side].
    q, k, v = (heads(each, count) for each in _pieces(projected, node.attr("qkv_hidden_sizes", []) or None, 2))
    before: Size = 0
    if past is not None:
        # The cache is one tensor, [2, batch, heads, steps, size].
        past_key, past_value = make_list("Unpack", past, num=2, axis=0)
        before = size_of(past_key, 2)
        k, v = make("ConcatV2", [past_key, k], 2), make("ConcatV2", [past_value, v], 2)
    y, _ = attended(q, k, v, _mask(node, q, k, before, mask, attention_bias), _scoring(node))
    return flattened(y), make("Pack", [k, v], axis=0) if node.wants(1) else k


@microsoft("MultiHeadAttention", "mask_filter_value", "num_heads", "scale", "unidirectional")
def multi_head_attention(
    node: OnnxNode,
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_length: Tensor | None = None,
    indirection: Tensor | None = None,
) -> tuple[Tensor, ...]:
    refuse_inputs(node, past_sequence_length=past_length, cache_indirection=indirection)
    if k is None or v is None or rank_of(node, q) != 3:
        return node.refuse("queries, keys and values in one tensor")
    if node.wants(3):
        node.refuse("the output of the scores")
    if (past_key is None) != (past_value is None):
        raise node.wrong("the inputs", "past keys and values, or neither", "one of them")
    count, before = node.required("num_heads"), 0 if past_key is None else size_of(past_key, 2)
    if rank_of(node, k) == 3 and rank_of(node, v) == 3:
        if bias is not None:
            shifts = _pieces(bias, [size_of(each, 2) for each in (q, k, v)], 0)
            q, k, v = (make("AddV2", each, shift) for each, shift in zip((q, k, v), shifts, strict=True))
        k, v = heads(k, count), heads(v, count)
    elif rank_of(node, k) != 4 or rank_of(node, v) != 4:
        raise node.wrong("the ranks of keys and values", "3 or 4", f"{rank_of(node, k)} and {rank_of(node, v)}")
    elif bias is not None or past_key is not None:
        return node.refuse("a bias or a cache with keys that have their heads before their steps")
    if past_key is not None and past_value is not None:
        k, v = make("ConcatV2", [past_key, k], 2), make("ConcatV2", [past_value, v], 2)
    q = heads(q, count)
    y, _ = attended(q, k, v, _mask(node, q, k, before, mask, attention_bias), _scoring(node))
    return flattened(y), k, v


def _mask(node: OnnxNode, q: Tensor, k: Tensor, before: Size, mask: Tensor | None, bias: Tensor | None) -> Mask:
    """Return the bias that the node adds to the scores."""
    queries, keys = size_of(q, 2), size_of(k, 2)
    if mask is not None:
        least = constant(np.array(node.attr("mask_filter_value", _HIDDEN), q.dtype.np_dtype))
        # A finite number as in onnxruntime: a query from which all keys are hidden attends to all of them, and gives no
        # NaN.
        hidden = make("SelectV2", _seen(node, mask, size_of(q, 0), keys), 0, least)
        bias = hidden if bias is None else make("AddV2", bias, hidden)
    if node.attr("unidirectional", 0):
        [past] = in_order(queries, keys, constant(np.int32(before)) if isinstance(before, int) else before)
        bias = make("SelectV2", past, 0 if bias is None else bias, constant(np.array(-np.inf, q.dtype.np_dtype)))
    return Mask(bias, may_hide_all=False)


def _seen(node: OnnxNode, mask: Tensor, batch: Size, keys: Size) -> Tensor:
    """Return flags of the visible keys, which broadcast to [batch, heads, queries, keys]."""
    rank = rank_of(node, mask)
    if rank == 1:  # the number of visible keys of each sequence
        given = size_of(mask, 0)
        if isinstance(given, int) and isinstance(batch, int) and given != batch:
            node.refuse("a mask of more than the ends of the sequences")
        ends = make("Reshape", int32(mask), shape_of([batch, 1, 1, 1]))
        return make("Less", make("Range", 0, keys, 1), ends)
    if rank == 2:
        # [batch, keys] to [batch, 1, 1, keys].
        mask = make("ExpandDims", make("ExpandDims", mask, 1), 1)
    elif rank == 3:
        mask = make("ExpandDims", mask, 1)
    else:
        return node.refuse(f"a mask of rank {rank}")
    return make("Greater", mask, 0)

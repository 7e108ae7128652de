"""Reductions over axes, and the indices of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import axis_of, int32
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops.apply import constant, make
from aioflow.ops.math.reduction import all_axes

_Over = Callable[[Tensor, Tensor, bool], Tensor]  # (x, axes, keep_dims)


def _plain(op: str) -> _Over:
    return lambda x, axes, keep: make(op, x, axes, keep_dims=keep)


def _extreme(op: str, of_bools: str) -> _Over:
    return lambda x, axes, keep: make(of_bools if x.dtype.is_bool else op, x, axes, keep_dims=keep)


def _sum_of(function: Callable[[Tensor], Tensor]) -> _Over:
    return lambda x, axes, keep: make("Sum", function(x), axes, keep_dims=keep)


def _magnitude(x: Tensor) -> Tensor:
    return x if x.dtype.is_unsigned else make("Abs", x)


def _norm(x: Tensor, axes: Tensor, keep: bool) -> Tensor:
    return _of_floats(lambda y: make("EuclideanNorm", y, axes, keep_dims=keep), x)


def _log_sum(x: Tensor, axes: Tensor, keep: bool) -> Tensor:
    return _of_floats(lambda y: make("Log", make("Sum", y, axes, keep_dims=keep)), x)


def _log_sum_exp(x: Tensor, axes: Tensor, keep: bool) -> Tensor:
    return _of_floats(lambda y: _stable_log_sum_exp(y, axes, keep), x)


def _stable_log_sum_exp(x: Tensor, axes: Tensor, keep: bool) -> Tensor:
    """Return log-sum-exp with the maximum subtracted first, so that nothing overflows. Over no elements it is -inf."""
    # The maximum cancels out, so no gradient needs to flow through it.
    greatest = make("StopGradient", make("Max", x, axes, keep_dims=True))
    # An infinite maximum less itself would be NaN.
    greatest = make("SelectV2", make("IsFinite", greatest), greatest, 0)
    # log Σ exp(x) = log Σ exp(x - max) + max.
    result = make("Log", make("Sum", make("Exp", x - greatest), axes, keep_dims=True)) + greatest
    # The reduced axes have size 1 here: the sum only removes them.
    return result if keep else make("Sum", result, axes)


def _of_floats(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply the function. Integers are computed in float64 and rounded toward zero."""
    if x.dtype.is_floating:
        return function(x)
    return make("Cast", function(make("Cast", x, DstT=dtypes.float64)), DstT=x.dtype)


_REDUCTIONS: Final[dict[str, _Over]] = {
    "ReduceSum": _plain("Sum"),
    "ReduceMean": _plain("Mean"),
    "ReduceProd": _plain("Prod"),
    "ReduceMax": _extreme("Max", "Any"),
    "ReduceMin": _extreme("Min", "All"),
    "ReduceL1": _sum_of(_magnitude),
    "ReduceL2": _norm,
    "ReduceSumSquare": _sum_of(lambda x: make("Square", x)),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
}


def _by_attribute(reduce: _Over) -> Callable[..., Tensor]:
    def translate(node: OnnxNode, x: Tensor) -> Tensor:
        axes = node.attr("axes")
        chosen = all_axes(x) if axes is None else constant(np.array(axes, np.int32))
        return reduce(x, chosen, bool(node.attr("keepdims", 1)))

    return translate


def _by_input(reduce: _Over) -> Callable[..., Tensor]:
    def translate(node: OnnxNode, x: Tensor, axes: Tensor | None = None) -> Tensor:
        keep, none_if_empty = bool(node.attr("keepdims", 1)), bool(node.attr("noop_with_empty_axes", 0))
        empty = axes is None or axes.dims == (0,)
        if empty and none_if_empty:
            return reduce(x, constant(np.array([], np.int32)), keep)
        if axes is None or empty:
            return reduce(x, all_axes(x), keep)
        known = axes.dims is not None and axes.dims != (None,)
        return reduce(x, axes if known or none_if_empty else _all_if_empty(axes, x), keep)

    return translate


def _all_if_empty(axes: Tensor, x: Tensor) -> Tensor:
    """Return the axes, or all axes if the vector is empty. Its length is known only in the step."""
    # 1 if the vector is empty, so that the range covers all axes, and otherwise none.
    none = make("Cast", make("Equal", make("Size", axes), 0), DstT=dtypes.int32)
    return make("ConcatV2", [int32(axes), make("Range", 0, make("Rank", x) * none, 1)], 0)


for _name, _reduce in _REDUCTIONS.items():
    translation(_name)(_by_attribute(_reduce))
    # The opset in which the axes became an input.
    translation(_name, since=13 if _name == "ReduceSum" else 18)(_by_input(_reduce))


@translation("ArgMax")
def argmax(node: OnnxNode, x: Tensor) -> Tensor:
    return _where("ArgMax", node, x)


@translation("ArgMin")
def argmin(node: OnnxNode, x: Tensor) -> Tensor:
    return _where("ArgMin", node, x)


def _where(op: str, node: OnnxNode, x: Tensor) -> Tensor:
    axis = node.attr("axis", 0)
    if node.attr("select_last_index", 0):
        axis = axis_of(node, x, axis)
        last = make("GatherV2", make("Shape", x, out_type=dtypes.int64), axis, 0) - 1
        # The first extreme of the reversed axis is the last one of the axis.
        found = last - make(op, make("ReverseV2", x, [axis]), axis)
    else:
        found = make(op, x, axis)
    return make("ExpandDims", found, axis) if node.attr("keepdims", 1) else found

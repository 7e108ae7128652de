"""Normalization by means, variances and norms, the softmax family, and classification losses.

Ops with a `stash_type`, by default float32, compute means and variances in it. Wider dtypes keep their precision.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import axis_of, flat_from, rank_of, shape_of, size_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops.apply import constant, make
from aioflow.ops.array.making import one_hot
from aioflow.ops.math.reduction import reduce_mean, reduce_sum

_STASHES: Final = {1: dtypes.float32, 10: dtypes.float16, 11: dtypes.float64, 16: dtypes.bfloat16}


def _axes(axes: list[int] | range) -> Tensor:
    return constant(np.array(axes, np.int32))


def _axes_from(node: OnnxNode, x: Tensor) -> Tensor:
    """Return the axes from the node's `axis` on."""
    axis = axis_of(node, x, node.attr("axis", -1), from_end=True)
    if x.dims is None and axis >= 0:
        # The rank is known only in the step.
        return make("Range", axis, make("Rank", x), 1)
    return _axes(range(axis, 0 if x.dims is None else len(x.dims)))


def _cast(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else make("Cast", x, DstT=dtype)


def _stashed(node: OnnxNode, x: Tensor) -> Tensor:
    """Return `x` in the wider dtype of its own and the node's `stash_type`. Refuse an unknown `stash_type`."""
    wanted = _STASHES.get(node.attr("stash_type", 1))
    if wanted is None:
        node.refuse(f"stash_type={node.attr('stash_type')}")
    return x if x.dtype.size >= wanted.size else _cast(x, wanted)


def _moments(x: Tensor, axes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, deviation from it and variance, with the reduced axes kept."""
    mean = make("Mean", x, axes, keep_dims=True)
    deviation = x - mean
    return mean, deviation, make("Mean", make("Square", deviation), axes, keep_dims=True)


def _by_channel(vector: Tensor, rank: int) -> Tensor:
    """Return a vector along axis 1 in a shape that broadcasts to a tensor of that rank."""
    return vector if rank == 2 else make("Reshape", vector, [-1] + [1] * (rank - 2))


@translation("InstanceNormalization")
def instance_normalization(node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    rank = rank_of(node, x)
    _, deviation, variance = _moments(x, _axes(range(2, rank)))
    normal = deviation * make("Rsqrt", variance + node.attr("epsilon", 1e-5))
    return normal * _by_channel(scale, rank) + _by_channel(bias, rank)


@translation("GroupNormalization")
def group_normalization_by_group(node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Translate GroupNormalization up to opset 20, with one scale and one bias per group."""
    rank = rank_of(node, x)
    shape = [1, -1] + [1] * (rank - 1)
    normal = _group_normal(node, x, x)
    return make("Reshape", normal * make("Reshape", scale, shape) + make("Reshape", bias, shape), make("Shape", x))


@translation("GroupNormalization", since=21)
def group_normalization(node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Translate GroupNormalization with one scale and one bias per channel."""
    rank = rank_of(node, x)
    normal = _cast(make("Reshape", _group_normal(node, x, _stashed(node, x)), make("Shape", x)), x.dtype)
    return normal * _by_channel(scale, rank) + _by_channel(bias, rank)


def _group_normal(node: OnnxNode, like: Tensor, x: Tensor) -> Tensor:
    """Return the normalized tensor, of shape [batch, groups, channels of a group, …]."""
    rank, groups = rank_of(node, x), node.attr("num_groups")
    channels = size_of(like, 1)
    each = channels // groups
    sizes = [size_of(like, 0), groups, each, *(size_of(like, axis) for axis in range(2, rank))]
    grouped = make("Reshape", x, shape_of(sizes))
    _, deviation, variance = _moments(grouped, _axes(range(2, rank + 1)))
    return deviation * make("Rsqrt", variance + node.attr("epsilon", 1e-5))


@translation("LayerNormalization")
def layer_normalization(node: OnnxNode, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    wide, axes = _stashed(node, x), _axes_from(node, x)
    normal, mean, inverse = _layer_normal(wide, axes, node.attr("epsilon", 1e-5))
    # Cast before scaling: the standard scales in the dtype of the input.
    y = _cast(normal, x.dtype) * scale
    stash = _STASHES[node.attr("stash_type", 1)]
    return y if bias is None else y + bias, _cast(mean, stash), _cast(inverse, stash)


def _layer_normal(x: Tensor, axes: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize, and return also the mean and the inverse of the standard deviation."""
    mean, deviation, variance = _moments(x, axes)
    # x̂ = (x - mean) / √(variance + ε).
    inverse = make("Rsqrt", variance + epsilon)
    return deviation * inverse, mean, inverse


@translation("RMSNormalization")
def rms_normalization(node: OnnxNode, x: Tensor, scale: Tensor) -> Tensor:
    return simplified_layer_normalization(node, x, scale)[0]


# onnxruntime's name from before RMSNormalization was in the standard. Its domain is the standard's.
@translation("SimplifiedLayerNormalization", attributes=("axis", "epsilon", "stash_type"))
def simplified_layer_normalization(node: OnnxNode, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    wide, axes = _stashed(node, x), _axes_from(node, x)
    normal, inverse = _rms_normal(wide, axes, node.attr("epsilon", 1e-5))
    return _cast(_cast(normal, x.dtype) * scale, scale.dtype), inverse


def _rms_normal(x: Tensor, axes: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Divide by the root mean square, and return also its inverse."""
    # x̂ = x / √(mean(x²) + ε).
    inverse = make("Rsqrt", make("Mean", make("Square", x), axes, keep_dims=True) + epsilon)
    return x * inverse, inverse


def normal_of_rows(x: Tensor, scale: Tensor, bias: Tensor | None, epsilon: float, centered: bool = True) -> Tensor:
    """Normalize along the last axis, in at least float32, then scale and shift.

    Args:
        x: The tensor.
        scale: Factor of the normalized values.
        bias: Added after scaling; None for no shift.
        epsilon: Added to the variance or the mean square.
        centered: Whether to subtract the mean; otherwise the values are only divided by the root mean square.
    """
    wide, axes = x if x.dtype.size >= dtypes.float32.size else _cast(x, dtypes.float32), _axes([-1])
    normal = _layer_normal(wide, axes, epsilon)[0] if centered else _rms_normal(wide, axes, epsilon)[0]
    y = normal * _cast(scale, wide.dtype)
    return _cast(y if bias is None else y + _cast(bias, wide.dtype), x.dtype)


@translation("LpNormalization")
def lp_normalization(node: OnnxNode, x: Tensor) -> Tensor:
    """Divide by the norm. If the norm is 0, the result is 0."""
    axis, p = node.attr("axis", -1), node.attr("p", 2)
    if p == 1:
        norm = make("Sum", make("Abs", x), axis, keep_dims=True)
    elif p == 2:
        norm = make("EuclideanNorm", x, axis, keep_dims=True)
    else:
        return node.refuse(f"p={p}")
    return make("DivNoNan", x, norm)


@translation("MeanVarianceNormalization")
def mean_variance_normalization(node: OnnxNode, x: Tensor) -> Tensor:
    _, deviation, variance = _moments(x, _axes(node.attr("axes", [0, 2, 3])))
    # The standard adds 1e-9 to the deviation, not to the variance.
    return deviation / (make("Sqrt", variance) + 1e-9)


# ── softmax ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def along_axis(op: str, node: OnnxNode, x: Tensor, axis: int) -> Tensor:
    """Apply an op of the last axis along `axis` instead."""
    axis = axis_of(node, x, axis, from_end=True)
    if axis == -1 or (x.dims is not None and axis == len(x.dims) - 1):
        return make(op, x)
    if x.dims is None:
        # The permutation that swaps the two axes is its own inverse; here it is computed in the step.
        every, last = make("Range", 0, make("Rank", x), 1), make("Rank", x) - 1
        place = constant(axis) if axis >= 0 else last + (axis + 1)
        order = make("SelectV2", make("Equal", every, place), last, every)
        order = make("SelectV2", make("Equal", every, last), place, order)
        return make("Transpose", make(op, make("Transpose", x, order)), order)
    rank = rank_of(node, x)
    swapped = list(range(rank))
    swapped[axis], swapped[-1] = swapped[-1], swapped[axis]
    order = _axes(swapped)
    return make("Transpose", make(op, make("Transpose", x, order)), order)


def of_rows(op: str, node: OnnxNode, x: Tensor, axis: int) -> Tensor:
    """Apply an op to `x` as a matrix whose columns begin at `axis`."""
    if x.dims is not None and axis_of(node, x, axis) == len(x.dims) - 1:
        return make(op, x)
    return make("Reshape", make(op, flat_from(x, axis)), make("Shape", x))


for _op in ("Softmax", "LogSoftmax"):
    # `node.op` and not `_op`: the functions run after the loop, when `_op` is its last value.
    translation(_op)(lambda node, x: of_rows(node.op, node, x, node.attr("axis", 1)))
    translation(_op, since=13)(lambda node, x: along_axis(node.op, node, x, node.attr("axis", -1)))


# ── classification losses, of log-probabilities and of scores ─────────────────────────────────────────────────────────


@translation("NegativeLogLikelihoodLoss")
def negative_log_likelihood(node: OnnxNode, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    return _likelihood_loss(node, x, target, weight)


@translation("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    node: OnnxNode, scores: Tensor, labels: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    log_prob = along_axis("LogSoftmax", node, scores, 1)
    return _likelihood_loss(node, log_prob, labels, weights), log_prob


def _likelihood_loss(node: OnnxNode, x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """Return minus the target's entry along axis 1 times the weight of its class, or 0 for an ignored target.

    The node's `reduction` applies. A mean is weighted by the weights of the classes and skips ignored targets.
    """
    reduction, ignored = node.attr("reduction", "mean"), node.attr("ignore_index")
    hits = one_hot(target, size_of(x, 1), True, False, axis=1)
    if ignored is not None:
        hits = make("LogicalAnd", hits, make("ExpandDims", make("NotEqual", target, ignored), 1))
    share = make("Cast", hits, DstT=x.dtype)
    if weight is not None:
        share = share * make("Reshape", weight, [1, -1] + [1] * (rank_of(node, x) - 2))
    # Entries of other classes may be infinite, and infinity times a share of 0 would be NaN.
    loss = make("Neg", reduce_sum(make("SelectV2", hits, x, 0) * share, 1))
    if reduction == "none":
        return loss
    if reduction == "sum":
        return reduce_sum(loss)
    if weight is None and ignored is None:
        return reduce_mean(loss)
    return reduce_sum(loss) / reduce_sum(share)

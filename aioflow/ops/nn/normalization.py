"""Normalization: fused batch norm, moments, L2 and local response normalization.

Batch norm has ops for its gradient, and these have gradients as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aioflow.arguments import whole_numbers
from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, is_compatible, num_elements
from aioflow.graph.traits import reading, reduction
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.core import cast_like, stop_gradient, unchanged
from aioflow.ops.nn.activations import renamed, unless_zero
from aioflow.ops.nn.geometry import ImageFormat, VolumeFormat
from aioflow.ops.scoping import name_scope

# cuDNN rejects smaller values, and a graph must run on every device.
_MIN_EPSILON = 1.001e-5


def _channels(ctx: ShapeContext, dims: Dims) -> tuple[int, tuple[int | None, ...]]:
    data_format = ctx.attrs["data_format"]
    rank = len(data_format)
    if dims is None:
        dims = (None,) * rank
    if len(dims) != rank:
        raise InvalidArgumentError(
            f"the input has the wrong rank for {data_format}", expected=f"rank {rank}", actual=format_dims(dims)
        )
    return data_format.index("C"), dims


def _merge_channels(ctx: ShapeContext, names: list[str], known: int | None) -> int | None:
    for name in names:
        dims = ctx.require_rank(name, 1)
        if not is_compatible(dims, (known,)):
            raise InvalidArgumentError(
                f"{name} needs one element per channel", expected=format_dims((known,)), actual=format_dims(dims)
            )
        known = dims[0] if dims is not None and known is None else known
    return known


def _batch_norm_shape(ctx: ShapeContext) -> list[Dims]:
    axis, dims = _channels(ctx, ctx.dims("x"))
    fresh = ctx.attrs["is_training"] and ctx.attrs["exponential_avg_factor"] == 1.0
    # In training with factor 1 the running moments are not read, and TensorFlow passes empty ones.
    names = ["scale", "offset"] if fresh else ["scale", "offset", "mean", "variance"]
    channels = _merge_channels(ctx, names, dims[axis])
    shapes: list[Dims] = [(*dims[:axis], channels, *dims[axis + 1 :]), *[(channels,)] * 4]
    # The third reserve space of V3 depends on the device, so its shape is unknown.
    return [*shapes, None] if ctx.op_def.name.endswith("V3") else shapes


def _batch_norm_grad_shape(ctx: ShapeContext) -> list[Dims]:
    axis, dims = _channels(ctx, ctx.dims("y_backprop"))
    channels = _merge_channels(ctx, ["scale", "reserve_space_1", "reserve_space_2"], dims[axis])
    # The last two outputs are unused; TensorFlow leaves them empty.
    return [(*dims[:axis], channels, *dims[axis + 1 :]), (channels,), (channels,), (0,), (0,)]


_EPSILON = "epsilon: float = 9.999999747378752e-05"
_FACTOR = "exponential_avg_factor: float = 1.0"
_TRAINING = "is_training: bool = True"
_FORMAT4 = "data_format: {'NHWC', 'NCHW'} = 'NHWC'"
_FORMAT5 = "data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'"

define_op(
    "FusedBatchNorm",
    "x: T, scale: T, offset: T, mean: T, variance: T",
    "y: T, batch_mean: T, batch_variance: T, reserve_space_1: T, reserve_space_2: T",
    ["T: {float32}", _EPSILON, _FACTOR, _FORMAT4, _TRAINING],
    shape=_batch_norm_shape,
    rows=rows.batch_norm,
    traits=reduction(cost=reading(4), keeps_row_major=True),
)
define_op(
    "FusedBatchNormV2",
    "x: T, scale: U, offset: U, mean: U, variance: U",
    "y: T, batch_mean: U, batch_variance: U, reserve_space_1: U, reserve_space_2: U",
    ["T: {float16, bfloat16, float32}", "U: {float32}", _EPSILON, _FACTOR, _FORMAT4, _TRAINING],
    shape=_batch_norm_shape,
    rows=rows.batch_norm,
    traits=reduction(cost=reading(4), keeps_row_major=True),
)
define_op(
    "FusedBatchNormV3",
    "x: T, scale: U, offset: U, mean: U, variance: U",
    "y: T, batch_mean: U, batch_variance: U, reserve_space_1: U, reserve_space_2: U, reserve_space_3: U",
    ["T: {float16, bfloat16, float32}", "U: {bfloat16, float32}", _EPSILON, _FACTOR, _FORMAT5, _TRAINING],
    shape=_batch_norm_shape,
    rows=rows.batch_norm,
    traits=reduction(cost=reading(4), keeps_row_major=True),
)
define_op(
    "FusedBatchNormGrad",
    "y_backprop: T, x: T, scale: T, reserve_space_1: T, reserve_space_2: T",
    "x_backprop: T, scale_backprop: T, offset_backprop: T, reserve_space_3: T, reserve_space_4: T",
    ["T: {float32}", _EPSILON, _FORMAT4, _TRAINING],
    shape=_batch_norm_grad_shape,
    traits=reduction(cost=reading(6)),
)
define_op(
    "FusedBatchNormGradV2",
    "y_backprop: T, x: T, scale: float32, reserve_space_1: U, reserve_space_2: U",
    "x_backprop: T, scale_backprop: U, offset_backprop: U, reserve_space_3: U, reserve_space_4: U",
    ["T: {float16, bfloat16, float32}", "U: {float32}", _EPSILON, _FORMAT4, _TRAINING],
    shape=_batch_norm_grad_shape,
    traits=reduction(cost=reading(6)),
)
define_op(
    "FusedBatchNormGradV3",
    "y_backprop: T, x: T, scale: float32, reserve_space_1: U, reserve_space_2: U, reserve_space_3: U",
    "x_backprop: T, scale_backprop: U, offset_backprop: U, reserve_space_4: U, reserve_space_5: U",
    ["T: {float16, bfloat16, float32}", "U: {float32}", _EPSILON, _FORMAT5, _TRAINING],
    shape=_batch_norm_grad_shape,
    traits=reduction(cost=reading(6)),
)

_GRAD_OF = {
    "FusedBatchNorm": "FusedBatchNormGrad",
    "FusedBatchNormV2": "FusedBatchNormGradV2",
    "FusedBatchNormV3": "FusedBatchNormGradV3",
}


@gradient(*_GRAD_OF)
def _batch_norm_gradient(op: Operation, grad_y: Tensor | None, *rest: Tensor | None) -> list[Tensor | None]:
    """Return the gradients of x, scale and offset."""
    # Only `y` carries a gradient. The other outputs serve the running averages and the gradient op.
    if grad_y is None:
        return [None] * 5
    training = op.get_attr("is_training")
    # In training the moments of the batch were saved. Otherwise the op's own inputs are the moments that it used.
    saved = op.outputs[3:] if training else [*op.inputs[3:5], *op.outputs[5:]]
    how = {k: op.attrs[k] for k in ("epsilon", "data_format", "is_training")}
    made = make_list(_GRAD_OF[op.type], grad_y, op.inputs[0], op.inputs[1], *saved, **how)
    return [*made[:3], None, None]


class _Centred:
    """The terms of the gradient of a batch norm's gradient, as float32 tensors."""

    def __init__(self, op: Operation) -> None:
        x, mean, variance = op.inputs[1], op.inputs[3], op.inputs[4]
        data_format = op.attrs["data_format"]
        rank, axis = len(data_format), data_format.index("C")
        self._axes = [i for i in range(rank) if i != axis]
        self._column = [-1 if i == axis else 1 for i in range(rank)]
        self.training: bool = op.get_attr("is_training")
        self.inverse = self.spread(make("Rsqrt", variance + op.get_attr("epsilon")))
        self.unit = (_float32(x) - self.spread(mean)) * self.inverse

    def spread(self, per_channel: Tensor) -> Tensor:
        """Reshape one number per channel so that it broadcasts over images."""
        return make("Reshape", per_channel, self._column)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum for each channel."""
        return make("Sum", tensor, self._axes)

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean for each channel, in a shape that broadcasts."""
        return make("Mean", tensor, self._axes, keep_dims=True)

    def project(self, tensor: Tensor) -> Tensor:
        """Remove the components along 1 and along `unit`.

        This is the derivative of the normalization, up to the factor `inverse`.
        """
        # With fixed moments, normalization is linear, and its derivative removes nothing.
        if not self.training:
            return tensor
        return tensor - self.mean(tensor) - self.unit * self.mean(tensor * self.unit)


@gradient("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def _batch_norm_grad_gradient(op: Operation, *grads: Tensor | None) -> list[Tensor | None]:
    # With unit = (x - mean) * r and P = project, the op is
    #   x_backprop = scale * r * P(dy),  scale_backprop = sum(dy * unit),  offset_backprop = sum(dy).
    # P is its own adjoint; differentiating x_backprop by x goes through unit and, in training, through r.
    dy, x, scale = op.inputs[:3]
    grads = tuple(map(unless_zero, grads))
    terms = _Centred(op)
    gradient_y, factor, r, unit = _float32(dy), terms.spread(scale), terms.inverse, terms.unit
    by_dy: int | Tensor = 0
    by_unit: int | Tensor = 0
    by_scale = by_x = None
    if grads[0] is not None:
        u = _float32(grads[0])
        by_dy = factor * r * terms.project(u)
        by_scale = terms.total(u * r * terms.project(gradient_y))
        if terms.training:
            a, b = terms.mean(u * unit), terms.mean(gradient_y * unit)
            # ∂ Σ u · P(dy) / ∂unit, from the last term of P: -(u mean(dy unit) + dy mean(u unit)).
            by_unit = -factor * r * (u * b + gradient_y * a)
            covariance = terms.mean(u * gradient_y) - terms.mean(u) * terms.mean(gradient_y) - a * b
            by_x = -factor * r * r * covariance * unit
    if grads[1] is not None:
        p = terms.spread(grads[1])
        by_dy, by_unit = by_dy + p * unit, by_unit + p * gradient_y
    if grads[2] is not None:
        # The zeros spread one number per channel over the whole image.
        by_dy = by_dy + terms.spread(grads[2]) + make("ZerosLike", gradient_y)
    if isinstance(by_unit, Tensor):
        # unit depends on x as the normalization does: by r P.
        through = r * terms.project(by_unit)
        by_x = through if by_x is None else by_x + through
    made = [by_dy if isinstance(by_dy, Tensor) else None, by_x]
    return [
        *(g if g is None else cast_like(g, t) for g, t in zip(made, (dy, x), strict=True)),
        by_scale,
        *[None] * (len(op.inputs) - 3),
    ]


def _float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype.name == "float32" else make("Cast", tensor, DstT="float32")


def fused_batch_norm(
    x: TensorLike,
    scale: TensorLike,
    offset: TensorLike,
    mean: TensorLike | None = None,
    variance: TensorLike | None = None,
    epsilon: float = 0.001,
    data_format: ImageFormat | VolumeFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return batch-normalized images, with their moments (arXiv:1502.03167).

    Args:
        x: [batch, rows, columns, channels], or [batch, channels, rows, columns] for NCHW.
        scale: [channels].
        offset: [channels].
        mean: [channels] running mean. It is used if not training, and is averaged into if `exponential_avg_factor` is
            not 1.
        variance: [channels] running variance, used like `mean`.
        epsilon: Number added to the variance. Values below 1.001e-5 are raised to it.
        data_format: "NHWC" or "NCHW"; for volumes "NDHWC" or "NCDHW".
        is_training: Whether to normalize by the moments of the batch instead of the running ones.
        name: Name of the node.
        exponential_avg_factor: Weight of the batch in the returned moments.

    Returns:
        The normalized images, and the new running mean and variance (with Bessel's correction).

    Raises:
        InvalidArgumentError: the shapes do not fit, or running moments are needed and not given.
    """
    if (not is_training or exponential_avg_factor != 1.0) and (mean is None or variance is None):
        raise InvalidArgumentError(
            "both mean and variance must be given when is_training is False or exponential_avg_factor is not 1",
            expected="mean and variance",
            actual="None",
        )
    made = make_list(
        "FusedBatchNormV3",
        convert_to_tensor(x),
        convert_to_tensor(scale, "float32"),
        convert_to_tensor(offset, "float32"),
        # An empty tensor stands for moments that are not read.
        constant([], "float32", shape=(0,)) if mean is None else mean,
        constant([], "float32", shape=(0,)) if variance is None else variance,
        epsilon=max(epsilon, _MIN_EPSILON),
        exponential_avg_factor=exponential_avg_factor,
        data_format=data_format,
        is_training=is_training,
        name=name,
    )
    return made[0], made[1], made[2]


# ── moments and their uses ────────────────────────────────────────────────────────────────────────────────────────────


def _kept(keep_dims: bool | None, keepdims: bool | None) -> bool:
    return bool(renamed(keepdims, keep_dims, ("keepdims", "keep_dims")))


def moments(
    x: TensorLike,
    axes: int | Sequence[int],
    shift: TensorLike | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of x over `axes` (ints).

    float16 is summed in float32. `shift` is ignored.
    """
    tensor = convert_to_tensor(x)
    with name_scope(name, "moments", [tensor]):
        y = _float32(tensor) if tensor.dtype.name == "float16" else tensor
        mean = make("Mean", y, axes, keep_dims=True, name="mean")
        # The mean minimizes the sum of squares, so no gradient flows through it.
        squares = make("SquaredDifference", y, stop_gradient(mean))
        variance = make("Mean", squares, axes, keep_dims=True, name="variance")
        if not _kept(keep_dims, keepdims):
            mean, variance = _squeezed(mean, axes), _squeezed(variance, axes)
        return cast_like(mean, tensor), cast_like(variance, tensor)


def _squeezed(tensor: Tensor, axes: int | Sequence[int]) -> Tensor:
    positions = _positions(axes)
    if not positions:
        return tensor
    return make("Squeeze", tensor, squeeze_dims=positions)


def _positions(axes: object) -> list[int]:
    listed = list(axes.reshape(-1)) if isinstance(axes, np.ndarray) else axes
    return whole_numbers(listed if isinstance(listed, Sequence) else [listed], "axes")


def sufficient_statistics(
    x: TensorLike,
    axes: int | Sequence[int],
    shift: TensorLike | None = None,
    keep_dims: bool | None = None,
    name: str | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return (count, sum, sum of squares, shift) of x - shift over `axes`.

    They are the inputs of `normalize_moments`.
    """
    keep = _kept(keep_dims, keepdims)
    tensor = convert_to_tensor(x)
    with name_scope(name, "sufficient_statistics", [tensor, shift]):
        positions = _positions(axes)
        count = _count(tensor, positions)
        offset = None if shift is None else convert_to_tensor(shift, tensor.dtype)
        moved = tensor if offset is None else tensor - offset
        mean_ss = make("Sum", moved, positions, keep_dims=keep, name="mean_ss")
        var_ss = make("Sum", moved * moved, positions, keep_dims=keep, name="var_ss")
        return count, mean_ss, var_ss, offset


def _count(tensor: Tensor, axes: list[int]) -> Tensor:
    sizes = None if tensor.dims is None else tuple(tensor.dims[a] for a in axes)
    known = num_elements(sizes)
    if known is not None:
        return constant(known, tensor.dtype)
    chosen = make("GatherV2", make("Shape", tensor), axes, 0)
    return make("Prod", make("Cast", chosen, DstT=tensor.dtype), [0])


def normalize_moments(
    counts: TensorLike, mean_ss: TensorLike, variance_ss: TensorLike, shift: TensorLike | None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean and variance from `sufficient_statistics`."""
    with name_scope(name, "normalize", [counts, mean_ss, variance_ss]):
        share = make("Reciprocal", counts, name="divisor")
        moved = convert_to_tensor(mean_ss) * share
        mean = moved if shift is None else moved + shift
        # Var x = E[(x - shift)²] - (E[x - shift])².
        variance = convert_to_tensor(variance_ss) * share - moved * moved
        return mean, variance


def weighted_moments(
    x: TensorLike,
    axes: int | Sequence[int],
    frequency_weights: TensorLike,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of x over `axes`, weighted by `frequency_weights`.

    The weights broadcast to x.
    """
    tensor = convert_to_tensor(x)
    with name_scope(name, "weighted_moments", [tensor, frequency_weights]):
        keep = _kept(keep_dims, keepdims)
        y = _float32(tensor) if tensor.dtype.name == "float16" else tensor
        weights = cast_like(convert_to_tensor(frequency_weights, dtype_or_none(frequency_weights, y)), y)
        # Broadcast the weights, so that their sum counts each element of x.
        weights = weights + make("ZerosLike", y)
        total = make("Sum", weights, axes, keep_dims=True)
        mean = make("Sum", weights * y, axes, keep_dims=True) / total
        squares = make("SquaredDifference", y, stop_gradient(mean))
        variance = make("Sum", weights * squares, axes, keep_dims=True) / total
        if not keep:
            mean, variance = _squeezed(mean, axes), _squeezed(variance, axes)
        return cast_like(mean, tensor), cast_like(variance, tensor)


def dtype_or_none(value: object, like: Tensor) -> DType | None:
    """Return the dtype to convert a Python value to; None for a value that has a dtype."""
    return None if hasattr(value, "dtype") else like.dtype


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike | None,
    scale: TensorLike | None,
    variance_epsilon: TensorLike,
    name: str | None = None,
) -> Tensor:
    """Return (x - mean) / sqrt(variance + variance_epsilon) * scale + offset, with broadcasting.

    `offset` and `scale` may be None.
    """
    with name_scope(name, "batchnorm", [x, mean, variance, scale, offset]):
        tensor = convert_to_tensor(x)
        # x · (scale r) + (offset - mean scale r): two passes over x instead of four.
        inverse = make("Rsqrt", convert_to_tensor(variance) + variance_epsilon)
        if scale is not None:
            inverse = inverse * scale
        centre = convert_to_tensor(mean)
        shift = -centre * inverse if offset is None else offset - centre * inverse
        return tensor * cast_like(inverse, tensor) + cast_like(shift, tensor)


def batch_norm_with_global_normalization(
    t: TensorLike | None = None,
    m: TensorLike | None = None,
    v: TensorLike | None = None,
    beta: TensorLike | None = None,
    gamma: TensorLike | None = None,
    variance_epsilon: TensorLike | None = None,
    scale_after_normalization: bool | None = None,
    name: str | None = None,
    input: TensorLike | None = None,
    mean: TensorLike | None = None,
    variance: TensorLike | None = None,
) -> Tensor:
    """Return `batch_normalization`; an older form, which ignores `gamma` unless `scale_after_normalization`.

    `input`, `mean` and `variance` are the newer names of `t`, `m` and `v`.
    """
    x = renamed(input, t, ("input", "t"))
    centre, spread = renamed(mean, m, ("mean", "m")), renamed(variance, v, ("variance", "v"))
    if x is None or centre is None or spread is None or variance_epsilon is None:
        raise InvalidArgumentError(
            "an argument is missing", expected="input, mean, variance and variance_epsilon", actual="None for one"
        )
    scale = gamma if scale_after_normalization else None
    return batch_normalization(x, centre, spread, beta, scale, variance_epsilon, name)


def l2_normalize(
    x: TensorLike,
    axis: TensorLike | None = None,
    epsilon: float = 1e-12,
    name: str | None = None,
    dim: TensorLike | None = None,
) -> Tensor:
    """Return x / sqrt(max(sum(x * x), epsilon)) along `axis`, or over all axes without it.

    `dim` is the older name of `axis`.
    """
    with name_scope(name, "l2_normalize", [x]) as scope:
        tensor = convert_to_tensor(x)
        along = renamed(axis, dim, ("axis", "dim"))
        if along is None:
            if tensor.dims is None:
                raise InvalidArgumentError(
                    "without axis the rank must be known", expected="a known rank", actual="unknown"
                )
            along = list(range(len(tensor.dims)))
        total = make("Sum", make("Square", tensor), along, keep_dims=True)
        # The maximum under the root keeps the division finite for x = 0.
        return make("Mul", tensor, make("Rsqrt", make("Maximum", total, epsilon)), name=scope)


# ── local response normalization ──────────────────────────────────────────────────────────────────────────────────────

_LRN = [
    "depth_radius: int = 5",
    "bias: float = 1.0",
    "alpha: float = 1.0",
    "beta: float = 0.5",
    "T: {float16, bfloat16, float32} = float32",
]


def _lrn_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.require_rank("input", 4)
    return (None,) * 4 if dims is None else dims


def _lrn_grad_shape(ctx: ShapeContext) -> Dims:
    for name in ("input_grads", "input_image", "output_image"):
        ctx.require_rank(name, 4)
    return unchanged(ctx)


define_op(
    "LRN", "input: T", "output: T", _LRN, shape=_lrn_shape, rows=rows.first_axis, traits=reduction(cost=reading(4))
)
define_op(
    "LRNGrad",
    "input_grads: T, input_image: T, output_image: T",
    "output: T",
    _LRN,
    shape=_lrn_grad_shape,
    traits=reduction(cost=reading(6)),
)


@gradient("LRN")
def _lrn_gradient(op: Operation, grad: Tensor) -> Tensor:
    how = {k: op.attrs[k] for k in ("depth_radius", "bias", "alpha", "beta")}
    return make("LRNGrad", grad, op.inputs[0], op.outputs[0], **how)


def local_response_normalization(
    input: TensorLike,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Return input / (bias + alpha * s) ** beta, where s sums the squares of the channels at most `depth_radius` away.

    `input` is [batch, rows, columns, channels].
    """
    return make("LRN", input, depth_radius=depth_radius, bias=bias, alpha=alpha, beta=beta, name=name)


lrn = local_response_normalization

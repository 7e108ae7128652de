"""Max and average pooling of images, with their gradients as ops of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

from aioflow.graph.costs import Cost, Operand
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Half, opaque
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, make, make_list
from aioflow.ops.nn.activations import renamed
from aioflow.ops.nn.geometry import ImageFormat, PaddingLike, PaddingScheme, Window, pool_dims
from aioflow.ops.nn.windows import (
    POOLING,
    Ints,
    differentiate_average,
    differentiate_maximum,
    given_shape,
    max_pool_grad_grad_shape,
    max_pool_grad_shape,
    padding_attrs,
    per_axis,
    pool_shape,
)

_WINDOW = ["ksize: list(int) >= 4", "strides: list(int) >= 4"]
_EXPLICIT = ["padding: {'SAME', 'VALID', 'EXPLICIT'}", "explicit_paddings: list(int) = []"]
_IMPLICIT = ["padding: {'SAME', 'VALID'}"]
_FORMAT = ["data_format: {'NHWC', 'NCHW'} = 'NHWC'"]


define_op(
    "MaxPool",
    "input: T",
    "output: T",
    [
        "T: {floats, int32, int64, uint8, int16, int8, uint16, qint8} = float32",
        *_WINDOW,
        *_EXPLICIT,
        "data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'",
    ],
    shape=pool_shape("input"),
    rows=rows.first_axis,
    traits=opaque(half=Half.FOLLOWS, cost=POOLING, row_major=True),
)
define_op(
    "MaxPoolGrad",
    "orig_input: T, orig_output: T, grad: T",
    "output: T",
    [*_WINDOW, *_EXPLICIT, *_FORMAT, "T: {reals} = float32"],
    shape=max_pool_grad_shape,
    traits=opaque(half=Half.FOLLOWS, cost=POOLING),
)
define_op(
    "MaxPoolGradGrad",
    "orig_input: T, orig_output: T, grad: T",
    "output: T",
    [*_WINDOW, *_IMPLICIT, *_FORMAT, "T: {reals}"],
    shape=max_pool_grad_grad_shape,
    traits=opaque(half=Half.FOLLOWS, cost=POOLING),
)
define_op(
    "AvgPool",
    "value: T",
    "output: T",
    [*_WINDOW, *_IMPLICIT, *_FORMAT, "T: {floats}"],
    shape=pool_shape("value"),
    rows=rows.first_axis,
    traits=opaque(half=Half.FOLLOWS, cost=POOLING, row_major=True),
)
define_op(
    "AvgPoolGrad",
    "orig_input_shape: int32, grad: T",
    "output: T",
    [*_WINDOW, *_IMPLICIT, *_FORMAT, "T: {floats}"],
    shape=given_shape("orig_input_shape", "grad"),
    traits=opaque(half=Half.FOLLOWS, cost=POOLING),
)


differentiate_maximum("MaxPool", "MaxPoolGrad", "MaxPoolGradGrad")
differentiate_average("AvgPool", "AvgPoolGrad")


def max_pool(
    value: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingLike,
    data_format: ImageFormat | None = "NHWC",
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """Return the maximum of each window.

    Args:
        value: [batch, rows, columns, channels], or [batch, channels, rows, columns] for NCHW.
        ksize: Size of a window: one value, (rows, columns), or one per axis.
        strides: Distance between windows, in the forms of `ksize`.
        padding: "SAME", "VALID", or [[before, after]] per axis. Padding is ignored by the maximum.
        data_format: "NHWC" (the default) or "NCHW".
        name: Name of the node.
        input: The newer name of `value`.

    Raises:
        InvalidArgumentError: a rank, size, stride or padding does not fit, or the image is too small.
    """
    source = renamed(input, value, ("input", "value"))
    return make("MaxPool", source, name=name or "MaxPool", **_attrs(ksize, strides, padding, data_format))


def max_pool2d(
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingLike,
    data_format: ImageFormat = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Return `max_pool` of `input`. The newer name."""
    return max_pool(input, ksize, strides, padding, data_format, name)


def avg_pool(
    value: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: ImageFormat | None = "NHWC",
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """Return the mean of each window, not counting padding. Arguments and errors as for `max_pool`."""
    source = renamed(input, value, ("input", "value"))
    return make("AvgPool", source, name=name or "AvgPool", **_attrs(ksize, strides, padding, data_format))


def avg_pool2d(
    value: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: ImageFormat | None = "NHWC",
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """Return `avg_pool` of `value`. The newer name."""
    return avg_pool(value, ksize, strides, padding, data_format, name, input)


def _attrs(ksize: Ints, strides: Ints, padding: PaddingLike, data_format: ImageFormat | None) -> Attrs:
    layout = data_format or "NHWC"
    return {
        "ksize": per_axis(ksize, 2, layout, "ksize"),
        "strides": per_axis(strides, 2, layout, "strides"),
        "data_format": layout,
        **padding_attrs(padding),
    }


# ── max pooling that also returns the position of each maximum ────────────────────────────────────────────────────────


_HOW: Final = [
    "ksize: list(int) >= 4",
    "strides: list(int) >= 4",
    "padding: {'SAME', 'VALID'}",
    "include_batch_in_index: bool = False",
]


def _windows(attrs: Attrs, inputs: Sequence[Operand], _: Sequence[Operand]) -> float:
    """Return the bytes read: four passes over each window."""
    return 4.0 * inputs[0].size * math.prod(attrs["ksize"]) / math.prod(attrs["strides"]) if inputs[0].size else 0.0


def _shape(ctx: ShapeContext) -> list[Dims]:
    pooled = pool_dims(Window.of(ctx.attrs), ctx.attrs["ksize"], ctx.dims("input"))
    return [pooled, pooled]


def _grad_shape(ctx: ShapeContext) -> Dims:
    return ctx.require_rank("input", 4) or (None,) * 4


define_op(
    "MaxPoolWithArgmax",
    "input: T",
    "output: T, argmax: Targmax",
    [*_HOW, "Targmax: {index} = int64", "T: {reals}"],
    shape=_shape,
    traits=opaque(cost=Cost("elementwise", _windows)),
)
define_op(
    "MaxPoolGradWithArgmax",
    "input: T, grad: T, argmax: Targmax",
    "output: T",
    [*_HOW, "Targmax: {index}", "T: {reals}"],
    shape=_grad_shape,
    traits=opaque(cost=Cost("elementwise", _windows)),
)


@gradient("MaxPoolWithArgmax")
def _gradient(op: Operation, grad: Tensor, _: object) -> Tensor:
    how = {name: op.attrs[name] for name in ("ksize", "strides", "padding", "include_batch_in_index")}
    return make("MaxPoolGradWithArgmax", op.inputs[0], grad, op.outputs[1], **how)


def max_pool_with_argmax(
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: Literal["NHWC"] = "NHWC",
    Targmax: DTypeLike | None = None,
    name: str | None = None,
    output_dtype: DTypeLike | None = None,
    include_batch_in_index: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the maximum of each window, and its position.

    Args:
        input: [batch, rows, columns, channels].
        ksize: Size of a window: one value, (rows, columns), or one per axis.
        strides: Distance between windows, in the same forms.
        padding: "SAME" or "VALID".
        data_format: Always NHWC.
        Targmax: Old name of `output_dtype`.
        name: Name of the node.
        output_dtype: Dtype of the positions: int64 (the default) or int32.
        include_batch_in_index: Whether positions count from the first element of the batch instead of the image.

    Returns:
        The maxima, and the position of each: (row * columns + column) * channels + channel.

    Raises:
        InvalidArgumentError: a rank, size, stride or padding does not fit, or the image is too small.
    """
    kind = renamed(output_dtype, Targmax, ("output_dtype", "Targmax"))
    values, places = make_list(
        "MaxPoolWithArgmax",
        input,
        ksize=per_axis(ksize, 2, data_format, "ksize"),
        strides=per_axis(strides, 2, data_format, "strides"),
        padding=padding,
        include_batch_in_index=include_batch_in_index,
        Targmax=as_dtype("int64" if kind is None else kind),
        name=name,
    )
    return values, places

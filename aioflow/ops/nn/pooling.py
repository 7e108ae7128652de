"""Max and average pooling of images, with their gradients as ops of their own."""

from __future__ import annotations

from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Half, opaque
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, make
from aioflow.ops.nn.activations import renamed
from aioflow.ops.nn.geometry import ImageFormat, PaddingLike, PaddingScheme
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

"""Max and average pooling over images, with their gradients as ops of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.costs import Cost, Operand
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op, gradient
from aioflow.graph.shapes import Dims, format_dims, merge_dims
from aioflow.graph.traits import opaque
from aioflow.graph.windows import Window, pool_dims
from aioflow.ops.apply import TensorLike, make
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.nn.activations import renamed, zeros_like
from aioflow.ops.nn.convolution import Ints, Padding, four, padding_attrs

__all__ = ["avg_pool", "avg_pool2d", "max_pool", "max_pool2d"]

_WINDOW = ["ksize: list(int) >= 4", "strides: list(int) >= 4"]
_EXPLICIT = ["padding: {'SAME', 'VALID', 'EXPLICIT'}", "explicit_paddings: list(int) = []"]
_IMPLICIT = ["padding: {'SAME', 'VALID'}"]
_FORMAT = ["data_format: {'NHWC', 'NCHW'} = 'NHWC'"]


def _pool_shape(name: str) -> Any:
    def shape(ctx: ShapeContext) -> Dims:
        return pool_dims(Window.of(ctx.attrs), ctx.attrs["ksize"], ctx.dims(name))

    return shape


def _max_pool_grad_shape(ctx: ShapeContext) -> Dims:
    pooled = pool_dims(Window.of(ctx.attrs), ctx.attrs["ksize"], ctx.dims("orig_input"))
    merge_dims(merge_dims(pooled, ctx.dims("orig_output")), ctx.dims("grad"))
    return ctx.require_rank("orig_input", 4) or (None,) * 4


def _max_pool_grad_grad_shape(ctx: ShapeContext) -> Dims:
    image = merge_dims(ctx.dims("orig_input"), ctx.dims("grad"))
    return merge_dims(pool_dims(Window.of(ctx.attrs), ctx.attrs["ksize"], image), ctx.dims("orig_output"))


def _avg_pool_grad_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("orig_input_shape", 1)
    dims = ctx.partial_shape("orig_input_shape")
    if dims is not None and len(dims) != 4:
        raise InvalidArgumentError(
            "orig_input_shape must be the shape of a 4-D tensor", expected="4 sizes", actual=format_dims(dims)
        )
    return (None,) * 4 if dims is None else dims


def _windows(attrs: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Bytes read: a window for every element of the smaller side."""
    window = math.prod(attrs.get("ksize", (1,)))
    return float(min([o.size for o in [*inputs[:1], *outputs] if o.size] or [0]) * window)


_POOLING: Final = Cost("elementwise", _windows)

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
    shape=_pool_shape("input"),
    traits=opaque(cost=_POOLING, row_major=True),
)
define_op(
    "MaxPoolGrad",
    "orig_input: T, orig_output: T, grad: T",
    "output: T",
    [*_WINDOW, *_EXPLICIT, *_FORMAT, "T: {reals} = float32"],
    shape=_max_pool_grad_shape,
    traits=opaque(cost=_POOLING),
)
define_op(
    "MaxPoolGradGrad",
    "orig_input: T, orig_output: T, grad: T",
    "output: T",
    [*_WINDOW, *_IMPLICIT, *_FORMAT, "T: {reals}"],
    shape=_max_pool_grad_grad_shape,
    traits=opaque(cost=_POOLING),
)
define_op(
    "AvgPool",
    "value: T",
    "output: T",
    [*_WINDOW, *_IMPLICIT, *_FORMAT, "T: {floats}"],
    shape=_pool_shape("value"),
    traits=opaque(cost=_POOLING, row_major=True),
)
define_op(
    "AvgPoolGrad",
    "orig_input_shape: int32, grad: T",
    "output: T",
    [*_WINDOW, *_IMPLICIT, *_FORMAT, "T: {floats}"],
    shape=_avg_pool_grad_shape,
    traits=opaque(cost=_POOLING),
)


def _how(op: Operation, *without: str) -> dict[str, Any]:
    return {k: v for k, v in op.attrs.items() if k != "T" and k not in without and not k.startswith("_")}


@gradient("MaxPool")
def _max_pool_gradient(op: Operation, grad: Tensor) -> Tensor:
    return make("MaxPoolGrad", op.inputs[0], op.outputs[0], grad, **_how(op))


@gradient("MaxPoolGrad")
def _max_pool_grad_gradient(op: Operation, grad: Tensor) -> list[Tensor]:
    image, pooled, _ = op.inputs
    how = _how(op, "explicit_paddings")
    return [zeros_like(image), zeros_like(pooled), make("MaxPoolGradGrad", image, pooled, grad, **how)]


@gradient("MaxPoolGradGrad")
def _max_pool_grad_grad_gradient(op: Operation, grad: Tensor) -> list[Tensor]:
    image, pooled, _ = op.inputs
    return [zeros_like(image), zeros_like(pooled), make("MaxPoolGrad", image, pooled, grad, **_how(op))]


@gradient("AvgPool")
def _avg_pool_gradient(op: Operation, grad: Tensor) -> Tensor:
    return make("AvgPoolGrad", shape_of(op.inputs[0]), grad, **_how(op))


@gradient("AvgPoolGrad")
def _avg_pool_grad_gradient(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [None, make("AvgPool", grad, **_how(op))]


def max_pool(
    value: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: Padding,
    data_format: str | None = "NHWC",
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """The maximum of each window.

    Args:
        value: [batch, rows, columns, channels], or [batch, channels, rows, columns] for NCHW; also `input`.
        ksize, strides: Size of a window, and how far apart windows are: one value, (rows, columns), or one per axis.
        padding: "SAME", "VALID", or [[before, after]] per axis; padding takes no part in the maximum.

    Raises:
        InvalidArgumentError: a rank, size, stride or padding does not fit, or the image is too small.
    """
    source = renamed(input, value, ("input", "value"))
    return make("MaxPool", source, name=name or "MaxPool", **_attrs(ksize, strides, padding, data_format))


def max_pool2d(
    input: TensorLike, ksize: Ints, strides: Ints, padding: Padding, data_format: str = "NHWC", name: str | None = None
) -> Tensor:
    """`max_pool` under its newer name."""
    return max_pool(input, ksize, strides, padding, data_format, name)


def avg_pool(
    value: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: str,
    data_format: str | None = "NHWC",
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """The mean of each window, padding not counted. Arguments and errors as `max_pool`."""
    source = renamed(input, value, ("input", "value"))
    return make("AvgPool", source, name=name or "AvgPool", **_attrs(ksize, strides, padding, data_format))


def avg_pool2d(
    value: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: str,
    data_format: str | None = "NHWC",
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """`avg_pool` under its newer name."""
    return avg_pool(value, ksize, strides, padding, data_format, name, input)


def _attrs(ksize: Ints, strides: Ints, padding: Padding, data_format: str | None) -> dict[str, Any]:
    layout = data_format or "NHWC"
    return {
        "ksize": four(ksize, layout, "ksize"),
        "strides": four(strides, layout, "strides"),
        "data_format": layout,
        **padding_attrs(padding),
    }

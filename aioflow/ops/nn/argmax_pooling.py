"""Max pooling that also returns the position of each maximum."""

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
from aioflow.graph.traits import opaque
from aioflow.ops.apply import TensorLike, make, make_list
from aioflow.ops.nn.activations import renamed
from aioflow.ops.nn.geometry import PaddingScheme, Window, pool_dims
from aioflow.ops.nn.windows import Ints, per_axis

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

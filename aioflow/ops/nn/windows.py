"""Shapes, costs, gradients and arguments shared by convolutions and pooling of images and of volumes.

The attribute lists of the ops hold one value per axis, in the order of `data_format`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from aioflow.arguments import check_text, whole_numbers
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.costs import Cost, Operand
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext
from aioflow.graph.shapes import Dims, format_dims, merge_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.ops.apply import make
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.nn.activations import zeros_like
from aioflow.ops.nn.geometry import PaddingLike, Window, conv_dims, pool_dims

Ints: TypeAlias = int | Sequence[int]  # see `per_axis`

_HOW: Final = ("strides", "padding", "explicit_paddings", "data_format", "dilations", "ksize", "use_cudnn_on_gpu")


# ── shapes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def conv_shape(ctx: ShapeContext) -> Dims:
    """Infer the shape of a convolution."""
    return conv_dims(Window.of(ctx.attrs), ctx.dims("input"), ctx.dims("filter"))


def given_shape(name: str, flowing: str) -> Callable[[ShapeContext], Dims]:
    """Return the shape function of a gradient whose shape is the value of an input.

    Args:
        name: The input that holds the shape.
        flowing: The input with the incoming gradient. It has the batch size of the result, unless that is a filter.
    """

    def shape(ctx: ShapeContext) -> Dims:
        rank = Window.of(ctx.attrs).layout.rank
        ctx.require_rank(name, 1)
        for arg in ctx.op_def.inputs:
            if arg.name != name:
                ctx.require_rank(arg.name, rank)
        dims = ctx.partial_shape(name)
        if dims is None:
            dims = (None,) * rank
        if len(dims) != rank:
            raise InvalidArgumentError(
                f"{name} must be the shape of a {rank}-D tensor", expected=f"{rank} sizes", actual=format_dims(dims)
            )
        out = ctx.require_rank(flowing, rank)
        if name == "filter_sizes" or out is None:
            return dims
        # Only the batch size follows from the gradient: with strides, inputs of several sizes have the same output
        # size.
        return merge_dims(dims, (out[0], *(None,) * (rank - 1)))

    return shape


def pool_shape(name: str) -> Callable[[ShapeContext], Dims]:
    """Return the shape function of pooling over the named input."""

    def shape(ctx: ShapeContext) -> Dims:
        return pool_dims(Window.of(ctx.attrs), ctx.attrs["ksize"], ctx.dims(name))

    return shape


def max_pool_grad_shape(ctx: ShapeContext) -> Dims:
    """Infer the shape of the gradient of max pooling."""
    window = Window.of(ctx.attrs)
    pooled = pool_dims(window, ctx.attrs["ksize"], ctx.dims("orig_input"))
    # Called for its check: the three inputs must fit each other.
    merge_dims(merge_dims(pooled, ctx.dims("orig_output")), ctx.dims("grad"))
    rank = window.layout.rank
    return ctx.require_rank("orig_input", rank) or (None,) * rank


def max_pool_grad_grad_shape(ctx: ShapeContext) -> Dims:
    """Infer the shape of the gradient of the gradient of max pooling."""
    image = merge_dims(ctx.dims("orig_input"), ctx.dims("grad"))
    return merge_dims(pool_dims(Window.of(ctx.attrs), ctx.attrs["ksize"], image), ctx.dims("orig_output"))


# ── costs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def convolution(image: int, kernel: int) -> Cost:
    """Return the cost of a convolution in multiply-adds.

    Each position and output channel costs the filter's elements per channel.

    Args:
        image: Index of the operand with a value for each output position, counted through the inputs, then the outputs.
        kernel: Index of the filter, counted in the same way.
    """

    def work(_: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
        operands = [*inputs, *outputs]
        return float(operands[image].elements * math.prod(operands[kernel].dims[:-1]))

    return Cost("convolution", work)


def depthwise(image: int, kernel: int) -> Cost:
    """Return the cost of a convolution whose output channels read one input channel each. See `convolution`."""

    def work(_: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
        operands = [*inputs, *outputs]
        return float(operands[image].elements * math.prod(operands[kernel].dims[:-2]))

    return Cost("convolution", work, 4.0)


def _read(attrs: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return the bytes read: a window for every element of the smaller side."""
    window = math.prod(attrs.get("ksize", (1,)))
    return float(min([o.size for o in [*inputs[:1], *outputs] if o.size] or [0]) * window)


POOLING: Final = Cost("elementwise", _read)


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _how(op: Operation, *without: str) -> Attrs:
    return {name: op.attrs[name] for name in _HOW if name in op.attrs and name not in without}


def differentiate_convolution(forward: str, by_input: str, by_filter: str) -> None:
    """Register the gradients of a convolution and of its two gradient ops.

    A convolution is linear in each of image, filter and result, so the three ops are one another's gradients.
    """

    @gradient(forward)
    def of_result(op: Operation, grad: Tensor) -> list[Tensor]:
        image, kernel = op.inputs
        how = _how(op)
        return [
            make(by_input, shape_of(image), kernel, grad, **how),
            make(by_filter, image, shape_of(kernel), grad, **how),
        ]

    @gradient(by_input)
    def of_input(op: Operation, grad: Tensor) -> list[Tensor | None]:
        _, kernel, out = op.inputs
        how = _how(op)
        return [None, make(by_filter, grad, shape_of(kernel), out, **how), make(forward, grad, kernel, **how)]

    @gradient(by_filter)
    def of_filter(op: Operation, grad: Tensor) -> list[Tensor | None]:
        image, _, out = op.inputs
        how = _how(op)
        return [make(by_input, shape_of(image), grad, out, **how), None, make(forward, image, grad, **how)]


def differentiate_maximum(forward: str, back: str, again: str) -> None:
    """Register the gradients of max pooling, of its gradient `back`, and of the gradient `again` of `back`."""

    @gradient(forward)
    def of_result(op: Operation, grad: Tensor) -> Tensor:
        return make(back, op.inputs[0], op.outputs[0], grad, **_how(op))

    @gradient(back)
    def of_back(op: Operation, grad: Tensor) -> list[Tensor]:
        image, pooled, _ = op.inputs
        # MaxPoolGradGrad has no explicit paddings.
        how = _how(op, "explicit_paddings")
        # `back` is linear in `grad`. Image and result only select positions, so they have no gradient.
        return [zeros_like(image), zeros_like(pooled), make(again, image, pooled, grad, **how)]

    @gradient(again)
    def of_again(op: Operation, grad: Tensor) -> list[Tensor]:
        image, pooled, _ = op.inputs
        return [zeros_like(image), zeros_like(pooled), make(back, image, pooled, grad, **_how(op))]


def differentiate_average(forward: str, back: str) -> None:
    """Register the gradients of average pooling and of its gradient `back`."""

    @gradient(forward)
    def of_result(op: Operation, grad: Tensor) -> Tensor:
        return make(back, shape_of(op.inputs[0]), grad, **_how(op))

    @gradient(back)
    def of_back(op: Operation, grad: Tensor) -> list[Tensor | None]:
        return [None, make(forward, grad, **_how(op))]


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def per_axis(values: Ints | None, axes: int, data_format: str, name: str) -> list[int]:
    """Return a list of one value per axis.

    `values` is one value, one for each of the spatial `axes`, or one for all axes.

    Raises:
        DTypeError: `data_format` is not a text.
        InvalidArgumentError: the number of values is wrong.
    """
    check_text(data_format, "data_format")
    given = [1] if values is None else [values] if isinstance(values, int) else whole_numbers(values, name)
    if len(given) == axes + 2:
        return given
    if len(given) not in (1, axes):
        counts = f"1, {axes} or {axes + 2} values"
        raise InvalidArgumentError(f"{name} needs {counts}", expected=counts, actual=given)
    spatial = given * axes if len(given) == 1 else given
    # Windows do not extend over the batch or the channels.
    return [1, 1, *spatial] if data_format.startswith("NC") else [1, *spatial, 1]


def padding_attrs(padding: PaddingLike | None) -> Attrs:
    """Return the attributes for "SAME", "VALID", or [[before, after]] per axis. Raise DTypeError for anything else."""
    if isinstance(padding, str):
        return {"padding": padding.upper()}
    if not isinstance(padding, list | tuple):
        raise DTypeError(
            "not a padding", expected="'SAME', 'VALID', or [[before, after]] for each axis", actual=repr(padding)
        )
    edges = [edge for pair in padding for edge in whole_numbers(pair, "a pair of paddings")]
    return {"padding": "EXPLICIT", "explicit_paddings": edges}

"""Convolutions and pools along one, two or three axes, composed of those of images and volumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

from aioflow.arguments import whole_number, whole_numbers
from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import format_dims
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.padding import batch_to_space_nd, required_space_to_batch_paddings, space_to_batch_nd
from aioflow.ops.array.static_shapes import int_constant, shape_of
from aioflow.ops.nn.activations import renamed
from aioflow.ops.nn.convolution import conv2d, conv2d_transpose
from aioflow.ops.nn.geometry import PaddingLike, PaddingScheme
from aioflow.ops.nn.pooling import avg_pool, max_pool
from aioflow.ops.nn.volumes import avg_pool3d, conv3d, conv3d_transpose, max_pool3d
from aioflow.ops.nn.windows import Ints
from aioflow.ops.scoping import name_scope

RowFormat: TypeAlias = Literal["NWC", "NCW", "NHWC", "NCHW"]  # in the last two, W stands for the only axis

_LAST: Final = ("NWC", "NHWC", "NDHWC")  # by the number of spatial axes, from 1
_FIRST: Final = ("NCW", "NCHW", "NCDHW")
_CONVOLUTIONS: Final[tuple[Callable[..., Tensor], ...]] = (conv2d, conv2d, conv3d)
_TRANSPOSED: Final[tuple[Callable[..., Tensor], ...]] = (conv2d_transpose, conv2d_transpose, conv3d_transpose)
_POOLS: Final[dict[str, tuple[Callable[..., Tensor], ...]]] = {
    "MAX": (max_pool, max_pool, max_pool3d),
    "AVG": (avg_pool, avg_pool, avg_pool3d),
}


def spatial_format(axes: int, data_format: str | None) -> str:
    """Return the layout of this number of spatial axes that has its channels where `data_format` has them.

    Raises:
        InvalidArgumentError: `axes` is not 1, 2 or 3, or the layout is unknown.
    """
    if not 1 <= axes <= 3:
        raise InvalidArgumentError("the number of spatial axes is out of range", expected="1, 2 or 3", actual=axes)
    known = {None, _LAST[axes - 1], _FIRST[axes - 1], *(("NHWC", "NCHW") if axes == 1 else ())}
    if data_format not in known:
        raise InvalidArgumentError(
            f"data_format {data_format!r} is unknown for {axes} spatial axes",
            expected=f"one of {', '.join(sorted(each for each in known if each))}",
            actual=data_format,
        )
    return (_FIRST if str(data_format).startswith("NC") else _LAST)[axes - 1]


def axis_values(values: Any, axes: int, channels_first: bool, what: str) -> list[int]:
    """Return one value per spatial axis from one value, one per spatial axis, or one per axis of the batch."""
    if values is None:
        return [1] * axes
    found = whole_numbers(values, what) if isinstance(values, Sequence) else [whole_number(values, what)]
    if len(found) == 1:
        return found * axes
    if len(found) == axes + 2:
        return found[2:] if channels_first else found[1:-1]
    if len(found) != axes:
        raise InvalidArgumentError(f"{what} has a wrong length", expected=f"1, {axes} or {axes + 2}", actual=found)
    return found


def _along(
    kinds: Sequence[Callable[..., Tensor]],
    tensor: Tensor,
    others: Sequence[Any],
    data_format: str | None,
    lists: dict[str, list[int]],
    name: str | None,
    **how: Any,
) -> Tensor:
    """Apply the builder for the tensor's number of spatial axes.

    A row becomes an image of height 1. `lists` has one value per spatial axis for each argument.
    """
    axes = len(next(iter(lists.values())))
    layout = spatial_format(axes, data_format)
    if axes > 1:
        return kinds[axes - 1](tensor, *others, data_format=layout, name=name, **lists, **how)
    height = 2 if layout == "NCW" else 1
    image = make("ExpandDims", tensor, height)
    two = {key: [1, *values] for key, values in lists.items()}
    made = kinds[1](image, *others, data_format="NCHW" if layout == "NCW" else "NHWC", **two, **how)
    return make("Squeeze", made, squeeze_dims=[height], name=name)


def _spatial_axes(tensor: Tensor, what: str) -> int:
    if tensor.dims is None or not 3 <= len(tensor.dims) <= 5:
        raise InvalidArgumentError(
            f"{what} has the wrong rank", expected="a static rank of 3, 4 or 5", actual=format_dims(tensor.dims)
        )
    return len(tensor.dims) - 2


def convolution(
    input: TensorLike,
    filter: TensorLike | None,
    padding: PaddingLike,
    strides: Ints | None = None,
    dilation_rate: Ints | None = None,
    name: str | None = None,
    data_format: str | None = None,
    filters: TensorLike | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """Return the convolution (cross-correlation) of a batch of rows, images or volumes with a bank of filters.

    Args:
        input: [batch, sizes …, channels], or [batch, channels, sizes …] if `data_format` begins with "NC".
        filter: [sizes …, channels / groups, outputs].
        padding: "SAME" or "VALID".
        strides: One value, or one per spatial axis; 1 if not given.
        dilation_rate: Distance between filter elements, in the forms of `strides`.
        name: Name of the node.
        data_format: "NWC", "NHWC", "NDHWC" (the defaults), "NCW", "NCHW" or "NCDHW".
        filters: The newer name of `filter`.
        dilations: The newer name of `dilation_rate`.

    Raises:
        InvalidArgumentError: a rank, channel count, stride, dilation or padding does not fit.
    """
    bank = renamed(filters, filter, ("filters", "filter"))
    spread = renamed(dilations, dilation_rate, ("dilations", "dilation_rate"))
    with name_scope(name, "convolution", [input, bank]) as scope:
        tensor, kernel = convert_to_tensor(input, name="input"), convert_to_tensor(bank, name="filter")
        axes = _spatial_axes(kernel, "filter")
        return _convolved(tensor, kernel, axes, padding, strides, spread, data_format, scope)


def _convolved(
    tensor: Tensor,
    kernel: Tensor,
    axes: int,
    padding: PaddingLike,
    strides: Ints | None,
    dilations: Ints | None,
    data_format: str | None,
    name: str | None,
) -> Tensor:
    first = spatial_format(axes, data_format).startswith("NC")
    lists = {
        "strides": axis_values(strides, axes, first, "strides"),
        "dilations": axis_values(dilations, axes, first, "dilations"),
    }
    bank = make("ExpandDims", kernel, 0) if axes == 1 else kernel
    return _along(_CONVOLUTIONS, tensor, [bank], data_format, lists, name, padding=padding)


def conv1d(
    value: TensorLike | None = None,
    filters: TensorLike | None = None,
    stride: Ints | None = None,
    padding: PaddingScheme | None = None,
    use_cudnn_on_gpu: bool | None = None,
    data_format: RowFormat | None = None,
    name: str | None = None,
    input: TensorLike | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """Return the convolution (cross-correlation) of rows with a bank of filters.

    Args:
        value: [batch, width, channels], or [batch, channels, width] for NCW.
        filters: [width, channels / groups, outputs].
        stride: Distance between windows.
        padding: "SAME" or "VALID".
        use_cudnn_on_gpu: Ignored: results do not depend on it.
        data_format: "NWC" (the default) or "NCW".
        name: Name of the node.
        input: The newer name of `value`.
        dilations: Distance between filter elements; 1 if not given.

    Raises:
        InvalidArgumentError: a rank, channel count, stride, dilation or padding does not fit.
    """
    source = renamed(input, value, ("input", "value"))
    if padding is None or filters is None:
        missing = "padding" if padding is None else "filters"
        raise InvalidArgumentError(f"conv1d needs {missing}", expected="filters, stride and padding", actual=None)
    with name_scope(name, "conv1d", [source, filters]) as scope:
        tensor, kernel = convert_to_tensor(source, name="input"), convert_to_tensor(filters, name="filters")
        return _convolved(tensor, kernel, 1, padding, stride, dilations, data_format, scope)


def conv1d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: TensorLike,
    strides: Ints,
    padding: PaddingScheme = "SAME",
    data_format: RowFormat = "NWC",
    dilations: Ints | None = None,
    name: str | None = None,
) -> Tensor:
    """Return the transpose of `conv1d`: rows of shape `output_shape` from the results of a convolution.

    Args:
        input: [batch, width, in_channels], or [batch, in_channels, width] for NCW.
        filters: [width, out_channels, in_channels].
        output_shape: Shape of the result.
        strides: As for `conv1d`.
        padding: As for `conv1d`.
        data_format: As for `conv1d`.
        dilations: As for `conv1d`.
        name: Name of the node.

    Raises:
        InvalidArgumentError: as for `conv1d`, or a convolution of `output_shape` does not have the shape of `input`.
    """
    with name_scope(name, "conv1d_transpose", [input, filters, output_shape]) as scope:
        return _transposed(input, filters, output_shape, 1, strides, padding, data_format, dilations, scope)


def conv_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: TensorLike,
    strides: Ints,
    padding: PaddingScheme = "SAME",
    data_format: str | None = None,
    dilations: Ints | None = None,
    name: str | None = None,
) -> Tensor:
    """Return the transpose of `convolution`, along the axes of `filters`. Arguments as for `conv1d_transpose`."""
    with name_scope(name, "conv_transpose", [input, filters, output_shape]) as scope:
        bank = convert_to_tensor(filters, name="filters")
        axes = _spatial_axes(bank, "filters")
        return _transposed(input, bank, output_shape, axes, strides, padding, data_format, dilations, scope)


def _transposed(
    input: TensorLike,
    filters: TensorLike,
    output_shape: TensorLike,
    axes: int,
    strides: Ints,
    padding: PaddingScheme,
    data_format: str | None,
    dilations: Ints | None,
    name: str | None,
) -> Tensor:
    first = spatial_format(axes, data_format).startswith("NC")
    lists = {
        "strides": axis_values(strides, axes, first, "strides"),
        "dilations": axis_values(dilations, axes, first, "dilations"),
    }
    tensor, kernel = convert_to_tensor(input, name="input"), convert_to_tensor(filters, name="filters")
    shape: TensorLike = output_shape
    if axes == 1:
        kernel = make("ExpandDims", kernel, 0)
        sizes, height = convert_to_tensor(output_shape, name="output_shape"), 2 if first else 1
        shape = make("ConcatV2", [sizes[:height], convert_to_tensor([1], sizes.dtype), sizes[height:]], 0)
    return _along(_TRANSPOSED, tensor, [kernel, shape], data_format, lists, name, padding=padding)


def atrous_conv2d_transpose(
    value: TensorLike,
    filters: TensorLike,
    output_shape: TensorLike,
    rate: int,
    padding: PaddingScheme,
    name: str | None = None,
) -> Tensor:
    """Return the transpose of `atrous_conv2d`: `conv2d_transpose` with stride 1 and filter elements `rate` apart."""
    with name_scope(name, "atrous_conv2d_transpose", [value, filters, output_shape]) as scope:
        return conv2d_transpose(value, filters, output_shape, 1, padding, name=scope, dilations=rate)


# ── pools ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pool(
    input: TensorLike,
    window_shape: Ints,
    pooling_type: str,
    padding: PaddingScheme,
    dilation_rate: Ints | None = None,
    strides: Ints | None = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """Return the maximum or the mean of each window of a batch of rows, images or volumes.

    Args:
        input: [batch, sizes …, channels], or [batch, channels, sizes …] if `data_format` begins with "NC".
        window_shape: One value per spatial axis.
        pooling_type: "MAX" or "AVG".
        padding: "SAME" or "VALID"; with dilations only "VALID".
        dilation_rate: Distance between the elements of a window, one value per spatial axis; 1 if not given.
        strides: Distance between windows, one value per spatial axis; 1 if not given.
        name: Name of the node.
        data_format: "NWC", "NHWC", "NDHWC" (the defaults), "NCW", "NCHW" or "NCDHW".
        dilations: The newer name of `dilation_rate`.

    Raises:
        InvalidArgumentError: a rank, size, stride or padding does not fit, the type is unknown, or there are dilations
            together with strides or SAME.
    """
    spread = renamed(dilations, dilation_rate, ("dilations", "dilation_rate"))
    sizes = whole_numbers(window_shape, "window_shape")
    axes = len(sizes)
    layout = spatial_format(axes, data_format)
    first = layout.startswith("NC")
    moves, rates = (axis_values(v, axes, first, n) for v, n in ((strides, "strides"), (spread, "dilations")))
    kinds = _POOLS.get(pooling_type)
    if kinds is None:
        raise InvalidArgumentError(f"pool {pooling_type!r} is unknown", expected="'MAX' or 'AVG'", actual=pooling_type)
    if max(rates) > 1 and (max(moves) > 1 or padding != "VALID"):
        raise InvalidArgumentError(
            "a pool with dilations has neither strides nor padding",
            expected="strides of 1 and padding VALID",
            actual=f"strides {moves} and padding {padding}",
        )

    def pooled(tensor: Tensor, _: int, scheme: PaddingScheme) -> Tensor:
        return _along(kinds, tensor, [], layout, {"ksize": sizes, "strides": moves}, None, padding=scheme)

    with name_scope(name, f"{pooling_type.lower()}_pool", [input]):
        around = range(2, axes + 2) if first else range(1, axes + 1)
        tensor = convert_to_tensor(input, name="input")
        return with_space_to_batch(tensor, rates, padding, pooled, sizes, list(around), layout)


def max_pool1d(
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: RowFormat = "NWC",
    name: str | None = None,
) -> Tensor:
    """Return the maximum of each window of rows.

    Args:
        input: [batch, width, channels], or [batch, channels, width] for NCW.
        ksize: Size of a window.
        strides: Distance between windows.
        padding: "SAME" or "VALID". Padding is ignored by the maximum.
        data_format: "NWC" or "NCW".
        name: Name of the node.

    Raises:
        InvalidArgumentError: a rank, size, stride or padding does not fit, or the row is too short.
    """
    return _pool("MAX", 1, "max_pool1d", input, ksize, strides, padding, data_format, name)


def avg_pool1d(
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: RowFormat = "NWC",
    name: str | None = None,
) -> Tensor:
    """Return the mean of each window of rows, not counting padding. Arguments and errors as for `max_pool1d`."""
    return _pool("AVG", 1, "avg_pool1d", input, ksize, strides, padding, data_format, name)


def max_pool_v2(
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Return the maximum of each window of rows, images or volumes, by the rank of `input`."""
    tensor = convert_to_tensor(input, name="input")
    axes = _spatial_axes(tensor, "input")
    return _pool("MAX", axes, "max_pool", tensor, ksize, strides, padding, data_format, name)


def avg_pool_v2(
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Return the mean of each window of rows, images or volumes, by the rank of `input`, not counting padding."""
    tensor = convert_to_tensor(input, name="input")
    axes = _spatial_axes(tensor, "input")
    return _pool("AVG", axes, "avg_pool", tensor, ksize, strides, padding, data_format, name)


def _pool(
    kind: str,
    axes: int,
    scope: str,
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: str | None,
    name: str | None,
) -> Tensor:
    layout = spatial_format(axes, data_format)
    first = layout.startswith("NC")
    lists = {
        "ksize": axis_values(ksize, axes, first, "ksize"),
        "strides": axis_values(strides, axes, first, "strides"),
    }
    with name_scope(name, scope, [input]) as prefix:
        return _along(_POOLS[kind], convert_to_tensor(input), [], layout, lists, prefix, padding=padding)


# ── dilation by space_to_batch ────────────────────────────────────────────────────────────────────────────────────────


def with_space_to_batch(
    input: TensorLike,
    dilation_rate: Ints,
    padding: PaddingScheme,
    op: Callable[[Tensor, int, PaddingScheme], Tensor],
    filter_shape: Sequence[int] | None = None,
    spatial_dims: Sequence[int] | None = None,
    data_format: str | None = None,
) -> Tensor:
    """Apply `op` to every `dilation_rate`-th element: space to batch, `op` without padding, batch to space.

    Args:
        input: A tensor.
        dilation_rate: One int per spatial axis.
        padding: "SAME", which adds zeros, or "VALID".
        op: A function of the tensor, the number of spatial axes, and the padding scheme.
        filter_shape: The window that `op` moves; SAME needs it.
        spatial_dims: The spatial axes, in increasing order; by default 1, 2, …, or 2, 3, … for channels first.
        data_format: A layout; its channels are first if it begins with "NC".

    Raises:
        InvalidArgumentError: a rate is not positive, or an argument is missing or has a wrong length.
    """
    tensor = convert_to_tensor(input, name="input")
    rates = whole_numbers(dilation_rate, "dilation_rate")
    axes, start = len(rates), 2 if data_format and data_format.startswith("NC") else 1
    places = list(range(start, start + axes)) if spatial_dims is None else whole_numbers(spatial_dims, "spatial_dims")
    if min(rates, default=1) < 1:
        raise InvalidArgumentError("dilation_rate is out of range", expected="positive values", actual=rates)
    if len(places) != axes or sorted(set(places)) != places or (places and places[0] < 1):
        raise InvalidArgumentError(
            "spatial_dims does not fit dilation_rate", expected=f"{axes} increasing axes above 0", actual=places
        )
    if set(rates) <= {1}:
        return op(tensor, axes, padding)
    base = [[0, 0]] * axes
    if padding == "SAME":
        if filter_shape is None:
            raise InvalidArgumentError("padding SAME needs filter_shape", expected="one size per axis", actual=None)
        extra = [(size - 1) * rate for size, rate in zip(filter_shape, rates, strict=False)]
        base = [[each // 2, each - each // 2] for each in extra]
    elif padding != "VALID":
        raise InvalidArgumentError("the padding is unknown", expected="'SAME' or 'VALID'", actual=padding)
    known = [] if tensor.dims is None else [size for place in places if (size := tensor.dims[place]) is not None]
    sizes = int_constant(known) if len(known) == axes else make("GatherV2", shape_of(tensor), places, 0)
    paddings, crops = required_space_to_batch_paddings(sizes, rates, base)
    # The ops take adjacent axes from 1 on, so those between that are not spatial have rate 1 and no padding.
    column = {place: n for n, place in enumerate(places)}
    between = range(1, max(places) + 1)
    spread = [rates[column[place]] if place in column else 1 for place in between]
    result = op(space_to_batch_nd(tensor, spread, _rows(paddings, between, column)), axes, "VALID")
    return batch_to_space_nd(result, spread, _rows(crops, between, column))


def _rows(pairs: Tensor, between: Sequence[int], column: dict[int, int]) -> Tensor:
    """Return the pairs of spatial axes for all axes, with zeros for the others."""
    if len(between) == len(column):
        return pairs
    zeros = convert_to_tensor([[0, 0]], pairs.dtype)
    parts = [pairs[column[place] : column[place] + 1] if place in column else zeros for place in between]
    return make("ConcatV2", parts, 0)

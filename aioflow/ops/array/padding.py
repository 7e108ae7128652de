"""Ops that pad or move blocks between dimensions: Pad, MirrorPad, SpaceToDepth, SpaceToBatchND, and their inverses."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from aioflow.arguments import check_text
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.arrays import blank
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.static_value import constant_value, known_by
from aioflow.graph.traits import movement, opaque
from aioflow.memory.values import Array
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.array.shape import times
from aioflow.ops.array.static_shapes import all_axes, int_constant, shape_of
from aioflow.ops.nn.geometry import ImageFormat
from aioflow.ops.scoping import name_scope

__all__ = [
    "batch_to_space",
    "batch_to_space_nd",
    "depth_to_space",
    "pad",
    "required_space_to_batch_paddings",
    "space_to_batch",
    "space_to_batch_nd",
    "space_to_depth",
]


def _paddings(ctx: ShapeContext) -> tuple[Dims, Array | None]:
    """Return the input's dims and the paddings as far as they are known, checked against each other."""
    dims, pairs = ctx.dims("input"), ctx.require_rank("paddings", 2)
    if pairs is not None and pairs[1] not in (None, 2):
        raise InvalidArgumentError("paddings must be pairs", expected="shape (rank, 2)", actual=format_dims(pairs))
    if pairs is not None and pairs[0] is not None:
        # There is one pair per dimension, so the pairs tell the rank.
        if dims is None:
            dims = (None,) * pairs[0]
        elif len(dims) != pairs[0]:
            raise InvalidArgumentError(
                "one pair of paddings per dimension is needed", expected=f"{len(dims)} pairs", actual=pairs[0]
            )
    value = ctx.partial_value("paddings")
    if value is not None and any(v is not None and v < 0 for v in value.flat):
        raise InvalidArgumentError("paddings cannot be negative", expected=">= 0", actual=value.tolist())
    return dims, value


def _margin(pair: Array) -> int | None:
    """Return the number of elements that a pair of paddings adds to a size, or None if one of them is unknown."""
    return None if pair[0] is None or pair[1] is None else int(pair[0]) + int(pair[1])


def _changed(size: int | None, margin: int | None, sign: int) -> int | None:
    return None if size is None or margin is None else size + sign * margin


def _pad_shape(ctx: ShapeContext) -> Dims:
    dims, value = _paddings(ctx)
    if dims is None or value is None:
        return None if dims is None else (None,) * len(dims)
    _check_mirror(ctx, dims, value)
    return tuple(_changed(d, _margin(p), 1) for d, p in zip(dims, value, strict=True))


def _check_mirror(ctx: ShapeContext, dims: tuple[int | None, ...], value: Array) -> None:
    mode = ctx.attrs.get("mode")
    if mode is None:
        return
    for size, pair in zip(dims, value, strict=True):
        # REFLECT does not repeat the border, so it has one element less to mirror.
        if size is not None and max(p or 0 for p in pair) > size - (mode == "REFLECT"):
            raise InvalidArgumentError(
                f"the dimension is too small to mirror ({mode})",
                expected=f"paddings of at most {size - (mode == 'REFLECT')}",
                actual=pair.tolist(),
            )


def _mirror_pad_grad_shape(ctx: ShapeContext) -> Dims:
    dims, value = _paddings(ctx)
    if dims is None or value is None:
        return None if dims is None else (None,) * len(dims)
    sizes = [_changed(d, _margin(p), -1) for d, p in zip(dims, value, strict=True)]
    if any(s is not None and s < 0 for s in sizes):
        raise InvalidArgumentError(
            "the paddings exceed the padded shape", expected=format_dims(dims), actual=value.tolist()
        )
    return tuple(sizes)


_PADDINGS = "Tpaddings: {int32, int64} = int32"
_MODE = "mode: {'REFLECT', 'SYMMETRIC'}"


def _padded_value(value: Array, paddings: Array, constant: Array | None = None) -> Array:
    outside = blank((), value.dtype) if constant is None else constant
    return np.pad(value, paddings.tolist(), constant_values=outside)


def _pad_v2_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("constant_values", 0)
    return _pad_shape(ctx)


define_op(
    "Pad",
    "input: T, paddings: Tpaddings",
    "output: T",
    ["T: type", _PADDINGS],
    shape=_pad_shape,
    value=known_by(_padded_value),
    rows=rows.padded,
    traits=movement(row_major=True),
)
define_op(
    "PadV2",
    "input: T, paddings: Tpaddings, constant_values: T",
    "output: T",
    ["T: type", _PADDINGS],
    shape=_pad_v2_shape,
    value=known_by(_padded_value),
    rows=rows.padded,
    traits=movement(row_major=True),
)
define_op(
    "MirrorPad",
    "input: T, paddings: Tpaddings",
    "output: T",
    ["T: type", _PADDINGS, _MODE],
    shape=_pad_shape,
    rows=rows.padded,
    traits=movement(),
)
define_op(
    "MirrorPadGrad",
    "input: T, paddings: Tpaddings",
    "output: T",
    ["T: type", _PADDINGS, _MODE],
    shape=_mirror_pad_grad_shape,
    traits=opaque(),
)


@gradient("Pad", "PadV2")
def _pad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    grad = convert_to_tensor(grad)
    source, paddings = op.inputs[:2]
    value = constant_value(paddings)
    if value is None:
        # The first column: the paddings in front.
        begin = make("Reshape", make("Slice", paddings, [0, 0], [-1, 1]), int_constant([-1]))
    else:
        begin = int_constant(value[:, 0], paddings.dtype)
    inner = make("Slice", grad, begin, shape_of(source, begin.dtype))
    if op.type == "Pad":
        return [inner, None]
    # The constant fills everything outside of the input, so its gradient is the sum of what is there.
    outside = make("Sub", *(make("Sum", t, all_axes(t), keep_dims=False) for t in (grad, inner)))
    return [inner, None, outside]


@gradient("MirrorPad")
def _mirror_pad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("MirrorPadGrad", grad, op.inputs[1], mode=op.get_attr("mode")), None]


@gradient("MirrorPadGrad")
def _mirror_pad_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("MirrorPad", grad, op.inputs[1], mode=op.get_attr("mode")), None]


def pad(
    tensor: TensorLike,
    paddings: TensorLike,
    mode: Literal["CONSTANT", "REFLECT", "SYMMETRIC"] = "CONSTANT",
    name: str | None = None,
    constant_values: TensorLike = 0,
) -> Tensor:
    """Add `paddings[i, 0]` elements before and `paddings[i, 1]` after the tensor in each dimension i.

    The mode "CONSTANT" adds `constant_values`, "REFLECT" mirrors the tensor without its border, "SYMMETRIC" with it.

    Raises:
        InvalidArgumentError: a padding is negative or larger than the part to mirror, or the mode is unknown.
    """
    check_text(mode, "the mode of padding")
    kind = mode.upper()
    if kind == "CONSTANT":
        fill: Any = constant_values
        # Zeros need no input for the fill.
        if not isinstance(fill, Tensor) and np.ndim(fill) == 0 and fill == 0:
            return make("Pad", tensor, paddings, name=name)
        return make("PadV2", tensor, paddings, constant_values, name=name)
    if kind not in ("REFLECT", "SYMMETRIC"):
        raise InvalidArgumentError("unknown padding mode", expected="CONSTANT, REFLECT or SYMMETRIC", actual=mode)
    return make("MirrorPad", tensor, paddings, mode=kind, name=name)


# ── depth ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_FORMAT = "data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'"


def _four(ctx: ShapeContext) -> list[int | None] | None:
    """Return the input's sizes as batch, height, width, depth."""
    if ctx.attrs["data_format"] == "NCHW_VECT_C":
        raise InvalidArgumentError(
            "the format NCHW_VECT_C is for quantized tensors only", expected="NHWC or NCHW", actual="NCHW_VECT_C"
        )
    dims = ctx.require_rank("input", 4)
    if dims is None:
        return [None] * 4
    return list(dims) if ctx.attrs["data_format"] == "NHWC" else [dims[i] for i in (0, 2, 3, 1)]


def _formatted(ctx: ShapeContext, sizes: list[int | None]) -> Dims:
    return tuple(sizes) if ctx.attrs["data_format"] == "NHWC" else tuple(sizes[i] for i in (0, 3, 1, 2))


def _divided(size: int | None, divisor: int, what: str) -> int | None:
    if size is not None and size % divisor:
        raise InvalidArgumentError(f"the {what} is not divisible", expected=f"a multiple of {divisor}", actual=size)
    return None if size is None else size // divisor


def _space_to_depth_shape(ctx: ShapeContext) -> Dims:
    sizes, block = _four(ctx), ctx.attrs["block_size"]
    batch, height, width, depth = sizes or [None] * 4
    return _formatted(
        ctx, [batch, _divided(height, block, "height"), _divided(width, block, "width"), times(depth, block * block)]
    )


def _depth_to_space_shape(ctx: ShapeContext) -> Dims:
    sizes, block = _four(ctx), ctx.attrs["block_size"]
    batch, height, width, depth = sizes or [None] * 4
    return _formatted(ctx, [batch, times(height, block), times(width, block), _divided(depth, block * block, "depth")])


define_op(
    "SpaceToDepth",
    "input: T",
    "output: T",
    ["T: type", "block_size: int >= 2", _FORMAT],
    shape=_space_to_depth_shape,
    rows=rows.first_axis,
    traits=movement(),
)
define_op(
    "DepthToSpace",
    "input: T",
    "output: T",
    ["T: type", "block_size: int >= 2", _FORMAT],
    shape=_depth_to_space_shape,
    rows=rows.first_axis,
    traits=movement(),
)


@gradient("SpaceToDepth")
def _space_to_depth_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("DepthToSpace", grad, block_size=op.get_attr("block_size"), data_format=op.get_attr("data_format"))


@gradient("DepthToSpace")
def _depth_to_space_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("SpaceToDepth", grad, block_size=op.get_attr("block_size"), data_format=op.get_attr("data_format"))


def space_to_depth(
    input: TensorLike, block_size: int, name: str | None = None, data_format: ImageFormat = "NHWC"
) -> Tensor:
    """Move each block of `block_size`² pixels of [N, H, W, C] (or [N, C, H, W]) into the depth of one pixel.

    Raises:
        InvalidArgumentError: height or width is not a multiple of the block size, or the format is NCHW_VECT_C.
    """
    return make("SpaceToDepth", input, block_size=block_size, data_format=data_format, name=name)


def depth_to_space(
    input: TensorLike, block_size: int, name: str | None = None, data_format: ImageFormat = "NHWC"
) -> Tensor:
    """Invert `space_to_depth`.

    Raises:
        InvalidArgumentError: the depth is not a multiple of `block_size`², or the format is NCHW_VECT_C.
    """
    return make("DepthToSpace", input, block_size=block_size, data_format=data_format, name=name)


# ── batch ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _block_values(ctx: ShapeContext, pairs: str) -> tuple[list[int] | None, Array | None]:
    block, edges = ctx.value("block_shape"), ctx.partial_value(pairs)
    if block is not None and (block < 1).any():
        raise InvalidArgumentError("block sizes must be positive", expected=">= 1", actual=block.tolist())
    if edges is not None and any(e is not None and e < 0 for e in edges.flat):
        raise InvalidArgumentError(f"{pairs} cannot be negative", expected=">= 0", actual=edges.tolist())
    return None if block is None else [int(b) for b in block], edges


def _block_count(ctx: ShapeContext, pairs: str) -> int | None:
    vector, matrix = ctx.require_rank("block_shape", 1), ctx.require_rank(pairs, 2)
    if matrix is not None and matrix[1] not in (None, 2):
        raise InvalidArgumentError(f"{pairs} must be pairs", expected="2 columns", actual=format_dims(matrix))
    found = {dims[0] for dims in (vector, matrix) if dims is not None and dims[0] is not None}
    if len(found) > 1:
        raise InvalidArgumentError(
            f"one pair of {pairs} per dimension of the block is needed",
            expected=format_dims(vector),
            actual=format_dims(matrix),
        )
    return next(iter(found), None)


def _space_to_batch_shape(ctx: ShapeContext) -> Dims:
    return _blocks_shape(ctx, "paddings", False)


def _batch_to_space_shape(ctx: ShapeContext) -> Dims:
    return _blocks_shape(ctx, "crops", True)


def _blocks_shape(ctx: ShapeContext, pairs: str, inverse: bool) -> Dims:
    dims, count = ctx.dims("input"), _block_count(ctx, pairs)
    block, edges = _block_values(ctx, pairs)
    if dims is None:
        return None
    if count is None:
        return (None,) * len(dims)
    if len(dims) < count + 1:
        raise InvalidArgumentError(
            "the block has too many dimensions", expected=f"at most {len(dims) - 1}", actual=count
        )
    sizes: list[int | None] = [None] * (count + 1)
    if block is not None:
        volume = int(np.prod(block, dtype=np.int64))
        # The positions within a block are in the batch, so that it changes by the block's volume.
        sizes[0] = _divided(dims[0], volume, "batch") if inverse else times(dims[0], volume)
        for i, (size, length) in enumerate(zip(dims[1 : count + 1], block, strict=True)):
            margin = None if edges is None else _margin(edges[i])
            if margin is not None and size is not None:
                sizes[i + 1] = (
                    _cropped(size * length, margin) if inverse else _divided(size + margin, length, "padded size")
                )
    return (*sizes, *dims[count + 1 :])


def _cropped(size: int, margin: int) -> int:
    if margin > size:
        raise InvalidArgumentError("the crops exceed the size", expected=f"at most {size}", actual=margin)
    return size - margin


_BLOCK = "Tblock_shape: {int32, int64} = int32"
define_op(
    "SpaceToBatchND",
    "input: T, block_shape: Tblock_shape, paddings: Tpaddings",
    "output: T",
    ["T: type", _BLOCK, _PADDINGS],
    shape=_space_to_batch_shape,
    traits=movement(),
)
define_op(
    "BatchToSpaceND",
    "input: T, block_shape: Tblock_shape, crops: Tcrops",
    "output: T",
    ["T: type", _BLOCK, "Tcrops: {int32, int64} = int32"],
    shape=_batch_to_space_shape,
    traits=movement(),
)


@gradient("SpaceToBatchND")
def _space_to_batch_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    # BatchToSpaceND inverts the op, with the paddings as crops.
    return [make("BatchToSpaceND", grad, op.inputs[1], op.inputs[2]), None, None]


@gradient("BatchToSpaceND")
def _batch_to_space_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("SpaceToBatchND", grad, op.inputs[1], op.inputs[2]), None, None]


def space_to_batch_nd(
    input: TensorLike, block_shape: TensorLike, paddings: TensorLike, name: str | None = None
) -> Tensor:
    """Zero-pad the spatial dimensions, divide them into blocks, and move the positions within a block to the batch.

    The spatial dimensions are those after the batch dimension that `block_shape` covers.

    Raises:
        InvalidArgumentError: a padded size is not a multiple of its block size.
    """
    return make("SpaceToBatchND", input, block_shape, paddings, name=name)


def batch_to_space_nd(input: TensorLike, block_shape: TensorLike, crops: TensorLike, name: str | None = None) -> Tensor:
    """Invert `space_to_batch_nd`, and remove `crops` from the spatial dimensions afterwards.

    Raises:
        InvalidArgumentError: the batch is not a multiple of the block's volume, or the crops exceed a size.
    """
    return make("BatchToSpaceND", input, block_shape, crops, name=name)


def space_to_batch(
    input: TensorLike,
    paddings: TensorLike,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: TensorLike | None = None,
) -> Tensor:
    """Apply `space_to_batch_nd` to the two spatial dimensions of a rank-4 tensor.

    Both have the block size `block_size`, or `block_shape` has one for each.
    """
    blocks: Any = [block_size] * 2 if block_shape is None else block_shape
    result = space_to_batch_nd(input, blocks, paddings, name)
    result.set_shape([None] * 4)
    return result


def batch_to_space(
    input: TensorLike,
    crops: TensorLike,
    block_size: int,
    name: str | None = None,
    block_shape: TensorLike | None = None,
) -> Tensor:
    """Apply `batch_to_space_nd` to the two spatial dimensions of a rank-4 tensor.

    Both have the block size `block_size`, or `block_shape` has one for each.
    """
    result = batch_to_space_nd(input, [block_size] * 2 if block_shape is None else block_shape, crops, name)
    result.set_shape([None] * 4)
    return result


def required_space_to_batch_paddings(
    input_shape: TensorLike, block_shape: TensorLike, base_paddings: TensorLike | None = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return paddings that make each spatial size a multiple of its block size, and crops that undo the extra ones."""
    with name_scope(name, "required_space_to_batch_paddings"):
        sizes = convert_to_tensor(input_shape, dtypes.int32)
        block = convert_to_tensor(block_shape, dtypes.int32)
        edges = None if base_paddings is None else convert_to_tensor(base_paddings, dtypes.int32)
        known = [None if t is None else constant_value(t) for t in (sizes, block, edges)]
        if known[0] is not None and known[1] is not None and (edges is None) == (known[2] is None):
            return _known_paddings(known[0], known[1], known[2])
        return _computed_paddings(sizes, block, edges)


def _known_paddings(sizes: Array, block: Array, base: Array | None) -> tuple[Tensor, Tensor]:
    if block.ndim != 1 or sizes.shape != block.shape:
        raise InvalidArgumentError(
            "the block does not fit the shape",
            expected="two vectors of equal length",
            actual=(sizes.shape, block.shape),
        )
    edges = np.zeros((len(block), 2), np.int32) if base is None else base
    # Python's modulo is never negative: this is the distance to the next multiple of the block size.
    extra = -(sizes + edges.sum(axis=1)) % block
    paddings = np.stack([edges[:, 0], edges[:, 1] + extra], axis=1)
    crops = np.stack([np.zeros_like(extra), extra], axis=1)
    return int_constant(paddings, name="paddings"), int_constant(crops, name="crops")


def _computed_paddings(sizes: Tensor, block: Tensor, base: Tensor | None) -> tuple[Tensor, Tensor]:
    zeros = make("ZerosLike", block)
    before, after = (zeros, zeros) if base is None else make_list("Unpack", base, num=2, axis=1)
    padded = make("AddV2", make("AddV2", sizes, before), after)
    # The outer FloorMod turns a whole extra block into none.
    extra = make("FloorMod", make("Sub", block, make("FloorMod", padded, block)), block)
    paddings = make("Pack", [before, make("AddV2", after, extra)], axis=1, name="paddings")
    return paddings, make("Pack", [zeros, extra], axis=1, name="crops")

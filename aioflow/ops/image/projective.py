"""Projective transforms of images: translation, rotation, shear, perspective."""

from __future__ import annotations

from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.graph.traits import opaque
from aioflow.ops.apply import constant, convert_to_tensor, make
from aioflow.ops.image.resizing import height_and_width, image_size


def _transformed(ctx: ShapeContext) -> Dims:
    images = ctx.require_rank("images", 4) or (None,) * 4
    transforms = ctx.require_rank("transforms", 2)
    if not is_compatible(transforms, (None, 8)):
        raise InvalidArgumentError(
            "a transform has eight numbers", expected="[images or 1, 8]", actual=format_dims(transforms)
        )
    return (images[0], *height_and_width(ctx, "output_shape"), images[3])


_PIXELS: Final = "dtype: {uint8, int32, int64, float16, bfloat16, float32, float64}"
_HOW: Final = [
    _PIXELS,
    "interpolation: {'NEAREST', 'BILINEAR'}",
    "fill_mode: {'REFLECT', 'WRAP', 'CONSTANT', 'NEAREST'} = 'CONSTANT'",
]
_INPUTS: Final = "images: dtype, transforms: float32, output_shape: int32"
define_op(
    "ImageProjectiveTransformV2",
    _INPUTS,
    "transformed_images: dtype",
    _HOW,
    shape=_transformed,
    traits=opaque(),
)
define_op(
    "ImageProjectiveTransformV3",
    f"{_INPUTS}, fill_value: float32",
    "transformed_images: dtype",
    _HOW,
    shape=lambda ctx: (ctx.require_rank("fill_value", 0), _transformed(ctx))[1],
    traits=opaque(),
)


def _inverted(transforms: Tensor) -> Tensor:
    """Return the inverse transforms. Eight numbers are a 3×3 matrix without its last element, which is 1."""
    rows = convert_to_tensor(make("StridedSlice", make("Shape", transforms), [0], [1], [1]))
    ones = make("Fill", make("ConcatV2", [rows, [1]], 0), constant(1, dtypes.float32))
    matrices = make("Reshape", make("ConcatV2", [transforms, ones], 1), [-1, 3, 3])
    flat = make("Reshape", make("MatrixInverse", matrices), [-1, 9])
    eight = make("Slice", flat, [0, 0], [-1, 8])
    # The quotient makes the last element 1 again.
    return make("RealDiv", eight, make("Slice", flat, [0, 8], [-1, 1]))


@gradient("ImageProjectiveTransformV2")
def _v2_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Transform the gradient back, as TensorFlow does; where pixels are stretched this is only an approximation."""
    images, transforms, _ = op.inputs
    how = {name: op.attrs[name] for name in ("interpolation", "fill_mode")}
    return [make("ImageProjectiveTransformV2", grad, _inverted(transforms), image_size(images), **how), None, None]


@gradient("ImageProjectiveTransformV3")
def _v3_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Transform the gradient back like `_v2_grad`. Pixels outside have no gradient."""
    images, transforms, *_ = op.inputs
    how = {name: op.attrs[name] for name in ("interpolation", "fill_mode")}
    inverse, size = _inverted(transforms), image_size(images)
    return [make("ImageProjectiveTransformV3", grad, inverse, size, 0.0, **how), None, None, None]

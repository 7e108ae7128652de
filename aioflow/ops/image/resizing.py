"""Ops that resize images. See `images` for parts of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, merge_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.static_value import constant_value
from aioflow.graph.traits import opaque, transcendental
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.scoping import name_scope

# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def height_and_width(ctx: ShapeContext, name: str) -> tuple[int | None, int | None]:
    size = ctx.require_rank(name, 1)
    if size not in (None, (None,), (2,)):
        raise InvalidArgumentError("the size must be height and width", expected="2 elements", actual=format_dims(size))
    known = ctx.partial_shape(name)
    return (known[0], known[1]) if known is not None and len(known) == 2 else (None, None)


def _resized(ctx: ShapeContext) -> Dims:
    images = ctx.require_rank(ctx.op_def.inputs[0].name, 4) or (None,) * 4
    return (images[0], *height_and_width(ctx, "size"), images[3])


def _scaled(ctx: ShapeContext) -> Dims:
    for name in ("scale", "translation"):
        ctx.require_rank(name, 1)
    return _resized(ctx)


def _resized_grad(ctx: ShapeContext) -> Dims:
    """Return the shape of the original image, with the batch size and channels of the gradients."""
    grads, image = ctx.require_rank("grads", 4), ctx.require_rank("original_image", 4)
    return image if grads is None else merge_dims(image, (grads[0], None, None, grads[3]))


_PIXELS = "int8, uint8, int16, uint16, int32, int64, bfloat16, float16, float32, float64"
_SCALING = ["align_corners: bool = False", "half_pixel_centers: bool = False"]
define_op(
    "ResizeBilinear",
    "images: T, size: int32",
    "resized_images: float32",
    [f"T: {{{_PIXELS}}}", *_SCALING],
    shape=_resized,
    rows=rows.first_axis,
    traits=opaque(),
)
define_op(
    "ResizeBilinearGrad",
    "grads: float32, original_image: T",
    "output: T",
    ["T: {float32, bfloat16, float16, float64}", *_SCALING],
    shape=_resized_grad,
    traits=opaque(),
)
define_op(
    "ResizeNearestNeighbor",
    "images: T, size: int32",
    "resized_images: T",
    [f"T: {{{_PIXELS}}}", *_SCALING],
    shape=_resized,
    rows=rows.first_axis,
    traits=opaque(),
)
define_op(
    "ResizeNearestNeighborGrad",
    "grads: T, size: int32",
    "output: T",
    ["T: {uint8, int8, int32, float16, float32, float64, bfloat16}", *_SCALING],
    shape=_resized,
    traits=opaque(),
)

define_op(
    "ResizeBicubic",
    "images: T, size: int32",
    "resized_images: float32",
    [f"T: {{{_PIXELS}}}", *_SCALING],
    shape=_resized,
    rows=rows.first_axis,
    traits=opaque(cost=transcendental()),
)
define_op(
    "ResizeBicubicGrad",
    "grads: float32, original_image: T",
    "output: T",
    ["T: {float32, float64}", *_SCALING],
    shape=_resized_grad,
    traits=opaque(cost=transcendental()),
)
define_op(
    "ResizeArea",
    "images: T, size: int32",
    "resized_images: float32",
    [f"T: {{{_PIXELS}}}", "align_corners: bool = False"],
    shape=_resized,
    rows=rows.first_axis,
    traits=opaque(),
)
_KERNELS = "'lanczos1', 'lanczos3', 'lanczos5', 'gaussian', 'box', 'triangle', 'keyscubic', 'mitchellcubic'"
_KERNEL = [f"kernel_type: {{{_KERNELS}}} = 'lanczos3'", "antialias: bool = True"]
define_op(
    "ScaleAndTranslate",
    "images: T, size: int32, scale: float32, translation: float32",
    "resized_images: float32",
    [f"T: {{{_PIXELS}}}", *_KERNEL],
    shape=_scaled,
    rows=rows.first_axis,
    traits=opaque(cost=transcendental()),
)
define_op(
    "ScaleAndTranslateGrad",
    "grads: T, original_image: T, scale: float32, translation: float32",
    "output: T",
    ["T: {float32}", *_KERNEL],
    shape=_resized_grad,
    traits=opaque(cost=transcendental()),
)


def _scaling(op: Operation) -> Attrs:
    return {name: op.attrs[name] for name in ("align_corners", "half_pixel_centers")}


def image_size(image: Tensor) -> Tensor:
    sizes = () if image.dims is None else tuple(d for d in image.dims[1:3] if d is not None)
    if len(sizes) == 2:
        return convert_to_tensor(sizes, dtypes.int32)
    return make("StridedSlice", make("Shape", image), [1], [3], [1])


@gradient("ResizeBilinear")
def _bilinear_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("ResizeBilinearGrad", grad, op.inputs[0], **_scaling(op)), None]


@gradient("ResizeBilinearGrad")
def _bilinear_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Resize the gradient: the op is linear, and its transpose is the resizing."""
    return [make("ResizeBilinear", grad, image_size(op.inputs[0]), **_scaling(op)), None]


@gradient("ResizeNearestNeighbor")
def _nearest_neighbor_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    # An old pixel gets the sum of the gradients of its copies.
    return [make("ResizeNearestNeighborGrad", grad, image_size(op.inputs[0]), **_scaling(op)), None]


@gradient("ResizeNearestNeighborGrad")
def _nearest_neighbor_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("ResizeNearestNeighbor", grad, image_size(op.inputs[0]), **_scaling(op)), None]


def _as_floats(image: Tensor, dtype: dtypes.DType, gradient_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient in the image's dtype; `gradient_of` computes it, but accepts only images of `dtype`."""
    if image.dtype is dtype:
        return gradient_of(image)
    return make("Cast", gradient_of(make("Cast", image, DstT=dtype)), DstT=image.dtype)


@gradient("ResizeBicubic")
def _bicubic_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    image = op.inputs[0]
    # ResizeBicubicGrad takes images of float32 and float64 only.
    wide = dtypes.float64 if image.dtype is dtypes.float64 else dtypes.float32
    return [_as_floats(image, wide, lambda x: make("ResizeBicubicGrad", grad, x, **_scaling(op))), None]


@gradient("ResizeBicubicGrad")
def _bicubic_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("ResizeBicubic", grad, image_size(op.inputs[0]), **_scaling(op)), None]


def _kernel(op: Operation) -> Attrs:
    return {name: op.attrs[name] for name in ("kernel_type", "antialias")}


@gradient("ScaleAndTranslate")
def _scale_and_translate_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    image, _, *placed = op.inputs

    def back(x: Tensor) -> Tensor:
        return make("ScaleAndTranslateGrad", grad, x, *placed, **_kernel(op))

    return [_as_floats(image, dtypes.float32, back), None, None, None]


@gradient("ScaleAndTranslateGrad")
def _scale_and_translate_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    grads, _, *placed = op.inputs
    return [make("ScaleAndTranslate", grad, image_size(grads), *placed, **_kernel(op)), None, None, None]


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ResizeMethod:
    """The interpolation methods of `resize_images`."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


def resize_bilinear(
    images: TensorLike,
    size: TensorLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Resize images by bilinear interpolation: float32.

    Args:
        images: [batch, height, width, channels].
        size: The new height and width.
        align_corners: Whether the corner pixels stay corner pixels.
        name: Name of the node.
        half_pixel_centers: Whether a pixel's value is that at its center, which makes resizing symmetric.
    """
    return make(
        "ResizeBilinear",
        images,
        size,
        align_corners=align_corners,
        half_pixel_centers=half_pixel_centers,
        name=name,
    )


def resize_nearest_neighbor(
    images: TensorLike,
    size: TensorLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Resize images; each pixel is one of the old pixels. See `resize_bilinear`."""
    return make(
        "ResizeNearestNeighbor",
        images,
        size,
        align_corners=align_corners,
        half_pixel_centers=half_pixel_centers,
        name=name,
    )


def resize_bicubic(
    images: TensorLike,
    size: TensorLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Resize images by bicubic interpolation: float32. See `resize_bilinear`.

    The cubic has a = -1/2 with `half_pixel_centers`, as in Keys, "Cubic convolution interpolation for digital image
    processing" (1981), otherwise a = -3/4.
    """
    return make(
        "ResizeBicubic",
        images,
        size,
        align_corners=align_corners,
        half_pixel_centers=half_pixel_centers,
        name=name,
    )


def resize_area(images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None) -> Tensor:
    """Resize images; each pixel is the mean of the old pixels that it covers: float32. It has no gradient.

    Args:
        images: [batch, height, width, channels].
        size: The new height and width.
        align_corners: Whether the corner pixels stay corner pixels.
        name: Name of the node.
    """
    return make("ResizeArea", images, size, align_corners=align_corners, name=name)


_BY_METHOD: Final = {
    ResizeMethod.BILINEAR: "ResizeBilinear",
    ResizeMethod.NEAREST_NEIGHBOR: "ResizeNearestNeighbor",
    ResizeMethod.BICUBIC: "ResizeBicubic",
    ResizeMethod.AREA: "ResizeArea",
}


def resize_images(
    images: TensorLike,
    size: TensorLike,
    method: int = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """Resize an image or a batch of images. Images that have the size already are returned unchanged, in their dtype.

    Args:
        images: [height, width, channels], or a batch of them.
        size: The new height and width.
        method: One of `ResizeMethod`. `NEAREST_NEIGHBOR` returns the images' dtype, the others float32.
        align_corners: Whether the corner pixels stay corner pixels.
        preserve_aspect_ratio: Whether `size` is only an upper bound, so that the images keep their proportions.
        name: Name scope of the nodes.

    Raises:
        InvalidArgumentError: the rank of the images is not 3 or 4, or the method is unknown.
    """
    op_type = _BY_METHOD.get(method)
    if op_type is None:
        raise InvalidArgumentError("unknown resize method", expected=f"one of {list(_BY_METHOD)}", actual=method)
    with name_scope(name, "resize"):
        given = convert_to_tensor(images)
        if given.dims is None or len(given.dims) not in (3, 4):
            raise InvalidArgumentError("images have the wrong rank", expected="3 or 4", actual=format_dims(given.dims))
        many = given if len(given.dims) == 4 else make("ExpandDims", given, 0)
        target = convert_to_tensor(size, dtypes.int32)
        if preserve_aspect_ratio:
            target = _fitting(many, target)
        known = constant_value(target)
        if known is not None and many.dims is not None and tuple(known.tolist()) == many.dims[1:3]:
            return given
        made = make(op_type, many, target, align_corners=align_corners)
        return made if len(given.dims) == 4 else make("Squeeze", made, squeeze_dims=[0])


def _fitting(images: Tensor, size: Tensor) -> Tensor:
    """Return the largest size within `size` that has the images' proportions."""
    known, dims = constant_value(size), images.dims
    if known is not None and dims is not None and dims[1] and dims[2]:
        # float32, as a step computes it for sizes that are not known before.
        sizes = np.array(dims[1:3], np.float32)
        return convert_to_tensor(np.round(sizes * (known.astype(np.float32) / sizes).min()).astype(np.int32))
    current = make("Cast", image_size(images), DstT=dtypes.float32)
    # The smaller ratio fits both sides.
    scale = make("Min", make("RealDiv", make("Cast", size, DstT=dtypes.float32), current), 0)
    return make("Cast", make("Round", make("Mul", current, scale)), DstT=dtypes.int32)


def resize_image_with_pad(
    image: TensorLike,
    target_height: int,
    target_width: int,
    method: int = ResizeMethod.BILINEAR,
    align_corners: bool = False,
) -> Tensor:
    """Resize an image (or a batch of them) to fit into a size with its proportions kept, and center it in zeros.

    Args:
        image: [height, width, channels], or a batch of them.
        target_height: Height of the result.
        target_width: Width of the result.
        method: One of `ResizeMethod`.
        align_corners: Whether the corner pixels stay corner pixels.

    Raises:
        DTypeError: the image is not numeric.
        InvalidArgumentError: the rank of the image is not 3 or 4, or a target is not positive.
    """
    given = convert_to_tensor(image)
    if not (given.dtype.is_floating or given.dtype.is_integer):
        raise DTypeError("an image has the wrong dtype", expected="numbers", actual=given.dtype.name)
    if given.dims is None or len(given.dims) not in (3, 4):
        raise InvalidArgumentError("an image has the wrong rank", expected="3 or 4", actual=format_dims(given.dims))
    if min(target_height, target_width) <= 0:
        raise InvalidArgumentError("the target must be positive", expected="> 0", actual=(target_height, target_width))
    with name_scope(None, "resize_image_with_pad"):
        many = given if len(given.dims) == 4 else make("ExpandDims", given, 0)
        target = constant([target_height, target_width], dtypes.float32)
        size = make("Cast", image_size(many), DstT=dtypes.float32)
        # The larger ratio decides, so that both sides fit.
        ratio = make("Max", make("RealDiv", size, target), 0)
        fitting = make("Floor", make("RealDiv", size, ratio))
        margins = make("Maximum", make("RealDiv", make("Sub", target, make("RealDiv", size, ratio)), 2.0), 0.0)
        before = make("Cast", make("Floor", margins), DstT=dtypes.int32)
        resized = resize_images(many, make("Cast", fitting, DstT=dtypes.int32), method, align_corners)
        # All that remains goes behind the image, one pixel more than before it if the rest is odd.
        after = make("Sub", make("Sub", [target_height, target_width], before), image_size(resized))
        sides = make("ConcatV2", [[[0, 0]], make("Pack", [before, after], axis=1), [[0, 0]]], 0)
        made = make("Pad", resized, sides)
        made.set_shape((many.shape[0], target_height, target_width, many.shape[3]))
        return made if len(given.dims) == 4 else make("Squeeze", made, squeeze_dims=[0])

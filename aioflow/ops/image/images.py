"""Ops that decode and encode images, and resize parts of them.

Whole images are resized in `resizing`; plain cropping, flipping and colors are in `adjust`.
"""

from __future__ import annotations

from typing import Literal

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, merge_dims
from aioflow.graph.traits import encoded, opaque
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.image.adjust import convert_image_dtype
from aioflow.ops.image.resizing import height_and_width, image_size
from aioflow.ops.scoping import name_scope

# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _channels(ctx: ShapeContext) -> int | None:
    count = ctx.attrs["channels"]
    if count not in (0, 1, 3, 4):
        raise InvalidArgumentError("unsupported number of channels", expected="0, 1, 3 or 4", actual=count)
    # 0 stands for as many channels as the file has.
    return count or None


def _one_image(ctx: ShapeContext) -> Dims:
    ctx.require_rank("contents", 0)
    return (None, None, _channels(ctx))


def _any_image(ctx: ShapeContext) -> Dims:
    ctx.require_rank("contents", 0)
    channels = _channels(ctx)
    # An animation has one dimension more than an image.
    return None if ctx.attrs["expand_animations"] else (None, None, channels)


def _frames(ctx: ShapeContext) -> Dims:
    ctx.require_rank("contents", 0)
    return (None, None, None, 3)


def _encoded(ctx: ShapeContext) -> Dims:
    ctx.require_rank("image", 3)
    return ()


def _encoded_many(ctx: ShapeContext) -> Dims:
    dims = ctx.require_rank("image", 3, -1)
    return None if dims is None else dims[:-3]


def _count_of_boxes(ctx: ShapeContext) -> int | None:
    boxes, numbers = ctx.require_rank("boxes", 2), ctx.require_rank("box_ind", 1)
    if boxes is not None and boxes[1] not in (None, 4):
        raise InvalidArgumentError("a box is y1, x1, y2, x2", expected="4 columns", actual=format_dims(boxes))
    both = merge_dims(None if boxes is None else boxes[:1], numbers)
    return None if both is None else both[0]


def _crops(ctx: ShapeContext) -> Dims:
    image = ctx.require_rank("image", 4) or (None,) * 4
    return (_count_of_boxes(ctx), *height_and_width(ctx, "crop_size"), image[3])


def _cut_image(ctx: ShapeContext) -> Dims:
    ctx.require_rank("grads", 4)
    _count_of_boxes(ctx)
    return merge_dims(ctx.partial_shape("image_size"), (None,) * 4)


def _cutting_boxes(ctx: ShapeContext) -> Dims:
    for name in ("grads", "image"):
        ctx.require_rank(name, 4)
    return (_count_of_boxes(ctx), 4)


def _picture(ctx: ShapeContext) -> Dims:
    ctx.require_rank("encoded", 1)
    return (None, None, 1 if ctx.attrs["pixel_format"] == "Grayscale" else 3)


define_op(
    "DecodePng",
    "contents: string",
    "image: dtype",
    ["channels: int = 0", "dtype: {uint8, uint16} = uint8"],
    shape=_one_image,
    traits=encoded(),
)
define_op(
    "DecodeJpeg",
    "contents: string",
    "image: uint8",
    [
        "channels: int = 0",
        "ratio: int = 1",
        "fancy_upscaling: bool = True",
        "try_recover_truncated: bool = False",
        "acceptable_fraction: float = 1.0",
        "dct_method: string = ''",
    ],
    shape=_one_image,
    traits=encoded(),
)
define_op("DecodeBmp", "contents: string", "image: uint8", ["channels: int = 0"], shape=_one_image, traits=encoded())
define_op("DecodeGif", "contents: string", "image: uint8", shape=_frames, traits=encoded())
define_op(
    "DecodeImage",
    "contents: string",
    "image: dtype",
    ["channels: int = 0", "dtype: {uint8, uint16, float32} = uint8", "expand_animations: bool = True"],
    shape=_any_image,
    traits=encoded(),
)
define_op(
    # It accepts bytes rather than a string, and more formats than TensorFlow knows.
    "AioflowDecodePicture",
    "encoded: uint8",
    "image: uint8",
    ["pixel_format: {'RGB', 'BGR', 'Grayscale'} = 'RGB'"],
    shape=_picture,
    traits=encoded(),
)
define_op(
    "EncodePng",
    "image: T",
    "contents: string",
    ["compression: int = -1", "T: {uint8, uint16} = uint8"],
    shape=_encoded_many,
    traits=encoded(),
)
define_op(
    "EncodeJpeg",
    "image: uint8",
    "contents: string",
    [
        "format: {'', 'grayscale', 'rgb'} = ''",
        "quality: int = 95",
        "progressive: bool = False",
        "optimize_size: bool = False",
        "chroma_downsampling: bool = True",
        "density_unit: {'in', 'cm'} = 'in'",
        "x_density: int = 300",
        "y_density: int = 300",
        "xmp_metadata: string = ''",
    ],
    shape=_encoded,
    traits=encoded(),
)
define_op(
    "ExtractJpegShape",
    "contents: string",
    "image_shape: output_type",
    ["output_type: {index} = int32"],
    shape=lambda ctx: (3,),
    traits=encoded(),
)
_CUT_PIXELS = "uint8, uint16, int8, int16, int32, int64, float16, float32, float64"
define_op(
    "CropAndResize",
    "image: T, boxes: float32, box_ind: int32, crop_size: int32",
    "crops: float32",
    [f"T: {{{_CUT_PIXELS}}}", "method: {'bilinear', 'nearest'} = 'bilinear'", "extrapolation_value: float = 0.0"],
    shape=_crops,
    traits=opaque(),
)
define_op(
    "CropAndResizeGradImage",
    "grads: float32, boxes: float32, box_ind: int32, image_size: int32",
    "output: T",
    ["T: {float16, float32, float64}", "method: {'bilinear', 'nearest'} = 'bilinear'"],
    shape=_cut_image,
    traits=opaque(),
)
define_op(
    "CropAndResizeGradBoxes",
    "grads: float32, image: T, boxes: float32, box_ind: int32",
    "output: float32",
    [f"T: {{{_CUT_PIXELS}}}", "method: {'bilinear'} = 'bilinear'"],
    shape=_cutting_boxes,
    traits=opaque(),
)

not_differentiable(
    "DecodePng",
    "DecodeJpeg",
    "DecodeBmp",
    "DecodeGif",
    "DecodeImage",
    "EncodePng",
    "EncodeJpeg",
    "ExtractJpegShape",
)


@gradient("CropAndResize")
def _crop_and_resize_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Differentiate crops.

    With either method the boxes get the gradient of bilinear crops, as in TensorFlow: that of nearest crops is 0.
    """
    image, boxes, numbers, _ = op.inputs
    by_boxes = make("CropAndResizeGradBoxes", grad, image, boxes, numbers)
    if not image.dtype.is_floating:
        return [None, by_boxes, None, None]
    dims = [size for size in image.dims or () if size is not None]
    size = convert_to_tensor(dims, dtypes.int32) if len(dims) == 4 else make("Shape", image)
    by_image = make("CropAndResizeGradImage", grad, boxes, numbers, size, T=image.dtype, method=op.attrs["method"])
    return [by_image, by_boxes, None, None]


@gradient("CropAndResizeGradImage")
def _crop_and_resize_grad_image_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Crop the gradient: the op is linear in its incoming gradient, and its transpose is the cropping."""
    grads, boxes, numbers, _ = op.inputs
    crops = make("CropAndResize", grad, boxes, numbers, image_size(grads), method=op.attrs["method"])
    return [crops, make("CropAndResizeGradBoxes", grads, grad, boxes, numbers), None, None]


# ── decoding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_png(
    contents: TensorLike, channels: int = 0, dtype: DTypeLike = dtypes.uint8, name: str | None = None
) -> Tensor:
    """Decode a PNG image to [height, width, channels].

    Args:
        contents: The file's bytes, a scalar string.
        channels: 1 (grayscale), 3 (RGB) or 4 (RGBA); 0 for as many as the file has.
        dtype: uint8 or uint16.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the bytes are not a PNG image.
        UnimplementedError: Pillow is not installed: `pip install 'aioflow-engine[image]'`.
    """
    return make("DecodePng", contents, channels=channels, dtype=as_dtype(dtype), name=name)


def decode_jpeg(
    contents: TensorLike,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """Decode a JPEG image to [height, width, channels] uint8.

    Args:
        contents: The file's bytes, a scalar string.
        channels: 1 (grayscale) or 3 (RGB); 0 for as many as the file has.
        ratio: Factor by which to reduce the image during decoding: 1, 2, 4 or 8.
        fancy_upscaling: Accepted as TensorFlow does, without effect.
        try_recover_truncated: Whether a truncated file yields the part that it has, with the rest gray.
        acceptable_fraction: Accepted as TensorFlow does, without effect.
        dct_method: Accepted as TensorFlow does, without effect.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the bytes are not a JPEG image.
        UnimplementedError: Pillow is not installed: `pip install 'aioflow-engine[image]'`.
    """
    return make(
        "DecodeJpeg",
        contents,
        channels=channels,
        ratio=ratio,
        fancy_upscaling=fancy_upscaling,
        try_recover_truncated=try_recover_truncated,
        acceptable_fraction=acceptable_fraction,
        dct_method=dct_method,
        name=name,
    )


def decode_bmp(contents: TensorLike, channels: int = 0, name: str | None = None) -> Tensor:
    """Decode an uncompressed BMP image of 8, 24 or 32 bits to [height, width, channels] uint8. See `decode_png`."""
    return make("DecodeBmp", contents, channels=channels, name=name)


def decode_gif(contents: TensorLike, name: str | None = None) -> Tensor:
    """Decode all frames of a GIF animation to [frames, height, width, 3] uint8. See `decode_png`."""
    return make("DecodeGif", contents, name=name)


def decode_image(
    contents: TensorLike,
    channels: int | None = None,
    dtype: DTypeLike = dtypes.uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """Decode a BMP, GIF, JPEG or PNG image; the bytes determine the format.

    Args:
        contents: The file's bytes, a scalar string.
        channels: See `decode_png`; None is 0.
        dtype: uint8, uint16, or another to which the image is converted: floats are between 0 and 1.
        name: Name scope of the nodes.
        expand_animations: Whether to return all frames of a GIF, [frames, height, width, 3], or only the first one.

    Raises:
        InvalidArgumentError: the bytes are not an image of these formats.
        UnimplementedError: Pillow is not installed: `pip install 'aioflow-engine[image]'`.
    """
    wanted = as_dtype(dtype)
    direct = wanted in (dtypes.uint8, dtypes.uint16, dtypes.float32)
    with name_scope(name, "decode_image"):
        image = make(
            "DecodeImage",
            contents,
            channels=channels or 0,
            # uint16 keeps more precision than uint8 for the conversion below.
            dtype=wanted if direct else dtypes.uint16,
            expand_animations=expand_animations,
        )
        return image if direct else convert_image_dtype(image, wanted)


def is_jpeg(contents: TensorLike, name: str | None = None) -> Tensor:
    """Return whether the bytes begin like those of a JPEG image."""
    with name_scope(name, "is_jpeg"):
        # The marker at the start of a JPEG image, and the first byte of the next marker.
        return make("Equal", make("Substr", contents, 0, 3), b"\xff\xd8\xff")


def extract_jpeg_shape(contents: TensorLike, output_type: DTypeLike = dtypes.int32, name: str | None = None) -> Tensor:
    """Return height, width and number of channels of a JPEG image without decoding it."""
    return make("ExtractJpegShape", contents, output_type=as_dtype(output_type), name=name)


# ── encoding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_png(image: TensorLike, compression: int = -1, name: str | None = None) -> Tensor:
    """Encode an image as PNG; return the bytes.

    Args:
        image: [..., height, width, channels], uint8 or uint16, with 1 (grayscale), 2 (grayscale and alpha), 3 (RGB) or
            4 (RGBA) channels.
        compression: 0 to 9; -1 for the library's choice.
        name: Name of the node.
    """
    # An array keeps its dtype: a uint16 array of small values would otherwise be converted to the op's default, uint8.
    pixels = convert_to_tensor(image, None if hasattr(image, "dtype") else dtypes.uint8)
    return make("EncodePng", pixels, compression=compression, name=name)


def encode_jpeg(
    image: TensorLike,
    format: Literal["", "grayscale", "rgb"] = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: Literal["in", "cm"] = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Tensor:
    """Encode an image as JPEG; return the bytes.

    Args:
        image: [height, width, channels], uint8, with 1 (grayscale) or 3 (RGB) channels.
        format: "grayscale" or "rgb" to accept only such images.
        quality: 0 to 100.
        progressive: Whether to write a progressive file.
        optimize_size: Whether to optimize the file's size.
        chroma_downsampling: Whether to keep colors at half the resolution.
        density_unit: Unit of the pixel density in the file's header: "in" or "cm".
        x_density: Pixels per unit horizontally.
        y_density: Pixels per unit vertically.
        xmp_metadata: XMP metadata for the header.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the image has a different number of channels.
        UnimplementedError: Pillow is not installed: `pip install 'aioflow-engine[image]'`.
    """
    return make(
        "EncodeJpeg",
        convert_to_tensor(image, dtypes.uint8),
        format=format,
        quality=quality,
        progressive=progressive,
        optimize_size=optimize_size,
        chroma_downsampling=chroma_downsampling,
        density_unit=density_unit,
        x_density=x_density,
        y_density=y_density,
        xmp_metadata=xmp_metadata,
        name=name,
    )


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def crop_and_resize(
    image: TensorLike,
    boxes: TensorLike,
    box_ind: TensorLike | None = None,
    crop_size: TensorLike | None = None,
    method: Literal["bilinear", "nearest"] = "bilinear",
    extrapolation_value: float = 0,
    name: str | None = None,
    box_indices: TensorLike | None = None,
) -> Tensor:
    """Resize parts of images to one size: [boxes, height, width, channels], float32.

    Args:
        image: [batch, height, width, channels].
        boxes: [boxes, 4], each y1, x1, y2, x2, where 0 is the first row or column of an image and 1 the last. A box may
            extend beyond the image, and flips its part if y1 > y2 or x1 > x2.
        box_ind: Index of the image of each box.
        crop_size: Height and width.
        method: "bilinear" or "nearest".
        extrapolation_value: Value of pixels beyond the image.
        name: Name of the node.
        box_indices: Another name of `box_ind`.

    Raises:
        InvalidArgumentError: the index of an image is missing or out of range, `crop_size` is missing, or a box is not
            finite.
    """
    if (box_ind is None) == (box_indices is None):
        given = "none" if box_ind is None else "both"
        raise InvalidArgumentError("boxes need the numbers of their images", expected="box_indices", actual=given)
    if crop_size is None:
        raise InvalidArgumentError("crops need a size", expected="crop_size", actual="none")
    return make(
        "CropAndResize",
        image,
        boxes,
        box_indices if box_ind is None else box_ind,
        crop_size,
        method=method,
        extrapolation_value=extrapolation_value,
        name=name,
    )

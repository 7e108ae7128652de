"""Images as tensors: decoded, encoded, resized. Cropping, flipping and colours are in `image_adjust`."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op, gradient, not_differentiable
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, apply_op, convert_to_tensor
from aioflow.ops.image_adjust import convert_image_dtype

__all__: list[str] = []  # public in `aioflow.image`

# ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _channels(ctx: ShapeContext) -> int | None:
    count = ctx.attrs["channels"]
    if count not in (0, 1, 3, 4):
        raise InvalidArgumentError("no such number of channels", expected="0, 1, 3 or 4", actual=count)
    return count or None


def _one_image(ctx: ShapeContext) -> Dims:
    ctx.require_rank("contents", 0)
    return (None, None, _channels(ctx))


def _any_image(ctx: ShapeContext) -> Dims:
    ctx.require_rank("contents", 0)
    channels = _channels(ctx)
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


def _resized(ctx: ShapeContext) -> Dims:
    images = ctx.require_rank(ctx.op_def.inputs[0].name, 4) or (None,) * 4
    size = ctx.require_rank("size", 1)
    if size not in (None, (None,), (2,)):
        raise InvalidArgumentError("the size is height and width", expected="2 elements", actual=format_dims(size))
    known = ctx.partial_shape("size")
    height, width = known if known is not None and len(known) == 2 else (None, None)
    return (images[0], height, width, images[3])


define_op(
    "DecodePng",
    "contents: string",
    "image: dtype",
    ["channels: int = 0", "dtype: {uint8, uint16} = uint8"],
    shape=_one_image,
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
)
define_op("DecodeBmp", "contents: string", "image: uint8", ["channels: int = 0"], shape=_one_image)
define_op("DecodeGif", "contents: string", "image: uint8", shape=_frames)
define_op(
    "DecodeImage",
    "contents: string",
    "image: dtype",
    ["channels: int = 0", "dtype: {uint8, uint16, float32} = uint8", "expand_animations: bool = True"],
    shape=_any_image,
)
define_op(
    "EncodePng",
    "image: T",
    "contents: string",
    ["compression: int = -1", "T: {uint8, uint16} = uint8"],
    shape=_encoded_many,
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
)
define_op(
    "ExtractJpegShape",
    "contents: string",
    "image_shape: output_type",
    ["output_type: {index} = int32"],
    shape=lambda ctx: (3,),
)
_PIXELS = "int8, uint8, int16, uint16, int32, int64, bfloat16, float16, float32, float64"
_SCALING = ["align_corners: bool = False", "half_pixel_centers: bool = False"]
define_op(
    "ResizeBilinear",
    "images: T, size: int32",
    "resized_images: float32",
    [f"T: {{{_PIXELS}}}", *_SCALING],
    shape=_resized,
)
define_op(
    "ResizeBilinearGrad",
    "grads: float32, original_image: T",
    "output: T",
    ["T: {float32, bfloat16, float16, float64}", *_SCALING],
    shape=lambda ctx: ctx.dims("original_image"),
)
define_op(
    "ResizeNearestNeighbor",
    "images: T, size: int32",
    "resized_images: T",
    [f"T: {{{_PIXELS}}}", *_SCALING],
    shape=_resized,
)
define_op(
    "ResizeNearestNeighborGrad",
    "grads: T, size: int32",
    "output: T",
    ["T: {uint8, int8, int32, float16, float32, float64, bfloat16}", *_SCALING],
    shape=_resized,
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


def _scaling(op: Operation) -> dict[str, Any]:
    return {name: op.attrs[name] for name in ("align_corners", "half_pixel_centers")}


def _image_size(image: Tensor) -> Tensor:
    sizes = () if image.dims is None else tuple(d for d in image.dims[1:3] if d is not None)
    if len(sizes) == 2:
        return convert_to_tensor(sizes, dtypes.int32)
    result: Tensor = apply_op("StridedSlice", apply_op("Shape", image), [1], [3], [1])
    return result


@gradient("ResizeBilinear")
def _bilinear_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [apply_op("ResizeBilinearGrad", grad, op.inputs[0], **_scaling(op)), None]


@gradient("ResizeBilinearGrad")
def _bilinear_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """The gradient is linear, and its transpose is the resizing itself."""
    return [apply_op("ResizeBilinear", grad, _image_size(op.inputs[0]), **_scaling(op)), None]


@gradient("ResizeNearestNeighbor")
def _nearest_neighbor_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [apply_op("ResizeNearestNeighborGrad", grad, _image_size(op.inputs[0]), **_scaling(op)), None]


@gradient("ResizeNearestNeighborGrad")
def _nearest_neighbor_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [apply_op("ResizeNearestNeighbor", grad, _image_size(op.inputs[0]), **_scaling(op)), None]


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_png(
    contents: TensorLike, channels: int = 0, dtype: DTypeLike = dtypes.uint8, name: str | None = None
) -> Tensor:
    """A PNG image, [height, width, channels].

    Args:
        contents: The file's bytes, a scalar string.
        channels: 1 (grey), 3 (RGB) or 4 (RGBA); 0 for as many as the file has.
        dtype: uint8 or uint16.

    Raises:
        InvalidArgumentError: it is no PNG image.
        UnimplementedError: Pillow is not installed: `pip install 'aioflow[image]'`.
    """
    result: Tensor = apply_op("DecodePng", contents, channels=channels, dtype=as_dtype(dtype), name=name)
    return result


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
    """A JPEG image, [height, width, channels] uint8.

    Args:
        contents: The file's bytes, a scalar string.
        channels: 1 (grey) or 3 (RGB); 0 for as many as the file has.
        ratio: 1, 2, 4 or 8: how much smaller to make it while it is decoded.
        try_recover_truncated: Give what there is of a file that is cut short, the rest grey.
        fancy_upscaling, acceptable_fraction, dct_method: Accepted as TensorFlow does; the library's choices hold.

    Raises:
        InvalidArgumentError: it is no JPEG image.
        UnimplementedError: Pillow is not installed: `pip install 'aioflow[image]'`.
    """
    result: Tensor = apply_op(
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
    return result


def decode_bmp(contents: TensorLike, channels: int = 0, name: str | None = None) -> Tensor:
    """An uncompressed BMP image of 8, 24 or 32 bits, [height, width, channels] uint8. See `decode_png`."""
    result: Tensor = apply_op("DecodeBmp", contents, channels=channels, name=name)
    return result


def decode_gif(contents: TensorLike, name: str | None = None) -> Tensor:
    """All frames of a GIF animation, [frames, height, width, 3] uint8. See `decode_png`."""
    result: Tensor = apply_op("DecodeGif", contents, name=name)
    return result


def decode_image(
    contents: TensorLike,
    channels: int | None = None,
    dtype: DTypeLike = dtypes.uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """An image of any of the formats BMP, GIF, JPEG and PNG, which its bytes tell apart.

    Args:
        channels: As in `decode_png`; None is 0.
        dtype: uint8, uint16, or another to which the image is converted: floats are between 0 and 1.
        expand_animations: Give all frames of a GIF, [frames, height, width, 3]; otherwise the first one.
    """
    wanted = as_dtype(dtype)
    direct = wanted in (dtypes.uint8, dtypes.uint16, dtypes.float32)
    with default_graph().name_scope(name or "decode_image"):
        image: Tensor = apply_op(
            "DecodeImage",
            contents,
            channels=channels or 0,
            dtype=wanted if direct else dtypes.uint16,
            expand_animations=expand_animations,
        )
        return image if direct else convert_image_dtype(image, wanted)


def is_jpeg(contents: TensorLike, name: str | None = None) -> Tensor:
    """Whether the bytes begin as those of a JPEG image do."""
    with default_graph().name_scope(name or "is_jpeg"):
        result: Tensor = apply_op("Equal", apply_op("Substr", contents, 0, 3), b"\xff\xd8\xff")
        return result


def extract_jpeg_shape(contents: TensorLike, output_type: DTypeLike = dtypes.int32, name: str | None = None) -> Tensor:
    """Height, width and number of channels of a JPEG image, which is not decoded for that."""
    result: Tensor = apply_op("ExtractJpegShape", contents, output_type=as_dtype(output_type), name=name)
    return result


# ── encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_png(image: TensorLike, compression: int = -1, name: str | None = None) -> Tensor:
    """The bytes of a PNG image.

    Args:
        image: [..., height, width, channels], uint8 or uint16, with 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA)
            channels.
        compression: 0 to 9; -1 for the library's choice.
    """
    # An array keeps its dtype: converted to the op's default, a uint16 one would lose it where its values are small.
    pixels = convert_to_tensor(image, None if hasattr(image, "dtype") else dtypes.uint8)
    result: Tensor = apply_op("EncodePng", pixels, compression=compression, name=name)
    return result


def encode_jpeg(
    image: TensorLike,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Tensor:
    """The bytes of a JPEG image.

    Args:
        image: [height, width, channels], uint8, with 1 (grey) or 3 (RGB) channels.
        format: "grayscale" or "rgb", where it must be one of them.
        quality: 0 to 100.
        progressive, optimize_size: How the file is made.
        chroma_downsampling: Keep colours at half the resolution.
        density_unit, x_density, y_density: Pixels an inch ("in") or a centimetre ("cm"), for the file's header.
        xmp_metadata: What else the header says.

    Raises:
        InvalidArgumentError: the image has another number of channels.
        UnimplementedError: Pillow is not installed: `pip install 'aioflow[image]'`.
    """
    result: Tensor = apply_op(
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
    return result


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class ResizeMethod:
    """How `resize_images` works out pixels. Bicubic and area are not implemented."""

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
    """Images in another size, by bilinear interpolation: float32.

    Args:
        images: [batch, height, width, channels].
        size: The new height and width.
        align_corners: The corner pixels stay corner pixels.
        half_pixel_centers: A pixel's value is that at its centre, which makes resizing symmetric.
    """
    result: Tensor = apply_op(
        "ResizeBilinear",
        images,
        size,
        align_corners=align_corners,
        half_pixel_centers=half_pixel_centers,
        name=name,
    )
    return result


def resize_nearest_neighbor(
    images: TensorLike,
    size: TensorLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images in another size, where each pixel is one of the old ones. See `resize_bilinear`."""
    result: Tensor = apply_op(
        "ResizeNearestNeighbor",
        images,
        size,
        align_corners=align_corners,
        half_pixel_centers=half_pixel_centers,
        name=name,
    )
    return result


def resize_images(
    images: TensorLike,
    size: TensorLike,
    method: int = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """An image, or a batch of images, in another size. Images that have it already are given back as they are.

    Args:
        method: `ResizeMethod.BILINEAR` (float32) or `NEAREST_NEIGHBOR` (the images' dtype).
        preserve_aspect_ratio: `size` is the largest that the images may get.

    Raises:
        InvalidArgumentError: the rank of the images is not 3 or 4.
        UnimplementedError: another method.
    """
    op_type = {0: "ResizeBilinear", 1: "ResizeNearestNeighbor"}.get(method)
    if op_type is None:
        raise UnimplementedError("no such method of resizing", expected="BILINEAR or NEAREST_NEIGHBOR", actual=method)
    with default_graph().name_scope(name or "resize"):
        given = convert_to_tensor(images)
        if given.dims is None or len(given.dims) not in (3, 4):
            raise InvalidArgumentError("images have a wrong rank", expected="3 or 4", actual=format_dims(given.dims))
        many = given if len(given.dims) == 4 else apply_op("ExpandDims", given, 0)
        target = convert_to_tensor(size, dtypes.int32)
        if preserve_aspect_ratio:
            target = _fitting(many, target)
        known = constant_value(target)
        if known is not None and many.dims is not None and tuple(known.tolist()) == many.dims[1:3]:
            return given
        made: Tensor = apply_op(op_type, many, target, align_corners=align_corners)
        single: Tensor = made if len(given.dims) == 4 else apply_op("Squeeze", made, squeeze_dims=[0])
        return single


def _fitting(images: Tensor, size: Tensor) -> Tensor:
    """The largest size within `size` that has the images' proportions."""
    known, dims = constant_value(size), images.dims
    if known is not None and dims is not None and dims[1] and dims[2]:
        sizes = np.array(dims[1:3], np.float32)
        return convert_to_tensor(np.round(sizes * (known.astype(np.float32) / sizes).min()).astype(np.int32))
    current = apply_op("Cast", _image_size(images), DstT=dtypes.float32)
    scale = apply_op("Min", apply_op("RealDiv", apply_op("Cast", size, DstT=dtypes.float32), current), 0)
    result: Tensor = apply_op("Cast", apply_op("Round", apply_op("Mul", current, scale)), DstT=dtypes.int32)
    return result

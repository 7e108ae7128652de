"""Kernels that decode and encode images. Pillow does most of the work, and is imported for the first image.

All but the smallest images are processed in a thread, so that the event loop stays responsive.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import batches, checkpoint
from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.formats.png import MOST_PIXELS, SIGNATURE, is_deep, read_deep_png, write_png
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.kernels.convert import as_bytes
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.text import as_strings, string_values
from aioflow.loading.later import not_installed
from aioflow.memory.values import Array, Value

_FEW_PIXELS: Final = 1 << 12  # decoded in some tens of microseconds, less than a call in a thread takes
_Decoder: TypeAlias = Callable[[Value], Array | Awaitable[Array]]
_JPEG, _GIF, _BMP = b"\xff\xd8\xff", b"GIF8", b"BM"


def _pillow() -> ModuleType:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise not_installed("decoding and encoding of images", "Pillow", error, "image") from error


@contextmanager
def _image_errors(what: str) -> Iterator[None]:
    """Convert exceptions of decoders to InvalidArgumentError. OpError and MemoryError pass unchanged."""
    try:
        yield
    except (OpError, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders raise nearly any exception for damaged files
        actual = str(error).partition(" <_io.")[0]  # without the repr of the internal stream
        raise InvalidArgumentError(f"not a complete {what} image", expected="its bytes", actual=actual) from error


def _opened(data: bytes, what: str) -> Any:
    with _image_errors(what):
        return _pillow().open(BytesIO(data), formats=[what])


# ── channels ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _most(image: Array) -> int:
    return np.iinfo(image.dtype).max


def _recoloured(image: Array, channels: int) -> Array:
    """Return the image with that many channels; 0 keeps its own. Gray is computed in integers, as by libpng."""
    have = image.shape[2]
    if channels in (0, have):
        return image
    colours = image[:, :, : have - 1] if have in (2, 4) else image
    if channels == 1:
        if colours.shape[2] == 1:
            return colours.copy()
        red, green, blue = np.moveaxis(colours.astype(np.int64), 2, 0)
        # libpng rounds 16-bit samples and truncates 8-bit ones.
        half = 16384 if image.dtype == np.uint16 else 0
        grey: Array = (9797 * red + 19234 * green + 3737 * blue + half) >> 15  # the weights sum to 32768
        return grey.astype(image.dtype)[:, :, None]
    if colours.shape[2] == 1:
        colours = np.repeat(colours, 3, axis=2)
    if channels == 3:
        return np.ascontiguousarray(colours)
    alpha = image[:, :, -1:] if have in (2, 4) else np.full((*image.shape[:2], 1), _most(image), image.dtype)
    return np.concatenate([colours, alpha], axis=2)


def _only(allowed: tuple[int, ...], channels: int, what: str) -> None:
    if channels not in allowed:
        raise InvalidArgumentError(
            f"{what} images do not have that number of channels", expected=f"one of {allowed}", actual=channels
        )


# ── formats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _png(data: bytes, channels: int, deep: bool) -> Array:
    if is_deep(data):
        image = read_deep_png(data)
    else:
        image = _shallow_png(data, channels)
    image = _recoloured(image, channels)  # before the change of depth, in the order of libpng
    if image.dtype == np.uint16 and not deep:
        return (image >> 8).astype(np.uint8)
    # 255 * 257 is 65535, so white stays white.
    return image.astype(np.uint16) * np.uint16(257) if deep and image.dtype == np.uint8 else image


def _shallow_png(data: bytes, channels: int) -> Array:
    opened = _opened(data, "PNG")
    with _image_errors("PNG"):
        if opened.mode.startswith("I"):
            return np.asarray(opened).astype(np.uint16)[:, :, None]
        transparent = "transparency" in opened.info
        if opened.mode == "P":
            opened = opened.convert("RGBA" if transparent else "RGB")
        elif opened.mode == "1":
            opened = opened.convert("L")
        elif transparent and channels == 4:
            opened = opened.convert("RGBA")
        image = np.array(opened)
    return image[:, :, None] if image.ndim == 2 else image


def _jpeg(data: bytes, channels: int, ratio: int = 1, recover: bool = False) -> Array:
    _only((0, 1, 3), channels, "JPEG")
    if ratio not in (1, 2, 4, 8):
        raise InvalidArgumentError("unsupported ratio", expected="1, 2, 4 or 8", actual=ratio)
    # For recovery an end marker is appended, which a truncated file lacks.
    opened = _opened(data + b"\xff\xd9" if recover else data, "JPEG")
    with _image_errors("JPEG"):
        mode = {0: "L" if opened.mode == "L" else "RGB", 1: "L", 3: "RGB"}[channels]
        wanted = tuple(-(-size // ratio) for size in opened.size)
        # In a draft libjpeg scales while it decodes. If it cannot scale by the whole ratio, `reduce` does.
        opened.draft(mode, tuple(max(1, size // ratio) for size in opened.size))
        image = opened.convert(mode)
        if image.size != wanted:
            image = image.reduce(ratio)
        made = np.array(image)
    return made[:, :, None] if made.ndim == 2 else made


def _gif(data: bytes, limit: int | None = None) -> Array:
    """Return at most `limit` frames, as [frames, height, width, 3], each cropped to the size of the image."""
    opened = _opened(data, "GIF")
    width, height = opened.size
    frames: list[Array] = []
    with _image_errors("GIF"):
        count = opened.n_frames if limit is None else limit
        # Before decoding, because a small file may hold many pixels.
        if count * width * height > MOST_PIXELS:
            raise InvalidArgumentError(
                "the GIF image is too large", expected=f"<= {MOST_PIXELS} pixels", actual=(count, height, width)
            )
        for number in range(count):
            checkpoint()
            opened.seek(number)
            frames.append(np.array(opened.convert("RGB"))[:height, :width])
    return np.stack(frames)


def _bmp(data: bytes, channels: int) -> Array:
    """Decode an uncompressed BMP image."""
    # From byte 10: offset of the pixels, size of the header, width, height, planes, bits per pixel, compression.
    with _image_errors("BMP"):
        offset, _, width, height, _, bits, packing = struct.unpack_from("<IIiiHHI", data, 10)
    if data[:2] != _BMP or bits not in (8, 24, 32) or packing not in (0, 3) or width <= 0 or height == 0:
        raise InvalidArgumentError(
            "not a BMP image that can be read", expected="8, 24 or 32 bits, not compressed", actual=f"{bits} bits"
        )
    have = bits // 8
    _only((0, 3, 4), channels, "BMP")
    stride = -(-width * have // 4) * 4
    if offset + stride * abs(height) > len(data):
        raise InvalidArgumentError("the BMP image is cut short", expected=stride * abs(height), actual=len(data))
    # Rows run from the bottom up, or down if the height is negative. Each is padded to four bytes; blue comes first.
    rows = np.frombuffer(data, np.uint8, stride * abs(height), offset).reshape(abs(height), stride)
    image = rows[:, : width * have].reshape(abs(height), width, have)
    image = image if have == 1 else image[:, :, [2, 1, 0, 3][:have]]
    return _recoloured(np.ascontiguousarray(image[::-1] if height > 0 else image), channels)


def _still(data: bytes, channels: int, deep: bool) -> Array:
    """Decode a PNG, JPEG or GIF image of one frame: the ops for PNG and for JPEG accept all three formats."""
    if data.startswith(SIGNATURE):
        return _png(data, channels, deep)
    if data.startswith(_JPEG):
        image = _jpeg(data, channels)
    elif data.startswith(_GIF):
        _only((0, 3), channels, "GIF")
        frames = _gif(data)
        if len(frames) != 1:
            raise InvalidArgumentError("an animation is not a single image", expected="one frame", actual=len(frames))
        image = frames[0]
    else:
        raise InvalidArgumentError("not an image", expected="PNG, JPEG or GIF", actual=repr(data[:16]))
    return _deepened(image) if deep else image


def _deepened(image: Array) -> Array:
    """Return the image at 16 bits, scaled by 256 as TensorFlow does for all formats except PNG."""
    # White becomes 255 * 256, not 65535.
    return image.astype(np.uint16) * np.uint16(256)


def _any(data: bytes, channels: int, dtype: DType, animated: bool) -> Array:
    png = data.startswith(SIGNATURE)
    if data.startswith(_BMP):
        image = _bmp(data, channels)
    elif data.startswith(_GIF):
        _only((0, 3), channels, "GIF")
        frames = _gif(data, None if animated else 1)
        image = frames if animated else frames[0]
    else:
        image = _still(data, channels, png and dtype is not dtypes.uint8)
    if dtype is dtypes.float32:
        return image.astype(np.float32) * np.float32(1.0 / _most(image))
    if dtype is dtypes.uint16 and image.dtype == np.uint8:
        return _deepened(image)
    return image


# ── decoding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_small(data: bytes) -> bool:
    """Return True if the header proves that the image has few pixels."""
    # The first chunk of PNG is IHDR. It begins with width and height, big-endian.
    if data.startswith(SIGNATURE) and data[12:16] == b"IHDR" and len(data) > 24:
        width, height = struct.unpack_from(">II", data, 16)
    elif data.startswith(_BMP) and len(data) > 26:
        width, height = struct.unpack_from("<ii", data, 18)
    else:
        # A GIF or JPEG file of a few bytes may hold millions of pixels.
        return False
    return bool(abs(width * height) <= _FEW_PIXELS)


def _decoder(decode: Callable[[bytes], Array]) -> _Decoder:
    def run(contents: Value) -> Array | Awaitable[Array]:
        strings = string_values(contents)
        if strings.ndim:
            raise InvalidArgumentError("one image is decoded at a time", expected="a scalar", actual=strings.shape)
        data: bytes = strings.item()
        return decode(data) if _is_small(data) else in_thread(decode, data, effects=False)

    return run


@binder("DecodePng", device="CPU", is_async=True, fresh=True)
def decode_png(binding: Binding) -> _Decoder:
    attrs = binding.attrs
    return _decoder(partial(_still, channels=attrs["channels"], deep=attrs["dtype"] is dtypes.uint16))


@binder("DecodeJpeg", device="CPU", is_async=True, fresh=True)
def decode_jpeg(binding: Binding) -> _Decoder:
    channels, ratio, recover = (binding.attrs[name] for name in ("channels", "ratio", "try_recover_truncated"))

    def decode(data: bytes) -> Array:
        if data.startswith(_JPEG):
            return _jpeg(data, channels, ratio, recover)
        return _still(data, channels, deep=False)

    return _decoder(decode)


@binder("DecodeBmp", device="CPU", is_async=True, fresh=True)
def decode_bmp(binding: Binding) -> _Decoder:
    return _decoder(partial(_bmp, channels=binding.attrs["channels"]))


@binder("DecodeGif", device="CPU", is_async=True, fresh=True)
def decode_gif(binding: Binding) -> _Decoder:
    return _decoder(_gif)


@binder("DecodeImage", device="CPU", is_async=True, fresh=True)
def decode_image(binding: Binding) -> _Decoder:
    attrs = binding.attrs
    return _decoder(
        partial(_any, channels=attrs["channels"], dtype=attrs["dtype"], animated=attrs["expand_animations"])
    )


_PICTURES: Final = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


def _picture(data: bytes, pixels: str) -> Array:
    """Return the pixels as Pillow decodes them, for any format of the ONNX op ImageDecoder."""
    with _image_errors("complete"):
        opened = _pillow().open(BytesIO(data), formats=_PICTURES)
        width, height = opened.size
        if width * height > MOST_PIXELS:
            raise InvalidArgumentError(
                "the image is too large", expected=f"<= {MOST_PIXELS} pixels", actual=(height, width)
            )
        image = np.array(opened.convert("L" if pixels == "Grayscale" else "RGB"))
    if pixels == "Grayscale":
        return image[:, :, None]
    return np.ascontiguousarray(image[:, :, ::-1]) if pixels == "BGR" else image


@binder("AioflowDecodePicture", device="CPU", is_async=True, fresh=True)
def decode_picture(binding: Binding) -> Callable[[Array], Awaitable[Array]]:
    pixels = binding.attrs["pixel_format"]

    def run(encoded: Array) -> Awaitable[Array]:
        if encoded.ndim != 1:
            raise InvalidArgumentError("one image is decoded at a time", expected="[bytes]", actual=encoded.shape)
        return in_thread(_picture, encoded.tobytes(), pixels, effects=False)

    return run


@binder("ExtractJpegShape", device="CPU", fresh=True, host={"contents": as_bytes})
def extract_jpeg_shape(binding: Binding) -> Callable[[bytes], Array]:
    dtype = binding.output_dtypes[0].np_dtype

    def extract(contents: bytes) -> Array:
        opened = _opened(contents, "JPEG")
        return np.array([opened.height, opened.width, len(opened.getbands())], dtype=dtype)

    return extract


# ── encoding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _checked(image: Array, channels: tuple[int, ...]) -> Array:
    if image.ndim < 3 or image.shape[-1] not in channels or not image.size:
        raise InvalidArgumentError(
            "not an image that can be encoded", expected=f"[height, width, one of {channels}]", actual=image.shape
        )
    return image


@binder("EncodePng", device="CPU", is_async=True, fresh=True)
def encode_png(binding: Binding) -> Callable[[Array], Array | Awaitable[Array]]:
    compression = binding.attrs["compression"]
    if not -1 <= compression <= 9:
        raise InvalidArgumentError("unknown compression", expected="-1..9", actual=compression)

    def encode(images: Array) -> Array:
        many = images.reshape(-1, *images.shape[-3:])
        return as_strings([write_png(image, compression) for image in batches(many, 1)], images.shape[:-3])

    def run(image: Array) -> Array | Awaitable[Array]:
        _checked(image, (1, 2, 3, 4))
        return encode(image) if image.size <= _FEW_PIXELS else in_thread(encode, image, effects=False)

    return run


@kernel("EncodeJpeg", device="CPU", fresh=True)
async def encode_jpeg(
    image: Array,
    *,
    format: str,
    quality: int,
    progressive: bool,
    optimize_size: bool,
    chroma_downsampling: bool,
    density_unit: str,
    x_density: int,
    y_density: int,
    xmp_metadata: str,
) -> Array:
    _checked(image, {"": (1, 3), "grayscale": (1,), "rgb": (3,)}[format])
    if image.ndim != 3 or not 0 <= quality <= 100:
        raise InvalidArgumentError(
            "one image is encoded at a time, with a quality of at most 100", expected="rank 3", actual=image.shape
        )
    # Pillow expects dots per inch; the density may be per centimeter.
    inch = 1.0 if density_unit == "in" else 2.54
    options: dict[str, object] = {
        "quality": quality,
        "progressive": progressive,
        "optimize": optimize_size or progressive,
        # 2 stands for 4:2:0, and 0 for 4:4:4.
        "subsampling": 2 if chroma_downsampling else 0,
        "dpi": (x_density * inch, y_density * inch),
    }
    if xmp_metadata:
        options["xmp"] = xmp_metadata.encode()

    def encode() -> Array:
        out = BytesIO()
        _pillow().fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(out, "JPEG", **options)
        return as_strings([out.getvalue()], ())

    return await in_thread(encode, effects=False)

"""Images against TensorFlow: files that each writes and both read, resizing with gradients, cropping and colors."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.testing.evaluate import evaluate
from tests.parity.test_parsing import same

Image = pytest.importorskip("PIL.Image", reason="images are decoded by Pillow: pip install 'aioflow-engine[image]'")
RNG = np.random.default_rng(11)


def pixels(*shape: int, dtype: str = "uint8", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if "int" in dtype:
        return rng.integers(0, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)
    return rng.random(shape).astype(dtype)


def smooth(height: int, width: int) -> Any:
    """Return a smooth image: JPEG does not preserve noise."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    channels = [np.sin(x / 9 + i) * np.cos(y / 7 - i) for i in range(3)]
    return ((np.stack(channels, 2) + 1) * 127).astype(np.uint8)


def saved(array: Any, kind: str, mode: str | None = None, **options: Any) -> bytes:
    out = BytesIO()
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(out, kind, **options)
    return out.getvalue()


def written(tf: Any, build: Any) -> bytes:
    with tf.Graph().as_default(), tf.Session() as session:
        data: bytes = session.run(build(tf))
    return data


# ── PNG ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("have", [1, 2, 3, 4])
def test_png(parity: Any, tf: Any, dtype: str, have: int) -> None:
    """Read each system's files in both systems, with any number of channels, at 8 and 16 bits."""
    image = pixels(7, 5, have, dtype=dtype)
    image[2:5] = image[2]  # equal rows, which row filters compress well
    theirs = written(tf, lambda m: m.image.encode_png(image))
    mine = evaluate([af.image.encode_png(image)])[0].item()
    for data in (theirs, mine):
        for wanted in (0, 1, 3, 4):
            for bits in ("uint8", "uint16"):
                same(*parity.either(lambda m, d=data, w=wanted, b=bits: [m.image.decode_png(d, w, getattr(m, b))]))
    same(*parity.either(lambda m: [m.image.decode_png(mine, 2)]))


def test_every_filter_of_deep_png_files(parity: Any, tf: Any) -> None:
    """Read an image for whose rows TensorFlow's writer chooses all of the filters."""
    y, x = np.mgrid[:40, :30]
    waves = ((np.sin(x / 3) + np.cos(y / 4) + 2) * 16000)[:, :, None] * np.array([1.0, 0.5, 0.9])
    image = waves.astype(np.uint16) + pixels(40, 30, 3, dtype="uint16") // 300
    data = written(tf, lambda m: m.image.encode_png(image))
    same(*parity.either(lambda m: [m.image.decode_png(data, dtype=m.uint16)]))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
def test_png_files_of_other_modes(parity: Any, mode: str) -> None:
    data = saved(smooth(6, 8), "PNG", mode)
    for channels in (0, 1, 3) if mode == "1" else (0, 1, 3, 4):  # TensorFlow sets the alpha of one-bit images to 1
        same(*parity.either(lambda m, c=channels: [m.image.decode_png(data, c)]))
    for bits in (2, 4):
        palette = saved(smooth(6, 8), "PNG", "P", bits=bits)
        same(*parity.either(lambda m, d=palette: [m.image.decode_png(d, 3)]))


def test_transparent_palettes(parity: Any) -> None:
    palette = Image.fromarray(smooth(6, 8)).quantize(8)
    out = BytesIO()
    palette.save(out, "PNG", transparency=bytes([0, 100, 255, 7]))
    for channels in (0, 1, 3, 4):
        same(*parity.either(lambda m, c=channels: [m.image.decode_png(out.getvalue(), c)]))


def test_batches_are_encoded_one_by_one(parity: Any) -> None:
    images = pixels(2, 3, 4, 5, 3)
    found, theirs = parity.either(lambda m: [m.image.encode_png(images)])
    assert found[0].shape == theirs[0].shape == (2, 3)
    for index in np.ndindex(2, 3):
        np.testing.assert_array_equal(evaluate([af.image.decode_png(found[0][index])])[0], images[index])


# ── JPEG ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def near(parity: Any, build: Any, most: int = 1, mean: float = 0.05) -> None:
    """Compare decoded JPEGs with a tolerance: rounding is up to the decoder, and small for the accurate method."""
    mine, theirs = (np.asarray(v[0]).astype(int) for v in parity.either(build))
    assert mine.shape == theirs.shape
    assert np.abs(mine - theirs).max() <= most
    assert np.abs(mine - theirs).mean() <= mean


@pytest.mark.parametrize("channels", [0, 1, 3])
@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@pytest.mark.parametrize("grey", [False, True])
def test_jpeg(parity: Any, tf: Any, channels: int, ratio: int, grey: bool) -> None:
    image = smooth(45, 67)[:, :, :1] if grey else smooth(45, 67)
    for writer in (tf, af):
        if writer is af:
            data = evaluate([af.image.encode_jpeg(image)])[0].item()
        else:
            data = written(writer, lambda m: m.image.encode_jpeg(image))
        near(parity, lambda m, d=data: [m.image.decode_jpeg(d, channels, ratio, dct_method="INTEGER_ACCURATE")])
        same(*parity.either(lambda m, d=data: [m.image.extract_jpeg_shape(d), m.image.is_jpeg([d, b"x"])]))
        near(
            parity, lambda m, d=data: [m.image.decode_image(d, channels)], 8, 2.0
        )  # TensorFlow uses its fast method there


@pytest.mark.parametrize("options", [
    {"quality": 30}, {"progressive": True}, {"optimize_size": True}, {"chroma_downsampling": False},
    {"density_unit": "cm", "x_density": 10, "y_density": 20}, {"format": "rgb"}, {"xmp_metadata": "<x/>"},
])  # fmt: skip
def test_encode_jpeg(tf: Any, options: dict[str, Any]) -> None:
    """Compare the pixels and metadata, since the bytes of the files differ."""
    image = smooth(45, 67)
    mine = evaluate([af.image.encode_jpeg(image, **options)])[0].item()
    theirs = written(tf, lambda m: m.image.encode_jpeg(image, **options))
    first, second = (Image.open(BytesIO(data)) for data in (mine, theirs))
    difference = np.abs(np.asarray(first).astype(int) - np.asarray(second).astype(int))
    assert difference.max() <= 6
    assert difference.mean() <= 1
    assert bool(first.info.get("progressive")) == bool(second.info.get("progressive"))
    assert first.info["dpi"] == pytest.approx(second.info["dpi"], rel=0.02)
    assert first.info.get("xmp") == second.info.get("xmp")


def test_truncated_jpeg(parity: Any, tf: Any) -> None:
    data = saved(smooth(64, 64), "JPEG")[:700]
    same(*parity.either(lambda m: [m.image.decode_jpeg(data)]))

    def build(m: Any) -> Any:
        return m.image.decode_jpeg(data, try_recover_truncated=True, acceptable_fraction=0.01)

    assert np.shape(written(tf, build)) == evaluate([build(af)])[0].shape == (64, 64, 3)


# ── GIF and BMP ──────────────────────────────────────────────────────────────────────────────────────────────────────


def animation(count: int) -> bytes:
    frames = [Image.fromarray(np.roll(smooth(6, 8), n, axis=1)).quantize(16) for n in range(count)]
    out = BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


@pytest.mark.parametrize("count", [1, 3])
def test_gif(parity: Any, count: int) -> None:
    data = animation(count)
    same(*parity.either(lambda m: [m.image.decode_gif(data)]))
    for animated in (True, False):
        same(*parity.either(lambda m, a=animated: [m.image.decode_image(data, expand_animations=a)]))
        same(*parity.either(lambda m, a=animated: [m.image.decode_image(data, 1, expand_animations=a)]))
    same(*parity.either(lambda m: [m.image.decode_png(data)]))


@pytest.mark.parametrize("have", [1, 3, 4])
def test_bmp(parity: Any, have: int) -> None:
    image = pixels(5, 7, have)
    rows = image[::-1, :, [2, 1, 0, 3][:have] if have > 1 else [0]].reshape(5, -1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))
    for height, body in ((5, rows), (-5, rows[::-1])):
        header = struct.pack(
            "<2sIHHIIiiHHIIiiII", b"BM", 54 + rows.size, 0, 0, 54, 40, 7, height, 1, have * 8, *[0] * 6
        )
        data = header + body.tobytes()
        for channels in (0, 1, 3, 4):
            if (have, channels) != (1, 4):  # TensorFlow invents an alpha channel there
                same(*parity.either(lambda m, d=data, c=channels: [m.image.decode_bmp(d, c)]))
        found = evaluate([af.image.decode_image(data)])[0]
        np.testing.assert_array_equal(found, image)
    same(*parity.either(lambda m: [m.image.decode_bmp(data[:60])]))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float16", "int32"])
def test_decode_image_as_other_dtypes(parity: Any, tf: Any, dtype: str) -> None:
    deep = written(tf, lambda m: m.image.encode_png(pixels(4, 5, 3, dtype="uint16")))
    for data in (saved(smooth(4, 5), "PNG"), deep, animation(2)):
        mine, theirs = parity.either(lambda m, d=data: [m.image.decode_image(d, dtype=getattr(m, dtype))])
        assert mine[0].dtype == theirs[0].dtype
        np.testing.assert_allclose(mine[0].astype(np.float64), theirs[0].astype(np.float64), rtol=1e-3)


WRONG: dict[str, Any] = {
    "no png": lambda m: m.image.decode_png(b"nonsense"),
    "empty": lambda m: m.image.decode_png(b""),
    "a cut png": lambda m: m.image.decode_png(saved(smooth(30, 30), "PNG")[:200]),
    "no jpeg": lambda m: m.image.decode_jpeg(b"\xff\xd8\xff nonsense"),
    "no gif": lambda m: m.image.decode_gif(b"GIF89a"),
    "no bmp": lambda m: m.image.decode_bmp(b"BM"),
    "no image": lambda m: m.image.decode_image(b"nonsense"),
    "four channels of jpeg": lambda m: m.image.decode_jpeg(saved(smooth(8, 8), "JPEG"), 4),
    "a ratio": lambda m: m.image.decode_jpeg(saved(smooth(8, 8), "JPEG"), ratio=3),
    "five channels": lambda m: m.image.decode_png(b"", 5),
    "two images": lambda m: m.image.decode_png(["", ""]),
    "a png of five channels": lambda m: m.image.encode_png(pixels(2, 2, 5)),
    "a jpeg of two channels": lambda m: m.image.encode_jpeg(pixels(2, 2, 2)),
    "an animation as png": lambda m: m.image.decode_png(animation(2)),
    "a grey format": lambda m: m.image.encode_jpeg(pixels(2, 2, 3), "grayscale"),
}


@pytest.mark.parametrize("name", WRONG)
def test_both_reject_wrong_files_and_options(parity: Any, name: str) -> None:
    assert parity.either(lambda m: [WRONG[name](m)]) == ("refused", "refused")


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SIZES = [(5, 7), (10, 14), (3, 3), (1, 1), (13, 2), (1, 20)]
ALIGNED = [{}, {"align_corners": True}, {"half_pixel_centers": True}]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", ALIGNED)
@pytest.mark.parametrize("method", ["resize_bilinear", "resize_nearest_neighbor"])
def test_resize(parity: Any, size: tuple[int, int], options: dict[str, Any], method: str) -> None:
    parity(lambda m, x: getattr(m.image, method)(x, size, **options), pixels(2, 5, 7, 3, dtype="float32"), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "int64", "float16", "float64"])
def test_resize_dtypes(parity: Any, dtype: str) -> None:
    image = (pixels(1, 4, 5, 2, dtype="float64") * 100).astype(dtype)
    grad = dtype != "float16"  # on some machines TensorFlow lacks a kernel of the nearest neighbor's gradient
    parity(lambda m, x: m.image.resize_bilinear(x, [3, 8]), image, rtol=1e-3, grad=grad)
    parity(lambda m, x: m.image.resize_nearest_neighbor(x, [6, 2]), image, grad=grad)


@pytest.mark.parametrize("shape", [(5, 7, 3), (2, 5, 7, 3)])
@pytest.mark.parametrize("method", [0, 1])
@pytest.mark.parametrize("keep", [False, True])
def test_resize_images(parity: Any, shape: tuple[int, ...], method: int, keep: bool) -> None:
    image = pixels(*shape, dtype="float32")
    for size in ([10, 21], [5, 7], [2, 2]):
        parity(lambda m, x, s=size: m.image.resize_images(x, s, method, preserve_aspect_ratio=keep), image, rtol=1e-4)
    # aioflow knows the size statically; TensorFlow knows it only if the whole shape is known.
    parity(lambda m, x: m.image.resize(x, m.shape(x)[-3:-1] * 2, method), image, rtol=1e-4, static=False)
    x = af.placeholder("float32", (*[None] * (len(shape) - 3), 5, 7, 3))
    assert af.image.resize(x, af.shape(x)[-3:-1] * 2, method).shape[-3:] == [10, 14, 3]


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 6), (2, 1), (1, 1), (9, 9)])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "float16", "float32", "float64"])
def test_crop_and_resize(parity: Any, dtype: str, size: tuple[int, int], method: str) -> None:
    image = (pixels(3, 5, 7, 2, dtype="float64") * 100).astype(dtype)
    boxes = np.random.default_rng(3).uniform(-0.3, 1.3, (8, 4)).astype(np.float32)
    boxes[:3] = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0.5, 0.5, 0.5, 0.5]], np.float32)
    numbers = np.array([0, 1, 2, 2, 1, 0, 0, 1], np.int32)

    def build(m: Any, x: Any, boxes: Any, numbers: Any) -> Any:
        return m.image.crop_and_resize(x, boxes, numbers, size, method, extrapolation_value=0.5)

    rtol = 1e-2 if dtype == "float16" else 1e-4
    parity(build, image, boxes, numbers, rtol=rtol, atol=1e-1 if dtype == "float16" else 2e-3)
    parity(build, image, boxes[:0], numbers[:0])


# ── cropping, padding and colors ─────────────────────────────────────────────────────────────────────────────────────

CUT: dict[str, Any] = {
    "crop": lambda m, x: m.image.crop_to_bounding_box(x, 1, 2, 3, 4),
    "crop nothing": lambda m, x: m.image.crop_to_bounding_box(x, 0, 0, 5, 7),
    "pad": lambda m, x: m.image.pad_to_bounding_box(x, 1, 2, 9, 10),
    "crop or pad": lambda m, x: m.image.resize_image_with_crop_or_pad(x, 3, 10),
    "crop or pad more": lambda m, x: m.image.resize_image_with_crop_or_pad(x, 8, 4),
    "central crop": lambda m, x: m.image.central_crop(x, 0.5),
    "central crop, all": lambda m, x: m.image.central_crop(x, 1.0),
    "flip": lambda m, x: m.image.flip_left_right(x),
    "flip up": lambda m, x: m.image.flip_up_down(x),
    "standardize": lambda m, x: m.image.per_image_standardization(x),
    "brightness": lambda m, x: m.image.adjust_brightness(x, 0.3),
    "gamma": lambda m, x: m.image.adjust_gamma(x, 1.5, 0.9),
    "grey": lambda m, x: m.image.rgb_to_grayscale(x),
    "coloured": lambda m, x: m.image.grayscale_to_rgb(x[..., :1]),
}  # fmt: skip


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("shape", [(5, 7, 3), (2, 5, 7, 3)])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_adjust(parity: Any, name: str, shape: tuple[int, ...], dtype: str) -> None:
    parity(CUT[name], pixels(*shape, dtype=dtype), rtol=1e-4, static=name != "coloured")


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("factor", [0.0, 0.5, 2.5])
def test_contrast(parity: Any, dtype: str, factor: float) -> None:
    """Skip float16 and gradients, which TensorFlow lacks on the CPU; tests/ops/test_image.py checks ours."""
    parity(lambda m, x: m.image.adjust_contrast(x, factor), pixels(2, 5, 7, 3, dtype=dtype), rtol=1e-4, grad=False)


@pytest.mark.parametrize("given", ["uint8", "int16", "uint16", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize("wanted", ["uint8", "int16", "uint16", "int32", "float16", "float32", "float64"])
def test_convert_image_dtype(parity: Any, given: str, wanted: str) -> None:
    if given == "float16" and wanted in ("uint16", "int32"):
        return  # TensorFlow multiplies by infinity; aioflow computes in float32
    image = pixels(3, 4, 1, dtype=given)
    parity(lambda m, x: m.image.convert_image_dtype(x, wanted), image, rtol=1e-3, grad=False)
    if "float" in given:
        image = image * 3 - 1
    parity(lambda m, x: m.image.convert_image_dtype(x, wanted, saturate=True), image, rtol=1e-3, grad=False)


MISPLACED: list[Any] = [
    lambda m, x: m.image.crop_to_bounding_box(x, 3, 0, 3, 3), lambda m, x: m.image.crop_to_bounding_box(x, 0, 0, 0, 3),
    lambda m, x: m.image.crop_to_bounding_box(x, -1, 0, 3, 3), lambda m, x: m.image.pad_to_bounding_box(x, 0, 0, 4, 9),
    lambda m, x: m.image.pad_to_bounding_box(x, -1, 0, 9, 9), lambda m, x: m.image.central_crop(x, 1.5),
    lambda m, x: m.image.resize_bilinear(x, [3, 3]), lambda m, x: m.image.resize_images(x, [3, 3, 3]),
    lambda m, x: m.image.resize_images(x, [0, 3]), lambda m, x: m.image.adjust_gamma(x, -1.0),
    lambda m, x: m.image.crop_and_resize(x, [[0, 0, 1, 1]], [0], [2, 2]),
    lambda m, x: m.image.crop_and_resize(x[None], [[0, 0, 1, 1]], [1], [2, 2]),
    lambda m, x: m.image.crop_and_resize(x[None], [[0, 0, 1, 1]], [0], [2]),
    lambda m, x: m.image.crop_and_resize(x[None], [[0, 0, 1, 1]], [0, 0], [2, 2]),
    lambda m, x: m.image.crop_and_resize(x[None], [[0, 0, 1, 1]], [0], [2, 2], "cubic"),
    lambda m, x: m.image.crop_and_resize(x[None], [[0, 0, 1, np.inf]], [0], [2, 2]),
    lambda m, x: m.image.grayscale_to_rgb(x), lambda m, x: m.image.resize_images(x, [3, 3], 7),
]  # fmt: skip


@pytest.mark.parametrize("build", MISPLACED)
def test_both_reject_wrong_regions(parity: Any, build: Any) -> None:
    assert parity.either(lambda m: [build(m, m.constant(pixels(5, 7, 3, dtype="float32")))]) == ("refused", "refused")


def test_sizes_known_only_in_the_step(parity: Any) -> None:
    image = pixels(5, 7, 3, dtype="float32")
    for shape in ([None, None, 3], None):
        for name in ("crop", "pad", "crop or pad", "central crop", "flip", "standardize"):
            if shape is None and name == "central crop":
                continue
            parity(CUT[name], image, shapes=[shape], static=shape is not None, rtol=1e-4)

    def wrong(m: Any) -> Any:
        return [m.image.crop_to_bounding_box(m.placeholder_with_default(image, [None, None, 3]), 3, 3, 3, 3)]

    assert parity.either(wrong) == ("refused", "refused")

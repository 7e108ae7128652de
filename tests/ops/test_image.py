"""Images: decoding off the event loop, the error without Pillow, gradients, random changes, crops."""

from __future__ import annotations

import asyncio
import struct
import sys
import zlib
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

import aioflow as af
from aioflow import errors, image
from aioflow.formats.png import MOST_PIXELS
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.support.dense import dense

RNG = np.random.default_rng(2)
SMALL = RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8)


def run(*tensors: Any) -> Any:
    found = evaluate(list(tensors))
    return found[0] if len(found) == 1 else found


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_encoding_round_trips(dtype: Any, channels: int) -> None:
    picture = RNG.integers(0, np.iinfo(dtype).max, (6, 7, channels)).astype(dtype)
    (data,) = evaluate([image.encode_png(picture, 9)])
    np.testing.assert_array_equal(run(image.decode_png(data.item(), dtype=dtype)), picture)
    np.testing.assert_array_equal(run(image.decode_image(data.item(), dtype=dtype)), picture)


def _gif(width: int, height: int, frames: int, frame: int = 1) -> bytes:
    """Return a GIF with frames of `frame` x `frame` pixels on a screen of `width` x `height`."""
    # A clear code before each pixel keeps the code size at 3 bits.
    codes = [code for _ in range(frame * frame) for code in (4, 0)] + [5]
    bits = sum(code << 3 * place for place, code in enumerate(codes))
    packed = bits.to_bytes(-(-3 * len(codes) // 8), "little")
    one = struct.pack("<BHHHHBBB", 0x2C, 0, 0, frame, frame, 0, 2, len(packed)) + packed + b"\0"
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + one * frames + b"\x3b"


def _deep_png(width: int, height: int, packed: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "data",
    [_gif(9000, 9000, 100), _deep_png(50000, 50000, zlib.compress(b"")), _deep_png(5, 0, zlib.compress(bytes(1000)))],
    ids=["many frames", "many pixels", "no pixels"],
)
def test_small_files_of_huge_images_are_refused_before_decoding(data: bytes) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        run(image.decode_image(data))
    assert str(MOST_PIXELS) in str(caught.value.expected)


def test_gif_frame_larger_than_the_screen_is_clipped() -> None:
    small, large = _gif(2, 1, 1), _gif(2, 1, 1, frame=5)
    assert run(image.decode_gif(small[:-1] + large[19:])).shape == (2, 1, 2, 3)


def test_memory_error_is_resource_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*args: Any, **options: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Image, "open", no_memory)
    with pytest.raises(errors.ResourceExhaustedError):
        run(image.decode_gif(_gif(2, 2, 1)))


async def test_a_small_file_of_a_large_animation_is_decoded_in_a_thread() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with af.Session() as session, asyncio.TaskGroup() as tg:
        counting = tg.create_task(others())
        decoded = await session.run(image.decode_gif(_gif(2000, 2000, 1)))
        counting.cancel()
    assert decoded.shape == (1, 2000, 2000, 3)
    assert turns > 20


def test_decoders_have_the_shape_of_their_format() -> None:
    data = af.placeholder(af.string, [])
    assert image.decode_png(data).shape.as_list() == [None, None, None]
    assert image.decode_jpeg(data, 3).shape.as_list() == [None, None, 3]
    assert image.decode_gif(data).shape.as_list() == [None, None, None, 3]
    assert image.decode_image(data).shape.ndims is None
    assert image.decode_image(data, expand_animations=False).shape.ndims == 3


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_truncated_png_is_an_invalid_argument(dtype: Any) -> None:
    # Truncations that only remove end marks and checksums leave the image complete; all others must fail.
    picture = SMALL.astype(dtype)
    data = run(image.encode_png(picture)).item()
    given = af.placeholder(af.string, [])
    decoded = image.decode_png(given, dtype=dtype, name="decoding")
    for size in range(len(data)):
        try:
            (found,) = evaluate([decoded], {given: data[:size]})
        except errors.InvalidArgumentError as error:
            assert error.node == "decoding"  # noqa: PT017 (whether it is raised depends on the size)
        else:
            assert size > len(data) - 24
            np.testing.assert_array_equal(found, picture)


async def test_decoding_large_images_does_not_block_the_loop() -> None:
    picture = np.tile(RNG.integers(0, 256, (256, 256, 3), dtype=np.uint8), (12, 12, 1))
    data = af.placeholder(af.string, [])
    turns = 0
    async with af.Session() as session:
        encoded = await session.run(image.encode_png(picture, 1))
        small = await session.run(image.encode_png(SMALL))
        decoded = image.decode_png(data)
        for _ in range(5):
            # After small images, the session expects this node to be short.
            await session.run(decoded, {data: small})
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(session.run(decoded, {data: encoded}))
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
    assert np.array_equal(task.result(), picture)
    assert turns > 20


async def test_missing_pillow_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async with af.Session() as session:
        data = await session.run(image.encode_png(SMALL))
        monkeypatch.setitem(sys.modules, "PIL.Image", None)
        for node in (image.decode_png(data), image.encode_jpeg(SMALL), image.decode_jpeg(b"\xff\xd8\xff")):
            with pytest.raises(errors.UnimplementedError, match=r"pip install 'aioflow-engine\[image\]'"):
                await session.run(node)
        png: Any = await session.run(image.encode_png(SMALL))
        assert png.startswith(b"\x89PNG")  # needs no Pillow


# ── sizes and colors ─────────────────────────────────────────────────────────────────────────────────────────────────

PICTURE = RNG.random((2, 3, 4, 2))


@pytest.mark.parametrize("options", [{}, {"align_corners": True}, {"half_pixel_centers": True}])
@pytest.mark.parametrize("size", [(5, 3), (2, 9), (1, 1)])
@pytest.mark.parametrize(("method", "atol"), [(image.resize_bilinear, 1e-3), (image.resize_bicubic, 2e-3)])
def test_second_gradients_of_resizing(method: Any, atol: float, options: dict[str, Any], size: tuple[int, int]) -> None:
    def twice(x: Any) -> Any:
        y = method(x, size, **options)
        return af.gradients(y * y, x)[0]

    check_gradients(twice, PICTURE, delta=0.5, rtol=1e-3, atol=atol)  # it is linear, and computed in float32


@pytest.mark.parametrize("kernel_type", ["lanczos3", "mitchellcubic"])
@pytest.mark.parametrize("scale", [(0.4, 3.0), (1.0, 1.3)])
def test_second_gradients_of_filters(kernel_type: str, scale: tuple[float, float]) -> None:
    def twice(x: Any) -> Any:
        y = make("ScaleAndTranslate", x, [4, 5], scale, [0.3, -0.4], kernel_type=kernel_type)
        return af.gradients(y * y, x)[0]

    check_gradients(twice, PICTURE, delta=0.5, rtol=1e-3, atol=2e-3)


def test_gradient_of_hsv_to_rgb() -> None:
    check_gradients(image.hsv_to_rgb, RNG.random((7, 9, 3)), delta=1e-6, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["rgb_to_hsv", "hsv_to_rgb"])
def test_color_conversions_round_trip(name: str) -> None:
    pictures = RNG.random((2, 50, 60, 3))
    there, back = (image.rgb_to_hsv, image.hsv_to_rgb)[:: 1 if name == "rgb_to_hsv" else -1]
    np.testing.assert_allclose(run(back(there(pictures))), pictures, atol=2e-4)


async def test_random_hue_and_saturation_are_within_their_bounds() -> None:
    picture = np.array([[[0.8, 0.2, 0.2]]], np.float32)
    hue = image.rgb_to_hsv(image.random_hue(picture, 0.2))[0, 0, 0]
    saturation = image.rgb_to_hsv(image.random_saturation(picture, 0.5, 1.1))[0, 0, 1]
    async with af.Session() as session:
        hues, saturations = zip(*[await session.run([hue, saturation]) for _ in range(40)], strict=True)
    turned = [(value + 0.5) % 1 - 0.5 for value in hues]
    assert max(map(abs, turned)) <= 0.2 + 1e-5
    assert min(turned) < 0 < max(turned)
    assert 0.374 <= min(saturations) < max(saturations) <= 0.826
    assert len(set(saturations)) > 5


def test_resizing_to_and_from_one_pixel() -> None:
    line = RNG.random((1, 3000, 2, 1)).astype(np.float32)
    np.testing.assert_allclose(run(image.resize_area(line, [1, 1])), [[[[line.mean()]]]], rtol=1e-5)
    x = af.constant(line[:, :1])
    (grad,) = dense(af.gradients(image.resize_bicubic(x, [5000, 2], half_pixel_centers=True), x))
    np.testing.assert_allclose(run(grad), np.full((1, 1, 2, 1), 5000), rtol=1e-4)


def test_gradient_of_contrast() -> None:
    # The reference is the same formula in ops that have gradients of their own.
    picture, factor = af.placeholder(af.float32, [2, 3, 4, 2]), af.placeholder(af.float32, [])
    mean = af.reduce_mean(picture, [1, 2], keepdims=True)
    weights = RNG.standard_normal((2, 3, 4, 2)).astype(np.float32)
    plain = (picture - mean) * factor + mean
    adjusted = image.adjust_contrast(picture, factor)
    tensors = [
        *dense(af.gradients(plain * weights, [picture, factor])),
        *dense(af.gradients(adjusted * weights, [picture, factor])),
    ]
    found = evaluate(tensors, {picture: PICTURE.astype(np.float32), factor: 1.5})
    np.testing.assert_allclose(found[0], found[2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], found[3], rtol=1e-4)


def test_gradients_of_rotations() -> None:
    check_gradients(image.rot90, PICTURE)
    check_gradients(lambda x: image.rot90(x, af.placeholder_with_default(3, [])), PICTURE)


async def test_random_flips_turn_each_image_separately() -> None:
    flipped = image.random_flip_left_right(SMALL)
    batch = image.random_flip_up_down(np.stack([SMALL] * 64), seed=3)
    async with af.Session() as session:
        seen = {(await session.run(flipped)).tobytes() for _ in range(40)}
        many = await session.run(batch)
    assert seen == {SMALL.tobytes(), SMALL[:, ::-1].tobytes()}
    turned = [np.array_equal(one, SMALL[::-1]) for one in many]
    assert all(np.array_equal(one, SMALL[::-1] if turn else SMALL) for one, turn in zip(many, turned, strict=True))
    assert 10 < sum(turned) < 54


async def test_random_brightness_and_contrast_are_within_their_bounds() -> None:
    picture = np.full((2, 2, 1), 0.5, np.float32)
    picture[0] = 0.25
    async with af.Session() as session:
        brighter = [await session.run(image.random_brightness(picture, 0.25, seed=n)) for n in range(10)]
        sharper = [await session.run(image.random_contrast(picture, 0.5, 1.5, seed=n)) for n in range(10)]
    steps = [float((found - picture).max()) for found in brighter]
    assert max(map(abs, steps)) <= 0.25
    assert len(set(steps)) > 5
    spans = [float(np.ptp(found)) / 0.25 for found in sharper]
    assert min(spans) >= 0.49
    assert max(spans) <= 1.51
    assert len(set(spans)) > 5
    with pytest.raises(errors.InvalidArgumentError):
        image.random_brightness(picture, -1)
    with pytest.raises(errors.InvalidArgumentError):
        image.random_contrast(picture, 2, 1)


def test_resize_rejects_unknown_methods() -> None:
    with pytest.raises(errors.InvalidArgumentError):
        image.resize_images(PICTURE, [2, 2], 4)


def test_contrast_of_images_without_pixels() -> None:
    assert run(image.adjust_contrast(np.zeros((2, 0, 3, 1), np.float32), 2.0)).shape == (2, 0, 3, 1)


# ── parts of images ──────────────────────────────────────────────────────────────────────────────────────────────────

# Bilinear functions of the position, so that crops are smooth in their boxes; the last channel is constant.
ROWS, COLUMNS = np.mgrid[:5, :7].astype(np.float32)
SMOOTH = np.stack([np.stack([ROWS * COLUMNS, ROWS - 2 * COLUMNS, 0 * ROWS + n], 2) for n in range(2)])
# No crop pixel is near the center of an image pixel, where the gradient by the image has a kink.
BOXES = np.array([[0.1, 0.2, 0.65, 0.9], [0.9, 0.75, 0.15, 0.3], [0.4, 0.1, 0.4, 0.6]], np.float32)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crops_outside_the_image_have_the_extrapolation_value(method: Literal["bilinear", "nearest"]) -> None:
    boxes = np.array([[-0.5, 0, 0.5, 1], [2, 2, 3, 3]])
    made = run(image.crop_and_resize(SMOOTH, boxes, [0, 0], [3, 7], method, extrapolation_value=-9))
    assert (made[0, 0] == -9).all()
    np.testing.assert_array_equal(made[0, 1:], SMOOTH[0, [0, 2]])
    assert (made[1] == -9).all()


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(4, 3), (1, 5), (1, 1)])
def test_second_gradients_of_crops_by_images(size: tuple[int, int], method: Literal["bilinear", "nearest"]) -> None:
    boxes = np.concatenate([BOXES, BOXES - 0.4])
    numbers = [1, 0, 1, 0, 0, 1]

    def twice(x: Any) -> Any:
        crops = image.crop_and_resize(x, boxes, box_indices=numbers, crop_size=size, method=method)
        return af.gradients(crops**2, x)[0]

    check_gradients(twice, RNG.random((2, 3, 4, 1)), delta=0.5, rtol=1e-3, atol=1e-3)  # linear, and in float32


@pytest.mark.parametrize("size", [(4, 3), (1, 5), (2, 1), (1, 1)])
def test_second_gradients_of_crops_by_boxes(size: tuple[int, int]) -> None:
    def by_image(boxes: Any) -> Any:
        x = af.constant(SMOOTH)
        weights = af.constant(SMOOTH[:1, :1, :1] + np.ones((3, *size, 3), np.float32))
        (grad,) = dense(af.gradients(image.crop_and_resize(x, boxes, [1, 0, 1], size), x, grad_ys=weights))
        return grad * SMOOTH

    check_gradients(by_image, BOXES, delta=0.02, rtol=1e-2, atol=1e-2)  # float32; of the second degree in the boxes


def test_integer_images_have_gradients_by_boxes_only() -> None:
    x, boxes = af.constant(SMALL[None]), af.constant(BOXES)
    crops = image.crop_and_resize(x, boxes, [0, 0, 0], [2, 2])
    assert crops.dtype == af.float32
    by_image, by_boxes = af.gradients(crops, [x, boxes])
    assert by_image is None
    assert run(by_boxes).shape == (3, 4)


async def test_crops_check_fed_images_boxes_and_sizes() -> None:
    x, boxes = af.placeholder(af.float32), af.placeholder(af.float32, [None, 4])
    numbers, size = af.placeholder(af.int32, [2]), af.placeholder(af.int32)
    crops = image.crop_and_resize(x, boxes, numbers, size)
    assert crops.shape.as_list() == [2, None, None, None]
    fetches = [crops, *dense(af.gradients(crops, [x, boxes]))]
    async with af.Session() as session:
        good = {x: SMOOTH, boxes: BOXES[:2], numbers: [0, 1], size: [3, 2]}
        found = await session.run(fetches, good)
        assert [f.shape for f in found] == [(2, 3, 2, 3), SMOOTH.shape, (2, 4)]
        for wrong in (
            {numbers: [0, 2]}, {numbers: [-1, 0]}, {size: [0, 2]}, {size: [2]}, {boxes: BOXES},
            {boxes: BOXES[:2] * np.nan}, {boxes: BOXES[:2] * np.inf}, {x: SMOOTH[0]}, {x: SMOOTH[:, :0]},
        ):  # fmt: skip
            with pytest.raises(errors.InvalidArgumentError):
                await session.run(fetches, {**good, **wrong})


async def test_crop_gradients_check_fed_boxes() -> None:
    # After a forward crop, the boxes are known to be valid. A gradient op that runs alone must check them itself.
    crops, x = np.ones((2, 3, 3, 3), np.float32), SMOOTH.astype(np.float32)
    with af.Graph().as_default() as graph:
        boxes, numbers = af.placeholder("float32"), af.placeholder("int32")
        made = [
            make("CropAndResizeGradImage", crops, boxes, numbers, list(SMOOTH.shape), T=af.float32),
            make("CropAndResizeGradBoxes", crops, x, boxes, numbers),
        ]
    good: dict[Any, Any] = {boxes: BOXES[:2].astype(np.float32), numbers: [0, 0]}
    async with af.Session(graph=graph) as session:
        await session.run(made, good)
        for fetch in made:
            for wrong in ({boxes: np.float32(1)}, {boxes: BOXES[0]}, {boxes: BOXES[:2, :3]}, {numbers: 0}):
                with pytest.raises(errors.InvalidArgumentError, match="a box has 4 numbers"):
                    await session.run(fetch, {**good, **wrong})


@pytest.mark.parametrize("numbers", [{}, {"box_ind": [0], "box_indices": [0]}])
def test_crop_requires_one_list_of_image_numbers(numbers: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="numbers of their images"):
        image.crop_and_resize(SMOOTH, BOXES[:1], crop_size=[2, 2], **numbers)


def test_large_crops_match_flipped_crops() -> None:
    # Large crops are computed in blocks of rows. The reference is the crop of the flipped image.
    picture = RNG.random((2, 50, 60, 3)).astype(np.float32)
    boxes, numbers = np.array([[0, 0, 1, 1], [0.2, 0.9, 0.7, 0.1]], np.float32), [1, 0]
    large = image.crop_and_resize(picture, boxes, numbers, [401, 601])
    one = image.crop_and_resize(picture[:, ::-1], (boxes - 0.5) * [-1, 1, -1, 1] + 0.5, numbers, [401, 601])
    found, other = run(large, one)
    np.testing.assert_allclose(found, other, atol=1e-4)
    x = af.constant(picture)
    grads = dense(af.gradients(image.crop_and_resize(x, boxes, numbers, [401, 601]), x))
    assert run(*grads).sum() == pytest.approx(2 * 401 * 601 * 3, rel=1e-3)


def test_random_crop_is_a_window_of_the_image() -> None:
    made = run(image.random_crop(SMALL, [3, 2, 3], seed=4))
    places = [(y, x) for y in range(3) for x in range(3) if np.array_equal(SMALL[y : y + 3, x : x + 2], made)]
    assert len(places) == 1

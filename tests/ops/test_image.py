"""Images: decoding beside the event loop, the error without Pillow, gradients, random flips."""

from __future__ import annotations

import asyncio
import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import aioflow as af
from aioflow import errors, image
from aioflow.kernels.png_format import MOST_PIXELS
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.dense import dense

RNG = np.random.default_rng(2)
SMALL = RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8)


def run(*tensors: Any) -> Any:
    found = evaluate(list(tensors))
    return found[0] if len(found) == 1 else found


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_there_and_back(dtype: Any, channels: int) -> None:
    picture = RNG.integers(0, np.iinfo(dtype).max, (6, 7, channels)).astype(dtype)
    (data,) = evaluate([image.encode_png(picture, 9)])
    np.testing.assert_array_equal(run(image.decode_png(data.item(), dtype=dtype)), picture)
    np.testing.assert_array_equal(run(image.decode_image(data.item(), dtype=dtype)), picture)


def _gif(width: int, height: int, frames: int, frame: int = 1) -> bytes:
    """Frames of `frame` x `frame` pixels in a screen of that size."""
    codes = [code for _ in range(frame * frame) for code in (4, 0)] + [5]  # so that codes stay at 3 bits
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
def test_small_files_of_huge_images_are_refused_before_they_are_unpacked(data: bytes) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        run(image.decode_image(data))
    assert str(MOST_PIXELS) in str(caught.value.expected)


def test_a_frame_that_is_larger_than_the_screen_is_cut() -> None:
    small, large = _gif(2, 1, 1), _gif(2, 1, 1, frame=5)
    assert run(image.decode_gif(small[:-1] + large[19:])).shape == (2, 1, 2, 3)


def test_running_out_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_static_shapes() -> None:
    data = af.placeholder(af.string, [])
    assert image.decode_png(data).shape.as_list() == [None, None, None]
    assert image.decode_jpeg(data, 3).shape.as_list() == [None, None, 3]
    assert image.decode_gif(data).shape.as_list() == [None, None, None, 3]
    assert image.decode_image(data).shape.ndims is None
    assert image.decode_image(data, expand_animations=False).shape.ndims == 3


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_damaged_file_is_one_typed_error(dtype: Any) -> None:
    """Every truncation, but those that only lack end marks and checksums, which leave the image whole."""
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


async def test_decoding_leaves_the_loop_alone() -> None:
    """Other tasks get many turns while a large image is decoded, also after small ones that needed no thread."""
    picture = np.tile(RNG.integers(0, 256, (256, 256, 3), dtype=np.uint8), (12, 12, 1))
    data = af.placeholder(af.string, [])
    turns = 0
    async with af.Session() as session:
        encoded = await session.run(image.encode_png(picture, 1))
        small = await session.run(image.encode_png(SMALL))
        decoded = image.decode_png(data)
        for _ in range(5):
            await session.run(decoded, {data: small})  # what follows is not expected to take longer
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(session.run(decoded, {data: encoded}))
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
    np.testing.assert_array_equal(task.result(), picture)
    assert turns > 20


async def test_without_pillow_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with af.Session() as session:
        data = await session.run(image.encode_png(SMALL))
        monkeypatch.setitem(sys.modules, "PIL.Image", None)
        for node in (image.decode_png(data), image.encode_jpeg(SMALL), image.decode_jpeg(b"\xff\xd8\xff")):
            with pytest.raises(errors.UnimplementedError, match=r"pip install 'aioflow\[image\]'"):
                await session.run(node)
        png: Any = await session.run(image.encode_png(SMALL))
        assert png.startswith(b"\x89PNG")  # needs no Pillow


# ── sizes and colours ────────────────────────────────────────────────────────────────────────────────────────────────

PICTURE = RNG.random((2, 3, 4, 2))


@pytest.mark.parametrize("options", [{}, {"align_corners": True}, {"half_pixel_centers": True}])
@pytest.mark.parametrize("size", [(5, 3), (2, 9), (1, 1)])
def test_gradients_of_resizing(options: dict[str, Any], size: tuple[int, int]) -> None:
    def bilinear(x: Any) -> Any:
        return image.resize_bilinear(x, size, **options)

    def twice(x: Any) -> Any:
        y = image.resize_bilinear(x, size, **options)
        return af.gradients(y * y, x)[0]

    for build in (bilinear, twice):
        check_gradients(build, PICTURE, delta=0.5, rtol=1e-3, atol=1e-3)  # it is linear, and computed in float32
    check_gradients(lambda x: image.resize_nearest_neighbor(x, size, **options), PICTURE)


def test_gradient_of_contrast() -> None:
    """Against the same made of ops that have their own gradients."""
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


def test_gradients_of_cutting() -> None:
    for build in (
        lambda x: image.crop_to_bounding_box(x, 1, 1, 2, 2),
        lambda x: image.pad_to_bounding_box(x, 1, 1, 5, 6),
        lambda x: image.resize_image_with_crop_or_pad(x, 2, 6),
        image.flip_left_right,
    ):
        check_gradients(build, PICTURE)


async def test_random_flips() -> None:
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


def test_methods_that_are_missing_say_so() -> None:
    with pytest.raises(errors.UnimplementedError):
        image.resize_images(PICTURE, [2, 2], image.ResizeMethod.AREA)


def test_contrast_of_images_without_pixels() -> None:
    assert run(image.adjust_contrast(np.zeros((2, 0, 3, 1), np.float32), 2.0)).shape == (2, 0, 3, 1)

"""Images and sounds of summaries, encoded as PNG and WAV files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError
from aioflow.formats.png import write_png
from aioflow.formats.wav import write_wav
from aioflow.kernels.convert import as_number, as_text
from aioflow.kernels.registry import Binding, binder
from aioflow.kernels.text.strings import as_strings
from aioflow.memory.values import Array
from aioflow.protos import message

_FEW: Final = 1 << 12  # elements; encoding them takes less time than a round trip to a thread
_DARK: Final = np.float32(1e-6)  # an image whose values are all smaller is black
_COMPRESSION: Final = -1  # zlib's default level


def _tag(tag: str, kind: str, number: int, most: int) -> str:
    """Return the tag of one image or sound, numbered if more than one was requested, even if only one exists."""
    return f"{tag}/{kind}/{number}" if most > 1 else f"{tag}/{kind}"


# ── images ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _visible(image: Array, bad_color: Array) -> Array:
    """Return the image in uint8, [height, width, channels]; floats are scaled by the largest finite value.

    A pixel with a NaN or infinite channel gets `bad_color`.
    """
    if image.dtype == np.uint8:
        return image
    finite = np.all(np.isfinite(image), axis=-1, keepdims=True)
    with np.errstate(over="ignore"):  # a float64 may be too large for float32
        shown = image[finite[..., 0]].astype(np.float32)
        low, high = (shown.min(), shown.max()) if shown.size else (np.float32(0), np.float32(0))
        largest = max(abs(low), abs(high))
        # As in TensorFlow: if a number is negative, 0 becomes medium gray, otherwise black.
        span, offset = (127.0, 128.0) if low < 0 else (255.0, 0.0)
        scale = image.dtype.type(np.float32(span) / largest if largest >= _DARK else 0.0)
        scaled = np.where(finite, image, 0) * scale + image.dtype.type(offset)
    return np.where(finite, scaled.astype(np.uint8), bad_color[: image.shape[-1]])


def _check_images(tensor: Array, bad_color: Array) -> None:
    if tensor.ndim != 4 or tensor.shape[3] not in (1, 3, 4) or not tensor.shape[1] * tensor.shape[2]:
        raise InvalidArgumentError(
            "not a batch of images", expected="[batch, height, width, 1, 3 or 4], with pixels", actual=tensor.shape
        )
    if bad_color.dtype != np.uint8 or bad_color.ndim != 1 or len(bad_color) < tensor.shape[3]:
        raise InvalidArgumentError(
            "attribute 'bad_color' is no colour of these images",
            expected=f"{tensor.shape[3]} or more of uint8",
            actual=f"{bad_color.shape} of {bad_color.dtype}",
        )


def _images(tag: str, tensor: Array, most: int, bad_color: Array) -> Array:
    summary = message("Summary")()
    for number, image in enumerate(tensor[:most]):
        checkpoint()
        height, width, channels = image.shape
        value = summary.value.add(tag=_tag(tag, "image", number, most))
        encoded = write_png(_visible(image, bad_color), _COMPRESSION)
        value.image.height, value.image.width, value.image.colorspace = height, width, channels
        value.image.encoded_image_string = encoded
    return as_strings([summary.SerializeToString()], ())


@binder("ImageSummary", device="CPU", is_async=True, fresh=True, host={"tag": as_text})
def image_summary(binding: Binding) -> Callable[[str, Array], Array | Awaitable[Array]]:
    most, bad_color = binding.attrs["max_images"], binding.attrs["bad_color"]

    def run(tag: str, tensor: Array) -> Array | Awaitable[Array]:
        _check_images(tensor, bad_color)
        if tensor.size <= _FEW:
            return _images(tag, tensor, most, bad_color)
        return in_thread(_images, tag, tensor, most, bad_color, effects=False)

    return run


# ── sounds ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sounds(tag: str, tensor: Array, rate: float, most: int) -> Array:
    summary = message("Summary")()
    for number, sound in enumerate(tensor[:most]):
        checkpoint()
        frames, channels = sound.shape
        value = summary.value.add(tag=_tag(tag, "audio", number, most))
        value.audio.sample_rate, value.audio.num_channels, value.audio.length_frames = rate, channels, frames
        value.audio.content_type = "audio/wav"
        value.audio.encoded_audio_string = write_wav(sound, max(1, round(rate)))
    return as_strings([summary.SerializeToString()], ())


def _audio(tag: str, tensor: Array, rate: float, most: int) -> Array | Awaitable[Array]:
    if tensor.ndim not in (2, 3):
        raise InvalidArgumentError(
            "not a batch of sounds", expected="[batch, frames] or [batch, frames, channels]", actual=tensor.shape
        )
    if not 0 < rate < 1 << 32:
        raise InvalidArgumentError("not a sample rate", expected="> 0, and less than 2^32", actual=rate)
    sounds = tensor if tensor.ndim == 3 else tensor[:, :, None]
    if tensor.size <= _FEW:
        return _sounds(tag, sounds, rate, most)
    return in_thread(_sounds, tag, sounds, rate, most, effects=False)


@binder("AudioSummary", device="CPU", is_async=True, fresh=True, host={"tag": as_text})
def audio_summary(binding: Binding) -> Callable[[str, Array], Array | Awaitable[Array]]:
    return partial(_audio, rate=binding.attrs["sample_rate"], most=binding.attrs["max_outputs"])


@binder("AudioSummaryV2", device="CPU", is_async=True, fresh=True, host={"tag": as_text, "sample_rate": as_number})
def audio_summary_v2(binding: Binding) -> Callable[[str, Array, float], Array | Awaitable[Array]]:
    return partial(_audio, most=binding.attrs["max_outputs"])

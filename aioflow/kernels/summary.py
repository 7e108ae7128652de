"""Kernels that build summary messages: numbers, tensors, histograms, images as PNG files, sounds as WAV files.

The buckets of histograms are TensorFlow's: their edges grow by a tenth each from 1e-12 to 1e20.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import blocks, checkpoint
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.png import write_png
from aioflow.formats.tensor_proto import encode_tensor
from aioflow.formats.wav import write_wav
from aioflow.graph.dtypes import DType
from aioflow.kernels.convert import as_bytes, as_number, as_text
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.text import as_strings, string_values
from aioflow.memory.values import Array, Value
from aioflow.protos import Message, message, parse

# ── histograms ────────────────────────────────────────────────────────────────────────────────────────────────────────


_BLOCK: Final = 1 << 16  # numbers between two checkpoints


@cache
def _edges() -> Array:
    """Return the upper ends of the buckets; a number equal to an edge belongs to the next bucket."""
    positive = []
    edge = 1e-12
    while edge < 1e20:
        positive.append(edge)
        edge *= 1.1
    positive.append(sys.float_info.max)
    return np.array([*(-edge for edge in reversed(positive)), 0.0, *positive])


def add_histogram(histogram: Message, values: Array) -> None:
    """Fill in a `HistogramProto`. The numbers are added in order, so the sums equal TensorFlow's to the last bit.

    Raises:
        InvalidArgumentError: a number is NaN or infinite.
    """
    edges = _edges()
    counts = np.zeros(len(edges), dtype=np.int64)
    lowest, highest, total, squares = edges[-1], edges[0], 0.0, 0.0
    flat = values.reshape(-1)
    for part in blocks(flat.size, _BLOCK):
        numbers = flat[part].astype(np.float64)
        _check_finite(numbers)
        places = np.minimum(np.searchsorted(edges, numbers, side="right"), len(edges) - 1)
        counts += np.bincount(places, minlength=len(edges))
        lowest, highest = min(lowest, numbers.min()), max(highest, numbers.max())
        with np.errstate(over="ignore"):
            total = _added(total, numbers)
            squares = _added(squares, numbers * numbers)
    histogram.min, histogram.max, histogram.num = lowest, highest, flat.size
    histogram.sum, histogram.sum_squares = total, squares
    # A run of empty buckets becomes one bucket.
    last_of_run = (counts > 0) | np.append(counts[1:] > 0, True)
    histogram.bucket_limit.extend(edges[last_of_run].tolist())
    histogram.bucket.extend(counts[last_of_run].tolist())


def _added(before: float, numbers: Array) -> float:
    # `np.sum` adds in pairs, which rounds differently.
    return float(np.add.accumulate(np.append(before, numbers))[-1])


def _check_finite(numbers: Array) -> None:
    if not np.isfinite(numbers).all():
        found = "NaN" if np.isnan(numbers).any() else "infinity"
        raise InvalidArgumentError("a histogram is of finite numbers", expected="no NaN, no infinity", actual=found)


# ── numbers and tensors, and the merging of summaries ─────────────────────────────────────────────────────────────────


def _made(summary: Message) -> Array:
    return as_strings([summary.SerializeToString()], ())


@kernel("ScalarSummary", device="CPU", fresh=True)
def scalar_summary(tags: Value, values: Array) -> Array:
    names = string_values(tags)
    if names.shape != np.shape(values):
        raise InvalidArgumentError("a scalar has one tag", expected=f"shape {names.shape}", actual=np.shape(values))
    summary = message("Summary")()
    # `simple_value` is a float32 in the message.
    numbers = np.asarray(values).astype(np.float32).reshape(-1)
    for tag, number in zip(names.reshape(-1).tolist(), numbers.tolist(), strict=True):
        summary.value.add(tag=as_text(tag), simple_value=number)
    return _made(summary)


@kernel("HistogramSummary", device="CPU", fresh=True, host={"tag": as_text})
def histogram_summary(tag: str, values: Array) -> Array:
    summary = message("Summary")()
    add_histogram(summary.value.add(tag=tag).histo, np.asarray(values))
    return _made(summary)


def _add_tensor(value: Message, tensor: Value, dtype: DType) -> None:
    # `encode_tensor` returns a serialized TensorProto, the type of the field.
    value.tensor.ParseFromString(encode_tensor(tensor, dtype))


@binder("TensorSummary", device="CPU", fresh=True)
def tensor_summary(binding: Binding) -> Callable[[Value], Array]:
    dtype, name = binding.input_dtypes[0], binding.name

    def run(tensor: Value) -> Array:
        summary = message("Summary")()
        _add_tensor(summary.value.add(node_name=name), tensor, dtype)
        return _made(summary)

    return run


@binder("TensorSummaryV2", device="CPU", fresh=True, host={"tag": as_text, "serialized_summary_metadata": as_bytes})
def tensor_summary_v2(binding: Binding) -> Callable[[str, Value, bytes], Array]:
    dtype = binding.input_dtypes[1]

    def run(tag: str, tensor: Value, metadata: bytes) -> Array:
        summary = message("Summary")()
        value = summary.value.add(tag=tag)
        _add_tensor(value, tensor, dtype)
        value.metadata.CopyFrom(_parsed("SummaryMetadata", metadata))
        return _made(summary)

    return run


def _parsed(name: str, data: bytes) -> Message:
    try:
        return parse(name, data)
    except DataLossError as error:
        raise InvalidArgumentError(
            f"an input is no {name}", expected="a serialized message", actual=data[:60]
        ) from error


@kernel("MergeSummary", device="CPU", fresh=True)
def merge_summary(inputs: Sequence[Value]) -> Array:
    merged = message("Summary")()
    seen: set[str] = set()
    for strings in inputs:
        for data in string_values(strings).reshape(-1).tolist():
            part = _parsed("Summary", data)
            for value in part.value:
                # A value of TensorSummary has the name of its node, and no tag.
                if value.tag and value.tag in seen:
                    raise InvalidArgumentError(
                        "two summaries have the same tag", expected="different tags", actual=repr(value.tag)
                    )
                seen.add(value.tag)
            merged.MergeFrom(part)
    return _made(merged)


# ── images and sounds ─────────────────────────────────────────────────────────────────────────────────────────────────


_FEW: Final = 1 << 12  # elements; encoding them takes less time than a round trip to a thread
_DARK: Final = np.float32(1e-6)  # an image whose values are all smaller is black
_COMPRESSION: Final = -1  # zlib's default level


def _tag(tag: str, kind: str, number: int, most: int) -> str:
    """Return the tag of one image or sound, numbered if more than one was requested, even if only one exists."""
    return f"{tag}/{kind}/{number}" if most > 1 else f"{tag}/{kind}"


# ── images ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── sounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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

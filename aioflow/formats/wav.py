"""WAV files of 16 bits, for audio summaries."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.memory.values import Array

# 44 bytes: the RIFF header, the chunk `fmt ` of 16 bytes, and the header of the chunk `data`.
_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")
_HIGHEST, _LOWEST, _SCALE = 32767, -32768, 32768


def write_wav(samples: Array, rate: int) -> bytes:
    """Encode a sound as a WAV file.

    Args:
        samples: [frames, channels] float32 from -1 to 1; louder samples are clipped. NaN becomes silence.
        rate: Frames per second.

    Raises:
        InvalidArgumentError: there are no channels, or a number exceeds the format's fields.
    """
    frames, channels = samples.shape
    size = frames * channels * 2
    if not (0 < channels < 1 << 16 and 0 < rate < 1 << 32 and size < (1 << 32) - 36):
        raise InvalidArgumentError(
            "not a sound that a WAV file can hold",
            expected="1..65535 channels, a rate of 1..4294967295, less than 4 GiB",
            actual=f"{frames} frames of {channels} channels at {rate}",
        )
    wide = samples.astype(np.float32) * np.float32(_SCALE)
    rounded = np.copysign(np.floor(np.abs(wide) + np.float32(0.5)), wide)  # round half away from zero
    data: bytes = np.nan_to_num(np.clip(rounded, _LOWEST, _HIGHEST)).astype("<i2").tobytes()
    # Wraps around if the fields are too small.
    a_second, a_frame = rate * channels * 2 % (1 << 32), channels * 2 % (1 << 16)
    # 36 is the number of bytes between this field and the samples; format 1 is PCM.
    parts = (b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, channels, rate, a_second, a_frame, 16)
    return _HEADER.pack(*parts, b"data", size) + data

"""WAV files of 16 bits, which the messages of audio summaries hold."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError

__all__ = ["write_wav"]

_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")
_HIGHEST, _LOWEST, _SCALE = 32767, -32768, 32768


def write_wav(samples: Any, rate: int) -> bytes:
    """The file of one sound.

    Args:
        samples: [frames, channels] float32 from -1 to 1; what is louder is cut off. NaN becomes silence.
        rate: Frames a second.

    Raises:
        InvalidArgumentError: there are no channels, or numbers that the format has no room for.
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
    rounded = np.copysign(np.floor(np.abs(wide) + np.float32(0.5)), wide)  # a half goes away from zero
    data: bytes = np.nan_to_num(np.clip(rounded, _LOWEST, _HIGHEST)).astype("<i2").tobytes()
    a_second, a_frame = rate * channels * 2 % (1 << 32), channels * 2 % (1 << 16)  # as far as there is room for them
    parts = (b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, channels, rate, a_second, a_frame, 16)
    return _HEADER.pack(*parts, b"data", size) + data

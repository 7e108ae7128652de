"""Fourier transforms: the public namespace `aioflow.signal`, after `tf.signal` of the TensorFlow 1 API."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.math.fourier import (
    fft,
    fft2d,
    fft3d,
    ifft,
    ifft2d,
    ifft3d,
    irfft,
    irfft2d,
    irfft3d,
    rfft,
    rfft2d,
    rfft3d,
)

__all__ = [
    "fft",
    "fft2d",
    "fft3d",
    "ifft",
    "ifft2d",
    "ifft3d",
    "irfft",
    "irfft2d",
    "irfft3d",
    "rfft",
    "rfft2d",
    "rfft3d",
]

_load_later(__name__)

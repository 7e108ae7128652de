"""`aioflow.spectral`: Fourier transforms, under the names of TensorFlow 1's older module."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.math.fourier import fft as fft
from aioflow.ops.math.fourier import fft2d as fft2d
from aioflow.ops.math.fourier import fft3d as fft3d
from aioflow.ops.math.fourier import ifft as ifft
from aioflow.ops.math.fourier import ifft2d as ifft2d
from aioflow.ops.math.fourier import ifft3d as ifft3d
from aioflow.ops.math.fourier import irfft as irfft
from aioflow.ops.math.fourier import irfft2d as irfft2d
from aioflow.ops.math.fourier import irfft3d as irfft3d
from aioflow.ops.math.fourier import rfft as rfft
from aioflow.ops.math.fourier import rfft2d as rfft2d
from aioflow.ops.math.fourier import rfft3d as rfft3d

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

"""Fourier transforms against TensorFlow, with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.testing.gradcheck import check_gradients

RNG = np.random.default_rng(0)
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
WHOLE = {"fft": 1, "ifft": 1, "fft2d": 2, "ifft2d": 2, "fft3d": 3, "ifft3d": 3}
HALF = {"rfft": 1, "rfft2d": 2}


def _real(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_transforms(parity: Any, name: str, dtype: str) -> None:
    def build(m: Any, real: Any, imag: Any) -> Any:
        y = getattr(m.signal, name)(m.complex(real, imag))
        return [y, *m.gradients(m.real(y) * 2.0 + m.imag(y) * m.imag(y), [real, imag])]

    kind = "float32" if dtype == "complex64" else "float64"
    parity(build, _real((2, 4, 3, 5), kind), _real((2, 4, 3, 5), kind), grad=False, **TOLERANCE)


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("length", [None, 4, 5, 6, 7, 9])
def test_real_transforms(parity: Any, name: str, length: int | None) -> None:
    lengths = None if length is None else [length] * HALF[name]
    x = _real((3, 6, 6))

    def build(m: Any, x: Any) -> Any:
        y = getattr(m.signal, name)(x, lengths)
        if length not in (None, 6):  # TensorFlow has gradients only without truncation and padding
            return y
        return [y, m.gradients(m.real(y) * 2.0 + m.imag(y) * m.imag(y), [x])[0]]

    parity(build, x, grad=False, **TOLERANCE)


@pytest.mark.parametrize("name", ["irfft", "irfft2d"])
@pytest.mark.parametrize("length", [None, 4, 5, 6, 7, 8])
def test_inverse_real_transforms(parity: Any, name: str, length: int | None) -> None:
    lengths = None if length is None else [length] * (2 if name.endswith("2d") else 1)

    def build(m: Any, real: Any, imag: Any) -> Any:
        y = getattr(m.signal, name)(m.complex(real, imag), lengths)
        if length != 8 or name != "irfft":  # as above
            return y
        return [y, *m.gradients(y * y, [real, imag])]

    parity(build, _real((3, 6, 5)), _real((3, 6, 5)), grad=False, **TOLERANCE)


@pytest.mark.parametrize("length", [4, 5, 7, 9, 12])
@pytest.mark.parametrize("rank", [1, 2])
def test_gradients_of_truncated_and_padded_transforms(rank: int, length: int) -> None:
    suffix = "" if rank == 1 else "2d"
    forward, back = getattr(af.signal, f"rfft{suffix}"), getattr(af.signal, f"irfft{suffix}")

    def there(x: Any) -> Any:
        y = forward(x, [length] * rank)
        return af.real(y) * 2.0 + af.imag(y) * af.imag(y)

    check_gradients(there, _real((2, 6, 6), "float64"))
    x = [_real((2, 6, 4), "float64") for _ in range(2)]
    check_gradients(lambda real, imag: back(af.complex(real, imag), [length] * rank) ** 2.0, *x)


def test_transforms_in_double_precision(parity: Any) -> None:
    def build(m: Any, x: Any) -> Any:
        y = m.signal.rfft(x)
        return [y, m.signal.irfft(y)]

    parity(build, _real((3, 8), "float64"), grad=False, rtol=1e-12, atol=1e-12)


def test_real_transforms_of_three_axes(parity: Any) -> None:
    def build(m: Any, x: Any) -> Any:
        y = m.signal.rfft3d(x)
        return [y, m.signal.irfft3d(y, [3, 4, 6])]

    parity(build, _real((2, 3, 4, 6)), grad=False, **TOLERANCE)

"""Random numbers from a key and a counter: the very numbers that TensorFlow draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

SEEDS = [[0, 0], [1, 2], [-5, 7], [2**31 - 1, -(2**31)]]
SHAPES = [(), (0,), (1,), (3,), (5, 7), (1 << 18,)]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_keys_and_counters(parity: Any, dtype: str) -> None:
    for seed in SEEDS:
        parity(
            lambda m, s: list(m.raw_ops.StatelessRandomGetKeyCounter(seed=s)),
            np.array(seed, dtype),
            grad=False,
            static=False,
        )


def _drawn(m: Any, op: str, shape: tuple[int, ...], dtype: str, **more: Any) -> Any:
    key = m.constant(np.array([0x0123456789ABCDEF], np.uint64))
    counter = m.constant(np.array([2**64 - 3, 0xFEDCBA9876543210], np.uint64))
    limits = {name: m.constant(value, dtype) for name, value in more.items()}
    wanted = {"shape": m.constant(shape, "int32"), "key": key, "counter": counter, "alg": m.constant(1)}
    return getattr(m.raw_ops, op)(**wanted, **limits, **({} if more else {"dtype": dtype}))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform(parity: Any, dtype: str, shape: tuple[int, ...]) -> None:
    parity(lambda m: _drawn(m, "StatelessRandomUniformV2", shape, dtype), grad=False, rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal(parity: Any, dtype: str, shape: tuple[int, ...]) -> None:
    parity(lambda m: _drawn(m, "StatelessRandomNormalV2", shape, dtype), grad=False, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(parity: Any, dtype: str, shape: tuple[int, ...]) -> None:
    info = np.iinfo(dtype)
    for low, high in ((3, 10), (info.min, info.max), (info.max - 1, info.max)):
        parity(
            lambda m, low=low, high=high: _drawn(
                m, "StatelessRandomUniformIntV2", shape, dtype, minval=low, maxval=high
            ),
            grad=False,
        )

"""Random numbers from a key and a counter: the same numbers that TensorFlow draws."""

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


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0, 1.5, 30.0])
def test_gamma(parity: Any, alpha: float, dtype: str) -> None:
    rtol = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-10}[dtype]
    least = float(np.finfo(dtype).tiny)  # smaller values are 0 in TensorFlow

    def build(m: Any, shape: Any, a: Any) -> Any:
        key = m.constant(np.array([0x0123456789ABCDEF], np.uint64))
        counter = m.constant(np.array([2**64 - 300, 0xFEDCBA9876543210], np.uint64))
        return m.raw_ops.StatelessRandomGammaV3(shape=shape, key=key, counter=counter, alg=1, alpha=a)

    for shape in ((), (0,), (7,), (200, 5), (70_000,)):
        concentration = np.asarray(alpha, dtype)
        parity(lambda m, a, shape=shape: build(m, shape, a), concentration, rtol=rtol, atol=least, grad=False)


def test_gamma_of_several_shapes(parity: Any) -> None:
    def build(m: Any, alpha: Any, beta: Any) -> Any:
        return m.random.stateless_gamma([5, 6, 3], [3, -4], alpha, beta)

    alpha, beta = np.array([0.3, 1.0, 2.5], np.float32), np.array([[1], [2], [3], [4], [5], [6]], np.float32)
    parity(build, alpha, beta, rtol=1e-4, atol=1e-6, static=False)
    parity(lambda m, a: m.random.stateless_gamma([4, 3], [3, 4], a), alpha, rtol=1e-4, atol=1e-6)
    parity(lambda m, a: m.random.stateless_gamma([4, 0], [3, 4], a), alpha[:0])

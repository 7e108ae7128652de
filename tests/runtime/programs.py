"""Random programs for property tests: a seeded graph of ops over a few inputs, with views, reuse and fan-out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import aioflow as af


@dataclass(frozen=True)
class Program:
    """A graph with values for its placeholders and some tensors to fetch."""

    feeds: dict[af.Tensor, np.ndarray[Any, Any]]
    fetches: list[af.Tensor]


_UNARY: list[Callable[[af.Tensor], af.Tensor]] = [
    *(af.negative, af.square, af.tanh, af.sigmoid, af.exp, af.abs, af.identity, af.stop_gradient, af.nn.relu)
]
_BINARY = [af.add, af.subtract, af.multiply, af.maximum, af.minimum, af.squared_difference]


def random_program(seed: int, size: int = 40, rows: int | None = None) -> Program:
    """Return a program of `size` nodes over float32 values of shapes [n, 6] and [6].

    n is 3000 for every third seed and 4 otherwise. The static shape has n unless `rows` is None.
    """
    rng = random.Random(seed)
    values = np.random.default_rng(seed)
    count = 3000 if seed % 3 == 0 else 4  # every third program has buffers large enough for reuse
    shape = [rows if rows is None else count, 6]
    matrix = af.placeholder("float32", shape)
    row = af.placeholder("float32", [6])
    feeds = {
        matrix: values.standard_normal((count, 6)).astype(np.float32),
        row: values.standard_normal(6).astype(np.float32),
    }
    pool: list[af.Tensor] = [matrix, row, af.constant(values.standard_normal(6).astype(np.float32))]
    for _ in range(size):
        pool.append(_grow(rng, pool))
    return Program(feeds, rng.sample(pool, 5))


def _grow(rng: random.Random, pool: list[af.Tensor]) -> af.Tensor:
    kind = rng.random()
    recent = pool[-8:]
    if kind < 0.35:
        return rng.choice(_UNARY)(rng.choice(recent))
    if kind < 0.85:
        return rng.choice(_BINARY)(rng.choice(recent), rng.choice(pool))
    source = rng.choice(recent)
    if len(source.shape) == 2:
        return rng.choice([_flip, _swap_twice, _row])(source)
    return af.reshape(source, [6])


def _flip(x: af.Tensor) -> af.Tensor:
    return af.reverse(x, [1])


def _swap_twice(x: af.Tensor) -> af.Tensor:
    return af.transpose(af.transpose(x))


def _row(x: af.Tensor) -> af.Tensor:
    return x[0]

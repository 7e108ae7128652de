"""Random programs full of nodes that an optimization might remove.

Some of the nodes are in branches and loops, some where removing them would be wrong. Some are inputs of sums and
products, whose rounding shows the memory layout of their inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import aioflow as af

__all__ = ["RedundantProgram", "redundant_program"]

_SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e38]


@dataclass(frozen=True)
class RedundantProgram:
    """A graph with values for its placeholders, tensors to fetch, target operations, and variable initializers."""

    feeds: dict[af.Tensor, Any]
    fetches: list[af.Tensor]
    targets: list[af.Operation]
    initializers: list[af.Operation]


class _Program:
    def __init__(self, seed: int, rows: int | None) -> None:
        self.rng = random.Random(seed)
        self.variable = af.Variable(0.0, dtype=af.float32)
        self.budget = 50
        self.rows = rows

    def constant(self, *shape: int) -> Any:
        values = [self.rng.choice([0.25, -2.0, 3.0, 1.0, 0.0, -0.0]) for _ in range(int(np.prod(shape)))]
        return af.constant(np.reshape(np.array(values, np.float32), shape))

    def statement(self, floats: list[Any], ints: list[Any], depth: int) -> None:
        self.budget -= 1
        if depth and self.budget > 0 and self.rng.random() < 0.2:
            self.rng.choice([self.branch, self.branch, self.loop, self.after_an_effect])(floats, ints, depth - 1)
        elif self.rng.random() < 0.2:
            ints.append(self.rng.choice(_WHOLE)(self.rng.choice(ints), self.rng.choice(ints)))
        elif self.rng.random() < 0.35:
            floats.append(self.rng.choice(_WORK)(self.rng.choice(floats[-5:]), self.rng.choice(floats)))
        elif self.rng.random() < 0.15:
            repeated, x, y = self.rng.choice(_WORK), self.rng.choice(floats), self.rng.choice(floats)
            floats.append(repeated(x, y) + repeated(x, y))
        elif self.rng.random() < 0.1:
            floats.append(self.rng.choice(floats) + self.constant(3) * self.constant(3) - self.constant())
        else:
            floats.append(self.rng.choice(_NOTHING)(self.rng.choice(floats[-5:])))

    def inside(self, floats: list[Any], ints: list[Any], depth: int) -> tuple[list[Any], list[Any]]:
        floats, ints = list(floats), list(ints)
        for _ in range(self.rng.randint(1, 3)):
            self.statement(floats, ints, depth)
        return floats, ints

    def branch(self, floats: list[Any], ints: list[Any], depth: int) -> None:
        def side() -> Any:
            inner, whole = self.inside(floats, ints, depth)
            return [inner[-1], whole[-1]]

        if self.rng.random() < 0.5:
            pred = af.reduce_sum(self.rng.choice(floats)) > 0.5
        else:
            pred = self.rng.choice(ints) > 1
        made = af.cond(pred, side, side)
        floats.append(made[0])
        ints.append(made[1])

    def loop(self, floats: list[Any], ints: list[Any], depth: int) -> None:
        start = self.rng.choice(floats)

        def body(i: Any, x: Any) -> Any:
            inner, _ = self.inside([*floats, x], [*ints, i], depth)
            return [i + 1, af.tanh(inner[-1])]

        limit = self.rng.randint(0, 3)
        shapes = [af.TensorShape([]), af.TensorShape([None, 3])]
        i, x = af.while_loop(lambda i, _: i < limit, body, [0, start], shape_invariants=shapes)
        floats.append(x)
        ints.append(i)

    def after_an_effect(self, floats: list[Any], ints: list[Any], depth: int) -> None:
        """Append values computed after an assignment, which an optimization must not lose."""
        effect = self.variable.assign_add(1.0)
        with af.control_dependencies([effect]):
            inner, _ = self.inside(floats, ints, depth)
            floats.append(inner[-1])

    def feed(self, values: np.random.Generator, rows: int) -> Any:
        """Return rows of three values in one of several memory layouts."""
        made = values.standard_normal((rows, 3)).astype(np.float32)
        for _ in range(2):
            made[values.integers(rows), values.integers(3)] = values.choice(_SPECIAL[:5]) if rows < 10 else 0.5
        ways = [made, np.asfortranarray(made), np.repeat(made, 2, axis=1)[:, ::2], made[::-1]]
        return ways[int(values.integers(len(ways)))]


_WORK: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: af.maximum(x, y),
    lambda x, y: x - 0.1 * y,
    lambda x, y: x * af.reduce_sum(y, axis=1, keepdims=True),
    lambda x, y: x + af.reduce_mean(y, axis=0),
    lambda x, y: x * af.reduce_sum(y),
    lambda x, y: af.matmul(x, af.matmul(af.transpose(y), y)) * 0.01,
    lambda x, y: af.matmul(x, af.matmul(y, x, transpose_a=True)) * 0.01,
    lambda x, y: af.reverse(x, [0]) + y,
    lambda x, y: af.where(x < y, x, y),
    lambda x, y: af.transpose(af.transpose(x) * 0.5),
]

_WHOLE: list[Callable[[Any, Any], Any]] = [
    lambda i, j: i + j,
    lambda i, j: i * 1 + 0,
    lambda i, j: af.negative(af.negative(i)) // 1,
    lambda i, j: i % 3 + af.cast(af.cast(j, af.float64), af.int32),
    lambda i, j: af.cast(af.logical_not(i < j), af.int32),
    lambda i, j: af.bitwise.bitwise_and(i, j) + af.bitwise.bitwise_and(j, i),
    lambda i, j: af.maximum(i, i) - 0,
    lambda i, j: af.constant(3) * af.constant(2) - i,
]

_NOTHING: list[Callable[[Any], Any]] = [
    lambda x: x * 1.0,
    lambda x: 1.0 * x,
    lambda x: x * af.ones([3]),
    lambda x: x / 1.0,
    lambda x: x / 4.0,
    lambda x: x / -0.5,
    lambda x: x - 0.0,
    lambda x: x + 0.0,
    lambda x: x + af.constant(-0.0),
    lambda x: x - af.constant(-0.0),
    lambda x: af.pow(x, 1.0),
    lambda x: af.negative(-x),
    lambda x: af.identity(x),
    lambda x: af.stop_gradient(x),
    lambda x: af.abs(af.negative(x)) * 0.5,
    lambda x: af.square(af.negative(x)),
    lambda x: af.floor(af.floor(x)),
    lambda x: af.cast(af.cast(x, af.float64), af.float32),
    lambda x: af.add_n([x]),
    lambda x: af.maximum(x, x),
    lambda x: af.where(af.logical_not(af.logical_not(x > 0.0)), x, -x),
    lambda x: af.where(af.logical_not(x < 0.5), x, x * 0.5),
    lambda x: af.transpose(af.transpose(x)),
    lambda x: af.transpose(x, [0, 1]),
    lambda x: af.reshape(af.reshape(x, [-1]), [-1, 3]),
    lambda x: af.reshape(x, af.shape(x)),
    lambda x: af.squeeze(af.expand_dims(x, 1), [1]),
    lambda x: af.reduce_max(af.expand_dims(x, 0), axis=0, keepdims=True)[0],
    lambda x: af.reduce_sum(af.expand_dims(x, 1), axis=1),
    lambda x: x[:, :],
    lambda x: af.slice(x, [0, 0], [-1, -1]),
    lambda x: af.pad(x, [[0, 0], [0, 0]]),
    lambda x: af.tile(x, [1, 1]),
    lambda x: af.split(x, 1, axis=0)[0],
    lambda x: x * af.cast(af.size(x) // af.maximum(af.size(x), 1), af.float32),
]


def redundant_program(seed: int) -> RedundantProgram:
    """Return a program over float32 values of [rows, 3] and int32 scalars."""
    values = np.random.default_rng(seed)
    rows = 700 if seed % 4 == 0 else 4
    program = _Program(seed, rows)
    x = af.placeholder("float32", [rows if seed % 3 else None, 3])
    y = af.placeholder("float32", [rows, 3])
    n = af.placeholder("int32", [])
    feeds = {x: program.feed(values, rows), y: program.feed(values, rows), n: np.int32(values.integers(0, 4))}
    floats, ints = [x, y, program.constant(rows, 3)], [n, af.constant(2)]
    for _ in range(12):
        program.statement(floats, ints, 2)
    fetches = list(dict.fromkeys([*program.rng.sample(floats, 3), *floats[-3:], ints[-1]]))
    fetches.append(af.reduce_sum(floats[-1]))
    targets = [program.variable.assign_add(1.0).op] if program.rng.random() < 0.3 else []
    return RedundantProgram(feeds, fetches, targets, [program.variable.initializer])

"""Elementwise results larger than their operands, and the limit on the size of a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import ResourceExhaustedError
from aioflow.graph.shapes import Dims
from aioflow.runtime.growing import may_grow

N = None
LIMIT = af.SessionConfig(max_value_bytes=1 << 20)
ROWS = np.ones([600, 1], np.float32)  # added to its transpose: 1,440,000 bytes


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(), ()], False),
        ([(), None], False),
        ([(N, 10), (10,)], False),
        ([(N, 10), (N, 10)], False),
        ([(N,), (N,)], False),
        ([(3, 4), (3, 1)], False),
        ([(3, 1), (1, 4)], True),
        ([(3, 1), (4,)], True),
        ([(N, N), (N, N)], True),
        ([(N, N), (5,)], True),
        ([(N, 5), (N, 1), (1, 5)], True),
        ([(3, 5), (N, 1), (1, 5)], False),
        ([None, (3,)], True),
        ([None], False),
    ],
)
def test_may_grow_over_operand_shapes(shapes: list[Dims], expected: bool) -> None:
    assert may_grow(shapes) is expected


@pytest.mark.parametrize("shape", [[600, 1], [None, 1], [None, None], None], ids=str)
@pytest.mark.parametrize("budget", [-1.0, 0.05])
@pytest.mark.parametrize("name", ["add", "maximum", "floordiv", "pow", "squared_difference", "atan2"])
async def test_limit_applies_to_a_value_that_is_not_fetched(name: str, budget: float, shape: Any) -> None:
    column = af.placeholder("float32", shape)
    row = af.placeholder("float32", shape and shape[::-1])
    made = getattr(af, name)(column, row, name="grown")
    seen = af.reduce_sum(made)
    async with af.Session(config=af.SessionConfig(max_value_bytes=1 << 20, inline_budget=budget)) as session:
        if shape != [600, 1]:
            for _ in range(3):
                await session.run(seen, {column: ROWS[:400], row: ROWS[:400].T})
        for _ in range(3):
            with pytest.raises(ResourceExhaustedError, match="max_value_bytes") as raised:
                await session.run(seen, {column: ROWS, row: ROWS.T})
            assert raised.value.node == "grown"


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_limit_applies_in_a_chain_a_loop_and_a_branch(executor: str) -> None:
    column, row = af.placeholder("float32", [None, 1]), af.placeholder("float32", [1, None])

    def grown() -> af.Tensor:
        return af.reduce_sum(af.exp(column * row) + column)

    looped = af.while_loop(lambda i, s: i < 2, lambda i, s: (i + 1, s + grown()), [0, 0.0])[1]
    chosen = af.cond(af.reduce_sum(row) > 0.0, grown, lambda: af.constant(0.0))
    config = af.SessionConfig(max_value_bytes=1 << 20, executor=executor)
    async with af.Session(config=config) as session:
        for made in (grown(), looped, chosen):
            await session.run(made, {column: ROWS[:400], row: ROWS[:400].T})
            with pytest.raises(ResourceExhaustedError, match="max_value_bytes"):
                await session.run(made, {column: ROWS, row: ROWS.T})


async def test_default_limit_is_the_memory_of_the_machine() -> None:
    """Each of the two operands takes a megabyte; their sum would take 256 GiB."""
    column, row = af.placeholder("float32", [None, 1]), af.placeholder("float32", [1, None])
    long = np.zeros([1 << 18, 1], np.float32)
    async with af.Session() as session:
        with pytest.raises(ResourceExhaustedError, match="max_value_bytes"):
            await session.run(af.reduce_sum(column + row), {column: long, row: long.T})


async def test_incompatible_shapes_are_still_reported_as_such() -> None:
    a, b = af.placeholder("float32", [None, None]), af.placeholder("float32", [None, None])
    async with af.Session(config=LIMIT) as session:
        with pytest.raises(af.errors.InvalidArgumentError):
            await session.run(a + b, {a: ROWS, b: ROWS[:7]})
        assert (await session.run(a + b, {a: ROWS, b: ROWS})).shape == (600, 1)
        assert (await session.run(a + b, {a: np.zeros([0, 1]), b: ROWS.T})).shape == (0, 600)

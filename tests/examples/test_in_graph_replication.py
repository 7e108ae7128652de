"""In-graph replication: the example learns, and its gradients are those of the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.demo.digits import load_digits
from examples import in_graph_replication as example
from tests.net.clusters import cluster

PARTS = 3


async def test_training_learns(capsys: pytest.CaptureFixture[str]) -> None:
    assert await example.main() > 0.9
    assert "3 copies of the model" in capsys.readouterr().out


async def test_accuracy_is_low_without_training() -> None:
    assert await example.main(steps=0) < 0.4


async def trained(target: str, model: example.Model) -> list[Any]:
    """Return the gradients of a batch in float64, and the variables after two steps with it."""
    digits, _ = load_digits().split()
    feeds = {model.images: digits.images[:60].astype(np.float64), model.labels: digits.labels[:60]}
    async with af.Session(target) as session:
        await session.run(af.global_variables_initializer())
        found = await session.run(model.gradients, feeds)
        for _ in range(2):
            await session.run(model.train, feeds)
        return [*found, *await session.run(af.trainable_variables())]


async def test_replicas_on_workers_equal_one_process() -> None:
    """Results are equal to the last bit in float64: the same parts are added in the same order."""
    async with cluster("ps", *["worker"] * PARTS) as servers:
        with af.Graph().as_default():
            model = example.build(PARTS, "/job:ps", lambda index: f"/job:worker/task:{index}", af.float64)
            spread = await trained(servers[-1].target, model)
    with af.Graph().as_default():
        alone = await trained("", example.build(PARTS, "", lambda index: "", af.float64))
    for mine, theirs in zip(spread, alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)


async def test_the_mean_over_copies_is_the_gradient_of_the_whole_batch() -> None:
    """The difference is rounding: a sum of 60 rows in another order, of terms below 1 (60 · 2.2e-16 · 1 < 1e-13)."""
    with af.Graph().as_default():
        parts = await trained("", example.build(PARTS, "", lambda index: "", af.float64))
    with af.Graph().as_default():
        whole = await trained("", example.build(1, "", lambda index: "", af.float64))
    for mine, theirs in zip(parts, whole, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-13)

"""Synchronous training while its processes are killed and stopped at random: the result equals that of a calm run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from tests.system.chaos import Crowd, Member
from tests.system.processes import arguments_of
from tests.system.sync_training import WORKERS, Model, batch, jobs_of, replayed


async def trained_in_spite_of(times: int, seed: int, folder: Path) -> None:
    addresses = free_addresses(1 + WORKERS)
    jobs = jobs_of(addresses)
    steps = 300 * times  # the training must last longer than the disturbances
    server = Member("the server", ["-m", "aioflow.worker", *arguments_of(jobs), "--job", "ps", "--task", "0"])
    workers = [
        Member(
            f"worker {task}",
            ["-m", "tests.system.sync_training", ",".join(addresses), str(task), str(folder), str(steps)],
            lasts=task != 0,  # the chief may go back to a checkpoint and need the other workers again
        )
        for task in range(WORKERS)
    ]
    crowd = Crowd([server, *workers], seed)
    model = Model()
    try:
        async with crowd.running():
            await crowd.disturb(times)
            await workers[0].done.wait()
    except BaseException as error:
        error.add_note("\n".join([*crowd.story, *(line for w in workers for line in [w.name, *w.output[-30:]])]))
        raise
    with model.graph.as_default():
        saver = af.train.Saver([model.step, model.weights])
    async with af.Session(graph=model.graph) as session:
        await saver.restore(session, str(af.train.latest_checkpoint(folder)))
        step, weights = await session.run([model.step, model.weights])
    assert step >= steps
    np.testing.assert_array_equal(weights, await replayed(int(step)))
    inputs, labels = batch(10**6, 0)
    assert np.mean((inputs @ weights).argmax(1) == labels) > 0.7


async def test_training_survives_four_disturbances(tmp_path: Path) -> None:
    async with asyncio.timeout(240):
        await trained_in_spite_of(4, 1, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
async def test_training_survives_two_hundred_disturbances(seed: int, tmp_path: Path) -> None:
    async with asyncio.timeout(1200):
        await trained_in_spite_of(20, seed, tmp_path)

"""Tests of monitored training with real processes, whose parameter server is killed, paused and restarted.

`benchmarks/recovery.py` measures how soon training continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from tests.system.processes import worker_process

COUNT = 120


class Records:
    """A graph that counts on the server how often each record was part of an applied update."""

    def __init__(self) -> None:
        with af.device("/job:ps"):
            self.x = af.placeholder("int32", [])
            self.step = af.train.get_or_create_global_step()
            self.seen = af.Variable(np.zeros(COUNT, np.int32), name="seen")
            self.train = af.group(self.step.assign_add(1), af.scatter_add(self.seen, self.x, 1))

    def feeds(self, start: int) -> Iterator[dict[Any, int]]:
        return ({self.x: number} for number in range(start, COUNT))


class Recovery(logging.Handler):
    """Log handler that notices when a monitored session needs a new session."""

    def __init__(self) -> None:
        super().__init__()
        self.begins = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("creating a new session"):
            self.begins.set()


@pytest.fixture
def recovery() -> Iterator[Recovery]:
    handler, logger = Recovery(), logging.getLogger("aioflow.train")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_training_resumes_and_counts_every_record_once(tmp_path: Path, recovery: Recovery, how: str) -> None:
    records = Records()
    cluster = {"ps": free_addresses(1)}
    fed = af.train.CheckpointedInput(af.train.SeekableFeeds(records.feeds))
    async with asyncio.timeout(200), AsyncExitStack() as stack:
        ps = await stack.enter_async_context(worker_process(cluster, "ps", allow_dirs=[tmp_path]))
        target = f"aioflow://{cluster['ps'][0]}"
        async with af.train.MonitoredTrainingSession(
            target, checkpoint_dir=tmp_path, save_checkpoint_steps=25, input=fed
        ) as session:
            for _ in range(60):
                await session.run(records.train)
            os.kill(ps.pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            async with asyncio.TaskGroup() as group:
                group.create_task(session.run(records.train))
                await recovery.begins.wait()
                if how == "kill":
                    await ps.wait()
                    await stack.enter_async_context(worker_process(cluster, "ps", allow_dirs=[tmp_path]))
                else:
                    os.kill(ps.pid, signal.SIGCONT)
            while not session.should_stop():
                await session.run(records.train)
    reader = af.train.load_checkpoint(tmp_path)
    assert int(reader.read("global_step")) == COUNT
    assert reader.read("seen").tolist() == [1] * COUNT


async def test_chief_and_worker_resume_after_a_restart_of_their_server(tmp_path: Path, recovery: Recovery) -> None:
    """Train asynchronously between graphs: the chief restores its checkpoint, and the worker waits for that."""
    with af.device("/job:ps"):
        step = af.train.get_or_create_global_step()
        update = step.assign_add(1, read_value=False)
    cluster = {"ps": free_addresses(1)}
    seen: dict[bool, list[int]] = {True: [], False: []}
    both_train, restarted = asyncio.Event(), asyncio.Event()
    goals = {True: 0, False: 0}

    async def part(is_chief: bool) -> None:
        mine = seen[is_chief]
        async with af.train.MonitoredTrainingSession(
            f"aioflow://{cluster['ps'][0]}", is_chief, tmp_path, save_checkpoint_steps=40
        ) as session:
            while not (restarted.is_set() and len(mine) >= goals[is_chief]):
                mine.append(int((await session.run([step, update]))[0]))
                if min(map(len, seen.values())) >= 50:
                    both_train.set()

    async with asyncio.timeout(200), AsyncExitStack() as stack:
        ps = await stack.enter_async_context(worker_process(cluster, "ps", allow_dirs=[tmp_path]))
        async with asyncio.TaskGroup() as group:
            group.create_task(part(True))
            group.create_task(part(False))
            await both_train.wait()
            ps.kill()
            await ps.wait()
            await recovery.begins.wait()
            before = {which: len(steps) for which, steps in seen.items()}
            goals.update({which: count + 50 for which, count in before.items()})
            saved = int(Path(str(af.train.latest_checkpoint(tmp_path))).name.rpartition("-")[2])
            await stack.enter_async_context(worker_process(cluster, "ps", allow_dirs=[tmp_path]))
            restarted.set()
    for which, steps in seen.items():
        assert steps[before[which]] >= saved  # neither has seen the initial values again
    assert int(af.train.load_variable(tmp_path, "global_step")) >= saved

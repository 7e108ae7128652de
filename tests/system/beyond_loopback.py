"""Programs for the machines of tests/system/test_namespaces.py: `python -m tests.system.beyond_loopback WHAT …`.

Each line of their output is a keyword and its values.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import aioflow as af

__all__ = ["STEPS"]

STEPS: Final = 150


def say(*words: object) -> None:
    print(*words, flush=True)


async def step(target: str) -> None:
    """Run a step through both tasks."""
    with af.Graph().as_default() as graph:
        with af.device("/job:ps"):
            x = af.constant([1.0, 2.0]) * 2.0
        with af.device("/job:worker"):
            y = af.reduce_sum(x)
    try:
        async with af.Session(target, graph=graph) as session:
            say("result", await session.run(y, timeout=30.0))
    except af.errors.OpError as error:
        say("error", type(error).__name__, str(error).splitlines()[0])


async def waiting(target: str) -> None:
    """Run steps in which one task waits for the other, until one fails; then clear the cluster and run another.

    The other task waits for a queue first; afterwards elements are enqueued and dequeued in turn.
    """
    with af.Graph().as_default() as graph:
        with af.device("/job:ps"):
            queue = af.FIFOQueue(9, [af.float32], shapes=[()], shared_name="queue")
            taken, put = queue.dequeue(), queue.enqueue(1.0)
        with af.device("/job:worker"):
            y = taken * 2.0
    async with af.Session(target, graph=graph) as session:
        await session.run(put)
        assert await session.run(y) == 2.0
        say("waits")
        try:
            while True:
                await session.run(put)
                await session.run(y)
        except af.errors.OpError as error:
            say("error", type(error).__name__, str(error).splitlines()[0])
    await asyncio.to_thread(sys.stdin.readline)  # until the link is restored
    async with af.Session(target, graph=graph) as session:
        await session.clear()
    async with af.Session(target, graph=graph) as session:
        await session.run(put)
        say("result", await session.run(y, timeout=30.0))


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("creating a new session"):
            say("recovers")


async def training(target: str, folder: str) -> None:
    """Run monitored training, which a cut link only delays."""
    with af.Graph().as_default():
        with af.device("/job:ps"):
            count = af.train.get_or_create_global_step()
            w = af.get_variable("w", [], initializer=af.zeros_initializer())
            train = af.group(count.assign_add(1), w.assign_add(0.5))
        logging.getLogger("aioflow.train").addHandler(_Log())
        logging.getLogger("aioflow.train").setLevel(logging.INFO)
        async with af.train.MonitoredTrainingSession(
            target, checkpoint_dir=folder, save_checkpoint_steps=10, hooks=[af.train.StopAtStepHook(last_step=STEPS)]
        ) as session:
            done = 0
            while not session.should_stop():
                await session.run(train)
                done += 1
                if done == 60:
                    say("trains")
                    await asyncio.sleep(0)
                    await asyncio.to_thread(sys.stdin.readline)  # until the link has been cut
        async with af.Session(target) as after:
            say("result", int(await after.run(count)), float(await after.run(w)))


PROGRAMS: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "step": step,
    "waiting": waiting,
    "training": training,
}

if __name__ == "__main__":
    asyncio.run(PROGRAMS[sys.argv[1]](*sys.argv[2:]))

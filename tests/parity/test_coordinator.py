"""`Coordinator` and queue runners against TensorFlow's: the result of each call after any earlier calls."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import aioflow

CALLS = (
    *("request_stop", "fail", "fail by exc_info", "end", "clear_stop", "join", "raise_requested_exception"),
    *("stop_on_exception", "stop_on_end", "wait"),
)


class Failure(Exception):
    """The error of a failing task."""


async def made(call: str, coord: Any, ended: Callable[[], Exception], waits: Any) -> Any:
    """Return the result of one call, or the name of the error it raised. `waits` awaits aioflow's results."""
    try:
        if call == "stop_on_exception":
            with coord.stop_on_exception():
                raise Failure
        elif call == "stop_on_end":
            with coord.stop_on_exception():
                raise ended()
        elif call.startswith("fail") or call == "end":
            try:
                raise Failure if call != "end" else ended()
            except Exception as error:
                coord.request_stop(sys.exc_info() if call == "fail by exc_info" else error)
        elif call == "wait":
            return await waits(coord.wait_for_stop(0.0))
        else:
            answer = getattr(coord, call)()
            return await waits(answer) if call == "join" else answer
    except Exception as error:
        return type(error).__name__
    return None


async def answers(calls: list[str], m: Any) -> list[Any]:
    async def waits(answer: Any) -> Any:
        return await answer if m is aioflow else answer

    def ended() -> Exception:
        error: Exception = m.errors.OutOfRangeError(*(("the end",) if m is aioflow else (None, None, "the end")))
        return error

    coord = m.train.Coordinator()
    return [(call, await made(call, coord, ended, waits), coord.should_stop(), coord.joined) for call in calls]


@pytest.mark.parametrize("seed", range(40))
def test_random_sequences_of_calls(tf: Any, seed: int) -> None:
    rng = random.Random(seed)
    calls = [rng.choice(CALLS) for _ in range(12)]
    assert asyncio.run(answers(calls, aioflow)) == asyncio.run(answers(calls, tf))


def test_all_pairs_of_calls(tf: Any) -> None:
    for pair in itertools.product(CALLS, repeat=2):
        calls = [*pair, "join", "clear_stop", *pair]
        assert asyncio.run(answers(calls, aioflow)) == asyncio.run(answers(calls, tf))


def test_coordinator_works_again_after_clear_stop(tf: Any) -> None:
    log: list[str] = []

    def there() -> list[str]:
        coord = tf.train.Coordinator()

        def work(name: str) -> None:
            coord.wait_for_stop()
            log.append(name)

        for name in "ab":
            worker = threading.Thread(target=work, args=(name,))
            worker.start()
            coord.request_stop()
            coord.join([worker])
            coord.clear_stop()
        return log

    async def here() -> list[str]:
        found: list[str] = []

        async def work(name: str) -> None:
            await coord.wait_for_stop()
            found.append(name)

        async with aioflow.train.Coordinator() as coord:
            for name in "ab":
                coord.start(work(name))
                coord.request_stop()
                await coord.join()
                coord.clear_stop()
        return found

    assert asyncio.run(here()) == there()


def runner_of(m: Any) -> tuple[Any, Any]:
    queue = m.FIFOQueue(3, ["float32"], [[]])
    return queue, m.train.QueueRunner(queue, [queue.enqueue(1.0)] * 2)


def test_second_create_threads_call_adds_no_threads(tf: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as one, tf.Session() as two, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue, runner = runner_of(tf)
        dequeue, coord = queue.dequeue(), tf.train.Coordinator()
        expected = [len(runner.create_threads(s, coord, start=True)) for s in (one, one, two, one, two)]
        for session in (one, two):
            session.run(dequeue)
        coord.request_stop()
        coord.join()

    async def here() -> list[int]:
        with aioflow.Graph().as_default():
            queue, runner = runner_of(aioflow)
            dequeue = queue.dequeue()
            async with aioflow.Session() as one, aioflow.Session() as two, aioflow.train.Coordinator() as coord:
                found = [len(runner.create_threads(s, coord)) for s in (one, one, two, one, two)]
                await one.run(dequeue)
                await two.run(dequeue)
            return found

    assert asyncio.run(here()) == expected

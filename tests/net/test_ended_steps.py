"""The memory of ended steps: a client displaces and stops only its own steps."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import AbortedError, CancelledError
from aioflow.net.channel import Channel
from aioflow.net.comm import CommOptions
from aioflow.net.errors_codec import encode_error
from aioflow.net.limits import Limits
from aioflow.net.messages import ABORT, REPORT
from aioflow.net.server import Server, target_address
from aioflow.net.step_table import EndedSteps, StepTable
from aioflow.net.transports import connect
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step
from tests.net.clusters import inproc

HOSTILE, HONEST = "hostile", "honest"
ERROR = CancelledError("enough")


def table() -> StepTable:
    loop = asyncio.get_running_loop()
    return StepTable(lambda _: Rendezvous(loop, frozenset(["here"])), Limits())


def test_latest_ended_steps_are_remembered() -> None:
    ended = EndedSteps(1000)
    for id in range(5000):
        ended.add(id, None, HONEST)
        assert len(ended) <= 1000
    assert 4999 in ended
    assert 4100 in ended
    assert 3000 not in ended


@pytest.mark.parametrize("clients", [1, 7])
def test_forged_steps_displace_only_those_of_their_client(clients: int) -> None:
    ended = EndedSteps(1000)
    for id in range(100):
        ended.add(id, ERROR, HONEST, HONEST)
    for id in range(1000, 9000):
        ended.add(id, ERROR, (HOSTILE, id % clients))
        assert len(ended) <= 1000
    assert all(ended.refuses(id, HONEST) for id in range(100))


@pytest.mark.parametrize("lost", [False, True])
def test_step_that_two_clients_end_is_remembered_for_the_last(lost: bool) -> None:
    ended = EndedSteps(1000)
    ended.add(1, ERROR, HOSTILE, HOSTILE)
    if lost:
        ended.lose(HOSTILE)
    ended.add(1, None, HONEST)
    ended.set_changed(1)
    for id in range(1000, 9000):
        ended.add(id, ERROR, None if lost else HOSTILE)
        assert len(ended) <= 1000
    assert ended.refuses(1, HONEST)
    assert ended.has_changed(1)
    for id in range(10000, 19000):
        ended.add(id, None, HONEST)
    assert 1 not in ended


def test_steps_of_lost_clients_are_displaced_first_if_most() -> None:
    ended = EndedSteps(1000)
    for id in range(900):
        ended.add(id, None, id)
        ended.lose(id)
    for id in range(1000, 1400):
        ended.add(id, None, HONEST)
    assert sum(id in ended for id in range(900)) < 620
    assert all(id in ended for id in range(1000, 1400))


async def test_forged_steps_do_not_displace_those_of_others() -> None:
    steps = table()
    steps.end(steps.begin(1, Step(id=1), {}, client=HONEST))
    steps.abort(2, ERROR, HONEST)
    for id in range(10, 100_100):
        steps.abort(id, ERROR, HOSTILE)
    for id in (1, 2):
        with pytest.raises((AbortedError, CancelledError)):
            steps.begin(id, Step(id=id), {}, client=HONEST)
    steps.deliver(1, "edge", "", np.zeros(1), HOSTILE)
    assert not steps._early, "a step that has ended takes nothing"


async def test_abort_does_not_stop_steps_of_other_clients() -> None:
    steps = table()
    running = Step(id=1)
    joint = steps.begin(1, running, {}, client=HONEST)
    assert steps.abort(1, ERROR, HOSTILE) is None
    assert not running.requested
    steps.abort(2, ERROR, HOSTILE)
    steps.begin(2, Step(id=2), {}, client=HONEST)
    assert steps.abort(1, ERROR, HONEST) is joint
    assert running.requested


async def test_abort_is_remembered_for_each_client() -> None:
    steps = table()
    for client in (HOSTILE, HONEST):
        steps.abort(1, CancelledError(f"stopped by {client}"), client)
        # A second abort by the same client changes nothing.
        steps.abort(1, CancelledError("again"), client)
        with pytest.raises(CancelledError, match=f"stopped by {client}"):
            steps.begin(1, Step(id=1), {}, client=client)
    with pytest.raises(CancelledError, match=f"stopped by {HOSTILE}"):
        steps.begin(1, Step(id=1), {}, client=HOSTILE)
    steps.end(steps.begin(1, Step(id=1), {}, client="another"))


def test_abort_of_another_client_does_not_displace_own() -> None:
    ended = EndedSteps(1000)
    ended.add(1, ERROR, HOSTILE, HOSTILE)
    ended.add(1, ERROR, HONEST, HONEST)
    for id in range(1000, 9000):
        ended.add(id, ERROR, HOSTILE, HOSTILE)
    assert ended.refuses(1, HONEST)
    assert not ended.refuses(1, HOSTILE)


async def test_report_and_abort_apply_only_to_own_steps() -> None:
    """Request reports and aborts over a connection of another client."""
    with af.device("/job:ps"):
        queue = af.FIFOQueue(1, [af.float32], shapes=[[]])
        taken, put = queue.dequeue(), queue.enqueue(7.0)
    spec = {"ps": inproc(1), "worker": inproc(1)}
    async with (
        asyncio.timeout(60),
        Server(spec, "ps", 0) as ps,
        Server(spec, "worker", 0) as worker,
        af.Session(worker.target) as session,
        Channel(await connect(target_address(ps.target), 5.0, CommOptions())) as hostile,
        asyncio.TaskGroup() as tg,
    ):
        waiting = tg.create_task(session.run(taken))
        while not (running := ps.status().activity.steps):  # noqa: ASYNC110
            await asyncio.sleep(0)
        step = running[0].id
        assert not (await hostile.call(REPORT, {"step": step}, timeout=60)).tensors
        await hostile.call(ABORT, {"step": step, "error": encode_error(ERROR)}, timeout=60)
        await session.run(put)
        assert await waiting == 7.0

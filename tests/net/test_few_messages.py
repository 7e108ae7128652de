"""Message counts: a step sends only necessary messages, and still reports failures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

import aioflow as af
from aioflow.compiler.messages import Messages, messages, unanswered
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.server import Server
from aioflow.net.tcp import TcpComm
from tests.net.clusters import cluster, given_up_at_once

PS, WORKER, CHIEF = (f"/job:{job}/replica:0/task:0" for job in ("ps", "worker", "chief"))


@contextmanager
def counted() -> Iterator[Counter[FrameKind]]:
    """Count the messages that arrive over TCP in this process, from REQUEST upwards."""
    found: Counter[FrameKind] = Counter()
    arrived = TcpComm._arrived

    def count(comm: TcpComm, message: WireMessage) -> None:
        if message.kind >= FrameKind.REQUEST:
            found[message.kind] += 1
        arrived(comm, message)

    with mock.patch.object(TcpComm, "_arrived", count):
        yield found


def read_by(task: str) -> af.Tensor:
    """Return a sum that another task computes from a scalar variable of the ps."""
    with af.device(PS):
        scalar = af.Variable(1.0, name="scalar", use_resource=True)
    with af.device(task):
        return af.add(scalar, 1.0)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (PS, {FrameKind.REQUEST: 1, FrameKind.REPLY: 1}),
        (CHIEF, {FrameKind.REQUEST: 1, FrameKind.PUSH: 1}),
        (WORKER, {FrameKind.REQUEST: 2, FrameKind.PUSH: 1, FrameKind.REPLY: 1}),
    ],
)
async def test_step_with_remote_scalar_sends_expected_messages(task: str, expected: dict[FrameKind, int]) -> None:
    with af.Graph().as_default() as graph:
        result = read_by(task)
        initialize = af.global_variables_initializer()
    async with cluster("ps", "worker", "chief", tcp=True) as servers, af.Session(servers[2].target, graph=graph) as s:
        await s.run(initialize)
        step = s.make_callable(result)
        assert await step() == 2.0
        with counted() as found:
            for _ in range(5):
                assert await step() == 2.0
        found -= Counter(confirmations(found))
        assert found == {kind: 5 * count for kind, count in expected.items()}
        assert messages(s.plan(result), home=CHIEF).total == sum(expected.values())


def confirmations(found: Counter[FrameKind]) -> dict[FrameKind, int]:
    """Return the messages by which a worker sometimes asks another if its values arrived: part of no step."""
    asked = found[FrameKind.REQUEST] % 5
    return {FrameKind.REQUEST: asked, FrameKind.REPLY: asked}


async def test_part_without_answer_reports_its_failure() -> None:
    with af.Graph().as_default() as graph:
        with af.device(PS):
            divisor = af.placeholder(af.int32, [])
            quotient = af.floordiv(af.constant(6), divisor, name="quotient")
        with af.device(WORKER):
            result = quotient + 1
    async with cluster("ps", "worker", tcp=True) as servers, af.Session(servers[1].target, graph=graph) as session:
        assert unanswered(session.plan(result, [divisor])) == {PS}
        assert await session.run(result, {divisor: 2}) == 4
        with pytest.raises(af.errors.InvalidArgumentError, match="quotient"):
            await session.run(result, {divisor: 0})
        assert await session.run(result, {divisor: 3}) == 3


async def test_step_awaits_a_part_without_answer_and_can_be_stopped() -> None:
    with af.Graph().as_default() as graph:
        with af.device(PS):
            queue = af.FIFOQueue(3, af.float32, [[]], shared_name="queue")
            value = queue.dequeue()
            fill = queue.enqueue(5.0)
        with af.device(WORKER):
            result = value * 2.0
    async with cluster("ps", "worker", tcp=True) as servers, af.Session(servers[1].target, graph=graph) as session:
        assert unanswered(session.plan(result)) == {PS}
        with pytest.raises(af.errors.DeadlineExceededError, match="Dequeue"):
            await session.run(result, timeout=0.3)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tg:  # the stopped step has dequeued nothing
            waiting = tg.create_task(session.run(result))
            await session.run(fill)
        assert waiting.result() == 10.0


async def test_loss_of_a_worker_whose_part_does_not_answer_is_reported() -> None:
    with af.Graph().as_default() as graph:
        with af.device(PS):
            value = af.FIFOQueue(3, af.float32, [[]], shared_name="queue").dequeue()
        with af.device(WORKER):
            result = value * 2.0

    async def stop(server: Server) -> None:
        while not server.worker._running:  # noqa: ASYNC110  # until the part waits there
            await asyncio.sleep(0)
        await server.stop()

    async with (
        asyncio.timeout(60),
        cluster("ps", "worker", tcp=True) as servers,
        af.Session(servers[1].target, graph=graph) as session,
        asyncio.TaskGroup() as tg,
    ):
        tg.create_task(stop(servers[0]))
        with pytest.raises(af.errors.UnavailableError, match=PS):
            await session.run(result, timeout=30.0)


# ── parts that need not answer ────────────────────────────────────────────────────────────────────────────────────────


def sends() -> Any:
    with af.device(PS):
        made = af.Variable(1.0, name="v", use_resource=True) + 1.0
    with af.device(WORKER):
        return made * 2.0


def does_something_else() -> Any:
    with af.device(PS):
        variable = af.Variable(1.0, name="v", use_resource=True)
        made = variable * 3.0
        update = af.assign_add(variable, 1.0).op
    with af.device(WORKER):
        return [made * 2.0, update]


def is_fetched() -> Any:
    with af.device(PS):
        made = af.Variable(1.0, name="v", use_resource=True) + 1.0
    with af.device(WORKER):
        return [made * 2.0, made]


def changes_and_sends() -> Any:
    with af.device(PS):
        changed = af.assign_add(af.Variable(1.0, name="v", use_resource=True), 1.0)
    with af.device(WORKER):
        return changed * 2.0


def hands_on() -> Any:
    """Return a chain over three tasks.

    The first two parts only send. The first sends to the second, so one of the two must answer.
    """
    with af.device(PS):
        made = af.Variable(1.0, name="v", use_resource=True) + 1.0
    with af.device(WORKER):
        middle = made * 2.0
    with af.device(CHIEF):
        return middle * 2.0


def branches() -> Any:
    with af.device(PS):
        made = af.Variable(1.0, name="v", use_resource=True) + 1.0
        switched, _ = af.raw_ops.Switch(data=made, pred=made > 3.0)
    with af.device(WORKER):
        return switched * 2.0


@pytest.mark.parametrize(
    ("build", "quiet"),
    [
        (sends, {PS}),
        (changes_and_sends, {PS}),
        (does_something_else, set()),
        (is_fetched, set()),
        (hands_on, {WORKER}),
        (branches, set()),
    ],
)
async def test_parts_that_only_send_need_not_answer(build: Callable[[], Any], quiet: set[str]) -> None:
    with af.Graph().as_default() as graph:
        fetches = build()
    async with cluster("ps", "worker", "chief") as servers, af.Session(servers[2].target, graph=graph) as session:
        assert unanswered(session.plan(fetches)) == quiet


async def test_messages_of_a_plan_are_counted() -> None:
    with af.Graph().as_default() as graph:
        result = sends()
    async with cluster("ps", "worker") as servers, af.Session(servers[1].target, graph=graph) as session:
        plan = session.plan(result)
        assert messages(plan) == Messages(requests=2, values=1, answers=1)
        assert messages(plan, home=WORKER) == Messages(requests=1, values=1, answers=0)


async def test_short_local_step_needs_no_message_and_no_loop_turn() -> None:
    with af.Graph().as_default() as graph:
        divisor = af.placeholder(af.int32, [])
        quotient = af.floordiv(af.constant(6), divisor)
    config = af.SessionConfig(inline_budget=60.0, yield_every=60.0)  # short, even if the machine stalls it
    async with (
        cluster("ps", tcp=True, config=config) as (server,),
        af.Session(server.target, graph=graph, config=config) as session,
    ):
        step = session.make_callable(quotient, [divisor])
        for n in (1, 2, 3):  # the first runs are measured, in a thread
            assert await step(n) == 6 // n
        begun = server.status().activity.begun
        turns: list[int] = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        with counted() as found:
            assert await step(6) == 1
            with pytest.raises(af.errors.InvalidArgumentError) as raised:
                await step(0)
        assert not turns
        assert not found
        assert not raised.value.may_have_been_applied
        assert server.status().activity.begun == begun + 2
        await server.drain(0.0)
        with given_up_at_once(), pytest.raises(af.errors.OpError):
            await step(6)

"""Values for steps that never begin: bounded in bytes, and freed with the connection that brought them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from aioflow.errors import AbortedError, CancelledError, ResourceExhaustedError, UnavailableError
from aioflow.net.channel import Channel, packed
from aioflow.net.comm import CommOptions
from aioflow.net.errors_codec import encode_error
from aioflow.net.limits import Limits
from aioflow.net.messages import ABORT, DELIVER, STATE
from aioflow.net.server import Server
from aioflow.net.step_table import JointStep, StepTable
from aioflow.net.transports import connect
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step
from tests.net.clusters import inproc
from tests.support.loops import virtually

MB = 1 << 20
HOSTILE, HONEST = "hostile", "honest"


def table(**limits: int) -> StepTable:
    loop = asyncio.get_running_loop()
    return StepTable(lambda _: Rendezvous(loop, frozenset(["here"])), Limits(**limits))


def running(steps: StepTable, step: int) -> JointStep:
    joint = steps.get(step)
    assert joint is not None
    return joint


def received(steps: StepTable, step: int, edge: str = "edge") -> Any:
    rendezvous = steps.begin(step, Step(id=step), {}).rendezvous
    assert rendezvous is not None
    return rendezvous.receive(edge, "", lambda value: None)


async def test_early_values_of_a_connection_are_bounded() -> None:
    steps = table(early_bytes=4 * MB)
    for step in range(100):
        steps.deliver(step, "edge", "", np.zeros(MB, np.uint8), HOSTILE)
        assert steps.early_bytes <= 4 * MB
    assert received(steps, 99).nbytes == MB, "the latest are kept"
    with pytest.raises(ResourceExhaustedError, match="one connection"):
        steps.begin(0, Step(id=0), {})
    for edge in range(100):  # all for one step
        steps.deliver(1000, f"edge_{edge}", "", np.zeros(MB, np.uint8), HOSTILE)
        assert steps.early_bytes <= 4 * MB
    with pytest.raises(ResourceExhaustedError):
        steps.begin(1000, Step(id=1000), {})


@pytest.mark.parametrize("value", [np.array([b"x" * MB], object), np.uint8(1)], ids=["strings", "scalars"])
async def test_accounting_covers_more_than_the_elements(value: Any) -> None:
    steps = table(early_bytes=MB + 10_000)
    for step in range(3000):
        steps.deliver(step, "e" * 1000, "", value, HOSTILE)
    assert len(steps._early) <= (1 if value.dtype == object else MB // 2000 + 10)


async def test_connection_over_the_limit_loses_only_its_own_values() -> None:
    steps = table(early_bytes=8 * MB, all_early_bytes=10 * MB)
    steps.deliver(1, "edge", "", np.float32(7.0), HONEST)
    for step in range(100, 5000):
        steps.deliver(step, "edge", "", np.zeros(MB // 2, np.uint8), f"hostile {step % 5}")
        assert steps.early_bytes <= 10 * MB
    assert received(steps, 1) == 7.0


async def test_many_small_values_displace_only_those_of_their_connection() -> None:
    steps = table()
    steps.deliver(1, "edge", "", np.float32(7.0), HONEST)
    for step in range(100, 5000):
        steps.deliver(step, "edge", "", np.float32(0.0), HOSTILE)
    assert len(steps._early) <= 1024
    assert received(steps, 1) == 7.0


async def test_memory_is_freed_at_the_end_of_a_connection() -> None:
    steps = table()
    freed: list[int] = []
    for step in range(3):
        value = np.zeros(MB, np.uint8)
        weakref.finalize(value, freed.append, step)
        steps.deliver(step, "edge", "", value, HOSTILE)
        del value
    steps.deliver(3, "edge", "", np.float32(7.0), HONEST)
    steps.lose(HOSTILE)
    assert sorted(freed) == [0, 1, 2], "at once, and without the collector of cycles"
    assert steps.early_bytes < 2048
    with pytest.raises(AbortedError, match="has gone"):
        steps.begin(0, Step(id=0), {})
    assert received(steps, 3) == 7.0
    steps.end(running(steps, 3))
    assert steps.early_bytes == 0


@virtually
async def test_byte_count_is_right_after_each_outcome_of_a_step() -> None:
    steps = table()
    for step in range(4):
        steps.deliver(step, "edge", "", np.zeros(MB, np.uint8), HOSTILE)
        steps.deliver(step, "other", "", np.zeros(MB, np.uint8), HONEST)
    assert steps.early_bytes > 8 * MB
    steps.end(steps.begin(0, Step(id=0), {}))
    steps.abort(1, CancelledError("enough"))
    assert 4 * MB < steps.early_bytes < 5 * MB
    await asyncio.sleep(61)
    assert steps.early_bytes == 0
    assert not steps._early
    steps.deliver(9, "edge", "", np.zeros(MB, np.uint8), HOSTILE)
    steps.close()
    assert steps.early_bytes == 0


async def test_running_step_that_never_receives_is_aborted() -> None:
    steps = table(early_bytes=4 * MB)
    steps.deliver(1, "early", "", np.zeros(MB, np.uint8), HOSTILE)
    step, honest = Step(id=1), Step(id=2)
    steps.begin(1, step, {})
    steps.begin(2, honest, {})
    freed: list[int] = []
    for edge in range(100):
        value = np.zeros(MB, np.uint8)
        weakref.finalize(value, freed.append, edge)
        steps.deliver(1, f"edge_{edge}", "", value, HOSTILE)
        del value
        steps.deliver(2, f"edge_{edge}", "", np.float32(1.0), HOSTILE)
        assert edge - len(freed) < 5
        assert steps.early_bytes <= 4 * MB
    assert isinstance(step.error, ResourceExhaustedError)
    assert not honest.requested
    steps.end(running(steps, 1))
    steps.end(running(steps, 2))
    assert steps.early_bytes == 0


async def test_values_received_soon_do_not_accumulate() -> None:
    """Receive each value a moment after its arrival, for as long as the step may run."""
    steps = table(early_bytes=4 * MB)
    step = Step(id=1)
    rendezvous = steps.begin(1, step, {}).rendezvous
    assert rendezvous is not None
    for edge in range(100):
        steps.deliver(1, f"edge_{edge}", "", np.zeros(MB, np.uint8), HONEST)
        received: Any = rendezvous.receive(f"edge_{edge}", "", lambda value: None)
        assert received.nbytes == MB
        assert steps.early_bytes <= 4 * MB
    assert not step.requested


async def test_errors_of_unstarted_steps_are_kept_truncated() -> None:
    """Bound each error, since a hundred thousand of them are kept."""
    steps = table()
    long = CancelledError("m" * 60_000, node="n" * 60_000, expected="e" * 60_000, actual="a" * 60_000)
    long.add_note("t" * 60_000)
    steps.abort(1, long)
    with pytest.raises(CancelledError, match="mmm") as raised:
        steps.begin(1, Step(id=1), {})
    assert len(str(raised.value)) < 3000
    assert not getattr(raised.value, "__notes__", [])


# ── over a connection ────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def hostile_client(**limits: int) -> AsyncIterator[tuple[StepTable, Channel]]:
    options = CommOptions(limits=Limits(**limits), heartbeat=5.0)
    async with Server({"ps": inproc(1)}, "ps", 0, options=options) as server, asyncio.timeout(60):
        comm = await connect(server.target.removeprefix("aioflow://"), 5.0, CommOptions(heartbeat=5.0))
        assert server._serving is not None
        async with Channel(comm) as channel:
            yield server._serving.tasks.steps, channel
        while server._serving.tasks.steps.early_bytes:  # noqa: ASYNC110  # until the server has noticed the end, too
            await asyncio.sleep(0)


HEADER = {"edge": "edge", "tag": "", "dead": False}


async def test_values_for_unknown_steps_are_bounded_over_a_connection() -> None:
    async with hostile_client(early_bytes=4 * MB) as (steps, channel):
        value = np.zeros(MB, np.uint8)
        for step in range(20):
            await channel.push_packed(packed(DELIVER, HEADER), [value], step)
        await channel.call(STATE, timeout=60)
        assert MB < steps.early_bytes <= 4 * MB
    assert steps.early_bytes == 0, "the connection has gone"


@pytest.mark.parametrize(
    ("changes", "tensors"), [({}, 0), ({}, 2), ({"dead": True}, 1), ({"edge": 1}, 1), ({"step": 1}, 1)]
)
async def test_malformed_value_ends_the_connection(changes: dict[str, Any], tensors: int) -> None:
    async with hostile_client() as (steps, channel):
        await channel.push(DELIVER, {**HEADER, **changes}, [np.float32(1.0)] * tensors)
        assert isinstance(await channel.wait_ended(), UnavailableError)
        assert not steps._early


async def test_errors_of_many_aborts_are_kept_truncated() -> None:
    async with hostile_client() as (steps, channel):
        document = encode_error(UnavailableError("m" * 30_000), 40_000)
        for step in range(50):
            await channel.call(ABORT, {"step": step, "error": document}, timeout=60)
        kept = [str(end.error) for step in range(50) for end in steps._ended._ends[step]]
        assert len(kept) == 50
        assert max(map(len, kept)) < 3000

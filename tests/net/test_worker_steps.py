"""Steps shared by several workers and the values sent between them: order, ends, bounds and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import AbortedError, CancelledError, OpError, UnavailableError, UnimplementedError
from aioflow.net.channel import Channel, ServiceRequest
from aioflow.net.comm import Comm
from aioflow.net.messages import (
    DELIVER,
    Run,
    config_document,
    config_of,
    pack_stats,
    parse,
    settings_document,
    settings_of,
    unpack_stats,
)
from aioflow.net.outbox import Outbox, ValueMessage
from aioflow.net.step_table import StepTable
from aioflow.net.transports import connect, listen
from aioflow.runtime.frames import DEAD
from aioflow.runtime.rendezvous import PENDING, Rendezvous
from aioflow.runtime.stats import NodeStats, StepStats
from aioflow.runtime.step import Step
from tests.net.clusters import inproc
from tests.support.loops import virtually

RUN = {"handle": 1, "trace": True, "beat": 3, "patience": 0.9, "seconds": None, "answered": True}


def table() -> StepTable:
    loop = asyncio.get_running_loop()
    return StepTable(lambda _: Rendezvous(loop, frozenset(["here"])))


def received(joint: Any, edge: str) -> Any:
    return joint.rendezvous.receive(edge, "", lambda value: None)


async def test_values_may_arrive_before_their_step() -> None:
    steps = table()
    steps.deliver(7, "edge", "", 1.0)
    steps.deliver(8, "edge", "", 2.0)
    joint = steps.begin(7, Step(id=7), {})
    assert received(joint, "edge") == 1.0
    assert received(joint, "other") is PENDING
    steps.end(joint)
    assert received(steps.begin(8, Step(id=8), {}), "edge") == 2.0


async def test_values_after_the_end_of_their_step_are_dropped() -> None:
    steps = table()
    steps.end(steps.begin(7, Step(id=7), {}))
    for number in range(3000):
        steps.deliver(7, f"edge_{number}", "", np.zeros(10))
    assert not steps._early
    with pytest.raises(AbortedError):
        steps.begin(7, Step(id=7), {})


async def test_aborted_step_does_not_begin() -> None:
    # The message that aborts a step may overtake the one that begins it.
    steps = table()
    steps.deliver(7, "edge", "", 1.0)
    assert steps.abort(7, CancelledError("the reason")) is None
    with pytest.raises(CancelledError, match="the reason"):
        steps.begin(7, Step(id=7), {})
    running = Step(id=8)
    joint = steps.begin(8, running, {})
    assert steps.abort(8, CancelledError("another")) is joint
    assert running.requested
    async with asyncio.TaskGroup() as tg:
        waiter = tg.create_task(joint.ended())
        await asyncio.sleep(0)
        assert not waiter.done()
        steps.end(joint)
    await joint.ended()


@virtually
async def test_values_of_a_step_that_never_begins_are_dropped_after_a_minute() -> None:
    steps = table()
    steps.deliver(7, "edge", "", 1.0)
    await asyncio.sleep(30)
    steps.deliver(8, "edge", "", 1.0)
    await asyncio.sleep(31)
    assert list(steps._early) == [8]
    with pytest.raises(AbortedError):
        steps.begin(7, Step(id=7), {})


async def test_number_of_steps_with_early_values_is_bounded() -> None:
    steps = table()
    for number in range(2000):
        steps.deliver(number, "edge", "", 1.0)
    assert len(steps._early) <= 1024
    assert received(steps.begin(1999, Step(id=1999), {}), "edge") == 1.0


# ── the outbox ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Peer:
    """A peer task that records the values pushed to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.came: asyncio.Queue[ServiceRequest] = asyncio.Queue()
        self.connections = 0

    async def serve(self, comm: Comm) -> None:
        self.connections += 1

        async def take(request: ServiceRequest) -> None:
            self.came.put_nowait(request)

        async with Channel(comm, {DELIVER: take}) as channel:
            await channel.wait_ended()


@asynccontextmanager
async def reach(address: str, task: str) -> AsyncIterator[Channel]:
    async with Channel(await connect(address, peer=task)) as channel:
        yield channel


@asynccontextmanager
async def peer_and_outbox() -> AsyncIterator[tuple[Peer, Outbox]]:
    peer = Peer(inproc(1)[0])
    async with Outbox(partial(reach, peer.address)) as outbox, listen(peer.address, peer.serve):
        yield peer, outbox


def unexpected(error: OpError) -> None:
    raise error


def message(value: Any, incarnation: int = 0, fail: Callable[[OpError], None] = unexpected) -> ValueMessage:
    return ValueMessage("/job:ps/task:0", incarnation, 7, "edge", "tag", value, fail)


async def test_outbox_sends_from_any_thread_over_one_connection() -> None:
    async with asyncio.timeout(120), peer_and_outbox() as (peer, outbox):
        outbox.push(message(np.float32(1.0)))
        await asyncio.to_thread(outbox.push, message(DEAD))
        first, second = await peer.came.get(), await peer.came.get()
        assert (first.header, first.tensors[0]) == ({"edge": "edge", "tag": "tag", "dead": False}, 1.0)
        assert (first.number, second.number) == (7, 7)
        assert (second.header["dead"], len(second.tensors)) == (True, 0)
        assert peer.connections == 1


async def test_outbox_delivers_small_values_between_large_ones() -> None:
    large = await asyncio.to_thread(lambda: [np.full(4 << 20, number, np.float64) for number in range(6)])
    async with asyncio.timeout(120), peer_and_outbox() as (peer, outbox):
        for value in large:
            outbox.push(message(value))  # 32 MB each: together above the limit in flight
        outbox.push(message(np.float32(-1.0)))
        values = [float((await peer.came.get()).tensors[0].reshape(-1)[-1]) for _ in range(7)]
        assert sorted(values) == [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert values.index(-1.0) < 6


async def test_undeliverable_value_fails_its_step() -> None:
    failed: asyncio.Queue[OpError] = asyncio.Queue()
    fail = failed.put_nowait
    async with asyncio.timeout(120), peer_and_outbox() as (peer, outbox):
        outbox.push(message(object(), fail=fail))
        error = await failed.get()
        assert isinstance(error, af.errors.DTypeError)
        assert "/job:ps/task:0" in error.message
        outbox.push(message(np.float32(1.0), fail=fail, incarnation=12345))
        assert isinstance(await failed.get(), AbortedError)
        outbox.push(message(np.float32(2.0), fail=fail))
        assert (await peer.came.get()).tensors[0] == 2.0  # neither of the failed values was sent
        assert failed.empty()
    async with asyncio.timeout(120), Outbox(partial(reach, inproc(1)[0])) as nowhere:
        for value in (np.float32(1.0), np.zeros(1 << 20)):
            nowhere.push(message(value, fail=fail))
            error = await failed.get()
            assert isinstance(error, UnavailableError)
            assert "/job:ps/task:0" in str(error)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"handle": 1},
        {**RUN, "step": 2},
        {**RUN, "handle": True},
        {**RUN, "trace": 0},
        {**RUN, "beat": -1},
        {**RUN, "patience": "long"},
        {**RUN, "seconds": -1.0},
        {**RUN, "seconds": float("nan")},
        {**RUN, "more": 1},
    ],
)
def test_a_malformed_message_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(af.errors.DataLossError):
        parse(Run, header)
    assert parse(Run, RUN) == Run(1, True, 3, 0.9, None, True)
    assert parse(Run, {**RUN, "seconds": 2}).seconds == 2


def test_worker_config_survives_encoding() -> None:
    config = af.SessionConfig(inline_budget=0.5, executor="reference", check_finite=True)
    assert config_of(config_document(config)) == config
    for wrong in ({}, {**config_document(config), "executor": 1}, {**config_document(config), "threads": 1}):
        with pytest.raises(af.errors.DataLossError):
            config_of(wrong)


@pytest.mark.parametrize(
    "config",
    [
        af.SessionConfig(),
        af.SessionConfig(operation_timeout=1, switch_interval=None, device_count={"CPU": 3}, compression="truncate"),
        af.SessionConfig(optimizations={"arithmetic": False}, replace_after=5, fetch_to_host=False),
    ],
)
def test_all_settings_survive_encoding(config: af.SessionConfig) -> None:
    document = settings_document(config)
    assert settings_of(document) == config
    missing = {name: value for name, value in document.items() if name != "executor"}
    wrong = {
        "executor": 1,
        "operation_timeout": "1",
        "device_count": {"CPU": "2"},
        "optimizations": [],
        "threads": True,
    }
    for malformed in ({}, missing, {**document, "more": 1}, *({**document, name: w} for name, w in wrong.items())):
        with pytest.raises(af.errors.DataLossError):
            settings_of(malformed)


def test_step_stats_survive_encoding() -> None:
    nodes = (NodeStats("a", "Add", "t", 0.5, 0.25, 8), NodeStats("ä", "Mul", "u", 1.0, 2.0, 0))
    stats = [StepStats("d0", nodes), StepStats("d1", nodes[:1]), StepStats("d2", ())]
    devices, tensors = pack_stats(stats)
    assert unpack_stats(devices, tensors) == stats
    assert unpack_stats(*pack_stats([])) == []
    for wrong in ([*tensors[:3], tensors[3][:1]], [tensors[0] + 5, *tensors[1:]], [tensors[0] * 1.0, *tensors[1:]]):
        with pytest.raises(af.errors.DataLossError):
            unpack_stats(devices, wrong)


def test_server_rejects_unknown_protocol_and_task() -> None:
    with pytest.raises(UnimplementedError):
        af.train.Server({"a": inproc(1)}, protocol="grpc")
    for job, index in ((None, None), ("a", 2), ("b", 0)):
        with pytest.raises(af.errors.InvalidArgumentError, match="do not identify one task"):
            af.train.Server({"a": inproc(2)}, job, index)

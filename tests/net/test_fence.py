"""The fence for late steps: a late step begins only if its client confirms in time that it still waits."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import AbortedError, NotFoundError, OpError
from aioflow.net.channel import Channel, Reply, ServiceRequest
from aioflow.net.comm import CommOptions
from aioflow.net.messages import RUN, WANTED, Run
from aioflow.net.transports import connect
from aioflow.runtime.step import Step
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate

_PATIENCE = 0.9  # seconds
_NO_BEAT = 1_000_000  # number of a heartbeat that was never sent, hence the oldest possible
_NO_PART = 77


async def half_open(net: SimNet) -> tuple[list[float], bool]:
    """Run a step that waits for a queue when its connection is cut off silently.

    Returns:
        The variable's values as another client reads them, at once and later, and whether the error says that the step
        may have been applied.
    """
    cluster = SimCluster(net, {"ps": 1})
    await cluster.start()
    graph = af.Graph()
    with graph.as_default(), af.device("/job:ps"):
        v = af.Variable(0.0, name="v")
        queue = af.FIFOQueue(3, [af.float32], shapes=[()], shared_name="queue")
        add, put = af.assign_add(v, queue.dequeue()).op, queue.enqueue(1.0)

    async def client(given_up: asyncio.Event) -> bool:
        session = af.Session(cluster.target("ps0"), graph=graph, config=SIMULATED)
        try:
            await session.run(v.initializer)
            await session.run(add)
        except af.errors.UnavailableError as error:
            given_up.set()
            return error.may_have_been_applied
        finally:
            await session.close()
        return False

    async def friend() -> list[float]:
        async with af.Session(cluster.target("ps0"), graph=graph, config=SIMULATED) as session:
            values = [float(await session.run(v))]
            await session.run(put)
            for seconds in (1.0, 5.0, 70.0):
                await asyncio.sleep(seconds)
                values.append(float(await session.run(v)))
            return values

    given_up = asyncio.Event()
    async with asyncio.TaskGroup() as tg:
        run = tg.create_task(net.host("client").call(lambda: client(given_up)))
        await asyncio.sleep(2.0)
        net.partition("client", "ps0")
        await given_up.wait()
        values: list[float] = await net.host("friend").call(friend)
        net.heal()
    await cluster.stop()
    return values, run.result()


def test_waiting_step_of_an_unreachable_client_does_not_go_on() -> None:
    values, may_have_been_applied = simulate(half_open)
    assert values == [0.0] * 4
    assert may_have_been_applied


async def half_open_receiver(net: SimNet, seconds: float, cut: bool) -> tuple[list[float], OpError | None]:
    """Run a part that waits `seconds` for a value of another worker.

    Args:
        net: Simulated network.
        seconds: Latency between the two workers.
        cut: Whether to cut the client off from the waiting worker.

    Returns:
        The variable's values as another client reads them, at the end of the step and later; and the step's error.
    """
    cluster = SimCluster(net, {"ps": 2})
    await cluster.start()
    graph = af.Graph()
    with graph.as_default():
        with af.device("/job:ps/task:0"):
            fed = af.placeholder(af.float32, [])
            made = fed + 1.0
        with af.device("/job:ps/task:1"):
            v = af.Variable(0.0, name="v")
            add = af.assign_add(v, made).op
            queue = af.FIFOQueue(3, [af.float32], shapes=[()], shared_name="queue")

    async def client(ended: asyncio.Event) -> OpError | None:
        session = af.Session(cluster.target("ps0"), graph=graph, config=SIMULATED)
        try:
            await session.run([v.initializer, queue.size()])
            await session.run(add, {fed: -1.0})  # connects the workers
            net.slow("ps0", "ps1", seconds / net.link("ps0", "ps1").latency)
            await session.run(add, {fed: 1.0})
        except OpError as error:
            return error
        finally:
            ended.set()
            await session.close()
        return None

    async def friend() -> list[float]:
        async with af.Session(cluster.target("ps1"), graph=graph, config=SIMULATED) as session:
            values = []
            for pause in (0.0, 10.0, 100.0):
                await asyncio.sleep(pause)
                values.append(float(await session.run(v)))
            return values

    ended = asyncio.Event()
    async with asyncio.TaskGroup() as tg:
        run = tg.create_task(net.host("client").call(lambda: client(ended)))
        await asyncio.sleep(1.0)
        if cut:
            net.partition("client", "ps1")
        await ended.wait()
        values: list[float] = await net.host("friend").call(friend)
        net.heal()
    await cluster.stop()
    return values, run.result()


@pytest.mark.parametrize("seed", range(3))
def test_step_with_late_value_stops_if_its_client_is_unreachable(seed: int) -> None:
    values, error = simulate(lambda net: half_open_receiver(net, 5.0, cut=True), seed)
    assert isinstance(error, af.errors.UnavailableError)
    assert error.may_have_been_applied
    assert values == [0.0] * 3


@pytest.mark.parametrize("seed", range(3))
def test_step_with_late_value_goes_on_for_a_waiting_client(seed: int) -> None:
    values, error = simulate(lambda net: half_open_receiver(net, 5.0, cut=False), seed)
    assert error is None
    assert values == [2.0] * 3


async def late_step(net: SimNet, wanted: bool, seconds: float) -> OpError:
    """Return the error of a late step of an unknown part, whose client answers after `seconds`."""
    cluster = SimCluster(net, {"ps": 1})
    await cluster.start()

    async def answer(request: ServiceRequest) -> Reply:
        await asyncio.sleep(seconds)
        return Reply({"wanted": wanted})

    async def ask() -> OpError:
        comm = await connect(cluster.target("ps0").replace("aioflow", "tcp"), 5.0, CommOptions(), peer="ps")
        run = Run(_NO_PART, trace=False, beat=_NO_BEAT, patience=_PATIENCE, seconds=None, answered=True)
        async with Channel(comm, {WANTED: answer}, {}) as channel:
            with pytest.raises(OpError) as raised:
                await channel.call(RUN, run.document(), timeout=20.0)
        return raised.value

    error: OpError = await net.host("client").call(ask)
    await cluster.stop()
    return error


@pytest.mark.parametrize(("wanted", "seconds", "begun"), [(True, 0.5, True), (False, 0.5, False), (True, 1.2, False)])
def test_late_step_begins_if_its_client_confirms_in_time(wanted: bool, seconds: float, begun: bool) -> None:
    error = simulate(lambda net: late_step(net, wanted, seconds))
    if begun:  # the fence lets the step through, which then fails as the part is unknown
        assert isinstance(error, NotFoundError)
    else:
        assert isinstance(error, AbortedError)
        assert not error.may_have_been_applied


class SlowThreads:
    """An executor whose calls take `seconds` each, before they have effects."""

    seconds = 0.0

    async def run(self, step: Step, function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(self.seconds)
        if step.requested:
            step.halt()
        return function(*args)


class Stubborn(SlowThreads):
    """An executor whose calls take effect even if their step was stopped: a thread cannot be interrupted."""

    async def run(self, step: Step, function: Callable[..., Any], *args: Any) -> Any:
        clock = asyncio.get_running_loop().time
        until = clock() + self.seconds
        while clock() < until:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(until - clock())
        return function(*args)


async def next_life(net: SimNet, seconds: float, executor: type[SlowThreads] = SlowThreads) -> float:
    """End a session during a step that computes for `seconds`, cut off from its client; then start the next session.

    Returns:
        The variable's last value; the next session starts from zero.
    """
    cluster = SimCluster(net, {"ps": 1})
    await cluster.start()
    threads = executor()
    for device in cluster.servers["ps0"].worker.devices.values():
        device.backend = copy.copy(device.backend)
        device.backend.executor = threads  # type: ignore[misc]  # read-only in the protocol
    graph = af.Graph()
    with graph.as_default(), af.device("/job:ps"):
        v = af.Variable(0.0, name="v")
        add = af.assign_add(v, 1.0).op

    def session() -> af.Session:
        return af.Session(cluster.target("ps0"), graph=graph, config=replace(SIMULATED, inline_budget=0.0))

    async def client() -> float:
        async with session() as first:
            await first.run(v.initializer)
            threads.seconds = seconds
            process = net.host("client").process
            ends = [] if process is None else list(process.ends)
            asyncio.get_running_loop().call_later(0.01, net.partition, "client", "ps0")
            with pytest.raises(af.errors.UnavailableError):
                await first.run(add)
        # Lose what is in transit: TCP would send it again, but may take longer for it than for a new connection.
        for end in ends:
            end.silent = True
            end.out.drop()
        threads.seconds = 0.0
        asyncio.get_running_loop().call_later(0.1, net.heal)
        while True:
            try:
                async with session() as second:
                    await second.run(v.initializer)
                    await asyncio.sleep(10.0)
                    return float(await second.run(v))
            except af.errors.UnavailableError:
                pass  # not reachable yet

    last: float = await net.host("client").call(client)
    await cluster.stop()
    return last


@pytest.mark.parametrize("seed", range(4))
def test_step_is_never_applied_after_the_clients_next_session_began(seed: int) -> None:
    ends = [simulate(partial(next_life, seconds=tenths / 10), seed) for tenths in range(10, 60)]
    assert ends == [0.0] * len(ends)


@pytest.mark.parametrize("seconds", [9.0, 30.0, 60.0])
def test_long_step_delays_the_next_session_only_until_it_ends(seconds: float) -> None:
    assert simulate(partial(next_life, seconds=seconds, executor=Stubborn)) == 0.0


async def long_step(net: SimNet, seconds: float) -> tuple[list[str], list[float]]:
    """Lose the connection during a step that computes for `seconds`; the session goes on at once.

    Returns:
        The errors until the session may go on, and the variable's value then and in the end.
    """
    cluster = SimCluster(net, {"ps": 1})
    await cluster.start()
    threads = Stubborn()
    for device in cluster.servers["ps0"].worker.devices.values():
        device.backend = copy.copy(device.backend)
        device.backend.executor = threads  # type: ignore[misc]  # read-only in the protocol
    graph = af.Graph()
    with graph.as_default(), af.device("/job:ps"):
        v = af.Variable(0.0, name="v")
        add = af.assign_add(v, 1.0).op
        other = af.Variable(5.0, name="other")

    async def client() -> tuple[list[str], list[float]]:
        config = replace(SIMULATED, inline_budget=0.0)
        told: list[str] = []
        async with af.Session(cluster.target("ps0"), graph=graph, config=config) as session:
            await session.run([v.initializer, other.initializer])
            threads.seconds = seconds
            asyncio.get_running_loop().call_later(0.5, net.partition, "client", "ps0")
            asyncio.get_running_loop().call_later(5.0, net.heal)
            with pytest.raises(af.errors.UnavailableError):
                await session.run(add)
            threads.seconds = 0.0
            await asyncio.sleep(6.0)
            while True:
                try:
                    value = float(await session.run(v))
                    break
                except af.errors.UnavailableError as error:
                    told.append(error.message)
            await asyncio.sleep(2 * seconds)
            return told, [value, float(await session.run(v))]

    found: tuple[list[str], list[float]] = await net.host("client").call(client)
    await cluster.stop()
    return found


@pytest.mark.parametrize("seconds", [12.0, 60.0])
def test_reconnected_session_waits_for_its_own_step(seconds: float) -> None:
    """Retry until the step has ended: the session never runs beside a step that may still be applied."""
    told, (first, last) = simulate(partial(long_step, seconds=seconds))
    assert first == last
    assert all("still running here" in message for message in told)
    assert bool(told) == (seconds > 20)

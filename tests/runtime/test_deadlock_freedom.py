"""Steps over random partitions, on a virtual clock.

A seed chooses the duration of every call in a thread and of every transfer between devices.
A step must return the same bits as on one device and must never deadlock. A failed or cancelled step must leave nothing
behind.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler import schedule
from aioflow.compiler.ir import Node, OutputSpec, Plan
from aioflow.compiler.optimize.order_memory import order_memory
from aioflow.compiler.schedule import ScheduleOptions, schedule_receives
from aioflow.compiler.verify import verify
from aioflow.config import SessionConfig
from aioflow.errors import AbortedError, InternalError, InvalidArgumentError
from aioflow.graph.arrays import to_array
from aioflow.graph.boundary import RECV
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker
from aioflow.testing.evaluate import evaluate
from aioflow.testing.virtual_clock import VirtualClockLoop, run_virtual
from aioflow_numpy.backend import NumpyDevice
from tests.runtime.flow_programs import FlowProgram, random_flow_program
from tests.runtime.programs import Program, random_program
from tests.runtime.split import split_plan
from tests.support.outcomes import bits
from tests.support.random_examples import seeds

T = TypeVar("T")

EXECUTORS: Final = ("strands", "reference")
EVERYTHING: Final = ScheduleOptions(minimum_bytes=1, minimum_seconds=0.0, minimum_gain=-(1 << 40), prefetch=0.0)


def chance() -> random.Random:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    return loop.random


async def some_time() -> None:
    """Sleep for a random time: zero in 30 % of the calls, otherwise 1 ms on average."""
    source = chance()
    await asyncio.sleep(0 if source.random() < 0.3 else source.expovariate(1000.0))


class VirtualThreads:
    """A replacement of `DeviceThreads` on the virtual clock.

    A call waits for a free thread and then some time, takes effect at once, and returns after some more time.

    Attributes:
        calls: Number of calls that took effect.
        inside: Number of calls in progress.
    """

    def __init__(self, number: int) -> None:
        self._free = asyncio.Semaphore(number)
        self.calls = 0
        self.inside = 0

    async def run(self, step: Step, function: Callable[..., T], *args: Any) -> T:
        self.inside += 1
        try:
            async with self._free:
                await some_time()
                self.calls += 1
                try:
                    return function(*args)
                finally:
                    await some_time()
        except asyncio.CancelledError:
            step.stop()
            raise
        finally:
            self.inside -= 1


class SlowRendezvous(Rendezvous):
    """A rendezvous that delays values at random, so that they arrive in any order."""

    def __init__(self, devices: frozenset[str]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop, devices)
        if chance().random() < 0.5:
            self._home = (
                -1
            )  # treat every value as sent by another thread: its receiver is called in a later turn of the loop

    def deliver(self, name: str, tag: str, value: Any) -> bool:
        source = chance()
        if source.random() < 0.4:
            return super().deliver(name, tag, value)
        self._loop.call_later(source.expovariate(500.0), super().deliver, name, tag, value)
        return False

    @property
    def left(self) -> int:
        """Number of undelivered values and waiting receivers."""
        return len(self._values) + len(self._waiting)


@dataclass
class Case:
    """One program and the expected value of every fetch, computed on one device, one node at a time."""

    seed: int
    fetches: list[af.Tensor]
    feeds: dict[af.Tensor, Any]
    expected: list[tuple[object, ...]]

    @classmethod
    def of(cls, seed: int) -> Case:
        program: Program | FlowProgram
        program = random_program(seed, rows=1) if seed % 4 == 0 else random_flow_program(seed, loops=seed % 4 != 1)
        fetches = list(program.fetches)
        return cls(seed, fetches, dict(program.feeds), bits(evaluate(fetches, program.feeds)))

    def plan(self, cut: int, scheduled: bool) -> Plan:
        """Partition the program over two to four devices.

        Args:
            cut: Seed of the partition; every fourth plan is also reordered.
            scheduled: Whether to add requests to the plan.
        """
        plan = split_plan(self.fetches, list(self.feeds), self.seed * 1000 + cut, 2 + cut % 3)
        plan = scheduled_at_random(plan, self.seed + cut) if scheduled else plan
        return reordered(plan) if cut % 4 == 1 else plan

    def values(self) -> list[Any]:
        return [to_array(value, tensor.dtype) for tensor, value in self.feeds.items()]


def scheduled_at_random(plan: Plan, seed: int) -> Plan:
    """Return the plan with requests, by random costs that are unrelated to the real ones."""

    def seconds(node: Node) -> float:
        return random.Random(f"{seed} {node.name}").random()

    def transfer_seconds(spec: OutputSpec, source: str, destination: str) -> float:
        return 0.01

    changed = schedule_receives(plan, seconds, transfer_seconds, EVERYTHING)
    for _, graph in changed.by_device():
        verify(graph, whole=False)
    return changed


def reordered(plan: Plan) -> Plan:
    """Return the plan in the order that the last stage of the compiler pipeline would choose."""
    return plan.changed(lambda _, graph: order_memory(graph, lambda *_: None))


def requests_in(plan: Plan) -> int:
    return sum(n.op == RECV and n.name.startswith("request") for n in plan.nodes())


class OnThreads(NumpyDevice):
    """The host's device, with its calls on the virtual threads."""

    def __init__(self, threads: VirtualThreads) -> None:
        self.executor = threads


@dataclass
class Setup:
    """A worker with a registered plan, on the running loop."""

    plan: Plan
    executor: str = "strands"
    threads: list[VirtualThreads] = field(init=False)

    def __post_init__(self) -> None:
        devices = max(int(device.rpartition(":")[2]) for device, _ in self.plan.by_device()) + 1
        config = SessionConfig(device_count={"CPU": devices}, executor=self.executor, inline_budget=0.0)
        self.worker = Worker(config)
        self.threads = []
        for device in self.worker.devices.values():
            self.threads.append(VirtualThreads(chance().randint(1, 3)))
            device.backend = OnThreads(self.threads[-1])
        (part,) = self.plan.parts.values()
        self.handle = self.worker.register_now(part, 1, config)
        self.meetings: list[SlowRendezvous] = []

    async def run(self, values: list[Any], step: Step) -> list[Any]:
        step.rendezvous = meeting = SlowRendezvous(frozenset(device for device, _ in self.plan.by_device()))
        self.meetings.append(meeting)
        try:
            return await self.worker.run(self.handle, values, step)
        finally:
            step.finish()

    async def is_quiet(self) -> None:
        """Assert that the steps left no task, no call in a thread and no value, and that no call starts later."""
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [t.inside for t in self.threads] == [0] * len(self.threads)
        assert [m.left for m in self.meetings] == [0] * len(self.meetings)
        before = [t.calls for t in self.threads]
        await asyncio.sleep(1e3)
        assert [t.calls for t in self.threads] == before


async def steps_at_once(plan: Plan, case: Case, number: int, executor: str = "strands") -> None:
    """Run a plan `number` times concurrently and compare the fetches with the expected bits."""
    setup = Setup(plan, executor)
    async with asyncio.TaskGroup() as tg:
        running = [tg.create_task(setup.run(case.values(), Step())) for _ in range(number)]
    for task in running:
        assert bits(task.result()) == case.expected
    await setup.is_quiet()


def hold(case: Case, cuts: range) -> int:
    """Run a program over several partitions and return the number of requests in their plans."""
    requests = 0
    for cut in cuts:
        plan = case.plan(cut, scheduled=(case.seed + cut) % 2 == 0)
        requests += requests_in(plan)
        executor = "reference" if cut % 5 == 4 else "strands"
        run_virtual(steps_at_once(plan, case, 1 + (cut % 3 == 0), executor), case.seed * 1000 + cut)
    return requests


@pytest.fixture
def copied_between_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule requests as if each device were a machine of its own.

    Within one process values are shared without a copy, so that most requests would gain nothing.
    """
    monkeypatch.setattr(schedule, "share_memory", lambda one, other: False)


@pytest.mark.usefixtures("copied_between_devices")
@pytest.mark.parametrize("block", range(10))
def test_partitioned_steps_do_not_deadlock(block: int) -> None:
    requests = 0
    for seed in range(block * 3, (block + 1) * 3):
        with af.Graph().as_default():
            requests += hold(Case.of(seed), range(5))
    assert requests > 0


@pytest.mark.sim
@pytest.mark.usefixtures("copied_between_devices")
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_partitioned_steps_do_not_deadlock(block: int) -> None:
    requests = 0
    for seed in range(1000 + block * 14, 1000 + (block + 1) * 14):
        with af.Graph().as_default():
            requests += hold(Case.of(seed), range(8))
    assert requests > 10


# -- steps that end early ----------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if asyncio logs an error that was never retrieved."""
    yield
    # asyncio logs an unretrieved error when its future is collected.
    gc.collect()
    assert not caplog.records


def with_a_failure(case: Case, source: random.Random) -> tuple[list[af.Tensor], str]:
    """Return the fetches with a division by zero behind up to two of them, and the name of the failing node."""
    zero = af.placeholder("int32", [])
    case.feeds[zero] = np.int32(0)
    with af.control_dependencies(source.sample(case.fetches, min(2, len(case.fetches)))):
        quotient = af.floordiv(af.constant(1), zero)
    return [*case.fetches, quotient], quotient.op.name


@pytest.mark.usefixtures("nothing_logged")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("seed", seeds(8, 16))
def test_error_on_one_device_ends_the_step_on_all(seed: int, executor: str) -> None:
    case = Case.of(seed)
    case.fetches, node = with_a_failure(case, random.Random(seed))
    plan = case.plan(0, scheduled=seed % 2 == 0)

    async def main() -> None:
        setup = Setup(plan, executor)
        with pytest.raises(InvalidArgumentError) as caught:
            await setup.run(case.values(), Step())
        assert caught.value.node == node
        await setup.is_quiet()

    run_virtual(main(), seed)


def duration(plan: Plan, case: Case, seed: int, executor: str) -> float:
    """Return the virtual seconds of an undisturbed step."""

    async def main() -> float:
        await Setup(plan, executor).run(case.values(), Step())
        return asyncio.get_running_loop().time()

    return run_virtual(main(), seed)


@pytest.mark.usefixtures("nothing_logged")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("seed", seeds(8, 16))
def test_cancelled_step_leaves_nothing_running(seed: int, executor: str) -> None:
    case = Case.of(seed)
    plan = case.plan(0, scheduled=seed % 2 == 0)
    moment = random.Random(seed).random() * duration(plan, case, seed, executor)

    async def main() -> bool:
        setup = Setup(plan, executor)
        async with asyncio.TaskGroup() as tg:
            running = tg.create_task(setup.run(case.values(), Step()))
            tg.create_task(asyncio.sleep(moment)).add_done_callback(lambda _: running.cancel())
        await setup.is_quiet()
        return running.cancelled()

    assert run_virtual(main(), seed)


@pytest.mark.usefixtures("nothing_logged")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("seed", seeds(8, 16))
def test_stopped_step_raises_the_error_that_stopped_it(seed: int, executor: str) -> None:
    case = Case.of(seed)
    plan = case.plan(0, scheduled=seed % 2 == 0)
    moment = random.Random(seed).random() * duration(plan, case, seed, executor)
    reason = AbortedError("a worker is gone")

    async def main() -> None:
        setup, step = Setup(plan, executor), Step()
        asyncio.get_running_loop().call_later(moment, step.stop, reason)
        with pytest.raises(AbortedError) as caught:
            await setup.run(case.values(), step)
        assert caught.value is reason
        await setup.is_quiet()

    run_virtual(main(), seed)


def test_virtual_clock_detects_a_value_that_never_comes() -> None:
    """Without this, the clock could not tell a deadlocked step from a running one."""
    x = af.placeholder("float32", [3])
    y = af.exp(af.exp(af.exp(af.exp(x))))
    plan = next(p for p in (split_plan([y], [x], seed, 2) for seed in range(100)) if len(list(p.by_device())) == 2)

    async def main() -> None:
        setup, step = Setup(plan), Step()
        step.rendezvous = SlowRendezvous(frozenset())
        setattr(step.rendezvous, "deliver", lambda *_: None)  # noqa: B010
        await setup.worker.run(setup.handle, [np.zeros(3, np.float32)], step)

    with pytest.raises(InternalError, match="deadlock"):
        run_virtual(main())

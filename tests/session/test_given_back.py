"""Elements that an unfinished step has taken are returned to their source, so that none is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    UnimplementedError,
)
from aioflow.kernels.queues.queues import Queue
from aioflow.net import worker_service
from aioflow.net.pending_steps import PendingCall, PendingSteps
from aioflow.net.task_worker import WorkerSession
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker
from aioflow.sync.queue import Enqueue, FIFOStore
from aioflow.sync.waiting import tell, wake_all
from tests.net.clusters import cluster
from tests.support.loops import on_each_loop
from tests.support.waiting import eventually

COUNT = 12
SECONDS = 60.0


class Source:
    """A source of COUNT numbers: `fill` adds them, and `take` removes `each` of them per step."""

    def __init__(self, fill: Any, take: Any, each: int = 1) -> None:
        self.fill, self.take, self.each = fill, take, each


def queue(make: Callable[[], Any], each: int = 1) -> Source:
    made = make()
    return Source(made.enqueue_many([numbers()]), made.dequeue() if each == 1 else made.dequeue_many(each), each)


def numbers() -> Any:
    return af.constant(np.arange(COUNT, dtype=np.int64))


def by_priority() -> Source:
    made = af.PriorityQueue(COUNT, [af.int64], [()])
    _, value = made.dequeue()
    return Source(made.enqueue_many([numbers(), numbers()]), value)


def barrier() -> Source:
    made = af.Barrier([af.int64], shapes=[()])
    keys = af.as_string(numbers())
    _, _, [values] = made.take_many(3)
    return Source(made.insert_many(0, keys, numbers()), values, 3)


def staging() -> Source:
    area = af.StagingArea([af.int64], shapes=[()])
    return Source([area.put([af.constant(i, af.int64)]) for i in range(COUNT)], area.get())


def reader(up_to: int | None = None) -> Source:
    names = af.FIFOQueue(COUNT, [af.string], [()])
    made = af.IdentityReader()
    records = made.read(names).value if up_to is None else made.read_up_to(names, up_to).values
    fill = names.enqueue_many([af.as_string(numbers())])
    return Source(fill, af.strings.to_number(records, af.int64), up_to or 1)


def async_iterator() -> Source:
    async def count() -> AsyncIterator[Any]:
        for number in range(COUNT):
            yield np.int64(number)

    return Source(af.no_op(), af.from_async_iterator(count, af.int64, shapes=[]))


SOURCES: dict[str, Callable[[], Source]] = {
    "first in, first out": lambda: queue(lambda: af.FIFOQueue(COUNT, [af.int64], [()])),
    "many at once": lambda: queue(lambda: af.FIFOQueue(COUNT, [af.int64], [()]), 3),
    "padded": lambda: queue(lambda: af.PaddingFIFOQueue(COUNT, [af.int64], [()]), 2),
    "shuffled": lambda: queue(lambda: af.RandomShuffleQueue(COUNT, 0, [af.int64], [()])),
    "by priority": by_priority,
    "barrier": barrier,
    "staging area": staging,
    "reader": reader,
    "reader, many at once": lambda: reader(4),
    "async iterator": async_iterator,
}


async def given(session: af.Session, fetch: Any) -> list[int]:
    """Return the numbers of one step."""
    return np.reshape(await session.run(fetch, timeout=SECONDS), -1).tolist()


@pytest.mark.parametrize("how", ["as it is", "computed with"])
@on_each_loop
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_step_cancelled_in_any_turn_returns_its_elements(source: Callable[[], Source], how: str) -> None:
    made = source()
    fetch = made.take if how == "as it is" else af.square(af.matmul(row(made.take), row(made.take), True))
    found: list[int] = []
    async with af.Session() as session:
        await session.run(made.fill)
        for turns in range(COUNT // made.each * 2):
            if len(found) == COUNT:
                break
            task = asyncio.get_running_loop().create_task(session.run([made.take, fetch]))
            for _ in range(turns % 8):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                found += np.reshape(task.result()[0], -1).tolist()
        while len(found) < COUNT:
            found += await given(session, made.take)
    assert sorted(found) == list(range(COUNT))


def row(value: Any) -> Any:
    return af.reshape(value, [1, -1])


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def told(session: af.Session, fetch: Any, kind: type[OpError], **options: Any) -> bool:
    """Expect an error of a step, and return whether it reports that changes may have been applied."""
    with pytest.raises(kind) as raised:
        await session.run(fetch, **options)
    return raised.value.may_have_been_applied


async def equals(session: af.Session, fetch: Any, value: float) -> bool:
    return bool(await session.run(fetch) == value)


async def expired(session: af.Session, fetch: Any, begun: Callable[[], Awaitable[bool]]) -> bool:
    """Let the time limit of a step pass as soon as `begun`, and return whether its error reports possible changes."""
    loop, hour = asyncio.get_running_loop(), 3600.0
    run = loop.create_task(told(session, fetch, DeadlineExceededError, timeout=hour))
    await eventually(begun)
    now = loop.time
    with patch.object(loop, "time", lambda: now() + hour):
        return await run


async def test_expired_step_that_only_takes_or_puts_has_changed_nothing() -> None:
    source = af.FIFOQueue(1, [af.float32], [()])
    put, take = source.enqueue(1.0), source.dequeue()
    counter = af.Variable(0)
    counted = [source.dequeue(), counter.assign_add(1)]
    async with af.Session() as session:
        await session.run(counter.initializer)
        assert not await told(session, take, DeadlineExceededError, timeout=0.01)
        assert not await told(session, [take, source.size()], DeadlineExceededError, timeout=0.01)
        assert await expired(session, counted, partial(equals, session, counter, 1))
        await session.run(put)
        assert not await told(session, put, DeadlineExceededError, timeout=0.01)
        assert await session.run(source.size()) == 1


async def test_expired_step_that_has_put_some_elements_has_changed_something() -> None:
    sink = af.FIFOQueue(2, [af.float32], [()])
    put = sink.enqueue_many([[1.0, 2.0, 3.0]])
    async with af.Session() as session:
        assert await expired(session, put, partial(equals, session, sink.size(), 2))


async def test_element_that_may_have_been_used_is_not_returned() -> None:
    source = af.FIFOQueue(9, [af.float32], [()])
    fill, never = source.enqueue_many([[1.0, 2.0, 3.0]]), af.FIFOQueue(1, [af.float32], [()]).dequeue()
    total = af.Variable(0.0)
    added = total.assign_add(source.dequeue())
    with af.control_dependencies([added]):
        late = af.identity(never)
    async with af.Session() as session:
        await session.run([total.initializer, fill])
        assert await expired(session, late, partial(equals, session, total, 1.0))
        assert (await session.run([total, source.size()])) == [1.0, 2]


async def test_element_that_made_a_kernel_fail_is_not_returned() -> None:
    """A program that catches the error and continues would fail on the same element forever."""
    source = af.FIFOQueue(9, [af.float32], [()])
    fill = source.enqueue_many([[np.nan, 2.0]])
    checked = af.check_numerics(source.dequeue(), "an element")
    async with af.Session() as session:
        await session.run(fill)
        assert await told(session, checked, InvalidArgumentError)
        assert await session.run(checked) == 2.0


async def test_element_is_returned_if_another_queue_is_empty() -> None:
    full, empty = af.FIFOQueue(9, [af.float32], [()]), af.FIFOQueue(9, [af.float32], [()])
    fill, close, both = full.enqueue(1.0), empty.close(), [full.dequeue(), empty.dequeue()]
    async with af.Session() as session:
        await session.run([fill, close])
        assert not await told(session, both, OutOfRangeError)
        assert await session.run(full.size()) == 1


async def test_waiter_gets_the_returned_element() -> None:
    source, never = af.FIFOQueue(9, [af.float32], [()]), af.FIFOQueue(9, [af.float32], [()])
    fill, take, both, size = source.enqueue(1.0), source.dequeue(), [source.dequeue(), never.dequeue()], source.size()
    async with af.Session() as session:
        await session.run(fill)
        run = asyncio.get_running_loop().create_task(session.run(both))
        await eventually(partial(equals, session, size, 0))
        other = asyncio.get_running_loop().create_task(session.run(take, timeout=SECONDS))
        run.cancel()
        assert await other == 1.0
        with pytest.raises(asyncio.CancelledError):
            await run


# ── in a cluster ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("there", ["where the queue is", "on two workers"])
async def test_step_in_a_cluster_returns_its_elements(there: str, tcp: bool) -> None:
    with af.device("/job:worker/task:1"):  # not the task of the client
        source = af.FIFOQueue(50, [af.float32], [()])
        fill, take, close = source.enqueue_many([np.arange(50, dtype=np.float32)]), source.dequeue(), source.close()
    with af.device(f"/job:worker/task:{int(there == 'where the queue is')}"):
        fetch = take + 1.0
    found: list[float] = []
    async with cluster("worker", "worker", tcp=tcp) as (server, _), af.Session(server.target) as session:
        await session.run(fill)
        await session.run(close)

        async def consumer(chance: random.Random) -> None:
            while True:
                task = asyncio.get_running_loop().create_task(session.run(fetch))
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    found.append(float(await task))
                except asyncio.CancelledError:
                    continue
                except OutOfRangeError:
                    return

        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for seed in range(4):
                group.create_task(consumer(random.Random(seed)))
        with suppress(OutOfRangeError):  # elements that were returned after the consumers had seen the end
            while True:
                found.append(float(await session.run(fetch)))
    assert sorted(found) == [number + 1.0 for number in range(50)]


@pytest.fixture(params=["with the cancellation", "while the part ends", "after the part"])
def when_an_abort_arrives(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker learn first that a part is no longer wanted, and the reason only later, or while the part ends."""
    send, abort, unwind = PendingSteps.abort, WorkerSession.abort, WorkerSession._unwind
    arrived = asyncio.Event()

    async def send_later(steps: PendingSteps, step: int, error: OpError) -> bool:
        for _ in range(50):
            await asyncio.sleep(0)
        return await send(steps, step, error)

    async def note(session: WorkerSession, step: int, error: OpError) -> bool:
        arrived.set()
        return await abort(session, step, error)

    async def unwind_later(session: WorkerSession, step: Step, error: BaseException, answered: bool) -> None:
        if isinstance(error, asyncio.CancelledError):
            step.stop()  # as a kernel does that runs in a thread, which ends later
            await arrived.wait()
        await unwind(session, step, error, answered)

    if request.param != "with the cancellation":
        monkeypatch.setattr(PendingSteps, "abort", send_later)
    if request.param == "while the part ends":
        monkeypatch.setattr(WorkerSession, "abort", note)
        monkeypatch.setattr(WorkerSession, "_unwind", unwind_later)
    # A busy machine may take longer than the usual two seconds.
    monkeypatch.setattr("aioflow.net.task_worker._HELD_SECONDS", SECONDS)


@pytest.mark.usefixtures("when_an_abort_arrives")
async def test_expired_steps_of_a_cluster_report_that_nothing_changed() -> None:
    with af.device("/job:worker/task:1"):
        source = af.FIFOQueue(1, [af.float32], [()])
        put, take = source.enqueue(1.0), source.dequeue()
        counter = af.Variable(0)
        counted = [source.dequeue(), counter.assign_add(1)]
    async with cluster("worker", "worker") as (server, _), af.Session(server.target) as session:
        await session.run(counter.initializer)
        assert not await told(session, take, DeadlineExceededError, timeout=0.1)
        assert await told(session, counted, DeadlineExceededError, timeout=0.1)
        await session.run(put)
        assert not await told(session, put, DeadlineExceededError, timeout=0.1)
        assert await session.run(take) == 1.0


@pytest.mark.usefixtures("when_an_abort_arrives")
@pytest.mark.parametrize("still_runs", [False, True], ids=["its own part has ended", "its own part still runs"])
@pytest.mark.parametrize("task", [0, 1], ids=["in the client's process", "elsewhere"])
@pytest.mark.parametrize("waits", [False, True], ids=["sent at once", "sent later"])
async def test_element_that_made_a_kernel_of_another_worker_fail_is_not_returned(
    task: int, still_runs: bool, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = PendingSteps.begin

    def unless_it_waits(steps: PendingSteps, document: Any, tensors: Any, call: PendingCall) -> bool:
        # As if earlier messages to this task still waited for the network.
        return not steps.wait_for(call.step).node.endswith(f"task:{task}") and begin(steps, document, tensors, call)

    if waits:
        monkeypatch.setattr(PendingSteps, "begin", unless_it_waits)
    with af.device(f"/job:worker/task:{task}"):
        source, empty = af.FIFOQueue(9, [af.float32], [()]), af.FIFOQueue(9, [af.float32], [()])
        fill, take, size = source.enqueue_many([[np.nan, 2.0]]), source.dequeue(), source.size()
        late = [empty.dequeue()] if still_runs else []
    with af.device("/job:worker/task:2"):
        checked = af.check_numerics(take, "an element")
    async with cluster("worker", "worker", "worker") as (server, *_), af.Session(server.target) as session:
        await session.run(fill)
        assert await told(session, [checked, *late], InvalidArgumentError)
        assert await session.run(checked) == 2.0
        assert await session.run(size) == 0


async def test_late_abort_reports_that_elements_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hold time of 0 s stands for a machine so busy that the abort takes longer than the usual two seconds."""
    abort = PendingSteps.abort

    async def later(steps: PendingSteps, step: int, error: OpError) -> bool:
        await asyncio.sleep(0.05)
        return await abort(steps, step, error)

    monkeypatch.setattr(PendingSteps, "abort", later)
    monkeypatch.setattr("aioflow.net.task_worker._HELD_SECONDS", 0.0)
    with af.device("/job:worker/task:1"):
        source = af.FIFOQueue(9, [af.float32], [()])
        fill, take = source.enqueue_many([[np.nan, 2.0]]), source.dequeue()
    with af.device("/job:worker/task:2"):
        checked = af.check_numerics(take, "an element")
    async with cluster("worker", "worker", "worker") as (server, *_), af.Session(server.target) as session:
        await session.run(fill)
        assert await told(session, checked, InvalidArgumentError)


async def are(session: af.Session, fetches: Any, wanted: list[int]) -> bool:
    return [int(value) for value in await session.run(fetches)] == wanted


async def test_second_cancellation_loses_no_element() -> None:
    sources = []
    for number in (1, 2):
        with af.device(f"/job:worker/task:{number}"):
            sources.append(af.FIFOQueue(9, [af.float32], [()]))
    with af.device("/job:worker/task:3"):
        never = af.FIFOQueue(9, [af.float32], [()]).dequeue()
    fetch = [*(source.dequeue() for source in sources), never]
    sizes = [source.size() for source in sources]
    fill = [source.enqueue_many([[1.0, 2.0, 3.0]]) for source in sources]
    async with cluster(*["worker"] * 4) as (server, *_), af.Session(server.target) as session:
        await session.run(fill)
        for turns in range(16):
            task = asyncio.get_running_loop().create_task(session.run(fetch))
            await eventually(lambda: are(session, sizes, [2, 2]))
            for _ in range(2):
                task.cancel()
                for _ in range(turns):
                    await asyncio.sleep(0)
            await asyncio.wait([task])
            assert task.cancelled()
            await eventually(lambda: are(session, sizes, [3, 3]))


@pytest.mark.parametrize("tcp", [False, True])
async def test_second_cancellation_in_the_next_turn_loses_no_element(
    tcp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker whose part has just ended must be notified, too."""
    monkeypatch.setattr("aioflow.net.task_worker._HELD_SECONDS", SECONDS)  # longer than the test takes on any machine
    with af.device("/job:worker/task:1"):
        source = af.FIFOQueue(COUNT, [af.int64], [()])
        fill, take, size = source.enqueue_many([numbers()]), source.dequeue(), source.size()
    chance, found = random.Random(0), list[int]()
    async with cluster("worker", "worker", tcp=tcp) as (server, _), af.Session(server.target) as session:
        await session.run(fill)
        for _ in range(60):
            task = asyncio.get_running_loop().create_task(session.run(take, timeout=SECONDS))
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([task])
            if not task.cancelled():
                found.append(int(task.result()))
        found += [int(await session.run(take)) for _ in range(int(await session.run(size)))]
    assert sorted(found) == list(range(COUNT))


@pytest.mark.parametrize("how", ["its time limit passes", "its client goes"])
async def test_late_end_of_a_part_does_not_return_delivered_elements(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's part has sent its element but does not reply; the step succeeds without the reply."""
    run, ends, late, stop_after = Worker.run, asyncio.Event(), asyncio.Event(), worker_service._stop_after

    async def slowly(worker: Worker, handle: int, feeds: Sequence[Any], step: Step) -> list[Any]:
        results = await run(worker, handle, feeds, step)
        if any("task:1" in device for device in worker.devices) and not ends.is_set():
            try:
                async with step.stoppable():
                    await ends.wait()
            finally:
                late.set()
        return results

    with af.device("/job:worker/task:1"):
        source = af.FIFOQueue(9, [af.int64], [()], shared_name="a queue")
        fill, size, taken = source.enqueue_many([[1, 2, 3]]), source.size(), source.dequeue()
    with af.device("/job:worker/task:2"):
        copied = taken * 1
    async with cluster("worker", "worker", "worker", tcp=True) as (server, *_), af.Session(server.target) as other:
        await other.run(fill)
        async with af.Session(server.target) as session:
            assert await session.run(copied) == 1  # registers the parts
            monkeypatch.setattr(Worker, "run", slowly)
            # A short part would run by `run_brief`, past the patched `Worker.run`.
            monkeypatch.setattr(WorkerSession, "run_brief", lambda *_: None)
            if how == "its time limit passes":  # the timeout passes at the queue's worker, not at the client
                monkeypatch.setattr(worker_service, "_stop_after", lambda _, step: stop_after(0.2, step))
            assert await session.run(copied, timeout=SECONDS) == 2
            if how == "its time limit passes":
                await late.wait()
        await late.wait()
        ends.set()
        assert await other.run(size) == 1


async def test_element_that_is_put_during_a_cancellation_is_reported() -> None:
    """A producer's step is stopped at the moment at which a consumer makes room."""
    core = Queue("FIFOQueueV2", "q", 1, FIFOStore(), (af.int32,), ())
    step = Step()
    core.try_put((0,))

    async def produce() -> None:
        await core.waiting(lambda wake: Enqueue(((1,),), wake), told=partial(tell, step, None))

    task = asyncio.get_running_loop().create_task(produce())
    await asyncio.sleep(0)
    taken = core.try_take()
    assert taken is not None
    wake_all(taken[1])
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), len(core), step.changed) == (True, 1, True)


async def test_stale_gradients_are_not_returned() -> None:
    accumulator = af.ConditionalAccumulator(af.float32, shape=[])
    value, step = af.placeholder(af.float32, []), af.placeholder(af.int64, [])
    apply, take, count = accumulator.apply_grad(value, step), accumulator.take_grad(1), accumulator.num_accumulated()
    both = [take, af.FIFOQueue(9, [af.float32], [()]).dequeue()]
    async with af.Session() as session:
        await session.run(apply, {value: 100.0, step: 0})
        late = asyncio.get_running_loop().create_task(session.run(both))
        await eventually(lambda: are(session, [count], [0]))
        await session.run(apply, {value: 1.0, step: 1})
        assert await session.run(take) == 1.0
        late.cancel()
        await asyncio.wait([late])
        await session.run(apply, {value: 2.0, step: 2})
        assert await session.run(take) == 2.0


async def test_reader_that_was_reset_takes_no_record_back() -> None:
    names = af.FIFOQueue(9, [af.string], [()])
    reader = af.IdentityReader()
    read = reader.read(names).value
    both = [read, af.FIFOQueue(9, [af.float32], [()]).dequeue()]
    produced, reset, state = reader.num_records_produced(), reader.reset(), reader.serialize_state()
    fill = names.enqueue_many([["a", "b", "c"]])
    async with af.Session() as session:

        async def taken_and_cancelled(meanwhile: Any = None) -> None:
            late = asyncio.get_running_loop().create_task(session.run(both))
            await eventually(lambda: are(session, [produced], [1]))
            if meanwhile is not None:
                await session.run(meanwhile)
            late.cancel()
            await asyncio.wait([late])
            assert await session.run(produced) == 0

        await session.run(fill)
        await taken_and_cancelled(reset)
        await taken_and_cancelled()
        with pytest.raises(UnimplementedError):  # a serialized state cannot hold returned records
            await session.run(state)
        assert await session.run(read) == b"b"
        await session.run(state)


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
@on_each_loop
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_stream_returns_elements_that_it_has_prefetched(source: Callable[[], Source], closes: bool) -> None:
    made, found = source(), list[int]()
    async with af.Session() as session:
        await session.run(made.fill)
        for prefetch, turns in ((1, 0), (2, 1), (1, 3), (3, 9), (2, 27)):
            if len(found) + made.each * (prefetch + 1) > COUNT:
                continue  # the next step might wait for prefetched ones
            steps = session.stream(made.take, prefetch=prefetch)
            found += np.reshape(await anext(steps), -1).tolist()
            for _ in range(turns):
                await asyncio.sleep(0)
            if closes:
                await steps.aclose()
            del steps
        while len(found) < COUNT:
            found += await given(session, made.take)
    assert sorted(found) == list(range(COUNT))


async def test_stream_in_a_cluster_returns_prefetched_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioflow.net.task_worker._HELD_SECONDS", SECONDS)  # longer than the test takes on any machine
    with af.device("/job:worker/task:1"):
        source = af.FIFOQueue(COUNT, [af.int64], [()])
        fill, take, size = source.enqueue_many([numbers()]), source.dequeue(), source.size()
    async with cluster("worker", "worker") as (server, _), af.Session(server.target) as session:
        await session.run(fill)
        async with session.stream(take, prefetch=3) as steps:
            first = await anext(steps)
            await eventually(lambda: are(session, [size], [COUNT - 4]))
        assert await session.run(size) == COUNT - 1
        # The four steps ran concurrently, so they took and returned elements in any order.
        assert sorted([int(first), *[int(await session.run(take)) for _ in range(3)]]) == [0, 1, 2, 3]

"""Queues through sessions: values, waiting, cancellation, closing, and reports of stuck steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.sync.queue import Dequeue, Enqueue, FIFOStore, QueueCore
from aioflow.sync.waiting import Waiting, wake_all
from tests.support.waiting import time_runs_out, until_waiting


async def failure(run: Awaitable[Any]) -> Exception:
    try:
        await run
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


async def test_elements_come_out_in_order(graph: af.Graph) -> None:
    queue = af.FIFOQueue(10, [af.float32, af.int32], shapes=[[2], []])
    value, number = queue.dequeue()
    assert (value.shape, number.shape) == ((2,), ())
    async with af.Session() as session:
        await session.run(queue.enqueue([[1.0, 2.0], 7]))
        await session.run(queue.enqueue_many([[[3.0, 4.0], [5.0, 6.0]], [8, 9]]))
        assert await session.run(queue.size()) == 3
        first = await session.run([value, number])
        assert first[0].tolist() == [1.0, 2.0]
        assert first[1] == 7
        rest = await session.run(queue.dequeue_many(2))
        assert [r.tolist() for r in rest] == [[[3.0, 4.0], [5.0, 6.0]], [8, 9]]
        assert [r.dtype for r in rest] == [np.float32, np.int32]
        assert await session.run(queue.size()) == 0


async def test_dequeued_tensors_have_static_shapes(graph: af.Graph) -> None:
    queue = af.FIFOQueue(10, ["float32"], shapes=[[3]])
    assert queue.dequeue_many(2).shape.as_list() == [2, 3]
    assert queue.dequeue_up_to(2).shape.as_list() == [None, 3]
    assert queue.dequeue_many(af.placeholder("int32", [])).shape.as_list() == [None, 3]
    assert af.FIFOQueue(10, ["float32"]).dequeue().shape.ndims is None
    assert af.PriorityQueue(3, ["string"], [[]]).shapes == [af.TensorShape([]), af.TensorShape([])]


async def test_shapes_in_tuples(graph: af.Graph) -> None:
    types = ["float32", "float32"]
    assert af.FIFOQueue(3, types, ((), 2)).shapes == [af.TensorShape([]), af.TensorShape([2])]
    assert af.FIFOQueue(3, types, (2, (3,))).shapes == [af.TensorShape([2]), af.TensorShape([3])]
    assert af.FIFOQueue(3, "float32", (2, 3)).shapes == [af.TensorShape([2, 3])]
    assert af.FIFOQueue(3, "float32", ()).shapes == [af.TensorShape([])]
    with pytest.raises(errors.InvalidArgumentError):
        af.PaddingFIFOQueue(3, "float32", (None, 3))
    with pytest.raises(errors.DTypeError):
        af.FIFOQueue(3, "float32", 2)


async def test_consumers_receive_all_elements_of_a_producer(graph: af.Graph) -> None:
    queue = af.FIFOQueue(2, ["int32"], shapes=[[]])
    value = af.placeholder("int32", [])
    put, taken, close = queue.enqueue(value), queue.dequeue(), queue.close()
    seen: list[int] = []
    async with af.Session() as session, asyncio.TaskGroup() as tg:

        async def produce() -> None:
            for i in range(200):
                await session.run(put, {value: i})
            await session.run(close)

        async def consume() -> None:
            while True:
                try:
                    seen.append(int(await session.run(taken)))
                except errors.OutOfRangeError:
                    return

        tg.create_task(produce())
        for _ in range(3):
            tg.create_task(consume())
    assert sorted(seen) == list(range(200))


async def test_steps_that_never_wait_yield_to_other_tasks(graph: af.Graph) -> None:
    queue = af.FIFOQueue(-1, ["int32"], shapes=[[]])
    put = queue.enqueue(1)
    done = asyncio.Event()
    count = 0
    async with af.Session() as session, asyncio.TaskGroup() as tg:

        async def other() -> None:
            done.set()

        tg.create_task(other())
        while not done.is_set():
            await session.run(put)
            count += 1
    assert count < 100_000


@pytest.mark.parametrize("kind", ["dequeue", "dequeue_many", "dequeue_up_to", "enqueue", "enqueue_many", "close"])
async def test_cancelled_waiter_leaves_the_queue_unchanged(graph: af.Graph, kind: str) -> None:
    queue = af.FIFOQueue(1, ["int32"], shapes=[[]])
    fill = queue.enqueue(1)
    waiters: dict[str, Any] = {
        "dequeue": queue.dequeue,
        "dequeue_many": partial(queue.dequeue_many, 3),
        "dequeue_up_to": partial(queue.dequeue_up_to, 3),
        "enqueue": partial(queue.enqueue, 5),
        "enqueue_many": partial(queue.enqueue_many, [[5, 6]]),
        "close": queue.close,
    }
    waiting = waiters[kind]()
    size, taken = queue.size(), queue.dequeue()
    other = queue.enqueue(9)
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        if kind in ("enqueue", "enqueue_many", "close"):
            await session.run(fill)
        blocker = tg.create_task(session.run(other)) if kind == "close" else None
        if blocker is not None:
            await until_waiting(session)
        task = tg.create_task(session.run(waiting))
        await until_waiting(session, 2 if blocker is not None else 1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not await session.run(queue.is_closed())
        if not kind.startswith("enq") and blocker is None:
            await session.run(fill)
        assert await session.run(size) == 1
        assert await session.run(taken) == 1
        if blocker is not None:
            await blocker
            assert await session.run(taken) == 9
        assert await session.run(size) == 0


async def test_element_for_a_cancelled_waiter_returns_to_the_queue() -> None:
    core = QueueCore("q", 3, FIFOStore())
    waiting = Waiting(core.submit, core.withdraw, partial(Dequeue, 1, False), core.describe)

    async def wait() -> Any:
        return await waiting

    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(wait())
        await asyncio.sleep(0)
        wake_all(core.submit(Enqueue([1, 2])))  # the waiter has received 1, but has not run yet
        assert len(core) == 1
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert len(core) == 2
    taken = core.try_take()
    assert taken is not None
    assert taken[0].value == [1]


async def test_timeout_error_describes_the_queue(graph: af.Graph) -> None:
    queue = af.FIFOQueue(4, ["int32"], shapes=[[]], name="letters")
    taken = queue.dequeue(name="take")
    async with af.Session() as session:
        error = await time_runs_out(session, session.run(taken, timeout=60))
        assert "take on queue 'letters' (size 0, capacity 4, open" in str(error)
        assert await session.stuck_report() == []


async def test_stuck_report_lists_waiting_nodes(graph: af.Graph) -> None:
    queue = af.FIFOQueue(1, ["int32"], shapes=[[]], name="letters")
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        assert await session.stuck_report() == []
        task = tg.create_task(session.run([queue.dequeue_many(2, name="both"), queue.dequeue(name="one")]))
        await until_waiting(session)
        (report,) = await session.stuck_report()
        assert {node for node, _, _ in report.waiting} == {"both", "one"}
        assert all(seconds >= 0 and "queue 'letters'" in what for _, seconds, what in report.waiting)
        assert report.seconds >= max(seconds for _, seconds, _ in report.waiting)
        assert "2 dequeuing" in str(report)
        await session.run(queue.enqueue_many([[1, 2, 3]]))
        await task


async def test_closed_queue_refuses_elements_and_can_be_emptied(graph: af.Graph) -> None:
    queue = af.FIFOQueue(3, ["int32"], shapes=[[]])
    async with af.Session() as session:
        await session.run(queue.enqueue_many([[1, 2, 3]]))
        await session.run(queue.close())
        assert isinstance(await failure(session.run(queue.close())), errors.CancelledError)
        assert isinstance(await failure(session.run(queue.enqueue(4))), errors.CancelledError)
        short = await failure(session.run(queue.dequeue_many(5)))
        assert isinstance(short, errors.OutOfRangeError)
        assert "insufficient elements (requested 5, current size 3)" in str(short)
        assert (await session.run(queue.dequeue_up_to(5))).tolist() == [1, 2, 3]
        assert isinstance(await failure(session.run(queue.dequeue_up_to(5))), errors.OutOfRangeError)
        assert await session.run(queue.is_closed())


async def test_closing_cancels_waiting_enqueues(graph: af.Graph) -> None:
    queue = af.FIFOQueue(1, ["int32"], shapes=[[]])
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        await session.run(queue.enqueue(1))
        task = tg.create_task(failure(session.run(queue.enqueue(2))))
        await until_waiting(session)
        await session.run(queue.close(cancel_pending_enqueues=True))
        assert isinstance(await task, errors.CancelledError)
        assert await session.run(queue.dequeue()) == 1


async def test_padding_queue_pads_to_the_longest_element(graph: af.Graph) -> None:
    queue = af.PaddingFIFOQueue(9, ["int32", "string"], shapes=[[None, 2], []])
    assert [t.shape.as_list() for t in queue.dequeue_many(2)] == [[2, None, 2], [2]]
    async with af.Session() as session:
        await session.run(queue.enqueue([[[1, 2]], "a"]))
        await session.run(queue.enqueue([[[3, 4], [5, 6]], "b"]))
        numbers, names = await session.run(queue.dequeue_many(2))
        assert numbers.tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
        assert names.tolist() == [b"a", b"b"]
        value = af.placeholder("int32")
        error = await failure(session.run(queue.enqueue([value, "c"]), {value: [[1, 2, 3]]}))
        assert isinstance(error, errors.InvalidArgumentError)


async def test_priority_queue_returns_the_lowest_first(graph: af.Graph) -> None:
    queue = af.PriorityQueue(9, ["string"], shapes=[[]])
    async with af.Session() as session:
        for priority, value in ((3, "c"), (1, "a"), (3, "d"), (2, "b")):
            await session.run(queue.enqueue([priority, value]))
        assert [(await session.run(queue.dequeue()))[1] for _ in range(4)] == [b"a", b"b", b"c", b"d"]


async def test_shuffling_is_seeded_and_keeps_the_elements(graph: af.Graph) -> None:
    orders = []
    for _ in range(2):
        queue = af.RandomShuffleQueue(100, 0, ["int32"], shapes=[[]], seed=3)
        async with af.Session() as session:
            await session.run(queue.enqueue_many([list(range(50))]))
            orders.append((await session.run(queue.dequeue_many(50))).tolist())
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(50))
    assert orders[0] != sorted(orders[0])


async def test_names_and_dictionaries(graph: af.Graph) -> None:
    queue = af.FIFOQueue(3, ["int32", "int32"], shapes=[[], []], names=["a", "b"])
    with pytest.raises(errors.InvalidArgumentError, match="dictionaries"):
        queue.enqueue([1, 2])
    with pytest.raises(errors.InvalidArgumentError, match="keys"):
        queue.enqueue({"a": 1})
    with pytest.raises(errors.InvalidArgumentError, match="no names"):
        af.FIFOQueue(3, ["int32"]).enqueue({"a": 1})
    async with af.Session() as session:
        await session.run(queue.enqueue({"b": 2, "a": 1}))
        assert await session.run(queue.dequeue()) == {"a": 1, "b": 2}


def test_wrong_elements_are_refused_while_building(graph: af.Graph) -> None:
    queue = af.FIFOQueue(2, ["float32", "int32"], shapes=[[2], []])
    elements: list[Any] = [[[1.0, 2.0]], [[1.0, 2.0, 3.0], 1], [[1.0, 2.0], 1.5]]
    for wrong in elements:
        with pytest.raises(errors.InvalidArgumentError):
            queue.enqueue(wrong)
    with pytest.raises(errors.InvalidArgumentError):
        queue.enqueue_many([[[1.0, 2.0]], [1, 2]])
    with pytest.raises(errors.InvalidArgumentError):
        queue.dequeue_many(-1)
    wrong_queues: list[dict[str, Any]] = [{"shapes": [[], []]}, {"names": ["a", "b"]}, {"shapes": [[None]]}]
    for arguments in wrong_queues:
        with pytest.raises(errors.InvalidArgumentError):
            af.FIFOQueue(3, ["int32"], **arguments)


async def test_wrong_elements_are_refused_at_run_time(graph: af.Graph) -> None:
    value = af.placeholder("float32")
    queue = af.FIFOQueue(2, ["float32"], shapes=[[2]])
    free = af.FIFOQueue(2, ["float32"])
    shuffled = af.RandomShuffleQueue(2, 3, ["float32"])
    runs: list[tuple[Any, dict[Any, Any]]] = [
        (queue.enqueue(value), {value: [1.0, 2.0, 3.0]}),
        (queue.enqueue_many(value), {value: [[1.0, 2.0, 3.0]]}),
        (queue.enqueue_many(value), {value: 1.0}),
        (free.dequeue_many(2), {}),
        (shuffled.size(), {}),
    ]
    async with af.Session() as session:
        for fetch, feeds in runs:
            assert isinstance(await failure(session.run(fetch, feeds)), errors.InvalidArgumentError), fetch
        assert await session.run(queue.size()) == 0


async def test_queues_with_one_shared_name_share_elements(graph: af.Graph) -> None:
    mine = af.FIFOQueue(3, ["int32"], shapes=[[]], shared_name="mail")
    async with af.Session() as session:
        await session.run(mine.enqueue(4))
        with af.Graph().as_default():
            theirs = af.FIFOQueue(3, ["int32"], shapes=[[]], shared_name="mail")
            clash = af.FIFOQueue(3, ["float32"], shapes=[[]], shared_name="mail")
            async with af.Session(session.worker) as other:
                assert await other.run(theirs.dequeue()) == 4
                assert isinstance(await failure(other.run(clash.size())), errors.InvalidArgumentError)


async def test_enqueue_copies_fed_arrays(graph: af.Graph) -> None:
    queue = af.FIFOQueue(3, ["float32"], shapes=[[2]])
    value = af.placeholder("float32", [2])
    fed = np.array([1, 2], np.float32)
    async with af.Session() as session:
        await session.run(queue.enqueue(value), {value: fed})
        fed[:] = 9
        assert (await session.run(queue.dequeue())).tolist() == [1, 2]


async def test_waiters_of_other_loops_are_woken(graph: af.Graph) -> None:
    queue = af.FIFOQueue(3, ["int32"], shapes=[[]])
    taken, put = queue.dequeue(), queue.enqueue(5)
    found: list[Any] = []
    async with af.Session() as session:

        def elsewhere() -> None:
            found.append(asyncio.run(session.run(taken)))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await until_waiting(session)
        await session.run(put)
        await asyncio.to_thread(thread.join, 5)
        assert found == [5]


async def test_closing_the_session_stops_waiters(graph: af.Graph) -> None:
    queue = af.FIFOQueue(3, ["int32"], shapes=[[]])
    async with asyncio.TaskGroup() as tg:
        async with af.Session() as session:
            task = tg.create_task(failure(session.run(queue.dequeue())))
            await until_waiting(session)
        assert isinstance(await task, errors.CancelledError)


async def test_reference_executor_runs_queues(graph: af.Graph) -> None:
    queue = af.FIFOQueue(3, ["int32"], shapes=[[]])
    with af.control_dependencies([queue.enqueue(3)]):
        taken = queue.dequeue() * 2
    for executor in ("strands", "reference"):
        async with af.Session(config=af.SessionConfig(executor=executor)) as session:
            assert await session.run(taken) == 6


@pytest.mark.parametrize(
    ("least", "seed", "fits"), [(2, 1, True), (2, None, True), (3, 1, False), (2, 4, False), (3, None, False)]
)
async def test_shared_shuffle_queue_requires_equal_settings(
    graph: af.Graph, least: int, seed: int | None, fits: bool
) -> None:
    first = af.RandomShuffleQueue(9, 2, "float32", seed=1, shared_name="q")
    second = af.RandomShuffleQueue(9, least, "float32", seed=seed, shared_name="q")
    async with af.Session() as session:
        await session.run(first.enqueue(1.0))
        if fits:
            assert await session.run(second.size()) == 1
        else:
            with pytest.raises(errors.InvalidArgumentError, match="different attributes"):
                await session.run(second.size())


async def test_shared_padding_queue_accepts_wider_shapes_later(graph: af.Graph) -> None:
    first = af.PaddingFIFOQueue(9, "float32", [[2]], shared_name="q")
    wider = af.PaddingFIFOQueue(9, "float32", [[None]], shared_name="q")
    async with af.Session() as session:
        await session.run(wider.enqueue([[1.0, 2.0]]))
        # The existing queue may hold elements of any size, which `first` does not allow.
        with pytest.raises(errors.InvalidArgumentError):
            await session.run(first.size())
    async with af.Session() as session:
        await session.run(first.enqueue([[1.0, 2.0]]))
        assert (await session.run(wider.dequeue())).tolist() == [1, 2]


async def test_a_priority_queue_without_components_is_refused() -> None:
    handle = af.raw_ops.PriorityQueueV2(component_types=[], shapes=[])
    async with af.Session() as session:
        error = await failure(session.run(af.raw_ops.QueueSizeV2(handle=handle)))
    assert isinstance(error, errors.InvalidArgumentError)
    assert "priority" in error.message

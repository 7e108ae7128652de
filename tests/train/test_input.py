"""Input pipelines: coordinator, queue runners, producers and batches."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors, train
from aioflow.graph.opdef import OPS


async def drain(fetches: Any, limit: int = 100) -> list[Any]:
    """Return all elements of a pipeline."""
    found: list[Any] = []
    async with af.Session() as session:
        await session.run([af.local_variables_initializer(), af.global_variables_initializer()])
        async with train.Coordinator() as coord:
            train.start_queue_runners(session, coord)
            for _ in range(limit):
                found.append(await session.run(fetches))  # noqa: PERF401 (keeps the elements before the final error)
    return found


# ── the coordinator ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tasks_end_when_a_stop_is_requested() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        await coord.wait_for_stop()
        ended.append(number)

    async with train.Coordinator() as coord:
        for number in range(3):
            coord.start(work(number))
        await asyncio.sleep(0)
        assert not coord.should_stop()
        coord.request_stop()
        await coord.join()
    assert (sorted(ended), coord.joined) == ([0, 1, 2], True)


async def test_first_failure_stops_all_tasks_and_is_raised() -> None:
    async def fail() -> None:
        raise errors.DataLossError("broken")

    async def follow() -> None:
        await coord.wait_for_stop()
        raise errors.InternalError("a consequence")

    with pytest.raises(errors.DataLossError, match="broken"):  # noqa: PT012
        async with train.Coordinator() as coord:
            coord.start(follow())
            coord.start(fail())
            await coord.wait_for_stop()


@pytest.mark.parametrize("clean", [None, [KeyError]])
async def test_clean_stop_exception_ends_the_block(clean: Any) -> None:
    async with train.Coordinator(clean) as coord:
        raise errors.OutOfRangeError("the end") if clean is None else KeyError("the end")
    assert coord.should_stop()
    coord.raise_requested_exception()


async def test_other_exception_leaves_the_block() -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with train.Coordinator() as coord:
            coord.start(asyncio.sleep(0))
            _ = 1 / 0


async def test_join_waits_for_tasks_and_raises_their_error() -> None:
    async with train.Coordinator() as coord:
        coord.start(asyncio.sleep(0))
        await coord.join()
        assert not coord.should_stop()
    with pytest.raises(KeyError):  # noqa: PT012
        async with train.Coordinator() as coord:
            with coord.stop_on_exception():
                _ = dict[str, int]()["missing"]
            await coord.join()


async def test_stuck_task_is_cancelled_after_the_grace_period() -> None:
    cancelled = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async with train.Coordinator() as coord:
        coord.start(stubborn())
        await asyncio.sleep(0)
        coord.request_stop()
        await coord.join(stop_grace_period_secs=0.01)
        assert cancelled == [True]


async def test_cancelling_the_block_cancels_the_tasks() -> None:
    cancelled = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def block() -> None:
        async with train.Coordinator() as coord:
            coord.start(stubborn())
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(block())
        await asyncio.sleep(0.01)
        task.cancel()
    assert task.cancelled()
    assert cancelled == [True]


async def test_coroutine_cancelled_before_its_first_turn_is_closed() -> None:
    async def work() -> None: ...

    async def block() -> None:
        async with train.Coordinator() as coord:
            coord.start(never_begun)
            raise asyncio.CancelledError

    never_begun = work()
    with pytest.raises(asyncio.CancelledError):
        await block()
    assert inspect.getcoroutinestate(never_begun) == inspect.CORO_CLOSED


async def test_waiting_with_a_timeout_and_clearing() -> None:
    coord = train.Coordinator()
    assert not await coord.wait_for_stop(0.001)
    coord.request_stop(KeyError())
    assert await coord.wait_for_stop(0.001)
    coord.clear_stop()
    assert not coord.should_stop()
    coord.raise_requested_exception()


async def test_start_outside_the_block_is_rejected() -> None:
    with pytest.raises(errors.FailedPreconditionError):
        train.Coordinator().start(asyncio.sleep(0))


async def test_coordinator_can_be_reused_after_clear_stop() -> None:
    log: list[str] = []

    async def work(name: str) -> None:
        await coord.wait_for_stop()
        log.append(name)

    coord = train.Coordinator()
    for block in "ab":
        async with coord:
            for name in "xy":
                coord.start(work(block + name))
                coord.request_stop()
                await coord.join()
                states = [(coord.joined, coord.should_stop())]
                coord.clear_stop()
                states.append((coord.joined, coord.should_stop()))
                assert states == [(True, True), (False, False)]
        with pytest.raises(errors.FailedPreconditionError, match="has been stopped"):
            await coord.__aenter__()
        coord.clear_stop()
    assert log == ["ax", "ay", "bx", "by"]


async def test_joining_without_a_block() -> None:
    coord = train.Coordinator()
    await coord.join()
    assert coord.joined
    with pytest.raises(KeyError):
        coord.request_stop(KeyError())  # all tasks have been joined, so the error is raised at once
    coord.clear_stop()
    coord.request_stop(errors.OutOfRangeError("the end"))
    await coord.join()
    coord.clear_stop()
    coord.request_stop((KeyError, KeyError("x"), None))
    with pytest.raises(KeyError):
        await coord.join()
    async with asyncio.TaskGroup() as tg:
        ended = asyncio.Event()
        tasks = [tg.create_task(ended.wait()), tg.create_task(ended.wait())]
        other = train.Coordinator()
        other.register_thread(tasks[0])
        joining = tg.create_task(other.join(tasks[1:]))
        await asyncio.sleep(0)
        assert not joining.done()
        ended.set()
    with pytest.raises(errors.DTypeError):
        other.register_thread(threading.Thread())  # type: ignore[arg-type]  # published code passes threads


async def test_join_can_ignore_live_tasks() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        await release.wait()

    async with train.Coordinator() as coord:
        task = coord.start(stubborn())
        await begun.wait()
        coord.request_stop()
        await coord.join(stop_grace_period_secs=0.0, ignore_live_threads=True)
        assert not task.done()
        release.set()
        await task


async def test_task_can_join_the_others() -> None:
    async def work() -> None:
        await coord.join()

    async with train.Coordinator() as coord, asyncio.timeout(5):
        coord.start(asyncio.sleep(0))
        await coord.start(work())


async def test_stop_can_be_requested_from_another_thread() -> None:
    async with train.Coordinator() as coord:
        await asyncio.to_thread(coord.request_stop)
        assert await coord.wait_for_stop(1)


# ── runners ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_runner_fills_its_queue_and_closes_it() -> None:
    queue = af.FIFOQueue(3, [af.float32], [[]])
    runner = train.QueueRunner(queue, [queue.enqueue([1.0])] * 2)
    dequeue, size, closed = queue.dequeue(), queue.size(), queue.is_closed()
    async with af.Session() as session:
        async with train.Coordinator() as coord:
            tasks = runner.create_threads(session, coord)
            assert len(tasks) == 3
            assert [await session.run(dequeue) for _ in range(10)] == [1.0] * 10
            while await session.run(size) < 3:  # noqa: ASYNC110 (no event signals the size of a queue)
                await asyncio.sleep(0)
        assert await session.run(closed)
        assert all(task.done() for task in tasks)
    assert runner.exceptions_raised == []
    assert (runner.queue, len(runner.enqueue_ops), runner.name) == (queue, 2, queue.name)


async def test_error_of_a_runner_ends_the_pipeline() -> None:
    source = af.constant([1.0, 0.0])
    bad = af.check_numerics(1.0 / train.input_producer(source, shuffle=False).dequeue(), "division")
    with pytest.raises(errors.InvalidArgumentError, match="division"):
        await drain(train.batch([bad], 4))


async def test_runner_reports_an_enqueue_that_cannot_be_prepared() -> None:
    queue = af.FIFOQueue(3, [af.float32], [[]])
    runner = train.QueueRunner(queue, [queue.enqueue([1.0])])
    async with af.Session(graph=af.Graph()) as session:
        with pytest.raises(errors.InvalidArgumentError, match="graph") as caught:
            async with train.Coordinator() as coord:
                await coord.join(runner.create_threads(session, coord))
    assert runner.exceptions_raised == [caught.value]


# ── faults that are not the end of the input ─────────────────────────────────────────────────────────────────────────

FAULTS: dict[str, type[BaseException]] = {
    "index": IndexError,
    "key": KeyError,
    "stop": StopIteration,
    "async stop": StopAsyncIteration,
    "end of file": EOFError,
}

if "TestFault" not in OPS:  # this module may be imported twice, and the registry keeps the first definition
    af.extend.define_op("TestFault", "x: float32", "y: float32", ["kind: string"], stateful=True, shape=lambda ctx: ())

    @af.extend.kernel("TestFault")
    def _fault(x: Any, *, kind: str) -> Any:
        raise FAULTS[kind]("a fault")


def by_kernel(kind: str) -> Any:
    return af.extend.make("TestFault", 1.0, kind=kind)


def by_kernel_in_a_loop(kind: str) -> Any:
    return af.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, by_kernel(kind)), [0, af.constant(1.0)])[1]


def by_function(kind: str) -> Any:
    def fail() -> Any:
        raise FAULTS[kind]("a fault")

    return af.py_func(fail, [], "float32")


def by_coroutine(kind: str) -> Any:
    async def fail() -> Any:
        raise FAULTS[kind]("a fault")

    return af.py_coroutine(fail, [], "float32")


def by_source(kind: str) -> Any:
    async def source() -> Any:
        if kind != "":
            raise FAULTS[kind]("a fault")
        yield 1.0

    return af.from_async_iterator(source, "float32")


def by_factory(kind: str) -> Any:
    def factory() -> Any:
        raise FAULTS[kind]("a fault")

    return af.from_async_iterator(factory, "float32")


MAKERS = [by_kernel, by_kernel_in_a_loop, by_function, by_coroutine, by_source, by_factory]
# StopIteration of a plain function means the end of its input, as in TensorFlow.
FAULTY = [(made, kind) for made in MAKERS for kind in FAULTS if made is not by_function or kind != "stop"]


@pytest.mark.parametrize(("made", "kind"), FAULTY, ids=lambda part: getattr(part, "__name__", part))
async def test_fault_is_not_the_end_of_the_input(made: Any, kind: str) -> None:
    """The error reaches the readers of the queue. An OutOfRangeError would close it as if all had been read."""
    queue = af.FIFOQueue(3, ["float32"], [[]])
    runner = train.QueueRunner(queue, [queue.enqueue(af.reshape(made(kind), []))])
    taken = queue.dequeue()
    async with af.Session() as session:
        with pytest.raises(errors.OpError, match=r"a fault|raised Stop") as caught:  # noqa: PT012
            async with train.Coordinator() as coord:
                runner.create_threads(session, coord)
                await session.run(taken)
        assert not isinstance(caught.value, errors.OutOfRangeError)
        assert runner.exceptions_raised == [caught.value]
        with pytest.raises((errors.InvalidArgumentError, errors.UnknownError)):
            async for _ in session.stream(made(kind)):
                pass


async def test_py_func_ends_the_input_with_out_of_range_error() -> None:
    left = [3.0, 2.0, 1.0]

    def take() -> Any:
        if not left:
            raise errors.OutOfRangeError("nothing is left")
        return np.float32(left.pop())

    queue = af.FIFOQueue(3, ["float32"], [[]])
    train.add_queue_runner(train.QueueRunner(queue, [queue.enqueue(af.reshape(af.py_func(take, [], "float32"), []))]))
    assert await drain(queue.dequeue()) == [1.0, 2.0, 3.0]


async def test_runner_uses_the_innermost_coordinator() -> None:
    queue = train.range_input_producer(3, num_epochs=1, shuffle=False)
    taken = queue.dequeue()
    async with af.Session() as session:
        await session.run(af.local_variables_initializer())
        async with train.Coordinator() as outer:
            async with train.Coordinator() as coord:
                assert len(train.start_queue_runners(session)) == 2
                assert [await session.run(taken) for _ in range(3)] == [0, 1, 2]
            assert coord.should_stop()
            assert not outer.should_stop()
        with pytest.raises(errors.InvalidArgumentError, match="own the tasks"):
            train.start_queue_runners(session)


async def test_runner_is_started_once_per_session() -> None:
    queue = af.FIFOQueue(2, ["float32"], [[]])
    source = train.range_input_producer(4, num_epochs=1, shuffle=False).dequeue()
    runner = train.QueueRunner(queue, [queue.enqueue(af.cast(source, "float32"))])
    train.add_queue_runner(runner)
    taken = queue.dequeue()
    async with af.Session() as one, af.Session() as two, train.Coordinator() as coord:
        for session in (one, two):
            await session.run(af.local_variables_initializer())
            assert len(train.start_queue_runners(session, coord)) == 4
            assert train.start_queue_runners(session, coord) == []
            assert [await session.run(taken) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
        await coord.join()
        assert len(runner.create_threads(one, coord)) == 2, "those of before have ended"


async def test_runner_requires_an_active_coordinator() -> None:
    queue = af.FIFOQueue(3, [af.float32], [[]])
    runner = train.QueueRunner(queue, [queue.enqueue([1.0])])
    async with af.Session() as session:
        with pytest.raises(errors.InvalidArgumentError):
            runner.create_threads(session)
        async with train.Coordinator() as coord:
            with pytest.raises(errors.InvalidArgumentError):
                runner.create_threads(session, coord, start=False)
        with pytest.raises(errors.FailedPreconditionError):
            runner.create_threads(session, coord)
    with pytest.raises(errors.InvalidArgumentError):
        train.QueueRunner(queue, [])
    with pytest.raises(errors.UnimplementedError, match="queue_runner_def") as caught:
        train.QueueRunner(queue_runner_def=object())
    assert "import_meta_graph" in str(caught.value.expected), "which creates the runners of a stored graph"


# ── producers ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_input_producer_yields_rows_epoch_by_epoch() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    queue = train.input_producer(rows, num_epochs=2, shuffle=False)
    found = await drain(queue.dequeue())
    np.testing.assert_array_equal(found, np.concatenate([rows, rows]))


async def test_shuffled_epoch_has_each_row_once() -> None:
    queue = train.range_input_producer(20, num_epochs=3, seed=5)
    found = [int(v) for v in await drain(queue.dequeue())]
    epochs = [found[i : i + 20] for i in (0, 20, 40)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 3
    assert epochs[0] != epochs[1]


async def test_slice_producer_keeps_rows_together() -> None:
    x = af.constant(np.arange(8, dtype=np.int32))
    first, second = train.slice_input_producer([x, x * 10], num_epochs=1)
    found = await drain([first, second])
    assert sorted(int(a) for a, _ in found) == list(range(8))
    assert all(b == 10 * a for a, b in found)


async def test_string_producer_rejects_empty_input() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="needs strings"):
        train.string_input_producer([])
    queue = train.string_input_producer(af.placeholder_with_default(np.array([], dtype=object), [None]), shuffle=False)
    with pytest.raises(errors.InvalidArgumentError, match="at least one string"):
        await drain(queue.dequeue())


async def test_match_filenames_once(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.csv"):
        (tmp_path / name).write_text(name)
    names = train.match_filenames_once(str(tmp_path / "*.txt"))
    queue = train.string_input_producer(names, num_epochs=1, shuffle=False)
    key, value = af.WholeFileReader().read(queue)
    assert await drain([key, value]) == [[str(tmp_path / n).encode(), n.encode()] for n in ("a.txt", "b.txt")]


async def test_limit_epochs_ends_after_the_given_number() -> None:
    limited = train.limit_epochs([1, 2], 2)
    async with af.Session() as session:
        await session.run(af.local_variables_initializer())
        for _ in range(2):
            assert (await session.run(limited)).tolist() == [1, 2]
        with pytest.raises(errors.OutOfRangeError):
            await session.run(limited)
    with pytest.raises(errors.InvalidArgumentError):
        train.limit_epochs([1], 0)


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def numbers(count: int) -> af.Tensor:
    made: af.Tensor = train.range_input_producer(count, num_epochs=1, shuffle=False).dequeue()
    return made


@pytest.mark.parametrize("smaller", [False, True])
async def test_batches_are_in_order(smaller: bool) -> None:
    expected = [[0, 1, 2], [3, 4, 5], [6]] if smaller else [[0, 1, 2], [3, 4, 5]]
    x = numbers(7)
    both = train.batch([x, x + 1], 3, allow_smaller_final_batch=smaller)
    assert [t.shape.as_list() for t in both] == [[None if smaller else 3]] * 2
    found = await drain(both)
    assert [a.tolist() for a, _ in found] == expected
    assert all((b == a + 1).all() for a, b in found)


async def test_batch_keeps_the_structure_of_elements() -> None:
    x = numbers(2)
    batch = train.batch({"b": x, "a": x * 2}, 2)
    (found,) = await drain(batch)
    assert {k: v.tolist() for k, v in found.items()} == {"a": [0, 2], "b": [0, 1]}
    assert isinstance(train.batch([numbers(2)], 2), af.Tensor)
    assert isinstance(train.batch(numbers(2), 2), af.Tensor)


async def test_many_elements_at_once_and_padding() -> None:
    x = numbers(3)
    many = train.batch(af.stack([x, x]), 3, enqueue_many=True)
    assert [v.tolist() for v in await drain(many)] == [[0, 0, 1], [1, 2, 2]]
    with af.Graph().as_default():
        x = numbers(3)
        padded = train.batch([af.fill(af.reshape(x, [1]), 7)], 3, dynamic_pad=True)
        assert [v.tolist() for v in await drain(padded)] == [[[0, 0], [7, 0], [7, 7]]]


async def test_several_sources_and_tasks_lose_no_elements() -> None:
    joined = train.batch_join([[numbers(10)], [numbers(10)]], 4)
    found = np.concatenate(await drain(joined))
    assert sorted(found.tolist()) == sorted([*range(10), *range(10)])
    with af.Graph().as_default():
        found = np.concatenate(await drain(train.batch(numbers(40), 8, num_threads=4, capacity=5)))
        assert sorted(found.tolist()) == list(range(40))


@pytest.mark.parametrize("join", [False, True])
async def test_shuffled_batches_have_each_element_once(join: bool) -> None:
    if join:
        batch = train.shuffle_batch_join([[numbers(25)], [numbers(25)]], 10, 30, 20, seed=1)
    else:
        batch = train.shuffle_batch([numbers(50)], 10, 30, 20, seed=1, allow_smaller_final_batch=True)
    found = np.concatenate(await drain(batch)).tolist()
    assert sorted(found) == (sorted([*range(25), *range(25)]) if join else list(range(50)))
    assert found != sorted(found)


def test_batch_rejects_unknown_shapes_and_mixed_sources() -> None:
    unknown = af.placeholder(af.float32)
    for tensors in ([unknown], []):
        with pytest.raises(errors.InvalidArgumentError):
            train.batch(tensors, 2)
    with pytest.raises(errors.InvalidArgumentError):
        train.batch_join([], 2)
    with pytest.raises(errors.InvalidArgumentError, match="dtypes"):
        train.batch_join([[af.constant(1.0)], [af.constant(1)]], 2)
    with pytest.raises(errors.InvalidArgumentError, match="keys"):
        train.batch_join([{"a": af.constant(1.0)}, {"b": af.constant(1.0)}], 2)
    assert train.batch([unknown], 2, shapes=[[3]]).shape.as_list() == [2, 3]
    for alone in ((), [3], (3, 4), af.TensorShape([3])):
        assert train.batch([unknown], 2, shapes=alone).shape.as_list() == [2, *alone]
        with pytest.raises(errors.InvalidArgumentError):
            train.batch([unknown, unknown], 2, shapes=alone)


# ── sparse and filtered elements ─────────────────────────────────────────────────────────────────────────────────────


async def test_sparse_elements_in_maybe_batch() -> None:
    number = train.range_input_producer(6, 1, shuffle=False).dequeue()
    wide = af.cast(number, af.int64)
    sparse = af.SparseTensor(af.expand_dims(af.range(wide % 3), 1), af.range(wide % 3) + wide, [4])
    found = await drain(train.maybe_batch([sparse, number], number > 1, 2))
    assert [numbers.tolist() for _, numbers in found] == [[2, 3], [4, 5]]
    assert [batch.indices.tolist() for batch, _ in found] == [[[0, 0], [0, 1]], [[0, 0], [1, 0], [1, 1]]]
    assert [batch.values.tolist() for batch, _ in found] == [[2, 3], [4, 5, 6]]
    assert all(batch.dense_shape.tolist() == [2, 4] for batch, _ in found)


async def test_shuffled_sparse_elements_stay_intact() -> None:
    number = af.cast(train.range_input_producer(8, 2, shuffle=False).dequeue(), af.int64)
    sparse = af.SparseTensor([[0]], [number], [number + 1])
    found = await drain(train.shuffle_batch({"s": sparse, "n": number}, 4, 12, 6, seed=1))
    numbers = [n for batch in found for n in batch["n"].tolist()]
    assert sorted(numbers) == sorted([*range(8)] * 2)
    for batch in found:
        assert batch["s"].values.tolist() == batch["n"].tolist()
        assert batch["s"].dense_shape.tolist() == [4, max(batch["n"]) + 1]


def test_batch_join_rejects_sources_with_different_sparsity() -> None:
    sparse = af.SparseTensor([[0]], [1], [4])
    others: list[Any] = [af.constant(1), af.SparseTensor([[0]], [1.0], [4])]
    for other in others:
        with pytest.raises(errors.InvalidArgumentError):
            train.batch_join([[sparse], [other]], 2)
    with pytest.raises(errors.InvalidArgumentError):
        train.maybe_batch([1], [True], 2)


async def test_maybe_batch_filters_rows() -> None:
    number = train.range_input_producer(6, 1, shuffle=False).dequeue()
    rows = af.stack([number, number + 10, number + 20])
    found = await drain(train.maybe_batch([rows], [True, False, True], 3, enqueue_many=True))
    assert [batch.tolist() for batch in found] == [[0, 20, 1], [21, 2, 22], [3, 23, 4], [24, 5, 25]]

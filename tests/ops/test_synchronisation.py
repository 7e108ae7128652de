"""Barriers, staging areas, critical sections, stacks and queue selection through sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors, raw_ops
from tests.ops.test_queues import failure
from tests.support.waiting import time_runs_out, until_waiting


async def gone(task: asyncio.Task[Any]) -> None:
    """Cancel the step and wait until it has ended."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


# ── barrier ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_barrier_gathers_components(graph: af.Graph) -> None:
    barrier = af.Barrier(["float32", "string"], shapes=[[2], []], name="gate")
    taken = barrier.take_many(2)
    assert [t.shape.as_list() for t in (taken.indices, taken.keys, *taken.values)] == [[2], [2], [2, 2], [2]]
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(taken))
        (waiting,) = await until_waiting(session)
        assert waiting == "gate_BarrierTakeMany on barrier 'gate' (0 ready, 0 incomplete, open)"
        await session.run(barrier.insert_many(0, ["a", "b", "c"], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        await session.run(barrier.insert_many(1, ["c", "a"], ["C", "A"]))
        found = await task
        assert found.indices.tolist() == [-(2**63)] * 2
        assert found.keys.tolist() == [b"c", b"a"]
        assert [v.tolist() for v in found.values] == [[[5.0, 6.0], [1.0, 2.0]], [b"C", b"A"]]
        assert await session.run([barrier.ready_size(), barrier.incomplete_size()]) == [0, 1]


@pytest.mark.parametrize(
    ("shapes", "dims"),
    [
        ((), ()),
        ([], ()),
        ([()], ()),
        (2, None),
        ((2,), (2,)),
        ((2, 3), (2, 3)),
        (af.TensorShape([2]), (2,)),
        ([[2]], (2,)),
    ],
)
def test_barrier_of_one_component_accepts_a_single_shape(graph: af.Graph, shapes: Any, dims: Any) -> None:
    if dims is None:
        with pytest.raises(errors.DTypeError, match="must be a list"):
            af.Barrier("float32", shapes=shapes)
        return
    assert af.Barrier("float32", shapes=shapes).take_many(4).values[0].dims == (4, *dims)
    with pytest.raises(errors.InvalidArgumentError, match="one shape per component"):
        af.Barrier(["float32", "int32"], shapes=shapes)


async def test_cancelled_take_leaves_the_elements(graph: af.Graph) -> None:
    barrier = af.Barrier(["int32"], shapes=[[]])
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        await session.run(barrier.insert_many(0, ["a"], [1]))
        task = tg.create_task(session.run(barrier.take_many(2)))
        await until_waiting(session)
        await gone(task)
        assert await session.run(barrier.ready_size()) == 1
        assert (await session.run(barrier.take_many(1))).keys.tolist() == [b"a"]
        assert await session.stuck_report() == []


async def test_barrier_rejects_wrong_elements(graph: af.Graph) -> None:
    barrier = af.Barrier(["int32", "float32"], shapes=[[], [2]])
    free = af.Barrier(["float32"])
    value, keys = af.placeholder("float32"), af.placeholder("string")
    runs: list[tuple[Any, dict[Any, Any]]] = [
        (barrier.insert_many(1, ["a"], value), {value: [[1.0]]}),
        (barrier.insert_many(0, ["a", "a"], [1, 2]), {}),
        (barrier.insert_many(2, ["a"], value), {value: [[1.0]]}),
        (raw_ops.BarrierInsertMany(handle=barrier.barrier_ref, keys=["a"], values=[1.0], component_index=0), {}),
        (free.insert_many(0, keys, value), {keys: ["a", "b"], value: [1.0]}),
        (free.insert_many(0, keys, value), {keys: ["a"], value: [[]]}),
        (free.take_many(af.placeholder_with_default(-1, [])), {}),
    ]
    async with af.Session() as session:
        for fetch, feeds in runs:
            assert isinstance(await failure(session.run(fetch, feeds)), errors.InvalidArgumentError), fetch
        assert await session.run([barrier.incomplete_size(), free.ready_size()]) == [0, 0]
        await session.run([free.insert_many(0, ["a"], [1.0]), free.insert_many(0, ["b"], [[1.0]])])
        assert isinstance(await failure(session.run(free.take_many(2))), errors.InvalidArgumentError)


# ── staging area ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_staging_area_blocks_put_beyond_its_capacity(graph: af.Graph) -> None:
    area = af.StagingArea(["int32"], shapes=[[]], capacity=1)
    value = af.placeholder("int32", [])
    put, got = area.put(value), area.get()
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        await session.run(put, {value: 1})
        tasks = [tg.create_task(session.run(put, {value: 2}))]
        await until_waiting(session)  # the order of two concurrent steps is not defined
        tasks.append(tg.create_task(session.run(put, {value: 3})))
        waiting = await until_waiting(session, 2)
        assert "on staging area 'StagingArea' (size 1, 4 bytes; waiting: 2 putting" in waiting[0]
        assert [(await session.run(got))[0] for _ in range(3)] == [1, 2, 3]
        await asyncio.gather(*tasks)
        assert await session.run(area.size()) == 0


@pytest.mark.parametrize("kind", ["get", "peek", "put"])
async def test_cancelled_waiter_leaves_the_staging_area_unchanged(graph: af.Graph, kind: str) -> None:
    area = af.StagingArea(["int32"], shapes=[[]], capacity=1)
    nodes: dict[str, Callable[[], Any]] = {"get": area.get, "peek": lambda: area.peek(1), "put": lambda: area.put(5)}
    node = nodes[kind]()
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        if kind != "get":
            await session.run(area.put(1))
        task = tg.create_task(session.run(node))
        await until_waiting(session)
        await gone(task)
        if kind == "get":
            await session.run(area.put(1))
        assert await session.run(area.get()) == [1]
        assert await session.run(area.size()) == 0
        assert await session.stuck_report() == []


async def test_clear_wakes_waiting_puts(graph: af.Graph) -> None:
    area = af.StagingArea(["float32"], memory_limit=8)
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        await session.run(area.put([[1.0, 2.0]]))
        task = tg.create_task(session.run(area.put([[3.0]])))
        await until_waiting(session)
        assert isinstance(await failure(session.run(area.put([[1.0] * 3]))), errors.ResourceExhaustedError)
        await session.run(area.clear())
        await task
        assert (await session.run(area.get()))[0].tolist() == [3.0]


async def test_names_and_shapes_of_a_staging_area(graph: af.Graph) -> None:
    area = af.StagingArea(["int32", "float32"], shapes=[[], [2]], names=["a", "b"], shared_name="area")
    assert (area.name, area.names, area.shapes[1].as_list()) == ("area", ["a", "b"], [2])
    assert {key: t.shape.as_list() for key, t in area.get().items()} == {"a": [], "b": [2]}
    wrong: list[Any] = [{"a": 1}, [1, [1.0, 2.0]], {"a": 1, "b": [1.0]}]
    for values in wrong:
        with pytest.raises(errors.InvalidArgumentError):
            area.put(values)
    async with af.Session() as session:
        await session.run(area.put({"b": [1.0, 2.0], "a": 7}))
        with af.Graph().as_default():
            same = af.StagingArea(["int32", "float32"], names=["a", "b"], shared_name="area")
            async with af.Session(session.worker) as other:
                assert (await other.run(same.get()))["a"] == 7


# ── critical sections ────────────────────────────────────────────────────────────────────────────────────────────────


def counter(v: af.Variable) -> Callable[[], af.Tensor]:
    """Return a builder of nodes that read `v`, yield to other tasks, and write `v` + 1: a race without a lock."""

    def count() -> af.Tensor:
        async def later(x: Any) -> Any:
            await asyncio.sleep(0)
            return x + 1

        following = af.py_coroutine(later, [v.read_value()], "int32")
        following.set_shape([])
        return v.assign(following).value()

    return count


async def test_critical_section_is_exclusive(graph: af.Graph) -> None:
    v = af.get_variable("v", initializer=0)
    section = af.CriticalSection()
    locked = [section.execute(counter(v)) for _ in range(5)]
    unlocked = [counter(v)() for _ in range(5)]
    async with af.Session() as session:
        await session.run(v.initializer)
        await asyncio.gather(*(session.run(locked) for _ in range(4)))
        assert await session.run(v) == 20
        await session.run(unlocked)
        assert await session.run(v) < 25, "without a lock, updates are lost: the test would see it"
        assert await session.stuck_report() == []


async def test_lock_waiters_are_reported_and_served_in_order(graph: af.Graph) -> None:
    gate = af.FIFOQueue(9, ["int32"], shapes=[[]])
    section = af.CriticalSection(name="door")
    inside = section.execute(gate.dequeue)
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        tasks = []
        for number in range(1, 5):
            tasks.append(tg.create_task(session.run(inside)))
            waiting = await until_waiting(session, number)
        assert "queue 'fifo_queue'" in waiting[0]
        assert waiting[3].endswith("MutexLock on lock 'door/mutex' (busy; waiting: 3)")
        await gone(tasks.pop(2))
        for number in range(3):
            await session.run(gate.enqueue(number))
        assert await asyncio.gather(*tasks) == [0, 1, 2]


@pytest.mark.parametrize("how", ["fails", "cancelled", "times out", "is not consumed"])
async def test_lock_is_released_when_the_step_ends(graph: af.Graph, how: str) -> None:
    section = af.CriticalSection()
    empty = af.FIFOQueue(9, ["int32"], shapes=[[]])

    def assertion() -> Any:
        with af.control_dependencies([af.Assert(False, ["no"])]):
            return af.constant(1)

    free = section.execute(lambda: af.constant(7))
    stuck = section.execute(empty.dequeue)
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        if how == "fails":
            error = await failure(session.run(section.execute(assertion)))
            assert isinstance(error, errors.InvalidArgumentError)
        elif how == "cancelled":
            task = tg.create_task(session.run(stuck))
            await until_waiting(session)
            await gone(task)
        elif how == "times out":
            await time_runs_out(session, session.run(stuck, timeout=60))
        else:
            held = raw_ops.MutexLock(mutex=section._handle)
            await session.run(held.op)
        assert await session.run(free, timeout=5.0) == 7


async def test_lock_can_be_consumed_only_once(graph: af.Graph) -> None:
    held = raw_ops.MutexLock(mutex=raw_ops.MutexV2())
    twice = [raw_ops.ConsumeMutexLock(mutex_lock=held), raw_ops.ConsumeMutexLock(mutex_lock=held)]
    async with af.Session() as session:
        assert isinstance(await failure(session.run(twice)), errors.InvalidArgumentError)


def test_critical_sections_that_would_deadlock_are_refused(graph: af.Graph) -> None:
    section, other = af.CriticalSection(), af.CriticalSection()
    v = af.get_variable("v", initializer=0)
    with pytest.raises(errors.InvalidArgumentError, match="inside itself"):
        section.execute(lambda: section.execute(lambda: 1))
    section.execute(v.read_value, exclusive_resource_access=False)
    other.execute(v.read_value, exclusive_resource_access=False)
    with pytest.raises(errors.InvalidArgumentError, match="resources of critical section"):
        other.execute(v.read_value)


async def test_critical_section_inside_and_around_a_loop(graph: af.Graph) -> None:
    v = af.get_variable("v", initializer=0)
    section = af.CriticalSection()
    around = section.execute(lambda: af.while_loop(lambda i: i < 3, lambda i: i + af.cast(v >= 0, "int32"), [0]))
    inside = af.while_loop(lambda i: i < 4, lambda i: i + 0 * section.execute(lambda: v.assign_add(1) + 0) + 1, [0])
    async with af.Session() as session:
        await session.run(v.initializer)
        assert await session.run(around) == 3
        assert await session.run(inside) == 4
        assert await session.run(v) == 4


# ── stacks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def chain(*builders: Callable[[], Any]) -> list[Any]:
    """Build nodes that run one after another."""
    made: list[Any] = []
    for builder in builders:
        with af.control_dependencies(made[-1:]):
            made.append(builder())
    return made


async def test_stacks(graph: af.Graph) -> None:
    def stack(limit: int) -> tuple[Callable[[Any], Any], Callable[[str], Any], Callable[[], Any]]:
        handle = raw_ops.StackV2(max_size=limit, elem_type="float32", stack_name="pile")
        return (
            lambda value: lambda: raw_ops.StackPushV2(handle=handle, elem=value),
            lambda dtype: lambda: raw_ops.StackPopV2(handle=handle, elem_type=dtype),
            lambda: raw_ops.StackCloseV2(handle=handle),
        )

    push, pop, close = stack(2)
    good = chain(push(1.0), push([2.0, 3.0]), pop("float32"), push(4.0), pop("float32"), pop("float32"), close)
    wrong = {
        "overflowed": chain(push(1.0), push(2.0), push(3.0)),
        "is empty": chain(push(1.0), pop("float32"), pop("float32")),
        "closed": chain(close, pop("float32")),
        "a different dtype": chain(push(1)),
        "holds a different": chain(push(1.0), pop("int32")),
    }
    async with af.Session() as session:
        for _ in range(2):  # each step has a stack of its own
            found = await session.run(good)
            assert [v if v is None else np.asarray(v).tolist() for v in found] == [
                1.0, [2.0, 3.0], [2.0, 3.0], 4.0, 4.0, 1.0, None,
            ]  # fmt: skip
        for match, nodes in wrong.items():
            error = await failure(session.run(nodes))
            assert isinstance(error, errors.InvalidArgumentError)
            assert match in str(error)
            assert "Stack[pile]" in str(error)


async def test_stack_across_two_loops(graph: af.Graph) -> None:
    handle = raw_ops.StackV2(max_size=-1, elem_type="int32")
    pushed = af.while_loop(
        lambda i, s: i < 5, lambda i, s: (i + 1, s + raw_ops.StackPushV2(handle=handle, elem=i * i)), [0, 0]
    )

    def below(i: af.Tensor, digits: af.Tensor) -> list[af.Tensor]:
        return [i + 1, digits * 10 + af.reshape(raw_ops.StackPopV2(handle=handle, elem_type="int32"), [])]

    with af.control_dependencies(pushed):
        popped = af.while_loop(lambda i, digits: i < 5, below, [0, 0])
    async with af.Session() as session:
        found = await session.run([pushed[1], popped[1]])
    assert found == [30, 16 * 10**4 + 9 * 10**3 + 400 + 10]


# ── queue selection ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_queue_is_selected_at_run_time(graph: af.Graph) -> None:
    queues = [af.FIFOQueue(3, ["int32"], shapes=[[size]], name=f"q{size}") for size in (1, 2)]
    index = af.placeholder("int32", [])
    queue = af.QueueBase.from_list(index, queues)
    taken = queue.dequeue(name="either")
    assert (taken.shape.as_list(), queue.shapes[0].as_list()) == ([None], [None])
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        await session.run(queue.enqueue(af.constant([5])), {index: 0})
        assert isinstance(await failure(session.run(queue.size(), {index: 2})), errors.InvalidArgumentError)
        assert isinstance(await failure(session.run(queue.size(), {index: -1})), errors.InvalidArgumentError)
        task = tg.create_task(session.run(taken, {index: 1}))
        (waiting,) = await until_waiting(session)
        assert waiting.startswith("either on queue 'q2'")
        await session.run(queues[1].enqueue([[6, 7]]))
        assert (await task).tolist() == [6, 7]
        assert (await session.run(taken, {index: 0})).tolist() == [5]


def test_queue_selection_rejects_incompatible_queues(graph: af.Graph) -> None:
    number, word, named = (
        af.FIFOQueue(3, ["int32"]),
        af.FIFOQueue(3, ["string"]),
        af.FIFOQueue(3, ["int32"], names=["a"]),
    )
    with pytest.raises(errors.DTypeError):
        af.QueueBase.from_list(0, [])
    with pytest.raises(errors.DTypeError):
        af.QueueBase.from_list(0, [number, word])
    with pytest.raises(errors.InvalidArgumentError, match="names"):
        af.QueueBase.from_list(0, [number, named])

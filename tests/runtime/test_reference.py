"""The reference executor: the meaning of a step, and the behavior that all executors of a session share."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow import errors, raw_ops
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.arrays import to_array
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import make, make_list
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.dataflow import Dataflow
from aioflow.runtime.device import host
from aioflow.runtime.executor import shared_threads
from aioflow.runtime.reference import ReferenceExecutor
from aioflow.runtime.step import Step
from tests.runtime.flow_programs import random_flow_program
from tests.support.dense import dense
from tests.support.random_examples import examples
from tests.support.waiting import time_runs_out, until_waiting

_PATIENCE = 10.0  # seconds: the longest wait of a test's thread
_DO: dict[str, Callable[[Any], Any]] = {}  # node name -> the function that its kernel calls

if "TestDo" not in OPS:
    define_op("TestDo", "x: T", "y: T", ["T: type", "what: string"], stateful=True, shape=lambda ctx: ctx.dims("x"))
    define_op("TestDoPurely", "x: T", "y: T", ["T: type", "what: string"], shape=lambda ctx: ctx.dims("x"))

if not KERNELS.for_op("TestDo"):

    @kernel("TestDo")
    @kernel("TestDoPurely")
    def _do(x: Any, *, what: str) -> Any:
        return _DO[what](x)


@pytest.fixture(autouse=True)
def _nothing_to_do() -> Iterator[None]:
    yield
    _DO.clear()


def _doing(name: str, does: Callable[[Any], Any], x: Any = 0) -> Any:
    _DO[name] = does
    return make("TestDo", x, what=name, name=name)


def _noting(ran: list[str], name: str, x: Any = 0) -> Any:
    def note(value: Any) -> Any:
        ran.append(name)
        return value

    return _doing(name, note, x)


def _session() -> af.Session:
    return af.Session(config=af.SessionConfig(executor="reference", threads=2))


# -- the meaning of a step ---------------------------------------------------------------------------------------------


async def test_independent_nodes_run_concurrently(graph: af.Graph) -> None:
    together = threading.Barrier(2)

    def meet(x: Any) -> Any:
        together.wait(_PATIENCE)
        return x

    async with _session() as session:
        assert await session.run([_doing("one", meet, 1), _doing("other", meet, 2)]) == [1, 2]


async def test_event_loop_runs_while_a_kernel_runs(graph: af.Graph) -> None:
    loop, turned = asyncio.get_running_loop(), threading.Event()
    in_time: list[bool] = []

    def wait(x: Any) -> Any:
        loop.call_soon_threadsafe(turned.set)
        in_time.append(turned.wait(_PATIENCE))
        return x

    async with _session() as session:
        await session.run(_doing("wait", wait))
    assert in_time == [True]


@pytest.mark.parametrize("first", ["puts", "takes"])
async def test_async_nodes_are_awaited_together(graph: af.Graph, first: str) -> None:
    queue = af.FIFOQueue(1, ["int32"], shapes=[[]])
    if first == "puts":
        put, got = queue.enqueue(7), queue.dequeue()
    else:
        got, put = queue.dequeue(), queue.enqueue(7)
    async with _session() as session:
        assert (await session.run([got, put], timeout=60))[0] == 7


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 100_000), loops=st.booleans())
async def test_branches_and_loops_equal_those_of_tagged_dataflow(seed: int, loops: bool) -> None:
    with af.Graph().as_default():
        program = random_flow_program(seed, loops)
        floats = [t for t in program.fetches if t.dtype == af.float32]
        gradients: list[Any] = [t for t in af.gradients(floats, list(program.feeds)[:2]) if t is not None]
        graph = prune(StepRequest(tuple(program.feeds), (*program.fetches, *gradients)))
    bound = bind_graph(graph, host(), ResourceManager(), {})
    threads = shared_threads("-test-reference", 2)
    feeds = [to_array(value, tensor.dtype) for tensor, value in program.feeds.items()]
    expected = await Dataflow(graph, bound, threads, 60.0).run(feeds, Step())
    for have, want in zip(await ReferenceExecutor(graph, bound, threads).run(feeds, Step()), expected, strict=True):
        np.testing.assert_array_equal(have, want)


async def test_merge_forwards_the_first_value_to_arrive(graph: af.Graph) -> None:
    queue = af.FIFOQueue(1, ["int32"], shapes=[[]])
    late: Any = queue.dequeue()
    value, index = raw_ops.Merge(inputs=[late, af.constant(5)])
    with af.control_dependencies([value]):
        put = queue.enqueue(6)
    async with _session() as session:
        assert (await session.run([value, index, late, put], timeout=60))[:3] == [5, 1, 6]


async def test_deadness_propagates_and_dead_nodes_do_not_run(graph: af.Graph) -> None:
    ran: list[str] = []
    taken = af.placeholder("bool", [])
    off, on = raw_ops.Switch(data=af.constant(3), pred=taken)
    if_not, if_so = _noting(ran, "if_not", off), _noting(ran, "if_so", on)
    with af.control_dependencies([if_so]):
        behind = _noting(ran, "behind")
        trigger = raw_ops.ControlTrigger()
    with af.control_dependencies([trigger]):
        anyway = _noting(ran, "anyway")
    with af.control_dependencies([if_so]):
        either, _ = raw_ops.Merge(inputs=[if_not, if_so])
    async with _session() as session:
        assert await session.run([either, anyway], {taken: False}) == [3, 0]
        assert sorted(ran) == ["anyway", "if_not"]
        ran.clear()
        assert await session.run([either, anyway, behind], {taken: True}) == [3, 0, 0]
        assert sorted(ran) == ["anyway", "behind", "if_so"]
        with pytest.raises(errors.InvalidArgumentError, match="'behind:0' does not have a value") as caught:
            await session.run(behind, {taken: False})
        assert caught.value.op_type == "_Retval"


async def test_predicate_of_a_switch_must_be_a_scalar(graph: af.Graph) -> None:
    predicate = af.placeholder("bool", None)
    off, _ = raw_ops.Switch(data=af.constant(3), pred=predicate, name="fork")
    async with _session() as session:
        with pytest.raises(errors.InvalidArgumentError, match="predicate of a Switch must be a scalar") as caught:
            await session.run(off, {predicate: [True, False]})
        assert caught.value.node == "fork"


async def test_value_is_freed_when_its_last_reader_has_ended(graph: af.Graph) -> None:
    held: list[bool] = []
    arrays: list[weakref.ref[Any]] = []

    def make(x: Any) -> Any:
        made = np.zeros(5, np.int32)
        arrays.append(weakref.ref(made))
        return made

    def look(x: Any) -> Any:
        held.append(arrays[0]() is not None)
        return x

    made = _doing("make", make, af.constant([0] * 5))
    with af.control_dependencies([made + 1, made * 2]):
        last = _doing("last", look)
    async with _session() as session:
        await session.run(last)
    assert held == [False]


async def test_values_of_earlier_iterations_are_freed(graph: af.Graph) -> None:
    arrays: list[weakref.ref[Any]] = []
    held: list[int] = []

    def make(x: Any) -> Any:
        held.append(sum(array() is not None for array in arrays))
        made = x + 1
        arrays.append(weakref.ref(made))
        return made

    def body(i: Any, x: Any) -> Any:
        return i + 1, _doing("make", make, x)

    _, last = af.while_loop(lambda i, _: i < 40, body, [0, af.constant([0] * 5)])
    async with _session() as session:
        np.testing.assert_array_equal(await session.run(last), [40] * 5)
    assert len(held) == 40
    assert max(held) <= 4


async def test_loop_with_waiting_nodes_and_an_inner_loop(graph: af.Graph) -> None:
    """The inner loop runs only in the iterations that take its branch."""
    queue = af.FIFOQueue(20, ["int32"], shapes=[[]])
    ran: list[str] = []

    def body(i: Any, total: Any) -> Any:
        with af.control_dependencies([total]):  # one iteration at a time
            put = queue.enqueue(i)
        with af.control_dependencies([put]):
            taken = queue.dequeue()

        def count() -> Any:
            return af.while_loop(lambda j, _: j < taken, lambda j, s: (j + 1, _noting(ran, "inner", s) + 1), [0, 0])[1]

        return i + 1, total + af.cond(af.equal(i % 2, 1), count, lambda: -1)

    steps, total = af.while_loop(lambda i, _: i < 6, body, [0, 0])
    async with _session() as session:
        assert await session.run([steps, total], timeout=60) == [6, 1 + 3 + 5 - 3]
    assert ran == ["inner"] * 9


async def test_failure_in_an_iteration_ends_the_step(graph: af.Graph) -> None:
    def fail(x: Any) -> Any:
        if x == 3:
            raise ValueError("the fourth")
        return x

    count = af.while_loop(lambda i: i < 9, lambda i: [_doing("failing", fail, i) + 1], [0])
    async with _session() as session:
        with pytest.raises(errors.InvalidArgumentError, match="the fourth") as caught:
            await session.run(count)
        assert caught.value.node == "while/failing"
        assert await session.run(af.while_loop(lambda i: i < 9, lambda i: [i + 1], [0])) == 9


# -- the end of a step -------------------------------------------------------------------------------------------------


async def test_first_error_wins_and_other_nodes_are_cancelled_and_awaited(graph: af.Graph) -> None:
    entered, ended = threading.Event(), threading.Event()
    ran: list[str] = []
    gone: list[bool] = []

    def fail(x: Any) -> Any:
        assert entered.wait(_PATIENCE)
        raise ValueError("first")

    def fail_later(x: Any) -> Any:
        (step,) = session._steps
        entered.set()
        while not step.requested:
            time.sleep(1e-3)
        ended.set()
        raise ValueError("second")

    async def wait() -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            gone.append(True)

    slow = _doing("slow", fail_later)
    fetches = [_doing("failing", fail), _noting(ran, "behind", slow), af.py_coroutine(wait, [], af.int32)]
    async with _session() as session:
        with pytest.raises(errors.InvalidArgumentError, match="first") as caught:
            await session.run(fetches)
        assert caught.value.node == "failing"
        assert ended.is_set()
        assert gone == [True]
    assert ran == []


async def test_cancelled_step_waits_for_its_kernel_and_runs_no_other(graph: af.Graph) -> None:
    entered, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def stay(x: Any) -> Any:
        entered.set()
        assert go_on.wait(_PATIENCE)
        ran.append("stay")
        return x

    behind = _noting(ran, "behind", _doing("stay", stay))
    async with _session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(behind))
        await asyncio.to_thread(entered.wait, _PATIENCE)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert ran == ["stay"]


async def test_stateless_kernel_that_does_not_stop_is_abandoned(graph: af.Graph) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def stay(x: Any) -> Any:
        entered.set()
        go_on.wait(_PATIENCE)
        return x

    _DO["stay"] = stay
    x = af.placeholder("int32", [])
    stuck = make("TestDoPurely", x, what="stay", name="stuck")
    try:
        async with _session() as session, asyncio.TaskGroup() as tg:
            task = tg.create_task(session.run(stuck, {x: 0}))
            await asyncio.to_thread(entered.wait, _PATIENCE)
            (step,) = session._steps
            task.cancel()
            await asyncio.wait([task], timeout=_PATIENCE / 2)
            assert task.cancelled()
            assert step.abandoned == ["stuck"]
    finally:
        go_on.set()


async def test_stopped_step_raises_the_error_that_stopped_it(graph: af.Graph) -> None:
    reason = errors.AbortedError("a worker is gone")
    ran: list[str] = []

    def stop(x: Any) -> Any:
        (step,) = session._steps
        loop.call_soon_threadsafe(step.stop, reason)
        while not step.requested:
            time.sleep(1e-3)
        return x

    loop = asyncio.get_running_loop()
    behind = _noting(ran, "behind", _doing("stop", stop))
    async with _session() as session:
        with pytest.raises(errors.AbortedError) as caught:
            await session.run(behind)
    assert caught.value is reason
    assert ran == []


# -- as one of a session's executors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fails", "cancelled", "times out", "is not consumed"])
async def test_lock_is_released_when_the_step_ends(graph: af.Graph, how: str) -> None:
    section = af.CriticalSection()
    empty = af.FIFOQueue(9, ["int32"], shapes=[[]])
    number = af.placeholder("int32", [])
    free = section.execute(lambda: number * 7)
    fails = section.execute(lambda: af.floordiv(number, 0))
    stuck = section.execute(empty.dequeue)
    async with _session() as session, asyncio.TaskGroup() as tg:
        if how == "fails":
            with pytest.raises(errors.InvalidArgumentError, match="zero"):
                await session.run(fails, {number: 1})
        elif how == "cancelled":
            task = tg.create_task(session.run(stuck))
            await until_waiting(session)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        elif how == "times out":
            assert "queue 'fifo_queue'" in str(await time_runs_out(session, session.run(stuck, timeout=60)))
        else:
            await session.run(raw_ops.MutexLock(mutex=section._handle).op)
        assert await session.run(free, {number: 1}, timeout=5.0) == 7


async def test_stuck_report_shows_a_waiting_node(graph: af.Graph) -> None:
    queue = af.FIFOQueue(9, ["int32"], shapes=[[]])
    got: Any = queue.dequeue(name="take")
    async with _session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(got))
        (waiting,) = await until_waiting(session)
        assert waiting.startswith("take on queue 'fifo_queue'")
        await session.run(queue.enqueue(5))
        assert await task == 5
        assert await session.stuck_report() == []


async def test_close_of_the_session_stops_a_waiting_step(graph: af.Graph) -> None:
    queue = af.FIFOQueue(9, ["int32"], shapes=[[]])
    session = _session()

    async def stopped() -> None:
        with pytest.raises(errors.CancelledError, match="closed"):
            await session.run(queue.dequeue())

    async with asyncio.TaskGroup() as tg:
        tg.create_task(stopped())
        await until_waiting(session)
        await asyncio.wait_for(session.close(), 5)


@pytest.mark.parametrize(
    ("returned", "actual"),
    [
        (np.zeros(2), "float64 of shape (2,)"),
        (np.float32(0), "float32 of shape ()"),
        (None, "NoneType"),
        (1.0, "float"),
        ((np.zeros(2, np.float32),), "tuple"),
    ],
)
async def test_kernel_with_an_output_unlike_its_op_is_reported(returned: Any, actual: str) -> None:
    y = _doing("wrong", lambda x: returned, np.zeros(2, np.float32))
    async with af.Session(config=af.SessionConfig(executor="reference")) as session:
        with pytest.raises(errors.InternalError, match="TestDo does not return the output 0") as caught:
            await session.run(y)
    assert (caught.value.node, caught.value.actual) == ("wrong", actual)
    assert caught.value.expected == "float32 of shape (2,)"


async def test_kernel_with_an_output_unlike_its_op_is_reported_in_a_loop(graph: af.Graph) -> None:
    x = np.zeros(2, np.float32)
    count = af.while_loop(lambda x: True, lambda x: [_doing("wrong", lambda _: np.float32(0), x)], [x])
    async with _session() as session:
        with pytest.raises(errors.InternalError, match="TestDo does not return the output 0") as caught:
            await session.run(count)
    assert caught.value.actual == "float32 of shape ()"


async def test_gradients_of_branches_in_a_loop_have_the_declared_shapes(graph: af.Graph) -> None:
    x = af.constant([0.5, -0.5])

    def body(i: Any, x: Any) -> Any:
        return i + 1, af.cond(af.equal(i % 2, 0), lambda: af.tanh(x) * x, lambda: x * 2.0)

    y = af.while_loop(lambda i, _: i < 3, body, [0, x])[1]
    (first,) = dense(af.gradients(y, x))
    (second,) = dense(af.gradients(first, x))
    found = []
    for config in (af.SessionConfig(), af.SessionConfig(executor="reference")):
        async with af.Session(config=config) as session:
            found.append(await session.run([first, second]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.parametrize(("returned", "actual"), [(np.zeros(2, np.float32), "ndarray"), ((1, 2, 3), "3 of them")])
async def test_array_is_not_unpacked_into_outputs(returned: Any, actual: str) -> None:
    define_op("TestTwo", "x: T", "y: T, z: T", ["T: type"], stateful=True)
    try:
        kernel("TestTwo")(lambda x: returned)
        both = make_list("TestTwo", 0.0)
        async with af.Session(config=af.SessionConfig(executor="reference")) as session:
            with pytest.raises(errors.InternalError, match="does not return the outputs") as caught:
                await session.run(both)
        assert caught.value.actual == actual
    finally:
        del OPS._ops["TestTwo"]
        KERNELS._kernels.pop("TestTwo", None)

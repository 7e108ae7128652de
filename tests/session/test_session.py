"""`Session.run`: structures of fetches, feeds, names, concurrency, growing graphs, and the end of a session."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import warnings
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.runtime.worker import Worker

Pair = namedtuple("Pair", ["left", "right"])


async def test_results_have_the_structure_of_the_fetches() -> None:
    x = af.placeholder("float32", [], name="x")
    y = af.add(x, 1.0, name="y")
    step = af.no_op(name="step")
    async with af.Session() as session:
        feed = {x: 2.0}
        assert await session.run(y, feed) == 3
        assert await session.run([y, [x, (y,)]], feed) == [3, [2, (3,)]]
        assert await session.run({"a": y, "b": [x]}, feed) == {"a": 3, "b": [2]}
        assert await session.run(Pair(x, y), feed) == Pair(2, 3)
        ordered: Any = await session.run(OrderedDict(z=y, a=x), feed)
        assert type(ordered) is OrderedDict
        assert list(ordered) == ["z", "a"]
        assert await session.run(["y:0", "step", step], feed) == [3, None, None]
        assert await session.run([], feed) == []
        assert await session.run("y:0", {"x:0": 2.0}) == 3


async def test_intermediate_feed_skips_upstream_nodes() -> None:
    counter = af.Variable(0, name="counter")
    with af.control_dependencies([counter.assign_add(1)]):
        middle = af.identity(af.constant(5.0))
    y = middle * 2.0
    async with af.Session() as session:
        await session.run(counter.initializer)
        assert await session.run(y) == 10
        assert await session.run(counter) == 1
        assert await session.run(y, {middle: 4.0}) == 8
        assert await session.run(counter) == 1, "a node upstream of the feed ran"


async def test_variable_can_be_fed() -> None:
    weight = af.Variable(3.0, name="weight")
    y = weight * 2.0
    async with af.Session() as session:
        await session.run(weight.initializer)
        assert await session.run(y, {weight: 10.0}) == 20
        assert await session.run(y) == 6


async def test_fetch_of_a_feed_returns_its_value() -> None:
    x = af.placeholder("float32", [2])
    async with af.Session() as session:
        value = np.array([1, 2], np.float32)
        assert (await session.run(x, {x: value}) == value).all()


async def test_feeds_are_converted_within_their_kind() -> None:
    x = af.placeholder("float32", [None])
    whole = af.placeholder("int64", [])
    text = af.placeholder("string", [])
    async with af.Session() as session:
        assert (await session.run(x, {x: [1, 2]})).dtype == np.float32
        assert (await session.run(x * 1.0, {x: np.arange(3)})).dtype == np.float32
        assert (await session.run(x * 1.0, {x: np.arange(3, dtype=">f4")})).tolist() == [0, 1, 2]
        assert await session.run(whole + 0, {whole: 2**40}) == 2**40
        assert await session.run(af.identity(text), {text: "né"}) == "né".encode()


async def test_make_callable_accepts_feeds_by_position() -> None:
    x = af.placeholder("float32", [])
    y = af.placeholder("float32", [])
    async with af.Session() as session:
        subtract = session.make_callable({"d": x - y}, [x, y])
        for _ in range(5):
            assert await subtract(5.0, 3.0) == {"d": 2.0}
        with pytest.raises(af.errors.InvalidArgumentError, match="number of feeds"):
            await subtract(1.0)


def test_run_sync_in_a_script() -> None:
    x = af.placeholder("float32", [])
    with af.Session() as session:
        assert session.run_sync(x + 1.0, {x: 1}) == 2
        assert session.run_sync(x + 1.0, {x: 2}) == 3


def test_wait_for_runs_coroutines_of_a_script(tmp_path: Path) -> None:
    v = af.Variable(2.0, name="v")
    saver = af.train.Saver()
    with af.Session() as session:
        session.run_sync(v.initializer)
        path = session.wait_for(saver.save(session, tmp_path / "model"))
        session.run_sync(v.assign(3.0))
        assert path is not None
        assert session.wait_for(saver.restore(session, path)) is None
        assert session.run_sync(v) == 2.0
        with pytest.raises(af.errors.DTypeError, match="a coroutine"):
            session.wait_for(3)  # type: ignore[arg-type]


def test_run_sync_does_not_format_its_result() -> None:
    """Formatting an array of a thousand numbers would take a hundred times as long as the step."""
    shown: list[Any] = []

    def show(number: Any) -> str:
        shown.append(number)
        return ""

    x = af.placeholder("float64", [None])
    with af.Session() as session, np.printoptions(formatter={"float_kind": show}):
        for _ in range(2):
            session.run_sync(x + 1.0, {x: np.ones(3)})
    assert not shown


@pytest.mark.parametrize("made", [True, False])
def test_interrupted_run_sync_leaves_no_unstarted_task(
    made: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = af.placeholder("float32", [])
    create_task = asyncio.BaseEventLoop.create_task

    def interrupted(loop: asyncio.BaseEventLoop, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        if made:
            create_task(loop, *args, **kwargs)
        raise KeyboardInterrupt

    with af.Session() as session:
        assert session.run_sync(x, {x: 1.0}) == 1.0
        monkeypatch.setattr(asyncio.BaseEventLoop, "create_task", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run_sync(x, {x: 2.0})
        assert session.run_sync(x, {x: 3.0}) == 3.0
        gc.collect()
    assert caplog.messages == []


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal here")
def test_exception_of_a_signal_handler_stops_the_step(caplog: pytest.LogCaptureFixture) -> None:
    ends: list[type[BaseException]] = []

    async def wait() -> np.ndarray[Any, Any]:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.Event().wait()
        except BaseException as error:
            ends.append(type(error))
            raise
        raise AssertionError

    def handle(number: int, frame: Any) -> None:
        asyncio.get_running_loop().call_soon(interrupt)

    def interrupt() -> None:
        raise KeyboardInterrupt

    x = af.placeholder("float32", [])
    waiting = af.py_coroutine(wait, [], af.float32, shapes=[])
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with af.Session() as session:
            with pytest.raises(KeyboardInterrupt):
                session.run_sync(waiting)
            assert ends == [asyncio.CancelledError]
            assert session.run_sync(x, {x: 3.0}) == 3.0
            gc.collect()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caplog.messages == []


async def test_session_used_by_another_thread_can_be_closed_here() -> None:
    session = af.Session()
    x = af.placeholder("float32", [])
    results = await asyncio.gather(*(asyncio.to_thread(session.run_sync, x * 2.0, {x: float(i)}) for i in range(4)))
    assert sorted(results) == [0.0, 2.0, 4.0, 6.0]
    await session.close()
    with pytest.raises(af.errors.ClosedSessionError):
        session.run_sync(x, {x: 1.0})


async def test_run_sync_inside_a_running_loop() -> None:
    x = af.placeholder("float32", [])
    async with af.Session() as session:
        assert session.run_sync(x + 1.0, {x: 1}) == 2


async def test_eval_and_run_use_the_default_session() -> None:
    count = af.Variable(1, name="count")
    bump = count.assign_add(4)
    with pytest.raises(af.errors.FailedPreconditionError, match="no default session"):
        await count.initializer.run()
    async with af.Session():
        await count.initializer.run()
        await bump.op.run()
        assert await af.identity(count).eval() == 5
        with af.Graph().as_default():
            other = af.constant(2)
            async with af.Session():
                assert await other.eval() == 2
    session = af.Session()
    assert await (af.constant(1) + 1).eval(session=session) == 2
    await session.close()


async def test_concurrent_runs_of_one_session() -> None:
    x = af.placeholder("float32", [None, 64])
    y = af.reduce_sum(af.matmul(x, af.ones([64, 64])))
    async with af.Session() as session:

        async def call(i: int) -> float:
            return float(await session.run(y, {x: np.full((1 + i % 7, 64), i, np.float32)}))

        results = await asyncio.gather(*(call(i) for i in range(200)))
    assert results == [i * (1 + i % 7) * 64 * 64 for i in range(200)]


@pytest.mark.parametrize("kind", ["run", "callable"])
async def test_short_steps_in_a_tight_loop_yield_to_other_tasks(kind: str) -> None:
    x = af.placeholder("float32", [])
    y = x + 1.0
    async with af.Session() as session:
        ready = session.make_callable(y, [x])
        turns, done = 0, False

        async def other() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tg:
            tg.create_task(other())
            for _ in range(5000):
                await (session.run(y, {x: 1.0}) if kind == "run" else ready(1.0))
            done = True
    assert turns > 5


async def test_new_signature_is_compiled_once_for_concurrent_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    x = af.placeholder("float32", [])
    y: Any = x
    for _ in range(400):  # large enough to be compiled in a thread
        y = y + 1.0
    async with af.Session() as session:
        compiled: list[int] = []
        register = session.worker.register_now

        def counted(*arguments: Any) -> int:
            compiled.append(1)
            return register(*arguments)

        monkeypatch.setattr(session.worker, "register_now", counted)
        assert await asyncio.gather(*(session.run(y, {x: 1.0}) for _ in range(10))) == [401] * 10
        assert len(compiled) == 1


async def test_graph_may_grow_between_runs() -> None:
    x = af.placeholder("float32", [])
    async with af.Session() as session:
        assert await session.run(x + 1.0, {x: 1}) == 2
        z = (x + 1.0) * 3.0
        assert await session.run(z, {x: 1}) == 6


async def test_added_control_input_takes_effect() -> None:
    count = af.Variable(0, name="count")
    bump = count.assign_add(1)
    y = af.constant(1.0) + 1.0
    async with af.Session() as session:
        await session.run(count.initializer)
        await session.run(y)
        y.op.add_control_input(bump.op)
        await session.run(y)
        assert await session.run(count) == 1


async def test_growing_the_graph_in_a_loop_warns_and_names_the_line() -> None:
    x = af.placeholder("float32", [])
    async with af.Session() as session:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(120):
                await session.run(x + 1.0, {x: 1})
    texts = [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)]
    assert len(texts) == 1
    assert __file__ in texts[0]


async def test_plan_cache_is_bounded() -> None:
    x = af.placeholder("float32", [])
    tensors = [x + float(i) for i in range(20)]
    async with af.Session(config=af.SessionConfig(plan_cache_size=4)) as session:
        for _ in range(2):
            for i, tensor in enumerate(tensors):
                assert await session.run(tensor, {x: 1}) == 1 + i
        assert (await session.worker.state()).registered <= 4


async def test_recompiled_step_deregisters_its_previous_plan() -> None:
    v = af.Variable(1.0)
    use = v + 1.0
    async with af.Session() as session:
        await session.run(v.initializer)
        await session.run(use)
        before = (await session.worker.state()).registered
        for _ in range(3):
            use.op.add_control_input(af.no_op())
            assert await session.run(use) == 2.0
        assert (await session.worker.state()).registered == before


async def test_full_trace_has_the_time_of_every_node() -> None:
    x = af.placeholder("float32", [None], name="x")
    y = af.tanh(af.add(x, 1.0, name="sum"), name="curve")
    metadata = af.RunMetadata()
    async with af.Session(config=af.SessionConfig(optimizations=False)) as session:  # fusion would join the two nodes
        data = np.ones(100_000, np.float32)
        await session.run(y, {x: data}, options=af.RunOptions(trace_level=af.TraceLevel.FULL), run_metadata=metadata)
    (device,) = metadata.step_stats
    by_name = {n.node: n for n in device.nodes}
    assert {"sum", "curve"} <= set(by_name)
    assert by_name["curve"].op == "Tanh"
    assert by_name["curve"].output_bytes == data.nbytes
    assert all(n.duration > 0 for n in device.nodes)
    assert by_name["curve"].start >= by_name["sum"].start + by_name["sum"].duration


async def test_reused_run_metadata_has_only_the_last_run() -> None:
    x = af.placeholder("float32", [])
    nodes = [af.square(x, name="first"), af.square(x, name="second")]
    full, metadata, found = af.RunOptions(trace_level=af.TraceLevel.FULL), af.RunMetadata(), []
    async with af.Session() as session:
        for node in nodes:
            await session.run(node, {x: 2.0}, options=full, run_metadata=metadata)
            found.append([each.node for device in metadata.step_stats for each in device.nodes if each.op == "Square"])
        await session.run(nodes[0], {x: 2.0}, run_metadata=metadata)
    assert (found, metadata.step_stats) == ([["first"], ["second"]], [])


async def test_session_on_the_worker_of_another_shares_its_variables() -> None:
    weight = af.Variable(1.0, name="weight")
    async with af.Session() as first:
        await first.run(weight.initializer)
        await first.run(weight.assign(9.0))
        second = af.Session(first.worker)
        assert await second.run(weight) == 9
        await second.close()
        async with af.Session() as separate:
            with pytest.raises(af.errors.FailedPreconditionError):
                await separate.run(weight)


@pytest.mark.parametrize(("asked", "expected"), [(None, 5e-3), (1e-3, 1e-3), (1.0, 5e-3)])
async def test_switch_interval_is_lowered_and_never_raised(asked: float | None, expected: float) -> None:
    af.restore_switch_interval()  # another test's session may have lowered it
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-3)
    try:
        async with af.Session(config=af.SessionConfig(switch_interval=asked)):
            assert sys.getswitchinterval() == pytest.approx(expected)
    finally:
        sys.setswitchinterval(before)


async def test_placement_can_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    y = af.add(af.placeholder("float32", [], name="x"), 1.0, name="y")
    async with af.Session(config=af.SessionConfig(log_device_placement=True)) as session:
        with caplog.at_level("INFO", logger="aioflow.placement"):
            await session.run(y, {"x:0": 1.0})
        assert f"y: (AddV2): {session.list_devices()[0]}" in caplog.messages


async def test_reset_clears_containers() -> None:
    with af.container("kept"):
        kept = af.Variable(1.0, name="kept")
    dropped = af.Variable(2.0, name="dropped")
    async with af.Session() as session:
        await session.run([kept.initializer, dropped.initializer])
        await af.Session.reset(session.worker, [""])
        assert await session.run(kept) == 1
        with pytest.raises(af.errors.FailedPreconditionError, match="dropped"):
            await session.run(dropped)
        await session.clear(["other"])
        assert await session.run(kept) == 1
        await af.Session.reset(session.worker, [])
        with pytest.raises(af.errors.FailedPreconditionError, match="kept"):
            await session.run(kept)
    with pytest.raises(af.errors.UnimplementedError, match="share no resources"):
        await af.Session.reset("")


@pytest.mark.soak
async def test_memory_does_not_grow_over_100_000_runs() -> None:
    psutil = pytest.importorskip("psutil")
    x = af.placeholder("float32", [None, 8])
    weight = af.Variable(np.ones((8, 8), np.float32), name="weight")
    y = af.matmul(x, weight)
    step = weight.assign_sub(af.matmul(x, y, transpose_a=True) * 1e-9)
    async with af.Session() as session:
        await session.run(weight.initializer)
        data = np.ones((4, 8), np.float32)

        async def runs(count: int) -> int:
            for _ in range(count):
                await session.run([y, step], {x: data})
            return int(psutil.Process().memory_info().rss)

        settled = await runs(10_000)
        assert await runs(100_000) - settled < 4 * 2**20


async def test_closed_session_deregisters_its_plans_from_a_shared_worker() -> None:
    worker = Worker()
    x = af.placeholder("float32", [])
    result = x
    for _ in range(200):  # enough nodes to be compiled in a thread
        result = af.tanh(result)
    async with af.Session(worker) as session:
        await session.run(result, {x: 1.0})
        assert worker.registered == 1
    assert worker.registered == 0
    session = af.Session(worker)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        refused = group.create_task(_refused(session.run(result, {x: 1.0})))
        await asyncio.sleep(0)
        await session.close()  # the plan is still being compiled
        await refused
    assert worker.registered == 0


async def _refused(step: Any) -> None:
    with pytest.raises(af.errors.ClosedSessionError):
        await step

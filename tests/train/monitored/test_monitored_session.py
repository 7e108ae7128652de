"""The public interface of monitored sessions: blocks, hooks with coroutines, step functions, chief and workers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import (
    AbortedError,
    AlreadyExistsError,
    DeadlineExceededError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from aioflow.runtime.worker import Worker
from tests.train.monitored.lost_peers import Log


def counter() -> tuple[Any, Any]:
    step = af.train.get_or_create_global_step()
    return step, step.assign_add(1, read_value=False)


async def test_training_stops_and_resumes_in_the_next_program(tmp_path: Path) -> None:
    seen = []
    for last, reached in ((3, 3), (5, 5), (5, 6)):
        with af.Graph().as_default():
            _, update = counter()
            async with af.train.MonitoredTrainingSession(
                checkpoint_dir=tmp_path, hooks=[af.train.StopAtStepHook(last_step=last)], save_checkpoint_secs=600
            ) as session:
                while not session.should_stop():
                    await session.run(update)
                    seen.append(last)
            assert int(af.train.load_variable(tmp_path, "global_step")) == reached
    # The third program starts at the last step, and runs one more step to notice that.
    assert seen == [3, 3, 3, 5, 5, 5]


async def test_queue_runners_are_not_started_twice() -> None:
    queue = af.FIFOQueue(4, ["float32"], [()])
    af.train.add_queue_runner(af.train.QueueRunner(queue, [queue.enqueue(3.0)]))
    element = queue.dequeue()
    async with af.train.MonitoredTrainingSession() as session:
        async with af.train.Coordinator() as coord:
            assert af.train.start_queue_runners(session, coord) == []
            assert await session.run(element) == 3.0
            coord.request_stop()
        # The session's queue runners continue.
        assert [float(await session.run(element)) for _ in range(10)] == [3.0] * 10


async def test_hooks_may_be_coroutines() -> None:
    _, update = counter()
    log = []

    class Hook(af.train.SessionRunHook):
        async def begin(self) -> None:
            await asyncio.sleep(0)
            log.append("begin")

        async def after_create_session(self, session: Any, coord: Any) -> None:
            log.append(f"step {await session.run(step)}")

        async def before_run(self, run_context: Any) -> Any:
            await asyncio.sleep(0)
            return af.train.SessionRunArgs(step)

        async def after_run(self, run_context: Any, run_values: Any) -> None:
            log.append(f"now {await run_context.session.run(step)}")
            run_context.request_stop()

        async def end(self, session: Any) -> None:
            log.append(f"end {await session.run(step)}")

    step = af.train.get_global_step()
    async with af.train.MonitoredSession(hooks=[Hook()]) as session:
        assert not session.should_stop()
        await session.run(update)
        assert session.should_stop()
        with pytest.raises(FailedPreconditionError, match="stop"):
            await session.run(update)
    assert log == ["begin", "step 0", "now 1", "end 1"]


async def test_hooks_may_be_plain_functions_that_run_steps() -> None:
    _, update = counter()
    step = af.train.get_global_step()
    log = []

    class Hook(af.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            log.append(f"step {session.run_sync(step)}")

        def before_run(self, run_context: Any) -> Any:
            log.append(f"before {run_context.session.run_sync(step)}")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            log.append(f"now {run_context.session.run_sync(step)}")

        def end(self, session: Any) -> None:
            log.append(f"end {session.run_sync(step)}")

    async with af.train.MonitoredSession(hooks=[Hook()]) as session:
        await session.run(update)
    assert log == ["step 0", "before 0", "now 1", "end 1"]


async def test_a_hook_that_starts_a_task() -> None:
    _, update = counter()
    ended = []

    class Beside(af.train.SessionRunHook):
        async def _work(self, coord: af.train.Coordinator) -> None:
            await coord.wait_for_stop()
            ended.append(True)

        def after_create_session(self, session: Any, coord: Any) -> None:
            coord.start(self._work(coord))

    async with af.train.MonitoredSession(hooks=[Beside()]) as session:
        await session.run(update)
    assert ended == [True]


async def test_hooks_end_only_after_a_clean_end_of_training() -> None:
    _, update = counter()
    log = Log()

    async def train(error: BaseException | None) -> None:
        async with af.train.MonitoredSession(hooks=[log]) as session:
            await session.run(update)
            if error is not None:
                raise error

    for error in (KeyError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            await train(error)
        assert "end" not in log.calls
    for clean in (None, af.errors.OutOfRangeError("no more"), StopAsyncIteration()):
        log.calls.clear()
        await train(clean)
        assert log.calls[-1] == "end"


async def test_failing_begin_of_a_hook_leaves_no_tasks(graph: af.Graph) -> None:
    class Bad(af.train.SessionRunHook):
        def begin(self) -> None:
            raise KeyError("begin")

    before = asyncio.all_tasks()
    for hook in (Bad(), af.train.StopAtStepHook(last_step=3)):  # StopAtStepHook fails because there is no global step
        with pytest.raises((KeyError, FailedPreconditionError)):
            async with af.train.MonitoredSession(hooks=[hook]):
                pytest.fail("the block is not entered")
    assert asyncio.all_tasks() == before
    assert not graph.finalized


async def test_session_is_used_once_and_inside_its_block() -> None:
    _, update = counter()
    session = af.train.MonitoredSession()
    with pytest.raises(FailedPreconditionError, match="not open"):
        await session.run(update)
    async with session:
        await session.run(update)
        await session.close()
        assert session.should_stop()
        with pytest.raises(FailedPreconditionError, match="not open"):
            await session.run(update)
    with pytest.raises(FailedPreconditionError, match="only once"):
        async with session:
            pass


async def test_before_run_must_return_session_run_args() -> None:
    _, update = counter()

    class Wrong(af.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            return [update]

    async with af.train.MonitoredSession(hooks=[Wrong()]) as session:
        with pytest.raises(DTypeError, match="Wrong"):
            await session.run(update)


async def test_options_of_hooks_and_callers_are_merged() -> None:
    step, update = counter()
    found = []

    class Wants(af.train.SessionRunHook):
        def __init__(self, options: af.RunOptions | None) -> None:
            self.options = options

        def before_run(self, run_context: Any) -> Any:
            return af.train.SessionRunArgs(None, options=self.options)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            found.append((run_values.options, bool(run_values.run_metadata.step_stats), run_values.results))

    hooks = [Wants(af.RunOptions(af.TraceLevel.FULL)), Wants(af.RunOptions(timeout=20.0)), Wants(None)]
    async with af.train.MonitoredSession(hooks=hooks) as session:
        metadata = af.RunMetadata()
        await session.run(update, options=af.RunOptions(timeout=30.0), run_metadata=metadata)
        assert metadata.step_stats
    assert found == [(af.RunOptions(af.TraceLevel.FULL, 30.0), True, None)] * 3
    never = af.FIFOQueue(1, ["float32"], [()]).dequeue()
    hooks = [Wants(af.RunOptions(timeout=0.001))]
    async with af.train.MonitoredSession(hooks=hooks) as session:
        with pytest.raises(DeadlineExceededError):
            await session.run(never)
    async with af.train.MonitoredSession() as session:
        with pytest.raises(DeadlineExceededError):
            await session.run(never, timeout=0.001)
    assert step is not None


async def test_a_step_function() -> None:
    step, update = counter()
    log = Log()

    async def step_fn(step_context: Any) -> int:
        before = int(await step_context.session.run(step))
        if before == 2:
            step_context.request_stop()
        await step_context.run_with_hooks(update)
        return before

    def stops(step_context: Any) -> None:
        raise StopIteration

    seen = []
    async with af.train.MonitoredSession(hooks=[log]) as session:
        while not session.should_stop():
            seen.append(await session.run_step_fn(step_fn))
    assert seen == [0, 1]
    assert log.calls.count("after_run") == 2
    assert log.calls[-1] == "end"
    async with af.train.SingularMonitoredSession() as singular:
        with pytest.raises(StopAsyncIteration):
            await singular.run_step_fn(stops)
        with pytest.raises(InvalidArgumentError):
            await singular.run_step_fn(lambda: None)
        assert int(await singular.raw_session().run(step)) == 0
    assert singular.raw_session() is None


async def test_step_function_is_repeated_with_a_new_session() -> None:
    step, update = counter()
    sessions = []

    async def step_fn(step_context: Any) -> int:
        sessions.append(step_context.session)
        if len(sessions) == 1:
            raise AbortedError("the peer is gone")
        await step_context.run_with_hooks(update)
        return int(await step_context.session.run(step))

    async with af.train.MonitoredSession() as session:
        assert await session.run_step_fn(step_fn) == 1
    assert sessions[0] is not sessions[1]
    assert sessions[0].closed


# ── chief and workers ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_worker_waits_for_the_chief_and_trains_with_it() -> None:
    shared = Worker(af.SessionConfig())
    step, update = counter()
    order = []

    async def part(is_chief: bool, begin: asyncio.Event) -> None:
        await begin.wait()
        hooks = [af.train.StopAtStepHook(last_step=20)]
        async with af.train.MonitoredTrainingSession(shared, is_chief, hooks=hooks) as session:
            order.append(is_chief)
            while not session.should_stop():
                await session.run(update)
                await asyncio.sleep(0)

    chief_begins, worker_begins = asyncio.Event(), asyncio.Event()
    worker_begins.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(part(False, worker_begins))
        group.create_task(part(True, chief_begins))
        for _ in range(20):
            await asyncio.sleep(0)
        assert order == []
        chief_begins.set()
    assert sorted(order) == [False, True]
    async with af.Session(shared) as session:
        assert 20 <= int(await session.run(step)) <= 21


async def test_chief_only_hooks_run_on_the_chief_only() -> None:
    shared = Worker(af.SessionConfig())
    _, update = counter()
    for is_chief in (True, False):
        log = Log()
        async with af.train.MonitoredTrainingSession(shared, is_chief, chief_only_hooks=[log]) as session:
            await session.run(update)
        assert bool(log.calls) == is_chief


async def test_worker_wait_for_the_chief_times_out() -> None:
    counter()
    with pytest.raises(DeadlineExceededError, match="global_step"):
        async with af.train.MonitoredTrainingSession(is_chief=False, max_wait_secs=0.01):
            pytest.fail("nobody gives the variables values")


async def test_concurrent_runs_call_hooks_once_each() -> None:
    step, update = counter()
    log = Log()
    async with af.train.MonitoredSession(hooks=[log, af.train.StopAtStepHook(last_step=8)]) as session:
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(session.run(update))
        assert session.should_stop()
    assert log.calls.count("before_run") == log.calls.count("after_run") == 8
    assert step is not None


async def test_a_cancelled_run_leaves_the_session_usable() -> None:
    step, update = counter()
    never = af.FIFOQueue(1, ["float32"], [()]).dequeue()
    async with af.train.MonitoredSession() as session, asyncio.TaskGroup() as group:
        task = group.create_task(session.run(never))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await session.run(update)
        assert await session.run(step) == 1


async def test_hooks_must_be_a_list_of_instances() -> None:
    counter()
    with pytest.raises(DTypeError, match="hooks has a class in it") as caught:
        af.train.MonitoredTrainingSession(hooks=[af.train.StopAtStepHook])  # type: ignore[list-item]
    assert "a hook: StopAtStepHook(…)" in str(caught.value)
    with pytest.raises(DTypeError, match="chief_only_hooks is one hook"):
        af.train.MonitoredTrainingSession(chief_only_hooks=af.train.StopAtStepHook(3))  # type: ignore[arg-type]


async def test_plain_with_suggests_async_with() -> None:
    with (
        pytest.raises(TypeError, match="use `async with`, not `with`"),
        af.train.MonitoredTrainingSession(),
    ):
        pass


async def test_server_with_an_occupied_port_fails_before_training() -> None:
    """It must not connect to the other listener of the port, such as the same task, started twice."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = af.train.Server({"worker": [f"127.0.0.1:{other.getsockname()[1]}"]}, "worker", 0)
        _, update = counter()
        with pytest.raises(AlreadyExistsError, match="cannot listen"):
            async with af.train.MonitoredTrainingSession(server.target) as session:
                await session.run(update)
        await server.stop()


async def test_hook_awaiting_a_cancelled_future_fails_once() -> None:
    step = af.train.get_or_create_global_step()
    made = []

    class Waits(af.train.SessionRunHook):
        async def after_create_session(self, session: Any, coord: Any) -> None:
            made.append(session)
            waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waits.cancel()
            await waits

    async def train() -> None:
        async with af.train.MonitoredTrainingSession(hooks=[Waits()]) as session:
            await session.run(step)

    async with asyncio.timeout(60):
        with pytest.raises(af.errors.CancelledError, match="awaitable of a hook"):
            await train()
    assert len(made) == 1

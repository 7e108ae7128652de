"""Monitored training against TensorFlow's: order of hook calls, saved checkpoints, summaries and retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a temporary folder: TensorFlow's hooks without a folder write summaries to the current one."""
    monkeypatch.chdir(tmp_path)


class Both:
    """One of the two systems, with helpers for the differences in its use."""

    def __init__(self, module: Any) -> None:
        self.m = module
        self.train = module.train
        self.ours = module is aioflow

    async def waits(self, made: Any) -> Any:
        return await made if isawaitable(made) else made

    def error(self, name: str) -> Exception:
        kind = getattr(self.m.errors, name)
        error: Exception = kind("lost") if self.ours else kind(None, None, "lost")
        return error

    async def train_in(self, session: Any, body: Callable[[Any], Any]) -> None:
        """Run `body` in the block of a session."""
        if self.ours:
            async with session() as entered:
                await body(entered)
        else:
            with session() as entered:
                await body(entered)


def model(b: Both) -> tuple[Any, Any]:
    """Return the global step and the operation that increments it."""
    step = b.train.get_or_create_global_step()
    return step, step.assign_add(1, read_value=False)


def both(tf: Any, scenario: Callable[[Both], Any]) -> None:
    """Check that the scenario returns the same in both systems."""
    results = []
    for module in (tf, aioflow):
        with module.Graph().as_default():
            results.append(asyncio.run(scenario(Both(module))))
    assert results[1] == results[0]
    assert results[0]


def logger(b: Both, log: list[Any]) -> Any:
    """Return a class of hooks that log every call."""

    class Log(b.train.SessionRunHook):  # type: ignore[misc, name-defined]
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self) -> None:
            log.append((self.name, "begin"))

        def after_create_session(self, session: Any, coord: Any) -> None:
            log.append((self.name, "after_create_session", coord.should_stop()))

        def before_run(self, run_context: Any) -> None:
            log.append((self.name, "before_run", run_context.original_args.feed_dict, run_context.stop_requested))

        def after_run(self, run_context: Any, run_values: Any) -> None:
            log.append((self.name, "after_run", run_values.results))

        def end(self, session: Any) -> None:
            log.append((self.name, "end"))

    return Log


def test_hooks_are_called_in_the_same_order(tf: Any) -> None:
    async def scenario(b: Both) -> list[Any]:
        log: list[Any] = []
        hook = logger(b, log)
        _, update = model(b)

        async def body(session: Any) -> None:
            for _ in range(2):
                await b.waits(session.run(update))

        await b.train_in(lambda: b.train.MonitoredSession(hooks=[hook("a"), hook("b")]), body)
        return log

    both(tf, scenario)


@pytest.mark.parametrize("how", [{"last_step": 5}, {"num_steps": 3}, {"last_step": 1}, {"num_steps": 1}])
@pytest.mark.parametrize("first", [0, 4, 9])
def test_stop_at_step(tf: Any, how: dict[str, int], first: int) -> None:
    async def scenario(b: Both) -> list[int]:
        step, update = model(b)
        begin = step.assign(first)
        scaffold = b.train.Scaffold(init_op=begin.op if not b.ours else begin)
        seen: list[int] = []

        async def body(session: Any) -> None:
            while not session.should_stop():
                await b.waits(session.run(update))
                seen.append(len(seen))

        hooks = [b.train.StopAtStepHook(**how)]
        await b.train_in(lambda: b.train.SingularMonitoredSession(hooks, scaffold), body)
        return seen

    both(tf, scenario)


@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize("jump", [1, 2, 5])
def test_checkpoint_hook_saves_the_same_checkpoints(tf: Any, tmp_path: Path, every: int, jump: int) -> None:
    async def scenario(b: Both) -> list[Any]:
        log: list[Any] = []
        folder = tmp_path / b.m.__name__

        class Listener(b.train.CheckpointSaverListener):  # type: ignore[misc, name-defined]
            def begin(self) -> None:
                log.append("begin")

            def before_save(self, session: Any, global_step_value: int) -> None:
                log.append(("before", int(global_step_value)))

            def after_save(self, session: Any, global_step_value: int) -> bool:
                newest = b.train.latest_checkpoint(str(folder))
                log.append(("after", int(global_step_value), Path(newest).name))
                return bool(global_step_value > 30)

            def end(self, session: Any, global_step_value: int) -> None:
                log.append(("end", int(global_step_value)))

        for _ in range(2):  # the second run starts from the checkpoint of the first
            with b.m.Graph().as_default():
                step = b.train.get_or_create_global_step()
                update = step.assign_add(jump, read_value=False)
                scaffold = b.train.Scaffold()
                hook = b.train.CheckpointSaverHook(
                    str(folder), save_steps=every, scaffold=scaffold, listeners=[Listener()]
                )
                creator = b.train.ChiefSessionCreator(scaffold, checkpoint_dir=str(folder))

                async def body(session: Any, update: Any = update) -> None:
                    for _ in range(10):
                        if not session.should_stop():
                            await b.waits(session.run(update))

                await b.train_in(lambda c=creator, h=hook: b.train.MonitoredSession(c, [h]), body)
                state = b.train.get_checkpoint_state(str(folder))
                log.append([Path(path).name for path in state.all_model_checkpoint_paths])
        return log

    both(tf, scenario)


def losing(b: Both, log: list[Any], kind: str, where: str, when: int) -> Any:
    """Return a hook that raises an error of kind `kind` once, in its method `where`.

    It raises after `when` calls of the method, but in the first call of `after_create_session`.
    """

    class Loses(b.train.SessionRunHook):  # type: ignore[misc, name-defined]
        left = when if where != "after_create_session" else 0

        def _count(self, call: str) -> None:
            if call == where:
                self.left -= 1
                if self.left == -1:
                    log.append("lost")
                    raise b.error(kind)

        def before_run(self, run_context: Any) -> None:
            self._count("before_run")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._count("after_run")

        def after_create_session(self, session: Any, coord: Any) -> None:
            self._count("after_create_session")

    return Loses()


@pytest.mark.parametrize("kind", ["AbortedError", "UnavailableError"])
@pytest.mark.parametrize("where", ["before_run", "after_run", "after_create_session"])
@pytest.mark.parametrize("when", [0, 2, 3])
def test_sessions_retry_after_lost_peers(tf: Any, tmp_path: Path, kind: str, where: str, when: int) -> None:
    async def scenario(b: Both) -> list[Any]:
        log: list[Any] = []
        folder = tmp_path / b.m.__name__
        _, update = model(b)
        log_hook = logger(b, log)("log")

        async def body(session: Any) -> None:
            while not session.should_stop():
                await b.waits(session.run(update))

        def session() -> Any:
            hooks = [log_hook, losing(b, log, kind, where, when), b.train.StopAtStepHook(last_step=5)]
            return b.train.MonitoredTrainingSession(
                checkpoint_dir=str(folder), hooks=hooks, save_checkpoint_steps=2, log_step_count_steps=None
            )

        await b.train_in(session, body)
        log.append(Path(b.train.latest_checkpoint(str(folder))).name)
        return log

    both(tf, scenario)


@pytest.mark.parametrize("kind", ["AbortedError", "OutOfRangeError", "InvalidArgumentError", "KeyError"])
@pytest.mark.parametrize("singular", [False, True])
def test_errors_raised_in_the_session_block(tf: Any, kind: str, singular: bool) -> None:
    async def scenario(b: Both) -> list[Any]:
        log: list[Any] = []
        _, update = model(b)
        error = KeyError() if kind == "KeyError" else b.error(kind)

        async def body(session: Any) -> None:
            await b.waits(session.run(update))
            raise error

        def session() -> Any:
            make = b.train.SingularMonitoredSession if singular else b.train.MonitoredSession
            return make(hooks=[logger(b, log)("a")])

        try:
            await b.train_in(session, body)
        except Exception as raised:
            log.append(type(raised).__name__)
        return log

    both(tf, scenario)


def test_feeds_and_fetches_of_hooks(tf: Any) -> None:
    async def scenario(b: Both) -> list[Any]:
        log: list[Any] = []
        x, y = b.m.placeholder("float32", []), b.m.placeholder("float32", [])
        total = x + 10 * y

        class Adds(b.train.SessionRunHook):  # type: ignore[misc, name-defined]
            def before_run(self, run_context: Any) -> Any:
                return b.train.SessionRunArgs({"x": x, "both": [x, y]}, {x: 1.0})

            def after_run(self, run_context: Any, run_values: Any) -> None:
                log.append(run_values.results)

        async def body(session: Any) -> None:
            log.append(float(await b.waits(session.run(total, {y: 2.0}))))
            for feeds in ({x: 3.0}, {x: 3.0, y: 1.0}):
                try:
                    await b.waits(session.run(total, feeds))
                except Exception as raised:
                    log.append(isinstance(raised, RuntimeError))

        await b.train_in(lambda: b.train.MonitoredSession(hooks=[Adds()]), body)
        feed = b.train.FeedFnHook(lambda: {x: 5.0})

        async def fed(session: Any) -> None:
            log.append(float(await b.waits(session.run(x))))

        with b.m.Graph().as_default():
            x = b.m.placeholder("float32", [])
            final = b.train.FinalOpsHook({"seven": b.m.constant(7.0)})
            await b.train_in(lambda: b.train.MonitoredSession(hooks=[feed, final]), fed)
        log.append(float(final.final_ops_values["seven"]))
        return log

    both(tf, scenario)


@pytest.mark.parametrize("fail", [True, False])
def test_nan_tensor_hook(tf: Any, fail: bool) -> None:
    async def scenario(b: Both) -> list[Any]:
        log: list[Any] = []
        loss = b.m.placeholder("float32", [])

        async def body(session: Any) -> None:
            for value in (1.0, np.inf, np.nan, 2.0):
                log.append((str(value), session.should_stop()))
                if session.should_stop():
                    return
                await b.waits(session.run(loss, {loss: value}))

        try:
            await b.train_in(lambda: b.train.MonitoredSession(hooks=[b.train.NanTensorHook(loss, fail)]), body)
        except b.train.NanLossDuringTrainingError as error:
            log.append((str(error).splitlines()[0], isinstance(error, RuntimeError)))
        return log

    both(tf, scenario)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("at_end", [True, False])
def test_logging_hook_logs_at_the_same_steps(tf: Any, every: int, at_end: bool) -> None:
    async def scenario(b: Both) -> list[str]:
        lines: list[str] = []
        _, update = model(b)
        values = b.m.constant([1.5, 2.5], name="values")
        after = b.m.identity(values, name="after")
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        log = logging.getLogger("aioflow.train" if b.ours else "tensorflow")
        level = log.level

        async def body(session: Any) -> None:
            for _ in range(7):
                await b.waits(session.run(update))

        def texts(found: Any) -> str:
            return f"seen {sorted(found)} {found['v'].tolist()}"

        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            hooks = [
                b.train.LoggingTensorHook({"v": after, "w": "values:0"}, every_n_iter=every, at_end=at_end),
                b.train.LoggingTensorHook({"v": after}, every_n_iter=every, at_end=at_end, formatter=texts),
                b.train.LoggingTensorHook(["after"], at_end=True),
            ]
            await b.train_in(lambda: b.train.SingularMonitoredSession(hooks), body)
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
        return [line.split(" (")[0] for line in lines if "1.5" in line]

    both(tf, scenario)


def test_profiler_hook_traces_the_same_steps(tf: Any, tmp_path: Path) -> None:
    async def scenario(b: Both) -> list[str]:
        folder = tmp_path / b.m.__name__
        folder.mkdir()
        _, update = model(b)

        async def body(session: Any) -> None:
            for _ in range(9):
                await b.waits(session.run(update))

        hook = b.train.ProfilerHook(save_steps=3, output_dir=str(folder))
        await b.train_in(lambda: b.train.SingularMonitoredSession([hook]), body)
        return sorted(path.name for path in folder.glob("timeline-*.json"))

    both(tf, scenario)


def test_run_step_fn(tf: Any) -> None:
    async def scenario(b: Both) -> list[Any]:
        log: list[Any] = []
        _, update = model(b)

        async def body(session: Any) -> None:
            def step_fn(step_context: Any) -> Any:
                return step_context.run_with_hooks(update)

            def stops(step_context: Any) -> Any:
                step_context.request_stop()

            log.append(await b.waits(session.run_step_fn(step_fn)))
            for wrong in (lambda: None, lambda context: None):
                try:
                    await b.waits(session.run_step_fn(wrong))
                except ValueError:
                    log.append("ValueError")
            try:
                await b.waits(session.run_step_fn(stops))
            except (StopIteration, StopAsyncIteration):
                log.append("stop")

        await b.train_in(lambda: b.train.MonitoredSession(hooks=[logger(b, log)("a")]), body)
        return log

    both(tf, scenario)


@pytest.mark.parametrize(
    "given",
    [
        ("StopAtStepHook", {}),
        ("StopAtStepHook", {"num_steps": 1, "last_step": 2}),
        ("LoggingTensorHook", {"tensors": []}),
        ("LoggingTensorHook", {"tensors": [], "every_n_iter": 1, "every_n_secs": 1}),
        ("LoggingTensorHook", {"tensors": [], "every_n_iter": 0}),
        ("LoggingTensorHook", {"tensors": [], "every_n_iter": 1, "every_n_secs": 1, "at_end": True}),
        ("StepCounterHook", {"every_n_secs": 5}),
        ("StepCounterHook", {"every_n_steps": None}),
        ("SecondOrStepTimer", {}),
        ("SecondOrStepTimer", {"every_secs": 1, "every_steps": 1}),
        ("CheckpointSaverHook", {"checkpoint_dir": "x"}),
        ("CheckpointSaverHook", {"checkpoint_dir": "x", "save_steps": 1, "saver": 1, "scaffold": 1}),
        ("ProfilerHook", {}),
        ("SessionManager", {"ready_for_local_init_op": 1}),
    ],
)
def test_wrong_arguments_raise_value_error(tf: Any, given: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    name, arguments = given
    for module in (tf, aioflow):
        with pytest.raises(ValueError):
            getattr(module.train, name)(**arguments)


# ── summaries ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_by_hooks(b: Both) -> list[Any]:
    """Return the read of the step that TensorFlow's hooks fetch.

    Without a control dependency it may run before or after the update.
    """
    if b.ours:
        return []
    from tensorflow.python.training import training_util

    return [training_util._get_or_create_global_step_read()]


def written(tf: Any, folder: Path) -> list[Any]:
    """Return the contents of the event files, without times, speeds and graphs."""
    found: list[Any] = []
    for file in sorted(folder.glob("*tfevents*")):
        for event in tf.train.summary_iterator(str(file)):
            kind = event.WhichOneof("what")
            if kind == "session_log" and event.session_log.status != tf.SessionLog.CHECKPOINT:
                found.append((event.step, event.session_log.status))
            values = event.summary.value if kind == "summary" else ()
            found += [(event.step, v.tag, 0 if v.tag.endswith("/sec") else v.simple_value) for v in values]
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"save_summaries_steps": 1},
        {"save_summaries_steps": 3, "log_step_count_steps": 2},
        {"log_step_count_steps": 0},
        {"save_summaries_steps": None},
        {"save_summaries_steps": 4, "save_checkpoint_steps": 2},
    ],
)
def test_training_writes_the_same_summaries(tf: Any, tmp_path: Path, given: dict[str, Any]) -> None:
    async def scenario(b: Both) -> Any:
        folder = tmp_path / ("ours" if b.ours else "theirs")
        step = b.train.get_or_create_global_step()
        tenfold = b.m.summary.scalar("tenfold", 10 * step)
        with b.m.control_dependencies([tenfold, *read_by_hooks(b)]):
            train = step.assign_add(1, read_value=False)

        async def body(session: Any) -> None:
            for _ in range(9):
                await b.waits(session.run(train))

        await b.train_in(lambda: b.train.MonitoredTrainingSession(checkpoint_dir=str(folder), **given), body)
        cache = b.m.summary.FileWriterCache
        await b.waits(cache.clear())
        return ["ended", *written(tf, folder)]

    both(tf, scenario)


@pytest.mark.parametrize("given", [{"save_steps": 2}, {"save_secs": 1000.0}])
def test_summary_hook_with_several_summaries(tf: Any, tmp_path: Path, given: dict[str, Any]) -> None:
    async def scenario(b: Both) -> Any:
        folder = tmp_path / ("ours" if b.ours else "theirs")
        step = b.train.get_or_create_global_step()
        with b.m.control_dependencies(read_by_hooks(b)):
            train = step.assign_add(1, read_value=False)
        parts = [b.m.summary.scalar(name, 2.0) for name in ("a", "b")]
        hooks = [
            b.train.SummarySaverHook(output_dir=str(folder), summary_op=parts, **given),
            b.train.StepCounterHook(every_n_steps=3, output_dir=str(folder)),
        ]

        async def body(session: Any) -> None:
            for _ in range(7):
                await b.waits(session.run(train))

        await b.train_in(lambda: b.train.MonitoredSession(hooks=hooks), body)
        await b.waits(b.m.summary.FileWriterCache.clear())
        return written(tf, folder)

    both(tf, scenario)

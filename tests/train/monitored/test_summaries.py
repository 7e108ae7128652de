"""Summaries of monitored training: tags and steps in the event files. tests/parity compares them with TensorFlow's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, InvalidArgumentError, OpError
from aioflow.testing.virtual_clock import run_virtual
from tests.observe.test_file_writer import Disk, disk, events, files  # noqa: F401 (a fixture)
from tests.train.monitored.lost_peers import FlakyCreator, NoSession, Script


def model() -> Any:
    """Return a step that counts, with a summary of ten times the count before it."""
    step = af.train.get_or_create_global_step()
    with af.control_dependencies([af.summary.scalar("tenfold", 10 * step)]):
        return step.assign_add(1, read_value=False)


def written(folder: Path) -> list[tuple[int, str, float]]:
    """Return step, tag and number of each summary in the event files, and the status where a session starts or ends."""
    found = []
    for event in events(folder):
        if event.HasField("session_log"):
            found.append((event.step, af.SessionLog.SessionStatus.Name(event.session_log.status), 0.0))
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


def steps(folder: Path, tag: str) -> list[int]:
    return [step for step, name, _ in written(folder) if name == tag]


async def test_summaries_by_steps(tmp_path: Path) -> None:
    update = model()
    async with af.train.MonitoredTrainingSession(summary_dir=tmp_path, save_summaries_steps=3) as session:
        for _ in range(8):
            await session.run(update)
    assert [step for step, tag, _ in written(tmp_path) if tag != "tenfold"] == [1]  # "START"
    assert steps(tmp_path, "tenfold") == [1, 4, 7]
    (graph,) = [event.graph_def for event in events(tmp_path) if event.graph_def]
    assert {"tenfold", "global_step"} <= {node.name for node in af.GraphDef.FromString(graph).node}


async def test_summaries_go_to_the_checkpoint_or_summary_folder(tmp_path: Path) -> None:
    update = model()
    kinds: list[dict[str, Any]] = [
        {"checkpoint_dir": tmp_path / "a"},
        {"checkpoint_dir": tmp_path / "b", "summary_dir": tmp_path / "c"},
        {},
    ]
    for given in kinds:
        async with af.train.MonitoredTrainingSession(**given) as session:
            await session.run(update)
    assert len(steps_of_events(tmp_path / "a")) == len(steps_of_events(tmp_path / "c")) == 1
    assert steps_of_events(tmp_path / "b") == []


def steps_of_events(folder: Path) -> list[Path]:
    return [file for file in files(folder) if "tfevents" in file.name]


@pytest.mark.parametrize("never", [{"save_summaries_steps": 0}, {"save_summaries_secs": None}])
async def test_no_summaries_if_disabled(tmp_path: Path, never: dict[str, Any]) -> None:
    update = model()
    async with af.train.MonitoredTrainingSession(summary_dir=tmp_path, log_step_count_steps=0, **never) as session:
        await session.run(update)
    assert files(tmp_path) == []
    with pytest.raises(InvalidArgumentError):
        af.train.MonitoredTrainingSession(summary_dir=tmp_path, save_summaries_steps=1, save_summaries_secs=1)


async def test_summary_op_of_the_hook_or_scaffold(tmp_path: Path) -> None:
    update = model()
    mine = [af.summary.scalar(name, 1.0, collections=[]) for name in ("one", "two")]
    hook = af.train.SummarySaverHook(save_steps=1, output_dir=tmp_path / "hook", summary_op=mine)
    scaffold = af.train.Scaffold(summary_op=mine[1])
    async with af.train.MonitoredTrainingSession(
        scaffold=scaffold, hooks=[hook], summary_dir=tmp_path / "scaffold"
    ) as session:
        await session.run(update)
    assert [tag for _, tag, _ in written(tmp_path / "hook")] == ["START", "one", "two"]
    assert [tag for _, tag, _ in written(tmp_path / "scaffold")] == ["START", "two"]


async def test_hooks_use_a_given_writer(tmp_path: Path) -> None:
    update = model()
    async with af.summary.FileWriter(tmp_path) as writer:
        hooks = [
            af.train.SummarySaverHook(save_steps=2, summary_writer=writer, scaffold=af.train.Scaffold(summary_op=None)),
            af.train.StepCounterHook(every_n_steps=2, summary_writer=writer),
        ]
        async with af.train.MonitoredSession(hooks=hooks) as session:
            for _ in range(5):
                await session.run(update)
    assert [tag for _, tag, _ in written(tmp_path)] == ["START", "global_step/sec", "global_step/sec"]


def test_summary_hook_requires_exactly_one_source() -> None:
    wrong: list[dict[str, Any]] = [{}, {"summary_op": af.no_op(), "scaffold": af.train.Scaffold()}]
    for given in wrong:
        with pytest.raises(InvalidArgumentError, match="which summaries"):
            af.train.SummarySaverHook(save_steps=1, **given)
    with pytest.raises(InvalidArgumentError):
        af.train.SummarySaverHook(summary_op=af.no_op())


def test_scaffold_merges_all_summaries() -> None:
    parts = [af.summary.scalar("a", 1.0), af.summary.scalar("b", 2.0)]
    merged = af.train.Scaffold().finalize().summary_op
    assert (merged.op.type, list(merged.op.inputs)) == ("MergeSummary", parts)
    assert af.get_collection(af.GraphKeys.SUMMARY_OP) == [merged]


async def test_concurrent_runs_write_one_summary(tmp_path: Path) -> None:
    update = model()
    async with (
        af.train.MonitoredTrainingSession(summary_dir=tmp_path, save_summaries_steps=10) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(8):
            group.create_task(session.run(update))
    assert len(steps(tmp_path, "tenfold")) == 1


async def test_summaries_start_again_after_a_lost_peer(tmp_path: Path) -> None:
    update = model()
    script = Script(update, before=(3,))
    scaffold = af.train.Scaffold()
    saver = af.train.CheckpointSaverHook(tmp_path / "checkpoints", save_steps=2, scaffold=scaffold)
    hook = af.train.SummarySaverHook(save_steps=100, output_dir=tmp_path, scaffold=scaffold)
    creator = FlakyCreator(script, af.train.ChiefSessionCreator(scaffold, checkpoint_dir=tmp_path / "checkpoints"))
    async with af.train.MonitoredSession(creator, [saver, hook]) as session:
        for _ in range(5):
            await session.run(update)
    (tmp_path / "checkpoints").rename(tmp_path.with_suffix(".checkpoints"))
    starts = steps(tmp_path, "START")
    assert len(starts) == 2
    assert starts[0] == 1
    assert starts == steps(tmp_path, "tenfold")


async def test_full_disk_raises_an_error_at_the_end(tmp_path: Path, disk: Disk) -> None:  # noqa: F811
    update = model()
    session = af.train.MonitoredTrainingSession(summary_dir=tmp_path)
    async with session:
        disk.full = True
        await session.run(update)
        with pytest.raises(OpError, match="No space"):
            await session.close()
    disk.full = False


def test_step_counter_uses_the_loop_clock(tmp_path: Path) -> None:
    class Ticking(NoSession):
        """A session whose step takes two seconds and increments a count."""

        step = 0

        async def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
            if not isinstance(fetches, list):
                return np.int64(self.step)
            await asyncio.sleep(2)
            before, self.step = self.step, self.step + 1
            return [None, *[np.int64(before)] * (len(fetches) - 1)]

    class Creator(af.train.SessionCreator):
        def create_session(self) -> Ticking:
            return Ticking()

    async def main() -> None:
        update = af.train.get_or_create_global_step().assign_add(1, read_value=False)
        hook = af.train.StepCounterHook(every_n_steps=5, output_dir=tmp_path)
        async with af.train.MonitoredSession(Creator(), [hook]) as session:
            for _ in range(12):
                await session.run(update)

    run_virtual(main())
    assert [(tag, speed) for _, tag, speed in written(tmp_path)] == [("global_step/sec", 0.5)] * 2


async def test_profiler_writes_traces_and_the_graph(tmp_path: Path) -> None:
    update = model()
    hook = af.train.ProfilerHook(save_steps=2, output_dir=tmp_path / "traces")
    async with af.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            await session.run(update)
    for file in (tmp_path / "traces").glob("timeline-*"):
        file.unlink()
    graph, *runs = events(tmp_path / "traces")
    assert graph.graph_def
    assert [(run.step, run.tagged_run_metadata.tag) for run in runs] == [(2, "step_2"), (4, "step_4")]


# ── older programs ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_supervisor_writes_summaries_during_training(tmp_path: Path) -> None:
    update = model()
    supervisor = af.train.Supervisor(logdir=tmp_path / "run", save_summaries_secs=1000)
    assert supervisor.summary_op.op.type == "MergeSummary"
    async with supervisor.managed_session() as session:
        await session.run(update)
        for _ in range(1000):
            if "tenfold" in [tag for _, tag, _ in steps_in(tmp_path / "run")]:
                break
            await asyncio.sleep(0.01)
        await supervisor.summary_computed(session, af.Summary(value=[{"tag": "mine", "simple_value": 7}]))
        await supervisor.summary_computed(session, af.Summary(value=[{"tag": "mine", "simple_value": 8}]), 5)
    found = steps_in(tmp_path / "run")
    assert found[0] == (0, "START", 0.0)
    assert found[-3:] == [(1, "mine", 7.0), (5, "mine", 8.0), (0, "STOP", 0.0)]
    assert "tenfold" in [tag for _, tag, _ in found]
    with pytest.raises(FailedPreconditionError, match="reopen"):
        supervisor.summary_writer.add_summary(af.Summary())
    async with supervisor.managed_session() as session:
        await session.run(update)
    assert len(steps_of_events(tmp_path / "run")) == 2


def steps_in(folder: Path) -> list[tuple[int, str, float]]:
    apart = folder.with_suffix(".events")
    apart.mkdir(exist_ok=True)
    for file in steps_of_events(folder):
        if data := file.read_bytes():  # a new file is empty until its first event
            (apart / file.name).write_bytes(data)
    return written(apart)


async def test_supervisor_without_a_folder_has_no_writer(tmp_path: Path) -> None:
    model()
    assert af.train.Supervisor().summary_writer is None
    writer = af.summary.FileWriter(tmp_path)
    assert af.train.Supervisor(summary_writer=writer).summary_writer is writer
    assert af.train.Supervisor(logdir=tmp_path, summary_writer=None).summary_writer is None
    assert af.train.Supervisor(logdir=tmp_path, is_chief=False).summary_writer is None
    assert files(tmp_path) == []

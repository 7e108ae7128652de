"""Checkpoints by steps or seconds, with listeners. tests/parity tests their names and the order of calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from aioflow.testing.virtual_clock import run_virtual
from tests.train.monitored.lost_peers import NoSession


def counter() -> Any:
    return af.train.get_or_create_global_step().assign_add(1, read_value=False)


class Saves:
    """A fake saver that records steps and times."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, float]] = []

    async def snapshot(self, session: Any, path: Any, step: int, write_meta_graph: bool) -> None:
        self.saved.append((step, asyncio.get_running_loop().time()))


def test_checkpoints_by_seconds_of_the_loop_clock(tmp_path: Path) -> None:
    async def main() -> list[tuple[int, float]]:
        af.train.get_or_create_global_step()
        saver: Any = Saves()
        hook = af.train.CheckpointSaverHook(tmp_path, save_secs=10, saver=saver, save_graph_def=False)
        await hook.begin()
        session = NoSession()
        step = 0

        async def run(fetches: Any, feed_dict: Any = None, **kwargs: Any) -> int:
            return step

        session.run = run  # type: ignore[method-assign]
        context = af.train.SessionRunContext(af.train.SessionRunArgs(None), session)
        values = af.train.SessionRunValues(0, af.RunOptions(), af.RunMetadata())
        async with af.train.Coordinator() as coord:
            await hook.after_create_session(session, coord)
            for step in range(1, 14):
                await asyncio.sleep(3)
                await hook.after_run(context, values._replace(results=step - 1))
            await hook.end(session)
        found: list[tuple[int, float]] = saver.saved
        return found

    assert run_virtual(main()) == [(0, 0), (4, 12), (8, 24), (12, 36), (13, 39)]


class Held:
    """A fake snapshot whose write waits for an event of the test."""

    def __init__(self, real: Any, go: asyncio.Event, error: Exception | None = None) -> None:
        self._real, self._go, self._error = real, go, error

    async def write(self) -> None:
        await self._go.wait()
        if self._error is not None:
            raise self._error
        await self._real.write()


def held(saver: Any, go: asyncio.Event, *errors: Exception) -> None:
    """Delay the writing of a saver's snapshots after the first until `go` is set.

    Each of them raises the next of `errors`, while there are any.
    """
    take, left = saver.snapshot, [None, *errors]

    async def snapshot(*args: Any, **options: Any) -> Any:
        taken = await take(*args, **options)
        return Held(taken, go, left.pop(0) if left else None) if not taken.prefix.endswith("-0") else taken

    saver.snapshot = snapshot


async def test_steps_continue_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    update, go = counter(), asyncio.Event()
    scaffold = af.train.Scaffold()
    hook = af.train.CheckpointSaverHook(tmp_path, save_steps=3, scaffold=scaffold)
    async with af.train.MonitoredSession(af.train.ChiefSessionCreator(scaffold), [hook]) as session:
        held(scaffold.saver, go)
        for _ in range(5):
            await session.run(update)
        assert Path(str(af.train.latest_checkpoint(tmp_path))).name == "model.ckpt-0"
        async with asyncio.TaskGroup() as group:
            sixth = group.create_task(session.run(update))  # its checkpoint waits for the previous one
            for _ in range(50):
                await asyncio.sleep(0)
            assert not sixth.done()
            go.set()
    names = [Path(path).name for path in scaffold.saver.last_checkpoints]
    assert names == ["model.ckpt-0", "model.ckpt-3", "model.ckpt-6"]


async def test_failed_checkpoint_ends_the_training(tmp_path: Path) -> None:
    update, go = counter(), asyncio.Event()
    go.set()
    scaffold = af.train.Scaffold()
    hook = af.train.CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold)

    async def train() -> None:
        async with af.train.MonitoredSession(af.train.ChiefSessionCreator(scaffold), [hook]) as session:
            held(scaffold.saver, go, PermissionDeniedError("the disk"))
            while not session.should_stop():
                await session.run(update)

    with pytest.raises(PermissionDeniedError, match="the disk"):
        await train()


async def test_listener_can_end_the_training(tmp_path: Path) -> None:
    update = counter()

    class Enough(af.train.CheckpointSaverListener):
        async def after_save(self, session: Any, global_step_value: int) -> bool:
            return global_step_value >= 6

    scaffold = af.train.Scaffold()
    hook = af.train.CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold, listeners=[Enough()])
    runs = 0
    async with af.train.MonitoredSession(af.train.ChiefSessionCreator(scaffold), [hook]) as session:
        while not session.should_stop():
            await session.run(update)
            runs += 1
    assert runs == 6


async def test_one_of_several_concurrent_runs_saves(tmp_path: Path) -> None:
    update = counter()
    saved = []

    class Notes(af.train.CheckpointSaverListener):
        def after_save(self, session: Any, global_step_value: int) -> None:
            saved.append(global_step_value)

    scaffold = af.train.Scaffold()
    hook = af.train.CheckpointSaverHook(tmp_path, save_steps=5, scaffold=scaffold, listeners=[Notes()])
    creator = af.train.ChiefSessionCreator(scaffold)
    async with af.train.MonitoredSession(creator, [hook]) as session, asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(session.run(update))
    assert len(saved) == len(set(saved))
    assert len(saved) <= 6
    assert saved[-1] == 20


async def test_checkpoint_waits_for_a_slow_older_one(tmp_path: Path) -> None:
    """A run continues while another one saves, and reaches the next checkpoint before the first is written."""
    update = counter()
    slow, go = asyncio.Event(), asyncio.Event()

    class Slow(af.train.CheckpointSaverListener):
        async def before_save(self, session: Any, global_step_value: int) -> None:
            if global_step_value == 2:
                slow.set()
                await go.wait()

    scaffold = af.train.Scaffold()
    hook = af.train.CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold, listeners=[Slow()])
    async with af.train.MonitoredSession(af.train.ChiefSessionCreator(scaffold), [hook]) as session:
        async with asyncio.TaskGroup() as group:
            await session.run(update)
            group.create_task(session.run(update))
            await slow.wait()
            await session.run(update)
            later = group.create_task(session.run(update))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not later.done()
            go.set()
        names = [Path(path).name for path in scaffold.saver.last_checkpoints]
        assert names == ["model.ckpt-0", "model.ckpt-2", "model.ckpt-4"]
        assert Path(str(af.train.latest_checkpoint(tmp_path))).name == "model.ckpt-4"


async def test_cancelled_checkpoint_is_written_at_the_end(tmp_path: Path) -> None:
    begun = asyncio.Event()

    class Go(asyncio.Event):
        async def wait(self) -> Any:
            begun.set()
            return await super().wait()

    update = counter()
    go, scaffold = Go(), af.train.Scaffold()
    listeners = [af.train.CheckpointSaverListener()]  # with listeners, the run waits for the checkpoint
    hook = af.train.CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold, listeners=listeners)
    async with af.train.MonitoredSession(af.train.ChiefSessionCreator(scaffold), [hook]) as session:
        await session.run(update)
        held(scaffold.saver, go)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(session.run(update))
            await begun.wait()
            task.cancel()
        assert task.cancelled()
        go.set()
    assert [Path(path).name for path in scaffold.saver.last_checkpoints] == ["model.ckpt-0", "model.ckpt-2"]


async def test_graph_is_written_next_to_the_checkpoint(tmp_path: Path) -> None:
    counter()
    async with af.train.MonitoredTrainingSession(checkpoint_dir=tmp_path / "with"):
        pass
    async with af.train.MonitoredTrainingSession(checkpoint_dir=tmp_path / "without", save_graph_def=False):
        pass
    assert "global_step" in {node.name for node in af.train.read_graph(tmp_path / "with/graph.pbtxt").node}
    others = [p.name for p in (tmp_path / "without").iterdir() if "model.ckpt" not in p.name]
    assert [name for name in others if "tfevents" not in name] == ["checkpoint"]


async def test_hook_uses_the_only_saver_of_the_collection(tmp_path: Path) -> None:
    update = counter()
    hook = af.train.CheckpointSaverHook(tmp_path, save_steps=1, checkpoint_basename="mine")
    # The default scaffold adds a saver to the collection.
    async with af.train.MonitoredSession(hooks=[hook]) as session:
        await session.run(update)
    assert [Path(p).name for p in af.get_collection(af.GraphKeys.SAVERS)[0].last_checkpoints] == ["mine-0", "mine-1"]
    af.add_to_collection(af.GraphKeys.SAVERS, af.train.Saver())
    scaffold = af.train.Scaffold(saver=af.train.Saver())
    hook = af.train.CheckpointSaverHook(tmp_path, save_steps=1)
    with pytest.raises(FailedPreconditionError, match="which saver"):
        async with af.train.MonitoredSession(af.train.ChiefSessionCreator(scaffold), [hook]):
            pytest.fail("there are two")


async def test_error_names_an_unwritable_folder(tmp_path: Path) -> None:
    counter()
    (tmp_path / "file").write_text("")
    with pytest.raises(af.errors.OpError, match="file"):
        async with af.train.MonitoredTrainingSession(checkpoint_dir=tmp_path / "file"):
            pytest.fail("that is a file")
    with pytest.raises(af.errors.AlreadyExistsError, match="file"):  # the end mark cannot be written either
        await af.summary.FileWriterCache.clear()
    assert issubclass(PermissionDeniedError, af.errors.OpError)


async def test_checkpoint_interval_is_in_seconds_or_steps_or_never(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        af.train.MonitoredTrainingSession(checkpoint_dir=tmp_path, save_checkpoint_secs=5, save_checkpoint_steps=5)
    for never in ({"save_checkpoint_secs": None}, {"save_checkpoint_secs": 0}, {"save_checkpoint_steps": 0}):
        with af.Graph().as_default():
            update = counter()
            async with af.train.MonitoredTrainingSession(checkpoint_dir=tmp_path, **never) as session:
                await session.run(update)
    assert af.train.latest_checkpoint(tmp_path) is None

"""Saving during training: the step of a checkpoint, the owner of the write, and the delivery of its errors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import AbortedError, FailedPreconditionError, OpError
from aioflow.formats import checkpoint as checkpoint_format
from aioflow.formats.tensor_file import write_tensors
from tests.net.clusters import cluster
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import on_each_loop
from tests.train.test_cancelled_saves import check
from tests.train.test_saver import listing

ROWS, WIDTH = 40_000, 8
SECONDS = 20


class Writing:
    """A control that holds every write until `may_go_on` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.error: Exception | None = None
        patch.setattr(checkpoint_format, "write_tensors", self._write)

    def _write(self, *args: Any, **options: Any) -> Any:
        self.begun.set()
        assert self.may_go_on.wait(SECONDS)
        if self.error is not None:
            raise self.error
        return write_tensors(*args, **options)

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, SECONDS)


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Any:
    held = Writing(monkeypatch)
    yield held
    held.may_go_on.set()


class Model:
    """Two variables that every step changes equally: one as a whole, one by rows."""

    def __init__(self) -> None:
        self.whole = af.Variable(np.zeros((ROWS, WIDTH), np.float32), name="whole")
        self.table = af.Variable(np.zeros((ROWS, WIDTH), np.float32), name="table")
        every = af.IndexedSlices(af.ones([ROWS, WIDTH]), af.range(ROWS))
        self.step = af.group(self.whole.assign_add(af.ones([ROWS, WIDTH])), self.table.scatter_add(every))
        self.saver = af.train.Saver()


@contextlib.asynccontextmanager
async def training() -> AsyncIterator[tuple[Model, Any]]:
    model = Model()
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        await session.run(model.step)
        yield model, session


def values(prefix: str | None) -> list[set[float]]:
    assert prefix is not None
    return [set(np.unique(af.train.load_variable(prefix, name)).tolist()) for name in ("whole", "table")]


async def test_snapshot_is_unaffected_by_later_steps(tmp_path: Path) -> None:
    async with training() as (model, session):
        taken = await model.saver.snapshot(session, tmp_path / "m", global_step=1)
        assert taken is not None
        for _ in range(3):
            await session.run(model.step)
        assert taken.prefix == str(tmp_path / "m-1")
        assert not af.train.checkpoint_exists(taken.prefix)
        assert await taken.write() == taken.prefix
        assert values(taken.prefix) == [{1.0}, {1.0}]
        assert af.train.latest_checkpoint(tmp_path) == taken.prefix
        with pytest.raises(AbortedError):
            await taken.write()


async def test_training_continues_during_a_write(tmp_path: Path, writing: Writing) -> None:
    async with training() as (model, session), af.train.BackgroundSaver(model.saver) as beside:
        prefix = await beside.save(session, tmp_path / "m", 1)
        await writing.has_begun()
        for _ in range(3):
            await session.run(model.step)
        assert beside.is_writing
        assert await beside.save(session, tmp_path / "m", 4, skip=True) is None
        writing.may_go_on.set()
        await beside.finish()
        assert values(prefix) == [{1.0}, {1.0}]
        second = await beside.save(session, tmp_path / "m", 4)
    assert values(second) == [{4.0}, {4.0}]
    assert model.saver.last_checkpoints == [prefix, second]


async def test_background_saver_writes_one_checkpoint_at_a_time(tmp_path: Path, writing: Writing) -> None:
    async with training() as (model, session), af.train.BackgroundSaver(model.saver) as beside:
        await beside.save(session, tmp_path / "m", 1)
        await writing.has_begun()
        async with asyncio.TaskGroup() as group:
            second = group.create_task(beside.save(session, tmp_path / "m", 2))
            await session.run(model.step)
            assert not second.done()
            writing.may_go_on.set()
        assert af.train.checkpoint_exists(str(tmp_path / "m-1"))
    assert values(second.result()) == [{2.0}, {2.0}]


async def test_error_of_a_write_is_raised_by_the_next_save(tmp_path: Path, writing: Writing) -> None:
    async with training() as (model, session), af.train.BackgroundSaver(model.saver) as beside:
        writing.error = OSError(28, "No space left on device", "somewhere")
        writing.may_go_on.set()
        await beside.save(session, tmp_path / "m", 1)
        with pytest.raises(af.errors.ResourceExhaustedError, match="somewhere"):
            await beside.save(session, tmp_path / "m", 2)
        writing.error = None
        third = await beside.save(session, tmp_path / "m", 3)
    assert model.saver.last_checkpoints == [third]


async def failing(model: Model, session: Any, folder: Path) -> None:
    """Fail inside a block while a write is in progress."""
    async with af.train.BackgroundSaver(model.saver) as beside:
        await beside.save(session, folder / "m", 1)
        raise ValueError("mine")


async def test_error_of_a_write_is_raised_at_the_end_of_the_block(tmp_path: Path, writing: Writing) -> None:
    writing.error = OSError(28, "No space left on device", "somewhere")
    writing.may_go_on.set()
    async with training() as (model, session):
        with pytest.raises(af.errors.ResourceExhaustedError):
            async with af.train.BackgroundSaver(model.saver) as beside:
                await beside.save(session, tmp_path / "m", 1)
        with pytest.raises(FailedPreconditionError):
            await beside.save(session, tmp_path / "m", 2)
        with pytest.raises(ValueError, match="mine") as caught:
            await failing(model, session, tmp_path)
    assert "No space left" in caught.value.__notes__[0]


async def test_write_completes_after_an_error_in_the_block(tmp_path: Path, writing: Writing) -> None:
    async with training() as (model, session):
        writing.may_go_on.set()
        with pytest.raises(ValueError, match="mine"):
            await failing(model, session, tmp_path)
    assert values(str(tmp_path / "m-1")) == [{1.0}, {1.0}]


async def test_cancelled_block_leaves_no_task(tmp_path: Path, writing: Writing) -> None:
    async def saves() -> None:
        async with training() as (model, session), af.train.BackgroundSaver(model.saver) as beside:
            await beside.save(session, tmp_path / "m", 1)
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(saves())
        await writing.has_begun()
        task.cancel()
        await asyncio.sleep(0)
        writing.may_go_on.set()
    assert task.cancelled()
    assert len(asyncio.all_tasks()) == 1


async def test_background_saver_writes_all_of_many_concurrent_saves(tmp_path: Path, writing: Writing) -> None:
    """A worker holds at most two snapshots that wait for their writes."""
    async with training() as (model, session), af.train.BackgroundSaver(model.saver) as beside:
        await beside.save(session, tmp_path / "m", 0)
        async with asyncio.TaskGroup() as group:
            saves = [group.create_task(beside.save(session, tmp_path / "m", step)) for step in range(1, 5)]
            await writing.has_begun()
            writing.may_go_on.set()
    assert [save.result() for save in saves] == model.saver.last_checkpoints[1:]


async def test_closing_rejects_a_waiting_save(tmp_path: Path, writing: Writing) -> None:
    async with training() as (model, session), asyncio.TaskGroup() as group:
        beside = af.train.BackgroundSaver(model.saver)
        await beside.save(session, tmp_path / "m", 1)
        await writing.has_begun()
        second = group.create_task(refused(beside.save(session, tmp_path / "m", 2)))
        closing = group.create_task(beside.close())
        await asyncio.sleep(0)
        assert not closing.done()
        writing.may_go_on.set()
        assert "background saver has been closed" in str(await second)
    assert [Path(prefix).name for prefix in model.saver.last_checkpoints] == ["m-1"]


async def refused(saving: Any) -> FailedPreconditionError:
    with pytest.raises(FailedPreconditionError) as caught:
        await saving
    return caught.value


@on_each_loop
@pytest.mark.parametrize("act", ["restore", "snapshot", "beside"])
async def test_saver_acts_cancelled_leave_listed_checkpoints_only(tmp_path: Path, act: str) -> None:
    variable = af.Variable(np.zeros(1000, np.float32), name="v")
    saver = af.train.Saver(max_to_keep=2)
    steps = itertools.count(10)
    async with af.Session() as session:
        await session.run(variable.initializer)
        await saver.save(session, tmp_path / "m", 1)

        async def restore() -> None:
            await saver.restore(session, tmp_path / "m-1")

        async def snapshot() -> None:
            taken = await saver.snapshot(session, tmp_path / "s", next(steps))
            assert taken is not None
            await taken.write()

        async def beside() -> None:
            async with af.train.BackgroundSaver(saver) as background:
                await background.save(session, tmp_path / "b", next(steps))
                await background.save(session, tmp_path / "b", next(steps))

        async def then() -> None:
            await asyncio.to_thread(check, tmp_path, saver)

        if act == "restore":
            await cancel_at_each_turn(restore)
        else:
            await cancel_at_each_turn({"snapshot": snapshot, "beside": beside}[act], then)
        await restore() if act == "restore" else await then()


async def test_after_callback_is_called_with_the_checkpoint(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def after(prefix: str) -> None:
        seen.append((prefix, af.train.checkpoint_exists(prefix)))

    async with training() as (model, session), af.train.BackgroundSaver(model.saver) as beside:
        prefix = await beside.save(session, tmp_path / "m", 1, after=after)
    assert seen == [(prefix, True)]


async def test_concurrent_saves_of_one_saver_keep_only_listed_files(tmp_path: Path) -> None:
    async with training() as (model, session), asyncio.TaskGroup() as group:
        for step in range(8):
            group.create_task(model.saver.save(session, tmp_path / "m", global_step=step))
            await session.run(model.step)
    kept = model.saver.last_checkpoints
    assert len(kept) == 5
    assert listing(tmp_path, "*.safetensors") == sorted(Path(p).name + ".safetensors" for p in kept)


async def test_error_names_an_uninitialized_variable(tmp_path: Path) -> None:
    af.Variable(1.0, name="a")
    saver = af.train.Saver()
    async with af.Session() as session, af.train.BackgroundSaver(saver) as beside:
        with pytest.raises(OpError, match="uninitialized value a"):
            await beside.save(session, tmp_path / "m")


# -- placement of variables -------------------------------------------------------------------------------------------


async def save_and_restore(session: Any, devices: list[str], folder: Path, incremental: bool = False) -> None:
    made = []
    for i, device in enumerate(devices):
        with af.device(device):
            made.append(af.Variable(np.full((ROWS, WIDTH), i, np.float32), name=f"v{i}"))
    step = af.group(*[variable.assign_add(af.ones([ROWS, WIDTH])).op for variable in made])
    saver = af.train.Saver(incremental=incremental)
    await session.run(af.global_variables_initializer())
    async with af.train.BackgroundSaver(saver) as beside:
        first = await beside.save(session, folder / "m", 0)
        for _ in range(3):
            await session.run(step)
    second = await saver.save(session, folder / "m", 3)
    assert first is not None
    assert second is not None
    for i, variable in enumerate(made):
        for prefix, value in ((first, i), (second, i + 3)):
            assert np.all(af.train.load_variable(prefix, f"v{i}") == value)
            await saver.restore(session, prefix)
            assert np.all(await session.run(variable) == value)


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_save_and_restore_on_several_devices_and_executors(
    tmp_path: Path, executor: Any, incremental: bool
) -> None:
    config = af.SessionConfig(device_count={"CPU": 2}, executor=executor)
    async with af.Session(config=config) as session:
        await save_and_restore(session, ["/cpu:0", "/cpu:1", "/cpu:1"], tmp_path, incremental)


@pytest.mark.parametrize("tcp", [False, True])
async def test_save_and_restore_on_a_cluster(tmp_path: Path, tcp: bool) -> None:
    servers = cluster("ps", "worker", tcp=tcp, allow_dirs=[tmp_path])
    async with servers as (_, worker), af.Session(worker.target) as session:
        await save_and_restore(session, ["/job:ps", "/job:ps", "/job:worker"], tmp_path)


@pytest.mark.parametrize("incremental", [False, True])
async def test_parts_of_a_partitioned_variable_are_consistent(tmp_path: Path, incremental: bool) -> None:
    partitioner = af.fixed_size_partitioner(3)
    af.get_variable("table", [3 * ROWS, WIDTH], initializer=af.zeros_initializer(), partitioner=partitioner)
    parts = af.global_variables()
    assert len(parts) == 3
    every = af.IndexedSlices(af.ones([ROWS, WIDTH]), af.range(ROWS))
    step = af.group(*[part.scatter_add(every) for part in parts])
    saver = af.train.Saver(incremental=incremental)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        await session.run(step)
        async with af.train.BackgroundSaver(saver) as beside:
            prefix = await beside.save(session, tmp_path / "m", 1)
            for _ in range(3):
                await session.run(step)
        assert prefix is not None
        whole = af.train.load_variable(prefix, "table")
        assert whole.shape == (3 * ROWS, WIDTH)
        assert np.all(whole == 1)
        await saver.restore(session, prefix)
        assert all(np.all(value == 1) for value in await session.run(parts))

"""Files after saves that are cancelled at each turn of the loop."""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.formats.stores import store_at
from aioflow.kernels.io import checkpoints
from aioflow.train import saver as saver_module
from aioflow.train.checkpoint_state import UnlistedCheckpoint
from aioflow.train.meta_graph import GraphBeside
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import on_each_loop

KINDS: dict[str, dict[str, Any]] = {"plain": {}, "blocks": {"incremental": True}, "bundle": {"write_version": 2}}
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def prefixes(folder: Path) -> list[str]:
    """Return the names of the checkpoints, complete or not, that have files in a folder.

    A file of blocks belongs to all checkpoints that refer to it.
    """
    manifests = [path.read_text() for path in folder.glob("*.manifest.json")]
    files = [path.name for path in folder.iterdir()]
    shared = {name for name in files if name.endswith(".blocks") and any(name in text for text in manifests)}
    return sorted({name.lstrip(".").split(".")[0] for name in files if name not in shared} - {"checkpoint"})


def listed(folder: Path) -> list[str]:
    state = af.train.get_checkpoint_state(folder)
    return [] if state is None else sorted(Path(path).name for path in state.all_model_checkpoint_paths)


def check(folder: Path, saver: af.train.Saver) -> None:
    """Check that each checkpoint with a file is complete and listed, and that no temporary file remains."""
    assert prefixes(folder) == listed(folder) == sorted(Path(path).name for path in saver.last_checkpoints)
    assert not list(folder.glob(".*"))
    for name in listed(folder):
        assert af.train.load_variable(str(folder / name), "v").shape == (1000,)
        assert (folder / f"{name}.meta").exists()


@on_each_loop
@OF_EACH_KIND
async def test_saver_save_cancelled_leaves_listed_checkpoints_only(tmp_path: Path, kind: str) -> None:
    variable = af.Variable(np.zeros(1000, np.float32), name="v")
    saver = af.train.Saver(max_to_keep=2, **KINDS[kind])
    steps = itertools.count(10)
    async with af.Session() as session:
        await session.run(variable.initializer)

        async def then() -> None:
            await asyncio.to_thread(check, tmp_path, saver)

        cancelled = await cancel_at_each_turn(lambda: saver.save(session, tmp_path / "m", next(steps)), then, turns=60)
        assert cancelled > 5
        await saver.save(session, tmp_path / "m", next(steps))
        await then()
        assert len(saver.last_checkpoints) == 2


STAGES: dict[str, tuple[Any, str]] = {
    "mark": (UnlistedCheckpoint, "begin"),
    "values": (checkpoints, "write_checkpoint"),
    "graph": (GraphBeside, "write"),
    "state": (saver_module, "update_checkpoint_state"),
    "deletion": (saver_module, "remove_checkpoint"),
}


@on_each_loop
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("stage", STAGES)
async def test_saver_save_cancelled_in_a_stage_leaves_listed_checkpoints_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, again: bool
) -> None:
    """The cancellation arrives when the stage has ended in its thread, before the loop is notified."""
    variable = af.Variable(np.zeros(1000, np.float32), name="v")
    saver = af.train.Saver(max_to_keep=2)
    async with af.Session() as session:
        await session.run(variable.initializer)
        for step in (1, 2):
            await saver.save(session, tmp_path / "m", step)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(saver.save(session, tmp_path / "m", 3))
            cancelled_after(monkeypatch, *STAGES[stage], task, again)
        assert task.cancelled()
        monkeypatch.undo()
        await asyncio.to_thread(check, tmp_path, saver)
        expected = [1, 2] if stage in ("mark", "values") else [2, 3]
        assert listed(tmp_path) == [f"m-{step}" for step in expected]


def cancelled_after(
    patch: pytest.MonkeyPatch, owner: Any, name: str, task: asyncio.Task[Any], again: bool = False
) -> None:
    """Cancel `task` when a function that it calls in a thread has ended.

    If `again` is set, cancel it a second time in the next turn.
    """
    original, loop = getattr(owner, name), asyncio.get_running_loop()

    def stage(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        cancelled = threading.Event()

        def cancel() -> None:
            task.cancel()
            if again:
                loop.call_soon(task.cancel)
            cancelled.set()

        loop.call_soon_threadsafe(cancel)
        assert cancelled.wait(60)
        return result

    patch.setattr(owner, name, stage)


@pytest.mark.parametrize("stage", STAGES)
async def test_saver_save_cancelled_in_a_store_leaves_listed_checkpoints_only(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    pytest.importorskip("fsspec")
    place = f"memory://{uuid.uuid4().hex}"
    variable = af.Variable(np.zeros(1000, np.float32), name="v")
    saver = af.train.Saver(max_to_keep=2)
    async with af.Session() as session:
        await session.run(variable.initializer)
        for step in (1, 2):
            await saver.save(session, f"{place}/m", step)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(saver.save(session, f"{place}/m", 3))
            cancelled_after(monkeypatch, *STAGES[stage], task)
        assert task.cancelled()
    found = {name.split(".")[0] for name in store_at(place).names()} - {"checkpoint"}
    state = af.train.get_checkpoint_state(place)
    assert state is not None
    assert state.all_model_checkpoint_paths == tuple(saver.last_checkpoints)
    assert sorted(f"{place}/{name}" for name in found) == saver.last_checkpoints

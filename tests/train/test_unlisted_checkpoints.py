"""Checkpoints that no state file lists, made by hand. `tests/system/` leaves them by killing programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow.train.meta_graph import GraphBeside
from tests.train.test_cancelled_saves import KINDS, OF_EACH_KIND


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".manifest.json") for path in folder.glob("*.manifest.json"))


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*"))


async def go_on(folder: Path, *steps: int, name: str = "m", **arguments: bool) -> af.train.Saver:
    """Act as the next program: restore the latest checkpoint, and save later ones."""
    with af.Graph().as_default():
        af.Variable(0.0, name="v")
        saver = af.train.Saver(**arguments)  # type: ignore[arg-type]
        async with af.Session() as session:
            state = af.train.get_checkpoint_state(folder)
            assert state is not None
            await saver.restore(session, state.model_checkpoint_path)
            saver.recover_last_checkpoints(state)
            for step in steps:
                await saver.save(session, folder / name, global_step=step)
    return saver


TOKEN = "0123456789ab"


async def save_steps(folder: Path, *steps: int, **arguments: Any) -> af.train.Saver:
    with af.Graph().as_default():
        v = af.Variable(5.0, name="v")
        saver = af.train.Saver(**arguments)
        async with af.Session() as session:
            await session.run(v.initializer)
            for step in steps:
                await saver.save(session, folder / "m", step)
    return saver


async def test_save_removes_a_checkpoint_that_was_no_longer_listed(tmp_path: Path) -> None:
    """Its process was killed while it deleted the checkpoint."""
    await save_steps(tmp_path, 1, 2)
    af.train.update_checkpoint_state(tmp_path, str(tmp_path / "m-2"))
    (tmp_path / "m-1.manifest.json").unlink()
    (tmp_path / "m-1.meta").rename(tmp_path / "m-1.graph")
    (tmp_path / f".m-1.unlisted.{TOKEN}.tmp").write_text('[null, "graph"]')
    await go_on(tmp_path, 3)
    assert sorted({name.split(".")[0] for name in os.listdir(tmp_path)}) == ["checkpoint", "m-2", "m-3"]


@pytest.mark.parametrize("content", ["", '["che'])
async def test_save_removes_a_mark_without_its_contents(tmp_path: Path, content: str) -> None:
    await save_steps(tmp_path, 1)
    (tmp_path / f".m-2.unlisted.{TOKEN}.tmp").write_text(content)
    await go_on(tmp_path, 3)
    assert checkpoints(tmp_path) == ["m-1", "m-3"]
    assert left(tmp_path) == []


async def test_save_spares_a_checkpoint_that_another_state_file_names(tmp_path: Path) -> None:
    await save_steps(tmp_path, 1)
    (tmp_path / "checkpoint").rename(tmp_path / "other")
    (tmp_path / f".m-1.unlisted.{TOKEN}.tmp").write_text('["other", "meta"]')
    await save_steps(tmp_path, 2)
    assert checkpoints(tmp_path) == ["m-1", "m-2"]
    assert left(tmp_path) == []


@OF_EACH_KIND
async def test_save_removes_temporary_files_of_every_form(tmp_path: Path, kind: str) -> None:
    suffixes = ["safetensors", "manifest.json", "index", "data-00000-of-00001", f"{TOKEN}.blocks", "meta", "unlisted"]
    for suffix in suffixes:
        (tmp_path / f".m-7.{suffix}.{TOKEN}.tmp").touch()
    (tmp_path / f"m-7.{TOKEN}.blocks").touch()
    (tmp_path / "m-7.safetensors.pending").touch()
    await save_steps(tmp_path, 8, **KINDS[kind])
    assert not [name for name in os.listdir(tmp_path) if "m-7" in name]


async def test_failed_save_spares_a_checkpoint_listed_by_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        # Stands for another program that lists it at this moment.
        af.train.update_checkpoint_state(tmp_path, str(tmp_path / "m-1"))
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(GraphBeside, "write", full)
    with pytest.raises(OSError, match="somewhere"):
        await save_steps(tmp_path, 1)
    assert checkpoints(tmp_path) == ["m-1"]
    assert left(tmp_path) == []

"""A program that is killed between writing a checkpoint and the state file that lists it, with real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import aioflow as af
from aioflow.formats.checkpoint import CheckpointReader
from aioflow.train import checkpoint_state
from tests.support.processes import program
from tests.train.test_unlisted_checkpoints import checkpoints, go_on, left

PROGRAM = Path(__file__).with_name("unlisting_saver.py")


def said(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


@contextmanager
def stopped(prefix: Path, kind: str = "plain") -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has written checkpoint 2 but not listed it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with program(str(PROGRAM), str(prefix), kind, stdin=subprocess.PIPE, env=environment) as process:
        said(process, "written")
        yield process


def killed(prefix: Path, kind: str = "plain") -> None:
    with stopped(prefix, kind):
        pass


def listed(folder: Path) -> list[str]:
    state = af.train.get_checkpoint_state(folder)
    return [] if state is None else [Path(path).name for path in state.all_model_checkpoint_paths]


@pytest.mark.parametrize("kind", ["plain", "incremental"])
async def test_next_program_deletes_unlisted_checkpoints_of_a_killed_one(tmp_path: Path, kind: str) -> None:
    await asyncio.to_thread(killed, tmp_path / "m", kind)
    assert (checkpoints(tmp_path), listed(tmp_path)) == (["m-1", "m-2"], ["m-1"])
    await go_on(tmp_path, 3, incremental=kind == "incremental")
    assert (checkpoints(tmp_path), listed(tmp_path)) == (["m-1", "m-3"], ["m-1", "m-3"])
    assert left(tmp_path) == []
    assert float(CheckpointReader(str(tmp_path / "m-3")).read("v")) == 1.0


async def test_rewritten_checkpoint_stays(tmp_path: Path) -> None:
    await asyncio.to_thread(killed, tmp_path / "m")
    await go_on(tmp_path, 2, 3)
    assert checkpoints(tmp_path) == listed(tmp_path) == ["m-1", "m-2", "m-3"]
    assert float(CheckpointReader(str(tmp_path / "m-2")).read("v")) == 1.0


async def test_unlisted_checkpoint_of_a_live_program_stays(tmp_path: Path) -> None:
    def beside() -> None:
        with stopped(tmp_path / "m") as process:
            asyncio.run(go_on(tmp_path, 3, 4))
            assert checkpoints(tmp_path) == ["m-1", "m-2", "m-3", "m-4"]
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            said(process, "saved")

    await asyncio.to_thread(beside)
    assert left(tmp_path) == []
    assert "m-2" in checkpoints(tmp_path)


async def test_checkpoint_older_than_the_killed_program_stays(tmp_path: Path) -> None:
    """The program may have been killed before it replaced the older checkpoint."""
    with af.Graph().as_default():
        v = af.Variable(5.0, name="v")
        async with af.Session() as session:
            await session.run(v.initializer)
            await af.train.Saver().save(session, tmp_path / "m", 2, write_state=False)
    await asyncio.to_thread(killed, tmp_path / "m")
    await go_on(tmp_path, 3)
    assert checkpoints(tmp_path) == ["m-1", "m-2", "m-3"]


async def test_checkpoints_of_other_runs_and_unmarked_ones_stay(tmp_path: Path) -> None:
    await asyncio.to_thread(killed, tmp_path / "other")
    with af.Graph().as_default():
        v = af.Variable(5.0, name="v")
        async with af.Session() as session:
            await session.run(v.initializer)
            await af.train.Saver().save(session, tmp_path / "m", 2, write_state=False)
    await go_on(tmp_path, 3)
    assert checkpoints(tmp_path) == ["m-2", "m-3", "other-1", "other-2"]


async def test_listed_checkpoint_with_a_leftover_mark_stays(tmp_path: Path) -> None:
    await asyncio.to_thread(killed, tmp_path / "m")
    af.train.update_checkpoint_state(tmp_path, str(tmp_path / "m-2"), [str(tmp_path / "m-1")])
    with af.Graph().as_default():
        v = af.Variable(5.0, name="v")
        async with af.Session() as session:  # it does not continue from the listed checkpoints
            await session.run(v.initializer)
            await af.train.Saver().save(session, tmp_path / "m", 3)
    assert checkpoints(tmp_path) == ["m-1", "m-2", "m-3"]
    assert left(tmp_path) == []


async def test_checkpoints_are_written_if_the_mark_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    await asyncio.to_thread(killed, tmp_path / "m")
    monkeypatch.setattr(checkpoint_state, "temporary_file", refused)
    await go_on(tmp_path, 3)
    assert "m-3" in checkpoints(tmp_path)

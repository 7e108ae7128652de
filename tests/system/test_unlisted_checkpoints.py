"""A program that is killed between a checkpoint and the state file that names it, with real processes."""

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
from aioflow.train import unlisted
from tests.processes import program
from tests.train.test_unlisted_checkpoints import checkpoints, go_on, left

PROGRAM = Path(__file__).with_name("unlisting_saver.py")


def said(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


@contextmanager
def stopped(prefix: Path, kind: str = "plain") -> Iterator[subprocess.Popen[str]]:
    """A process that has written checkpoint 2, and not listed it."""
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
async def test_the_next_program_takes_away_what_a_killed_one_did_not_list(tmp_path: Path, kind: str) -> None:
    await asyncio.to_thread(killed, tmp_path / "m", kind)
    assert (checkpoints(tmp_path), listed(tmp_path)) == (["m-1", "m-2"], ["m-1"])
    await go_on(tmp_path, 3, incremental=kind == "incremental")
    assert (checkpoints(tmp_path), listed(tmp_path)) == (["m-1", "m-3"], ["m-1", "m-3"])
    assert left(tmp_path) == []
    assert float(CheckpointReader(str(tmp_path / "m-3")).read("v")) == 1.0


async def test_one_that_is_written_again_stays(tmp_path: Path) -> None:
    await asyncio.to_thread(killed, tmp_path / "m")
    await go_on(tmp_path, 2, 3)
    assert checkpoints(tmp_path) == listed(tmp_path) == ["m-1", "m-2", "m-3"]
    assert float(CheckpointReader(str(tmp_path / "m-2")).read("v")) == 1.0


async def test_what_a_living_program_is_about_to_list_is_left_alone(tmp_path: Path) -> None:
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


async def test_what_was_there_before_the_killed_one_began_is_left_alone(tmp_path: Path) -> None:
    """He may have been killed before he replaced it."""
    with af.Graph().as_default():
        v = af.Variable(5.0, name="v")
        async with af.Session() as session:
            await session.run(v.initializer)
            await af.train.Saver().save(session, tmp_path / "m", 2, write_state=False)
    await asyncio.to_thread(killed, tmp_path / "m")
    await go_on(tmp_path, 3)
    assert checkpoints(tmp_path) == ["m-1", "m-2", "m-3"]


async def test_other_runs_and_unmarked_checkpoints_are_left_alone(tmp_path: Path) -> None:
    await asyncio.to_thread(killed, tmp_path / "other")
    with af.Graph().as_default():
        v = af.Variable(5.0, name="v")
        async with af.Session() as session:
            await session.run(v.initializer)
            await af.train.Saver().save(session, tmp_path / "m", 2, write_state=False)
    await go_on(tmp_path, 3)
    assert checkpoints(tmp_path) == ["m-2", "m-3", "other-1", "other-2"]


async def test_one_that_was_listed_before_the_mark_was_gone_is_left_alone(tmp_path: Path) -> None:
    await asyncio.to_thread(killed, tmp_path / "m")
    af.train.update_checkpoint_state(tmp_path, str(tmp_path / "m-2"), [str(tmp_path / "m-1")])
    with af.Graph().as_default():
        v = af.Variable(5.0, name="v")
        async with af.Session() as session:  # and does not take up what is listed
            await session.run(v.initializer)
            await af.train.Saver().save(session, tmp_path / "m", 3)
    assert checkpoints(tmp_path) == ["m-1", "m-2", "m-3"]
    assert left(tmp_path) == []


async def test_where_the_disk_refuses_the_mark_checkpoints_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    await asyncio.to_thread(killed, tmp_path / "m")
    monkeypatch.setattr(unlisted, "temporary_file", refused)
    await go_on(tmp_path, 3)
    assert "m-3" in checkpoints(tmp_path)

"""Tests of processes that are killed while saving in a loop: the next one removes their leftover files."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import aioflow as af
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from tests.support.processes import program

PROGRAM = Path(__file__).with_name("looping_saver.py")
KILLS = 3  # per kind
MOST = 0.03  # seconds from a checkpoint to the signal: the time of a few saves


def run_saver(folder: Path, kind: str, saves: int, seconds: float | None) -> None:
    """Run a saver to its end, or kill it `seconds` after its first checkpoint."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with program(str(PROGRAM), str(folder), kind, str(saves), env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdecimal()
        if seconds is None:
            assert process.wait(120) == 0
        else:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)


@pytest.mark.parametrize("kind", ["plain", "blocks", "bundle"])
def test_saver_removes_what_killed_savers_left(tmp_path: Path, kind: str) -> None:
    moments = random.Random(kind)
    for _ in range(KILLS):
        run_saver(tmp_path, kind, 10**6, moments.uniform(0, MOST))
    run_saver(tmp_path, kind, 2, None)
    state = af.train.get_checkpoint_state(tmp_path)
    assert state is not None
    listed = sorted(Path(path).name for path in state.all_model_checkpoint_paths)
    assert len(listed) == 2
    names = {path.name for path in tmp_path.iterdir() if path.suffix != ".blocks"} - {"checkpoint"}
    assert sorted({name.split(".")[0] for name in names}) == listed
    assert not [name for name in names if name.startswith(".")]
    assert len(list(tmp_path.glob("*.blocks"))) == (kind == "blocks")


def test_saved_save_removes_what_killed_saves_left(tmp_path: Path) -> None:
    moments = random.Random("model")
    for _ in range(KILLS):
        run_saver(tmp_path, "model", 10**6, moments.uniform(0, MOST))
    run_saver(tmp_path, "model", 2, None)
    assert os.listdir(tmp_path) == ["model"]
    assert len(os.listdir(tmp_path / "model")) == 5, "the manifest, the graph, the ops, and the weights with theirs"
    assert af.saved.load(tmp_path / "model").outputs


SAVER = Path(__file__).with_name("slow_saver.py")
NEW = {"a": np.arange(3, dtype=np.float32)}


def left(folder: Path) -> list[str]:
    """Return the names of temporary files of unfinished saves."""
    return sorted(p.name for p in folder.iterdir() if p.name.endswith((".tmp", ".pending")))


def said(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


@contextmanager
def saving(prefix: Path, stop: str = "inside") -> Iterator[subprocess.Popen[str]]:
    """Start a process and yield it in the middle of a save."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with program(str(SAVER), str(prefix), stop, stdin=subprocess.PIPE, env=environment) as process:
        said(process, "writing")
        yield process


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    said(process, "saved")


@pytest.mark.parametrize("killed", ["m", "m-7", "m-12"])
@pytest.mark.parametrize("stop", ["inside", "pending"])
def test_next_write_of_the_prefix_removes_files_of_a_killed_one(tmp_path: Path, killed: str, stop: str) -> None:
    with saving(tmp_path / killed, stop):
        assert len(left(tmp_path)) == 1
    assert len(left(tmp_path)) == 1, "it was killed"
    write_checkpoint(str(tmp_path / "m-12"), NEW)
    assert left(tmp_path) == []
    assert CheckpointReader(str(tmp_path / "m-12")).read("a").tolist() == [0, 1, 2]


async def test_next_saver_removes_files_of_a_killed_one(tmp_path: Path) -> None:
    def interrupted() -> None:
        with saving(tmp_path / "model-3"):
            pass

    await asyncio.to_thread(interrupted)
    assert len(left(tmp_path)) == 1
    variable = af.Variable(1.0)
    async with af.Session() as session:
        await session.run(variable.initializer)
        await af.train.Saver().save(session, tmp_path / "model", global_step=4)
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["m", "m-7"])
@pytest.mark.parametrize("stop", ["inside", "pending"])
def test_files_of_a_running_saver_are_kept(tmp_path: Path, name: str, stop: str) -> None:
    with saving(tmp_path / name, stop) as process:
        before = left(tmp_path)
        write_checkpoint(str(tmp_path / "m-8"), NEW)
        write_checkpoint(str(tmp_path / "m-9"), NEW)
        assert left(tmp_path) == before
        go_on(process)
    assert left(tmp_path) == []
    assert CheckpointReader(str(tmp_path / name)).read("a").tolist() == [7] * 1000
    assert CheckpointReader(str(tmp_path / "m-8")).read("a").tolist() == [0, 1, 2]


def test_concurrent_savers_of_one_prefix_both_succeed(tmp_path: Path) -> None:
    with saving(tmp_path / "m") as first, saving(tmp_path / "m") as second:
        assert len(left(tmp_path)) == 2
        go_on(first)
        go_on(second)
    assert left(tmp_path) == []
    assert CheckpointReader(str(tmp_path / "m")).read("a").tolist() == [7] * 1000

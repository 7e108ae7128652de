"""What is left of a save that was killed, and what the next one does about it, with real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.formats import temporary_files, temporary_folders
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.temporary_files import write_atomically
from aioflow.formats.temporary_folders import locked_folder
from tests.processes import program

SAVER = Path(__file__).with_name("slow_saver.py")
NEW = {"a": np.arange(3, dtype=np.float32)}


def left(folder: Path) -> list[str]:
    """What is neither a checkpoint nor a state."""
    return sorted(p.name for p in folder.iterdir() if p.name.endswith((".tmp", ".pending")))


def said(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


@contextmanager
def saving(prefix: Path, stop: str = "inside") -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a save."""
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
def test_the_next_save_of_the_prefix_takes_away_what_a_killed_one_left(tmp_path: Path, killed: str, stop: str) -> None:
    with saving(tmp_path / killed, stop):
        assert len(left(tmp_path)) == 1
    assert len(left(tmp_path)) == 1, "it was killed"
    write_checkpoint(str(tmp_path / "m-12"), NEW)
    assert left(tmp_path) == []
    assert CheckpointReader(str(tmp_path / "m-12")).read("a").tolist() == [0, 1, 2]


async def test_a_saver_does_so(tmp_path: Path) -> None:
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
def test_what_a_living_saver_writes_is_left_alone(tmp_path: Path, name: str, stop: str) -> None:
    with saving(tmp_path / name, stop) as process:
        before = left(tmp_path)
        write_checkpoint(str(tmp_path / "m-8"), NEW)
        write_checkpoint(str(tmp_path / "m-9"), NEW)
        assert left(tmp_path) == before
        go_on(process)
    assert left(tmp_path) == []
    assert CheckpointReader(str(tmp_path / name)).read("a").tolist() == [7] * 1000
    assert CheckpointReader(str(tmp_path / "m-8")).read("a").tolist() == [0, 1, 2]


def test_two_living_savers_of_one_prefix(tmp_path: Path) -> None:
    with saving(tmp_path / "m") as first, saving(tmp_path / "m") as second:
        assert len(left(tmp_path)) == 2
        go_on(first)
        go_on(second)
    assert left(tmp_path) == []
    assert CheckpointReader(str(tmp_path / "m")).read("a").tolist() == [7] * 1000


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    token = "0123456789ab"
    others = [
        *(f".other.safetensors.{token}.tmp", f".mm-1.safetensors.{token}.tmp", f".m-x.safetensors.{token}.tmp"),
        *(f".m-1.safetensors.{token}.tmp.txt", f".m-1.safetensors.{token[:6]}.tmp", "m-1.tmp", f".m.{token}.tmp"),
    ]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / f".m-1.safetensors.{token}.tmp").touch()
    (tmp_path / f".m-1.manifest.json.{token}.tmp").touch()
    write_checkpoint(str(tmp_path / "m-2"), NEW)
    assert left(tmp_path) == sorted(name for name in others if name.endswith(".tmp"))


def test_small_files_are_tidied_up_by_their_next_writer(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.0123456789ab.tmp").touch()
    write_atomically(tmp_path / "other", b"x")
    assert len(left(tmp_path)) == 1
    write_atomically(tmp_path / "checkpoint", b"x")
    assert left(tmp_path) == []


def test_a_new_file_that_was_taken_away_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = temporary_files.locks.flock
    taken: list[Path] = []

    def flock(file: Any, operation: int) -> None:
        if not taken:
            taken.extend(tmp_path.glob(".*.tmp"))
            taken[0].unlink()
        original(file, operation)

    monkeypatch.setattr(temporary_files.locks, "flock", flock)
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_without_locks_nothing_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: Any, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(temporary_files.locks, "flock", flock)
    (tmp_path / ".m.safetensors.0123456789ab.tmp").touch()
    write_checkpoint(str(tmp_path / "m"), NEW)
    assert CheckpointReader(str(tmp_path / "m")).read("a").tolist() == [0, 1, 2]
    assert left(tmp_path) == [".m.safetensors.0123456789ab.tmp"]


def test_where_the_system_has_no_such_locks_the_rest_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, whose open files cannot be deleted."""
    monkeypatch.setattr(temporary_files, "locks", None)
    (tmp_path / ".m.safetensors.0123456789ab.tmp").touch()
    write_checkpoint(str(tmp_path / "m"), NEW)
    assert CheckpointReader(str(tmp_path / "m")).read("a").tolist() == [0, 1, 2]
    assert left(tmp_path) == []


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to find a descriptor")
def test_locked_folder_ends_although_a_child_was_forked_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def lock(path: Path, wait: bool, stack: ExitStack) -> None:
        original(path, wait, stack)
        opened.append(os.dup(int(max(os.listdir("/proc/self/fd"), key=lambda name: leads_to(name, path)))))

    def leads_to(name: str, path: Path) -> bool:
        return os.path.realpath(f"/proc/self/fd/{name}") == str(path)

    original = temporary_folders._lock
    monkeypatch.setattr(temporary_folders, "_lock", lock)
    try:
        with locked_folder(tmp_path), pytest.raises(BlockingIOError), ExitStack() as stack:
            original(tmp_path, False, stack)
        with ExitStack() as stack:
            original(tmp_path, False, stack)
    finally:
        os.close(opened[0])

"""Cleanup of remains of killed saves, made by hand. `tests/system/test_killed_savers.py` kills real processes."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.formats import temporary_files, temporary_folders
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.temporary_files import write_atomically
from aioflow.formats.temporary_folders import locked_folder

NEW = {"a": np.arange(3, dtype=np.float32)}


def left(folder: Path) -> list[str]:
    """Return the names of the files that belong to no checkpoint and no state."""
    return sorted(p.name for p in folder.iterdir() if p.name.endswith((".tmp", ".pending")))


def test_files_of_other_checkpoints_stay(tmp_path: Path) -> None:
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


def test_write_atomically_deletes_remains_of_its_file(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.0123456789ab.tmp").touch()
    write_atomically(tmp_path / "other", b"x")
    assert len(left(tmp_path)) == 1
    write_atomically(tmp_path / "checkpoint", b"x")
    assert left(tmp_path) == []


def test_temporary_file_deleted_before_its_lock_is_recreated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_remains_stay_if_locking_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: Any, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(temporary_files.locks, "flock", flock)
    (tmp_path / ".m.safetensors.0123456789ab.tmp").touch()
    write_checkpoint(str(tmp_path / "m"), NEW)
    assert CheckpointReader(str(tmp_path / "m")).read("a").tolist() == [0, 1, 2]
    assert left(tmp_path) == [".m.safetensors.0123456789ab.tmp"]


def test_checkpoints_are_written_without_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no `flock`, and its open files cannot be deleted."""
    monkeypatch.setattr(temporary_files, "locks", None)
    (tmp_path / ".m.safetensors.0123456789ab.tmp").touch()
    write_checkpoint(str(tmp_path / "m"), NEW)
    assert CheckpointReader(str(tmp_path / "m")).read("a").tolist() == [0, 1, 2]
    assert left(tmp_path) == []


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to find a descriptor")
def test_locked_folder_is_released_despite_a_forked_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def lock(path: Path, wait: bool, stack: ExitStack) -> None:
        original(path, wait, stack)
        # A forked child would hold such a duplicate of the lock's descriptor.
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

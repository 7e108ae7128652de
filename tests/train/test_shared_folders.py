"""Several programs that write and delete incremental checkpoints in one folder, without deleting each other's bases."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import aioflow as af
from aioflow.errors import AbortedError
from aioflow.formats import increments, temporary_files
from aioflow.formats.checkpoint import CheckpointReader, checkpoint_exists, remove_checkpoint, write_checkpoint
from aioflow.formats.stores import Folder

VALUE = np.arange(100_000.0)
AFTER = np.concatenate([[-1.0], VALUE[1:]])


def meanwhile(patch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` once, after the next checkpoint has found its base and before its manifest exists."""
    original: Any = increments._Writer.write
    done: list[bool] = []

    def write(*args: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return original(*args)

    patch.setattr(increments._Writer, "write", write)


def save(prefix: str, value: Any, base: str = "") -> None:
    write_checkpoint(prefix, {"a": value}, base)


def read(prefix: str) -> Any:
    return CheckpointReader(prefix).read("a")


def blocks(folder: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in folder.glob("*.blocks"))


def test_base_deleted_during_a_save_keeps_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint disappears at once, and its files with the last checkpoint that needs them."""
    one, two = str(tmp_path / "m-1"), str(tmp_path / "m-2")
    save(one, VALUE)
    meanwhile(monkeypatch, lambda: remove_checkpoint(one))
    save(two, AFTER, one)
    assert not checkpoint_exists(one)
    assert np.array_equal(read(two), AFTER)
    assert blocks(tmp_path) == ["m-1", "m-2"], "the first was referred to, not copied"
    remove_checkpoint(two)
    assert list(tmp_path.iterdir()) == []


def test_base_rewritten_during_a_save_keeps_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = str(tmp_path / "m-1"), str(tmp_path / "m-2")
    save(one, VALUE)
    meanwhile(monkeypatch, lambda: save(one, VALUE * 2))
    save(two, AFTER, one)
    assert np.array_equal(read(two), AFTER)
    assert np.array_equal(read(one), VALUE * 2)


def test_base_being_deleted_is_not_used(tmp_path: Path) -> None:
    one, two = str(tmp_path / "m-1"), str(tmp_path / "m-2")
    save(one, VALUE)
    (file,) = [path.name for path in tmp_path.glob("*.blocks")]
    with Folder(tmp_path).held([file], alone=True) as mine:
        assert mine == {file: True}
        save(two, AFTER, one)
    (tmp_path / file).unlink()
    assert np.array_equal(read(two), AFTER)


def test_save_fails_without_locks_if_its_base_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: Any, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(temporary_files.locks, "flock", flock)
    one, two = str(tmp_path / "m-1"), str(tmp_path / "m-2")
    save(one, VALUE)
    meanwhile(monkeypatch, lambda: remove_checkpoint(one))
    with pytest.raises(AbortedError, match="m-1"):
        save(two, AFTER, one)
    assert not checkpoint_exists(two)
    save(two, AFTER, one)
    assert np.array_equal(read(two), AFTER)


@pytest.fixture
def store() -> Iterator[str]:
    folder = f"/{uuid.uuid4().hex}"
    yield f"memory:/{folder}"
    fsspec.filesystem("memory").rm(folder, recursive=True)


def test_save_fails_in_a_store_if_its_base_is_deleted(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = f"{store}/m-1", f"{store}/m-2"
    save(one, VALUE)
    meanwhile(monkeypatch, lambda: remove_checkpoint(one))
    with pytest.raises(AbortedError, match="m-1"):
        save(two, AFTER, one)
    assert not checkpoint_exists(two)
    save(two, AFTER, one)
    assert np.array_equal(read(two), AFTER)


async def test_two_savers_share_a_folder(tmp_path: Path) -> None:
    """Each saver keeps two checkpoints and continues the other's list. Existing checkpoints stay readable."""
    v = af.Variable(VALUE, name="v")
    savers = [af.train.Saver(max_to_keep=2, incremental=True) for _ in range(2)]
    async with af.Session() as session:
        await session.run(v.initializer)
        for round_ in range(6):
            for saver in savers:
                saver.recover_last_checkpoints(af.train.get_checkpoint_state(tmp_path) or [])
            await asyncio.gather(
                *(saver.save(session, tmp_path / "m", 2 * round_ + i) for i, saver in enumerate(savers))
            )
            for saver in savers:
                for prefix in saver.last_checkpoints:
                    if checkpoint_exists(prefix):
                        assert np.array_equal(CheckpointReader(prefix).read("v"), VALUE)

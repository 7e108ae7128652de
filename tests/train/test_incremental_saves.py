"""Incremental checkpoints in blocks: blocks that are written, shared and deleted, and files after a crash."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DataLossError, DTypeError, NotFoundError, OpError
from aioflow.formats import increments
from aioflow.formats.checkpoint import CheckpointReader, checkpoint_exists, remove_checkpoint, write_checkpoint
from aioflow.formats.manifests import sealed
from tests.train.test_saver import VALUES, WRONG_VALUES, CrashError, places, read_all, replaced

ROWS, WIDTH = 40_000, 16  # 2.4 MB: 20 blocks
BLOCK_ROWS = (1 << 17) // (4 * WIDTH)


def a_table() -> Any:
    return np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH).copy()


def written(folder: Path) -> dict[str, int]:
    """Return the sizes of the files of blocks, by the checkpoint that wrote them."""
    return {p.name.split(".")[0]: p.stat().st_size for p in sorted(folder.glob("*.blocks"))}


def save(prefix: Path, base: Path | None = None, **tensors: Any) -> None:
    write_checkpoint(str(prefix), tensors, str(base) if base else "")


def check(prefix: Path, **tensors: Any) -> None:
    reader = CheckpointReader(str(prefix))
    assert reader.names() == sorted(tensors)
    for name, value in tensors.items():
        assert reader.shape(name) == np.shape(value)
        got = reader.read(name)
        assert got.dtype == value.dtype
        assert np.array_equal(got, value), name


def test_every_dtype_makes_a_round_trip(tmp_path: Path) -> None:
    save(tmp_path / "m", **VALUES)
    check(tmp_path / "m", **VALUES)
    save(tmp_path / "n", tmp_path / "m", **VALUES)
    check(tmp_path / "n", **VALUES)
    assert list(written(tmp_path)) == ["m"], "nothing has changed, so nothing is written"


def test_only_changed_blocks_are_written(tmp_path: Path) -> None:
    table, small = a_table(), np.zeros(3)
    save(tmp_path / "m-1", table=table, small=small)
    assert written(tmp_path)["m-1"] == table.nbytes + small.nbytes
    after = table.copy()
    after[5], after[ROWS - 1] = -1, -2
    save(tmp_path / "m-2", tmp_path / "m-1", table=after, small=small)
    last = table.nbytes % (1 << 17)
    assert written(tmp_path)["m-2"] == (1 << 17) + last
    check(tmp_path / "m-1", table=table, small=small)
    check(tmp_path / "m-2", table=after, small=small)


def test_new_tensors_shapes_and_dtypes_are_written(tmp_path: Path) -> None:
    save(tmp_path / "m-1", a=np.zeros(4, np.float32), b=np.zeros(4, np.float32))
    changed = {"a": np.zeros((2, 2), np.float32), "b": np.zeros(4, np.int32), "c": np.zeros(4, np.float32)}
    save(tmp_path / "m-2", tmp_path / "m-1", **changed)
    assert written(tmp_path)["m-2"] == 3 * 16
    check(tmp_path / "m-2", **changed)


def test_block_file_is_deleted_with_its_last_reference(tmp_path: Path) -> None:
    first = a_table()
    second, third = first.copy(), first.copy()
    second[0] = -1
    third[: 2 * BLOCK_ROWS] = -2
    for step, table in enumerate((first, second, third)):
        save(tmp_path / f"m-{step}", tmp_path / f"m-{step - 1}" if step else None, table=table)
    remove_checkpoint(str(tmp_path / "m-0"))
    assert not checkpoint_exists(str(tmp_path / "m-0"))
    assert list(written(tmp_path)) == ["m-0", "m-1", "m-2"]
    check(tmp_path / "m-1", table=second)
    remove_checkpoint(str(tmp_path / "m-1"))
    assert list(written(tmp_path)) == ["m-0", "m-2"]
    check(tmp_path / "m-2", table=third)
    remove_checkpoint(str(tmp_path / "m-2"))
    assert list(tmp_path.iterdir()) == []


def test_block_files_stay_if_a_manifest_is_unreadable(tmp_path: Path) -> None:
    save(tmp_path / "m-1", a=np.zeros(4))
    save(tmp_path / "m-2", tmp_path / "m-1", a=np.zeros(4))
    (tmp_path / "m-2.manifest.json").write_text("{")
    remove_checkpoint(str(tmp_path / "m-1"))
    assert list(written(tmp_path)) == ["m-1"]


def test_mostly_unused_block_files_are_rewritten(tmp_path: Path) -> None:
    table = a_table()
    save(tmp_path / "m-0", table=table)
    for step in range(1, 40):
        table[(step % 19) * BLOCK_ROWS] = step
        save(tmp_path / f"m-{step}", tmp_path / f"m-{step - 1}", table=table)
        remove_checkpoint(str(tmp_path / f"m-{step - 1}"))
        check(tmp_path / f"m-{step}", table=table)
    assert "m-0" not in written(tmp_path)
    assert sum(written(tmp_path).values()) <= 4 * table.nbytes
    assert len(written(tmp_path)) <= 33


@pytest.mark.parametrize("damage", ["gone", "cut", "manifest"])
def test_damaged_base_is_not_referred_to(tmp_path: Path, damage: str) -> None:
    table = a_table()
    save(tmp_path / "m-1", table=table)
    (file,) = tmp_path.glob("*.blocks")
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        os.truncate(file, 100)
    else:
        (tmp_path / "m-1.manifest.json").write_text("[]")
    save(tmp_path / "m-2", tmp_path / "m-1", table=table)
    check(tmp_path / "m-2", table=table)


def test_damaged_blocks_raise_data_loss_error(tmp_path: Path) -> None:
    prefix = str(tmp_path / "m")
    save(tmp_path / "m", a=np.arange(40_000.0), s=np.array([b"ab", b"c"], object))
    (file,) = tmp_path.glob("*.blocks")
    whole = file.read_bytes()
    for position in (0, 1 << 17, len(whole) - 1):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DataLossError, match="blocks"):
            read_all(prefix)
    file.write_bytes(whole[:-1])
    with pytest.raises(DataLossError):
        read_all(prefix)
    file.unlink()
    with pytest.raises(NotFoundError):
        read_all(prefix)


def test_malformed_manifest_is_read_or_rejected(quick_path: Path) -> None:
    save(quick_path / "m", a=np.zeros(2, np.float32), s=np.array([b"x"], object))
    path = quick_path / "m.manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"], manifest["format"]
    for at in places(manifest):
        for other in [*WRONG_VALUES, "../m", "/etc/hostname"]:
            changed = replaced(manifest, at, other)
            if isinstance(changed, dict):
                path.write_bytes(sealed(changed))
                with contextlib.suppress(OpError):
                    read_all(str(quick_path / "m"))


# -- crashes ----------------------------------------------------------------------------------------------------------


def crash_before(patch: pytest.MonkeyPatch, k: int) -> list[int]:
    """Crash in the call after the k-th that changes the disk, or that prepares a change. Return the number of calls."""
    calls = [0]

    def wrap(original: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] > k:
                raise CrashError
            return original(*args, **kwargs)

        return step

    for owner, name in ((Path, "replace"), (Path, "open"), (os, "fsync"), (increments, "_runs")):
        patch.setattr(owner, name, wrap(getattr(owner, name)))
    unlink = Path.unlink

    def removed(path: Path, missing_ok: bool = False) -> None:
        """Simulate a dead process, which does not delete its temporary files."""
        calls[0] += not path.name.endswith(".tmp")
        if calls[0] > k:
            raise CrashError
        unlink(path, missing_ok)

    patch.setattr(Path, "unlink", removed)
    return calls


@pytest.mark.parametrize("again", [False, True])
def test_crash_at_any_call_leaves_checkpoints_complete_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """If `again` is set, the checkpoint replaces one of the same name."""
    first, second = a_table(), a_table()
    second[7] = -1
    outcomes: list[str] = []
    for k in range(80):
        folder = tmp_path / str(k)
        folder.mkdir()
        save(folder / "m-1", table=first)
        new = folder / ("m-1" if again else "m-2")
        with monkeypatch.context() as patch:
            calls = crash_before(patch, k)
            with contextlib.suppress(CrashError):
                save(new, folder / "m-1", table=second)
        if not again:
            check(folder / "m-1", table=first)
        if not checkpoint_exists(str(new)):
            outcomes.append("away")
        else:
            now = CheckpointReader(str(new)).read("table")
            outcomes.append("new" if np.array_equal(now, second) else "old" if np.array_equal(now, first) else "mixed")
        save(folder / "m-3", new, table=second)
        check(folder / "m-3", table=second)
        remove_checkpoint(str(folder / "m-1"))
        remove_checkpoint(str(folder / "m-2"))
        check(folder / "m-3", table=second)
        remove_checkpoint(str(folder / "m-3"))
        assert list(folder.iterdir()) == [], "something is left for good"
        if calls[0] <= k:
            break
    assert calls[0] <= k
    assert outcomes[-1] == "new"
    assert set(outcomes) == {"old" if again else "away", "new"}
    assert outcomes == sorted(outcomes, key=lambda o: o == "new")


# -- a saver ----------------------------------------------------------------------------------------------------------


async def test_saver_writes_changed_blocks_and_keeps_referenced_ones(tmp_path: Path) -> None:
    table = af.Variable(a_table(), name="table")
    row = af.placeholder(af.int32, [1])
    step = table.scatter_add(af.IndexedSlices(af.ones([1, WIDTH]), row))
    saver = af.train.Saver(max_to_keep=2, incremental=True)
    expected = {}
    async with af.Session() as session:
        await session.run(table.initializer)
        for number in range(6):
            prefix = await saver.save(session, tmp_path / "m", global_step=number)
            expected[prefix] = await session.run(table)
            await session.run(step.op, {row: [number]})
    assert list(expected)[-2:] == saver.last_checkpoints
    for prefix in saver.last_checkpoints:
        check(Path(prefix), table=expected[prefix])
    sizes = written(tmp_path)
    assert sorted(sizes) == ["m-0", "m-4", "m-5"]
    assert sizes["m-5"] == 1 << 17
    with af.Graph().as_default():
        again = af.Variable(np.zeros((ROWS, WIDTH), np.float32), name="table")
        saver = af.train.Saver(max_to_keep=2, incremental=True)
        async with af.Session() as session:
            await saver.restore(session, af.train.latest_checkpoint(tmp_path) or "")
            assert np.array_equal(await session.run(again), expected[prefix])
            await saver.save(session, tmp_path / "m", global_step=9)
    assert "m-9" not in written(tmp_path), "what was restored is what the next one refers to"
    check(tmp_path / "m-9", table=expected[prefix])


async def test_restoring_blocks_of_another_dtype_is_rejected(tmp_path: Path) -> None:
    save(tmp_path / "m", a=np.zeros(3, np.float64))
    af.Variable([0.0, 0.0, 0.0], name="a")
    saver = af.train.Saver()
    async with af.Session() as session:
        with pytest.raises(DTypeError):
            await saver.restore(session, tmp_path / "m")


@pytest.fixture(autouse=True)
def _no_temporary_files(tmp_path: Path) -> Iterator[None]:
    yield
    assert not list(tmp_path.rglob("*.tmp"))

"""Files after checkpoints that exceed the free space, in every format, in folders and in stores."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import NotFoundError, ResourceExhaustedError
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.stores import store_at
from aioflow.formats.tensor_bundle_writer import write_bundle
from tests.support.full_disk import room_for
from tests.train.test_cancelled_saves import KINDS, OF_EACH_KIND

OLD, NEW = {"v": np.zeros(600, np.float32)}, {"v": np.ones(600, np.float32)}
STEP = 350  # increase of the free bytes from run to run


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path)
    pytest.importorskip("fsspec")
    return f"memory://{uuid.uuid4().hex}"


def write(kind: str, prefix: str, values: Any) -> None:
    if kind == "bundle":
        write_bundle(prefix, values)
    else:
        write_checkpoint(prefix, values, "" if kind == "blocks" else None)


def value(prefix: str) -> float:
    """Return the value in a checkpoint, or -1 if it does not exist."""
    try:
        return float(CheckpointReader(prefix).read("v")[0])
    except NotFoundError:
        return -1.0


@OF_EACH_KIND
def test_write_checkpoint_without_room_leaves_no_files(place: str, kind: str) -> None:
    for room in range(0, 100 * STEP, STEP):
        with room_for(room):
            try:
                write(kind, f"{place}/m", NEW)
            except ResourceExhaustedError:
                assert store_at(place).names() == [], f"room for {room} bytes"
            else:
                break
    assert room > 2400
    assert value(f"{place}/m") == 1.0


@OF_EACH_KIND
def test_write_checkpoint_without_room_keeps_the_earlier_one(place: str, kind: str) -> None:
    for room in range(0, 100 * STEP, STEP):
        write(kind, f"{place}/m", OLD)
        names = store_at(place).names()
        with room_for(room):
            try:
                write(kind, f"{place}/m", NEW)
            except ResourceExhaustedError:
                # A bundle's two files cannot be replaced atomically in a store.
                if kind == "bundle" and place.startswith("memory"):
                    assert (value(f"{place}/m"), store_at(place).names()) == (-1.0, [])
                else:
                    assert (value(f"{place}/m"), store_at(place).names()) == (0.0, names), f"room for {room} bytes"
            else:
                break
    assert room > 2400
    assert value(f"{place}/m") == 1.0
    assert len(store_at(place).names()) == 2


@OF_EACH_KIND
async def test_saver_save_without_room_leaves_listed_checkpoints_only(place: str, kind: str) -> None:
    variable = af.Variable(np.zeros(600, np.float32), name="v")
    saver = af.train.Saver(max_to_keep=2, **KINDS[kind])
    async with af.Session() as session:
        await session.run(variable.initializer)
        step = variable.assign_add(np.ones(600, np.float32)).op
        with room_for(1 << 30) as room:
            await saver.save(session, f"{place}/m", 1)
        listed, before = saver.last_checkpoints, store_at(place).names()
        await session.run(step)
        for tenth in range(10):
            with room_for(room.used * tenth // 10), pytest.raises(ResourceExhaustedError):
                await saver.save(session, f"{place}/m", 2)
            assert store_at(place).names() == before, f"room for {tenth} tenths"
            assert saver.last_checkpoints == listed
        await saver.save(session, f"{place}/m", 2)
        assert saver.last_checkpoints == [f"{place}/m-1", f"{place}/m-2"]
        assert value(f"{place}/m-2") == 1.0

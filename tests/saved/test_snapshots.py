"""The values in a saved model are those of one moment, and are not copied for that."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.formats.checkpoint import write_checkpoint
from aioflow.interop import safetensors
from aioflow.saved import Signature, save, writing
from tests.saved.models import GIVEN, WANTED, built, graph_with_a_layer, outputs

SECONDS = 30
ROWS, WIDTH = 4096, 512  # 8 MiB of float32
BYTES = 4 * ROWS * WIDTH


async def test_save_makes_no_second_copy_of_the_weights(tmp_path: Path) -> None:
    with af.Graph().as_default():
        fed = af.placeholder("float32", [ROWS, WIDTH])
        tables = [af.Variable(np.zeros(1, np.float32), validate_shape=False, name=f"table{i}") for i in range(4)]
        fill = [af.assign(table, fed + float(i), validate_shape=False) for i, table in enumerate(tables)]
        y = af.add_n([af.reduce_sum(table) for table in tables])
        async with af.Session() as session:
            await session.run(fill, {fed: np.ones((ROWS, WIDTH), np.float32)})
            gc.collect()
            tracemalloc.start()
            try:
                await save(session, tmp_path / "m", Signature({}, {"y": y}))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert peak < BYTES, f"{peak / BYTES:.1f} of {len(tables)} variables were in memory twice"
    stored = safetensors.open(tmp_path / "m" / "weights.safetensors")
    for i, name in enumerate(f"table{i}" for i in range(4)):
        np.testing.assert_array_equal(stored[name], np.full((ROWS, WIDTH), 1.0 + i, np.float32))


@pytest.mark.parametrize("size", [ROWS, 3])
async def test_updates_during_the_save_are_not_saved(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Update large and small variables, by rows in place and as a whole."""
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(prefix: str, tensors: Any) -> None:
        begun.set()
        assert may_go_on.wait(SECONDS)
        write_checkpoint(prefix, tensors)

    monkeypatch.setattr(writing, "write_checkpoint", slow)
    with af.Graph().as_default():
        rows = af.Variable(np.zeros((size, WIDTH), np.float32), name="rows")
        whole = af.Variable(np.zeros((size, WIDTH), np.float32), name="whole")
        slices = af.IndexedSlices(af.ones([2, WIDTH]), af.constant([0, size - 1]))
        step = [rows.scatter_add(slices), whole.assign_add(af.ones_like(whole)).op]
        async with af.Session() as session, asyncio.TaskGroup() as group:
            await session.run(af.global_variables_initializer())
            await session.run(step)
            signature = Signature({}, {"y": af.reduce_sum(rows) + af.reduce_sum(whole)})
            group.create_task(save(session, tmp_path / "m", signature))
            assert await asyncio.to_thread(begun.wait, SECONDS)
            for _ in range(3):
                await session.run(step)
            may_go_on.set()
    stored = safetensors.open(tmp_path / "m" / "weights.safetensors")
    np.testing.assert_array_equal(stored["whole"], np.ones((size, WIDTH)))
    np.testing.assert_array_equal(stored["rows"][[0, -1]], np.ones((2, WIDTH)))
    assert not np.any(stored["rows"][1:-1])


async def test_closed_session_cannot_save(tmp_path: Path) -> None:
    async with built() as (session, model):
        pass
    with pytest.raises(errors.ClosedSessionError):
        await save(session, tmp_path / "m", model.signature)


async def test_finalized_graph_can_be_saved(tmp_path: Path) -> None:
    """Saving adds no node to the graph."""
    async with built() as (session, model):
        model.graph.finalize()
        await save(session, tmp_path / "m", model.signature)
    assert sorted(safetensors.open(tmp_path / "m" / "weights.safetensors")) == ["layer/b", "layer/w"]


async def test_variables_of_other_tasks_are_read_from_there(tmp_path: Path) -> None:
    model = graph_with_a_layer()
    with model.graph.as_default():
        start = af.global_variables_initializer()
    async with af.train.Server.create_local_server() as server, af.Session(server.target, model.graph) as session:
        await session.run(start)
        await save(session, tmp_path / "m", model.signature)
    np.testing.assert_allclose((await outputs(tmp_path / "m", x=GIVEN))["y"], WANTED, rtol=1e-6)

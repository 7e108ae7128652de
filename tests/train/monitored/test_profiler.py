"""Traces of steps as files for chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import UnimplementedError


def written(path: Path) -> dict[str, dict[str, Any]]:
    """Return the traces in a folder, by step."""
    return {p.stem.removeprefix("timeline-"): json.loads(p.read_text()) for p in path.glob("timeline-*.json")}


async def test_a_traced_run_is_written(tmp_path: Path) -> None:
    update = af.train.get_or_create_global_step().assign_add(1, read_value=False)
    x = af.placeholder("float32", [64, 64])
    product = af.matmul(x, x, name="product")
    hook = af.train.ProfilerHook(save_steps=2, output_dir=tmp_path / "traces")
    async with af.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            await session.run([product, update], {x: [[1.0] * 64] * 64})
    traces = written(tmp_path / "traces")
    assert traces.keys() == {"2", "4"}
    for trace in traces.values():
        assert "MatMul" in {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"}


def test_show_memory_is_not_supported() -> None:
    with pytest.raises(UnimplementedError):
        af.train.ProfilerHook(save_steps=1, show_memory=True)

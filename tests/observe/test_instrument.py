"""OpenTelemetry spans of steps, collected by its SDK, and their propagation to workers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError, UnimplementedError
from aioflow.net import messages, worker_service
from aioflow.observe import instrument
from tests.net.clusters import cluster
from tests.net.plain_client import PlainClient
from tests.support.waiting import until_waiting

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
PS, WORKER = (f"/job:{job}/replica:0/task:0" for job in ("ps", "worker"))


class Seen(NamedTuple):
    """A tracer provider and its finished spans."""

    provider: TracerProvider
    memory: InMemorySpanExporter

    def spans(self) -> list[ReadableSpan]:
        return list(self.memory.get_finished_spans())

    def one(self) -> ReadableSpan:
        (span,) = self.spans()
        return span


@pytest.fixture
def seen() -> Iterator[Seen]:
    provider, memory = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    yield Seen(provider, memory)
    provider.shutdown()


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def number(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


async def test_step_is_a_child_span_of_the_caller(seen: Seen) -> None:
    x = af.placeholder("float32", [], name="x")
    y = af.add(x, 1.0, name="y")
    async with af.Session() as session:
        await session.run(y, {x: 1.0})
        with instrument(session, tracer_provider=seen.provider):
            with seen.provider.get_tracer("test").start_as_current_span("request") as request:
                assert await session.run([y, y.op], {x: 1.0}) == [2.0, None]
            assert await session.make_callable(y, [x])(2.0) == 3.0
        await session.run(y, {x: 1.0})
    step, _, called = seen.spans()
    assert step.name == called.name == "aioflow.step"
    assert attributes(step) == {"aioflow.fetches": ("y:0", "y"), "aioflow.devices": (CPU,)}
    assert step.parent is not None
    assert step.parent.span_id == request.get_span_context().span_id
    assert called.parent is None
    assert step.status.status_code is StatusCode.UNSET


async def test_error_is_recorded_with_its_node(seen: Seen) -> None:
    x = af.placeholder("float32", [None])
    y = af.reshape(x, [2, 3], name="six")
    async with af.Session() as session, asyncio.timeout(30):
        with instrument(session, tracer_provider=seen.provider), pytest.raises(InvalidArgumentError):
            await session.run(y, {x: [1.0]})
    span = seen.one()
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "InvalidArgumentError"
    assert attributes(span)["aioflow.node"] == "six"
    assert [event.name for event in span.events] == ["exception"]


async def test_cancelled_step_is_marked(seen: Seen) -> None:
    queue = af.FIFOQueue(1, ["float32"])
    element = queue.dequeue()
    async with af.Session() as session:
        with instrument(session, tracer_provider=seen.provider):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(session.run(element))
                await until_waiting(session)
                task.cancel()
    assert attributes(seen.one())["aioflow.cancelled"] is True


async def test_instrument_covers_all_sessions_of_the_process(seen: Seen) -> None:
    y = af.constant(1.0, name="y")
    async with af.Session() as before:
        await before.run(y)
        with instrument(tracer_provider=seen.provider):
            await before.run(y)
            async with af.Session() as session:
                await session.run(y)
                assert len(seen.spans()) == 2
            kept = af.Session()
        async with kept:
            await kept.run(y)
            await before.run(y)
    assert len(seen.spans()) == 2, "it has been removed"


async def test_parts_on_workers_are_child_spans_of_the_step(seen: Seen) -> None:
    # Both servers are in this process. The session calls its target's worker without a connection, so only the other
    # worker has a SERVER span.
    y = on_both()
    async with cluster("ps", "worker", tcp=True) as (ps, _):
        with instrument(tracer_provider=seen.provider):
            async with af.Session(ps.target) as session:
                await session.run(y)
    spans = {(span.kind, attributes(span).get("aioflow.task")): span for span in seen.spans()}
    step = spans[SpanKind.INTERNAL, None]
    served = spans[SpanKind.SERVER, WORKER]
    for task in (PS, WORKER):
        part = spans[SpanKind.CLIENT, task]
        assert part.parent is not None
        assert part.parent.span_id == number(step)
    assert served.parent is not None
    assert served.parent.span_id == number(spans[SpanKind.CLIENT, WORKER])
    assert len(spans) == len(seen.spans()) == 4


def on_both() -> af.Tensor:
    with af.device(PS):
        x = af.random_uniform([8], name="x")
    with af.device(WORKER):
        return af.multiply(x, 2.0, name="y")


async def test_span_is_not_sent_to_a_worker_without_support(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = messages._fields
    known = {name: accepts for name, accepts in fields(messages.Run)[0].items() if name != "traceparent"}
    monkeypatch.setattr(messages, "_fields", lambda kind: (known, ()) if kind is messages.Run else fields(kind))
    monkeypatch.setattr(worker_service, "UNDERSTANDS", "of a later release")
    y = on_both()
    async with cluster("ps", "worker", tcp=True) as (ps, _), af.Session(ps.target) as session:
        with instrument(session, tracer_provider=seen.provider):
            for _ in range(3):
                await session.run(y)
    assert sum(span.name == "aioflow.part" for span in seen.spans()) == 6


async def test_worker_announces_the_traceparent_field() -> None:
    async with cluster("ps", tcp=True) as (ps,):
        host, _, port = ps.target.removeprefix("aioflow://").rpartition(":")

        def ask() -> Any:
            with PlainClient((host, int(port)), 5) as client:
                return client.call("understands", {})[0]

        assert await asyncio.to_thread(ask) == {"fields": ["traceparent"]}


def test_missing_package_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "aioflow.observe.open_telemetry", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(UnimplementedError) as raised:
        instrument()
    assert "pip install 'aioflow-engine[telemetry]'" in raised.value.message


def test_instrument_rejects_anything_but_a_session() -> None:
    with pytest.raises(DTypeError):
        instrument("grpc://localhost:2222")  # type: ignore[arg-type]

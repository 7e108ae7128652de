"""OpenTelemetry spans. Only the API package is needed; the program chooses an SDK and exporters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, TracerProvider, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aioflow.errors import OpError
from aioflow.release import RELEASE

_MOST_NAMES: Final = 16  # maximum number of fetches and of devices: people read these attributes
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_TRACEPARENT: Final = "traceparent"


class OpenTelemetrySpans:
    """Spans of OpenTelemetry, with the interface of `runtime.spans.Spans`.

    Args:
        provider: Provider of the spans; None for the global one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("aioflow", RELEASE, tracer_provider=provider)

    def step(self, fetches: Sequence[str], devices: Sequence[str]) -> AbstractContextManager[None]:
        """Open the span of a step of a session."""
        names = {"aioflow.fetches": list(fetches[:_MOST_NAMES]), "aioflow.devices": list(devices[:_MOST_NAMES])}
        return self._span("aioflow.step", SpanKind.INTERNAL, names)

    def part(self, task: str) -> AbstractContextManager[None]:
        """Open the client's span of a step's part on a worker."""
        return self._span("aioflow.part", SpanKind.CLIENT, {"aioflow.task": task})

    def served(self, task: str, step: int, traceparent: str) -> AbstractContextManager[None]:
        """Open the worker's span of a part."""
        # An empty context, so that no span of this process becomes the parent.
        context = _PROPAGATOR.extract({_TRACEPARENT: traceparent}, Context())
        attributes: dict[str, str | Sequence[str]] = {"aioflow.task": task, "aioflow.step": str(step)}
        return self._span("aioflow.part", SpanKind.SERVER, attributes, context)

    def traceparent(self) -> str | None:
        """Return the current span as a `traceparent` header, or None."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier.get(_TRACEPARENT)

    @contextmanager
    def _span(
        self, name: str, kind: SpanKind, attributes: Mapping[str, str | Sequence[str]], context: Context | None = None
    ) -> Iterator[None]:
        with self._tracer.start_as_current_span(name, context, kind, attributes) as span:
            try:
                yield
            except asyncio.CancelledError:
                span.set_attribute("aioflow.cancelled", True)
                raise
            except OpError as error:
                span.set_attribute("error.type", type(error).__name__)
                if error.node is not None:
                    span.set_attribute("aioflow.node", error.node)
                raise

"""Imported by a worker: its spans become lines of the file that SPANS_FILE names."""

from __future__ import annotations

import os
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from aioflow.observe import instrument

_FILE = Path(os.environ["SPANS_FILE"]).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115  # as long as the process
_PROVIDER = TracerProvider()
_PROVIDER.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=_FILE, formatter=lambda span: (span.to_json(indent=None) or "") + "\n"))
)
instrument(tracer_provider=_PROVIDER)

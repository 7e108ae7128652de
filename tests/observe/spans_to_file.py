"""Module for workers to import: writes their spans as lines of the file named by SPANS_FILE."""

from __future__ import annotations

import os
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from aioflow.observe import instrument

_FILE = Path(os.environ["SPANS_FILE"]).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115  # open until the process ends
_PROVIDER = TracerProvider()
_PROVIDER.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=_FILE, formatter=lambda span: (span.to_json(indent=None) or "") + "\n"))
)
instrument(tracer_provider=_PROVIDER)

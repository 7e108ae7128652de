"""`instrument`: spans of steps for OpenTelemetry, whose package is an extra and is imported only here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

from aioflow.errors import DTypeError
from aioflow.loading.later import not_installed
from aioflow.runtime.spans import Spans, process_spans, set_process_spans


class _Reporting(Protocol):
    """The part of a session that `instrument` uses."""

    def report_spans(self, spans: Spans | None) -> None: ...


class _TracerProvider(Protocol):
    """The part of OpenTelemetry's tracer provider that `instrument` uses."""

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any: ...


class Instrumentation:
    """The handle of a call of `instrument`. `remove`, or the end of a `with` block, ends the reporting."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Stop reporting spans."""
        self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def instrument(session: _Reporting | None = None, *, tracer_provider: _TracerProvider | None = None) -> Instrumentation:
    """Report each step as a span to OpenTelemetry.

    A step is a span "aioflow.step" with its fetches and devices, a child of its caller's span. On several workers each
    part is a span "aioflow.part" within it, and its context is sent to the worker. If that process has also called
    `instrument()`, its own span of the part is a child of the client's. An error is recorded, with its node, in each
    span that it passes through.

    Args:
        session: Session to report. By default all sessions of this process, and the parts that its servers run for
            other processes.
        tracer_provider: Provider to report to; by default OpenTelemetry's global one.

    Raises:
        DTypeError: `session` is not a session.
        UnimplementedError: opentelemetry-api is not installed (the extra `telemetry`).
    """
    if session is not None and not hasattr(session, "report_spans"):
        raise DTypeError("only a session can be instrumented", expected="an aioflow.Session", actual=repr(session))
    spans = _spans(tracer_provider)
    if session is not None:
        session.report_spans(spans)
        return Instrumentation(lambda: session.report_spans(None))

    def remove() -> None:
        # A later call of `instrument` may have replaced these spans.
        if process_spans() is spans:
            set_process_spans(None)

    set_process_spans(spans)
    return Instrumentation(remove)


def _spans(tracer_provider: _TracerProvider | None) -> Spans:
    try:
        module = import_module("aioflow.observe.open_telemetry")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise not_installed("instrumentation", "opentelemetry-api", error, "telemetry") from error
    spans: Spans = module.OpenTelemetrySpans(tracer_provider)
    return spans

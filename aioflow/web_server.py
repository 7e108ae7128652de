"""uvicorn inside somebody else's program: the signals and the logging are the program's."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import uvicorn

__all__ = ["EmbeddedServer", "EmbeddedSettings"]


class EmbeddedSettings(uvicorn.Config):
    """Settings of a server. Logging is left alone: uvicorn would close the handlers that the program has."""

    def configure_logging(self) -> None:
        """The program does that, if it wants to."""


class EmbeddedServer(uvicorn.Server):
    """A server in an event loop whose owner keeps his signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """None of them."""
        yield

"""Where a partial run meets its caller; apart from the kernels, which can be imported only after the ops."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["EXCHANGE", "Exchange"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A future for each feed and each fetch of one step."""

    feeds: tuple[asyncio.Future[Any], ...]
    fetches: tuple[asyncio.Future[Any], ...]


EXCHANGE: Final[ContextVar[Exchange]] = ContextVar("aioflow_partial_run")  # of the step that runs in this context

"""The exchange of feeds and fetches between a partial run and its caller.

It is separate from the kernels, which can be imported only after the ops.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from aioflow.memory.values import Value


@dataclass(frozen=True, slots=True)
class Exchange:
    """A future for each feed and each fetch of one step."""

    feeds: tuple[asyncio.Future[Value], ...]
    fetches: tuple[asyncio.Future[Value], ...]


EXCHANGE: Final[ContextVar[Exchange]] = ContextVar("aioflow_partial_run")  # of the step running in this context

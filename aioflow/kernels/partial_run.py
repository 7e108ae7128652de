"""Kernels of a partial run: a feed waits until it is fed, a fetch hands its value out as soon as it is there."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from aioflow.kernels.registry import kernel

__all__ = ["EXCHANGE", "Exchange"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Where one step meets its caller: a future for each feed and each fetch."""

    feeds: tuple[asyncio.Future[Any], ...]
    fetches: tuple[asyncio.Future[Any], ...]


EXCHANGE: Final[ContextVar[Exchange]] = ContextVar("aioflow_partial_run")  # of the step that runs in this context


@kernel("_PartialFeed", fresh=True)
async def partial_feed(*, index: int) -> Any:
    return await EXCHANGE.get().feeds[index]


@kernel("_PartialFetch", retains=True)
async def partial_fetch(value: Any, *, index: int) -> None:
    EXCHANGE.get().fetches[index].set_result(value)

"""Kernels of a partial run: a feed waits until it is fed, a fetch hands its value out as soon as it is there."""

from __future__ import annotations

from typing import Any

from aioflow.kernels.exchange import EXCHANGE
from aioflow.kernels.registry import kernel

__all__: list[str] = []


@kernel("_PartialFeed", fresh=True)
async def partial_feed(*, index: int) -> Any:
    return await EXCHANGE.get().feeds[index]


@kernel("_PartialFetch", retains=True, opaque=True)
async def partial_fetch(value: Any, *, index: int) -> None:
    EXCHANGE.get().fetches[index].set_result(value)

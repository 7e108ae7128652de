"""Kernels of a partial run: a feed waits for its value, a fetch delivers its value as soon as it is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Value
from aioflow.sync.partial_run import EXCHANGE


class _Feed:
    """An awaitable for a value that has not been fed yet."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Value]) -> None:
        self._future = future

    def __await__(self) -> Generator[object, None, Value]:
        return self._future.__await__()

    @staticmethod
    def describe() -> str:
        """Return a description of the wait, like `Waiting.describe`."""
        return "a value that has not been fed yet"


@binder("_PartialFeed", is_async=True, fresh=True)
def partial_feed(binding: Binding) -> Callable[[], _Feed]:
    index: int = binding.attrs["index"]
    return lambda: _Feed(EXCHANGE.get().feeds[index])


@kernel("_PartialFetch", retains=True, opaque=True)
async def partial_fetch(value: Value, *, index: int) -> None:
    EXCHANGE.get().fetches[index].set_result(value)

"""Tasks that end by themselves with the block in which a service runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["running"]


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[asyncio.TaskGroup]:
    """A group whose tasks end by themselves at the end of the block; what that raises comes out as it is."""
    group = asyncio.TaskGroup()
    await group.__aenter__()
    try:
        yield group
    finally:
        await group.__aexit__(None, None, None)

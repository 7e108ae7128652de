"""A task group for the tasks of a service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a group whose tasks must end on their own at the end of the block.

    An error of the block is raised as it is, not in an ExceptionGroup.
    """
    group = asyncio.TaskGroup()
    await group.__aenter__()
    try:
        yield group
    finally:
        # Without the error: given one, the group would cancel its tasks and wrap the error.
        await group.__aexit__(None, None, None)

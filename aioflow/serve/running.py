"""A task group for the tasks of a service, and work beside its event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

from aioflow.concurrency.threads import in_thread

T = TypeVar("T")
_LARGE: Final = 1 << 18  # bytes of work on the event loop; larger bodies, messages and arrays are processed in a thread


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


async def beside(size: int, work: Callable[..., T], *args: object) -> T:
    """Call `work`, in a thread if its `size` in bytes would delay the event loop."""
    if size > _LARGE:
        return await in_thread(work, *args, effects=False)
    return work(*args)

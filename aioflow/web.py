"""For web services: a step that ends with the client who asked for it.

ASGI servers do not cancel a handler whose client has gone: they only tell whoever asks. No framework is needed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar

from aioflow.errors import ClientDisconnectedError, FailedPreconditionError
from aioflow.work.later import load_later as _load_later

__all__ = ["until_disconnect"]

T = TypeVar("T")


async def until_disconnect(receive: Callable[[], Awaitable[Mapping[str, Any]]], work: Awaitable[T]) -> T:
    """The result of some work, usually of a step; it is cancelled when the client of the request goes away.

        rows = await request.json()
        result = await aioflow.web.until_disconnect(request.receive, predict(rows))

    The body of the request must have been read before, since its messages come the same way. The work runs in the task
    of the caller: its errors come out as they are, and when the caller is cancelled, so is the work.

    A response that streams (`StreamingResponse`) watches for the client itself. aiohttp has no `receive`: there, the
    handler is cancelled if the application runs with `handler_cancellation=True`.

    Args:
        receive: The ASGI receive channel; `request.receive` in Starlette and FastAPI.
        work: Whatever can be awaited.

    Raises:
        ClientDisconnectedError: the client has gone away, and the work has been stopped.
        FailedPreconditionError: the body has not been read.
    """
    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch(receive))
            try:
                result = await work
            except Exception as error:  # raised below: the group would put it into an ExceptionGroup
                failure = error
            finally:
                watcher.cancel()
    except ExceptionGroup as ended:  # the watcher is the only one in the group
        raise ended.exceptions[0] from failure
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # whose traceback holds this frame
    return result


async def _watch(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> NoReturn:
    """Raise when the client goes away."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("body") and not message.get("more_body"):
        message = await receive()  # that was the end of a body that is empty
    if message["type"] != "http.disconnect":
        raise FailedPreconditionError(
            "the body of the request has not been read", expected="http.disconnect", actual=message["type"]
        )
    raise ClientDisconnectedError("the client has gone away, and what it asked for was stopped")


_load_later(__name__)

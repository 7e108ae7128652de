"""The line between a supervisor and one of its processes: each end asks the other, in JSON, over a pair of sockets.

A line that ends says that the other end is gone: whoever waits for an answer gets an UnavailableError, and `run`
returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aioflow.errors import DeadlineExceededError, UnavailableError

__all__ = ["Handlers", "Line", "open_line"]

_LOG: Final = logging.getLogger("aioflow.serve")
_MOST: Final = 1 << 28  # bytes of a message: more than any answer has that is passed on

Handlers = Mapping[str, Callable[..., Awaitable[Any]]]


class Line:
    """One end.

    Args:
        handlers: What the other end may ask: coroutine functions of its arguments, by name.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Handlers) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._is_over = False

    async def run(self) -> None:
        """Answer requests until the other end closes the channel, or sends what is not a message."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks: set[asyncio.Task[None]] = set()
                try:
                    # A process that is killed while it writes leaves a message without its end.
                    while (text := await self._reader.readline()).endswith(b"\n"):
                        self._hear(json.loads(text), group, tasks)
                except ConnectionError:
                    pass
                except ValueError as error:
                    _LOG.error("the other process sent what is not a message: %s", error)
                self.close()
                for task in tasks:
                    task.cancel()
        finally:
            self.close()

    def _hear(self, message: dict[str, Any], group: asyncio.TaskGroup, tasks: set[asyncio.Task[None]]) -> None:
        number = message["number"]
        if "ask" in message:
            task = group.create_task(self._answer(number, message["ask"], message["arguments"]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return
        waiting = self._answers.pop(number, None)
        if waiting is None or waiting.done():
            return
        if "failed" in message:
            waiting.set_exception(UnavailableError(message["failed"]))
        else:
            waiting.set_result(message["answer"])

    async def _answer(self, number: int, what: str, arguments: dict[str, Any]) -> None:
        try:
            answer = {"number": number, "answer": await self._handlers[what](**arguments)}
        except Exception as error:
            _LOG.exception("%r could not be answered", what)
            answer = {"number": number, "failed": f"{type(error).__name__}: {error}"}
        self._send(answer)

    def _send(self, message: dict[str, Any]) -> None:
        # Under uvloop a write raises once the transport is closed, which `run` may not have been told yet.
        if not (self._is_over or self._writer.is_closing()):
            self._writer.write(json.dumps(message).encode() + b"\n")

    def tell(self, what: str, **arguments: Any) -> None:
        """Ask, and wait for nothing."""
        self._send({"number": next(self._numbers), "ask": what, "arguments": arguments})

    async def ask(self, what: str, seconds: float | None = None, **arguments: Any) -> Any:
        """What the other end answers.

        Raises:
            UnavailableError: it is gone, or goes meanwhile.
            DeadlineExceededError: it does not answer within so many seconds.
        """
        if self._is_over:
            raise UnavailableError("the process has ended")
        number = next(self._numbers)
        waiting = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                self._send({"number": number, "ask": what, "arguments": arguments})
                return await waiting
        except TimeoutError as error:
            raise DeadlineExceededError("a process does not answer", expected=f"within {seconds} s") from error
        finally:
            self._answers.pop(number, None)

    def close(self) -> None:
        """End it, for both."""
        if self._is_over:
            return
        self._is_over = True
        self._writer.close()  # which sends what is still to be sent
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(UnavailableError("the process has ended"))

    async def finish(self) -> None:
        """End it when all has been sent."""
        self.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def open_line(end: socket.socket, handlers: Handlers) -> Line:
    """The end of a line that this socket is."""
    return Line(*await asyncio.open_connection(sock=end, limit=_MOST), handlers)

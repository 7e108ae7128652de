"""The channel between a supervisor and a serving process: remote calls in both directions, as JSON over a socket pair.

When one end is closed, or its process has ended, pending calls at the other end fail with UnavailableError, and `run`
returns there.
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
from aioflow.serve.protocol.json_text import JsonObject

_LOG: Final = logging.getLogger("aioflow.serve")
_MAX_MESSAGE: Final = 1 << 28  # bytes: larger than any response that is passed on

Functions = Mapping[str, Callable[..., Awaitable[Any]]]


class ProcessChannel:
    """One end of a channel.

    Args:
        reader: The stream from the other end.
        writer: The stream to the other end.
        functions: Coroutine functions that the other end may call, by name. Arguments and results are JSON.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, functions: Functions) -> None:
        self._reader = reader
        self._writer = writer
        self._functions = functions
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._is_closed = False

    async def run(self) -> None:
        """Answer calls until the other end closes or sends a malformed message."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks: set[asyncio.Task[None]] = set()
                try:
                    # A process that is killed while it writes leaves an incomplete message.
                    while (line := await self._reader.readline()).endswith(b"\n"):
                        message = json.loads(line)
                        if "call" in message:
                            tasks.add(task := group.create_task(self._run(**message)))
                            task.add_done_callback(tasks.discard)
                        else:
                            self._resolve(**message)
                except ConnectionError:
                    pass
                except ValueError as error:
                    _LOG.error("the other process sent a malformed message: %s", error)
                self.close()
                for task in tasks:
                    task.cancel()
        finally:
            self.close()

    async def _run(self, number: int | None, call: str, arguments: JsonObject) -> None:
        try:
            response = {"number": number, "result": await self._functions[call](**arguments)}
        except Exception as error:
            _LOG.exception("%r failed", call)
            response = {"number": number, "error": f"{type(error).__name__}: {error}"}
        if number is not None:
            self._send(response)

    def _resolve(self, number: int, result: object = None, error: str | None = None) -> None:
        call = self._calls.pop(number, None)
        if call is None or call.done():
            return
        if error is None:
            call.set_result(result)
        else:
            call.set_exception(UnavailableError(error))

    def _send(self, message: JsonObject) -> None:
        # Under uvloop a write raises once the transport is closed, and `run` may not have noticed that yet.
        if not (self._is_closed or self._writer.is_closing()):
            self._writer.write(json.dumps(message).encode() + b"\n")

    def notify(self, function: str, **arguments: object) -> None:
        """Call a function of the other end without waiting for a result."""
        self._send({"number": None, "call": function, "arguments": arguments})

    async def call(self, function: str, timeout: float | None = None, **arguments: object) -> Any:
        """Call a function of the other end and return its result.

        Raises:
            UnavailableError: the function failed, or the other process has ended.
            DeadlineExceededError: there is no result after `timeout` seconds.
        """
        if self._is_closed:
            raise UnavailableError("the process has ended")
        number = next(self._numbers)
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                self._send({"number": number, "call": function, "arguments": arguments})
                return await call
        except TimeoutError as error:
            raise DeadlineExceededError("the process did not answer", expected=f"within {timeout} s") from error
        finally:
            self._calls.pop(number, None)

    def close(self) -> None:
        """Close the channel. Messages that were sent before still arrive. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(UnavailableError("the process has ended"))

    async def finish(self) -> None:
        """Close the channel, and wait until all messages are sent."""
        self.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def open_channel(end: socket.socket, functions: Functions) -> ProcessChannel:
    """Return a channel over one socket of a pair."""
    return ProcessChannel(*await asyncio.open_connection(sock=end, limit=_MAX_MESSAGE), functions)

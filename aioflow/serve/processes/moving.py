"""Connections that go from one process of the service to another while their clients know nothing of it.

A process that is replaced hands on each connection that has no request in it: the other end, and whatever it sends in
that moment, is in the kernel, which keeps both. What is handed on lies in a socket that all processes share, until one
takes it. A connection with TLS has a state of its own and cannot change hands: it is closed after its last answer, as
HTTP has it.
"""

from __future__ import annotations

import array
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aioflow.web_server import Connection

__all__ = ["MovingProtocol", "hand_on", "take"]

_FD: Final = array.array("i").itemsize
_AGAIN: Final = 0.01  # seconds until what could not be handed on is tried again

HandOn = Callable[[socket.socket], bool]


def hand_on(shared: socket.socket, connection: socket.socket) -> bool:
    """Put a connection into the socket that all share; whether there was room."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))]
    try:
        shared.sendmsg([b"c"], rights, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


def take(shared: socket.socket) -> socket.socket | None:
    """A connection that was put there. None where another process was quicker."""
    try:
        _, control, _, _ = shared.recvmsg(1, socket.CMSG_SPACE(_FD), socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return None
    numbers = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % _FD])
    return socket.socket(fileno=numbers[0]) if numbers else None


class MovingProtocol(Connection, HttpToolsProtocol):
    """A connection that is handed on when it is asked to leave, as soon as no request is in it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._hand_on: HandOn | None = None
        self._is_amid = False

    def on_message_begin(self) -> None:
        self._is_amid = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._is_amid = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._hand_on is not None and self.scheme != "https":
            self.loop.call_soon(self._move)

    def expect(self) -> None:
        """Wait for a request no longer than after an answer: it had one elsewhere, before it was handed on."""
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def leave(self, hand_on: HandOn) -> None:
        """Have it handed on by this, now or after its last answer."""
        if self._hand_on is not None:
            return
        self._hand_on = hand_on
        if self.scheme == "https":
            self.shutdown()
        else:
            self._move()

    @property
    def _is_idle(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return not self._is_amid and not self.pipeline and (cycle is None or cycle.response_complete)

    def _move(self) -> None:
        hand_on = self._hand_on
        if hand_on is None or self.transport.is_closing() or not self._is_idle:
            return
        self.transport.pause_reading()
        if self.transport.get_write_buffer_size() or not self._has_moved(hand_on):
            self.loop.call_later(_AGAIN, self._move)
            return
        self.transport.abort()  # which closes this process's descriptor of it, and not the connection

    def _has_moved(self, hand_on: HandOn) -> bool:
        connection: Any = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError), socket.socket(fileno=socket.dup(connection.fileno())) as copy:
            return hand_on(copy)
        return False

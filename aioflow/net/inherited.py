"""Detaching a forked child from the sockets of its parent.

A connection ends only when the last copy of its socket is closed. A child that outlives its parent would keep its
connections open and its port occupied. And data that the child writes would reach the parent's peer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from aioflow.concurrency.forking import renew_in_child


class Inherited:
    """Sockets of this process, which are disconnected in forked children."""

    def __init__(self, sockets: Iterable[Any] = ()) -> None:
        self._sockets = list(sockets)
        renew_in_child(self)

    def add(self, socket: Any) -> None:
        """Add a socket."""
        self._sockets.append(socket)

    def after_fork(self) -> None:
        """Redirect the child's copies of the sockets to the null device."""
        # Not closed: their owners close them again later, when the numbers may belong to other files.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in [socket.fileno() for socket in self._sockets]:
                if number >= 0:
                    os.dup2(nowhere, number, inheritable=False)
            os.close(nowhere)

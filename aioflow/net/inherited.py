"""Sockets that a forked child inherits, and has no part in.

A connection ends when the last copy of its socket is closed: a child that lives on would keep its parent's open after
the parent has died, and the parent's port taken. And what a child writes into its copy reaches the parent's peer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from aioflow.work.forking import renew_in_child

__all__ = ["Inherited"]


class Inherited:
    """Sockets of this process, which lead nowhere in a child."""

    def __init__(self, sockets: Iterable[Any] = ()) -> None:
        self._sockets = list(sockets)
        renew_in_child(self)

    def add(self, socket: Any) -> None:
        """One more."""
        self._sockets.append(socket)

    def after_fork(self) -> None:
        """Put another file in the place of each: if they were closed, whoever closes them again would hit others."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in [socket.fileno() for socket in self._sockets]:
                if number >= 0:
                    os.dup2(nowhere, number, inheritable=False)
            os.close(nowhere)

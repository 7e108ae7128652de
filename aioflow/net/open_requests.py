"""What is asked by one connection and not answered yet: so many requests, of so many bytes, of which all clients of a
worker have so many together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aioflow.errors import ResourceExhaustedError
from aioflow.net.limits import Limits
from aioflow.net.quota import Quota

__all__ = ["OpenRequests", "all_open_requests"]

_ANY: Final = 1 << 62


def all_open_requests(limits: Limits) -> Quota:
    """Those of all clients of a worker."""
    return Quota("bytes of the open requests of all clients", _ANY, limits.all_open_bytes)


class OpenRequests:
    """Those of one connection.

    Args:
        everybody: Those of all connections, if they have a bound.
    """

    __slots__ = ("_ending", "_everybody", "_most", "_own")

    def __init__(self, limits: Limits, everybody: Quota | None = None) -> None:
        self._own = Quota("too many open requests", limits.open_requests, limits.open_bytes)
        self._everybody = everybody
        self._most = limits.open_requests
        self._ending = 0  # that their caller has given up

    def take(self, tensors: Sequence[Any]) -> int:
        """One more, with these tensors; returns what `give` must be told.

        Raises:
            ResourceExhaustedError: that is too much. Nothing of the request is looked at.
        """
        size = sum(tensor.nbytes for tensor in tensors) if tensors else 0
        try:
            self._own.take(1, size)
            if self._everybody is not None:
                try:
                    self._everybody.take(1, size)
                except ResourceExhaustedError:
                    self._own.give(1, size)
                    raise
        except ResourceExhaustedError as error:
            error.may_have_been_applied = False
            raise
        return size

    def give_up(self) -> bool:
        """The caller of one does not wait for it any more, and may ask for something else before it has stopped.

        Returns:
            Whether it counts no more: so many of these are let go before they have stopped as may be open. Their bytes
            count to the end.
        """
        if self._ending >= self._most:
            return False
        self._ending += 1
        self._own.give(1, 0)
        return True

    def give(self, size: int, given_up: bool = False) -> None:
        """One is answered, or has stopped.

        Args:
            given_up: What `give_up` has said of it.
        """
        self._ending -= given_up
        self._own.give(0 if given_up else 1, size)
        if self._everybody is not None:
            self._everybody.give(1, size)

"""Limits on unanswered requests: number and bytes per connection, and bytes over all clients of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aioflow.errors import ResourceExhaustedError
from aioflow.memory.values import Array
from aioflow.net.limits import Limits
from aioflow.net.quota import Quota

# Only the bytes of all clients together are limited, not the number of requests.
_ANY: Final = 1 << 62


def all_open_requests(limits: Limits) -> Quota:
    """Return the quota for the open requests of all clients of a worker."""
    return Quota("bytes of the open requests of all clients", _ANY, limits.all_open_bytes)


class OpenRequests:
    """The open requests of one connection.

    `limits` are those of the connection. `everybody` is the quota over all connections, if there is one.
    """

    __slots__ = ("_ending", "_everybody", "_most", "_own")

    def __init__(self, limits: Limits, everybody: Quota | None = None) -> None:
        self._own = Quota("too many open requests", limits.open_requests, limits.open_bytes)
        self._everybody = everybody
        self._most = limits.open_requests
        self._ending = 0  # requests abandoned by their caller that have not stopped yet

    def take(self, tensors: Sequence[Array]) -> int:
        """Count a request with these tensors, and return the size to pass to `give`.

        Raises:
            ResourceExhaustedError: a limit is exceeded. The request must then be rejected unread.
        """
        size = sum(tensor.nbytes for tensor in tensors) if tensors else 0
        try:
            self._own.take(1, size)
            if self._everybody is not None:
                try:
                    self._everybody.take(1, size)
                except ResourceExhaustedError:
                    # A request counts in both quotas or in none.
                    self._own.give(1, size)
                    raise
        except ResourceExhaustedError as error:
            error.may_have_been_applied = False
            raise
        return size

    def give_up(self) -> bool:
        """Stop counting a request whose caller has given up, as far as possible.

        The caller may send another request before the abandoned one has stopped.

        Returns:
            True if the request no longer counts. At most as many abandoned requests as may be open are uncounted in
            this way. Their bytes count until they have stopped.
        """
        if self._ending >= self._most:
            return False
        self._ending += 1
        self._own.give(1, 0)
        return True

    def give(self, size: int, given_up: bool = False) -> None:
        """Uncount a request that was answered or has stopped.

        Args:
            size: The size that `take` returned.
            given_up: The result of `give_up` for this request.
        """
        self._ending -= given_up
        self._own.give(0 if given_up else 1, size)
        if self._everybody is not None:
            self._everybody.give(1, size)

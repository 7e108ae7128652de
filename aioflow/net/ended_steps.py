"""The ids of steps that have ended on a worker, or will never start there, without I/O.

The latest hundred thousand are remembered. Each id counts for the client that sent it, and the client with the most
loses its oldest. A client that invents ids therefore displaces only its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from aioflow.errors import OpError

_MOST: Final = 100_000


@dataclass(slots=True, eq=False)
class _End:
    """The end of a step.

    Attributes:
        id: Id of the step.
        error: The error for a client that starts it late; None if it has ended normally.
        whom: The client that may not start it; None for all clients.
        changed: Whether it has made permanent changes.
    """

    id: int
    error: OpError | None
    whom: Hashable
    changed: bool


class EndedSteps:
    """The memory of ended steps. A client is any hashable key; None stands for those that have disconnected.

    Args:
        most: Maximum number of steps, of all clients.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._ends: dict[int, _End] = {}
        # By client. Finding the oldest key of a dictionary is slow after many deletions, so there is a queue, too.
        self._orders: dict[Hashable, deque[_End]] = {}
        self._count = 0  # of all queues, also of ends that another end of the same step has replaced

    def __contains__(self, id: int) -> bool:
        return id in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def refuses(self, id: int, client: Hashable) -> bool:
        """Return True if the client may not start the step."""
        end = self._ends.get(id)
        return end is not None and (end.whom is None or end.whom == client)

    def error(self, id: int) -> OpError | None:
        """Return why the step has ended or will not start; None if it is unknown or has ended normally."""
        end = self._ends.get(id)
        return None if end is None else end.error

    def has_changed(self, id: int) -> bool:
        """Return True if the step has run and has made permanent changes."""
        end = self._ends.get(id)
        return end is not None and end.changed

    def set_changed(self, id: int) -> None:
        """Record that the step has made permanent changes after all."""
        end = self._ends.get(id)
        if end is not None:
            end.changed = True

    def add(
        self, id: int, error: OpError | None, client: Hashable, whom: Hashable = None, changed: bool = False
    ) -> None:
        """Record that a step has ended or will not start.

        Args:
            id: Id of the step.
            error: As for `_End`.
            client: The client that the id counts for.
            whom: The client that may not start it; None for all clients.
            changed: Whether it has made permanent changes.
        """
        end = self._ends[id] = _End(id, error, whom, changed)
        self._orders.setdefault(client, deque()).append(end)
        self._count += 1
        if self._count > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Forget the oldest steps of the client with the most."""
        # One percent at a time, since finding that client takes a scan over all clients.
        client = max(self._orders, key=lambda one: len(self._orders[one]))
        order = self._orders[client]
        for _ in range(min(len(order), 1 + self._most // 100)):
            end = order.popleft()
            self._count -= 1
            if self._ends.get(end.id) is end:
                del self._ends[end.id]
        if not order:
            del self._orders[client]

    def lose(self, client: Hashable) -> None:
        """Count the steps of a disconnected client under None."""
        order = self._orders.pop(client, None)
        if order is not None:
            self._orders.setdefault(None, deque()).extend(order)

"""The ids of steps that have ended on a worker, or never will begin there, without I/O.

The latest hundred thousand are remembered. Whoever makes up more of them pushes out his own: each is counted for the
client by which it came, and the one that has most loses its oldest.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from aioflow.errors import OpError

__all__ = ["EndedSteps"]

_MOST: Final = 100_000


class _End(NamedTuple):
    """How a step has ended.

    Attributes:
        error: What whoever begins it late is told; None where it has simply ended.
        whom: Whose beginning of it is refused; None for everybody's.
        changed: Whether it has changed anything for good.
    """

    error: OpError | None
    whom: Any
    changed: bool


class EndedSteps:
    """Remembers them. A client is whatever can be a key: None stands for those that are gone.

    Args:
        most: How many, of all clients.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._ends: dict[int, _End] = {}
        self._orders: dict[Any, deque[int]] = {}  # by client; a dictionary is slow to say what is oldest in it
        self._count = 0

    def __contains__(self, id: int) -> bool:
        return id in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def refuses(self, id: int, client: Any) -> bool:
        """Whether the client may not begin the step any more."""
        end = self._ends.get(id)
        return end is not None and (end.whom is None or end.whom == client)

    def error(self, id: int) -> OpError | None:
        """Why it has ended or will not begin; None where it is not known, or has simply ended."""
        end = self._ends.get(id)
        return None if end is None else end.error

    def has_changed(self, id: int) -> bool:
        """Return whether the step has run and has changed anything for good."""
        end = self._ends.get(id)
        return end is not None and end.changed

    def set_changed(self, id: int) -> None:
        """Note that the step has changed something for good after all."""
        end = self._ends.get(id)
        if end is not None:
            self._ends[id] = end._replace(changed=True)

    def add(self, id: int, error: OpError | None, client: Any, whom: Any = None, changed: bool = False) -> None:
        """A step has ended, or will not begin.

        Args:
            client: By whom that is so.
            whom: Who cannot begin it any more; nobody can for None.
            changed: Whether it has changed anything for good.
        """
        self._ends[id] = _End(error, whom, changed)
        self._orders.setdefault(client, deque()).append(id)
        self._count += 1
        if self._count > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Forget one in a hundred: to look for who has most takes a while."""
        client = max(self._orders, key=lambda one: len(self._orders[one]))
        order = self._orders[client]
        for _ in range(min(len(order), 1 + self._most // 100)):
            self._ends.pop(order.popleft(), None)
            self._count -= 1
        if not order:
            del self._orders[client]

    def lose(self, client: Any) -> None:
        """A client is gone."""
        order = self._orders.pop(client, None)
        if order is not None:
            self._orders.setdefault(None, deque()).extend(order)

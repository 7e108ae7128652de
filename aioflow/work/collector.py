"""How what is made to stay is kept out of the way of Python's collector of cyclic garbage.

Arranging a step makes some twenty objects for each node, which stay as long as the step is known, and no garbage in
cycles. But they count: when a quarter more objects have survived than there were, Python looks at all objects of the
process, which takes 60 ms and more for 100,000 of them, and lets no thread run meanwhile. So while a step is arranged,
what has been looked at once is old (`gc.freeze` and `gc.unfreeze`, which move all objects to the oldest generation
without looking at any), and the look at everything waits for what the program itself makes afterwards.

The collector stays on: young cycles are found as ever, `gc.collect()` finds all, and nothing is left changed behind the
block, wherever it ends. (`gc.disable` is for the whole process, and who enables it again has to look at all that was
made meanwhile.) Where the program has frozen objects itself, the second half would undo that, so nothing is done: there
a look at everything passes over these. Nor is anything done when the process has grown to twice its size since the last
such look: there may be garbage by now.

Sessions that are closed and steps that are dropped are cycles, and may hold large arrays. So once there have been any,
and half as many objects were made as there were, a look is taken before the next step is arranged: that is about as
often as Python itself would take one, which counts by quarters, but of what has outlived two generations.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import call
from typing import Any, Final

from aioflow.work.forking import Locked

__all__ = ["full_collections_postponed", "garbage_was_left"]

_PYTHONS: Final = 1000  # objects: Python 3.12 freezes some 400 when it starts, of which nobody need know
_LITTLE: Final = 1_000_000  # pieces of memory, about 100 MB, by which any process may grow
_OF_AN_OBJECT: Final = 2  # such pieces, as a rule


class _Postponing(Locked):
    """Who is called around each collection while blocks run."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks = 0
        self._frozen = False
        self._looks = -1  # at everything, when it was last asked
        self._size = 0
        self._left = -1  # looks at everything that had been taken when something was let go
        self._aged = 0  # objects that were made old without a look at everything, since the last one

    def after_fork(self) -> None:
        """The threads that were in blocks are the parent's."""
        super().after_fork()
        self._blocks = 0
        self._remove()

    def begin(self) -> None:
        """A block begins."""
        if self._has_much_garbage():
            gc.collect()  # without the lock, since it may call what closes sessions
        with self.lock:
            self._blocks += 1
            if self._blocks == 1 and not self._has_doubled():
                gc.callbacks.append(self)
                self._make_all_old()

    def end(self) -> None:
        """A block ends."""
        with self.lock:
            self._blocks -= 1
            if not self._blocks:
                self._remove()

    def garbage_was_left(self) -> None:
        """Something was let go."""
        self._left = _looks()

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """As of `gc.callbacks`."""
        if phase == "stop":
            self._make_all_old()

    def _remove(self) -> None:
        with suppress(ValueError):
            gc.callbacks.remove(self)

    def _make_all_old(self) -> None:
        if not self._is_frozen():
            self._aged += len(gc.get_objects(0)) + len(gc.get_objects(1))
            list(map(call, (gc.freeze, gc.unfreeze)))  # at once: between the two no other thread freezes anything

    def _has_much_garbage(self) -> bool:
        self._note_looks()
        many = self._size // _OF_AN_OBJECT // 2
        return self._left == self._looks and self._aged > many and gc.isenabled() and not self._is_frozen()

    def _is_frozen(self) -> bool:
        """Whether the program has frozen objects; once it has, that is not asked again.

        Python counts them each time, in 17 ms for a million objects, and lets no other thread run meanwhile.
        """
        self._frozen = self._frozen or gc.get_freeze_count() > _PYTHONS
        return self._frozen

    def _has_doubled(self) -> bool:
        self._note_looks()
        return sys.getallocatedblocks() > 2 * self._size + _LITTLE

    def _note_looks(self) -> None:
        looks = _looks()
        if looks != self._looks:
            self._looks, self._size, self._aged = looks, sys.getallocatedblocks(), 0


def _looks() -> int:
    """How many looks at everything have been taken."""
    return int(gc.get_stats()[2]["collections"])


_POSTPONING: Final = _Postponing()


def garbage_was_left() -> None:
    """Something was let go that may be garbage now: once much is made besides, a look at everything is taken."""
    _POSTPONING.garbage_was_left()


@contextmanager
def full_collections_postponed() -> Iterator[None]:
    """A block that makes many objects to stay, in which the collector looks only at those that are young."""
    _POSTPONING.begin()
    try:
        yield
    finally:
        _POSTPONING.end()

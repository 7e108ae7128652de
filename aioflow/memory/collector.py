"""Postponement of full garbage collections while many long-lived objects are created, and gradual release of objects.

Compiling a step creates about twenty objects per node. They live as long as the step is known, and are not cyclic
garbage. But they count: when the survivors exceed a quarter of the existing objects, Python runs a full collection,
which takes 60 ms or more per 100,000 objects and blocks all threads. So while a step is compiled, objects that have
survived one collection are moved to the oldest generation. `gc.freeze` and `gc.unfreeze` do so without traversing any
object. The full collection then waits for objects that the program itself creates afterwards.

The collector stays enabled: young cycles are found as usual, `gc.collect()` finds all, and no setting is changed after
the block. (`gc.disable` applies to the whole process, and enabling the collector again means traversing all objects
created meanwhile.) If the program has frozen objects itself, `gc.unfreeze` would undo that, so the module does nothing;
full collections skip frozen objects anyway. It also does nothing if the process has doubled in size since the last full
collection, since there may be garbage by then.

Closed sessions and dropped steps are cycles, and may hold large arrays. So after any were dropped, a full collection
runs before the next step is compiled, once half as many objects were created as existed. Python itself would run one
about as often: it counts by quarters, but only objects that have survived two generations.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import call
from typing import Any, Final

from aioflow.concurrency.forking import Locked

_PYTHONS: Final = 1000  # frozen objects: Python 3.12 freezes about 400 at its start, which do not count
_LITTLE: Final = 1_000_000  # memory blocks, about 100 MB, by which any process may grow
_OF_AN_OBJECT: Final = 2  # memory blocks per object, as a rule


class _Postponing(Locked):
    """The callback that the collector calls around each collection while blocks run."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks = 0
        self._frozen = False
        self._looks = -1  # number of full collections at the last check
        self._size = 0
        self._left = -1  # number of full collections at the time when garbage was left
        self._aged = 0  # objects moved to the oldest generation since the last full collection

    def after_fork(self) -> None:
        """Reset the count of blocks: the threads in blocks are the parent's."""
        super().after_fork()
        self._blocks = 0
        self._remove()

    def begin(self) -> None:
        """Start a block."""
        if self._has_much_garbage():
            gc.collect()  # without the lock, since a finalizer may close sessions
        with self.lock:
            self._blocks += 1
            # Nested and concurrent blocks share one callback, which the last of them removes.
            if self._blocks == 1 and not self._has_doubled():
                gc.callbacks.append(self)
                self._make_all_old()

    def end(self) -> None:
        """End a block."""
        with self.lock:
            self._blocks -= 1
            if not self._blocks:
                self._remove()

    def garbage_was_left(self) -> None:
        """Note that objects were dropped that may be garbage."""
        self._left = _looks()

    def __call__(self, phase: str, info: Mapping[str, object]) -> None:
        """Handle an event of `gc.callbacks`."""
        # At the end of a collection only survivors are left of the young objects. Before it, garbage would age as well.
        if phase == "stop":
            self._make_all_old()

    def _remove(self) -> None:
        with suppress(ValueError):
            gc.callbacks.remove(self)

    def _make_all_old(self) -> None:
        if not self._is_frozen():
            self._aged += len(gc.get_objects(0)) + len(gc.get_objects(1))
            # `freeze` moves the objects of all generations to a permanent one, and `unfreeze` moves these to the
            # oldest.
            # In one call, so that no other thread freezes objects between the two.
            list(map(call, (gc.freeze, gc.unfreeze)))

    def _has_much_garbage(self) -> bool:
        self._note_looks()
        # Half as many objects as existed after the last full collection.
        many = self._size // _OF_AN_OBJECT // 2
        # A full collection since the garbage was left has found it already.
        return self._left == self._looks and self._aged > many and gc.isenabled() and not self._is_frozen()

    def _is_frozen(self) -> bool:
        """Return True if the program has frozen objects.

        A positive result is cached: Python counts them each time, in 17 ms for a million objects, and blocks other
        threads.
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
    """Return the number of full collections so far."""
    return int(gc.get_stats()[2]["collections"])  # generation 2 is the oldest


_POSTPONING: Final = _Postponing()


def garbage_was_left() -> None:
    """Note that objects were dropped that may be garbage: `full_collections_postponed` collects it in time."""
    _POSTPONING.garbage_was_left()


@contextmanager
def full_collections_postponed() -> Iterator[None]:
    """Postpone full collections inside a block that creates many long-lived objects; young objects are collected."""
    _POSTPONING.begin()
    try:
        yield
    finally:
        _POSTPONING.end()


# ── gradual release of thousands of objects, so that other threads run meanwhile ──────────────────────────────────────
#
# Dropping the last reference to a container frees all objects that only it holds at once. For the nodes of a graph of
# 20,000 this takes 10 ms, in which no other thread gets the interpreter's lock and an event loop is blocked.


def let_go(*held: list[Any] | dict[Any, Any]) -> None:
    """Empty lists and dictionaries item by item. Nothing else may use them."""
    for items in held:
        pop = items.popitem if isinstance(items, dict) else items.pop
        while items:
            pop()

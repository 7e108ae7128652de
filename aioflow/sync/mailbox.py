"""A mailbox as a plain state machine: one sender puts letters, each under a key, and takers wait for a key."""

from __future__ import annotations

import threading
from collections.abc import Callable

from aioflow.memory.values import Value
from aioflow.sync.waiting import Ticket


class LetterRequest(Ticket):
    """A request for the letter with `key`; `value` is the letter."""

    __slots__ = ("key",)

    def __init__(self, key: int, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.key = key


class MailboxCore:
    """Letters by key, from one sender with ascending keys. Thread-safe.

    A letter is kept until one with a larger key is taken. So a repeated step finds the letter again that it took before
    it failed. A sender that puts a smaller key than before has returned to an earlier state: its letters with larger
    keys are dropped.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._letters: dict[int, Value] = {}
        self._takes: list[LetterRequest] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._letters)

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        keys = ", ".join(str(key) for key in sorted(self._letters)) or "none"
        wanted = ", ".join(str(take.key) for take in self._takes) or "none"
        return f"mailbox {self.name!r} (letters: {keys}; waited for: {wanted})"

    def put(self, key: int, letter: Value) -> list[Ticket]:
        """Store a letter, replacing one with the same key. Return the resolved tickets."""
        with self._lock:
            # A sender that repeats a key has gone back, so letters with larger keys belong to steps that are undone.
            self._letters = {k: kept for k, kept in self._letters.items() if k < key}
            self._letters[key] = letter
            served = [take for take in self._takes if take.key == key]
            self._takes = [take for take in self._takes if take.key != key]
            for take in served:
                self._resolve(take)
            return list(served)

    def submit(self, take: LetterRequest) -> list[Ticket]:
        """Wait for a letter. Return the ticket if the letter is there."""
        with self._lock:
            if take.key not in self._letters:
                self._takes.append(take)
                return []
            self._resolve(take)
            return [take]

    def withdraw(self, take: LetterRequest) -> list[Ticket]:
        """Stop waiting. A letter that was taken is kept anyway."""
        with self._lock:
            if not take.resolved:
                # A ticket that another thread has just resolved is no longer in the list.
                self._takes.remove(take)
            return []

    def _resolve(self, take: LetterRequest) -> None:
        take.resolve(self._letters[take.key])
        # The letter itself stays: a step that fails after this take is repeated, and takes it once more.
        self._letters = {k: letter for k, letter in self._letters.items() if k >= take.key}

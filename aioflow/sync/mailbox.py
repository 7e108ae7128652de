"""A mailbox as a plain state machine: one sender leaves letters, each under a key, and whoever asks for a key waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from aioflow.sync.waiting import Ticket

__all__ = ["MailboxCore", "Take"]


class Take(Ticket):
    """Wait for the letter with `key`; `value` is what was put."""

    __slots__ = ("key",)

    def __init__(self, key: int, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.key = key


class MailboxCore:
    """Letters by key, from one sender whose keys grow. Methods may be called from any thread.

    A letter stays until one with a larger key is taken, so a step that failed after it took its letter finds it when it
    is repeated. A sender that puts a smaller key than before has gone back to an earlier state: what it put in its
    former life goes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._letters: dict[int, Any] = {}
        self._takes: list[Take] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._letters)

    def describe(self) -> str:
        """The state in words, for reports."""
        keys = ", ".join(str(key) for key in sorted(self._letters)) or "none"
        wanted = ", ".join(str(take.key) for take in self._takes) or "none"
        return f"mailbox {self.name!r} (letters: {keys}; waited for: {wanted})"

    def put(self, key: int, letter: Any) -> list[Ticket]:
        """Leave a letter, in the place of one with the same key; returns the tickets that this settles."""
        with self._lock:
            self._letters = {k: kept for k, kept in self._letters.items() if k < key}
            self._letters[key] = letter
            served = [take for take in self._takes if take.key == key]
            self._takes = [take for take in self._takes if take.key != key]
            for take in served:
                self._settle(take)
            return list(served)

    def submit(self, take: Take) -> list[Ticket]:
        """Ask for a letter; returns the ticket if it is there."""
        with self._lock:
            if take.key not in self._letters:
                self._takes.append(take)
                return []
            self._settle(take)
            return [take]

    def withdraw(self, take: Take) -> list[Ticket]:
        """Ask no more. A letter that was taken is still there."""
        with self._lock:
            if not take.settled:
                self._takes.remove(take)
            return []

    def _settle(self, take: Take) -> None:
        take.settle(self._letters[take.key])
        self._letters = {k: letter for k, letter in self._letters.items() if k >= take.key}

"""When machine code is asked for: once NumPy has worked for as long as compiling takes, and far sooner where it is kept
on disk from another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from aioflow.work.forking import generation
from aioflow_numpy.compiled.background import BACKGROUND
from aioflow_numpy.compiled.code import programs

__all__ = ["Spent", "Wanted"]

_EARLIER: Final = 16  # times: to load what is kept, and to try it out, takes some milliseconds


@dataclass(slots=True)
class Spent:
    """What NumPy has spent, on all things that have the same code."""

    amount: int = 0


class Wanted:
    """Code that is asked for once in each process: a forked child asks again.

    Args:
        spent: Shared with others that have the same code.
    """

    __slots__ = ("_asked_in", "_looked_in", "_spent")

    def __init__(self, spent: Spent | None = None) -> None:
        self._spent = Spent() if spent is None else spent
        self._asked_in: int | None = None
        self._looked_in: int | None = None

    def worked(self, spent: int, worth: int, prepare: Callable[[], None], text: Callable[[], str | None]) -> None:
        """NumPy has spent so much more.

        Args:
            worth: From how much on compiling is worth it.
            prepare: Has it compiled, and tried out.
            text: Its program; None where it has none. Both are called in the background.
        """
        self._spent.amount += spent
        amount = self._spent.amount
        if amount >= worth:
            if self._asked_in != generation():
                self._asked_in = generation()
                BACKGROUND.begin(prepare)
        elif amount * _EARLIER >= worth and self._looked_in != generation():
            self._looked_in = generation()
            BACKGROUND.begin(partial(_take_what_is_kept, prepare, text))


def _take_what_is_kept(prepare: Callable[[], None], text: Callable[[], str | None]) -> None:
    program = text()
    if program is not None and programs().has(program):
        prepare()

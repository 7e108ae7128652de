"""The time to request machine code: when NumPy has worked for as long as compiling takes; and its test before use.

Code that another process has kept on disk is requested much earlier.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from aioflow.concurrency.forking import generation
from aioflow.concurrency.job_thread import JobThread
from aioflow.concurrency.threads import step_back
from aioflow.memory.values import Array, NpDType
from aioflow_numpy.compiled.code import programs
from aioflow_numpy.compiled.process import end

# ── the thread that compiles chains, one at a time, with the lowest priority that the system offers ───────────────────
#
# It belongs to the process, so no session waits for it. When the process ends, the compiler is killed, and the thread
# has a moment to remove its files.

_MOMENT: Final = 1.0  # seconds; longer than the wait for a killed compiler

BACKGROUND: Final = JobThread("aioflow-compiling", step_back, daemon=True)


@atexit.register
def _leave() -> None:
    # In this order no further job begins, the running compiler is killed, and its job then removes the files.
    BACKGROUND.drop()
    end()
    BACKGROUND.wait(_MOMENT)


# ── requests for code ─────────────────────────────────────────────────────────────────────────────────────────────────


# A factor: to load and try a kept program takes only some milliseconds.
_EARLIER: Final = 16


@dataclass(slots=True)
class Spent:
    """The amount of NumPy's work on all objects that have the same code."""

    amount: int = 0


class CodeRequest:
    """Code that is requested once in each process: a forked child requests it again.

    Args:
        spent: Shared with other objects that have the same code.
    """

    __slots__ = ("_asked_in", "_looked_in", "_spent")

    def __init__(self, spent: Spent | None = None) -> None:
        self._spent = Spent() if spent is None else spent
        self._asked_in: int | None = None
        self._looked_in: int | None = None

    def worked(self, spent: int, worth: int, prepare: Callable[[], None], text: Callable[[], str | None]) -> None:
        """Add to the amount of NumPy's work, and request the code once it is worthwhile.

        Args:
            spent: The additional amount.
            worth: The amount at which compiling is worthwhile.
            prepare: Compiles the code and tries it. Called in the background.
            text: Returns the program, or None without one. Called in the background.
        """
        # Without a lock: a lost amount delays the request, and a second request finds the program loaded.
        self._spent.amount += spent
        amount = self._spent.amount
        if amount >= worth:
            if self._asked_in != generation():
                self._asked_in = generation()
                BACKGROUND.begin(prepare)
        elif amount * _EARLIER >= worth and self._looked_in != generation():
            self._looked_in = generation()
            BACKGROUND.begin(partial(_prepare_if_kept, prepare, text))


def _prepare_if_kept(prepare: Callable[[], None], text: Callable[[], str | None]) -> None:
    program = text()
    if program is not None and programs().has(program):
        prepare()


# ── test data for machine code before its first use, and the comparison with NumPy's results ──────────────────────────


def same(one: Array, other: Array) -> bool:
    """Return whether the arrays are equal to the last bit, where all NaN count as equal."""
    if one.dtype.kind == "f":
        # All NaN become the same bits, and -0 stays different from 0.
        one, other = (np.where(np.isnan(each), np.nan, each) for each in (one, other))
    return one.tobytes() == other.tobytes()


def numbers(rng: np.random.Generator, dtype: NpDType, shape: tuple[int, ...]) -> Array:
    """Return special and usual numbers, half of each: with special ones alone, few results would be usual."""
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), dtype)
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        tiny, huge = limits.smallest_subnormal, limits.max
        special = [0.0, 1.0, 0.5, 1.5, 2.5, 6.0, np.inf, np.nan, tiny, 3 * tiny, limits.tiny, huge]
        special += [-number for number in special]
        usual = np.asarray(rng.standard_normal(shape), dtype)
    else:
        bounds = np.iinfo(dtype)
        special = [0, 1, 2, 3, 6, bounds.min, bounds.min + 1, bounds.max, bounds.max - 1, bounds.max // 2]
        usual = np.asarray(rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True))
    chosen = np.asarray(rng.choice(np.array(special, dtype), shape))
    return np.where(rng.random(shape) < 0.5, chosen, usual)

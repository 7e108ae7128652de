"""The choice between oneDNN's kernel and the one below it for a shape: measured once, and cached on disk.

Which kernel is faster depends on the shape, the number of threads, the processor and the libraries, and no simple rule
predicts it. oneDNN takes a third to three quarters of the time for most convolutions, and twice the time for a few.
The first call of a shape runs both kernels, and returns the result of the one that computes the shape from then on.

A choice is a line of a file in the user's cache folder: the machine, the shape, and the winner. Lines are only
appended, so that processes do not disturb one another; the last line for a shape counts. Where the file cannot be read
or written, each process measures for itself.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from aioflow.concurrency.forking import renew_in_child
from aioflow.formats.user_cache import cache_folder
from aioflow_numpy.blas import loaded_blas, this_processor
from aioflow_onednn.library import library

T = TypeVar("T")

_log = logging.getLogger("aioflow.onednn")

_FIRST: Final = 6  # calls of both kernels that do not count: they fill caches and try several threads
_ROUNDS: Final = 3  # maximum timed calls of both kernels, of which the fastest counts
_FAR: Final = 1.5  # ratio to oneDNN's time above which one call is enough
_CLEARLY: Final = 0.7  # ratio to oneDNN's time below which the kernel below wins, if it also saves `_HOP`
_HOP: Final = 2e-5  # seconds that oneDNN saves where it computes several nodes in one call
_LONG: Final = 0.1  # seconds after which all calls count, and two suffice if oneDNN is ahead
_LARGEST: Final = 2**20  # bytes of the file; a larger one is truncated
_NAMES: Final = {True: "oneDNN", False: "NumPy"}


class Choices:
    """The choices of this process and of earlier ones on this machine. Threads may share them.

    Args:
        path: The file; by default one in the user's cache folder.
        machine: Returns a name for the processor and the libraries.
        clock: Returns seconds.
    """

    def __init__(
        self,
        path: Path | None = None,
        machine: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = cache_folder() / "onednn.txt" if path is None else path
        self._name_machine, self._clock = machine or _machine, clock
        self._machine = ""
        self._known: dict[str, bool] | None = None
        self._measuring = threading.Lock()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Replace the lock, which another thread may have held during the fork."""
        self._measuring = threading.Lock()

    def find(self, shape: str) -> bool | None:
        """Return whether oneDNN computes a shape; None if that is not measured yet. The first call reads the file."""
        return self._all().get(shape)

    def measure(self, shape: str, ours: Callable[[], T], below: Callable[[], T]) -> tuple[bool, T]:
        """Run and compare oneDNN's kernel and the one below.

        One thread measures at a time, since two would disturb one another.

        Args:
            shape: Key of the shape.
            ours: Runs oneDNN's kernel.
            below: Runs the kernel below.

        Returns:
            Whether oneDNN computes the shape from now on, and the result of the chosen kernel.

        Raises:
            Exception: a kernel has raised it.
        """
        with self._measuring:
            known = self.find(shape)
            if known is not None:  # another thread has measured it meanwhile
                return known, ours() if known else below()
            is_quicker, value = self._compare(shape, ours, below)
            self._all()[shape] = is_quicker
        self._keep("\t".join((self._machine, shape, _NAMES[is_quicker])) + "\n")
        return is_quicker, value

    def counts(self) -> dict[str, int]:
        """Return how many of the known shapes each of the two kernels computes, by its name."""
        values = list(self._all().values())
        return {name: values.count(is_quicker) for is_quicker, name in _NAMES.items()}

    def _all(self) -> dict[str, bool]:
        known = self._known
        if known is None:
            self._machine = self._name_machine()
            known = self._known = self._read()
        return known

    def _compare(self, shape: str, ours: Callable[[], T], below: Callable[[], T]) -> tuple[bool, T]:
        begun, counted, quickest, other = self._clock(), 0, math.inf, math.inf
        for number in range(_FIRST + _ROUNDS):
            mine, ours_took = self._timed(ours)
            theirs, below_took = self._timed(below)
            is_long = self._clock() - begun > _LONG
            if number < _FIRST and not is_long:
                continue
            counted += 1
            quickest, other = min(quickest, ours_took), min(other, below_took)
            is_enough = counted == _ROUNDS or (is_long and counted > 1 and other > quickest)
            # A kernel below that is far behind need not be called again.
            if is_enough or other > _FAR * quickest:
                break
        _log.debug("%s: oneDNN %.3g ms, NumPy %.3g ms", shape, 1e3 * quickest, 1e3 * other)
        # The kernel below must be clearly faster, and also save the time that oneDNN gains by joining nodes.
        is_quicker = other >= min(_CLEARLY * quickest, quickest - _HOP)
        return is_quicker, mine if is_quicker else theirs

    def _timed(self, compute: Callable[[], T]) -> tuple[T, float]:
        begun = self._clock()
        value = compute()
        return value, self._clock() - begun

    def _read(self) -> dict[str, bool]:
        found: dict[str, bool] = {}
        with suppress(OSError), open(self.path, encoding="utf-8", errors="replace") as file:
            # Other processes, and other releases, may have written anything; only complete lines of this machine count.
            for line in file.read(_LARGEST).splitlines():
                machine, _, rest = line.partition("\t")
                shape, _, name = rest.partition("\t")
                if machine == self._machine and name in _NAMES.values():
                    found[shape] = name == _NAMES[True]
        return found

    def _keep(self, line: str) -> None:
        if not self.path.is_absolute():  # the user has no home folder
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = os.open(self.path, flags, 0o600)
            try:
                if os.fstat(file).st_size > _LARGEST:
                    os.ftruncate(file, 0)
                # One write with O_APPEND, so that lines of several processes do not mix.
                os.write(file, line.encode())
            finally:
                os.close(file)
        except OSError as error:
            _log.debug("a choice is not kept: %s", error)


def _machine() -> str:
    blas = next((each.core_type for each in loaded_blas()), "unknown")
    processor, vectors = this_processor(), "with" if library().has_wide_vectors else "without"
    name = f"{processor.name} of family {processor.family} {vectors} vectors of 512 bits"
    return f"{name}, oneDNN {library().version}, BLAS {blas}"


CHOICES: Final = Choices()

"""Helper threads of a crew, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aioflow_numpy.crew import Crew
from tests.support.processes import SECONDS

__all__ = ["helpers", "noting"]


@contextmanager
def helpers(crew: Crew, count: int, begin: Callable[[], object] = lambda: None) -> Iterator[list[int]]:
    """Run threads that wait as the crew's helpers; yield a list of how many waits of each have returned.

    Args:
        crew: Crew to help.
        count: Number of threads.
        begin: Function that each thread calls first.
    """
    crew.gather(count)
    ended, returned = threading.Event(), [0] * count

    def help_out(number: int) -> None:
        begin()
        while not ended.is_set():
            crew.stay(number, lambda: False)
            returned[number] += 1

    threads = [threading.Thread(target=help_out, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield returned
    finally:
        ended.set()
        crew.call()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()


def noting(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    """Return a wrapper of the function, and the list in which it collects the results."""
    returned: list[Any] = []

    def noted(*args: Any) -> Any:
        returned.append(function(*args))
        return returned[-1]

    return noted, returned

"""Engines that compute parts of steps: found by the names under which distributions declare them, and prepared in a
thread while steps run without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from aioflow.compiler.delegate import Delegate
from aioflow.config import AUTO
from aioflow.errors import NotFoundError
from aioflow.runtime.device import declared
from aioflow.work.forking import not_forked
from aioflow.work.job_thread import JobThread
from aioflow.work.slices import ask_for_long_slice

__all__ = ["DELEGATES", "PREPARATIONS", "declared_engines", "find_delegate"]

DELEGATES: Final = "aioflow.delegates"  # the group of entry points


def find_delegate(setting: str | None) -> Delegate | None:
    """Return the engine that `SessionConfig.delegate` chooses; None for none.

    Args:
        setting: "auto" for the first that is installed with what it needs, if any; or a name, and behind a colon what
            the engine takes as its options.

    Raises:
        NotFoundError: no installed distribution has it, or what it needs is not installed.
    """
    if setting is None:
        return None
    known = declared_engines()
    with not_forked():  # engines are large packages to import
        if setting == AUTO:
            for load in known.values():
                with suppress(NotFoundError):
                    return load("")
            return None
        name, _, options = setting.partition(":")
        if name in known:
            return known[name](options)
    raise NotFoundError(
        f"no engine {name!r} computes parts of steps",
        expected=f"None, {AUTO!r}, or one of {[*known]}",
        actual=setting,
    )


def declared_engines() -> Mapping[str, Callable[[str], Delegate]]:
    """Return the engines that installed distributions declare, in the order of their names. Each is a function of its
    options that returns the engine, and raises NotFoundError where what it needs is not installed.
    """

    def loader(point: Any) -> Callable[[str], Delegate]:
        def load(options: str) -> Delegate:
            found: Delegate = point.load()(options)
            return found

        return load

    points = {str(point.name): loader(point) for point in declared(DELEGATES)}
    return {name: points[name] for name in sorted(points)}


# Models of engines are made in this thread, each by several processors. Threads that an engine starts there inherit
# that they take long slices, as the threads of kernels do.
PREPARATIONS: Final = JobThread("aioflow-prepares", ask_for_long_slice, daemon=False)

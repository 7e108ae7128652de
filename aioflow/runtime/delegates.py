"""Engines that compute parts of steps.

They are found by the entry points that distributions declare, and prepared in a thread while steps run without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from aioflow.compiler.delegate import Delegate
from aioflow.concurrency.forking import not_forked
from aioflow.concurrency.job_thread import JobThread
from aioflow.concurrency.slices import ask_for_long_slice
from aioflow.config import AUTO
from aioflow.errors import NotFoundError
from aioflow.runtime.device import declared

DELEGATES: Final = "aioflow.delegates"  # the group of entry points


def find_delegate(setting: str | None) -> Delegate | None:
    """Return the engine that `SessionConfig.delegate` chooses, or None if it chooses none.

    Args:
        setting: "auto" for the first engine that is installed with its requirements, if any; or a name, optionally
            followed by a colon and the engine's options.

    Raises:
        NotFoundError: no installed distribution declares the engine, or its requirements are not installed.
    """
    if setting is None:
        return None
    check_delegate(setting)
    known = declared_engines()
    with not_forked():  # engines are large packages to import
        if setting == AUTO:
            for load in known.values():
                with suppress(NotFoundError):
                    return load("")
            return None
        name, _, options = setting.partition(":")
        return known[name](options)


def check_delegate(setting: str | None) -> None:
    """Raise NotFoundError if `SessionConfig.delegate` names an engine that no installed distribution declares."""
    if setting is None or setting == AUTO:
        return
    name, known = setting.partition(":")[0], declared_engines()
    if name not in known:
        raise NotFoundError(
            f"no engine {name!r} computes parts of steps",
            expected=f"None, {AUTO!r}, or one of {[*known]}",
            actual=setting,
        )


def declared_engines() -> Mapping[str, Callable[[str], Delegate]]:
    """Return the engines that installed distributions declare, sorted by name.

    Each value is a function that takes the engine's options and returns the engine. It raises NotFoundError if the
    engine's requirements are not installed.
    """

    def loader(point: Any) -> Callable[[str], Delegate]:
        def load(options: str) -> Delegate:
            found: Delegate = point.load()(options)
            return found

        return load

    points = {str(point.name): loader(point) for point in declared(DELEGATES)}
    return {name: points[name] for name in sorted(points)}


# Engines build their models in this thread, each using several processors. The threads that an engine starts here
# inherit the setting for long time slices, which kernel threads have too.
PREPARATIONS: Final = JobThread("aioflow-prepares", ask_for_long_slice, daemon=False)

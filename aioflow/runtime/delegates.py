"""The engines that compute parts of steps, by the names that installed distributions give them."""

from __future__ import annotations

from typing import Final

from aioflow.compiler.delegate import Delegate
from aioflow.errors import NotFoundError
from aioflow.runtime.device import declared

__all__ = ["AUTO", "DELEGATES", "find_delegate"]

DELEGATES: Final = "aioflow.delegates"  # the group of entry points
AUTO: Final = "auto"


def find_delegate(setting: str | None) -> Delegate | None:
    """Return the engine that `SessionConfig.delegate` chooses; None for none.

    Args:
        setting: "auto" for the first that is installed with what it needs, if any; or a name, and behind a colon what
            the engine takes as its options.

    Raises:
        NotFoundError: no installed distribution has it, or what it needs is not installed.
        InvalidArgumentError: its options are not its own.
    """
    if setting is None:
        return None
    name, _, options = setting.partition(":")
    known = sorted(declared(DELEGATES), key=lambda point: str(point.name))
    if setting == AUTO:
        for point in known:
            try:
                found: Delegate = point.load()("")
            except NotFoundError:
                continue
            return found
        return None
    for point in known:
        if point.name == name:
            chosen: Delegate = point.load()(options)
            return chosen
    raise NotFoundError(
        f"no engine {name!r} computes parts of steps",
        expected=f"None, {AUTO!r}, or one of {[point.name for point in known]}",
        actual=setting,
    )

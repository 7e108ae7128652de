"""Devices and the backends behind them, found by entry point and imported only when they are named."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from aioflow.errors import NotFoundError

__all__ = ["ENTRY_POINTS", "load_backend"]

ENTRY_POINTS: Final = "aioflow.backends"


@cache
def load_backend(name: str) -> Any:
    """The backend of that name.

    Raises:
        NotFoundError: none is installed under that name; the error gives the install command.
    """
    from importlib.metadata import entry_points  # brings email and zipfile: a tenth of `import aioflow` if at the top

    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise NotFoundError(
            f"no backend {name!r} is installed",
            expected=f"one of {sorted(found)}, or `pip install 'aioflow[{name}]'`",
            actual=name,
        )
    try:
        return found[name].load()()
    except ImportError as error:
        raise NotFoundError(
            f"backend {name!r} cannot be imported", expected=f"`pip install 'aioflow[{name}]'`", actual=str(error)
        ) from error

"""Runs what must happen before NumPy is imported: the hooks that installed backends name in `aioflow.preload`.

A BLAS library chooses its kernels and its thread count when it is loaded, so a backend that wants a say needs to
speak before that. `aioflow/__init__.py` calls `run_preload_hooks` first of all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from aioflow.installed import EntryPoint, entry_points

__all__ = ["GROUP", "find_hooks", "run_preload_hooks"]

GROUP: Final = "aioflow.preload"

_log: Final = logging.getLogger("aioflow.preload")


def run_preload_hooks(path: Sequence[str] | None = None) -> tuple[str, ...]:
    """Call each hook once, in the order of `sys.path`, and return the names of those that succeeded.

    A failing hook costs speed, never the import: it is logged as a warning with its name and the traceback.
    """
    done = []
    for hook in find_hooks(path):
        try:
            hook.load()()
        except Exception:  # anybody's package may be at fault here, in any way
            _log.warning("preload hook %r (%s) failed and is skipped", hook.name, hook.target, exc_info=True)
        else:
            done.append(hook.name)
    return tuple(done)


def find_hooks(path: Sequence[str] | None = None) -> list[EntryPoint]:
    """The hooks declared by the distributions in these folders. Zipped distributions are not looked into."""
    return entry_points(GROUP, path)

"""Hooks that must run before NumPy is imported: those that installed backends declare in the group `aioflow.preload`.

A BLAS library chooses its kernels and its thread count when it is loaded, so a backend must set them before that.
`aioflow/__init__.py` calls `run_preload_hooks` before anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from aioflow.loading.installed import EntryPoint, entry_points

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
        except Exception:  # the hook of a third-party package may raise any error
            _log.warning("preload hook %r (%s) failed and is skipped", hook.name, hook.target, exc_info=True)
        else:
            done.append(hook.name)
    return tuple(done)


def find_hooks(path: Sequence[str] | None = None) -> list[EntryPoint]:
    """Return the hooks declared by the distributions in these folders. Zipped distributions are ignored."""
    return entry_points(GROUP, path)

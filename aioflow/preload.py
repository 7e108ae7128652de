"""Runs what must happen before NumPy is imported: the hooks that installed backends name in `aioflow.preload`.

A BLAS library chooses its kernels and its thread count when it is loaded, so a backend that wants a say needs to
speak before that. `aioflow/__init__.py` calls `run_preload_hooks` first of all.

The hooks are found by reading the entry_points.txt files directly. `importlib.metadata` gives the same answer but
brings `email` and `zipfile` along: 28 ms of an import, against 1.5 ms (measured with 89 distributions, Python 3.11).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["GROUP", "Hook", "find_hooks", "run_preload_hooks"]

GROUP: Final = "aioflow.preload"

_log: Final = logging.getLogger("aioflow.preload")


class Hook(NamedTuple):
    """A hook as its distribution declares it: a name and "module:attribute"."""

    name: str
    target: str


def run_preload_hooks(path: Sequence[str] | None = None) -> tuple[str, ...]:
    """Call each hook once, in the order of `sys.path`, and return the names of those that succeeded.

    A failing hook costs speed, never the import: it is logged as a warning with its name and the traceback.
    """
    done = []
    for hook in find_hooks(sys.path if path is None else path):
        try:
            _load(hook.target)()
        except Exception:  # anybody's package may be at fault here, in any way
            _log.warning("preload hook %r (%s) failed and is skipped", hook.name, hook.target, exc_info=True)
        else:
            done.append(hook.name)
    return tuple(done)


def find_hooks(path: Iterable[str]) -> list[Hook]:
    """The hooks declared by the distributions in these folders.

    The first of several versions of a distribution counts, as it does for the import itself. Zipped distributions
    are not looked into.
    """
    hooks: list[Hook] = []
    seen: set[str] = set()
    for folder in path:
        for name, metadata in _distributions(folder or os.curdir):
            if name not in seen:
                seen.add(name)
                hooks.extend(_parse(_read(os.path.join(metadata, "entry_points.txt"))))
    return hooks


def _distributions(folder: str) -> list[tuple[str, str]]:
    """(normalised name, metadata folder) of each distribution in a folder, in a stable order."""
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if e.name.endswith((".dist-info", ".egg-info"))]
    except OSError:  # sys.path may name zip files and folders that are not there
        return []
    return sorted((e.name.rpartition(".")[0].partition("-")[0].lower().replace(".", "_"), e.path) for e in found)


def _read(filename: str) -> str:
    try:
        with open(filename, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # most distributions have no entry points
        return ""


def _parse(text: str) -> Iterator[Hook]:
    if f"[{GROUP}]" not in text:  # nearly always: one search instead of a parse
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == GROUP and not line.startswith(("#", ";")) and "=" in line:
            name, _, target = line.partition("=")
            yield Hook(name.strip(), target.strip())


def _load(target: str) -> Callable[[], object]:
    module, _, attributes = target.partition(":")
    found: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    hook: Callable[[], object] = found
    return hook

"""Children that a unit test starts: it is one process, whose outcome neither other programs nor their speed change."""

from __future__ import annotations

import multiprocessing.util
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["children"]

_EVENTS: Final = frozenset(
    (
        *("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"),
        "multiprocessing.spawn",  # of `_spawn` below
    )
)
_SHOWN: Final = 5  # frames of the caller

_found: list[str] | None = None  # None outside of unit tests; an audit hook cannot be removed


def _note(event: str, command: object = "") -> None:
    if _found is not None:
        stack = "".join(traceback.format_stack(limit=_SHOWN + 2)[:-2])
        _found.append(f"{event} {command}\n{stack}")


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event in _EVENTS:
        _note(event, arguments[:2])


def _before_fork() -> None:
    # uvloop starts programs without an audit event, but runs the handlers of forks.
    if not _found:
        _note("fork")


_spawnv: Final = multiprocessing.util.spawnv_passfds


def _spawn(path: bytes, args: Any, passfds: Sequence[int]) -> int:
    sys.audit("multiprocessing.spawn", path, args)
    return _spawnv(path, args, passfds)


multiprocessing.util.spawnv_passfds = _spawn
sys.addaudithook(_audit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


@contextmanager
def children() -> Iterator[list[str]]:
    """Return a list of the children that this process starts from here to the end of the block."""
    global _found
    found: list[str] = []
    _found = found
    try:
        yield found
    finally:
        _found = None

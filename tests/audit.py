"""Records, by an audit hook, writes into the repository and child processes: unit tests may start none."""

from __future__ import annotations

import multiprocessing.util
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["Seen", "seen"]

_EVENTS: Final = frozenset(
    (
        *("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"),
        "multiprocessing.spawn",  # of `_spawn` below
    )
)
_SHOWN: Final = 5  # frames of the caller
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ROOT: Final = str(Path(__file__).resolve().parents[1]) + os.sep
# The folders of tools: what they keep, temporary folders of tox and bytecode.
_TOOLS: Final = ("__pycache__", ".coverage", ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".tox", ".venv")


@dataclass
class Seen:
    """Records of one test, each with the end of its stack.

    Attributes:
        children: Programs and forks that it started.
        writes: Files of the repository that it opened for writing.
    """

    children: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)


_seen: Seen | None = None  # None outside of tests; an audit hook cannot be removed


def _with_stack(what: str) -> str:
    stack = "".join(traceback.format_stack(limit=_SHOWN + 3)[:-3])
    return f"{what}\n{stack}"


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event in _EVENTS:
        _seen.children.append(_with_stack(f"{event} {arguments[:2]}"))
    elif event == "open" and arguments[2] & _WRITING and isinstance(arguments[0], str | bytes | os.PathLike):
        place = os.path.abspath(os.fsdecode(arguments[0]))
        if place.startswith(_ROOT) and not any(each in place[len(_ROOT) :] for each in _TOOLS):
            _seen.writes.append(_with_stack(place))


def _before_fork() -> None:
    # uvloop starts programs without an audit event, but runs the handlers of forks.
    if _seen is not None and not _seen.children:
        _seen.children.append(_with_stack("fork"))


_spawnv: Final = multiprocessing.util.spawnv_passfds


def _spawn(path: bytes, args: Any, passfds: Sequence[int]) -> int:
    sys.audit("multiprocessing.spawn", path, args)
    return _spawnv(path, args, passfds)


multiprocessing.util.spawnv_passfds = _spawn
sys.addaudithook(_audit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


@contextmanager
def seen() -> Iterator[Seen]:
    """Return what this process does that a test may not do, from here to the end of the block."""
    global _seen
    _seen = found = Seen()
    try:
        yield found
    finally:
        _seen = None

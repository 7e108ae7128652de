"""An audit hook that records repository changes and child processes, which unit tests must not cause."""

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
        "multiprocessing.spawn",  # raised by `_spawn` below
    )
)
# For each event that changes a folder: the positions of the path and of the descriptor it is relative to.
_CHANGES: Final = {
    "os.link": (1, 3), "os.mkdir": (0, 2), "os.remove": (0, 1), "os.rename": (1, 3), "os.rmdir": (0, 1),
    "os.symlink": (1, 2),
}  # fmt: skip
_SHOWN: Final = 5  # frames of the caller
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ROOT: Final = str(Path(__file__).resolve().parents[2]) + os.sep
# Folders and files that tools write: bytecode, caches, temporary folders of tox, coverage data.
_TOOLS: Final = ("__pycache__", ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".tox", ".venv")


@dataclass
class Seen:
    """The events recorded during one test, each with the end of its stack.

    Attributes:
        children: Child processes and forks.
        writes: Repository files and folders that were opened for writing, created, moved or removed.
    """

    children: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)


_seen: Seen | None = None  # None outside of tests; an audit hook cannot be removed


def _with_stack(what: str) -> str:
    """Append the stack frames that lie in the repository, or all frames if none does.

    The last frame is the line to change.
    """
    stack = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
    own = [frame for frame in stack if _is_ours(frame.filename)]
    return f"{what}\n{''.join(traceback.format_list((own or stack)[-_SHOWN:]))}"


def _is_ours(place: str) -> bool:
    """Return whether a path is in the repository, outside of the folders of tools."""
    parts = place[len(_ROOT) :].split(os.sep)
    return place.startswith(_ROOT) and not any(part in _TOOLS or part.startswith(".coverage") for part in parts)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event in _EVENTS:
        _seen.children.append(_with_stack(f"{event} {arguments[:2]}"))
        return
    path: Any = None
    if event == "open" and arguments[2] & _WRITING:
        # The event has no descriptor that the name is relative to. Callers here name theirs `dir_fd`.
        path = arguments[0] if sys._getframe(1).f_locals.get("dir_fd") is None else None
    elif event == "sqlite3.connect":
        path = None if arguments[0] == ":memory:" else arguments[0]
    elif event in _CHANGES:
        place, relative_to = _CHANGES[event]
        path = arguments[place] if arguments[relative_to] == -1 else None
    if isinstance(path, str | bytes | os.PathLike) and _is_ours(full := os.path.abspath(os.fsdecode(path))):
        _seen.writes.append(_with_stack(full))


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
    """Yield the record of forbidden actions of this process until the end of the block."""
    global _seen
    _seen = found = Seen()
    try:
        yield found
    finally:
        _seen = None

"""Compiled programs on disk, in the user's cache folder.

Libraries loaded from here run in this process. So the folder must be the user's own: no other user may write into it,
or replace it through a parent folder. An unsuitable folder is neither read nor written. A file is written under another
name and then renamed, so that two processes that compile the same program do not interfere. It ends with a digest of
the bytes before it, because the loader maps the file, and a truncated one would crash the process.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from aioflow.errors import OpError
from aioflow.formats.temporary_files import write_atomically
from aioflow.formats.user_cache import cache_folder

_DIGEST: Final = hashlib.sha256().digest_size
_MOST: Final = 512  # programs, of some 16 KB each
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class ProgramStore:
    """Programs by their keys.

    Args:
        folder: The folder; made when the first program is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() / "compiled" if folder is None else folder

    def problem(self) -> str | None:
        """Return the reason why the folder is not used; None if it is, or would be once it exists."""
        if not self.folder.is_absolute():
            return "the user has no home folder"
        folder = Path(os.path.realpath(self.folder))
        try:
            return _problem(folder, folder) or next(
                filter(None, (_problem(each, folder) for each in folder.parents)), None
            )
        except OSError as error:
            return f"{folder}: {error.strerror}"

    def find(self, key: str) -> Path | None:
        """Return the library that was kept under a key, or None. Blocks on the disk."""
        path = self._path(key)
        if self.problem() is not None:
            return None
        try:
            with open(path, "rb", opener=_as_itself) as file:
                # The state of the open file: that of the path could change between the check and the read.
                state = os.fstat(file.fileno())
                if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & _OTHERS:
                    return None
                contents = file.read()
        except OSError:
            return None
        if hashlib.sha256(contents[:-_DIGEST]).digest() != contents[-_DIGEST:]:
            return None
        with suppress(OSError):
            os.utime(path)  # the one unused for longest is removed first
        return path

    def keep(self, key: str, library: bytes) -> Path | None:
        """Keep a library. Return its path, or None if the folder does not accept it. Blocks on the disk."""
        if self.problem() is not None:
            return None
        try:
            self._make()
            write_atomically(self._path(key), library + hashlib.sha256(library).digest())
            self._prune()
        except (OSError, OpError):
            return None
        # Read again, so that a file that was not written as a whole is not loaded.
        return self.find(key)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.so"

    def _make(self) -> None:
        # Not `makedirs`, which would use the mode for the last folder only.
        for folder in (*reversed(self.folder.parents), self.folder):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)

    def _prune(self) -> None:
        known = [(path.stat().st_mtime, path) for path in self.folder.glob("*.so")]
        for _, path in sorted(known)[:-_MOST]:
            path.unlink(missing_ok=True)


def _as_itself(path: str, flags: int) -> int:
    # A link could lead out of the checked folder, and the open of a named pipe would block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _problem(path: Path, folder: Path) -> str | None:
    """Return the problem with the folder, or with one above it; otherwise None."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(state.st_mode):
        return f"{path} is no folder"
    # Folders above it may belong to root.
    if state.st_uid != os.geteuid() and (path == folder or state.st_uid != 0):
        return f"{path} is another user's"
    # In a sticky folder such as /tmp, other users cannot replace the entry.
    kept_apart = path != folder and state.st_mode & stat.S_ISVTX
    if state.st_mode & _OTHERS and not kept_apart:
        return f"others may write to {path}"
    return None

"""Atomically created folders: filled under a temporary name beside the final one, like `temporary_files.py`."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from aioflow.errors import AlreadyExistsError
from aioflow.formats.files import file_errors
from aioflow.formats.temporary_files import flush_directory, locks


class TemporaryFolder:
    """A new folder under a recognizable temporary name.

    Attributes:
        path: The temporary name.
    """

    def __init__(self, path: Path, final: Path) -> None:
        self.path = path
        self._final = final

    def publish(self) -> None:
        """Rename the folder to its final name. An empty folder of that name is replaced, except on Windows.

        The files in the folder must be flushed already.

        Raises:
            AlreadyExistsError: the final name is in use.
        """
        # The names in the folder become durable before the folder itself becomes visible.
        flush_directory(self.path)
        try:
            self.path.rename(self._final)
        except OSError as error:
            if not os.path.lexists(self._final):
                raise
            raise AlreadyExistsError(f"{self._final} is there already", expected="nothing of that name") from error
        flush_directory(self._final.parent)


@contextmanager
def temporary_folder(final: Path) -> Iterator[TemporaryFolder]:
    """Create a folder beside `final`. It is deleted at the end of the block unless it was published.

    Remains of killed writers of the same folder are removed.
    """
    with file_errors(final), ExitStack() as stack:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final)
        yield TemporaryFolder(_made(final, stack), final)


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Wait for an exclusive lock on a folder, and hold it inside the block.

    If the folder cannot be locked, the block runs without a lock.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            _lock(path, True, stack)
        yield


def _made(final: Path, stack: ExitStack) -> Path:
    """Create and lock a folder, which is deleted when the stack is left."""
    while True:
        path = final.with_name(f".{final.name}.{secrets.token_hex(6)}.tmp")
        path.mkdir()
        # After `publish` there is no folder of that name, which is no error.
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        with suppress(OSError):
            _lock(path, True, stack)
        if path.is_dir():  # otherwise another writer removed it as abandoned before it was locked
            return path


def _lock(path: Path, wait: bool, stack: ExitStack) -> None:
    if locks is None:
        raise OSError("there are no locks")
    descriptor = os.open(path, os.O_RDONLY)
    stack.callback(os.close, descriptor)
    locks.flock(descriptor, locks.LOCK_EX | (0 if wait else locks.LOCK_NB))
    # A forked child inherits the descriptor and would hold the lock for its lifetime, so unlock explicitly.
    stack.callback(locks.flock, descriptor, locks.LOCK_UN)


def _remove_abandoned(final: Path) -> None:
    temporary = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{12}}\.tmp")
    with suppress(OSError), os.scandir(final.parent) as entries:
        for entry in [e for e in entries if temporary.fullmatch(e.name)]:
            with suppress(OSError), ExitStack() as stack:  # it is locked, or a file
                _lock(Path(entry.path), False, stack)
                shutil.rmtree(entry.path, ignore_errors=True)

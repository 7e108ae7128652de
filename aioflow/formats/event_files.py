"""Event files in a folder or a store, where TensorBoard finds them: records of `Event` messages.

No file is open between two appends: nothing is left open where a program forgets to close it, a forked child inherits
nothing, and what is there can be read. Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from aioflow.errors import FailedPreconditionError
from aioflow.formats.files import file_errors
from aioflow.formats.stores import is_url, joined, local_path, store_of

__all__ = ["EventFile", "new_event_file"]

_NUMBERS: Final = itertools.count()


class EventFile(Protocol):
    """A file that grows.

    Attributes:
        is_new: Nothing has been appended yet.
        path: Its name.
    """

    is_new: bool
    path: str

    def append(self, data: bytes) -> None:
        """Append whole records: all of them or, where this raises, none.

        Raises:
            PermissionDeniedError, ResourceExhaustedError, …: the system refuses; the error names the file.
        """


def new_event_file(logdir: str, seconds: float, suffix: str = "") -> EventFile:
    """The next file of a folder, or of a store that is named by a URL. It appears with the first append.

    Args:
        seconds: Since 1970. TensorBoard reads the files of a folder in the order of their names, and goes on to the
            next one when that appears.
    """
    name = f"events.out.tfevents.{int(seconds):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS):06d}{suffix}"
    return _InStore(logdir, name) if is_url(logdir) else _InFolder(logdir, name)


class _InFolder:
    def __init__(self, folder: str, name: str) -> None:
        self.is_new = True
        self._folder = local_path(folder)
        self.path = str(self._folder / name)

    def append(self, data: bytes) -> None:
        with file_errors(self.path):
            if self.is_new:
                self._folder.mkdir(parents=True, exist_ok=True)
            with open(self.path, "xb" if self.is_new else "r+b", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[file.write(rest) :]
                except OSError:
                    with suppress(OSError):
                        file.truncate(end)  # a piece of a record would hide what comes after it
                    if self.is_new:
                        with suppress(OSError):
                            Path(self.path).unlink()
                    raise
        self.is_new = False


class _InStore:
    """An object, which cannot grow: it is appended to once."""

    def __init__(self, folder: str, name: str) -> None:
        self.is_new = True
        self.path = joined(folder, name)

    def append(self, data: bytes) -> None:
        if not self.is_new:
            raise FailedPreconditionError("an object cannot grow", expected="another file", actual=self.path)
        store, name = store_of(self.path)
        store.put(name, data)
        self.is_new = False

"""Event files in a folder or a store, for TensorBoard: records of `Event` messages.

No file is open between two appends. A program therefore need not close anything, a forked child inherits nothing, and
what is written can be read at once. All functions block: call them from a thread.
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

_NUMBERS: Final = itertools.count()


class EventFile(Protocol):
    """A file that grows by whole records.

    Attributes:
        is_new: Whether nothing has been appended yet.
        path: Path of the file.
    """

    is_new: bool
    path: str

    def append(self, data: bytes) -> None:
        """Append whole records: all of them or, if this raises, none.

        Raises:
            PermissionDeniedError, ResourceExhaustedError, …: the system refuses; the error names the file.
            FailedPreconditionError: the file is in a store, and has been written already.
        """


def new_event_file(logdir: str, seconds: float, suffix: str = "") -> EventFile:
    """Return the next file of a folder, or of a store that is named by a URL. It is created by the first append.

    TensorBoard reads the files of a folder in the order of their names, and moves on to the next one when it appears.

    Args:
        logdir: The folder, or the URL of a store's folder.
        seconds: Time in seconds since 1970, which the name begins with.
        suffix: End of the name.
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
            # Unbuffered: an error then comes from `write`, where it can be undone, and not from closing the file.
            with open(self.path, "xb" if self.is_new else "r+b", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[file.write(rest) :]
                except OSError:
                    with suppress(OSError):
                        file.truncate(end)  # a partial record would make the records after it unreadable
                    if self.is_new:
                        with suppress(OSError):
                            Path(self.path).unlink()
                    raise
        self.is_new = False


class _InStore:
    """An object of a store, which cannot grow: it is written by a single append."""

    def __init__(self, folder: str, name: str) -> None:
        self.is_new = True
        self.path = joined(folder, name)

    def append(self, data: bytes) -> None:
        if not self.is_new:
            raise FailedPreconditionError("an object cannot grow", expected="another file", actual=self.path)
        store, name = store_of(self.path)
        store.put(name, data)
        self.is_new = False

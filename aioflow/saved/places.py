"""Files of a model folder: read only from within the folder, and verified against its manifest."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from aioflow.concurrency.stopping import checkpoint
from aioflow.errors import DataLossError, NotFoundError, PermissionDeniedError, ResourceExhaustedError
from aioflow.formats.files import PIECE, file_errors, read_up_to
from aioflow.formats.stores import Store, is_url, joined, local_path, store_at
from aioflow.formats.temporary_files import kept_file
from aioflow.saved.manifest import MANIFEST, FileEntry

_MAX_MANIFEST: Final = 1 << 26
_MAX_GRAPH: Final = 1 << 34


class ModelFolder:
    """A local folder, or a folder in a store.

    Attributes:
        name: Full path or URL of the folder.
        is_remote: Whether it is in a store.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        text = os.fspath(folder)
        self.is_remote = is_url(text)
        self.name = text.rstrip("/") if self.is_remote else os.path.abspath(local_path(text))

    def followed(self) -> ModelFolder:
        """Return the folder itself if this is a link, whose target may change later."""
        return self if self.is_remote else ModelFolder(os.path.realpath(self.name))

    def path(self, name: str) -> str:
        """Return the full name of a file."""
        return joined(self.name, name)

    def store(self, name: str = "") -> tuple[Store, str]:
        """Return the store that holds a file, and the file's name there."""
        inner, _, last = name.rpartition("/")
        folder = self.path(inner) if inner else self.name
        return store_at(folder), last

    def manifest(self) -> bytes:
        """Read the manifest.

        Raises:
            NotFoundError: the folder is not a model.
            ResourceExhaustedError: the file is too large.
            PermissionDeniedError: the file is a link that leads out of the folder.
        """
        store, name = self.store(MANIFEST)
        if store.size(name) is None:
            raise NotFoundError(f"there is no model in {self.name}", expected=f"a file {MANIFEST}", actual="none")
        with self._open(MANIFEST) as file:
            data = read_up_to(file, _MAX_MANIFEST + 1)
        if len(data) > _MAX_MANIFEST:
            raise ResourceExhaustedError(f"{self.path(MANIFEST)} is too large", expected=f"{_MAX_MANIFEST} bytes")
        return data

    def read(self, file: FileEntry) -> bytes:
        """Read and verify a file that the manifest lists.

        Raises:
            NotFoundError: the file is missing.
            ResourceExhaustedError: the file is too large.
            DataLossError: the file is not the one that was written.
            PermissionDeniedError: the file is a link that leads out of the folder.
        """
        if file.size > _MAX_GRAPH:
            raise ResourceExhaustedError(
                f"{self.path(file.name)} is too large", expected=f"at most {_MAX_GRAPH} bytes", actual=file.size
            )
        contents = BytesIO()
        # The generator raises after the last piece if the digest differs, before the contents are used.
        contents.writelines(self._checked(file))
        return contents.getvalue()

    def check(self, file: FileEntry) -> None:
        """Verify a file without keeping its contents. Raises the errors of `read`."""
        for _ in self._checked(file):
            pass

    def fetch(self, file: FileEntry, path: str) -> None:
        """Copy a file to a local path, and verify it. Raises the errors of `read` and of the file system."""
        with file_errors(path), open(path, "xb") as target:
            target.writelines(self._checked(file))

    def keep(self, name: str, kept: ExitStack) -> None:
        """Mark a local file as in use by this process until the stack is left. Raises the errors of `check_inside`.

        In a store this has no effect, since stores have no locks.
        """
        self.check_inside(name)
        file = None if self.is_remote else kept_file(Path(self.path(name)))
        if file is not None:
            kept.enter_context(file)

    def _checked(self, file: FileEntry) -> Iterator[bytes]:
        store, name = self.store(file.name)
        path, size = self.path(file.name), store.size(name)
        if size is None:
            raise NotFoundError(f"file {path} is missing", expected="a file that the manifest speaks of", actual="none")
        if size != file.size:
            raise DataLossError(f"file {path} is damaged", expected=f"{file.size} bytes", actual=f"{size} bytes")
        digest = hashlib.sha256()
        with self._open(file.name) as opened:
            for piece in pieces(opened):
                digest.update(piece)
                yield piece
        if digest.hexdigest() != file.sha256:
            raise DataLossError(
                f"file {path} has been altered", expected=f"SHA-256 {file.sha256[:64]}", actual=digest.hexdigest()
            )

    def check_inside(self, name: str) -> None:
        """Raise unless a path is a regular file inside the folder.

        Raises:
            DataLossError: it is a folder, a pipe or a device.
            PermissionDeniedError: it is a link that leads out of the folder.
        """
        if self.is_remote:
            return
        path = self.path(name)
        with file_errors(path):
            # Resolved, because a link or ".." may lead outside.
            real = os.path.realpath(path)
            # With the separator, or "/model-other" would pass as inside of "/model".
            if not real.startswith(os.path.realpath(self.name).rstrip(os.sep) + os.sep):
                raise PermissionDeniedError(
                    f"{path} is a link that leads out of the folder", expected=f"a file in {self.name}", actual=real
                )
            if not stat.S_ISREG(os.stat(real).st_mode):  # opening a pipe would block
                raise DataLossError(f"{path} is no file", expected="a file", actual="something else")

    def _open(self, name: str) -> BinaryIO:
        self.check_inside(name)
        store, last = self.store(name)
        return store.open(last)


def pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield the contents of a file in pieces."""
    while piece := file.read(PIECE):
        yield piece


def copied(source: BinaryIO, target: BinaryIO) -> tuple[int, str]:
    """Copy a file. Return its size in bytes and its SHA-256."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces(source):
        checkpoint()
        digest.update(piece)
        size += len(piece)
        target.write(piece)
    return size, digest.hexdigest()

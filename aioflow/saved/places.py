"""The files of a folder: read within it alone, and checked against what its manifest says of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from aioflow.errors import DataLossError, NotFoundError, PermissionDeniedError, ResourceExhaustedError
from aioflow.formats.files import PIECE, file_errors
from aioflow.formats.stores import Store, is_url, joined, local_path, store_at
from aioflow.formats.temporary_files import kept_file
from aioflow.saved.manifest import MANIFEST, StoredFile
from aioflow.work.stopping import checkpoint

__all__ = ["Place", "copied", "pieces"]

_MAX_MANIFEST: Final = 1 << 26
_MAX_GRAPH: Final = 1 << 34


class Place:
    """A folder of this machine, or of a store.

    Attributes:
        name: In full.
        is_remote: Whether it is in a store.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        text = os.fspath(folder)
        self.is_remote = is_url(text)
        self.name = text.rstrip("/") if self.is_remote else os.path.abspath(local_path(text))

    def followed(self) -> Place:
        """The folder itself, where this is a link, which may lead to another one tomorrow."""
        return self if self.is_remote else Place(os.path.realpath(self.name))

    def path(self, name: str) -> str:
        """The full name of a file."""
        return joined(self.name, name)

    def store(self, name: str = "") -> tuple[Store, str]:
        """Where a file is, and its name there."""
        inner, _, last = name.rpartition("/")
        folder = self.path(inner) if inner else self.name
        return store_at(folder), last

    def manifest(self) -> bytes:
        """The manifest. Raises NotFoundError: this is not a folder with a model."""
        store, name = self.store(MANIFEST)
        if store.size(name) is None:
            raise NotFoundError(f"there is no model in {self.name}", expected=f"a file {MANIFEST}", actual="none")
        with self._open(MANIFEST) as file:
            data = file.read(_MAX_MANIFEST + 1)
        if len(data) > _MAX_MANIFEST:
            raise ResourceExhaustedError(f"{self.path(MANIFEST)} is too large", expected=f"{_MAX_MANIFEST} bytes")
        return data

    def read(self, file: StoredFile) -> bytes:
        """A file that the manifest speaks of.

        Raises:
            NotFoundError: it is not there.
            DataLossError: it is not the one that was written.
            PermissionDeniedError: it is a link that leads out of the folder.
        """
        if file.size > _MAX_GRAPH:
            raise ResourceExhaustedError(
                f"{self.path(file.name)} is too large", expected=f"at most {_MAX_GRAPH} bytes", actual=file.size
            )
        contents = BytesIO()
        contents.writelines(self._checked(file))
        return contents.getvalue()

    def check(self, file: StoredFile) -> None:
        """Raises as `read`, without keeping what is read."""
        for _ in self._checked(file):
            pass

    def fetch(self, file: StoredFile, path: str) -> None:
        """Copy a file to a path of this machine. Raises as `read`, and as the file system refuses."""
        with file_errors(path), open(path, "xb") as target:
            target.writelines(self._checked(file))

    def keep(self, name: str, kept: ExitStack) -> None:
        """Show that a file is in use until the stack is left, to others of this machine; of a store nobody can tell.

        Raises as `check_inside`.
        """
        self.check_inside(name)
        file = None if self.is_remote else kept_file(Path(self.path(name)))
        if file is not None:
            kept.enter_context(file)

    def _checked(self, file: StoredFile) -> Iterator[bytes]:
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
        """Raise where a file is none, or is a link that leads out of the folder.

        Raises:
            DataLossError: it is a folder, a pipe, a device.
            PermissionDeniedError: it is somewhere else.
        """
        if self.is_remote:
            return
        path = self.path(name)
        with file_errors(path):
            real = os.path.realpath(path)
            if not real.startswith(os.path.realpath(self.name).rstrip(os.sep) + os.sep):
                raise PermissionDeniedError(
                    f"{path} is a link that leads out of the folder", expected=f"a file in {self.name}", actual=real
                )
            if not stat.S_ISREG(os.stat(real).st_mode):  # a pipe would be waited for
                raise DataLossError(f"{path} is no file", expected="a file", actual="something else")

    def _open(self, name: str) -> BinaryIO:
        self.check_inside(name)
        store, last = self.store(name)
        return store.open(last)


def pieces(file: BinaryIO) -> Iterator[bytes]:
    """The contents of a file, a part at a time."""
    while piece := file.read(PIECE):
        yield piece


def copied(source: BinaryIO, target: BinaryIO) -> tuple[int, str]:
    """Copy a file; returns how many bytes it has, and their SHA-256."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces(source):
        checkpoint()
        digest.update(piece)
        size += len(piece)
        target.write(piece)
    return size, digest.hexdigest()

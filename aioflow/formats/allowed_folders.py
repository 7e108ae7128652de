"""The folders in which the graphs of one worker may read and write files.

A worker runs the graphs of its clients, and a graph names files by strings that it may compute. A kernel that opens a
file therefore checks its name first: the name is resolved, including `..` and links, and the resolved name is opened.
A session of one process uses `ANYWHERE`: its graph is the program's own.

A graph cannot make links, but another program with write access to an allowed folder can put one there between the
check and the opening. The resolved name is therefore opened part by part, each relative to the descriptor of the
folder before it and without following links. Where the system does not support that (Windows), the resolved name is
opened directly.
"""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from aioflow.errors import InvalidArgumentError, PermissionDeniedError
from aioflow.formats.files import file_errors, names_in, relative_to

# `::` joins the URLs of a chain of fsspec. A scheme has at least two characters, unlike a drive of Windows.
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+)(?:::|://)")
_PATH: Final = re.compile(r"(?:file|local)://")
_TO_GIVE: Final = "python -m aioflow.worker --allow-dir FOLDER, or train.Server(…, allow_dirs=[FOLDER])"
_LOGGER: Final = logging.getLogger("aioflow.files")
_STEPS_OUT: Final = frozenset({".", ".."})
_WILDCARD: Final = re.compile(r"[*?\[]")
_NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_WALKS: Final = bool(_NO_LINK) and {os.open, os.mkdir, os.stat, os.unlink, os.rename} <= os.supports_dir_fd
# O_PATH: a folder that is only traversed need not be readable, where the system has such descriptors.
_PASS: Final[int] = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)


def is_url(path: str) -> bool:
    """Return True if the path names something that is not on this machine."""
    return _URL.match(path) is not None and _PATH.match(path) is None


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the path on this machine that `path`, possibly a URL, names."""
    return Path(_PATH.sub("", os.fspath(path), count=1))


class AllowedFolders:
    """The folders that files may be in.

    Args:
        folders: Folders of this machine, which need not exist yet, and URLs of folders of stores; None for no limits.
            Relative folders are resolved against the current working directory.

    Raises:
        InvalidArgumentError: `folders` is a single name, whose letters would count as names, or contains an empty
            name.
    """

    def __init__(self, folders: Iterable[str | os.PathLike[str]] | None = ()) -> None:
        if isinstance(folders, str | bytes | os.PathLike):
            raise InvalidArgumentError("allowed folders must be a list", expected=f"[{str(folders)!r}]", actual=folders)
        self._folders: tuple[str, ...] | None = None if folders is None else ()
        for folder in folders or ():
            self.allow(folder)

    def __str__(self) -> str:
        return "anywhere" if self._folders is None else ", ".join(self._folders) or "none"

    def __bool__(self) -> bool:
        """Return True if any file may be allowed."""
        return self._folders is None or bool(self._folders)

    def allow(self, folder: str | os.PathLike[str]) -> None:
        """Add a folder. Raise InvalidArgumentError if its name is empty."""
        text = os.fspath(folder)
        if not text:
            raise InvalidArgumentError("empty folder name", expected="a name, or '.'", actual=repr(text))
        whole = text.rstrip("/") if is_url(text) else os.path.abspath(local_path(text))
        if self._folders is not None and whole not in self._folders:
            self._folders = (*self._folders, whole)
            if not is_url(whole):
                _warn_of_code(whole)

    def file(self, path: str, given: str = "") -> str:
        """Return the name to open for a file or folder of this machine: its name without links and `..`.

        Without limits, this is `path` unchanged.

        Args:
            path: The file.
            given: Its name in the graph, for the error.

        Raises:
            PermissionDeniedError: it is in none of the folders.
        """
        if self._folders is None:
            return path
        with file_errors(path):
            # Links are resolved before the check; `folder` follows none afterwards.
            real = os.path.realpath(path)
            if not self._holds(real):
                raise self._refused(given or path)
        return real

    def opener(self, real: str, flags: int) -> int:
        """Open a name that `file` has returned, as the `opener` of `open`. With O_CREAT, make missing folders.

        Raises:
            PermissionDeniedError: the name is in none of the folders.
            OSError: `os.open` fails, also because a part of the name has become a link meanwhile.
        """
        if real in self._resolved():  # an allowed folder itself
            folder, name = real, os.curdir
        else:
            folder, name = os.path.split(real)
        with self.folder(folder, make=bool(flags & os.O_CREAT)) as dir_fd:
            return relative_to(dir_fd)(real if dir_fd is None else name, flags)

    @contextmanager
    def folder(self, real: str, *, make: bool = False) -> Iterator[int | None]:
        """Hold open a folder whose name `file` has returned, so that names relative to it stay in it.

        Args:
            real: The name of the folder.
            make: Make the folder and its parents if they are missing.

        Yields:
            A descriptor for use as `dir_fd`; None if there are no limits, or the system does not support such
            descriptors.

        Raises:
            PermissionDeniedError: the folder is in none of the allowed ones.
            OSError: the folder cannot be opened, also because a part of the name has become a link meanwhile.
        """
        if self._folders is None or not _WALKS:
            if make:
                os.makedirs(real or os.curdir, exist_ok=True)
            yield None
            return
        descriptor = self._walked(real, make)
        try:
            yield descriptor
        except OSError as error:
            if isinstance(error.filename, str):  # the name is relative to the folder
                error.filename = os.path.join(real, error.filename)
            raise
        finally:
            os.close(descriptor)

    def _walked(self, real: str, make: bool) -> int:
        """Open a folder part by part, from the allowed folder that contains it, without following links."""
        root = next((folder for folder in self._resolved() if _is_in(real, folder)), None)
        if root is None:
            raise self._refused(real)
        if make:
            os.makedirs(root, exist_ok=True)
        reached, descriptor = root, os.open(root, _PASS)
        for part in filter(None, real[len(root) :].split(os.sep)):
            reached = os.path.join(reached, part)
            above = descriptor
            try:
                descriptor = _inner(part, above, make)
            except OSError as error:
                error.filename = reached
                raise
            finally:
                os.close(above)
        return descriptor

    def _resolved(self) -> list[str]:
        return [os.path.realpath(folder) for folder in self._folders or () if not is_url(folder)]

    def _holds(self, real: str) -> bool:
        return any(_is_in(real, folder) for folder in self._resolved())

    def check_url(self, url: str) -> None:
        """Raise PermissionDeniedError unless everything below the URL is in one of the folders."""
        if self._folders is None:
            return
        for folder in self._folders:
            rest = url.removeprefix(folder)
            if is_url(folder) and len(rest) < len(url) and rest[:1] == "/" and _goes_down(rest):
                return
        raise self._refused(url)

    def matching(self, pattern: str) -> Iterator[str]:
        """Yield the names of the files in the folders that match a pattern, as `glob` finds them.

        Raises:
            PermissionDeniedError: the part of the pattern before the first wildcard is outside the folders, or a later
                part is `.` or `..`.
        """
        if self._folders is None:
            yield from glob.iglob(pattern, include_hidden=True)
            return
        folder, rest = _cut(pattern)
        self.file(folder or os.curdir, pattern)
        parts = re.split(r"/+", rest)
        if _STEPS_OUT & set(re.split(r"[/\\]", rest)):
            raise self._refused(pattern)
        yield from self._below(folder, parts)

    def _below(self, folder: str, parts: list[str]) -> Iterator[str]:
        part, *rest = parts
        with suppress(OSError, PermissionDeniedError):  # `glob` also skips folders that cannot be listed
            for name in self._names(self.file(folder or os.curdir), part):
                path = os.path.join(folder, name)
                if rest:
                    yield from self._below(path, rest)
                # A match may be a link that leads out of the folders.
                elif self._holds(os.path.realpath(path)):
                    yield path

    def _names(self, real: str, part: str) -> list[str]:
        """Return the names in a folder that match one part of a pattern. Raise OSError if it cannot be listed."""
        with self.folder(real) as dir_fd:
            if _WILDCARD.search(part):
                return fnmatch.filter(names_in(real, dir_fd), part)
            at = os.path.join(real, part) if dir_fd is None else part or os.curdir
            os.stat(at, dir_fd=dir_fd, follow_symlinks=False)
            return [part]

    def _refused(self, path: str) -> PermissionDeniedError:
        return PermissionDeniedError(
            f"this worker's graphs may not open {path!r}",
            expected=f"a file in an allowed folder ({self}); to allow one: {_TO_GIVE}",
            actual=path,
        )


ANYWHERE: Final = AllowedFolders(None)


def _inner(name: str, above: int, make: bool) -> int:
    """Open a folder inside a folder, unless it is a link. Raise OSError if that fails."""
    try:
        return os.open(name, _PASS | _NO_LINK, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    # Another program may make the folder at the same time.
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    # A new entry at this path may be a link, too, and is not followed either.
    return os.open(name, _PASS | _NO_LINK, dir_fd=above)


def _warn_of_code(folder: str) -> None:
    """Log a warning if this process imports modules from the folder.

    A module that a graph writes there runs when this process imports one of that name, perhaps much later.
    """
    real = os.path.realpath(folder)
    for place in sys.path:
        if _is_in(os.path.realpath(place or os.curdir), real):
            _LOGGER.warning(
                "graphs may write to %s, and this process imports modules from %s: clients of its server "
                "can run code. Allow only folders that hold data.",
                folder,
                place or "its working directory",
            )
            return


def _is_in(path: str, folder: str) -> bool:
    # With a separator, so that /data-old is not in /data.
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _goes_down(rest: str) -> bool:
    """Return True if the rest of a URL does not lead out of the folder, by its steps or as another URL of a chain."""
    # A store may decode percent signs, so `%2e%2e` counts as `..`.
    plain = unquote(rest)
    return "::" not in plain and "\\" not in plain and not _STEPS_OUT & set(plain.split("/"))


def _cut(pattern: str) -> tuple[str, str]:
    """Return the folder before the first part with a wildcard, and the rest."""
    found = _WILDCARD.search(pattern)
    head = pattern if found is None else pattern[: found.start()]
    cut = head.rfind("/") + 1
    return pattern[:cut], pattern[cut:]

"""The folders that the graphs of one worker may read and write files in.

A worker computes what others send it, and a graph names files by strings that it may compute. So each file is looked at
when it is about to be opened, by the kernel that opens it: the name is resolved, `..` and links included, and what is
opened is the resolved name. A session of one process has `ANYWHERE`: its graph is the program's own.

A graph cannot make links. Against somebody else who may write to an allowed folder, and puts a link there between the
look and the opening, this does not help.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from aioflow.errors import InvalidArgumentError, PermissionDeniedError
from aioflow.formats.files import file_errors

__all__ = ["ANYWHERE", "AllowedFolders", "is_url", "local_path"]

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+)(?:::|://)")
_PATH: Final = re.compile(r"(?:file|local)://")
_TO_GIVE: Final = "python -m aioflow.worker --allow-dir FOLDER, or train.Server(…, allow_dirs=[FOLDER])"
_LOGGER: Final = logging.getLogger("aioflow.files")
_STEPS_OUT: Final = frozenset({".", ".."})


def is_url(path: str) -> bool:
    """Whether this names something that is not on this machine."""
    return _URL.match(path) is not None and _PATH.match(path) is None


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path of this machine, which may be given as a URL."""
    return Path(_PATH.sub("", os.fspath(path), count=1))


class AllowedFolders:
    """Where files may be.

    Args:
        folders: Folders of this machine, which need not exist yet, and URLs of folders of stores; None for no limits.
            A relative one is of the working directory of now.

    Raises:
        InvalidArgumentError: one name in the place of several, whose letters would count, or an empty one.
    """

    def __init__(self, folders: Iterable[str | os.PathLike[str]] | None = ()) -> None:
        if isinstance(folders, str | bytes | os.PathLike):
            raise InvalidArgumentError("folders are given as a list", expected=f"[{str(folders)!r}]", actual=folders)
        self._folders: tuple[str, ...] | None = None if folders is None else ()
        for folder in folders or ():
            self.allow(folder)

    def __str__(self) -> str:
        return "anywhere" if self._folders is None else ", ".join(self._folders) or "none"

    def __bool__(self) -> bool:
        """Whether there may be any."""
        return self._folders is None or bool(self._folders)

    def allow(self, folder: str | os.PathLike[str]) -> None:
        """One more. Raises InvalidArgumentError."""
        text = os.fspath(folder)
        if not text:
            raise InvalidArgumentError("not a folder", expected="its name, or '.'", actual=repr(text))
        whole = text.rstrip("/") if is_url(text) else os.path.abspath(local_path(text))
        if self._folders is not None and whole not in self._folders:
            self._folders = (*self._folders, whole)
            if not is_url(whole):
                _warn_of_code(whole)

    def file(self, path: str, given: str = "") -> str:
        """What to open for a file, or folder, of this machine: its name without links and `..`.

        Args:
            given: What the graph calls it, for the error.

        Raises:
            PermissionDeniedError: it is in none of the folders.
        """
        if self._folders is None:
            return path
        with file_errors(path):
            real = os.path.realpath(path)
            if not self._holds(real):
                raise self._refused(given or path)
        return real

    def _holds(self, real: str) -> bool:
        return any(_is_in(real, os.path.realpath(folder)) for folder in self._folders or () if not is_url(folder))

    def check_url(self, url: str) -> None:
        """Raises PermissionDeniedError: what begins with the URL is not all in one of the folders."""
        if self._folders is None:
            return
        for folder in self._folders:
            rest = url.removeprefix(folder)
            if is_url(folder) and len(rest) < len(url) and rest[:1] == "/" and _goes_down(rest):
                return
        raise self._refused(url)

    def matching(self, pattern: str) -> Iterator[str]:
        """Names of the files that match a pattern, as `glob` finds them, of those that are in the folders.

        Raises:
            PermissionDeniedError: the part of the pattern that is a plain name is of no file in the folders.
        """
        if self._folders is None:
            yield from glob.iglob(pattern, include_hidden=True)
            return
        folder, rest = _cut(pattern)
        root = self.file(folder or os.curdir, pattern)
        if _STEPS_OUT & set(re.split(r"[/\\]", rest)):
            raise self._refused(pattern)
        if not rest:  # the name of a folder
            yield from [folder] if os.path.isdir(root) else []
        for name in glob.iglob(rest, root_dir=root, include_hidden=True):
            if self._holds(os.path.realpath(os.path.join(root, name))):
                yield os.path.join(folder, name)

    def _refused(self, path: str) -> PermissionDeniedError:
        return PermissionDeniedError(
            f"this worker's graphs may not open {path!r}",
            expected=f"a file in one of its folders ({self}); to give one: {_TO_GIVE}",
            actual=path,
        )


ANYWHERE: Final = AllowedFolders(None)


def _warn_of_code(folder: str) -> None:
    """A module that is written there is run when this process imports one of that name, which may be much later."""
    real = os.path.realpath(folder)
    for place in sys.path:
        if _is_in(os.path.realpath(place or os.curdir), real):
            _LOGGER.warning(
                "graphs may write to %s, and this process imports modules from %s: who can reach its server can run "
                "code. Give a folder with data alone.",
                folder,
                place or "its working directory",
            )
            return


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _goes_down(rest: str) -> bool:
    """Whether what follows a folder's URL does not lead out of it: by its steps, or as another URL of a chain."""
    plain = unquote(rest)
    return "::" not in plain and "\\" not in plain and not _STEPS_OUT & set(plain.split("/"))


def _cut(pattern: str) -> tuple[str, str]:
    """The folder before the first part with a wildcard, and the rest."""
    found = re.search(r"[*?\[]", pattern)
    head = pattern if found is None else pattern[: found.start()]
    cut = head.rfind("/") + 1
    return pattern[:cut], pattern[cut:]

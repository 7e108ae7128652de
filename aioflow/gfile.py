"""Files, as `tf.gfile` of TensorFlow 1 has them: the public namespace `aioflow.gfile`.

`aioflow.io.gfile` has the same functions under newer names. They block, like `open`: in a coroutine, call them in a
thread (`asyncio.to_thread`) if the disk or the network may be slow.
"""

from collections.abc import Iterable, Iterator

from aioflow.formats import gfile as _files
from aioflow.formats.gfile import FileStatistics, GFile, PathLike
from aioflow.loading.later import load_later as _load_later

# TensorFlow's names.

__all__ = [
    "Copy",
    "DeleteRecursively",
    "Exists",
    "FastGFile",
    "GFile",
    "Glob",
    "IsDirectory",
    "ListDirectory",
    "MakeDirs",
    "MkDir",
    "Open",
    "Remove",
    "Rename",
    "Stat",
    "Walk",
]

FastGFile = GFile
Open = GFile


def Copy(oldpath: PathLike, newpath: PathLike, overwrite: bool = False) -> None:
    """Copy a file. Raises like `aioflow.io.gfile.copy`."""
    _files.copy(oldpath, newpath, overwrite)


def DeleteRecursively(dirname: PathLike) -> None:
    """Delete a folder with everything in it. Raises NotFoundError if it does not exist."""
    _files.rmtree(dirname)


def Exists(filename: PathLike) -> bool:
    """Return whether there is a file or folder of this name."""
    return _files.exists(filename)


def Glob(filename: PathLike | Iterable[PathLike]) -> list[str]:
    """Return the files and folders that match a pattern, or one of several."""
    return _files.glob(filename)


def IsDirectory(dirname: PathLike) -> bool:
    """Return whether it is a folder."""
    return _files.isdir(dirname)


def ListDirectory(dirname: PathLike) -> list[str]:
    """Return the names in a folder. Raises NotFoundError if there is no such folder."""
    return _files.listdir(dirname)


def MakeDirs(dirname: PathLike) -> None:
    """Create a folder and those above it. Raises FailedPreconditionError if one is a file."""
    _files.makedirs(dirname)


def MkDir(dirname: PathLike) -> None:
    """Create a folder. Raises NotFoundError if the one that would have it does not exist."""
    _files.mkdir(dirname)


def Remove(filename: PathLike) -> None:
    """Delete a file. Raises NotFoundError, or FailedPreconditionError for a folder."""
    _files.remove(filename)


def Rename(oldname: PathLike, newname: PathLike, overwrite: bool = False) -> None:
    """Rename or move a file. Raises like `aioflow.io.gfile.rename`."""
    _files.rename(oldname, newname, overwrite)


def Stat(filename: PathLike) -> FileStatistics:
    """Return size, time and kind of a file or folder. Raises NotFoundError if it does not exist."""
    return _files.stat(filename)


def Walk(top: PathLike, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below `top`, with the names of its folders and files."""
    return _files.walk(top, in_order)


_load_later(__name__)

"""Files beside a module, as `tf.resource_loader` has them: the public namespace `aioflow.resource_loader`."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from aioflow.formats.files import file_errors
from aioflow.loading.later import load_later as _load_later

__all__ = [
    "get_data_files_path",
    "get_path_to_datafile",
    "get_root_dir_with_all_resources",
    "load_resource",
    "readahead_file_path",
]


def get_data_files_path() -> str:
    """Return the folder of the module that calls this function."""
    return _folder_of_caller()


def get_root_dir_with_all_resources() -> str:
    """Return the folder of the module that calls this function, or the `.runfiles` folder of Bazel that has it."""
    folder = Path(_folder_of_caller())
    steps = itertools.pairwise([folder, *folder.parents])
    return str(next((inner for inner, outer in steps if ".runfiles" in outer.name), folder))


def get_path_to_datafile(path: str | os.PathLike[str]) -> str:
    """Return the path of a file that is named relative to the module that calls this function."""
    return os.path.join(_folder_of_caller(), path)


def load_resource(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file that is named relative to the module that calls this function.

    Raises:
        NotFoundError: there is no such file.
    """
    file = Path(_folder_of_caller(), path)
    with file_errors(file):
        return file.read_bytes()


def readahead_file_path(path: str, readahead: str = "128M") -> str:
    """Return the path. No file is read ahead."""
    return path


def _folder_of_caller() -> str:
    return os.path.dirname(os.path.abspath(sys._getframe(2).f_code.co_filename))


_load_later(__name__)

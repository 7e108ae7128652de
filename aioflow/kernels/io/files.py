"""Kernels that read, write and list files, in threads."""

from __future__ import annotations

import os

from aioflow.concurrency.stopping import batches
from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError
from aioflow.formats.allowed_folders import AllowedFolders
from aioflow.formats.files import file_errors, path_text, read_whole, write_whole
from aioflow.graph.arrays import string_array
from aioflow.kernels.registry import kernel
from aioflow.kernels.text import as_strings, string_values
from aioflow.memory.values import Array


def _bytes(value: Array, what: str) -> bytes:
    array = string_values(value)
    if array.ndim:
        raise InvalidArgumentError(f"the {what} must be a scalar", expected=(), actual=array.shape)
    found: bytes = array.item()
    return found


def _read(path: str, folders: AllowedFolders) -> bytes:
    return read_whole(folders.file(path), folders.opener)


def _write(path: str, contents: bytes, folders: AllowedFolders) -> None:
    write_whole(folders.file(path), contents, folders.opener)


def _list(patterns: list[bytes], folders: AllowedFolders) -> Array:
    found: list[str] = []
    for pattern in patterns:
        path = path_text(pattern)
        with file_errors(path):
            found.extend(batches(folders.matching(path), 64))
    return string_array([os.fsencode(name) for name in sorted(found)])


@kernel("ReadFile", device="CPU", fresh=True)
async def read_file(filename: Array, *, folders: AllowedFolders) -> Array:
    contents = await in_thread(_read, path_text(_bytes(filename, "file name")), folders, effects=False)
    return as_strings([contents], ())


@kernel("WriteFile", device="CPU")
async def write_file(filename: Array, contents: Array, *, folders: AllowedFolders) -> None:
    await in_thread(_write, path_text(_bytes(filename, "file name")), _bytes(contents, "contents"), folders)


@kernel("MatchingFiles", device="CPU", fresh=True)
async def matching_files(pattern: Array, *, folders: AllowedFolders) -> Array:
    return await in_thread(_list, string_values(pattern).reshape(-1).tolist(), folders, effects=False)

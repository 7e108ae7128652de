"""Kernels that read, write and list files, in threads."""

from __future__ import annotations

import glob
import os
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.formats.files import PIECE, file_errors, path_text, read_whole
from aioflow.graph.arrays import string_array
from aioflow.kernels.registry import kernel
from aioflow.kernels.text.strings import as_strings, string_values
from aioflow.work.stopping import batches, blocks
from aioflow.work.threads import in_thread

__all__: list[str] = []


def _bytes(value: Any, what: str) -> bytes:
    array = string_values(value)
    if array.ndim:
        raise InvalidArgumentError(f"the {what} must be a scalar", expected=(), actual=array.shape)
    found: bytes = array.item()
    return found


def _write(path: str, contents: bytes) -> None:
    with file_errors(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            for part in blocks(len(contents), PIECE):
                file.write(memoryview(contents)[part])


def _list(patterns: list[bytes]) -> Any:
    found: list[str] = []
    for pattern in patterns:
        path = path_text(pattern)
        with file_errors(path):
            found.extend(batches(glob.iglob(path, include_hidden=True), 64))
    return string_array([os.fsencode(name) for name in sorted(found)])


@kernel("ReadFile", device="CPU", fresh=True)
async def read_file(filename: Any) -> Any:
    contents = await in_thread(read_whole, path_text(_bytes(filename, "file name")), effects=False)
    return as_strings([contents], ())


@kernel("WriteFile", device="CPU")
async def write_file(filename: Any, contents: Any) -> None:
    await in_thread(_write, path_text(_bytes(filename, "file name")), _bytes(contents, "contents"))


@kernel("MatchingFiles", device="CPU", fresh=True)
async def matching_files(pattern: Any) -> Any:
    return await in_thread(_list, string_values(pattern).reshape(-1).tolist(), effects=False)

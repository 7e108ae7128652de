"""Kernels that read, write and list files, in threads."""

from __future__ import annotations

import glob
import os
from io import BytesIO
from typing import Any, Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.arrays import string_array
from aioflow.kernels.files import file_errors, path_text
from aioflow.kernels.registry import kernel
from aioflow.kernels.strings import as_strings, string_values
from aioflow.stopping import batches, blocks, checkpoint, claim
from aioflow.threads import in_thread

__all__: list[str] = []

_PIECE: Final = 1 << 20  # bytes that are read or written at a time


def _bytes(value: Any, what: str) -> bytes:
    array = string_values(value)
    if array.ndim:
        raise InvalidArgumentError(f"the {what} must be a scalar", expected=(), actual=array.shape)
    found: bytes = array.item()
    return found


def read_whole(path: str) -> bytes:
    """The contents of a file, piece by piece: it may be a device that never ends.

    Raises:
        NotFoundError, PermissionDeniedError, …: it cannot be read.
        ResourceExhaustedError: it is larger than a value may be.
    """
    contents = BytesIO()
    with file_errors(path), open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            claim(contents.tell() + len(piece))
            contents.write(piece)
            checkpoint()
    return contents.getvalue()


def _write(path: str, contents: bytes) -> None:
    with file_errors(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            for part in blocks(len(contents), _PIECE):
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

"""A writer of safetensors files, which replaces a file as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from aioflow.arguments import check_kind, check_text
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DTypeError
from aioflow.formats.temporary_files import replacing
from aioflow.formats.tensor_file import write_tensors
from aioflow.memory.values import Array


async def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file that the safetensors library can also read.

    The new file replaces an old one in one step, once all of it is on the disk. Processes that have the old file open,
    as `Weights` or as the value of a variable, keep its content.

    Args:
        path: The file.
        tensors: Arrays by name, for example `Weights`; they must not change meanwhile. Complex numbers are written as
            pairs and strings as bytes; this library restores both.
        metadata: Texts for the header. Some programs expect `{"format": "pt"}`.

    Raises:
        DTypeError: an argument has a wrong type, or an array has fixed-width text; strings need an object array.
        InvalidArgumentError: a dtype cannot be stored.
        NotFoundError, PermissionDeniedError, ResourceExhaustedError: the file cannot be written.
    """
    check_kind(path, (str, os.PathLike), "the path of a file", "a str or a path")
    check_kind(tensors, Mapping, "the tensors", "a dictionary by name")
    for name in (*tensors, *(text for pair in (metadata or {}).items() for text in pair)):
        check_text(name, "a name or a text of a safetensors file")
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    for name, array in arrays.items():
        if array.dtype.kind in "SU":
            raise DTypeError(f"tensor {name} has fixed-width text", expected="an object array", actual=array.dtype)
    await in_thread(_write, Path(path), arrays, metadata)


def _write(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None) -> None:
    with replacing(path) as file:
        write_tensors(file, arrays, metadata=metadata)

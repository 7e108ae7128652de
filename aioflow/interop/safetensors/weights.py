"""The tensors of a checkpoint, in one file or in several with an index, as a mapping of read-only arrays; a writer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

import numpy as np

from aioflow.arguments import brief, check_kind, check_text
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DataLossError, DTypeError, NotFoundError
from aioflow.formats.files import file_errors, open_file
from aioflow.formats.temporary_files import replacing
from aioflow.formats.tensor_file import StoredTensor, TensorFile, write_tensors
from aioflow.memory.values import Array

_FILE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAX_INDEX: Final = 100 * 2**20  # bytes, the limit for a header too


class Weights(Mapping[str, Array]):
    """Read-only arrays by name, over mapped files: data is read from the disk on first use.

    The files stay mapped as long as an array over them is in use, including one that is a variable's value. They must
    not be changed meanwhile; this cannot be prevented. A file that is replaced, as `save` does, keeps its old content
    for processes that have it open.

    Args:
        files: The open files, by name.
        homes: The file of each tensor, by the tensor's name.

    Attributes:
        files: The files, by name.
        metadata: The metadata of the headers, for example `{"format": "pt"}`.
    """

    def __init__(self, files: Mapping[str, TensorFile], homes: Mapping[str, TensorFile]) -> None:
        self.files = files
        self.metadata: dict[str, str] = {}
        for file in files.values():
            self.metadata.update(file.metadata)
        self._homes = homes

    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._homes)

    def entry(self, name: str) -> StoredTensor:
        """Return the dtype and shape of a tensor without reading its data.

        Raises:
            NotFoundError: no tensor has that name.
            UnimplementedError: the dtype is not supported.
        """
        return self._home(name).entry(name)

    def __getitem__(self, name: str) -> Array:
        """Return the tensor of that name. Raise as `entry`; AbortedError if its file was replaced before first use."""
        return self._home(name).map(name)

    def read(self, name: str) -> Array:
        """Return a copy of the tensor, which the caller may modify. Blocks on the disk. Raise as `[name]`."""
        return self._home(name).read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, name: Any) -> bool:
        return name in self._homes

    def __repr__(self) -> str:
        return f"<Weights: {len(self)} tensors in {', '.join(self.files)}>"

    def _home(self, name: str) -> TensorFile:
        home = self._homes.get(name)
        if home is None:
            raise NotFoundError(f"no tensor {name!r}", expected=f"one of {brief(self.names(), 400)}", actual=name)
        return home


def open(path: str | os.PathLike[str]) -> Weights:
    """Open the checkpoint at `path`, and read only its headers.

    Args:
        path: A file, or a folder that has `model.safetensors`, or `model.safetensors.index.json` and the files that it
            names.

    Raises:
        NotFoundError: the file does not exist, or the folder has none of these files.
        DataLossError: a file is truncated, its header is invalid, or the index names missing tensors.
    """
    check_kind(path, (str, os.PathLike), "the path of a checkpoint", "a str or a path")
    place = Path(path)
    if place.name.endswith(".index.json"):
        return _by_index(place)
    if not place.is_dir():
        return _whole(place)
    if (place / _FILE).exists():
        return _whole(place / _FILE)
    if (place / _INDEX).exists():
        return _by_index(place / _INDEX)
    raise NotFoundError(f"no weights in folder {place}", expected=f"{_FILE} or {_INDEX}", actual="neither")


def _whole(path: Path) -> Weights:
    file = TensorFile(path)
    # Tensors of unsupported dtypes are listed, too: `entry` reports them by name.
    return Weights({path.name: file}, dict.fromkeys((*file.tensors, *file.refused), file))


def _by_index(path: Path) -> Weights:
    homes = _index(path)
    # Each file is opened once, however many tensors it has.
    files = {name: TensorFile(path.parent / name) for name in sorted(set(homes.values()))}
    absent = [
        f"{tensor} in {name}"
        for tensor, name in sorted(homes.items())
        if tensor not in files[name].tensors and tensor not in files[name].refused
    ]
    if absent:
        raise _damaged(path, "tensors in the files that it names", f"no {brief(absent, 400)}")
    return Weights(files, {tensor: files[name] for tensor, name in homes.items()})


def _index(path: Path) -> dict[str, str]:
    """Return the file name of each tensor."""
    try:
        homes = json.loads(_text(path))["weight_map"]
        named = dict(homes)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(path, 'JSON with a "weight_map"', brief(str(error))) from error
    outside = sorted({brief(name) for name in named.values() if not _is_beside(name)})
    if outside:
        raise _damaged(path, "names of files in its own folder", brief(outside, 400))
    return named


def _text(path: Path) -> str:
    with file_errors(path), open_file(path) as file:
        # One byte more than allowed shows that the file is too large, without reading all of it.
        data = file.read(_MAX_INDEX + 1)
    if len(data) > _MAX_INDEX:
        raise _damaged(path, f"at most {_MAX_INDEX} bytes", "more")
    return data.decode()


def _is_beside(name: Any) -> bool:
    """Return True if `name` is a plain file name on every platform, without a path to another folder."""
    plain = isinstance(name, str) and name not in ("", ".", "..") and "\0" not in name
    # The index is untrusted: it must not lead to files of other folders.
    return plain and PurePosixPath(name).name == name == PureWindowsPath(name).name


def _damaged(path: Path, expected: str, actual: str) -> DataLossError:
    return DataLossError(f"the index {path} is not valid", expected=expected, actual=actual)


# ── a writer of files, which replaces a file as a whole or not at all ─────────────────────────────────────────────────


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

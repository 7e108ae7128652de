"""A checkpoint on disk: `PREFIX.safetensors` with the values, and `PREFIX.manifest.json`, which vouches for it.

A checkpoint is written under other names first and flushed; then the manifest is renamed into place, which is the one
step that commits it, and the data file after it. Whoever finds the manifest newer than the data file takes the data
file that waits beside it. So a crash at any moment leaves the old checkpoint or the new one, never a mixture.

Everything here blocks on the disk: call it from a thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from aioflow.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError, UnknownNameError
from aioflow.formats.files import file_errors
from aioflow.formats.temporary_files import flush_directory, has_writer, remove_abandoned, temporary_file
from aioflow.formats.tensor_file import StoredTensor, TensorFile, write_tensors
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType

__all__ = [
    "CheckpointReader",
    "checkpoint_exists",
    "remove_checkpoint",
    "write_atomically",
    "write_checkpoint",
]

_FORMAT: Final = "aioflow.checkpoint"
_DATA: Final = ".safetensors"
_PENDING: Final = ".safetensors.pending"
_MANIFEST: Final = ".manifest.json"
_STEP: Final = re.compile(r"-(\d+)$")


def _named(prefix: str, suffix: str) -> Path:
    return Path(prefix + suffix)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file by `data`: after a crash it has the old contents or the new ones."""
    if path.exists() and not path.is_file():  # a folder; or a device, whose name would be a file's from then on
        raise InvalidArgumentError("only a file can be replaced", expected="a file, or nothing", actual=str(path))
    with file_errors(path):
        remove_abandoned(path.parent, re.escape(path.name))
        with temporary_file(path) as temporary:
            temporary.file.write(data)
            temporary.publish(path)
        flush_directory(path.parent)


def write_checkpoint(prefix: str, tensors: Mapping[str, Any]) -> None:
    """Write a checkpoint, replacing one of the same prefix. Missing directories are made.

    What killed processes have left of checkpoints of this prefix, at whatever step, is taken away.

    Raises:
        PermissionDeniedError, ResourceExhaustedError, …: the file system refuses; the error names the file.
        InvalidArgumentError: a tensor has a dtype that cannot be stored.
    """
    data, pending = _named(prefix, _DATA), _named(prefix, _PENDING)
    with file_errors(data):
        data.parent.mkdir(parents=True, exist_ok=True)
        _tidy(prefix)
        with temporary_file(data) as temporary:
            arrays = {name: np.asarray(value) for name, value in tensors.items()}
            header, digests = write_tensors(temporary.file, arrays)
            size = temporary.file.tell()
            _settle(prefix)
            temporary.publish(pending)
            write_atomically(_named(prefix, _MANIFEST), _manifest(prefix, arrays, header, digests, size))
            pending.replace(data)
        flush_directory(data.parent)


def _tidy(prefix: str) -> None:
    """Take away what killed writers have left: their temporary files, and data files that wait for their names."""
    directory, name = Path(prefix).parent, Path(prefix).name
    family = rf"{re.escape(_STEP.sub('', name))}(?:-\d+)?"
    remove_abandoned(directory, rf"{family}(?:{re.escape(_DATA)}|{re.escape(_MANIFEST)})")
    waiting = re.compile(family + re.escape(_PENDING))
    with suppress(OSError, OpError):  # it is only for tidiness; each save settles its own prefix for certain
        for entry in [e for e in os.listdir(directory) if waiting.fullmatch(e)]:
            if has_writer(directory / entry) is False:
                _settle(str(directory / entry.removesuffix(_PENDING)))


def _manifest(prefix: str, arrays: Mapping[str, Array], header: bytes, digests: Mapping[str, str], size: int) -> bytes:
    step = _STEP.search(prefix)
    stored = {
        name: {
            "dtype": str(array.dtype if array.dtype != object else "string"),
            "shape": list(array.shape),
            "sha256": digests[name],
        }
        for name, array in arrays.items()
    }
    content = {
        "format": _FORMAT,
        "version": 1,
        "file": Path(prefix).name + _DATA,
        "size": size,
        "header_sha256": hashlib.sha256(header).hexdigest(),
        "step": int(step[1]) if step else None,
        "tensors": stored,
    }
    return (json.dumps(content | {"sha256": _digest(content)}, indent=1, sort_keys=True) + "\n").encode()


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_manifest(prefix: str) -> dict[str, Any]:
    path = _named(prefix, _MANIFEST)
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise UnknownNameError(f"there is no checkpoint {prefix}", expected=f"a file {path}", actual="none") from error
    try:
        content: dict[str, Any] = json.loads(raw)
        digest = content.pop("sha256")
        valid = content["format"] == _FORMAT and digest == _digest(content)
        kinds = {"version": int, "size": int, "header_sha256": str, "step": int | None}
        wrong = [key for key, kind in kinds.items() if not isinstance(content[key], kind)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(f"file {path} is damaged", expected="a manifest", actual=str(error)) from error
    if not valid:
        raise DataLossError(f"file {path} has been altered", expected="its own checksum", actual="another one")
    if wrong:
        raise DataLossError(f"file {path} is damaged", expected="a manifest", actual=f"{wrong[0]} of a different kind")
    if content["version"] > 1:
        raise InvalidArgumentError(
            f"file {path} is of a newer version", expected="at most 1", actual=content["version"]
        )
    return content


def _settle(prefix: str) -> None:
    """Finish what a crash left: the pending data file takes its name if the manifest speaks of it, or else goes."""
    pending = _named(prefix, _PENDING)
    if not pending.exists() or has_writer(pending):
        return
    try:
        belongs = _matches(TensorFile(pending), _read_manifest(prefix))
    except (NotFoundError, DataLossError):
        belongs = False
    if belongs:
        pending.replace(_named(prefix, _DATA))
    else:
        pending.unlink()


def _matches(file: TensorFile, manifest: Mapping[str, Any]) -> bool:
    digest: str = manifest["header_sha256"]
    return file.size == manifest["size"] and hashlib.sha256(file.header).hexdigest() == digest


class CheckpointReader:
    """Reads a checkpoint by its prefix, or any plain `.safetensors` file by its full name.

    Raises:
        NotFoundError: there is no such checkpoint.
        DataLossError: a file is truncated or altered; the error names it.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.step: int | None = None
        with file_errors(Path(prefix)):
            if prefix.endswith(_DATA) and not _named(prefix, _MANIFEST).exists():
                self._file = TensorFile(Path(prefix))
                return
            manifest = _read_manifest(prefix)
            self._file = _data_file(prefix, manifest)
        self.step = manifest["step"]

    def names(self) -> list[str]:
        """Names of the tensors, sorted."""
        return sorted(self._file.tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def dtype(self, name: str) -> DType:
        """Dtype of a tensor. Raises NotFoundError."""
        return self._entry(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor. Raises NotFoundError."""
        return self._entry(name).shape

    def _entry(self, name: str) -> StoredTensor:
        if name not in self._file.tensors:
            raise NotFoundError(
                f"tensor {name!r} is not in checkpoint {self.prefix}", expected=f"one of {self.names()}", actual=name
            )
        return self._file.tensors[name]

    def read(self, name: str) -> Array:
        """Value of a tensor, checked against the manifest.

        Raises:
            NotFoundError: no tensor has that name.
            DataLossError: the bytes are not those that were written.
            AbortedError: somebody replaced the checkpoint meanwhile; open it again.
        """
        self._entry(name)
        with file_errors(self._file.path):
            return self._file.read(name)


def _data_file(prefix: str, manifest: Mapping[str, Any]) -> TensorFile:
    """The data file that the manifest vouches for."""
    failure: OpError | None = None
    for suffix in (_DATA, _PENDING, _DATA):  # a writer may be renaming the second to the first just now
        try:
            file = TensorFile(_named(prefix, suffix))
        except (NotFoundError, DataLossError) as error:
            failure = failure if failure is not None and isinstance(error, NotFoundError) else error
            continue
        if _matches(file, manifest):
            return file
        failure = DataLossError(
            f"file {file.path} does not match its manifest",
            expected=f"{manifest['size']} bytes with header {manifest['header_sha256'][:12]}…",
            actual=f"{file.size} bytes with header {hashlib.sha256(file.header).hexdigest()[:12]}…",
        )
    raise failure or DataLossError(f"the data file of checkpoint {prefix} is missing")


def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """Whether there is a checkpoint (or a `.safetensors` file) of that name."""
    return _named(checkpoint_prefix, _MANIFEST).exists() or (
        checkpoint_prefix.endswith(_DATA) and Path(checkpoint_prefix).exists()
    )


def remove_checkpoint(checkpoint_prefix: str) -> None:
    """Delete a checkpoint, if it is there: the manifest first, so that no half of it is taken for a whole."""
    for suffix in (_MANIFEST, _PENDING, _DATA):
        with file_errors(_named(checkpoint_prefix, suffix)):
            _named(checkpoint_prefix, suffix).unlink(missing_ok=True)

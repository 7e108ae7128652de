"""Files of named tensors in the `safetensors` layout: eight bytes of header length, a JSON header, then raw data.

It is written and read here rather than by the library of that name, so that a file can be written without a second copy
of the data in memory, hashed on the way, flushed to the disk before it gets its name, and read one tensor at a time.
What dtypes really are, where they are stored as others, is in the header's metadata.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from aioflow.errors import AbortedError, DataLossError, NotFoundError
from aioflow.formats.stores import StoredFile
from aioflow.formats.tensor_encoding import BY_CODE, CODES, Encoded, Rows, decode, encode, pieces
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.work.stopping import claim

__all__ = ["StoredTensor", "TensorFile", "write_tensors"]

_LOGICAL: Final = "aioflow.dtypes"
_DIGESTS: Final = "aioflow.sha256"
_MAX_HEADER: Final = 100 * 2**20  # the layout's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file says of one tensor.

    Attributes:
        dtype, shape: As the program sees it.
        begin, end: Where its bytes are, counted from the end of the header.
    """

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


def write_tensors(
    file: BinaryIO, tensors: Mapping[str, Array | Rows], streamed: bool = False
) -> tuple[bytes, dict[str, str]]:
    """Write the tensors, each byte of which is read once, and return the header with the SHA-256 of each.

    Args:
        file: Open for writing, at its beginning.
        streamed: Whether the file cannot go back there. The header, which comes first, lacks the digests then.

    Raises:
        InvalidArgumentError: a dtype that cannot be stored.
    """
    encoded = {name: encode(name, array) for name, array in tensors.items()}
    # Wide elements first, so that each tensor is aligned; then by name, so that equal contents give equal files.
    order = sorted(encoded, key=lambda name: (-BY_CODE[encoded[name].code].size, name))
    logical = {
        name: {"dtype": value.logical.name, "shape": list(tensors[name].shape)}
        for name, value in encoded.items()
        if value.logical not in CODES
    }
    entries: dict[str, Any] = {}
    offset = 0
    for name in order:
        value = encoded[name]
        entries[name] = {
            "dtype": value.code,
            "shape": list(value.shape),
            "data_offsets": [offset, offset + value.nbytes],
        }
        offset += value.nbytes
    digests = {} if streamed else dict.fromkeys(tensors, "0" * 64)  # as long as those that take their place
    raw = _header(entries, logical, digests)
    file.write(struct.pack("<Q", len(raw)))
    file.write(raw)
    digests = {name: _written(file, encoded.pop(name)) for name in order}
    if not streamed:
        # With the digests in it, the header stands for the contents, and a file vouches for itself.
        raw = _header(entries, logical, digests)
        file.seek(8)
        file.write(raw)
        file.seek(0, os.SEEK_END)
    return raw, digests


def _header(entries: Mapping[str, Any], logical: Mapping[str, Any], digests: Mapping[str, str]) -> bytes:
    metadata = {_DIGESTS: json.dumps(digests, sort_keys=True), _LOGICAL: json.dumps(logical, sort_keys=True)}
    raw = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def _written(file: BinaryIO, value: Encoded) -> str:
    digest = hashlib.sha256()
    for piece in value.pieces():
        digest.update(piece.data)
        file.write(piece.data)
    return digest.hexdigest()


def _digest(data: Array) -> str:
    digest = hashlib.sha256()
    for piece in pieces(data):
        digest.update(piece)
    return digest.hexdigest()


class TensorFile:
    """Reads tensors from a file, one at a time. The header is checked when it is opened; the data when it is read.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: the file is truncated or its header is not valid; the error names it.
    """

    def __init__(self, path: Path | StoredFile) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._identity = _identity(file)
                self.size = file.seek(0, os.SEEK_END)
                file.seek(0)
                self.header = self._header(file)
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no file {path}", expected="a checkpoint", actual=str(path)) from error
        self._start = 8 + len(self.header)
        try:
            self.tensors = self._entries(json.loads(self.header))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged("the header is not valid", "a safetensors header", str(error)) from error

    def _damaged(self, what: str, expected: Any, actual: Any) -> DataLossError:
        return DataLossError(f"file {self.path} is damaged: {what}", expected=expected, actual=actual)

    def _header(self, file: BinaryIO) -> bytes:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise self._damaged("it is truncated", "8 bytes of header length", f"{len(prefix)} bytes")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(_MAX_HEADER, self.size - 8):
            raise self._damaged("the header is truncated", f"{length} bytes", f"{self.size - 8} bytes")
        return file.read(length)

    def _entries(self, header: dict[str, Any]) -> dict[str, StoredTensor]:
        metadata = header.pop("__metadata__", {})
        logical = json.loads(metadata.get(_LOGICAL, "{}"))
        self.digests: dict[str, str] = json.loads(metadata.get(_DIGESTS, "{}"))
        if not isinstance(self.digests, dict) or not isinstance(logical, dict):
            raise ValueError("the metadata are not maps")
        found: dict[str, StoredTensor] = {}
        expected = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
            begin, end = entry["data_offsets"]
            stored, shape = BY_CODE[entry["dtype"]], _sizes(entry["shape"])
            if begin != expected or end - begin != stored.size * math.prod(shape):
                raise ValueError(f"tensor {name} has bytes {begin}..{end}")
            expected = end
            dtype = stored
            if name in logical:
                dtype, shape = as_dtype(logical[name]["dtype"]), _sizes(logical[name]["shape"])
            found[name] = StoredTensor(dtype, shape, begin, end)
        if self.size != self._start + expected:
            raise self._damaged("it has the wrong size", f"{self._start + expected} bytes", f"{self.size} bytes")
        return found

    def read(self, name: str) -> Array:
        """One tensor, in an array of its own.

        Raises:
            NotFoundError: no tensor has that name.
            DataLossError: the bytes are not those that were written.
            AbortedError: the file was replaced since it was opened.
        """
        entry = self.tensors.get(name)
        if entry is None:
            raise NotFoundError(
                f"no tensor {name!r} in {self.path}", expected=f"one of {sorted(self.tensors)}", actual=name
            )
        claim(entry.end - entry.begin)
        data = np.empty(entry.end - entry.begin, dtype=np.uint8)
        with self.path.open("rb") as opened:
            file: Any = opened
            if _identity(file) != self._identity:
                raise AbortedError(f"file {self.path} was replaced while it was read")
            file.seek(self._start + entry.begin)
            count = sum(file.readinto(piece) for piece in pieces(data))
        if count != data.nbytes:
            raise self._damaged("it is truncated", f"{data.nbytes} bytes of {name}", f"{count} bytes")
        digest = self.digests.get(name)
        if digest is not None and _digest(data) != digest:
            raise self._damaged(f"tensor {name} has been altered", f"SHA-256 {digest}", "another one")
        try:
            return decode(data, entry.dtype, entry.shape)
        except ValueError as error:
            raise self._damaged(f"tensor {name} is not valid", entry.dtype.name, str(error)) from error


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise ValueError(f"not a shape: {value}")
    return tuple(value)


def _identity(file: BinaryIO) -> tuple[int, int, int] | None:
    try:
        status = os.fstat(file.fileno())
    except (OSError, AttributeError):
        return None  # a store's
    return status.st_dev, status.st_ino, status.st_mtime_ns

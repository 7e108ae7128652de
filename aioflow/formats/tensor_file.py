"""Files of named tensors in the `safetensors` layout: eight bytes of header length, a JSON header, then raw data.

It is written and read here rather than by the library of that name, so that a file can be written without a second copy
of the data in memory, hashed on the way, flushed to the disk before it gets its name, and read one tensor at a time.
Dtypes that the layout lacks are stored as ones that it has (complex numbers as pairs of floats, strings as lengths
and bytes), with what they are in the header's metadata.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from aioflow.errors import AbortedError, DataLossError, InvalidArgumentError, NotFoundError
from aioflow.graph import dtypes
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.work.copying import copied
from aioflow.work.stopping import blocks, claim

__all__ = ["StoredTensor", "TensorFile", "write_tensors"]

_CODES: Final[Mapping[DType, str]] = {
    dtypes.bool_: "BOOL",
    dtypes.uint8: "U8",
    dtypes.int8: "I8",
    dtypes.uint16: "U16",
    dtypes.int16: "I16",
    dtypes.uint32: "U32",
    dtypes.int32: "I32",
    dtypes.uint64: "U64",
    dtypes.int64: "I64",
    dtypes.float16: "F16",
    dtypes.bfloat16: "BF16",
    dtypes.float32: "F32",
    dtypes.float64: "F64",
}
_BY_CODE: Final = {code: dtype for dtype, code in _CODES.items()}
_PAIRS: Final[Mapping[DType, DType]] = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}
_LOGICAL: Final = "aioflow.dtypes"
_DIGESTS: Final = "aioflow.sha256"
_PIECE: Final = 4 << 20  # bytes that are hashed, read or written at a time
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


def write_tensors(file: BinaryIO, tensors: Mapping[str, Array]) -> tuple[bytes, dict[str, str]]:
    """Write the tensors, and return the header with the SHA-256 of each tensor's bytes.

    Raises:
        InvalidArgumentError: a dtype that cannot be stored.
    """
    encoded = {name: _encode(name, array) for name, array in tensors.items()}
    # Wide elements first, so that each tensor is aligned; then by name, so that equal contents give equal files.
    order = sorted(encoded, key=lambda name: (-_itemsize(encoded[name][0]), name))
    header: dict[str, Any] = {}
    logical = {
        name: {"dtype": as_dtype(array.dtype).name, "shape": list(array.shape)}
        for name, array in tensors.items()
        if as_dtype(array.dtype) not in _CODES
    }
    digests = {name: _digest(data) for name, (_, _, data) in encoded.items()}
    # With the digests in it, the header stands for the contents, and a file vouches for itself.
    header["__metadata__"] = {
        _DIGESTS: json.dumps(digests, sort_keys=True),
        _LOGICAL: json.dumps(logical, sort_keys=True),
    }
    offset = 0
    for name in order:
        code, shape, data = encoded[name]
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    file.write(struct.pack("<Q", len(raw)))
    file.write(raw)
    for name in order:
        for piece in _pieces(encoded[name][2]):
            file.write(piece)
    return raw, digests


def _pieces(data: Array) -> Iterator[memoryview]:
    """The bytes, a few at a time: files may be large, and disks slow."""
    return (data.data[part] for part in blocks(data.nbytes, _PIECE))


def _digest(data: Array) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(data):
        digest.update(piece)
    return digest.hexdigest()


def _itemsize(code: str) -> int:
    return _BY_CODE[code].size


def _encode(name: str, array: Array) -> tuple[str, tuple[int, ...], Array]:
    """Code, stored shape, and the bytes as a flat uint8 array."""
    dtype = as_dtype(array.dtype)
    if dtype is dtypes.string:
        data = _pack_strings(array)
        return "U8", data.shape, data
    shape: tuple[int, ...] = array.shape
    flat = (array if array.flags.c_contiguous else copied(array)).reshape(-1)
    if dtype in _PAIRS:
        dtype, shape = _PAIRS[dtype], (*shape, 2)
    if dtype not in _CODES:
        known = sorted(t.name for t in _CODES)
        raise InvalidArgumentError(f"tensor {name} cannot be stored", expected=f"one of {known}", actual=dtype)
    return _CODES[dtype], shape, flat.view(np.uint8)


def _pack_strings(array: Array) -> Array:
    items = [bytes(item) for item in array.reshape(-1)]
    lengths = np.array([len(item) for item in items], dtype="<u8")
    return np.frombuffer(lengths.tobytes() + b"".join(items), dtype=np.uint8)


def _unpack_strings(data: Array, count: int) -> list[bytes]:
    raw = data.tobytes()
    if len(raw) < 8 * count:
        raise ValueError("the lengths are cut off")
    lengths = np.frombuffer(raw[: 8 * count], dtype="<u8").astype(object)
    ends = np.cumsum(np.concatenate([[8 * count], lengths]))
    if int(ends[-1]) != len(raw):
        raise ValueError("the lengths do not add up")
    return [raw[int(a) : int(b)] for a, b in pairwise(ends)]


class TensorFile:
    """Reads tensors from a file, one at a time. The header is checked when it is opened; the data when it is read.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: the file is truncated or its header is not valid; the error names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._identity = _identity(file)
                self.size = os.fstat(file.fileno()).st_size
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
            stored, shape = _BY_CODE[entry["dtype"]], _sizes(entry["shape"])
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
        with self.path.open("rb") as file:
            if _identity(file) != self._identity:
                raise AbortedError(f"file {self.path} was replaced while it was read")
            file.seek(self._start + entry.begin)
            count = sum(file.readinto(piece) for piece in _pieces(data))
        if count != data.nbytes:
            raise self._damaged("it is truncated", f"{data.nbytes} bytes of {name}", f"{count} bytes")
        digest = self.digests.get(name)
        if digest is not None and _digest(data) != digest:
            raise self._damaged(f"tensor {name} has been altered", f"SHA-256 {digest}", "another one")
        try:
            return _decode(data, entry)
        except ValueError as error:
            raise self._damaged(f"tensor {name} is not valid", entry.dtype.name, str(error)) from error


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise ValueError(f"not a shape: {value}")
    return tuple(value)


def _identity(file: BinaryIO) -> tuple[int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _decode(data: Array, entry: StoredTensor) -> Array:
    if entry.dtype is dtypes.string:
        items = _unpack_strings(data, math.prod(entry.shape))
        result = np.empty(len(items), dtype=object)
        result[:] = items
        return result.reshape(entry.shape)
    return data.view(entry.dtype.np_dtype).reshape(entry.shape)

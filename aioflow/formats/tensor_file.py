"""Files of named tensors in the `safetensors` layout: eight bytes of header length, a JSON header, then raw data.

This module does not use the library of that name, so that a file is written without a second copy of the data in
memory, and hashed at the same time. Tensors are read one at a time.

The metadata of the header holds the logical dtypes of tensors that are stored as another dtype, and digests. Files of
other programs have neither, and are read without.
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
from typing import BinaryIO, Final

import numpy as np

from aioflow.arguments import brief
from aioflow.concurrency.stopping import reserve
from aioflow.errors import AbortedError, DataLossError, InvalidArgumentError, NotFoundError, UnimplementedError
from aioflow.formats.files import file_errors, open_file, read_into, read_up_to
from aioflow.formats.manifests import CheckpointManifest
from aioflow.formats.stores import StoredFile
from aioflow.formats.tensor_encoding import (
    BY_CODE,
    CODES,
    UNKNOWN,
    EncodedTensor,
    Storable,
    decode,
    encode,
    is_stored_as_another,
    pieces,
)
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.memory.frozen import freeze
from aioflow.memory.mapping import mapped_file
from aioflow.memory.values import Array

_METADATA: Final = "__metadata__"
_LOGICAL: Final = "aioflow.dtypes"
_DIGESTS: Final = "aioflow.sha256"
_MAX_HEADER: Final = 100 * 2**20  # the layout's own limit
_MAX_RANK: Final = 64  # NumPy's limit
_MAX_BYTES: Final = 2**63


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The header entry of one tensor.

    Attributes:
        dtype, shape: Dtype and shape as the program sees them.
        begin, end: Range of its bytes, counted from the end of the header.
    """

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


def write_tensors(
    file: BinaryIO,
    tensors: Mapping[str, Storable],
    streamed: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> tuple[bytes, dict[str, str]]:
    """Write the tensors, reading each byte once. Return the header, and the SHA-256 of each tensor.

    Args:
        file: A file open for writing, at its beginning.
        tensors: Arrays, or values that are read row by row, by name.
        streamed: Whether the file cannot seek. The header, which comes first, has no digests then.
        metadata: Additional entries for the header's metadata.

    Raises:
        InvalidArgumentError: a dtype cannot be stored, or a tensor has the name that the layout reserves.
    """
    if _METADATA in tensors:
        raise InvalidArgumentError("no tensor can have that name", expected="another name", actual=_METADATA)
    encoded = {name: encode(name, array) for name, array in tensors.items()}
    # Wide elements first aligns each tensor; the order by name makes equal contents equal files.
    order = sorted(encoded, key=lambda name: (-BY_CODE[encoded[name].code].size, name))
    logical = {
        name: {"dtype": value.logical.name, "shape": list(tensors[name].shape)}
        for name, value in encoded.items()
        if value.logical not in CODES
    }
    entries: CheckpointManifest = {}
    offset = 0
    for name in order:
        value = encoded[name]
        entries[name] = {
            "dtype": value.code,
            "shape": list(value.shape),
            "data_offsets": [offset, offset + value.nbytes],
        }
        offset += value.nbytes
    # Placeholders, of the same length as the digests that replace them.
    digests = {} if streamed else dict.fromkeys(tensors, "0" * 64)
    raw = _header(entries, logical, digests, metadata or {})
    file.write(struct.pack("<Q", len(raw)))
    file.write(raw)
    # `pop` releases a copy that the encoding made as soon as it is written.
    digests = {name: _written(file, encoded.pop(name)) for name in order}
    if not streamed:
        # With the digests in it, the header identifies the contents, and a file can be verified on its own.
        raw = _header(entries, logical, digests, metadata or {})
        # Same length as the placeholder, so the data after it stays where it is.
        file.seek(8)
        file.write(raw)
        file.seek(0, os.SEEK_END)
    return raw, digests


def _header(
    entries: CheckpointManifest, logical: CheckpointManifest, digests: Mapping[str, str], others: Mapping[str, str]
) -> bytes:
    ours = {_DIGESTS: json.dumps(digests, sort_keys=True), _LOGICAL: json.dumps(logical, sort_keys=True)}
    raw = json.dumps({_METADATA: {**others, **ours}, **entries}, separators=(",", ":")).encode()
    # The data begins at a multiple of 8 bytes, so that mapped tensors are aligned.
    return raw + b" " * (-len(raw) % 8)


def _written(file: BinaryIO, value: EncodedTensor) -> str:
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
    """A reader of single tensors from a file. The constructor checks the header; `read` checks the data.

    Attributes:
        tensors: The readable tensors, by name.
        refused: The dtypes of tensors that cannot be read, by name.
        digests: The SHA-256 of each tensor, if the writer stored it.
        metadata: Other metadata of the header.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: the file is truncated or its header is not valid; the error names it.
    """

    def __init__(self, path: Path | StoredFile) -> None:
        self.path = path
        self._bytes: Array | None = None
        try:
            with file_errors(str(path)), _opened(path) as file:
                # Each later read opens the path again, which may then be another file.
                self._identity = _identity(file)
                self.size = file.seek(0, os.SEEK_END)
                file.seek(0)
                self.header = self._header(file)
        except NotFoundError as error:
            raise NotFoundError(f"there is no file {path}", expected="a safetensors file", actual=str(path)) from error
        self._start = 8 + len(self.header)
        self.refused: dict[str, str] = {}
        try:
            self.tensors = self._entries(json.loads(self.header.decode(), object_pairs_hook=_distinct))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged("the header is not valid", "a safetensors header", brief(str(error))) from error

    def _damaged(self, what: str, expected: object, actual: object) -> DataLossError:
        return DataLossError(f"file {self.path} is damaged: {what}", expected=expected, actual=actual)

    def _header(self, file: BinaryIO) -> bytes:
        prefix = read_up_to(file, 8)
        if len(prefix) < 8:
            raise self._damaged("it is truncated", "8 bytes of header length", f"{len(prefix)} bytes")
        (length,) = struct.unpack("<Q", prefix)
        # The length is untrusted: it is checked before memory is allocated for it.
        if length > min(_MAX_HEADER, self.size - 8):
            raise self._damaged("the header is truncated", f"{length} bytes", f"{self.size - 8} bytes")
        return read_up_to(file, length)

    def _entries(self, header: CheckpointManifest) -> dict[str, StoredTensor]:
        metadata = _texts(header.pop(_METADATA, None) or {})
        logical = _logical(json.loads(metadata.pop(_LOGICAL, "{}")))
        self.digests = _texts(json.loads(metadata.pop(_DIGESTS, "{}")))
        self.metadata = metadata
        found: dict[str, StoredTensor] = {}
        expected = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            code, shape = entry["dtype"], _sizes(entry["shape"])
            # In bits, since some dtypes of other programs take less than a byte.
            bits = UNKNOWN[code] if code in UNKNOWN else 8 * BY_CODE[code].size
            # The layout allows no gaps between tensors; they cannot overlap either.
            if type(begin) is not int or begin != expected or 8 * (end - begin) != bits * math.prod(shape):
                raise ValueError(f"tensor {name} has bytes {begin}..{end}")
            expected = end
            if code in UNKNOWN:
                self.refused[name] = code
                continue
            dtype, shape = logical.get(name, (BY_CODE[code], shape))
            found[name] = StoredTensor(dtype, shape, begin, end)
        if self.size != self._start + expected:
            raise self._damaged("it has the wrong size", f"{self._start + expected} bytes", f"{self.size} bytes")
        return found

    def entry(self, name: str) -> StoredTensor:
        """Return the header entry of one tensor.

        Raises:
            NotFoundError: no tensor has that name.
            UnimplementedError: aioflow lacks the dtype of the tensor.
        """
        entry = self.tensors.get(name)
        if entry is not None:
            return entry
        if name in self.refused:
            raise UnimplementedError(
                f"tensor {name!r} of {self.path} has a dtype that there is not",
                expected=f"one of {sorted(BY_CODE)}",
                actual=self.refused[name],
            )
        raise NotFoundError(
            f"no tensor {name!r} in {self.path}", expected=f"one of {sorted(self.tensors)}", actual=name
        )

    def read(self, name: str) -> Array:
        """Read one tensor into a new array.

        Raises:
            NotFoundError: no tensor has that name.
            UnimplementedError: aioflow lacks the dtype of the tensor.
            DataLossError: the bytes are not those that were written.
            AbortedError: the file was replaced since it was opened.
        """
        entry = self.entry(name)
        reserve(entry.end - entry.begin)
        data = np.empty(entry.end - entry.begin, dtype=np.uint8)
        with file_errors(str(self.path)), _opened(self.path) as file:
            self._check_identity(file)
            file.seek(self._start + entry.begin)
            count = sum(read_into(file, piece) for piece in pieces(data))
        if count != data.nbytes:
            raise self._damaged("it is truncated", f"{data.nbytes} bytes of {name}", f"{count} bytes")
        digest = self.digests.get(name)
        if digest is not None and _digest(data) != digest:
            raise self._damaged(f"tensor {name} has been altered", f"SHA-256 {digest}", "another one")
        return self._decoded(name, data)

    def map(self, name: str) -> Array:
        """Return one tensor as a read-only array over the mapped file, which must be local. Pages are read on access.

        Strings are copied. Digests are not verified, since that would read the whole tensor.

        Raises:
            NotFoundError, UnimplementedError, AbortedError: as for `read`.
            DataLossError: the bytes are not values of the dtype.
        """
        entry = self.entry(name)
        return self._decoded(name, self.map_whole()[self._start + entry.begin : self._start + entry.end])

    def map_whole(self) -> Array:
        """Return all bytes of a local file, mapped. The mapping stays valid if the file is deleted or replaced.

        Raises:
            AbortedError: the file was replaced since it was opened.
        """
        if self._bytes is None:
            self._bytes = self._mapped()
        return self._bytes

    def check(self, name: str) -> None:
        """Verify a tensor against its stored digest, if any. Reads the whole tensor through the mapped file.

        Raises:
            NotFoundError, UnimplementedError, AbortedError: as for `read`.
            DataLossError: the bytes are not those that were written.
        """
        entry, digest = self.entry(name), self.digests.get(name)
        data = self.map_whole()[self._start + entry.begin : self._start + entry.end]
        if digest is not None and _digest(data) != digest:
            raise self._damaged(f"tensor {name} has been altered", f"SHA-256 {digest}", "another one")

    def _mapped(self) -> Array:
        with file_errors(str(self.path)), _opened(self.path) as file:
            self._check_identity(file)
            return freeze(mapped_file(file.fileno(), self.size))

    def _check_identity(self, file: BinaryIO) -> None:
        if _identity(file) != self._identity:
            raise AbortedError(f"file {self.path} was replaced while it was read")

    def _decoded(self, name: str, data: Array) -> Array:
        entry = self.tensors[name]
        try:
            return decode(data, entry.dtype, entry.shape)
        except ValueError as error:
            raise self._damaged(f"tensor {name} is not valid", entry.dtype.name, str(error)) from error


def _distinct(pairs: list[tuple[str, object]]) -> CheckpointManifest:
    found = dict(pairs)
    # JSON allows repeated names, of which `dict` keeps only the last.
    if len(found) != len(pairs):
        raise ValueError("two entries have the same name")
    return found


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("the metadata are not a map of texts")
    return value


def _logical(value: CheckpointManifest) -> dict[str, tuple[DType, tuple[int, ...]]]:
    found = {name: (as_dtype(entry["dtype"]), _sizes(entry["shape"])) for name, entry in value.items()}
    if not all(is_stored_as_another(dtype) for dtype, _ in found.values()):
        raise ValueError("a dtype that is not stored as another one")
    return found


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and 0 <= size < _MAX_BYTES for size in value):
        raise ValueError("not a shape")
    if len(value) > _MAX_RANK or math.prod(size for size in value if size) >= _MAX_BYTES // 16:
        raise ValueError("a shape larger than any array")
    return tuple(value)


def _opened(path: Path | StoredFile) -> BinaryIO:
    return open_file(path) if isinstance(path, Path) else path.open("rb")


def _identity(file: BinaryIO) -> tuple[int, int, int] | None:
    try:
        status = os.fstat(file.fileno())
    except (OSError, AttributeError):
        return None  # a file of a store has no descriptor
    return status.st_dev, status.st_ino, status.st_mtime_ns

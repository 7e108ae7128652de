"""TensorFlow's checkpoints of version 2: `PREFIX.index` and one or more `PREFIX.data-00000-of-00001`.

The index is a table of the tensors; the data files hold their bytes. The layout is in
tensorflow/core/util/tensor_bundle and tensor_bundle.proto.

A checkpoint with an object graph names its values by their path in that graph; `TensorBundle.aliases` maps the names of
the variables to these keys.

Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from aioflow.concurrency.stopping import batches, blocks, reserve
from aioflow.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError, UnimplementedError
from aioflow.formats.checksum import crc32c, disguised
from aioflow.formats.files import read_into
from aioflow.formats.ordered_code import Extent, read_extents, slice_key, slice_of
from aioflow.formats.protobuf import FIXED32, PIECE, VARINT, read_fields, read_number
from aioflow.formats.sstable import Table
from aioflow.formats.stores import Store
from aioflow.formats.tensor_proto import read_shape
from aioflow.formats.tensor_slice import check_cover
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.memory.values import Array

INDEX: Final = ".index"
OBJECT_GRAPH: Final = "_CHECKPOINTABLE_OBJECT_GRAPH"  # name of the tensor that holds the object graph
_PIECE: Final = 1 << 20
_MAX_INDEX: Final = 1 << 30
_MAX_SHARDS: Final = 1 << 20


def shard_name(name: str, shard: int, shards: int) -> str:
    """Return the name of the data file of a shard."""
    return f"{name}.data-{shard:05d}-of-{shards:05d}"


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """The index entry of one tensor.

    Attributes:
        kind: Enum number of the tensor's dtype.
        shape: Sizes.
        shard, offset, size, crc: Position of the tensor's bytes, and their checksum.
        slices: The slices that the tensor was saved in, if any. Each slice then has its own entry.
    """

    kind: int
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc: int = 0
    slices: tuple[tuple[Extent, ...], ...] = ()

    @property
    def dtype(self) -> DType:
        """Dtype of the tensor.

        Raises:
            UnimplementedError: aioflow has no such dtype.
        """
        try:
            return as_dtype(self.kind % 100)  # TensorFlow numbers a reference to a variable as the dtype plus 100
        except InvalidArgumentError as error:
            raise UnimplementedError("a dtype that is not known here", actual=f"number {self.kind}") from error


class TensorBundle:
    """A reader of single tensors from a checkpoint. The constructor reads the index.

    Attributes:
        tensors: The index entry of each tensor, by name.
        path: Path of the index.

    Raises:
        NotFoundError: there is no such checkpoint.
        DataLossError: the index is truncated or altered; the error names it.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self.path = store.path(name + INDEX)
        size = store.size(name + INDEX)
        if size is not None and size > _MAX_INDEX:
            raise self._damaged("it is too large", f"at most {_MAX_INDEX} bytes", size)
        try:
            entries = dict(Table.of(store.read(name + INDEX)).items())
            # The header has the empty key. Keys of slices begin with the ordered code of 0, a zero byte.
            self._shards, self._swapped = _header(entries.pop(b"", b""))
            self._parts = {key: value for key, value in entries.items() if key.startswith(b"\0")}
            self.tensors = {k.decode(): read_entry(v) for k, v in entries.items() if k not in self._parts}
        except (DataLossError, InvalidArgumentError, ValueError) as error:
            raise self._damaged("it cannot be read", "the index of a checkpoint", _message_of(error)) from error

    def aliases(self) -> Mapping[str, str]:
        """Return the keys of tensors by the names of their variables, if an object graph was saved.

        Raises:
            NotFoundError: the file with the object graph is missing.
            DataLossError: the object graph is damaged.
        """
        if OBJECT_GRAPH not in self.tensors:
            return {}
        try:
            names = variable_names(bytes(self.read(OBJECT_GRAPH).item()))
        except (AttributeError, TypeError, ValueError) as error:
            raise self._damaged("its object graph cannot be read", "one string", str(error)) from error
        return {name: key for name, key in names.items() if name not in self.tensors and key in self.tensors}

    def read(self, name: str) -> Array:
        """Read one tensor into a new array.

        Raises:
            KeyError: `tensors` lacks the name.
            NotFoundError: a file is missing.
            DataLossError: the bytes are not those that were written.
            UnimplementedError: the dtype cannot be read.
        """
        entry = self.tensors[name]
        try:
            return self._sliced(name, entry) if entry.slices else self._read(entry)
        except OpError as error:
            error.message = f"tensor {name!r} of checkpoint {self._store.path(self._name)}: {error.message}"
            raise

    def _sliced(self, name: str, entry: BundleEntry) -> Array:
        parts = [slice_of(extents, entry.shape) for extents in entry.slices]
        try:
            check_cover(name, parts)
        except InvalidArgumentError as error:
            raise DataLossError(error.message, expected=error.expected, actual=error.actual) from error
        reserve(math.prod(entry.shape) * entry.dtype.np_dtype.itemsize)
        # Uninitialized memory is safe: `check_cover` has established that the parts write each element.
        whole = np.empty(entry.shape, entry.dtype.np_dtype)
        for extents, part in zip(entry.slices, parts, strict=True):
            found = self._parts.get(slice_key(name, extents))
            own = None if found is None else read_entry(found)
            if own is None or own.slices or own.shape != part.shape or own.kind != entry.kind:
                raise DataLossError("a part is missing", expected=f"{entry.dtype.name}{part.shape}", actual=own)
            whole[part.index] = self._read(own)
        return whole

    def _read(self, entry: BundleEntry) -> Array:
        dtype, count = entry.dtype, math.prod(entry.shape)
        if not (dtype is dtypes.string or dtype.np_dtype.kind != "O"):
            raise UnimplementedError("a dtype that is not read from checkpoints", expected="values", actual=dtype)
        if dtype is not dtypes.string and entry.size != count * dtype.size:
            raise DataLossError(
                "the size does not fit", expected=f"{count * dtype.size} bytes for {entry.shape}", actual=entry.size
            )
        data = self._bytes(entry)
        if dtype is dtypes.string:
            return _strings(data, count, entry.crc, "big" if self._swapped else "little").reshape(entry.shape)
        _require_crc(crc32c(data), entry.crc)
        if dtype is dtypes.bool_ and data.size and data.max() > 1:
            raise DataLossError("a bool is neither 0 nor 1", expected="bytes 0 and 1", actual=int(data.max()))
        array: Array = data.view(dtype.np_dtype).reshape(entry.shape)
        return array.byteswap() if self._swapped else array

    def _bytes(self, entry: BundleEntry) -> Array:
        if not 0 <= entry.shard < self._shards:
            raise DataLossError("a shard that is not there", expected=f"one of {self._shards}", actual=entry.shard)
        file = shard_name(self._name, entry.shard, self._shards)
        there = self._store.size(file)
        if there is None:
            raise NotFoundError("a file is missing", expected=self._store.path(file), actual="none")
        if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size > there:
            raise DataLossError(
                f"file {self._store.path(file)} is truncated",
                expected=f"{entry.size} bytes at {entry.offset}",
                actual=f"{there} bytes in all",
            )
        reserve(entry.size)
        data = np.empty(entry.size, np.uint8)
        with self._store.open(file) as opened:
            opened.seek(entry.offset)
            count = sum(read_into(opened, data[part].data) for part in blocks(entry.size, _PIECE))
        if count != entry.size:
            raise DataLossError("a file became shorter", expected=entry.size, actual=count)
        return data

    def _damaged(self, what: str, expected: object, actual: object) -> DataLossError:
        return DataLossError(f"file {self.path} is damaged: {what}", expected=expected, actual=actual)


def _message_of(error: Exception) -> str:
    return error.message if isinstance(error, OpError) else str(error)


def _header(data: bytes) -> tuple[int, bool]:
    """Return the number of shards, and whether numbers are big-endian."""
    # BundleHeaderProto: 1 num_shards, 2 endianness (1 is big), 3 version.
    fields = {number: begin for number, wire, begin, _ in read_fields(data, 0, len(data)) if wire == VARINT}
    shards, order = fields.get(1, 0), fields.get(2, 0)
    if not 0 < shards <= _MAX_SHARDS or order not in (0, 1):
        raise DataLossError("not the header of a checkpoint", expected="how many shards", actual=data[:60])
    return shards, order == 1


def read_entry(data: bytes) -> BundleEntry:
    """Decode a BundleEntryProto.

    Raises:
        DataLossError: the message is damaged.
        InvalidArgumentError: the shape is not fully known.
    """
    numbers: dict[int, int] = {}
    shape: tuple[int, ...] = ()
    # BundleEntryProto: 1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size, 6 crc32c, 7 slices.
    crc, slices = 0, list[tuple[Extent, ...]]()
    for number, wire, begin, end in read_fields(data, 0, len(data)):
        if wire == VARINT:
            # Varints of int64 fields are in two's complement.
            numbers[number] = begin - (1 << 64) if begin >> 63 else begin
        elif (number, wire) == (2, PIECE):
            shape = read_shape(data, begin, end)
        elif (number, wire) == (6, FIXED32):
            crc = int.from_bytes(data[begin:end], "little")
        elif (number, wire) == (7, PIECE):
            slices.append(read_extents(data, begin, end))
    get = numbers.get
    return BundleEntry(get(1, 0), shape, get(3, 0), get(4, 0), get(5, 0), crc, tuple(slices))


def _require_crc(crc: int, stored: int) -> None:
    if disguised(crc) != stored:
        raise DataLossError(
            "the bytes have been altered", expected=f"checksum {stored:#010x}", actual=f"{disguised(crc):#010x}"
        )


def _strings(data: Array, count: int, stored: int, order: Literal["little", "big"]) -> Array:
    """Decode strings: all lengths, then the checksum of the lengths, then the contents.

    Args:
        data: The bytes of the tensor.
        count: Number of strings.
        stored: The stored checksum of the tensor.
        order: Byte order of the writer's memory, which applies to the checksum of the lengths and to its input.
    """
    raw, at = data.tobytes(), 0
    # Each length has at least one byte, so this bounds the loop.
    if count > len(raw):
        raise DataLossError("the lengths are cut off", expected=f"{count} of them", actual=f"{len(raw)} bytes")
    lengths: list[int] = []
    for _ in batches(range(count)):
        # The lengths are stored as varints, but their checksum is over fixed-width integers.
        length, at = read_number(raw, at, len(raw))
        lengths.append(length)
    crc = crc32c(b"".join(_length_bytes(lengths, order)))
    if raw[at : at + 4] != disguised(crc).to_bytes(4, order):
        raise DataLossError("the lengths have been altered", expected=f"checksum {disguised(crc):#010x}", actual=at)
    # The checksum of the tensor covers the fixed-width lengths, their checksum and the contents.
    _require_crc(crc32c(raw[at:], crc), stored)
    at += 4
    if at + sum(lengths) != len(raw):
        raise DataLossError("the lengths do not add up", expected=len(raw), actual=at + sum(lengths))
    found = np.empty(count, dtype=object)
    for i, length in enumerate(batches(lengths)):
        found[i] = raw[at : at + length]
        at += length
    return found


def _length_bytes(lengths: list[int], order: Literal["little", "big"]) -> Iterator[bytes]:
    """Yield the bytes that the checksum of the lengths covers."""
    return (length.to_bytes(4 if length < 1 << 32 else 8, order) for length in lengths)


def variable_names(graph: bytes) -> dict[str, str]:
    """Return the keys of values by the full names of their variables. A name with several keys is omitted.

    Raises:
        DataLossError: the object graph is damaged.
    """
    # TrackableObjectGraph: 1 nodes, each with 2 attributes, each with 1 name, 2 full_name and 3 checkpoint_key.
    found: dict[str, set[str]] = {}
    for number, wire, begin, end in read_fields(graph, 0, len(graph)):
        for field, kind, start, stop in read_fields(graph, begin, end) if (number, wire) == (1, PIECE) else ():
            if (field, kind) == (2, PIECE):
                texts = {n: graph[a:b].decode() for n, w, a, b in read_fields(graph, start, stop) if w == PIECE}
                if texts.get(2):
                    found.setdefault(texts[2], set()).add(texts.get(3, ""))
    return {name: next(iter(keys)) for name, keys in found.items() if len(keys) == 1}

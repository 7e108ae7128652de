"""TensorFlow's checkpoints of version 1, read only.

A checkpoint is one table, or one table for each shard. The values of a table are messages with slices of tensors. The
layout is in tensorflow/core/util/saved_tensor_slice.proto.

Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import reserve
from aioflow.errors import DataLossError, DTypeError, FailedPreconditionError, InvalidArgumentError, OpError
from aioflow.formats.files import read_up_to
from aioflow.formats.ordered_code import Extent, read_extents, slice_key, slice_of
from aioflow.formats.protobuf import PIECE, VARINT, read_fields
from aioflow.formats.sstable import MAGIC, Table
from aioflow.formats.stores import Store
from aioflow.formats.tensor_bundle import BundleEntry
from aioflow.formats.tensor_proto import read_shape, tensor_elements
from aioflow.formats.tensor_slice import check_cover
from aioflow.memory.values import Array

_PATTERN: Final = re.compile(r"-\?{5}-of-\d{5}$")
_SHARD: Final = re.compile(r"-(\d{5})-of-(\d{5})")


def plain_prefix(name: str) -> str:
    """Return the prefix of a checkpoint, given the prefix or the pattern of its shards."""
    return _PATTERN.sub("", name)


def table_files(store: Store, name: str) -> list[str]:
    """Return the names of the tables of a checkpoint.

    The list is empty if the checkpoint does not exist, has another format or lacks a shard.

    Args:
        store: The folder.
        name: The prefix, or the pattern of the shards, as TensorFlow names them: "model-?????-of-00002".
    """
    name = plain_prefix(name)
    # A checkpoint of one table is a file with the prefix itself as its name.
    if (store.size(name) or 0) >= len(MAGIC):
        with suppress(FailedPreconditionError), store.open(name) as file:  # the name may be that of a folder
            file.seek(-len(MAGIC), 2)
            return [name] if file.read() == MAGIC else []
    shards = {other: _SHARD.fullmatch(other[len(name) :]) for other in store.names() if other.startswith(name)}
    found = sorted((int(part[1]), int(part[2]), file) for file, part in shards.items() if part is not None)
    # Each shard occurs once, and all of them agree on their number.
    whole = found and [(shard, count) for shard, count, _ in found] == [(i, len(found)) for i in range(len(found))]
    return [file for *_, file in found] if whole else []


@dataclass(slots=True)
class _Saved:
    """A tensor, and the files that hold its slices."""

    entry: BundleEntry
    places: list[tuple[str, tuple[Extent, ...]]] = field(default_factory=list)


class SliceTables:
    """A reader of single tensors from a checkpoint.

    Attributes:
        tensors: The entry of each tensor, by name.
        path: Path of the first table.

    Raises:
        DataLossError: a table is truncated or altered; the error names it.
        UnimplementedError: aioflow lacks the dtype of a tensor.
    """

    def __init__(self, store: Store, name: str, files: list[str]) -> None:
        self._store = store
        self.path = store.path(files[0])
        self._saved: dict[str, _Saved] = {}
        for file in files:
            try:
                self._add(file)
            except (DataLossError, InvalidArgumentError, ValueError) as error:
                told = error.message if isinstance(error, OpError) else str(error)
                raise DataLossError(
                    f"file {store.path(file)} is damaged", expected="a checkpoint of version 1", actual=told
                ) from error
        self.tensors = {key: saved.entry for key, saved in self._saved.items()}

    def _add(self, file: str) -> None:
        with self._open(file) as table:
            # The empty key, the first of each table, holds the list of the tensors and their slices.
            header = table.find(b"") or b""
        # SavedTensorSlices: 1 meta, a SavedTensorSliceMeta: 1 tensor, a SavedSliceMeta for each tensor.
        for number, wire, begin, end in read_fields(header, 0, len(header)):
            for field_, kind, start, stop in read_fields(header, begin, end) if (number, wire) == (1, PIECE) else ():
                if (field_, kind) == (1, PIECE):
                    name, entry = _described(header, start, stop)
                    saved = self._saved.setdefault(name, _Saved(entry))
                    if (saved.entry.kind, saved.entry.shape) != (entry.kind, entry.shape):
                        raise DataLossError(f"tensor {name!r} is different in another shard")
                    saved.places += [(file, extents) for extents in entry.slices]

    def _open(self, file: str) -> _OpenTable:
        return _OpenTable(self._store, file)

    def read(self, name: str) -> Array:
        """Read one tensor into a new array.

        Raises:
            KeyError: `tensors` lacks the name.
            NotFoundError: a file is missing.
            DataLossError: a file is damaged.
            UnimplementedError: the dtype cannot be read.
        """
        saved = self._saved[name]
        try:
            return self._whole(name, saved)
        except (InvalidArgumentError, OverflowError, TypeError, ValueError) as error:
            told = error.message if isinstance(error, OpError) else str(error)
            raise DataLossError(
                f"tensor {name!r} of {self.path} is damaged", expected="a value", actual=told
            ) from error

    def _whole(self, name: str, saved: _Saved) -> Array:
        dtype, shape = saved.entry.dtype, saved.entry.shape
        parts = [slice_of(extents, shape) for _, extents in saved.places]
        if not parts:
            raise DataLossError(f"tensor {name!r} has no parts", expected="at least one", actual=0)
        check_cover(name, parts)
        reserve(math.prod(shape) * dtype.np_dtype.itemsize)
        # Uninitialized memory is safe: `check_cover` has established that the parts write each element.
        whole = np.empty(shape, dtype.np_dtype)
        for (file, extents), part in zip(saved.places, parts, strict=True):
            with self._open(file) as table:
                value = table.find(slice_key(name, extents))
            if value is None:
                raise DataLossError(f"a part of {name!r} is missing", expected=part.text, actual="none")
            whole[part.index] = tensor_elements(_data(value), dtype, part.shape)
        return whole


class _OpenTable:
    """Context manager: a `Table` over a file of the store, open inside the block."""

    def __init__(self, store: Store, file: str) -> None:
        self._size = store.size(file) or 0
        self._opened = store.open(file)

    def __enter__(self) -> Table:
        def read(begin: int, size: int) -> bytes:
            self._opened.seek(begin)
            return read_up_to(self._opened, size)

        try:
            return Table(self._size, read)
        except BaseException:
            self._opened.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self._opened.close()


def _described(data: bytes, begin: int, end: int) -> tuple[str, BundleEntry]:
    """Decode a SavedSliceMeta."""
    # SavedSliceMeta: 1 name, 2 shape, 3 type, 4 slice.
    name, shape, kind = "", tuple[int, ...](), 0
    slices: list[tuple[Extent, ...]] = []
    for number, wire, start, stop in read_fields(data, begin, end):
        if (number, wire) == (1, PIECE):
            name = data[start:stop].decode()
        elif (number, wire) == (2, PIECE):
            shape = read_shape(data, start, stop)
        elif (number, wire) == (3, VARINT):
            kind = start
        elif (number, wire) == (4, PIECE):
            slices.append(read_extents(data, start, stop))
    entry = BundleEntry(kind, shape, slices=tuple(slices))
    if entry.dtype.np_dtype.hasobject and entry.dtype.name != "string":
        raise DTypeError("not a dtype of values", expected="numbers or strings", actual=entry.dtype)
    return name, entry


def _data(value: bytes) -> bytes:
    """Return the bytes of the TensorProto of a SavedTensorSlices."""
    # SavedTensorSlices: 2 data, a SavedSlice: 3 data, a TensorProto. Its pieces are merged, as protobuf does.
    return b"".join(
        value[first:last]
        for begin, end in _pieces(value, 0, len(value), 2)
        for first, last in _pieces(value, begin, end, 3)
    )


def _pieces(data: bytes, begin: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    for number, wire, start, stop in read_fields(data, begin, end):
        if (number, wire) == (wanted, PIECE):
            yield start, stop

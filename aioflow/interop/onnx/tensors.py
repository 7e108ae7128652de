"""Conversion of `TensorProto` to arrays, with checks before unpacking. The data may be in files beside the model."""

from __future__ import annotations

import math
import mmap
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from aioflow.errors import DataLossError, InvalidArgumentError, NotFoundError, UnimplementedError
from aioflow.formats.protobuf import FIXED32, FIXED64, PIECE, VARINT, damaged, read_number, write_number
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.interop.onnx.types import dtype_of, element_type_name
from aioflow.memory.values import Array, Buffer

# ── weights in files: beside the model, mapped into memory and never read as a whole, or in the model's own ───────────
#
# In Hugging Face's cache a model is a link, `snapshots/REVISION/model.onnx`, into `blobs/`, and so are its weights. As
# in onnxruntime, a file may therefore also be in the folder of the file that the path links to.


class WeightFiles:
    """Files that the tensors of a model refer to.

    Args:
        model: The model's path. None for a model without a path, whose tensors must not refer to other files.
        own: The bytes of the model's own file, to which tensors of `without_weights` refer.
        location: The location by which they refer to it.
    """

    def __init__(self, model: Path | None, own: bytes = b"", location: str | None = None) -> None:
        self._model = model
        self._own = own
        self._location = location
        self._maps: dict[Path, mmap.mmap] = {}

    def bytes_of(self, proto: TensorProto, count: int) -> Array:
        """Return the bytes of a tensor, read-only.

        Args:
            proto: The tensor.
            count: Required number of bytes.

        Raises:
            InvalidArgumentError: the file would be outside the folders of the model's path and of the file that it
                links to, or the tensor's offset or length is malformed.
            NotFoundError: the file does not exist or cannot be read.
            DataLossError: the file is too short, or the length is not `count`.
        """
        entries = {each.key: each.value for each in proto.external_data}
        location = entries.get("location", "")
        is_own = location == self._location
        mapped = self._own if is_own else self._mapped(proto, location)
        offset = _number(proto, entries, "offset", 0)
        length = _number(proto, entries, "length", count)
        # The length of the file's entry must not exceed the shape: kernels read as many bytes as the shape says.
        if length != count:
            raise DataLossError(
                f"the values of tensor {proto.name!r} do not fill its shape", expected=count, actual=length
            )
        if offset + length > len(mapped):
            raise DataLossError(
                f"the file of tensor {proto.name!r} is too short", expected=offset + length, actual=len(mapped)
            )
        found = np.frombuffer(mapped, np.uint8, count, offset)
        # The copy frees the bytes of the model, and is aligned. Otherwise the array keeps the mapping alive.
        return found.copy() if is_own else found

    def _mapped(self, proto: TensorProto, location: str) -> mmap.mmap | bytes:
        path = self._inside(proto, location)
        # One mapping per file, since all tensors of a large model usually share one.
        found = self._maps.get(path)
        if found is not None:
            return found
        try:
            if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
                raise OSError("it is no file")
            with path.open("rb") as file:
                # An empty file cannot be mapped.
                if not path.stat().st_size:
                    return b""
                self._maps[path] = found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise NotFoundError(
                f"the file of tensor {proto.name!r} cannot be read", expected=location, actual=str(error)
            ) from error
        return found

    def _inside(self, proto: TensorProto, location: str) -> Path:
        if self._model is None:
            raise InvalidArgumentError(
                f"the values of tensor {proto.name!r} are in a file, and the model has no folder",
                expected="a model that is loaded by its path",
                actual=repr(location),
            )
        # All paths are resolved before they are compared, so that neither `..` nor a link leads outside.
        folder = self._model.parent.resolve()
        linked = self._model.resolve().parent
        try:
            path = Path() if "\0" in location else (folder / location).resolve()
        except (OSError, RuntimeError):  # a cycle of links
            path = Path()
        if folder not in path.parents and linked not in path.parents:
            raise InvalidArgumentError(
                f"the values of tensor {proto.name!r} are outside the model's folder",
                expected="a file in the folder of the model, or of the file that its path links to",
                actual=repr(location),
            )
        return path


_LARGE: Final = 2**16  # number of bytes of a weight that is worth leaving out
# Fields of a graph, and of a weight. Files with more are left to the parser, which is a hundred times as fast.
_MOST_FIELDS: Final = 100_000
_MOST_OF_A_WEIGHT: Final = 100


def _number_of(message: type[Message], field: str) -> int:
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return number


_GRAPH: Final = _number_of(ModelProto, "graph")
_INITIALIZER: Final = _number_of(GraphProto, "initializer")
_RAW_DATA: Final = _number_of(TensorProto, "raw_data")
_DATA_TYPE: Final = _number_of(TensorProto, "data_type")
_EXTERNAL: Final = frozenset(_number_of(TensorProto, name) for name in ("external_data", "data_location"))


def without_weights(model: bytes) -> tuple[bytes, str]:
    """Return a model whose large initializers refer to their data in `model`, and the location by which they do.

    The parser holds the interpreter's lock while it copies the weights: 50 ms for 100 MB. Anything unusual is left to
    the parser: damaged messages, and fields that occur twice.
    """
    location = f"\0{secrets.token_hex(16)}"  # a file that was written before cannot name it
    try:
        return b"".join(_shortened(model, 0, len(model), _GRAPH, partial(_graph_without_weights, location))), location
    except DataLossError:
        return model, location


def _graph_without_weights(location: str, model: bytes, at: int, end: int) -> list[Buffer]:
    return _shortened(model, at, end, _INITIALIZER, partial(_tensor_without_data, location))


def _tensor_without_data(location: str, model: bytes, at: int, end: int) -> list[Buffer]:
    whole: list[Buffer] = [memoryview(model)[at:end]]
    fields = list(islice(_fields(model, at, end), _MOST_OF_A_WEIGHT + 1))
    data = [field for field in fields if field.number == _RAW_DATA]
    kinds = [read_number(model, field.begin, field.end)[0] for field in fields if field.number == _DATA_TYPE]
    if len(fields) > _MOST_OF_A_WEIGHT or len(data) != 1 or any(field.number in _EXTERNAL for field in fields):
        return whole
    (raw,) = data
    # Other types are not read from files, and strings are not raw.
    if (
        raw.end - raw.begin < _LARGE
        or len(kinds) != 1
        or kinds[0] in _PACKED
        or dtype_of(kinds[0]) in (None, dtypes.string)
    ):
        return whole
    reference = TensorProto(data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(raw.begin)), ("length", str(raw.end - raw.begin))):
        reference.external_data.add(key=key, value=value)
    return [model[at : raw.start], model[raw.end : end], reference.SerializeToString()]


class _Field(NamedTuple):
    """A field of a message: its number, where it starts, and where its contents begin and end."""

    number: int
    start: int
    begin: int
    end: int


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    """Yield the fields of a message. Raises DataLossError for anything that an encoder would not write."""
    while at < end:
        start = at
        tag, at = read_number(data, at, end)
        number, wire = tag >> 3, tag & 7
        begin = at
        if wire == VARINT:
            _, at = read_number(data, at, end)
        elif wire == PIECE:
            size, begin = read_number(data, at, end)
            at = begin + size
            if data[start:begin] != write_number(tag) + write_number(size):
                raise damaged("a padded number")
        else:
            at += {FIXED64: 8, FIXED32: 4}.get(wire, end)
        if at > end:
            raise damaged("a field longer than the remaining bytes")
        yield _Field(number, start, begin, at)


def _shortened(
    data: bytes, at: int, end: int, number: int, shorten: Callable[[bytes, int, int], list[Buffer]]
) -> list[Buffer]:
    """Return the encoding of a message in pieces, with the contents of the large fields of that number shortened."""
    pieces: list[Buffer] = []
    view = memoryview(data)
    for count, field in enumerate(_fields(data, at, end)):
        if count == _MOST_FIELDS:
            raise damaged("more fields than a model has")
        if field.number == number and field.end - field.begin >= _LARGE:
            contents = shorten(data, field.begin, field.end)
            head = write_number(number << 3 | PIECE) + write_number(sum(map(len, contents)))
            pieces += [view[at : field.start], head, *contents]
            at = field.end
    return [*pieces, view[at:end]]


def _number(proto: TensorProto, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    # `isdigit` alone accepts other digits, and a long text would be slow to convert.
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidArgumentError(
            f"the {key} of tensor {proto.name!r} in its file cannot be right", expected="a number", actual=repr(text)
        )
    return int(text)


# ── `TensorProto` ─────────────────────────────────────────────────────────────────────────────────────────────────────


_MAX_RANK: Final = 64
_MOST_EMPTY: Final = 2**63 // 16  # number of elements of the largest dtype


def array_of(proto: TensorProto, files: WeightFiles | None = None) -> Array:
    """Return the read-only value of a tensor. Strings become an object array of bytes.

    Args:
        proto: The tensor.
        files: Files that the tensor may refer to.

    Raises:
        DataLossError: the data does not fill the shape.
        InvalidArgumentError: the shape or the reference to a file is malformed.
        NotFoundError: the file does not exist.
        UnimplementedError: aioflow has no such element type.
    """
    dims = _checked_dims(proto)
    dtype = dtype_of(proto.data_type)
    if dtype is None:
        raise UnimplementedError(
            f"tensor {proto.name!r} has an element type that aioflow does not have",
            actual=element_type_name(proto.data_type),
        )
    if proto.data_location == TensorProto.EXTERNAL:
        array = _external(proto, dims, dtype, files or WeightFiles(None))
    else:
        array = _unpacked(proto, dims, dtype)
    # Constants of a graph are shared by all its sessions.
    array.flags.writeable = False
    return array


def _checked_dims(proto: TensorProto) -> tuple[int, ...]:
    dims = tuple(proto.dims)
    # NumPy limits the product of the nonzero sizes, even if one size is 0 and there are no elements.
    if len(dims) > _MAX_RANK or any(d < 0 for d in dims) or (0 in dims and math.prod(filter(None, dims)) > _MOST_EMPTY):
        raise InvalidArgumentError(
            f"tensor {proto.name!r} has an invalid shape",
            expected=f"at most {_MAX_RANK} sizes, none negative, with a product that NumPy supports",
            actual=str(dims[: _MAX_RANK + 1]),
        )
    return dims


def _unpacked(proto: TensorProto, dims: tuple[int, ...], dtype: DType) -> Array:
    count = math.prod(dims)
    np_dtype = dtype.np_dtype
    if dtype is dtypes.string:
        _check_count(proto, count, len(proto.string_data))
        strings = np.empty(count, dtype=object)
        # An assignment, because `np.array` of bytes makes a fixed-width dtype that drops trailing null bytes.
        strings[:] = list(proto.string_data)
        return strings.reshape(dims)
    if proto.HasField("raw_data") and _is_whole_bytes(proto):
        data = proto.raw_data
        _check_count(proto, count * np_dtype.itemsize, len(data))
        return np.frombuffer(data, np_dtype.newbyteorder("<")).astype(np_dtype, copy=False).reshape(dims)
    if not _is_whole_bytes(proto):
        per_byte = 8 // _PACKED[proto.data_type]
        packed = len(proto.raw_data) if proto.HasField("raw_data") else len(proto.int32_data)
        # ⌈count / per_byte⌉ bytes.
        _check_count(proto, -(-count // per_byte), packed)
    try:
        return np.array(numpy_helper.to_array(proto)).view(np_dtype).reshape(dims)
    except (ValueError, TypeError) as error:
        raise DataLossError(f"the values of tensor {proto.name!r} do not fill its shape", expected=dims) from error


def _external(proto: TensorProto, dims: tuple[int, ...], dtype: DType, files: WeightFiles) -> Array:
    if dtype is dtypes.string or not _is_whole_bytes(proto):
        raise UnimplementedError(
            f"tensor {proto.name!r} cannot be external data", actual=element_type_name(proto.data_type)
        )
    np_dtype = dtype.np_dtype
    data = files.bytes_of(proto, math.prod(dims) * np_dtype.itemsize)
    # Files may have any offset, and kernels expect aligned arrays.
    if data.ctypes.data % np_dtype.alignment:
        data = data.copy()
    # External and raw data are little-endian on every machine.
    return data.view(np_dtype.newbyteorder("<")).astype(np_dtype, copy=False).reshape(dims)


def _is_whole_bytes(proto: TensorProto) -> bool:
    return proto.data_type not in _PACKED


# Bits per element, for types of which several elements share a byte.
_BITS: Final = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
_PACKED: Final = {number: _BITS[name] for name, number in TensorProto.DataType.items() if name in _BITS}


def _check_count(proto: TensorProto, expected: int, actual: int) -> None:
    if expected != actual:
        raise DataLossError(
            f"the values of tensor {proto.name!r} do not fill its shape", expected=expected, actual=actual
        )

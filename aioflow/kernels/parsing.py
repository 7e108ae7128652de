"""Kernels that turn records into arrays: raw bytes, comma-separated text, and Example messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims
from aioflow.kernels.csv_format import split_record
from aioflow.kernels.example_format import FeatureList, Kind, decode_example
from aioflow.kernels.number_text import number_parser
from aioflow.kernels.registry import Binding, binder
from aioflow.kernels.strings import as_strings, string_values

__all__: list[str] = []

# ── raw bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@binder("DecodeRaw", fresh=True)
def decode_raw(binding: Binding) -> Callable[[Any], Any]:
    dtype = binding.output_dtypes[0].np_dtype
    little = binding.attrs["little_endian"]
    part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize

    def decode(value: Any) -> Any:
        strings = string_values(value)
        texts = strings.reshape(-1).tolist()
        size = len(texts[0]) if texts else 0
        if any(len(text) != size for text in texts):
            raise InvalidArgumentError(
                "the strings must have one length", expected=size, actual=sorted({len(text) for text in texts})
            )
        if size % dtype.itemsize:
            raise InvalidArgumentError(
                "the length is no multiple of the size of an element", expected=dtype.itemsize, actual=size
            )
        raw = np.frombuffer(b"".join(texts), np.uint8)
        if not little:
            raw = raw.reshape(-1, part)[:, ::-1].reshape(-1)
        found = raw != 0 if dtype.kind == "b" else np.frombuffer(raw.tobytes(), dtype).copy()
        return found.reshape((*strings.shape, size // dtype.itemsize))

    return decode


# ── comma-separated text ─────────────────────────────────────────────────────────────────────────────────────────────


class _Column:
    """How one column of a CSV record is read."""

    def __init__(self, number: int, dtype: DType) -> None:
        self.number = number
        self.dtype = dtype
        self._parse = None if dtype is dtypes.string else number_parser(dtype)

    def read(self, texts: Sequence[bytes], absent: bytes, default: Any, shape: tuple[int, ...]) -> Any:
        """The column as an array."""
        required = np.size(default) == 0
        filler = None if required else np.asarray(default).reshape(-1)[0]
        parse = self._parse
        values: list[Any] = []
        for row, text in enumerate(texts):
            if not text or text == absent:
                if required:
                    raise self._error("is required but missing", row, "a value", text)
                values.append(filler)
                continue
            value = text if parse is None else parse(text)
            if value is None:
                raise self._error(f"is not a valid {self.dtype.name}", row, self.dtype.name, text)
            values.append(value)
        if parse is None:
            return as_strings(values, shape)
        return np.array(values, dtype=self.dtype.np_dtype).reshape(shape)

    def _error(self, what: str, row: int, expected: Any, text: bytes) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"field {self.number} in record {row} {what}", expected=expected, actual=repr(text[:60])
        )


@binder("DecodeCSV", fresh=True)
def decode_csv(binding: Binding) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]:
    attrs = binding.attrs
    delimiter, absent = attrs["field_delim"].encode(), attrs["na_value"].encode()
    quotes, chosen = attrs["use_quote_delim"], attrs["select_cols"]
    if len(delimiter) != 1:
        raise InvalidArgumentError("field_delim is one character", expected="1", actual=repr(attrs["field_delim"]))
    columns = [_Column(n, dtype) for n, dtype in zip(chosen or range(10**9), binding.output_dtypes, strict=False)]

    def decode(records: Any, defaults: tuple[Any, ...]) -> tuple[Any, ...]:
        strings = string_values(records)
        rows = [split_record(text, delimiter, quotes) for text in strings.reshape(-1).tolist()]
        wanted = chosen[-1] + 1 if chosen else len(columns)
        for i, row in enumerate(rows):
            if len(row) < wanted or (len(row) > wanted and not chosen):
                raise InvalidArgumentError(f"record {i} has a wrong number of fields", expected=wanted, actual=len(row))
        return tuple(
            column.read([row[column.number] for row in rows], absent, default, strings.shape)
            for column, default in zip(columns, defaults, strict=True)
        )

    return decode


# ── Example messages ─────────────────────────────────────────────────────────────────────────────────────────────────

_KINDS: Final[dict[DType, Kind]] = {dtypes.float32: "float", dtypes.int64: "int64", dtypes.string: "bytes"}


class _Batch:
    """Decoded examples, and what to call them in messages."""

    def __init__(self, serialized: Sequence[bytes], names: Sequence[bytes]) -> None:
        if names and len(names) != len(serialized):
            raise InvalidArgumentError("each example needs a name", expected=len(serialized), actual=len(names))
        self._names = names
        self.examples: list[dict[bytes, FeatureList]] = []
        for index, data in enumerate(serialized):
            try:
                self.examples.append(decode_example(data))
            except DataLossError as error:
                raise InvalidArgumentError(
                    f"could not parse example {self.called(index)}: {error.message}",
                    expected="an Example",
                    actual=data[:60],
                ) from error

    def called(self, index: int) -> str:
        """Index and, if it has one, name of an example."""
        return f"{index} ({self._names[index].decode(errors='replace')})" if self._names else str(index)

    def values(self, key: bytes, dtype: DType) -> list[Any]:
        """For each example the values of a feature, None where it has none."""
        found: list[Any] = []
        kind = _KINDS[dtype]
        for index, example in enumerate(self.examples):
            feature = example.get(key)
            if feature is None or feature.kind is None:
                found.append(None)
                continue
            if feature.kind != kind:
                raise self.error(key, index, "has another dtype", dtype.name, feature.kind)
            found.append(feature.values)
        return found

    def error(self, key: bytes, index: int, what: str, expected: Any, actual: Any) -> InvalidArgumentError:
        """An error about a feature of an example."""
        name = key.decode(errors="replace")
        return InvalidArgumentError(
            f"feature {name!r} of example {self.called(index)} {what}", expected=expected, actual=actual
        )


class _Dense(NamedTuple):
    """A feature that becomes one array."""

    key: bytes
    dtype: DType
    dims: tuple[int | None, ...]
    default: Any

    def read(self, batch: _Batch) -> Any:
        """The array, with the batch as first dimension."""
        found = batch.values(self.key, self.dtype)
        default = np.asarray(self.default).reshape(-1)
        if self.dims and self.dims[0] is None:
            return self._padded(batch, found, default)
        sizes = tuple(d for d in self.dims if d is not None)
        count = math.prod(sizes)
        if default.size not in (0, count):
            raise InvalidArgumentError(
                f"the default of feature {self.key!r} does not fit", expected=sizes, actual=np.shape(self.default)
            )
        made = np.empty((len(found), count), dtype=self.dtype.np_dtype)
        for index, values in enumerate(found):
            if values is None and default.size < count:
                raise batch.error(self.key, index, "is required but missing", format_dims(self.dims), "none")
            if values is not None and len(values) != count:
                raise batch.error(self.key, index, "has a wrong number of values", count, len(values))
            made[index] = default if values is None else values
        return made.reshape((len(found), *sizes))

    def _padded(self, batch: _Batch, found: list[Any], default: Any) -> Any:
        entry = tuple(d for d in self.dims[1:] if d is not None)
        stride = math.prod(entry)
        for index, values in enumerate(found):
            if values is not None and (len(values) % stride if stride else len(values)):
                raise batch.error(
                    self.key, index, "has a wrong number of values", f"a multiple of {stride}", len(values)
                )
        longest = max((len(v) for v in found if v is not None), default=0)
        filler = default[0] if default.size else b"" if self.dtype is dtypes.string else 0
        made = np.empty((len(found), longest), dtype=self.dtype.np_dtype)
        made.fill(filler)
        for index, values in enumerate(found):
            if values is not None:
                made[index, : len(values)] = values
        return made.reshape((len(found), longest // stride if stride else 0, *entry))


def _sparse(batch: _Batch, key: bytes, dtype: DType) -> tuple[Any, Any, Any]:
    """Indices, values and shape of a feature of any length."""
    found = [() if values is None else values for values in batch.values(key, dtype)]
    lengths = np.array([len(values) for values in found], dtype=np.int64)
    total = int(lengths.sum())
    rows = np.repeat(np.arange(len(found), dtype=np.int64), lengths)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    indices = np.stack([rows, np.arange(total, dtype=np.int64) - starts], axis=1)
    values = np.empty(total, dtype=dtype.np_dtype)
    position = 0
    for items in found:
        values[position : position + len(items)] = items
        position += len(items)
    return indices, values, np.array([len(found), lengths.max(initial=0)], dtype=np.int64)


def _dense_specs(keys: Sequence[Any], binding: Binding, defaults: Sequence[Any]) -> list[_Dense]:
    shapes: Sequence[Dims] = binding.attrs["dense_shapes"]
    return [
        _Dense(key, dtype, dims or (), default)
        for key, dtype, dims, default in zip(keys, binding.attrs["Tdense"], shapes, defaults, strict=True)
    ]


def _texts(values: Sequence[Any]) -> list[bytes]:
    return [string_values(value).item() for value in values]


@binder("ParseExample", fresh=True)
def parse_example(binding: Binding) -> Callable[..., tuple[Any, ...]]:
    sparse_types = binding.attrs["sparse_types"]

    def parse(serialized: Any, names: Any, sparse_keys: Any, dense_keys: Any, defaults: Any) -> tuple[Any, ...]:
        batch = _Batch(string_values(serialized).reshape(-1).tolist(), string_values(names).reshape(-1).tolist())
        found = [_sparse(batch, key, t) for key, t in zip(_texts(sparse_keys), sparse_types, strict=True)]
        dense = [spec.read(batch) for spec in _dense_specs(_texts(dense_keys), binding, defaults)]
        return (*(f[0] for f in found), *(f[1] for f in found), *(f[2] for f in found), *dense)

    return parse


def _only(batch_of_one: Any) -> Any:
    return batch_of_one.reshape(batch_of_one.shape[1:])


@binder("ParseSingleExample", fresh=True)
def parse_single_example(binding: Binding) -> Callable[..., tuple[Any, ...]]:
    attrs = binding.attrs
    sparse = [(key.encode(), t) for key, t in zip(attrs["sparse_keys"], attrs["sparse_types"], strict=True)]
    dense_keys = [key.encode() for key in attrs["dense_keys"]]

    def parse(serialized: Any, defaults: Any) -> tuple[Any, ...]:
        batch = _Batch([string_values(serialized).item()], [])
        found = [_sparse(batch, key, t) for key, t in sparse]
        dense = [_only(spec.read(batch)) for spec in _dense_specs(dense_keys, binding, defaults)]
        return (*(f[0][:, 1:].copy() for f in found), *(f[1] for f in found), *(f[2][1:].copy() for f in found), *dense)

    return parse

"""Kernels that convert records to arrays: raw bytes, comma-separated text, and Example messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aioflow.concurrency.stopping import batches, blocks
from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.csv import split_record
from aioflow.formats.example import FeatureKind, FeatureSpan, Layouts, find_sequence_example, values_at
from aioflow.formats.number_text import number_parser
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims
from aioflow.kernels.blockwise import written
from aioflow.kernels.convert import as_bytes
from aioflow.kernels.registry import Binding, binder
from aioflow.kernels.text import as_strings, string_values
from aioflow.memory.copying import copy_into
from aioflow.memory.values import Array

# ── features of decoded examples as arrays: dense ones of equal shape, and sparse ones of any length ──────────────────


_KINDS: Final[dict[DType, FeatureKind]] = {dtypes.float32: "float", dtypes.int64: "int64", dtypes.string: "bytes"}


class FeatureBatch:
    """The bytes of each example (or of each step of a feature list), and the positions of the features in them."""

    def __init__(
        self,
        examples: Sequence[tuple[bytes, Mapping[bytes, FeatureSpan]]],
        names: Sequence[bytes],
        what: str = "example",
    ) -> None:
        """Store the examples; `names` and `what` are for error messages."""
        self._examples = examples
        self._names = names
        self._what = what

    def values(self, key: bytes, dtype: DType) -> list[Any]:
        """Return the values of a feature for each example, None for an example without it."""
        kind = _KINDS[dtype]
        found: list[Any] = []
        for index, (data, places) in enumerate(batches(self._examples)):
            place = places.get(key)
            if place is None or place.kind is None:
                found.append(None)
            elif place.kind != kind:
                raise self.error(key, index, "has a different dtype", dtype.name, place.kind)
            else:
                try:
                    found.append(values_at(data, place))
                except DataLossError as error:
                    raise self.damaged(index, data, error) from error
        return found

    def damaged(self, index: int, data: bytes, error: DataLossError) -> InvalidArgumentError:
        """Return the error for an example that cannot be parsed."""
        return InvalidArgumentError(
            f"could not parse {self._what} {_called(index, self._names)}: {error.message}",
            expected=f"an {self._what.capitalize()}",
            actual=data[:60],
        )

    def error(self, key: bytes, index: int, what: str, expected: object, actual: object) -> InvalidArgumentError:
        """Return an error about a feature of an example."""
        name = key.decode(errors="replace")
        return InvalidArgumentError(
            f"feature {name!r} of {self._what} {_called(index, self._names)} {what}", expected=expected, actual=actual
        )


class DenseFeature(NamedTuple):
    """A feature that becomes one array."""

    key: bytes
    dtype: DType
    dims: tuple[int | None, ...]

    def read(self, batch: FeatureBatch, default: npt.ArrayLike) -> Array:
        """Return the array, with the batch as first dimension. An empty `default` makes the feature required."""
        found = batch.values(self.key, self.dtype)
        default = np.asarray(default)
        # An open first size: examples of different lengths are padded to the longest.
        if self.dims and self.dims[0] is None:
            return self._padded(batch, found, default.reshape(-1))
        sizes = tuple(d for d in self.dims if d is not None)
        count = math.prod(sizes)
        if default.size not in (0, count):
            raise InvalidArgumentError(
                f"the default of feature {self.key!r} does not fit", expected=sizes, actual=default.shape
            )
        for index, values in enumerate(batches(found)):
            if values is None:
                if default.size < count:
                    raise batch.error(self.key, index, "is required but missing", format_dims(self.dims), "none")
                # Only the item just visited is replaced, so the iteration goes on undisturbed.
                found[index] = default.reshape(-1)
            elif len(values) != count:
                raise batch.error(self.key, index, "has the wrong number of values", count, len(values))
        made = np.empty((len(found), count), dtype=self.dtype.np_dtype)
        if count == 1:
            made[:, 0] = [values[0] for values in batches(found)]
        else:
            for index, values in enumerate(batches(found)):
                made[index] = values
        return made.reshape((len(found), *sizes))

    def _padded(self, batch: FeatureBatch, found: list[Any], default: Array) -> Array:
        entry = tuple(d for d in self.dims[1:] if d is not None)
        stride = math.prod(entry)
        for index, values in enumerate(batches(found)):
            # With an inner size of 0, no value fits.
            if values is not None and (len(values) % stride if stride else len(values)):
                raise batch.error(
                    self.key, index, "has the wrong number of values", f"a multiple of {stride}", len(values)
                )
        longest = max((len(v) for v in found if v is not None), default=0)
        filler = default[0] if default.size else b"" if self.dtype is dtypes.string else 0
        made = np.empty((len(found), longest), dtype=self.dtype.np_dtype)
        made.fill(filler)
        for index, values in enumerate(batches(found)):
            if values is not None:
                made[index, : len(values)] = values
        return made.reshape((len(found), longest // stride if stride else 0, *entry))


def sparse_feature(batch: FeatureBatch, key: bytes, dtype: DType) -> tuple[Array, Array, Array]:
    """Return the indices, values and shape of a feature of any length."""
    found = [() if values is None else values for values in batch.values(key, dtype)]
    lengths = np.array([len(values) for values in found], dtype=np.int64)
    total = int(lengths.sum())
    rows = np.repeat(np.arange(len(found), dtype=np.int64), lengths)
    # The column of an entry is its number minus that of the first entry in its row.
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    indices = np.stack([rows, np.arange(total, dtype=np.int64) - starts], axis=1)
    values = np.empty(total, dtype=dtype.np_dtype)
    position = 0
    for items in batches(found):
        values[position : position + len(items)] = items
        position += len(items)
    return indices, values, np.array([len(found), lengths.max(initial=0)], dtype=np.int64)


def _called(index: int, names: Sequence[bytes]) -> str:
    """Return the index of an example and, if it has one, its name."""
    return f"{index} ({names[index].decode(errors='replace')})" if names else str(index)


def decoded_examples(serialized: Sequence[bytes], names: Sequence[bytes], layouts: Layouts) -> FeatureBatch:
    """Return the parsed examples of a batch.

    Raises:
        InvalidArgumentError: a string is not an Example, or the number of names differs from that of the examples.
    """
    if names and len(names) != len(serialized):
        raise InvalidArgumentError("each example needs a name", expected=len(serialized), actual=len(names))
    examples: list[tuple[bytes, Mapping[bytes, FeatureSpan]]] = []
    batch = FeatureBatch(examples, names)
    for index, data in enumerate(batches(serialized)):
        try:
            examples.append((data, layouts.find(data)))
        except DataLossError as error:
            raise batch.damaged(index, data, error) from error
    return batch


# ── the kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────


_RECORDS: Final = 1 << 16  # strings that are read between two checkpoints, if they have at most `_BYTES` together
_BYTES: Final = 4 << 20

# ── raw bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@binder("DecodeRaw", device="CPU", fresh=True)
def decode_raw(binding: Binding) -> Callable[[Array], Array]:
    dtype = binding.output_dtypes[0].np_dtype
    little = binding.attrs["little_endian"]
    # The two halves of a complex number are swapped each by itself.
    part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize

    def decode(value: Array) -> Array:
        strings = string_values(value)
        texts = strings.reshape(-1).tolist()
        size = len(texts[0]) if texts else 0
        if any(len(text) != size for text in batches(texts, _RECORDS)):
            raise InvalidArgumentError(
                "the strings must have the same length", expected=size, actual=sorted({len(text) for text in texts})
            )
        if size % dtype.itemsize:
            raise InvalidArgumentError(
                "the length is not a multiple of the size of an element", expected=dtype.itemsize, actual=size
            )
        raw = _joined(texts, size)
        # Any byte but 0 is true, while a NumPy bool must be 0 or 1. So bools are compared, not viewed.
        if little and dtype.kind != "b":
            found = raw.view(dtype)
        else:
            found = written((raw.size // dtype.itemsize,), dtype, lambda place: elements(raw, place))
        return found.reshape((*strings.shape, size // dtype.itemsize))

    def elements(raw: Array, place: slice) -> Array:
        own = raw[place.start * dtype.itemsize : place.stop * dtype.itemsize]
        if not little:
            # Contiguous, since only then can the array be viewed with another dtype.
            own = np.ascontiguousarray(own.reshape(-1, part)[:, ::-1]).reshape(-1)
        return own != 0 if dtype.kind == "b" else own.view(dtype)

    return decode


def _joined(texts: list[bytes], size: int) -> Array:
    """Return the bytes of texts of equal size, concatenated, in a writable array."""
    if len(texts) <= _RECORDS and len(texts) * size <= _BYTES:
        # `bytes` would make the array read-only.
        return np.frombuffer(bytearray().join(texts), np.uint8)
    raw = np.empty(len(texts) * size, np.uint8)
    for some in blocks(len(texts), max(1, min(_RECORDS, _BYTES // max(1, size)))):
        copy_into(raw[some.start * size : some.stop * size], np.frombuffer(b"".join(texts[some]), np.uint8))
    return raw


# ── comma-separated text ──────────────────────────────────────────────────────────────────────────────────────────────


class _Column:
    """The parser of one column of CSV records."""

    def __init__(self, number: int, dtype: DType) -> None:
        self.number = number
        self.dtype = dtype
        self._parse = None if dtype is dtypes.string else number_parser(dtype)

    def read(self, texts: Sequence[bytes], absent: bytes, default: Array, shape: tuple[int, ...]) -> Array:
        """Return the column as an array."""
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

    def _error(self, what: str, row: int, expected: object, text: bytes) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"field {self.number} in record {row} {what}", expected=expected, actual=repr(text[:60])
        )


@binder("DecodeCSV", device="CPU", fresh=True)
def decode_csv(binding: Binding) -> Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]:
    attrs = binding.attrs
    delimiter, absent = attrs["field_delim"].encode(), attrs["na_value"].encode()
    quotes, chosen = attrs["use_quote_delim"], attrs["select_cols"]
    if len(delimiter) != 1:
        raise InvalidArgumentError("field_delim must be one character", expected="1", actual=repr(attrs["field_delim"]))
    # Without `select_cols`, the columns are numbered from 0.
    columns = [_Column(n, dtype) for n, dtype in zip(chosen or range(10**9), binding.output_dtypes, strict=False)]

    def decode(records: Array, defaults: tuple[Array, ...]) -> tuple[Array, ...]:
        strings = string_values(records)
        rows = [split_record(text, delimiter, quotes) for text in batches(strings.reshape(-1).tolist())]
        wanted = chosen[-1] + 1 if chosen else len(columns)
        for i, row in enumerate(batches(rows)):
            if len(row) < wanted or (len(row) > wanted and not chosen):
                raise InvalidArgumentError(
                    f"record {i} has the wrong number of fields", expected=wanted, actual=len(row)
                )
        return tuple(
            column.read([row[column.number] for row in batches(rows)], absent, default, strings.shape)
            for column, default in zip(columns, defaults, strict=True)
        )

    return decode


# ── Example messages ──────────────────────────────────────────────────────────────────────────────────────────────────


def _dense_features(keys: Sequence[bytes], types: Sequence[DType], shapes: Sequence[Dims]) -> list[DenseFeature]:
    return [DenseFeature(key, dtype, dims or ()) for key, dtype, dims in zip(keys, types, shapes, strict=True)]


def _texts(values: Sequence[Array]) -> list[bytes]:
    return [as_bytes(value) for value in values]


@binder("ParseExample", device="CPU", fresh=True)
def parse_example(binding: Binding) -> Callable[..., tuple[Array, ...]]:
    sparse_types, types, shapes = (binding.attrs[name] for name in ("sparse_types", "Tdense", "dense_shapes"))
    layouts = Layouts()

    def parse(
        serialized: Array,
        names: Array,
        sparse_keys: Sequence[Array],
        dense_keys: Sequence[Array],
        defaults: Sequence[Array],
    ) -> tuple[Array, ...]:
        texts = string_values(serialized).reshape(-1).tolist()
        batch = decoded_examples(texts, string_values(names).reshape(-1).tolist(), layouts)
        found = [sparse_feature(batch, key, t) for key, t in zip(_texts(sparse_keys), sparse_types, strict=True)]
        specs = _dense_features(_texts(dense_keys), types, shapes)
        dense = [spec.read(batch, default) for spec, default in zip(specs, defaults, strict=True)]
        return (*(f[0] for f in found), *(f[1] for f in found), *(f[2] for f in found), *dense)

    return parse


def _only(batch_of_one: Array) -> Array:
    return batch_of_one.reshape(batch_of_one.shape[1:])


@binder("ParseSingleExample", device="CPU", fresh=True, host={"serialized": as_bytes})
def parse_single_example(binding: Binding) -> Callable[..., tuple[Array, ...]]:
    attrs = binding.attrs
    sparse = [(key.encode(), t) for key, t in zip(attrs["sparse_keys"], attrs["sparse_types"], strict=True)]
    specs = _dense_features([key.encode() for key in attrs["dense_keys"]], attrs["Tdense"], attrs["dense_shapes"])
    layouts = Layouts()

    def parse(serialized: bytes, defaults: Sequence[Array]) -> tuple[Array, ...]:
        batch = decoded_examples([serialized], [], layouts)
        found = [sparse_feature(batch, key, t) for key, t in sparse]
        dense = [_only(spec.read(batch, default)) for spec, default in zip(specs, defaults, strict=True)]
        return (*(f[0][:, 1:].copy() for f in found), *(f[1] for f in found), *(f[2][1:].copy() for f in found), *dense)

    return parse


# ── SequenceExample messages ──────────────────────────────────────────────────────────────────────────────────────────


class _Lists:
    """The feature lists of a SequenceExample, each read like a batch with one example per step."""

    def __init__(self, data: bytes, lists: dict[bytes, list[FeatureSpan]], may_miss: Sequence[bytes]) -> None:
        self._data = data
        self._lists = lists
        self._may_miss = frozenset(may_miss)

    def sparse(self, key: bytes, dtype: DType) -> tuple[Array, Array, Array]:
        return sparse_feature(self._steps(key), key, dtype)

    def dense(self, spec: DenseFeature) -> Array:
        if spec.key not in self._lists and spec.key not in self._may_miss:
            name = spec.key.decode(errors="replace")
            raise InvalidArgumentError(
                f"the feature list {name!r} is required but missing", expected="a list, or allow_missing", actual="none"
            )
        return spec.read(self._steps(spec.key), ())

    def _steps(self, key: bytes) -> FeatureBatch:
        return FeatureBatch([(self._data, {key: place}) for place in self._lists.get(key, ())], (), "step")


@binder("ParseSingleSequenceExample", device="CPU", fresh=True)
def parse_single_sequence_example(binding: Binding) -> Callable[..., tuple[Array, ...]]:
    attrs = binding.attrs

    def parse(serialized: Array, may_miss: Array, *rest: Any) -> tuple[Array, ...]:
        # After the first two inputs: four sequences of keys, the defaults of the context, and the name.
        context_sparse, context_dense, list_sparse, list_dense = (_texts(keys) for keys in rest[:4])
        defaults, name, data = rest[4], as_bytes(rest[5]), as_bytes(serialized)
        context, lists = _sequence(data, name)
        batch = FeatureBatch([(data, context)], [name] if name else [])
        types = attrs["context_sparse_types"]
        sparse = [sparse_feature(batch, key, t) for key, t in zip(context_sparse, types, strict=True)]
        dense = _dense_features(context_dense, attrs["Tcontext_dense"], attrs["context_dense_shapes"])
        steps = _Lists(data, lists, string_values(may_miss).reshape(-1).tolist())
        found = [steps.sparse(key, t) for key, t in zip(list_sparse, attrs["feature_list_sparse_types"], strict=True)]
        types, shapes = attrs["feature_list_dense_types"], attrs["feature_list_dense_shapes"]
        entries = _dense_features(list_dense, types, shapes)
        return (
            *(part[0][:, 1:].copy() for part in sparse),
            *(part[1] for part in sparse),
            *(part[2][1:].copy() for part in sparse),
            *(_only(spec.read(batch, default)) for spec, default in zip(dense, defaults, strict=True)),
            *(part[0] for part in found),
            *(part[1] for part in found),
            *(part[2] for part in found),
            *(steps.dense(spec) for spec in entries),
        )

    return parse


def _sequence(data: bytes, name: bytes) -> tuple[dict[bytes, FeatureSpan], dict[bytes, list[FeatureSpan]]]:
    try:
        return find_sequence_example(data)
    except DataLossError as error:
        called = f" {name.decode(errors='replace')}" if name else ""
        raise InvalidArgumentError(
            f"could not parse example{called}: {error.message}", expected="a SequenceExample", actual=data[:60]
        ) from error

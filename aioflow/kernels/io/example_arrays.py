"""Features of decoded examples as arrays: dense ones of equal shape, and sparse ones of any length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aioflow.concurrency.stopping import batches
from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.example import FeatureKind, FeatureSpan, Layouts, values_at
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import format_dims
from aioflow.memory.values import Array

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

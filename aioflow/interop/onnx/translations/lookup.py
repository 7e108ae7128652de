"""Lookup of values in a list that is known while the graph is built, by a search in the sorted list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.memory.values import Array
from aioflow.ops.apply import constant, make

LookupKey: TypeAlias = float | bytes  # or an int


def index_in(keys: Sequence[LookupKey], x: Tensor) -> Tensor:
    """Return for each element of `x` its index among the keys as int32, or -1 if it is not there.

    Of equal keys the last one counts. NaN matches NaN.
    """
    number: dict[LookupKey, int] = {}
    unknown = -1
    for i, key in enumerate(keys):
        # NaN has no place in a sorted list and equals nothing, so it is looked for by itself.
        if isinstance(key, float) and key != key:
            unknown = i
        else:
            number[key] = i
    ordered = sorted(number)
    result = _found(ordered, [number[key] for key in ordered], x)
    return result if unknown < 0 else make("SelectV2", make("IsNan", x), unknown, result)


def _found(keys: list[LookupKey], numbers: list[int], x: Tensor) -> Tensor:
    if not keys:
        return make("Fill", make("Shape", x), -1)
    known = _array(keys, x)
    flat = make("Reshape", x, [1, -1])
    # For elements above all keys the search returns the number of keys.
    at = make("Minimum", make("LowerBound", known[None], flat, out_type=dtypes.int32), len(keys) - 1)
    hit = make("Equal", make("GatherV2", known, at, 0), flat)
    found = make("SelectV2", hit, make("GatherV2", constant(np.array(numbers, np.int32)), at, 0), -1)
    return make("Reshape", found, make("Shape", x))


def _array(values: Sequence[LookupKey], like: Tensor) -> Array:
    return np.array(values, like.dtype.np_dtype)


def mapped(keys: Sequence[LookupKey], values: Array, default: LookupKey, x: Tensor) -> Tensor:
    """Return for each element of `x` the value of its key, or the default if it is not among the keys."""
    # The last entry is the value of elements that are not among the keys.
    table = np.concatenate([values, np.array([default], values.dtype)])
    at = index_in(keys, x)
    return make("GatherV2", constant(table), make("SelectV2", make("Less", at, 0), len(values), at), 0)

"""Kernels that cross features. A row has one result per combination of its features; the last input varies fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aioflow.concurrency.stopping import batches, blocks
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.formats.farm_hash import fingerprint
from aioflow.formats.string_hash import sip_hash
from aioflow.graph import dtypes
from aioflow.kernels.blockwise import BLOCK, claim_array
from aioflow.kernels.convert import as_bool, as_bytes, as_int, as_ints
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.kernels.sparse.entries import check_entries, int64_array
from aioflow.kernels.text import as_strings, each
from aioflow.memory.values import Array

_FACTOR: Final = np.uint64(0xC6A4A7935BD1E995)
_MASK: Final = (1 << 64) - 1
_SEPARATOR: Final = b"_X_"


class _Column(NamedTuple):
    """The features of one input: row i has `counts[i]` of them, from `starts[i]` on."""

    values: Array
    starts: Array
    counts: Array


def _columns(
    indices: Sequence[Array], values: Sequence[Array], shapes: Sequence[Array], dense: Sequence[Array]
) -> tuple[list[_Column], int]:
    """Return the columns of all inputs, and the number of rows."""
    sizes = [int64_array(shape) for shape in shapes]
    for part in zip(indices, values, sizes, strict=True):
        check_entries(*part)
    heights = {int(size[0]) if len(size) == 2 else -1 for size in sizes}
    heights |= {len(one) if one.ndim == 2 else -1 for one in dense}
    if len(heights) != 1 or -1 in heights:
        raise InvalidArgumentError(
            "features are crossed row by row",
            expected="matrices of equally many rows",
            actual=[*(size.tolist() for size in sizes), *(list(one.shape) for one in dense)],
        )
    (rows,) = heights
    found = []
    for places, held in zip(indices, values, strict=True):
        owners = int64_array(places)[:, 0]
        # In ascending order the first and the last row bound the others.
        if len(owners) and (owners[0] < 0 or owners[-1] >= rows or (np.diff(owners) < 0).any()):
            raise InvalidArgumentError("the features are out of order", expected=f"rows 0..{rows - 1}, ascending")
        counts = np.bincount(owners, minlength=rows)
        found.append(_Column(held, np.cumsum(counts) - counts, counts))
    for one in dense:
        width = one.shape[1]
        found.append(_Column(one.reshape(-1), np.arange(rows) * width, np.full(rows, width)))
    return found, rows


def _choices(columns: Sequence[_Column], rows: int) -> tuple[Array, Array, int]:
    """Return the number of combinations per row, the start of each row's combinations, and their total.

    The memory for the total is claimed first. A row without features in some input has no combinations.
    """
    # In floats: the product may exceed 64 bits.
    counts = np.ones(rows, np.float64)
    for column in columns:
        counts *= column.counts
    claim_array((int(counts.sum()),), np.dtype(object), 100.0)
    whole = np.prod([column.counts for column in columns], axis=0, dtype=np.int64).reshape(rows)
    return whole, np.cumsum(whole) - whole, int(whole.sum())


def _crossed(
    columns: Sequence[_Column], rows: int, dtype: npt.DTypeLike, join: Callable[[list[Array]], Array]
) -> tuple[Array, Array, Array]:
    """Return the indices [total, 2], the values [total] and the dense shape [2] of the result.

    `join` makes elements from the positions of the chosen features in each column.
    """
    counts, starts, total = _choices(columns, rows)
    indices, made = np.empty((total, 2), np.int64), np.empty(total, dtype)
    for part in blocks(total, BLOCK // 16):
        numbers = np.arange(part.start, part.stop)
        # A row without combinations starts where its successor does, and "right" finds the successor.
        owners = np.searchsorted(starts, numbers, side="right") - 1
        indices[part, 0], left = owners, numbers - starts[owners]
        indices[part, 1] = left
        places = []
        for column in reversed(columns):
            # The number of a combination, in a mixed radix whose last digit belongs to the last column.
            left, chosen = np.divmod(left, column.counts[owners])
            places.append(column.starts[owners] + chosen)
        made[part] = join(places[::-1])
    widest = int(counts.max()) if rows else 0
    return indices, made, np.array([rows, widest], np.int64)


# ── as text ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _as_text(columns: Sequence[_Column], separator: bytes) -> Callable[[list[Array]], Array]:
    texts = [_written(column.values) for column in columns]

    def join(places: list[Array]) -> Array:
        chosen = [text[place].tolist() for text, place in zip(texts, places, strict=True)]
        return as_strings([separator.join(words) for words in batches(zip(*chosen, strict=True))])

    return join


def _written(values: Array) -> Array:
    return values if values.dtype == object else each(lambda number: b"%d" % number, values)


@binder("SparseCrossV2", device="CPU", host={"sep": as_bytes}, fresh=True)
def sparse_cross_v2(binding: Binding) -> KernelBody:
    def body(
        indices: Sequence[Array], values: Sequence[Array], shapes: Sequence[Array], dense: Sequence[Array], sep: bytes
    ) -> tuple[Array, Array, Array]:
        columns, rows = _columns(indices, values, shapes, dense)
        return _crossed(columns, rows, object, _as_text(columns, sep))

    return body


# ── as numbers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mixed(value: Array) -> Array:
    # FarmHash's ShiftMix.
    found: Array = value ^ value >> np.uint64(47)
    return found


def _joined(first: Array, second: Array) -> Array:
    """Combine two fingerprints into one as FarmHash does."""
    found = first ^ _FACTOR ^ _mixed(second * _FACTOR) * _FACTOR
    return _mixed(_mixed(found * _FACTOR) * _FACTOR)


def _as_numbers(
    columns: Sequence[_Column], key: int | None, buckets: int, hash_of: Callable[[bytes], int] = fingerprint
) -> Callable[[list[Array]], Array]:
    """Return a function that joins fingerprints from left to right.

    It begins with the key, or with the first fingerprint if the key is None.
    """
    hashes = [_hashed(column.values, hash_of) for column in columns]
    # Without buckets, the fingerprints become non-negative int64 numbers.
    divisor = np.uint64(buckets or (1 << 63) - 1)

    def join(places: list[Array]) -> Array:
        chosen = [found[place] for found, place in zip(hashes, places, strict=True)]
        begin = chosen.pop(0) if key is None else np.full(len(places[0]), key & _MASK, np.uint64)
        for one in chosen:
            begin = _joined(begin, one)
        return (begin % divisor).astype(np.int64)

    return join


def _hashed(values: Array, hash_of: Callable[[bytes], int]) -> Array:
    if values.dtype == object:
        return each(hash_of, values, np.uint64)
    return values.astype(np.int64, copy=False).view(np.uint64)


@binder("SparseCross", device="CPU", fresh=True)
def sparse_cross(binding: Binding) -> KernelBody:
    attrs, text = binding.attrs, binding.output_dtypes[1] is dtypes.string

    def body(
        indices: Sequence[Array], values: Sequence[Array], shapes: Sequence[Array], dense: Sequence[Array]
    ) -> tuple[Array, Array, Array]:
        columns, rows = _columns(indices, values, shapes, dense)
        if text:
            return _crossed(columns, rows, object, _as_text(columns, _SEPARATOR))
        return _crossed(columns, rows, np.int64, _as_numbers(columns, attrs["hash_key"], attrs["num_buckets"]))

    return body


@binder(
    "SparseCrossHashed",
    device="CPU",
    host={"num_buckets": as_int, "strong_hash": as_bool, "salt": as_ints},
    fresh=True,
)
def sparse_cross_hashed(binding: Binding) -> KernelBody:
    sparse_numbers = dtypes.int64 in binding.attrs["sparse_types"]
    numbers = sparse_numbers or dtypes.int64 in binding.attrs["dense_types"]

    def body(
        indices: Sequence[Array],
        values: Sequence[Array],
        shapes: Sequence[Array],
        dense: Sequence[Array],
        num_buckets: int,
        strong_hash: bool,
        salt: tuple[int, ...],
    ) -> tuple[Array, Array, Array]:
        if num_buckets < 0 or len(salt) != 2:
            raise InvalidArgumentError(
                "the hash is not described", expected="num_buckets >= 0, 2 salts", actual=(num_buckets, salt)
            )
        # TensorFlow's strong hash of numbers crashes its process.
        if sparse_numbers or (strong_hash and numbers):
            raise UnimplementedError(
                "sparse numbers, and numbers with a strong hash, are not hashed", expected="strings", actual="int64"
            )
        key = (salt[0] & _MASK, salt[1] & _MASK)
        columns, rows = _columns(indices, values, shapes, dense)
        hash_of = (lambda data: sip_hash(data, key)) if strong_hash else fingerprint
        return _crossed(columns, rows, np.int64, _as_numbers(columns, None, num_buckets, hash_of))

    return body

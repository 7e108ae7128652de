"""Kernels that work block by block: the results equal NumPy's on the whole array, bit for bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.math import large_sorts
from aioflow.ops.apply import make_list
from aioflow.testing.evaluate import evaluate

RANDOM = np.random.default_rng(0)


def run(op: str, *inputs: Any, **attrs: Any) -> list[Any]:
    return evaluate(make_list(op, *inputs, **attrs))


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


def floats(*shape: int) -> Any:
    return RANDOM.random(shape, np.float32)


def _scanned(x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    made = np.cumsum(np.flip(x, axis) if reverse else x, axis)
    if exclusive:
        rest = made.take(range(x.shape[axis] - 1), axis)
        made = np.concatenate([np.zeros_like(made.take([0], axis)), rest], axis)
    return np.flip(made, axis) if reverse else made


@pytest.mark.parametrize(
    "shape",
    [(600_001,), (3, 200_000), (300_000, 2), (2, 3, 100_000), (2, 300_000, 1), (3, 1, 300_000)],
    ids=str,
)
def test_cumsum_equals_numpy(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    for axis, exclusive, reverse in product(range(len(shape)), (False, True), (False, True)):
        (made,) = run("Cumsum", x, np.int32(axis), exclusive=exclusive, reverse=reverse)
        np.testing.assert_array_equal(made, _scanned(x, axis, exclusive, reverse))


def test_cumsum_of_bfloat16_accumulates_in_float32() -> None:
    x = floats(400_000).astype(ml_dtypes.bfloat16)
    (made,) = run("Cumsum", x, np.int32(0))
    np.testing.assert_array_equal(made, np.cumsum(x, dtype=np.float32).astype(x.dtype))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "x",
    [
        RANDOM.integers(0, 3, (150_000, 3)).astype(np.int32),
        np.where(RANDOM.random((150_000, 2)) > 0.5, -0.0, 0.0).astype(np.float32),
        RANDOM.integers(0, 2, (20, 20_000)).astype(bool),  # NumPy's `unique` makes a field of each column
    ],
    ids=["ints", "zeros of both signs", "bools"],
)
def test_unique_along_an_axis_equals_numpy(x: Any, axis: int) -> None:
    distinct, places = run("UniqueV2", x, ints(axis))
    _, first, inverse = np.unique(x, axis=axis, return_index=True, return_inverse=True)
    order = np.argsort(first)
    np.testing.assert_array_equal(distinct, x.take(first[order], axis))
    np.testing.assert_array_equal(places, np.argsort(order)[inverse.reshape(-1)])


def test_slices_with_nan_are_all_distinct() -> None:
    x = np.full((200_000, 2), np.nan, np.float32)
    x[0] = x[-1] = 1
    distinct, places = run("UniqueV2", x, ints(0))
    assert len(distinct) == len(x) - 1
    assert places[-1] == 0


@pytest.mark.parametrize(("shifts", "axes"), [((3,), (0,)), ((2, -5), (0, 1)), ((1, 1), (1, 1)), ((-700,), (1,))])
def test_roll_equals_numpy(shifts: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = floats(1000, 400)
    np.testing.assert_array_equal(run("Roll", x, ints(*shifts), ints(*axes))[0], np.roll(x, shifts, axes))


def test_unravel_index_equals_numpy() -> None:
    x = RANDOM.integers(0, 999, 400_000).astype(np.int32)
    np.testing.assert_array_equal(run("UnravelIndex", x, ints(10, 10, 10))[0], np.unravel_index(x, (10, 10, 10)))


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
def test_mirror_pad_equals_numpy(mode: str) -> None:
    x, pairs = floats(700, 900, 2), [(3, 500), (0, 1), (1, 0)]
    (made,) = run("MirrorPad", x, ints(*pairs), mode=mode)
    numpy_mode: Any = mode.lower()
    np.testing.assert_array_equal(made, np.pad(x, pairs, numpy_mode))


@pytest.mark.parametrize("count", [10, 500_000])
def test_unsorted_segment_sum_equals_bincount(count: int) -> None:
    numbers, ids = floats(400_000), RANDOM.integers(0, count, 400_000).astype(np.int32)
    (made,) = run("UnsortedSegmentSum", numbers, ids, np.int32(count))
    np.testing.assert_array_equal(made, np.bincount(ids, numbers, count).astype(np.float32))


def test_bincount_of_few_numbers_in_many_bins() -> None:
    numbers = RANDOM.integers(0, 500_000, 10).astype(np.int32)
    (made,) = run("Bincount", numbers, np.int32(500_000), np.zeros(0, np.int32))
    np.testing.assert_array_equal(made, np.bincount(numbers, minlength=500_000))


def test_sparse_fill_empty_rows_of_unsorted_rows() -> None:
    rows = RANDOM.integers(0, 500_000, 300_000)  # unsorted
    indices, values = np.stack([rows, np.arange(len(rows))], 1), floats(len(rows))
    made, held, empty, places = run(
        "SparseFillEmptyRows", indices, values, np.array([500_000, len(rows)]), np.float32(7)
    )
    missing = np.setdiff1d(np.arange(500_000), rows)
    np.testing.assert_array_equal(np.flatnonzero(empty), missing)
    np.testing.assert_array_equal(made[places], indices)
    np.testing.assert_array_equal(held[places], values)
    assert len(made) == len(rows) + len(missing)
    assert (np.diff(made[:, 0]) >= 0).all()
    assert (made[held == 7] == np.stack([missing, np.zeros_like(missing)], 1)).all()


def test_resize_of_a_batch_equals_resize_per_channel() -> None:
    images, size = floats(2, 300, 300, 3), ints(500, 400)
    for op in ("ResizeBilinear", "ResizeNearestNeighbor"):
        (made,) = run(op, images, size)
        for image, channel in product(range(2), range(3)):
            (one,) = run(op, images[image : image + 1, :, :, channel : channel + 1], size)
            np.testing.assert_array_equal(made[image, :, :, channel], one[0, :, :, 0])


def test_diag_kernels_equal_numpy() -> None:
    x = floats(2, 700)
    (made,) = run("MatrixDiag", x)
    np.testing.assert_array_equal(made, np.stack([np.diag(row) for row in x]))
    (made,) = run("Diag", x[0])
    np.testing.assert_array_equal(made, np.diag(x[0]))


def test_special_functions_of_many_numbers_equal_those_of_few() -> None:
    x, y = floats(600, 500) * 4 + 1, floats(500) + 2
    for op, inputs in (("Lgamma", (x,)), ("Erfinv", (x / 6,)), ("Zeta", (y, x)), ("Zeta", (x, y))):
        (made,) = run(op, *inputs)
        rows = [run(op, *(value[i] if value.ndim == 2 else value for value in inputs))[0] for i in range(0, 600, 50)]
        np.testing.assert_array_equal(made[::50], rows)


@pytest.mark.parametrize(
    ("piece", "separator"),
    [(b"a ", b""), (b" \t  bc d\n", b""), (b"aaa", b"aa"), (b"x" * 700_000 + b",", b","), (b"ab,", b",")],
    ids=["spaces", "blanks", "overlapping", "long pieces", "many pieces"],
)
@pytest.mark.parametrize("end", [b"", b"e"])
def test_string_split_v2_of_long_text_equals_bytes_split(piece: bytes, separator: bytes, end: bytes) -> None:
    text = piece * (1_000_000 // len(piece) + 2) + end
    _, pieces, shape = run("StringSplitV2", np.array([text], object), np.array(separator, object))
    expected = text.split(separator or None)
    assert pieces.tolist() == expected
    assert shape.tolist() == [1, len(expected)]


def test_string_split_of_long_text_at_several_characters() -> None:
    text = b"a,b;;c" * 200_000
    _, pieces, _ = run("StringSplit", np.array([text], object), np.array(b",;", object), skip_empty=False)
    assert pieces.tolist() == text.replace(b";", b",").split(b",")


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("UnravelIndex", [np.full(10**6, 7, np.int32), ints(2, 3)], {}),
        ("InvertPermutation", [np.full(10**6, 7, np.int32)], {}),
        ("InvertPermutation", [np.full(10**6, 10**6, np.int32)], {}),
        ("DynamicPartition", [floats(10**6), np.full(10**6, 7, np.int32)], {"num_partitions": 2}),
        ("ReverseSequence", [floats(10**6, 1), np.full(10**6, 7, np.int32)], {"seq_dim": 1, "batch_dim": 0}),
        ("SparseFillEmptyRowsGrad", [np.full(10**6, 7), floats(3)], {}),
    ],
    ids=["unravel", "repeated", "out of range", "partition", "sequence", "reverse map"],
)
def test_error_about_many_numbers_is_short(op: str, inputs: Any, attrs: Any) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        run(op, *inputs, **attrs)
    assert len(str(raised.value)) < 1000


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of a single sort to 2**19 numbers."""
    monkeypatch.setattr(large_sorts, "_MANY", 1 << 19)


def _some_entries(count: int, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return unsorted entries, with some repeated indices."""
    indices = np.stack([RANDOM.integers(0, size, count) for size in shape], 1)
    return indices, floats(count), np.array(shape)


def _summed(indices: Any, values: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    flat, places = np.unique(np.ravel_multi_index(tuple(indices.T), shape), return_inverse=True)
    sums = np.zeros(len(flat), values.dtype)
    np.add.at(sums, places, values)
    return np.stack(np.unravel_index(flat, shape), 1), sums


@pytest.mark.parametrize("shape", [(1 << 20, 9), (3, 500, 700)], ids=str)
@pytest.mark.usefixtures("few_at_once")
def test_sparse_entries_are_sorted_and_summed(shape: tuple[int, ...]) -> None:
    indices, values, sizes = _some_entries(600_000, shape)
    order = np.lexsort(indices.T[::-1])
    made, held = run("SparseReorder", indices, values, sizes)
    np.testing.assert_array_equal(made, indices[order])
    np.testing.assert_array_equal(held, values[order])

    half = len(values) // 2
    first, second = (indices[:half], values[:half]), (indices[half:], values[half:])
    distinct, sums = _summed(indices, values, shape)
    made, held, _ = run("SparseAdd", *first, sizes, *second, sizes, np.float32(0))
    np.testing.assert_array_equal(made, distinct)
    np.testing.assert_array_equal(held, sums)

    last = len(shape) - 1
    distinct, sums = _summed(indices[:, :last], values, shape[:last])
    made, held, _ = run("SparseReduceSumSparse", indices, values, sizes, ints(last))
    np.testing.assert_array_equal(made, distinct)
    np.testing.assert_array_equal(held, sums)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.usefixtures("few_at_once")
def test_sparse_tensors_are_concatenated_and_split(axis: int) -> None:
    indices, values, sizes = _some_entries(300_000, (1000, 2000))
    made, held, shape = run("SparseConcat", (indices, indices), (values, values), (sizes, sizes), concat_dim=axis)
    whole, both = np.concatenate([indices, indices]), np.concatenate([values, values])
    whole[len(indices) :, axis] += sizes[axis]
    order = np.lexsort(whole.T[::-1])
    np.testing.assert_array_equal(made, whole[order])
    np.testing.assert_array_equal(held, both[order])
    assert shape[axis] == 2 * sizes[axis]

    parts = run("SparseSplit", np.int64(axis), made, held, shape, num_split=2)
    for number in range(2):
        inside = made[:, axis] // sizes[axis] == number
        expected = made[inside]
        expected[:, axis] -= number * sizes[axis]
        np.testing.assert_array_equal(parts[number], expected)
        np.testing.assert_array_equal(parts[2 + number], held[inside])


@pytest.mark.parametrize("dtype", ["int32", "complex64", "bool", "uint8"])
@pytest.mark.parametrize("little_endian", [True, False])
def test_decode_raw_equals_numpy_view(dtype: str, little_endian: bool) -> None:
    raw = RANDOM.integers(0, 2, (200_000, 16)).astype(np.uint8)
    texts = np.array([row.tobytes() for row in raw], object)
    (made,) = run("DecodeRaw", texts, out_type=dtype, little_endian=little_endian)
    flat = np.dtype(dtype if dtype != "bool" else "uint8").newbyteorder("<" if little_endian else ">")
    np.testing.assert_array_equal(made, raw.view(flat).astype(dtype))


def test_gather_and_scatter_by_index_vectors() -> None:
    x, places = floats(700, 900), np.stack([RANDOM.integers(0, 700, 400_000), RANDOM.integers(0, 900, 400_000)], 1)
    np.testing.assert_array_equal(run("GatherNd", x, places)[0], x[tuple(places.T)])
    (made,) = run("TensorScatterAdd", x, places, updates := floats(400_000))
    expected = x.copy()
    np.add.at(expected, tuple(places.T), updates)
    np.testing.assert_array_equal(made, expected)
    places[300_000] = (700, 0)
    with pytest.raises(InvalidArgumentError, match="300000"):
        run("GatherNd", x, places)


def test_segment_sum_equals_reduceat() -> None:
    ids, numbers = np.sort(RANDOM.integers(0, 200_000, 600_000)).astype(np.int32), floats(600_000)
    (made,) = run("SegmentSum", numbers, ids)
    distinct, starts = np.unique(ids, return_index=True)
    np.testing.assert_array_equal(made[distinct], np.add.reduceat(numbers, starts))

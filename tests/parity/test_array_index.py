"""Parity of indexing, conditions, order and diagonals with TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from tests.parity.test_array import Case, check_open_shapes, ints, raw, words

RNG = np.random.default_rng(20261)


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def i(*shape: int, high: int = 10) -> Any:
    return RNG.integers(0, high, shape).astype(np.int32)


FLAGS = np.array([[True, False, True], [False, True, True]])

GATHERS: list[Case] = [
    ("gather", lambda m, x, n: m.gather(x, n), (f(4, 3), ints(3, 0, 3))),
    ("gather_scalar", lambda m, x, n: m.gather(x, n), (f(4, 3), np.array(2, np.int32))),
    ("gather_matrix", lambda m, x, n: m.gather(x, n), (f(4, 3), i(2, 2, high=4).astype(np.int64))),
    ("gather_constant", lambda m, x: m.gather(x, [[1], [0]]), (f(4, 3),)),
    ("gather_empty", lambda m, x, n: m.gather(x, n), (f(4, 3), np.zeros(0, np.int32))),
    ("gather_vector", lambda m, x, n: m.gather(x, n), (f(5), i(2, 3, high=5))),
    ("gather_axis", lambda m, x, n: m.gather(x, n, axis=1), (f(2, 4, 3), ints(3, 0, 3))),
    ("gather_last", lambda m, x, n: m.gather(x, n, axis=-1), (f(2, 4), i(2, 2, high=4))),
    ("gather_axis_scalar", lambda m, x, n: m.gather(x, n, axis=1), (f(2, 4), np.array(1, np.int32))),
    ("gather_batch", lambda m, x, n: m.gather(x, n, batch_dims=1), (f(2, 4, 3), i(2, 5, high=4))),
    ("gather_batch_axis", lambda m, x, n: m.gather(x, n, axis=2, batch_dims=1), (f(2, 3, 4), i(2, 5, high=4))),
    ("gather_batch_2", lambda m, x, n: m.gather(x, n, axis=2, batch_dims=2), (f(2, 3, 4), i(2, 3, high=4))),
    ("gather_batch_negative", lambda m, x, n: m.gather(x, n, axis=1, batch_dims=-1), (f(2, 4), i(2, 5, high=4))),
    ("batch_gather", lambda m, x, n: m.batch_gather(x, n), (f(2, 4), i(2, 5, high=4))),
    ("gather_string", lambda m, x, n: m.gather(x, n), (words(b"a", b"b"), ints(1, 1))),
    ("gather_string_scalar", lambda m, x, n: m.gather(x, n), (words(b"a", b"b"), np.array(1, np.int32))),
    ("gather_old", lambda m, x, n: raw(m, "Gather", params=x, indices=n), (f(4, 3), ints(3, 0, 3))),
    ("gather_nd", lambda m, x, n: m.gather_nd(x, n), (f(3, 4), ints([0, 1], [2, 3]))),
    ("gather_nd_rows", lambda m, x, n: m.gather_nd(x, n), (f(3, 4), ints([2], [0], [2]))),
    ("gather_nd_rows_deep", lambda m, x, n: m.gather_nd(x, n), (f(3, 4), ints([[2], [0]]))),
    ("gather_nd_whole", lambda m, x, n: m.gather_nd(x, n), (f(3, 4), np.zeros((2, 0), np.int32))),
    ("gather_nd_one", lambda m, x, n: m.gather_nd(x, n), (f(3, 4), ints(1, 2))),
    ("gather_nd_batch", lambda m, x, n: m.gather_nd(x, n, batch_dims=1), (f(2, 3, 4), ints([1], [2]))),
    ("gather_nd_empty", lambda m, x, n: m.gather_nd(x, n), (f(3, 4), np.zeros((0, 2), np.int32))),
    ("gather_nd_string", lambda m, x, n: m.gather_nd(x, n), (words(b"a", b"b"), ints([1]))),
    (
        "gather_nd_ignore",
        lambda m, x, n: m.gather_nd(x, n, bad_indices_policy="IGNORE"),
        (i(3, 4), ints([0, 1], [5, 3], [-1, 0])),
    ),
]

SCATTERS: list[Case] = [
    ("scatter_nd", lambda m, n, u: m.scatter_nd(n, u, [5]), (ints([1], [3], [1]), f(3))),
    ("scatter_nd_rows", lambda m, n, u: m.scatter_nd(n, u, [4, 3]), (ints([1], [3], [1]), f(3, 3))),
    ("scatter_nd_points", lambda m, n, u: m.scatter_nd(n, u, [4, 3]), (ints([1, 2], [3, 0]), f(2))),
    ("scatter_nd_tensor", lambda m, n, u, s: m.scatter_nd(n, u, s), (ints([1], [3]), f(2, 2), ints(4, 2))),
    ("scatter_nd_empty", lambda m, n, u: m.scatter_nd(n, u, [2, 2]), (np.zeros((0, 1), np.int32), f(0, 2))),
    ("update", lambda m, x, n, u: m.tensor_scatter_update(x, n, u), (f(4, 2), ints([3], [0]), f(2, 2))),
    ("nd_update", lambda m, x, n, u: m.tensor_scatter_nd_update(x, n, u), (f(4, 2), ints([3, 1], [0, 0]), f(2))),
    ("add", lambda m, x, n, u: m.tensor_scatter_add(x, n, u), (f(4, 2), ints([3], [3]), f(2, 2))),
    ("nd_add", lambda m, x, n, u: m.tensor_scatter_nd_add(x, n, u), (f(4), ints([3], [3]), f(2))),
    ("sub", lambda m, x, n, u: m.tensor_scatter_sub(x, n, u), (f(4, 2), ints([3], [3]), f(2, 2))),
    ("nd_sub", lambda m, x, n, u: m.tensor_scatter_nd_sub(x, n, u), (f(4), ints([3], [0]), f(2))),
    ("min", lambda m, x, n, u: m.tensor_scatter_nd_min(x, n, u), (f(4), ints([3], [0]), f(2))),
    ("max", lambda m, x, n, u: m.tensor_scatter_nd_max(x, n, u), (f(4, 2), ints([3], [0]), f(2, 2))),
]

CONDITIONS: list[Case] = [
    ("where_indices", lambda m, x: m.where(x), (FLAGS,)),
    ("where_numbers", lambda m, x: m.where(x), (i(3, 2, high=2),)),
    ("where_none", lambda m, x: m.where(x), (np.zeros((2, 0), np.bool_),)),
    ("where_float", lambda m, x: m.where(x), (np.array([0.0, 1.5, np.nan], np.float32),)),
    ("select", lambda m, c, x, y: m.where(c, x, y), (FLAGS, f(2, 3), f(2, 3))),
    ("select_rows", lambda m, c, x, y: m.where(c, x, y), (np.array([True, False]), f(2, 3), f(2, 3))),
    ("select_scalar", lambda m, c, x, y: m.where(c, x, y), (np.array(False), f(2, 3), f(2, 3))),
    ("select_vector", lambda m, c, x, y: m.where(c, x, y), (np.array([True, False]), f(2), f(2))),
    ("select_v2", lambda m, c, x, y: m.where_v2(c, x, y), (FLAGS, f(3), f(2, 1))),
    ("select_v2_scalar", lambda m, c, x, y: m.where_v2(c, x, y), (np.array(True), f(), f(2, 3))),
    ("select_v2_wide", lambda m, c, x, y: m.where_v2(c, x, y), (np.array([[True], [False]]), f(3), f(4, 1, 1))),
    ("select_v2_indices", lambda m, c: m.where_v2(c), (FLAGS,)),
    ("select_string", lambda m, c, x, y: m.where_v2(c, x, y), (FLAGS[0], words(b"a", b"b", b"c"), words(b"z"))),
    ("boolean_mask", lambda m, x, c: m.boolean_mask(x, c), (f(2, 3), FLAGS)),
    ("boolean_mask_rows", lambda m, x, c: m.boolean_mask(x, c), (f(2, 3), np.array([True, False]))),
    ("boolean_mask_axis", lambda m, x, c: m.boolean_mask(x, c, axis=1), (f(2, 3), np.array([True, False, True]))),
    ("boolean_mask_deep", lambda m, x, c: m.boolean_mask(x, c, axis=1), (f(2, 2, 3, 2), FLAGS)),
]

ORDERS: list[Case] = [
    ("reverse", lambda m, x: m.reverse(x, [0, -1]), (f(2, 3, 4),)),
    ("reverse_tensor", lambda m, x, a: m.reverse(x, a), (f(2, 3), ints(1))),
    ("reverse_none", lambda m, x: m.reverse_v2(x, np.zeros(0, np.int32)), (f(2, 3),)),
    ("reverse_string", lambda m, x: m.reverse(x, [0]), (words(b"a", b"b"),)),
    ("reverse_old", lambda m, x: raw(m, "Reverse", tensor=x, dims=np.array([True, False])), (f(2, 3),)),
    ("reverse_sequence", lambda m, x, n: m.reverse_sequence(x, n, seq_axis=1), (f(3, 4), ints(0, 2, 4))),
    (
        "reverse_sequence_batch",
        lambda m, x, n: m.reverse_sequence(x, n, seq_axis=0, batch_axis=2),
        (f(4, 2, 3), np.array([1, 2, 4])),
    ),
    ("roll", lambda m, x: m.roll(x, 2, 0), (f(5, 2),)),
    ("roll_axes", lambda m, x: m.roll(x, [1, -7], [0, 1]), (f(5, 2),)),
    ("roll_tensor", lambda m, x, s, a: m.roll(x, s, a), (f(5, 2), np.array(-1, np.int32), np.array(-1, np.int64))),
    ("roll_twice", lambda m, x: m.roll(x, [1, 1], [0, 0]), (f(5, 2),)),
    ("invert_permutation", lambda m, x: m.invert_permutation(x), (ints(2, 0, 1),)),
    ("invert_permutation_empty", lambda m, x: m.invert_permutation(x), (np.zeros(0, np.int64),)),
    ("unique", lambda m, x: list(m.unique(x)), (ints(3, 1, 3, 2, 1),)),
    ("unique_float", lambda m, x: list(m.unique(x, m.as_dtype("int64"))), (np.array([2.0, np.nan, 2.0, np.nan]),)),
    ("unique_empty", lambda m, x: list(m.unique(x)), (np.zeros(0, np.float32),)),
    ("unique_string", lambda m, x: list(m.unique(x)), (words(b"b", b"a", b"b"),)),
    ("unique_with_counts", lambda m, x: list(m.unique_with_counts(x)), (ints(3, 1, 3, 2, 1),)),
    ("unique_v2", lambda m, x: raw(m, "UniqueV2", x=x, axis=ints(0)), (ints([3, 1], [1, 2], [3, 1]),)),
    ("unique_v2_columns", lambda m, x: raw(m, "UniqueV2", x=x, axis=ints(1)), (ints([3, 1, 3], [1, 2, 1]),)),
    ("unique_v2_flat", lambda m, x: raw(m, "UniqueV2", x=x, axis=np.zeros(0, np.int64)), (ints(3, 1, 3),)),
    ("setdiff1d", lambda m, x, y: list(m.setdiff1d(x, y)), (ints(1, 2, 2, 3, 4), ints(1, 3, 9))),
    ("setdiff1d_string", lambda m, x, y: list(m.setdiff1d(x, y)), (words(b"b", b"a", b"b"), words(b"a"))),
    ("partition", lambda m, x, p: m.dynamic_partition(x, p, 3), (f(5, 2), ints(0, 2, 0, 2, 2))),
    ("partition_deep", lambda m, x, p: m.dynamic_partition(x, p, 2), (f(2, 3), ints([0, 1, 0], [1, 1, 0]))),
    ("partition_one_used", lambda m, x, p: m.dynamic_partition(x, p, 2)[1], (f(3), ints(0, 1, 1))),
    (
        "stitch",
        lambda m, a, b, x, y: m.dynamic_stitch([a, b], [x, y]),
        (ints(0, 2), ints([3, 1]), f(2, 3), f(1, 2, 3)),
    ),
    ("stitch_constant", lambda m, x, y: m.dynamic_stitch([[0, 2], 1], [x, y]), (f(2, 3), f(3))),
    (
        "stitch_parallel",
        lambda m, a, b, x, y: raw(m, "ParallelDynamicStitch", indices=[a, b], data=[x, y]),
        (ints(0, 2), ints(3, 1), f(2, 3), f(2, 3)),
    ),
    ("searchsorted", lambda m, s, v: m.searchsorted(s, v), (ints(1, 3, 3, 7), ints(0, 3, 9))),
    ("searchsorted_right", lambda m, s, v: m.searchsorted(s, v, "right"), (ints([1, 3, 3], [0, 2, 4]), ints([3], [4]))),
    (
        "searchsorted_64",
        lambda m, s, v: m.searchsorted(s, v, out_type=m.as_dtype("int64")),
        (np.sort(f(2, 3, 4)), f(2, 3, 2)),
    ),
    ("lower_bound", lambda m, s, v: raw(m, "LowerBound", sorted_inputs=s, values=v), (ints([1, 3, 5]), ints([3, 4]))),
    ("unravel_index", lambda m, n: m.unravel_index(n, [3, 4]), (ints(0, 5, 11),)),
    ("unravel_index_scalar", lambda m, n: m.unravel_index(n, [3, 4]), (np.array(7, np.int32),)),
]

DIAGONALS: list[Case] = [
    ("diag", lambda m, x: m.diag(x), (f(3),)),
    ("diag_deep", lambda m, x: m.diag(x), (f(2, 3),)),
    ("diag_part", lambda m, x: m.diag_part(x), (f(3, 3),)),
    ("diag_part_deep", lambda m, x: m.diag_part(x), (f(2, 3, 2, 3),)),
    ("matrix_diag", lambda m, x: m.matrix_diag(x), (f(2, 3),)),
    ("matrix_diag_part", lambda m, x: m.matrix_diag_part(x), (f(2, 3, 3),)),
    ("matrix_diag_part_wide", lambda m, x: m.matrix_diag_part(x), (f(2, 3, 4),)),
    ("matrix_set_diag", lambda m, x, d: m.matrix_set_diag(x, d), (f(2, 3, 4), f(2, 3))),
    ("matrix_diag_old", lambda m, x: raw(m, "MatrixDiag", diagonal=x), (f(2, 3),)),
    ("matrix_diag_part_old", lambda m, x: raw(m, "MatrixDiagPart", input=x), (f(2, 3, 4),)),
    ("matrix_set_diag_old", lambda m, x, d: raw(m, "MatrixSetDiag", input=x, diagonal=d), (f(3, 2), f(2))),
    ("band", lambda m, x: m.matrix_band_part(x, 1, 0), (f(2, 4, 3),)),
    ("band_all_lower", lambda m, x: m.matrix_band_part(x, -1, 1), (f(3, 4),)),
    ("band_tensor", lambda m, x, a, b: m.matrix_band_part(x, a, b), (f(3, 4), np.array(0), np.array(-1))),
]


# Cases whose gradients are not compared, and the reason.
NO_GRADIENT = {
    "gather_nd_whole": "TensorFlow cannot scatter whole tensors",
    "gather_nd_one": "TensorFlow cannot scatter a scalar",
    "unique_float": "TensorFlow raises instead of passing nothing back",
    "unique_empty": "TensorFlow raises instead of passing nothing back",
}


@pytest.mark.parametrize(
    ("name", "build", "arrays"),
    [pytest.param(n, b, a, id=n) for n, b, a in GATHERS + SCATTERS + CONDITIONS + ORDERS + DIAGONALS],
)
def test_array_index(parity: Any, name: str, build: Any, arrays: Any) -> None:
    parity(build, *arrays, grad=name not in NO_GRADIENT)


@pytest.mark.parametrize(
    ("name", "build", "arrays"),
    [pytest.param(n, b, a, id=n) for n, b, a in GATHERS + SCATTERS + CONDITIONS + ORDERS + DIAGONALS if a],
)
def test_open_shapes(parity: Any, tf: Any, name: str, build: Any, arrays: Any) -> None:
    check_open_shapes(parity, tf, build, arrays, grad=name not in NO_GRADIENT)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float64", "bfloat16", "complex64"])
def test_dtypes(parity: Any, dtype: str) -> None:
    array = np.arange(4).astype(aioflow.as_dtype(dtype).np_dtype)
    loose = {"grad": False, "rtol": 1e-2}
    parity(lambda m, x: m.scatter_nd([[1], [3], [0], [2]], x, [5]) if dtype != "bool" else x, array, **loose)
    if dtype != "float16":  # TensorFlow has no kernel of Where for float16
        parity(lambda m, x: m.where(x), array, **loose)
    parity(lambda m, x: m.tensor_scatter_update(x, [[1]], x[:1]), array, **loose)
    parity(lambda m, x: m.gather_nd(x, [[1], [0]]), array, **loose)
    parity(lambda m, x: m.dynamic_stitch([[3, 1, 0, 2]], [x]), array, **loose)
    parity(lambda m, x: m.matrix_diag(x), array, **loose)


def test_gather_has_a_sparse_gradient(tf: Any) -> None:
    parts = []
    for m in (tf, aioflow):
        with m.Graph().as_default():
            x = m.placeholder("float32", [4, 3])
            y = m.gather(x, [[3, 0], [3, 3]])
            grad = m.gradients([y], [x])[0]
            assert type(grad).__name__.startswith("IndexedSlices")
            parts.append((grad.values.get_shape().as_list(), grad.indices.get_shape().as_list()))
    assert parts[0] == parts[1] == ([4, 3], [4])

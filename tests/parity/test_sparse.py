"""Sparse tensors against TensorFlow: values, shapes, dtypes and gradients of each op, and errors."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.testing.evaluate import evaluate

RNG = np.random.default_rng(3)


def entries(shape: tuple[int, ...], count: int, dtype: str = "float32", seed: int = 0, order: bool = True) -> Any:
    """Return the indices, values and shape of a random sparse tensor."""
    rng = np.random.default_rng(seed)
    flat = rng.choice(int(np.prod(shape)), count, replace=False)
    flat = np.sort(flat) if order else flat
    indices = np.stack(np.unravel_index(flat, shape), axis=1).astype(np.int64)
    values = rng.integers(-9, 9, count) if "int" in dtype else rng.standard_normal(count)
    return indices, values.astype(dtype), np.array(shape, np.int64)


def parts(sparse: Any) -> list[Any]:
    return [sparse.indices, sparse.values, sparse.dense_shape]


A = entries((4, 5), 7)
B = entries((4, 5), 6, seed=1)
LOOSE = entries((4, 5), 7, order=False)
DEEP = entries((2, 3, 4), 9, seed=2)
NONE = entries((4, 5), 0)
SPARSE = [A, NONE, DEEP, entries((1, 1), 1), entries((3, 4), 12)]


def one(build: Any, **options: Any) -> Any:
    """Return a case over one sparse tensor whose components are fed."""
    return lambda parity, given: parity(lambda m, i, v, s: build(m, m.SparseTensor(i, v, s)), *given, **options)


UNARY: dict[str, Any] = {
    "reorder": one(lambda m, x: parts(m.sparse_reorder(x))),
    "to_dense": one(lambda m, x: m.sparse_tensor_to_dense(x)),
    "to_dense_default": one(lambda m, x: m.sparse.to_dense(x, 7.0)),
    "reset_shape": one(lambda m, x: parts(m.sparse_reset_shape(x, m.shape(m.sparse.to_dense(x)) + 2))),
    "retain": one(lambda m, x: parts(m.sparse_retain(x, x.values > 0.0))),
    "transpose": one(lambda m, x: parts(m.sparse_transpose(x)), static=False),
    "reduce_sum": one(lambda m, x: m.sparse_reduce_sum(x)),
    "reduce_sum_0": one(lambda m, x: m.sparse_reduce_sum(x, 0)),
    "reduce_sum_keep": one(lambda m, x: m.sparse_reduce_sum(x, [-1], keepdims=True)),
    "reduce_sum_none": one(lambda m, x: m.sparse_reduce_sum(x, np.zeros(0, np.int32)), grad=False),
    "reduce_sum_all": one(lambda m, x: m.sparse_reduce_sum(x, [0, 1])),
    "reduce_sum_sparse": one(lambda m, x: parts(m.sparse_reduce_sum_sparse(x, 1)), grad=False),
    "reduce_sum_sparse_keep": one(lambda m, x: parts(m.sparse_reduce_sum_sparse(x, 0, True)), grad=False),
    "reduce_max": one(lambda m, x: m.sparse_reduce_max(x, 1), grad=False),
    "reduce_max_sparse": one(lambda m, x: parts(m.sparse_reduce_max_sparse(x, 1)), grad=False),
    "softmax": one(lambda m, x: parts(m.sparse_softmax(x))),
    "reshape": one(lambda m, x: parts(m.sparse_reshape(x, [-1])), static=False),
    "expand_dims": one(lambda m, x: parts(m.sparse.expand_dims(x, 1)), static=False),
    "expand_dims_last": one(lambda m, x: parts(m.sparse.expand_dims(x)), static=False),
    "fill_empty_rows": one(lambda m, x: [*parts((f := m.sparse_fill_empty_rows(x, 3.0))[0]), f[1]]),
    "numbers_of_the_shape": one(lambda m, x: [m.shape(x), m.size(x, out_type=m.int64), m.rank(x)], grad=False),
    "cast": one(lambda m, x: [*parts(m.cast(x, "float64")), m.to_int32(x).values], grad=False),
    "passed_on": one(lambda m, x: [*parts(m.identity(x)), *parts(m.tuple([x])[0])]),
    "stop_gradient": one(lambda m, x: parts(m.stop_gradient(x)), grad=False),
    "divide": one(lambda m, x: parts(m.divide(x, 2.0)), grad=False),
    "dense_mul": one(lambda m, x: parts(m.ones_like(m.sparse.to_dense(x)) * 3.0 * x)),
    "mul_scalar": one(lambda m, x: parts(x * 2.0), grad=False),  # TensorFlow's gradient does not accept scalars
    "div_scalar": one(lambda m, x: parts(x / 2.0), grad=False),
    "from_dense": one(lambda m, x: parts(m.sparse.from_dense(m.sparse.to_dense(x)))),
}  # fmt: skip


ELEMENTWISE = ["abs", "negative", "sign", "square", "sqrt", "sin", "tan", "tanh",
               "asin", "atan", "asinh", "atanh", "erf"]  # fmt: skip


def test_elementwise_functions_map_the_values(parity: Any) -> None:
    given = (A[0], np.abs(A[1]) / 10, A[2])  # within the domains of all functions
    one(lambda m, x: [part for f in ELEMENTWISE for part in parts(getattr(m.math, f)(x, name=f))])(parity, given)


def test_count_and_mask(parity: Any) -> None:
    given = (A[0], np.arange(7, dtype=np.int32), A[2])
    one(lambda m, x: [m.bincount(x), m.bincount(x, m.cast(x, "float32"), minlength=9)], grad=False)(parity, given)

    def masked(m: Any, values: Any, kept: Any) -> list[Any]:
        made = m.sparse_mask(m.IndexedSlices(values, m.constant([5, 2, 5, 0]), m.constant([7, 3])), kept)
        return [made.values, made.indices, made.dense_shape]

    for away in ([5], [0, 9, 2], [], [5, 2, 0]):
        parity(masked, RNG.standard_normal((4, 3)).astype(np.float32), np.array(away, np.int32), grad=len(away) < 3)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("number", range(len(SPARSE)))
def test_unary_ops(parity: Any, name: str, number: int) -> None:
    UNARY[name](parity, SPARSE[number])


def test_unordered_entries(parity: Any) -> None:
    for name in ("reorder", "reduce_sum_0", "retain", "fill_empty_rows", "reshape", "transpose"):
        if name == "fill_empty_rows":  # entries grouped by row, in the given order within each row
            by_row = LOOSE[0][np.argsort(LOOSE[0][:, 0], kind="stable")]
            UNARY[name](parity, (by_row, LOOSE[1], LOOSE[2]))
        else:
            UNARY[name](parity, LOOSE)


def two(build: Any, **options: Any) -> Any:
    return lambda parity, a, b: parity(
        lambda m, i, v, s, j, w, t: build(m, m.SparseTensor(i, v, s), m.SparseTensor(j, w, t)), *a, *b, **options
    )


BINARY: dict[str, Any] = {
    "add": two(lambda m, x, y: parts(m.sparse_add(x, y))),
    "add_threshold": two(lambda m, x, y: parts(m.sparse_add(x, y, 0.5))),
    "maximum": two(lambda m, x, y: parts(m.sparse_maximum(x, y)), grad=False),
    "minimum": two(lambda m, x, y: parts(m.sparse_minimum(x, y)), grad=False),
    "concat_0": two(lambda m, x, y: parts(m.sparse_concat(0, [x, y])), grad=False),
    "concat_1": two(lambda m, x, y: parts(m.sparse_concat(-1, [x, y, x])), grad=False),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("pair", [(A, B), (A, NONE), (NONE, B), (A, A), (NONE, NONE)])
def test_binary_ops(parity: Any, name: str, pair: Any) -> None:
    BINARY[name](parity, *pair)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "complex64", "float16"])
def test_dtypes(parity: Any, dtype: str) -> None:
    real = "float32" if dtype == "complex64" else dtype
    a, b = ((i, v.astype(real).astype(dtype), s) for i, v, s in (entries((4, 5), 7, real), entries((4, 5), 6, real, 1)))
    options = {"rtol": 2e-3, "atol": 2e-3} if dtype == "float16" else {}
    parity(lambda m, i, v, s: m.sparse_tensor_to_dense(m.SparseTensor(i, v, s)), *a)
    parity(lambda m, i, v, s: m.sparse_reduce_sum(m.SparseTensor(i, v, s), 0), *a, **options)
    if dtype != "float16":
        two(lambda m, x, y: parts(m.sparse_add(x, y)), **options)(parity, a, b)
    if dtype not in ("float16", "int64"):
        dense = np.arange(15).reshape(5, 3).astype(dtype)
        parity(lambda m, i, v, s, d: m.sparse_tensor_dense_matmul(m.SparseTensor(i, v, s), d), *a, dense, **options)


@pytest.mark.parametrize("size", [1, 3, 0])
@pytest.mark.parametrize(("adjoint_a", "adjoint_b"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_matmul(parity: Any, adjoint_a: bool, adjoint_b: bool, size: int, dtype: str) -> None:
    dense = RNG.standard_normal((4 if adjoint_a else 5, size)).astype("float32")
    dense = dense.T if adjoint_b else dense
    values = A[1].astype(dtype) * (1 + 2j if dtype == "complex64" else 1)
    dense = dense.astype(dtype) * (2 - 1j if dtype == "complex64" else 1)

    def build(m: Any, i: Any, v: Any, s: Any, d: Any) -> Any:
        y = m.sparse_tensor_dense_matmul(m.SparseTensor(i, v, s), d, adjoint_a, adjoint_b)
        if dtype == "float32":
            return y
        return [y, *m.gradients([y], [v, d], grad_ys=[y * (1 - 1j)])]

    parity(build, A[0], values.astype(dtype), A[2], dense.astype(dtype), grad=size > 0)
    parity(lambda m, i, v, s, d: m.sparse_tensor_dense_matmul(m.SparseTensor(i, v, A[2]), d, adjoint_a, adjoint_b),
           A[0], values.astype(dtype), A[2], dense.astype(dtype), grad=False)  # fmt: skip


@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (4, 1), (5,), (1,), ()])
def test_ops_with_a_broadcast_dense_tensor(parity: Any, shape: tuple[int, ...]) -> None:
    dense = RNG.standard_normal(shape).astype(np.float32)
    for op in ("SparseDenseCwiseMul", "SparseDenseCwiseDiv", "SparseDenseCwiseAdd"):
        parity(
            lambda m, i, v, s, d, op=op: getattr(m.raw_ops, op)(sp_indices=i, sp_values=v, sp_shape=s, dense=d),
            *A, dense, grad=op != "SparseDenseCwiseAdd" and shape != (),
        )  # fmt: skip


def test_add_a_dense_tensor(parity: Any) -> None:
    dense = RNG.standard_normal((4, 5)).astype(np.float32)
    parity(lambda m, i, v, s, d: m.sparse_add(m.SparseTensor(i, v, s), d), *A, dense)
    parity(lambda m, i, v, s, d: m.sparse_add(d, m.SparseTensor(i, v, s)), *A, dense)


@pytest.mark.parametrize(("start", "size"), [((0, 0), (4, 5)), ((1, 2), (2, 2)), ((3, 3), (9, 9)), ((4, 5), (1, 1)),
                                             ((0, 0), (0, 0)), ((9, 0), (1, 5))])  # fmt: skip
def test_slice(parity: Any, start: Any, size: Any) -> None:
    parity(lambda m, i, v, s: parts(m.sparse_slice(m.SparseTensor(i, v, s), start, size)), *A)


@pytest.mark.parametrize(("count", "axis"), [(1, 0), (2, 0), (3, 0), (2, 1), (5, 1), (3, -1), (7, 0)])
def test_split(parity: Any, tf: Any, count: int, axis: int) -> None:
    def build(m: Any, i: Any, v: Any, s: Any) -> Any:
        made = m.sparse_split(sp_input=m.SparseTensor(i, v, s), num_split=count, axis=axis)
        return [part for sparse in made for part in parts(sparse)]

    if count == 7:
        refused(tf, lambda m: build(m, *A))
    else:
        parity(build, *A, grad=False)


def test_concat_of_other_sizes(parity: Any, tf: Any) -> None:
    narrow = entries((3, 5), 4)
    two(lambda m, x, y: parts(m.sparse_concat(0, [x, y])), grad=False)(parity, A, narrow)
    two(lambda m, x, y: parts(m.sparse_concat(1, [x, y], expand_nonconcat_dim=True)), grad=False)(parity, A, narrow)
    refused(tf, lambda m: parts(m.sparse_concat(1, [m.SparseTensor(*A), m.SparseTensor(*narrow)])))


@pytest.mark.parametrize("shape", [[20], [2, 10], [5, -1], [2, 2, 5], [-1, 1], [4, 5, 1]])
def test_reshape(parity: Any, shape: list[int]) -> None:
    parity(lambda m, i, v, s: parts(m.sparse_reshape(m.SparseTensor(i, v, s), shape)), *A)


@pytest.mark.parametrize("shape", [[3, 7], [-1, -1], [-1, 3], [0, -1]])
def test_reshape_rejects_wrong_shapes(tf: Any, shape: list[int]) -> None:
    refused(tf, lambda m: parts(m.sparse_reshape(m.SparseTensor(*A), shape)))


@pytest.mark.parametrize("perm", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_transpose(parity: Any, perm: list[int]) -> None:
    parity(lambda m, i, v, s: parts(m.sparse_transpose(m.SparseTensor(i, v, s), perm)), *DEEP)


DENSE: list[Any] = [
    ([[0, 1], [2, 2]], [3, 4], [1.0, 2.0], 0.0), ([1, 3], [4], [1.0, 2.0], -1.0), (2, [4], 1.0, 0.0),
    ([[0, 1], [2, 2]], [3, 4], 5.0, 0.5), (np.zeros((0, 2), np.int32), [2, 2], np.zeros(0, np.float32), 1.0),
]  # fmt: skip


@pytest.mark.parametrize("case", DENSE)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_sparse_to_dense(parity: Any, case: Any, index: str) -> None:
    indices, shape, values, default = case
    parity(
        lambda m, v, d: m.sparse_to_dense(np.array(indices, index), np.array(shape, index), v, d),
        np.array(values, np.float32), np.array(default, np.float32),
        grad=np.ndim(indices) == 2 and np.ndim(values) == 1,  # TensorFlow's gradient accepts no other forms
    )  # fmt: skip


def test_strings_and_bools(parity: Any) -> None:
    texts = np.array([b"a", b"bc"], object)
    parity(lambda m, v: m.sparse_to_dense([[0, 1], [1, 0]], [2, 2], v, ""), texts)
    parity(lambda m, v: m.sparse_tensor_to_dense(m.SparseTensor([[0], [2]], v, [4])), texts)
    parity(lambda m, v: m.sparse_tensor_to_dense(m.SparseTensor([[0], [2]], v, [4])), np.array([True, False]))
    parity(lambda m, v: parts(m.sparse_reorder(m.SparseTensor([[2], [0]], v, [4]))), texts)
    parity(lambda m, v: parts(m.sparse_fill_empty_rows(m.SparseTensor([[2, 1], [3, 0]], v, [5, 2]), "?")[0]), texts)
    parity(lambda m, v: parts(m.sparse_concat(0, [m.SparseTensor([[2], [3]], v, [4])] * 2)), texts)
    parity(lambda m, v: parts(m.sparse_slice(m.SparseTensor([[2], [3]], v, [4]), [3], [1])), texts)


def test_merge_and_indicator_of_ids(parity: Any) -> None:
    ids, values = np.array([3, 0, 4, 2], np.int64), np.array([0.5, 1.5, -2.0, 7.0], np.float32)
    places = [[0, 0], [0, 1], [2, 0], [2, 1]]

    def build(m: Any, i: Any, v: Any) -> list[Any]:
        sp_ids, sp_values = m.SparseTensor(places, i, [3, 2]), m.SparseTensor(places, v, [3, 2])
        pairs = m.sparse_merge([sp_ids, sp_ids], sp_values, [5, 6])
        return [m.sparse_to_indicator(sp_ids, 5), *parts(m.sparse_merge(sp_ids, sp_values, 5)), *parts(pairs)]

    parity(build, ids, values)
    parity(lambda m, i: m.sparse_to_indicator(m.SparseTensor(places, i, [3, 2]), 6), ids.astype(np.int32))


def test_reset_shape(parity: Any, tf: Any) -> None:
    parity(lambda m, i, v, s: parts(m.sparse_reset_shape(m.SparseTensor(i, v, s))), *A)
    parity(lambda m, i, v, s: parts(m.sparse_reset_shape(m.SparseTensor(i, v, s), [7, 5])), *A)
    for shape in ([3, 5], [4, 5, 6]):
        refused(tf, lambda m, shape=shape: parts(m.sparse_reset_shape(m.SparseTensor(*A), shape)))


def test_eye(parity: Any) -> None:
    parity(lambda m: parts(m.sparse.eye(3)) + parts(m.sparse.eye(2, 4, m.float64)), static=False)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(tf: Any, build: Any) -> None:
    """Check that both systems reject the program, when it is built or when it runs."""
    with tf.Graph().as_default(), pytest.raises((ValueError, tf.errors.OpError)), tf.Session() as session:
        session.run(build(tf))
    with af.Graph().as_default(), pytest.raises(af.errors.InvalidArgumentError):
        evaluate(list(made) if isinstance(made := build(af), list | tuple) else [made])


REFUSED: dict[str, Any] = {
    "out of bounds": lambda m: m.sparse_to_dense([[0, 4]], [4, 4], [1.0]),
    "negative": lambda m: m.sparse_to_dense([[0, -1]], [4, 4], [1.0]),
    "out of order": lambda m: m.sparse_to_dense([[1, 0], [0, 0]], [4, 4], [1.0, 2.0]),
    "repeated": lambda m: m.sparse_to_dense([[1, 0], [1, 0]], [4, 4], [1.0, 2.0]),
    "unchecked out of bounds": lambda m: m.sparse_to_dense([[0, 4]], [4, 4], [1.0], validate_indices=False),
    "too few values": lambda m: m.sparse_to_dense([[1, 0], [2, 0], [3, 0]], [4, 4], [1.0, 2.0]),
    "rank": lambda m: m.sparse_to_dense([[1, 0]], [4], [1.0]),
    "other shapes": lambda m: parts(m.sparse_add(m.SparseTensor(*A), m.SparseTensor(*entries((5, 4), 3)))),
    "a wrong row": lambda m: parts(m.sparse_fill_empty_rows(m.SparseTensor([[5, 0]], [1.0], [4, 4]), 0.0)[0]),
    "matmul out of bounds": lambda m: m.sparse_tensor_dense_matmul(
        m.SparseTensor([[0, 7]], [1.0], [4, 5]), np.ones((5, 1), np.float32)
    ),
    "matmul inner": lambda m: m.sparse_tensor_dense_matmul(m.SparseTensor(*A), np.ones((4, 1), np.float32)),
    "softmax of a vector": lambda m: parts(m.sparse_softmax(m.SparseTensor([[0]], [1.0], [4]))),
    "no such axis": lambda m: m.sparse_reduce_sum(m.SparseTensor(*A), 2),
    "parts that do not fit": lambda m: parts(m.SparseTensor([[0, 0]], [1.0, 2.0], [4, 4])),
    "a rank that does not fit": lambda m: parts(m.SparseTensor([[0, 0]], [1.0], [4, 4, 4])),
    "dense broadcast": lambda m: parts(m.SparseTensor(*A) * np.ones((4, 4), np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_both_reject_wrong_arguments(tf: Any, name: str) -> None:
    refused(tf, REFUSED[name])


NO_OPERANDS: dict[str, Any] = {
    "negation": lambda m: parts(-m.SparseTensor(*A)),
    "number on the left": lambda m: parts(2.0 * m.SparseTensor(*A)),
    "product of two": lambda m: parts(m.SparseTensor(*A) * m.SparseTensor(*A)),
    "sum with a dense tensor": lambda m: m.ones([4, 5]) + m.SparseTensor(*A),
    "cosine": lambda m: parts(m.cos(m.SparseTensor(*A))),
    "dense reduction": lambda m: m.reduce_sum(m.SparseTensor(*A)),
}


@pytest.mark.parametrize("name", NO_OPERANDS)
def test_both_refuse_a_sparse_tensor_as_operand(tf: Any, name: str) -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError):
        NO_OPERANDS[name](tf)
    with af.Graph().as_default(), pytest.raises(TypeError):
        NO_OPERANDS[name](af)


def test_sparse_to_dense_allows_repeated_indices_unchecked(parity: Any) -> None:
    parity(lambda m, v: m.sparse_to_dense([[1, 0], [1, 0], [0, 0]], [2, 2], v, 0.0, validate_indices=False),
           np.array([1.0, 2.0, 3.0], np.float32), grad=False)  # fmt: skip


# ── in a session ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_placeholders_feeds_and_fetches(tf: Any) -> None:
    def build(m: Any) -> Any:
        x = m.sparse_placeholder(m.float32)
        y = m.sparse_placeholder(m.float32, [None, 5])
        static = [x.shape.ndims, y.shape.as_list(), x.indices.shape.as_list(), y.indices.shape.as_list()]
        return x, y, {"sum": m.sparse_add(x, y), "dense": [m.sparse.to_dense(y)]}, static

    with tf.Graph().as_default(), tf.Session() as session:
        x, y, fetches, static = build(tf)
        theirs = session.run(fetches, {x: tf.SparseTensorValue(*A), y: B})

    async def ours() -> tuple[Any, Any]:
        with af.Graph().as_default():
            async with af.Session() as session:
                x, y, fetches, static = build(af)
                return await session.run(fetches, {x: af.SparseTensorValue(*A), y: B}), static

    mine, my_static = asyncio.run(ours())
    assert my_static == static
    assert type(mine["sum"]).__name__ == type(theirs["sum"]).__name__ == "SparseTensorValue"
    for a, b in zip((*mine["sum"], *mine["dense"]), (*theirs["sum"], *theirs["dense"]), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b)


# ── as strings ───────────────────────────────────────────────────────────────────────────────────────────────────────

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "uint16", "bool", "complex64", "string"]


def values_of(dtype: str, shape: tuple[int, ...]) -> Any:
    numbers = np.random.default_rng(5).integers(0, 100, shape)
    if dtype == "string":
        return np.array([b"x" * int(n) for n in numbers.reshape(-1)], object).reshape(shape)
    return numbers.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0, 3), (2, 3)])
def test_serialize_tensor(parity: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """Compare the serialized bytes, and parse them."""
    value = values_of(dtype, shape)

    def build(m: Any, x: Any) -> list[Any]:
        text = m.serialize_tensor(x)
        return [text, m.parse_tensor(text, x.dtype)]

    parity(build, value, grad=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_written_element_by_element(parity: Any, tf: Any, dtype: str) -> None:
    """Parse tensors as `tf.make_tensor_proto` writes them element by element, without trailing repetitions."""
    from tensorflow.core.framework import tensor_pb2
    from tensorflow.python.framework import tensor_util

    value = values_of(dtype, (2, 3))
    if dtype in ("string", "bool", "complex64", "float32", "int32", "int64", "float64"):
        rows = value.tolist()
        kind = getattr(tf, dtype)
        proto = tensor_util.make_tensor_proto(rows, kind)
    else:
        proto = tensor_pb2.TensorProto(dtype=getattr(tf, dtype).as_datatype_enum)
        proto.tensor_shape.dim.add(size=2)
        proto.tensor_shape.dim.add(size=3)
        if dtype == "float16":
            proto.half_val.extend(value.reshape(-1)[:4].view(np.uint16).tolist())
        else:
            proto.int_val.extend(value.reshape(-1)[:4].tolist())
    data = proto.SerializeToString()
    parity(lambda m: m.parse_tensor(m.constant(data), dtype), grad=False)


def test_serialize_sparse(parity: Any) -> None:
    def many(m: Any, i: Any, v: Any, s: Any) -> list[Any]:
        texts = m.serialize_many_sparse(m.SparseTensor(i, v, s))
        mine = [] if v.dtype == m.string else [texts]  # TensorFlow writes strings in one piece, aioflow one by one
        return [*mine, *parts(m.deserialize_many_sparse(texts, v.dtype, 3))]

    def several(m: Any, i: Any, v: Any, s: Any) -> list[Any]:
        x = m.SparseTensor(i, v, s)
        texts = m.stack([m.serialize_sparse(x), m.serialize_sparse(m.sparse_slice(x, [0, 1, 0], [1, 2, 4]))])
        back = m.raw_ops.DeserializeSparse(serialized_sparse=texts[0], dtype=v.dtype)
        both = m.raw_ops.DeserializeSparse(serialized_sparse=m.stack([texts]), dtype=v.dtype)
        return [*parts(m.deserialize_many_sparse(texts, v.dtype)), *back, *both]

    for given in (DEEP, (DEEP[0], values_of("string", (9,)), DEEP[2]), entries((3, 3, 4), 2)):
        parity(many, *given, grad=False)
        parity(several, *given, grad=False)


def test_sparse_strings_written_by_tensorflow(tf: Any) -> None:
    values = values_of("string", (9,))
    with tf.Graph().as_default(), tf.Session() as session:
        texts = session.run(tf.serialize_sparse(tf.SparseTensor(DEEP[0], values, DEEP[2])))
    found = evaluate(list(af.raw_ops.DeserializeSparse(serialized_sparse=texts, dtype="string")))
    for mine, given in zip(found, (DEEP[0], values, DEEP[2]), strict=True):
        np.testing.assert_array_equal(mine, given)


@pytest.mark.parametrize("text", [b"", b"nonsense", b"\x08\x01", b"\x08\x03\x12\x04\x12\x02\x08\x02\x22\x03abc"])
def test_damaged_tensors(parity: Any, tf: Any, text: bytes) -> None:
    """Reject damaged tensors. b"\\x08\\x01" is valid: a float32 scalar without elements, which is zero."""
    if text == b"\x08\x01":
        parity(lambda m: m.parse_tensor(m.constant(text), m.float32), grad=False)
        refused(tf, lambda m: m.parse_tensor(m.constant(text), m.int32))
    else:
        refused(tf, lambda m: m.parse_tensor(m.constant(text), m.int32))

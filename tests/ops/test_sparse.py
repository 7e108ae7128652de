"""Sparse tensors: feeds, fetches, callables, streams, ops, gradients, serialization and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.compiler.pipeline import compile_step
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients

INDICES = np.array([[0, 1], [1, 0], [1, 2]], np.int64)
VALUE = af.SparseTensorValue(INDICES, np.array([1.0, 2.0, 3.0], np.float32), np.array([3, 4], np.int64))
DENSE = np.array([[0, 1, 0, 0], [2, 0, 3, 0], [0, 0, 0, 0]], np.float32)


def dense(value: Any) -> Any:
    made = np.zeros(value.dense_shape, value.values.dtype)
    made[tuple(value.indices.T)] = value.values
    return made


# ── the class ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sparse_tensor_attributes() -> None:
    sparse = af.SparseTensor(*VALUE)
    assert (sparse.dtype, sparse.shape.as_list(), sparse.get_shape().ndims) == (af.float32, [3, 4], 2)
    assert (sparse.op, sparse.graph, sparse.name) == (sparse.values.op, sparse.values.graph, sparse.values.name)
    assert sparse.with_values([4, 5, 6]).shape.as_list() == [3, 4]
    node = af.identity(sparse.indices)
    assert sparse.consumers() == [node.op]
    assert af.SparseTensor.from_value(sparse) is sparse
    assert af.convert_to_tensor_or_sparse_tensor(VALUE).dtype is af.float32
    assert isinstance(af.convert_to_tensor_or_sparse_tensor([1]), af.Tensor)
    assert "shape=(3, 4)" in repr(sparse)


async def test_sparse_tensor_as_operand() -> None:
    with af.Graph().as_default():
        sparse, scale = af.sparse_placeholder("float32", [None, 4]), af.Variable(2.0)
        untyped: Any = sparse
        doubled: af.SparseTensor = scale * af.sqrt(af.square(sparse))
        assert doubled.shape.as_list() == [None, 4]
        async with af.Session() as session:
            await session.run([scale.initializer, af.group(sparse)], {sparse: VALUE})
            value = await doubled.eval({sparse: VALUE})
            np.testing.assert_array_equal(dense(value), 2 * DENSE)
            zeros, static = af.zeros_like(sparse), af.zeros_like(af.SparseTensor(*VALUE), "int32")
            assert (await session.run(zeros, {sparse: VALUE})).shape == DENSE.shape
            assert (static.shape.as_list(), static.dtype) == ([3, 4], af.int32)
        for function in (af.reduce_sum, af.cos, lambda x: np.ones(4) * x):
            with pytest.raises(errors.DTypeError, match=r"sparse\.to_dense"):
                function(untyped)
        with pytest.raises(errors.NoSessionError):
            await doubled.eval()


def test_components_that_do_not_fit_are_refused() -> None:
    for parts in (([[0]], [1.0, 2.0], [4]), ([[0]], [1.0], [4, 4]), ([0], [1.0], [4]), ([[0]], 1.0, [4])):
        with pytest.raises(errors.InvalidArgumentError):
            af.SparseTensor(*parts)
    for wrong in (
        lambda: af.SparseTensor.from_value(3),  # type: ignore[arg-type]  # wrong on purpose
        lambda: af.convert_to_tensor_or_sparse_tensor(VALUE, "int32"),
    ):
        with pytest.raises(errors.DTypeError):
            wrong()
    with pytest.raises(errors.InvalidArgumentError):
        af.SparseTensor(*VALUE).set_shape([3, 5])
    with pytest.raises(errors.DTypeError):
        af.sparse_reorder([[1.0]])  # type: ignore[arg-type]  # a dense tensor


# ── in a session ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_feeds_and_fetches() -> None:
    given = af.sparse_placeholder(af.float32)
    doubled = {"sparse": given * 2.0, "dense": [af.sparse_tensor_to_dense(given)], "again": given.values}
    async with af.Session() as session:
        for value in (VALUE, tuple(VALUE), [[[0, 1]], [7.0], [2, 2]]):
            found = await session.run(doubled, {given: value})
            assert type(found["sparse"]) is af.SparseTensorValue
            np.testing.assert_array_equal(dense(found["sparse"]), 2 * found["dense"][0])
            np.testing.assert_array_equal(found["again"] * 2, found["sparse"].values)
        assert found["dense"][0].tolist() == [[0.0, 7.0], [0.0, 0.0]]


async def test_fetch_of_a_constant_sparse_tensor() -> None:
    async with af.Session() as session:
        found = await session.run(af.SparseTensor(*VALUE))
    np.testing.assert_array_equal(dense(found), DENSE)
    assert [part.dtype for part in found] == [np.int64, np.float32, np.int64]


async def test_step_with_sparse_feeds_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def counted(*args: Any) -> Any:
        compiled.append(args)
        return compile_step(*args)

    monkeypatch.setattr("aioflow.session.planner.compile_step", counted)
    given, other = af.sparse_placeholder(af.float32), af.placeholder(af.float32)
    total = af.sparse_reduce_sum(given) * other
    async with af.Session() as session:
        call = session.make_callable(total, [given, other])
        for factor in (1.0, 2.0, 3.0):
            assert await session.run(total, {given: VALUE, other: factor}) == 6 * factor
            assert await call(VALUE, factor) == 6 * factor
    assert len(compiled) == 1


async def test_streams_and_partial_runs() -> None:
    given = af.sparse_placeholder(af.float32)
    total = af.sparse_reduce_sum(given)
    async with af.Session() as session:
        feeds = [{given: VALUE._replace(values=VALUE.values * n)} for n in range(4)]
        assert [float(v) async for v in session.stream(total, feeds, prefetch=2)] == [0, 6, 12, 18]
        handle = await session.partial_run_setup([total, af.sparse_reduce_max(given)], [given])
        assert await session.partial_run(handle, total, {given: VALUE}) == 6


@pytest.mark.parametrize("value", [VALUE.values, VALUE[:2], None, 3.0])
async def test_wrong_and_duplicate_feeds_are_refused(value: Any) -> None:
    given = af.sparse_placeholder(af.float32)
    async with af.Session() as session:
        with pytest.raises(errors.InvalidArgumentError, match="cannot feed"):
            await session.run(given.values, {given: value})
        with pytest.raises(errors.InvalidArgumentError, match="fed twice"):
            await session.run(given.values, {given: VALUE, given.values: [1.0]})
        with pytest.raises(errors.InvalidArgumentError, match="fed twice"):
            await session.partial_run_setup(given, [given, given.values])


def test_sparse_placeholders_have_the_rank_of_their_shape() -> None:
    assert af.sparse_placeholder("int64").shape.ndims is None
    partly = af.sparse_placeholder("int64", [None, 4], name="x")
    assert (partly.shape.as_list(), partly.indices.shape.as_list()) == ([None, 4], [None, 2])
    assert partly.values.name == "x/values:0"
    assert af.sparse_placeholder("int64", af.placeholder(af.int64, [3])).indices.shape.as_list() == [None, 3]


# ── ops ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_matmul_in_blocks_matches_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    from aioflow.kernels.sparse import math as sparse_math

    monkeypatch.setattr(sparse_math, "_BLOCK", 7)
    array = np.random.default_rng(1).standard_normal((6, 5))
    other = np.random.default_rng(2).standard_normal((5, 3))
    (found,) = evaluate([af.sparse_tensor_dense_matmul(af.sparse.from_dense(array), other)])
    np.testing.assert_allclose(found, array @ other)


@pytest.mark.parametrize("dtype", ["bool", "string"])
def test_matmul_of_bools_and_strings_is_unimplemented(dtype: str) -> None:
    # As in TensorFlow, the op definition allows every dtype, but there is no kernel for dtypes without a product.
    values: Any = {"bool": [True, True], "string": ["a", "b"]}[dtype]
    with af.Graph().as_default():
        product = af.sparse_tensor_dense_matmul(
            af.SparseTensor([[0, 0], [0, 1]], values, [2, 2]), af.constant([values, values])
        )
        with pytest.raises(errors.UnimplementedError, match="SparseTensorDenseMatMul"):
            evaluate([product])


def test_shapes_that_exceed_64_bits_are_sorted() -> None:
    places = np.array([[2**40, 1, 5], [3, 2**50, 0], [2**40, 1, 4]], np.int64)
    sparse = af.sparse_reorder(af.SparseTensor(places, [1, 2, 3], [2**62, 2**62, 2**62]))
    assert evaluate([sparse.values])[0].tolist() == [2, 3, 1]
    with pytest.raises(errors.InvalidArgumentError, match="reshape"):
        evaluate([af.sparse_reshape(af.SparseTensor(places, [1, 2, 3], [2**62] * 3), [-1]).indices])


def test_errors_name_index_and_bounds() -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        evaluate([af.sparse_to_dense([[0, 0], [1, 4]], [4, 4], [1.0, 2.0], name="making")])
    assert (caught.value.node, caught.value.actual) == ("making", [1, 4])
    for indices, what in (([[1, 0], [0, 0]], "out of order"), ([[1, 0], [1, 0]], "repeated")):
        with pytest.raises(errors.InvalidArgumentError, match=what):
            evaluate([af.sparse_to_dense(indices, [4, 4], [1.0, 2.0])])


def test_reset_shape_checks_a_fed_shape() -> None:
    shape = af.placeholder(af.int64, [2])
    grown = af.sparse_reset_shape(af.sparse_placeholder(af.float32), shape)
    given = [part.op.inputs[0] for part in (grown.indices, grown.values)]
    known = dict(zip(given, VALUE[:2], strict=True))
    old = next(op for op in shape.graph.get_operations() if op.name == "sparse_placeholder/shape").outputs[0]
    assert evaluate([grown.dense_shape], {**known, old: [3, 4], shape: [5, 4]})[0].tolist() == [5, 4]
    for wrong in ([2, 4], [3, 3]):
        with pytest.raises(errors.InvalidArgumentError, match="smaller"):
            evaluate([grown.dense_shape], {**known, old: [3, 4], shape: wrong})


def test_a_softmax_of_large_values_is_finite() -> None:
    large = af.SparseTensor(INDICES, [1e4, 2e4, 2e4], [3, 4])
    assert evaluate([af.sparse_softmax(large).values])[0].tolist() == [1.0, 0.5, 0.5]


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────

V = np.array([0.5, -1.5, 2.0])


def sparse(values: Any, indices: Any = INDICES) -> af.SparseTensor:
    return af.SparseTensor(indices, values, [3, 4])


# tests/parity compares the gradients of the others.
GRADIENTS: dict[str, Any] = {
    "to_dense scalar": lambda v, w, d: af.sparse_to_dense(INDICES, [3, 4], v[0], 1.0),
    "to_dense vector": lambda v, w, d: af.sparse_to_dense([0, 2, 3], [5], v, w[0]),
    "sum of no axes": lambda v, w, d: af.sparse_reduce_sum(sparse(v), np.zeros(0, np.int32)),
    "fill": lambda v, w, d: af.sparse_fill_empty_rows(sparse(v), w[0])[0].values,
    "mul scalar": lambda v, w, d: (sparse(v) * w[0]).values,
    "plus": lambda v, w, d: af.raw_ops.SparseDenseCwiseAdd(
        sp_indices=INDICES, sp_values=v, sp_shape=af.constant([3, 4], af.int64), dense=d[:, :1]
    ),
    "second order": lambda v, w, d: af.gradients(af.sparse_softmax(sparse(v)).values ** 2, v)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_central_differences(name: str) -> None:
    check_gradients(GRADIENTS[name], V, V[::-1] + 0.25, np.random.default_rng(6).standard_normal((3, 4)), rtol=1e-4)


# ── as strings ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [np.array([[b"a", b""]], object), np.array(1 + 2j)])
def test_tensor_serialization_round_trips(value: Any) -> None:
    tensor = af.constant(value)
    (found,) = evaluate([af.parse_tensor(af.serialize_tensor(tensor), tensor.dtype)])
    assert found.dtype == np.asarray(value).dtype
    np.testing.assert_array_equal(found, value)


def test_every_truncation_of_a_serialized_tensor_is_refused() -> None:
    (data,) = evaluate([af.serialize_tensor(np.arange(5, dtype=np.int64))])
    text = data.item()
    # The first 8 bytes alone are a valid message, of zeros.
    header = 8
    for size in {*range(3, len(text))} - {header}:
        with pytest.raises(errors.InvalidArgumentError):
            evaluate([af.parse_tensor(af.constant(text[:size]), af.int64)])
    with pytest.raises(errors.UnimplementedError):
        af.serialize_sparse(af.SparseTensor(*VALUE), out_type="variant")


def test_parse_tensor_reads_packed_strings() -> None:
    # TensorFlow's format for strings of sparse tensors: lengths, then contents. Missing or extra bytes are errors.
    head = b"\x08\x07\x12\x04\x12\x02\x08\x02"
    assert evaluate([af.parse_tensor(af.constant(head + b"\x22\x05\x01\x02abc"), af.string)])[0].tolist() == [
        b"a",
        b"bc",
    ]
    for wrong in (b"\x22\x04\x01\x02ab", b"\x22\x06\x01\x02abcd", b"\x22\x01\x01"):
        with pytest.raises(errors.InvalidArgumentError):
            evaluate([af.parse_tensor(af.constant(head + wrong), af.string)])


@pytest.mark.parametrize("unsorted", [[[1, 0], [0, 1]], [[0, 1], [1, 0]]])
def test_concat_along_the_first_dimension_sorts_entries(unsorted: Any) -> None:
    one = af.SparseTensor(unsorted, [1.0, 2.0], [2, 2])
    (indices,) = evaluate([af.sparse_concat(0, [one, one]).indices])
    np.testing.assert_array_equal(indices, [[0, 1], [1, 0], [2, 1], [3, 0]])


@pytest.mark.parametrize(
    ("indices", "values", "expected"), [(np.zeros((1, 0)), [5.0], 5.0), (np.zeros((0, 0)), [], 0.0)]
)
def test_sparse_scalar_converts_to_dense(indices: Any, values: Any, expected: float) -> None:
    sparse = af.SparseTensor(indices.astype(np.int64), np.array(values, np.float32), np.zeros(0, np.int64))
    (made,) = evaluate([af.sparse_tensor_to_dense(sparse)])
    assert (made.shape, made.dtype.name, float(made)) == ((), "float32", expected)


def test_sparse_to_dense_rejects_values_of_rank_two() -> None:
    values = af.placeholder(af.float32)
    with pytest.raises(errors.InvalidArgumentError) as caught:
        evaluate([af.sparse_to_dense([[0], [1]], [2], values)], {values: np.ones((2, 2), np.float32)})
    assert (caught.value.expected, caught.value.actual) == ("() or (2,)", (2, 2))


def test_empty_sparse_reshape_accepts_sizes_beyond_64_bits() -> None:
    nothing = af.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.float32), [0, 3])
    made = af.sparse_reshape(nothing, np.array([0, 2**62, 2**62]))
    indices, shape = evaluate([made.indices, made.dense_shape])
    assert (indices.shape, shape.tolist()) == ((0, 3), [0, 2**62, 2**62])


@pytest.mark.parametrize("perm", [[1, 2], [-1, 0], [0, 5]])
def test_transpose_rejects_dimensions_out_of_range(perm: list[int]) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="perm"):
        af.sparse_transpose(af.SparseTensor(*VALUE), perm)


@pytest.mark.parametrize(
    "make",
    [
        lambda shape: af.sparse_to_dense(np.zeros((0, 2), np.int64), shape, np.zeros(0, np.float32)),
        lambda shape: af.sparse_reduce_sum(nothing(shape), np.zeros(0, np.int32)),
        lambda shape: af.sparse_tensor_dense_matmul(nothing(shape), np.ones((2, 3), np.float32)),
        lambda shape: af.sparse_fill_empty_rows(nothing(shape), 0.0)[0].values,
    ],
    ids=["to_dense", "reduce_sum", "matmul", "fill_empty_rows"],
)
@pytest.mark.parametrize("rows", [2**40, 2**62])
def test_dense_results_of_huge_shapes_are_refused(make: Any, rows: int) -> None:
    shape = af.placeholder(af.int64, [2])
    evaluate([make(shape)], {shape: np.array([2, 2])})
    with pytest.raises(errors.ResourceExhaustedError):
        evaluate([make(shape)], {shape: np.array([rows, 2])})


def nothing(shape: Any) -> af.SparseTensor:
    return af.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.float32), shape)


@pytest.mark.parametrize("shape", [[[2, 2]], [-1, 2]])
def test_sparse_to_dense_rejects_malformed_shapes(shape: Any) -> None:
    fed = af.placeholder(af.int64)
    made = af.sparse_to_dense(np.zeros((0, 2), np.int64), fed, np.zeros(0, np.float32))
    with pytest.raises(errors.InvalidArgumentError):
        evaluate([made], {fed: np.array(shape)})


def test_sparse_reductions_keep_only_rows_with_entries() -> None:
    sparse = af.SparseTensor([[0, 0], [0, 2], [2, 1]], [1.0, 2.0, -4.0], [3, 3])
    sums, tops = af.sparse_reduce_sum_sparse(sparse, 1), af.sparse_reduce_max_sparse(sparse, 1)
    for result, values in ((sums, [3.0, -4.0]), (tops, [2.0, -4.0])):
        indices, found, shape = evaluate([result.indices, result.values, result.dense_shape])
        assert indices.tolist() == [[0], [2]]
        assert found.tolist() == values
        assert shape.tolist() == [3]

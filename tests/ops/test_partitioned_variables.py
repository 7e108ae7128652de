"""Partitioned variables: partitioning, names, sharing, placement, initialization, reads and updates."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.graph.graph import Tensor

THREE = af.fixed_size_partitioner(3)


def in_session(*fetches: Any) -> list[Any]:
    async def run() -> list[Any]:
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            return [await session.run(fetch) for fetch in fetches]

    return asyncio.run(run())


def values(rows: int = 7, width: int = 2) -> np.ndarray[Any, Any]:
    return np.arange(rows * width, dtype=np.float32).reshape(rows, width)


def test_first_partitions_get_the_remaining_rows() -> None:
    v = af.get_variable("v", initializer=values(), partitioner=THREE)
    assert [part.name for part in v] == ["v/part_0:0", "v/part_1:0", "v/part_2:0"]
    assert [part.shape.as_list() for part in v] == [[3, 2], [2, 2], [2, 2]]
    assert (v.name, v.shape.as_list(), v.dtype, len(v)) == ("v", [7, 2], af.float32, 3)
    assert v._get_partitions() == [3, 1]
    whole, *parts = in_session(v.as_tensor(), *v)
    np.testing.assert_array_equal(whole, values())
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert list(v) == af.global_variables() == af.trainable_variables()


def test_partitioned_variable_converts_to_a_tensor() -> None:
    v = af.get_variable("v", initializer=values(), partitioner=THREE)
    columns = af.get_variable("w", initializer=values(), partitioner=af.fixed_size_partitioner(2, axis=1))
    found = in_session(v + 1.0, 2.0 * v, v[2:5, 1], af.matmul(v, columns, transpose_b=True), af.reduce_sum(v, 0), -v)
    a = values()
    for got, expected in zip(found, [a + 1, 2 * a, a[2:5, 1], a @ a.T, a.sum(0), -a], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_gradients_reach_the_partitions() -> None:
    v = af.get_variable("v", initializer=values(), partitioner=THREE)
    grads = af.gradients(af.reduce_sum(af.square(v)), list(v))
    np.testing.assert_array_equal(np.concatenate(in_session(*grads)), 2 * values())
    train = af.train.GradientDescentOptimizer(0.5).minimize(af.reduce_sum(af.square(v)), var_list=[v])
    assert not np.any(in_session(train, v.as_tensor())[1])  # v - 0.5 * 2 * v


@pytest.mark.parametrize("form", ["tensor", "list", "partitioned"])
def test_assign_updates_each_partition(form: str) -> None:
    v = af.get_variable("v", [7, 2], initializer=af.zeros_initializer(), partitioner=THREE)
    new: Any = values()
    if form == "list":
        new = [new[:3], new[3:5], new[5:]]
    elif form == "partitioned":
        new = af.get_variable("w", initializer=new, partitioner=THREE)
    assigned = v.assign(new)
    assert [type(part).__mro__[1] for part in assigned] == [af.Variable] * 3
    added, whole = v.assign_add(new, read_value=False), v.as_tensor()
    taken = v.assign_sub(values() * 3)
    found = in_session(af.initialize_variables(list(v)), assigned, whole, added, whole, taken, whole)
    np.testing.assert_array_equal(np.concatenate(found[1]), values())
    np.testing.assert_array_equal(found[2], values())
    np.testing.assert_array_equal(found[4], 2 * values())
    np.testing.assert_array_equal(found[6], -values())
    with pytest.raises(InvalidArgumentError):
        v.assign([values()])


def test_value_waits_for_control_dependencies_but_as_tensor_does_not() -> None:
    v = af.get_variable("v", [4], initializer=af.ones_initializer(), partitioner=THREE)
    with af.control_dependencies(v.assign_add(np.ones(4, np.float32), read_value=False)):
        after, before = v.value(), v.as_tensor()
    np.testing.assert_array_equal(in_session(after)[0], [2.0] * 4)
    assert all(not t.op.waits_for for t in before.op.inputs)


def test_sharing_by_name() -> None:
    v: Any  # its type depends on the scope, which type checkers cannot see
    with af.variable_scope("s", partitioner=THREE) as scope:
        v = af.get_variable("v", [7, 2])
        assert scope.partitioner is THREE
        assert isinstance(af.get_variable("scalar", []), af.Variable)  # scalars cannot be partitioned
    with af.variable_scope("s", reuse=True):
        shared: list[Any] = [af.get_variable("v"), af.get_variable("v", [7, 2], partitioner=THREE)]
        assert shared == [v, v]
        assert af.get_variable("v/part_1", [2, 2]) is list(v)[1]
        with pytest.raises(InvalidArgumentError, match="other parts"):
            af.get_variable("v", [7, 2], partitioner=af.fixed_size_partitioner(2))
        with pytest.raises(InvalidArgumentError, match="different shape"):
            af.get_variable("v", [8, 2], partitioner=THREE)
        with pytest.raises(DTypeError, match="different dtype"):
            af.get_variable("v", [7, 2], af.float64, partitioner=THREE)
        with pytest.raises(InvalidArgumentError, match="does not exist"):
            af.get_variable("other", [7, 2], partitioner=THREE)
    with af.variable_scope("s", reuse=af.AUTO_REUSE, partitioner=THREE):
        shared = [af.get_variable("v", [7, 2])]
        assert shared == [v]
    with af.variable_scope("s"):
        with pytest.raises(AlreadyExistsError):
            af.get_variable("v", [7, 2], partitioner=THREE)
        with pytest.raises(InvalidArgumentError, match="exists in parts"):
            af.get_variable("v", [7, 2])
        whole = af.get_variable("whole", [7, 2])
        with pytest.raises(InvalidArgumentError, match="is not in parts"):
            af.get_variable("whole", [7, 2], partitioner=THREE)
        assert isinstance(whole, af.Variable)


def test_each_partition_is_initialized_and_regularized_separately() -> None:
    told: list[Any] = []

    def initial(shape: Any, dtype: Any, partition_info: Any) -> Tensor:
        told.append((shape, partition_info.full_shape, partition_info.var_offset, partition_info.single_offset(shape)))
        return af.fill(shape, af.constant(float(len(told)), dtype))

    v = af.get_variable("v", [7, 2], initializer=initial, regularizer=af.reduce_sum, partitioner=THREE)
    assert told == [([3, 2], [7, 2], [0, 0], 0), ([2, 2], [7, 2], [3, 0], 3), ([2, 2], [7, 2], [5, 0], 5)]
    np.testing.assert_array_equal(in_session(v.as_tensor())[0][:, 0], [1, 1, 1, 2, 2, 3, 3])
    losses = af.get_collection(af.GraphKeys.REGULARIZATION_LOSSES)
    assert [float(loss) for loss in in_session(*losses)] == [6.0, 8.0, 12.0]


def test_scaling_initializers_use_the_full_shape() -> None:
    draws = af.variance_scaling_initializer(3.0, "fan_in", "uniform", seed=1)  # within ±3/√fan_in
    v = af.get_variable("v", [10_000, 4], initializer=draws, partitioner=af.fixed_size_partitioner(100))
    limit = 3.0 / np.sqrt(10_000)
    assert 0.9 * limit < np.abs(in_session(v.as_tensor())[0]).max() <= limit
    eye = af.get_variable("eye", [5, 4], initializer=af.initializers.identity(), partitioner=THREE)
    np.testing.assert_array_equal(in_session(eye.as_tensor())[0], np.eye(5, 4))


def test_device_function_places_each_partition() -> None:
    with af.device(af.train.replica_device_setter(2)):
        v = af.get_variable("v", [7, 2], partitioner=THREE)
        rows = af.nn.embedding_lookup(v, [0, 6], "div")
    assert [part.device for part in v] == [f"/job:ps/task:{i}" for i in (0, 1, 0)]
    gathers = [op for op in af.get_default_graph().get_operations() if op.type == "ResourceGather"]
    assert [g.colocation_groups() for g in gathers] == [part.op.colocation_groups() for part in v]
    assert rows.device == "/job:worker"


def test_each_partition_has_slots_of_its_own_shape() -> None:
    with af.variable_scope("s", partitioner=THREE):
        v: Any = af.get_variable("v", [7, 2])
        optimizer = af.train.MomentumOptimizer(0.1, 0.9)
        optimizer.minimize(af.reduce_sum(af.square(v)))
    slots: list[Any] = [optimizer.get_slot(part, "momentum") for part in v]
    assert [slot.shape.as_list() for slot in slots] == [[3, 2], [2, 2], [2, 2]]


def test_created_partitioned_variables() -> None:
    parts = af.create_partitioned_variables([7, 2], [1, 2], values(), name="p")
    again = af.create_partitioned_variables([7, 2], [1, 2], values())
    assert [part.name for part in [*parts, *again]] == [
        *("p/part_0:0", "p/part_1:0"),
        *("PartitionedVariable/part_0:0", "PartitionedVariable/part_1:0"),
    ]
    np.testing.assert_array_equal(np.concatenate(in_session(*parts), 1), values())
    assert af.create_partitioned_variables([7, 2], [1, 2], af.zeros_initializer(), name="p", reuse=True) == parts
    with pytest.raises(InvalidArgumentError):
        af.create_partitioned_variables([7, 2], [2, 2], values())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda **_: [2], InvalidArgumentError),
        (lambda **_: [0, 1], InvalidArgumentError),
        (lambda **_: [2, 2], InvalidArgumentError),
        (lambda **_: 2, DTypeError),
        (lambda **_: ["2", 1], DTypeError),
    ],
)
def test_wrong_results_of_partitioners_are_refused(answer: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"partition|one axis"):
        af.get_variable("v", [7, 2], partitioner=answer)
    assert not af.global_variables()


def test_wrong_shapes_and_axes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="fully defined"):
        af.get_variable("v", [None, 2], partitioner=THREE)
    with pytest.raises(InvalidArgumentError, match="axis 2 is out of range"):
        af.get_variable("v", [7, 2], partitioner=af.fixed_size_partitioner(2, axis=2))
    with pytest.raises(InvalidArgumentError, match="must be positive"):
        af.variable_axis_size_partitioner(0)


@pytest.mark.parametrize("parts", [1, 3])
def test_embedding_lookup_sparse_with_repeated_ids(parts: int) -> None:
    v = af.get_variable("v", initializer=values(), partitioner=af.fixed_size_partitioner(parts))
    ids = af.SparseTensor([[0, 0], [0, 1], [1, 0]], af.constant([4, 1, 4], af.int64), [2, 2])
    combined = af.nn.embedding_lookup_sparse(v, ids, None, "div", combiner="sum")
    grads = af.gradients(af.reduce_sum(combined), list(v))
    rows, *found = in_session(combined, *(af.convert_to_tensor(g) for g in grads if g is not None))
    expected = np.zeros((7, 2))
    expected[4], expected[1] = 2, 1
    np.testing.assert_array_equal(rows, [values()[4] + values()[1], values()[4]])
    np.testing.assert_array_equal(np.concatenate(found), expected)
    assert all(isinstance(g, af.IndexedSlices) for g in grads)


def _updates(optimizer: str, *more: float) -> Callable[[af.PartitionedVariable, af.Tensor], Any]:
    def build(table: af.PartitionedVariable, ids: af.Tensor) -> Any:
        loss = af.nn.l2_loss(af.nn.embedding_lookup(table, ids, "div"))
        return [loss, getattr(af.train, optimizer)(0.1, *more).minimize(loss)]

    return build


@pytest.mark.parametrize(
    "build",
    [
        _updates("GradientDescentOptimizer"),
        _updates("MomentumOptimizer", 0.9),
        _updates("AdagradOptimizer"),
        _updates("FtrlOptimizer"),
        lambda table, ids: next(iter(table)).scatter_update(af.IndexedSlices(af.ones([8, 64]), ids % 25_000)).op,
    ],
)
async def test_sparse_update_needs_memory_for_its_rows_only(build: Any) -> None:
    table = af.get_variable("table", [50_000, 64], partitioner=af.fixed_size_partitioner(2))
    ids = af.placeholder(af.int64, [8])
    made = build(table, ids)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        step = session.make_callable(made, [ids])
        # The first steps give the variables arrays of their own and measure the memory that a step needs.
        for _ in range(3):
            await step(np.arange(8) * 6_000)
        tracemalloc.start()
        try:
            await step(np.arange(8) * 6_000)
            assert tracemalloc.get_traced_memory()[1] < 90_000, (
                "a part has 6.4 MB, a number for each of its rows 100 kB"
            )
        finally:
            tracemalloc.stop()


async def test_fetch_or_feed_of_a_partitioned_variable_suggests_alternatives() -> None:
    v = af.get_variable("v", initializer=values(), partitioner=THREE)
    one, line = af.constant(1.0), v._get_variable_list()[0].op.source
    async with af.Session() as session:
        calls: list[tuple[Any, Any]] = [(v, None), ([one, v], None), ({"v": v}, None), (one, {v: values()})]
        for fetches, feeds in calls:
            with pytest.raises(DTypeError, match="'v' is no element of the graph") as caught:
                await session.run(fetches, feeds)
            text = str(caught.value)
            for said in ("list(v) for its 3 parts", "as_tensor()", "assign(value)", str(line)):
                assert said in text


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("bad", [7, -1, 2**31 - 1])
async def test_embedding_lookup_error_names_the_given_id(strategy: Literal["div", "mod"], dtype: str, bad: int) -> None:
    v = af.get_variable("v", initializer=values(), partitioner=THREE)
    ids = af.placeholder(dtype, [2, None])
    rows = af.nn.embedding_lookup(v, ids, partition_strategy=strategy)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        with pytest.raises(InvalidArgumentError, match="the table 'v', which has 7 rows") as caught:
            await session.run(rows, {ids: [[0, 6, 1], [2, bad, 3]]})
    error = caught.value
    assert f"id {bad} " in error.message
    assert (error.expected, error.actual) == ("0 <= id < 7", bad)
    assert error.source is not None
    assert error.source.filename == __file__


async def test_embedding_lookup_error_names_the_tables() -> None:
    tables = [af.get_variable(name, initializer=values(rows=2)) for name in ("a", "b")]
    sparse_ids = af.SparseTensor([[0, 0], [0, 1]], af.constant([1, 4], "int64"), [1, 2])
    rows = af.nn.embedding_lookup_sparse(tables, sparse_ids, None, combiner="sum")
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        with pytest.raises(InvalidArgumentError, match="id 4 is not in the table 'a, b', which has 4 rows"):
            await session.run(rows)


async def test_uneven_tables_keep_their_mod_ids() -> None:
    # With "mod", row 2 of the second of two tables has id 5, even if the first table has only two rows.
    tables = [af.constant(values(rows=2)), af.constant(100 + values(rows=3))]
    ids = af.placeholder("int64", [None])
    rows = af.nn.embedding_lookup(tables, ids)
    async with af.Session() as session:
        np.testing.assert_array_equal(await session.run(rows, {ids: [5, 0]}), [[104, 105], [0, 1]])
        with pytest.raises(InvalidArgumentError, match="is not in"):
            await session.run(rows, {ids: [4]})

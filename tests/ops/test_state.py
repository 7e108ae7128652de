"""Ops on variables: values against NumPy, errors with the variable and the shapes, gradients through reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import (
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
)
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import make, make_op
from aioflow.testing.evaluate import evaluate

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


class Machine:
    """An evaluator of several steps over the same variables."""

    def __init__(self) -> None:
        self.resources = ResourceManager()
        self.state: dict[str, Any] = {}

    def __call__(self, fetch: Any, feeds: Any = None) -> Any:
        tensor = fetch.value() if isinstance(fetch, aioflow.Variable) else fetch
        return evaluate([tensor], feeds, resources=self.resources, state=self.state)[0]

    def do(self, *targets: Any, feeds: Any = None) -> None:
        evaluate([], feeds, targets=targets, resources=self.resources, state=self.state)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def table(machine: Machine, value: Any = TABLE, **settings: Any) -> Any:
    variable = aioflow.Variable(value, name="table", **settings)
    machine.do(variable.initializer)
    return variable


def test_assignments_return_the_new_value(machine: Machine) -> None:
    v = table(machine, [1.0, 2.0])
    assert machine(v.assign([3.0, 4.0])).tolist() == [3, 4]
    assert machine(v.assign_add([1.0, 1.0])).tolist() == [4, 5]
    assert machine(v.assign_sub([4.0, 4.0])).tolist() == [0, 1]
    assert machine(aioflow.assign(v, [7.0, 8.0])).tolist() == [7, 8]
    assert machine(aioflow.assign_add(v, [1.0, 1.0])).tolist() == [8, 9]
    assert machine(aioflow.assign_sub(v, [1.0, 1.0])).tolist() == [7, 8]
    assert machine(v).tolist() == [7, 8]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int64", "complex64"])
def test_assign_add_keeps_the_dtype(machine: Machine, dtype: str) -> None:
    for value in ([1, 2], 3):
        v = aioflow.Variable(value, dtype=dtype, name="v")
        machine.do(v.initializer)
        result = machine(v.assign_add(v))
        assert result.dtype == aioflow.as_dtype(dtype).np_dtype
        assert np.array_equal(result.astype(np.complex64), 2 * np.array(value))


def test_fetched_value_of_an_earlier_step_does_not_change(machine: Machine) -> None:
    v = table(machine)
    before = machine(v)
    machine.do(v.assign_add(np.ones_like(TABLE)).op, aioflow.scatter_add(v, [0], 5.0).op)
    assert np.array_equal(before, TABLE)
    assert not np.array_equal(machine(v), TABLE)


def test_assign_copies_a_view_of_a_feed(machine: Machine) -> None:
    x = aioflow.placeholder("float32", [2, 6])
    v = table(machine)
    source = np.zeros((2, 6), np.float32)
    machine.do(v.assign(make("Reshape", x, [4, 3])).op, feeds={x: source})
    source[:] = 9
    assert not machine(v).any()


SCATTERS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    "update": (aioflow.scatter_update, lambda a, b: b),
    "add": (aioflow.scatter_add, lambda a, b: a + b),
    "sub": (aioflow.scatter_sub, lambda a, b: a - b),
    "mul": (aioflow.scatter_mul, lambda a, b: a * b),
    "div": (aioflow.scatter_div, lambda a, b: a / b),
    "min": (aioflow.scatter_min, np.minimum),
    "max": (aioflow.scatter_max, np.maximum),
}


def expected_scatter(mode: str, indices: Any, updates: Any) -> Any:
    result = TABLE.copy()
    flat = np.reshape(indices, -1)
    rows = np.broadcast_to(updates, (*np.shape(indices), 3)).reshape(-1, 3)
    for row, update in zip(flat, rows, strict=True):
        result[row] = SCATTERS[mode][1](result[row], update)
    return result


@pytest.mark.parametrize("mode", SCATTERS)
@pytest.mark.parametrize("indices", [[1], [3, 0], [2, 2, 2], [[0, 1], [1, 3]], 2, np.zeros(0, np.int64)])
def test_scatter_equals_a_loop_over_rows(machine: Machine, mode: str, indices: Any) -> None:
    v = table(machine)
    updates = np.random.default_rng(0).uniform(1, 9, (*np.shape(indices), 3)).astype(np.float32)
    result = machine(SCATTERS[mode][0](v, indices, updates))
    np.testing.assert_allclose(result, expected_scatter(mode, indices, updates), rtol=1e-5)


@pytest.mark.parametrize("mode", SCATTERS)
def test_scatter_of_a_scalar(machine: Machine, mode: str) -> None:
    v = table(machine)
    result = machine(SCATTERS[mode][0](v, [1, 3, 1], 2.0))
    np.testing.assert_allclose(result, expected_scatter(mode, [1, 3, 1], np.float32(2)))


def test_scatter_methods_accept_indexed_slices(machine: Machine) -> None:
    v = table(machine)
    slices = aioflow.IndexedSlices(aioflow.constant(np.full((2, 3), 2, np.float32)), aioflow.constant([1, 1]))
    for mode in SCATTERS:
        machine.do(v.initializer)
        result = machine(getattr(v, f"scatter_{mode}")(slices))
        np.testing.assert_allclose(result, expected_scatter(mode, [1, 1], np.float32(2)))
    with pytest.raises(DTypeError):
        v.scatter_add(aioflow.constant([1.0]))


def test_scatter_updates_rows_in_place(machine: Machine) -> None:
    v = table(machine, np.zeros((100_000, 4), np.float32))
    update = aioflow.scatter_add(v, [5, 5], np.ones((2, 4), np.float32))
    # The first update replaces the array of the initializer, which is shared with the constant.
    machine.do(update.op)
    held = machine.resources.find("", "table")
    address = held.read().__array_interface__["data"][0]
    machine.do(update.op)
    assert held.read().__array_interface__["data"][0] == address
    assert held.read()[5].tolist() == [4, 4, 4, 4]
    assert held.read().sum() == 16


def test_scatter_nd(machine: Machine) -> None:
    v = table(machine)
    expected = TABLE.copy()
    expected[1, 2], expected[0, 0] = 50, 60
    assert np.array_equal(machine(aioflow.scatter_nd_update(v, [[1, 2], [0, 0]], [50.0, 60.0])), expected)
    expected[1, 2] += 3
    assert np.array_equal(machine(aioflow.scatter_nd_add(v, [[1, 2], [1, 2]], [1.0, 2.0])), expected)
    expected[3] -= 1
    assert np.array_equal(machine(v.scatter_nd_sub([[3]], np.ones((1, 3)))), expected)
    assert np.array_equal(machine(v.scatter_nd_update(np.zeros((1, 0), np.int32), TABLE[None])), TABLE)
    assert np.array_equal(machine(v.scatter_nd_add([[0]], np.ones((1, 3))))[0], TABLE[0] + 1)


def test_scatter_nd_may_ignore_bad_indices(machine: Machine) -> None:
    v = table(machine)
    indices, updates = aioflow.constant([[9], [1]]), aioflow.constant(np.ones((2, 3), np.float32))
    op = make_op("ResourceScatterNdAdd", v.handle, indices, updates, bad_indices_policy="IGNORE")
    machine.do(op)
    assert machine(v).sum() == TABLE.sum() + 3
    low = make_op("ResourceScatterNdMin", v.handle, indices[1:], -updates[1:])
    high = make_op("ResourceScatterNdMax", v.handle, indices[1:] + 1, 100 * updates[1:])
    machine.do(low, high)
    assert machine(v)[1:3].tolist() == [[-1] * 3, [100] * 3]


def test_gather_reads_rows(machine: Machine) -> None:
    v = table(machine)
    assert np.array_equal(machine(v.sparse_read([[3, 0], [1, 1]])), TABLE[[[3, 0], [1, 1]]])
    assert np.array_equal(machine(v.sparse_read(2)), TABLE[2])
    assert machine(v.sparse_read(np.zeros(0, np.int32))).shape == (0, 3)
    assert np.array_equal(machine(v.gather_nd([[1, 2], [3, 0]])), TABLE[[1, 3], [2, 0]])
    assert np.array_equal(machine(v.gather_nd([[2]])), TABLE[[2]])


def test_gather_on_a_variable_does_not_read_the_table(machine: Machine, graph: aioflow.Graph) -> None:
    v = table(machine)
    rows = aioflow.gather(v, [1, 2])
    assert rows.op.type == "ResourceGather"
    assert np.array_equal(machine(rows), TABLE[[1, 2]])


def test_gather_with_batch_dims(machine: Machine) -> None:
    v = table(machine)
    for indices in ([[0, 2], [1, 1], [2, 0], [0, 0]], [0, 1, 2, 0]):
        got = make("ResourceGather", v.handle, indices, dtype=v.dtype, batch_dims=1)
        expected = np.stack([TABLE[i][np.array(row)] for i, row in enumerate(indices)])
        assert got.dims == expected.shape
        assert np.array_equal(machine(got), expected)


def test_variable_shape_is_that_of_the_value(machine: Machine) -> None:
    v = table(machine, shape=[None, 3])
    shape = make("VariableShape", v.handle, out_type="int64")
    assert shape.dims == (2,)
    assert machine(shape).tolist() == [4, 3]
    assert machine(shape).dtype == np.int64


def test_count_up_to(machine: Machine) -> None:
    v = aioflow.Variable(0, name="counter")
    machine.do(v.initializer)
    up = aioflow.count_up_to(v, 2)
    assert [int(machine(up)), int(machine(v.count_up_to(2)))] == [0, 1]
    with pytest.raises(OutOfRangeError) as caught:
        machine(up)
    assert "reached limit of 2" in caught.value.message
    assert machine(v) == 2
    with pytest.raises(InvalidArgumentError):
        machine(table(machine, [1, 2]).count_up_to(9))


def test_is_initialized_and_destroy(machine: Machine) -> None:
    v = aioflow.Variable(1.0, name="v")
    flag = aioflow.is_variable_initialized(v)
    assert not machine(flag)
    machine.do(v.initializer)
    assert machine(flag)
    machine.do(make_op("DestroyResourceOp", v.handle))
    assert not machine(flag)


def test_destroying_twice_is_an_error_unless_ignored(machine: Machine) -> None:
    v = aioflow.Variable(1.0, name="v")
    machine.do(v.initializer)
    first = make_op("DestroyResourceOp", v.handle)
    with aioflow.control_dependencies([first]):
        second = make_op("DestroyResourceOp", v.handle, ignore_lookup_error=False)
    with pytest.raises(NotFoundError):
        machine.do(second)


# -- errors -----------------------------------------------------------------------------------------------------------


def test_uninitialised_use_names_the_variable(machine: Machine) -> None:
    v = aioflow.Variable([1.0, 2.0], name="weights")
    uses: list[Any] = [v.value(), v.assign_add([1.0, 1.0]), v.sparse_read([0]), aioflow.scatter_add(v, [0], 1.0)]
    for use in uses:
        with pytest.raises(FailedPreconditionError) as caught:
            machine(use)
        assert "uninitialized value weights" in caught.value.message
        assert caught.value.node is not None
        assert caught.value.source is not None
        assert caught.value.source.filename == __file__


def test_static_shapes_are_checked(machine: Machine) -> None:
    v = table(machine)
    refused: list[Callable[[], Any]] = [
        lambda: v.assign([1.0]),
        lambda: v.assign_add(1.0),
        lambda: aioflow.scatter_add(v, [0, 1], np.ones((3, 3))),
        lambda: aioflow.scatter_nd_add(v, [[0, 1]], np.ones((1, 3))),
        lambda: aioflow.scatter_nd_add(v, [[0, 1, 2]], np.ones(1)),
        lambda: v.gather_nd([[0, 1, 2]]),
        lambda: v.gather_nd(0),
    ]
    for bad in refused:
        with pytest.raises(InvalidArgumentError) as caught:
            bad()
        assert caught.value.expected is not None
        assert caught.value.actual is not None
    with pytest.raises(DTypeError):
        v.assign(aioflow.constant(1, shape=[4, 3]))
    with pytest.raises(DTypeError):
        aioflow.assign(aioflow.constant([1.0]), [2.0])  # type: ignore[arg-type]  # wrong on purpose


def test_fed_shapes_are_checked(machine: Machine) -> None:
    v = table(machine)
    x, i = aioflow.placeholder("float32"), aioflow.placeholder("int32")
    cases: list[tuple[Any, dict[Any, Any]]] = [
        (v.assign(x), {x: np.ones(3)}),
        (v.assign_add(x), {x: np.ones(3)}),
        (aioflow.scatter_add(v, i, x), {x: np.ones((2, 2)), i: [0, 1]}),
        (aioflow.scatter_nd_add(v, i, x), {x: np.ones((2, 2)), i: [[0], [1]]}),
        (aioflow.scatter_nd_add(v, i, x), {x: np.ones(1), i: [[0, 0, 0]]}),
        (v.gather_nd(i), {i: [[0, 0, 0]]}),
        (aioflow.scatter_update(v, i, x), {x: np.ones((1, 3)), i: [4]}),
        (aioflow.scatter_update(v, i, x), {x: np.ones((1, 3)), i: [-1]}),
        (v.sparse_read(i), {i: [4]}),
        (v.sparse_read(i), {i: [-1]}),
        (v.gather_nd(i), {i: [[0, 3]]}),
    ]
    for fetch, feeds in cases:
        needed = {k: np.asarray(a, k.dtype.np_dtype) for k, a in feeds.items()}
        with pytest.raises(InvalidArgumentError) as caught:
            machine(fetch, needed)
        assert caught.value.expected is not None
        assert caught.value.node is not None
        assert np.array_equal(machine(v), TABLE), "a refused update changed the variable"


def test_batched_gather_refuses_shapes_that_do_not_fit(machine: Machine) -> None:
    v = table(machine)
    i = aioflow.placeholder("int32")
    got = make("ResourceGather", v.handle, i, dtype=v.dtype, batch_dims=1)
    with pytest.raises(InvalidArgumentError):
        machine(got, {i: np.zeros((3, 1), np.int32)})
    with pytest.raises(InvalidArgumentError):
        make("ResourceGather", v.handle, 0, dtype=v.dtype, batch_dims=1)


def test_gather_and_scatter_reject_scalar_variables(machine: Machine) -> None:
    v = aioflow.Variable(1.0, name="scalar", shape=aioflow.TensorShape(None))
    machine.do(v.initializer)
    for use in (aioflow.scatter_add(v, [0], 1.0), v.sparse_read([0])):
        with pytest.raises(InvalidArgumentError) as caught:
            machine(use)
        assert "scalar" in caught.value.message


def test_integer_scatter_division_by_zero(machine: Machine) -> None:
    v = table(machine, [6, 7])
    with pytest.raises(InvalidArgumentError):
        machine(aioflow.scatter_div(v, [0], 0))
    assert machine(v).tolist() == [6, 7]


def test_a_handle_of_another_dtype_or_shape_is_refused(machine: Machine) -> None:
    v = table(machine)
    with pytest.raises(DTypeError):
        make("ReadVariableOp", v.handle, dtype="int32")
    with aioflow.Graph().as_default():
        other = aioflow.Variable([1], name="table")
        with pytest.raises(InvalidArgumentError) as caught:
            machine.do(other.initializer)
        assert (caught.value.expected, caught.value.actual) == ("int32", "float32")
        reshaped = aioflow.Variable([1.0], name="table_1")
        handle = make("VarHandleOp", dtype="float32", shape=[1], shared_name="table")
        with pytest.raises(InvalidArgumentError) as caught:
            machine(make("ReadVariableOp", handle, dtype="float32"))
        assert caught.value.actual == "(4, 3)"
        assert reshaped.name == "table_1:0"


def test_name_of_another_resource_is_refused(machine: Machine) -> None:
    machine.resources.get_or_create("", "queue", object)
    v = aioflow.Variable(1.0, name="queue")
    with pytest.raises(InvalidArgumentError) as caught:
        machine(v)
    assert "not a variable" in caught.value.message


def test_bound_step_notices_a_cleared_container(machine: Machine) -> None:
    with aioflow.container("box"):
        v = aioflow.Variable(1.0, name="v")
    w = aioflow.Variable(2.0, name="w")
    machine.do(v.initializer, w.initializer)
    assert machine.resources.names("box") == ["v"]
    machine.resources.clear("box")
    assert machine(w) == 2
    with pytest.raises(FailedPreconditionError):
        machine(v)


# -- gradients --------------------------------------------------------------------------------------------------------


def test_gradients_flow_through_reads_and_gathers(machine: Machine) -> None:
    v = table(machine)
    dense = aioflow.gradients(make("Mul", v.value(), v.value()), [v])[0]
    assert np.allclose(machine(dense), 2 * TABLE)
    rows = v.sparse_read([1, 1, 3])
    sparse = aioflow.gradients(make("Mul", rows, rows), [v])[0]
    assert isinstance(sparse, aioflow.IndexedSlices)
    assert machine(sparse.indices).tolist() == [1, 1, 3]
    assert np.allclose(machine(sparse.values), 2 * TABLE[[1, 1, 3]])
    assert sparse.dense_shape is not None
    assert machine(sparse.dense_shape).tolist() == [4, 3]


def test_gradient_of_gather_matches_finite_differences(machine: Machine) -> None:
    v = table(machine, TABLE.astype(np.float64))
    i = aioflow.placeholder("int32")
    for rows, index in (
        (v.sparse_read(i), np.array([[1, 1], [3, 0]], np.int32)),
        (v.gather_nd(i), np.array([[1, 2], [1, 2]], np.int32)),
        (v.initialized_value(), None),
    ):
        feeds = {} if index is None else {i: index}
        loss = make("Mul", rows, make("Mul", rows, rows))
        (found,) = aioflow.gradients(loss, [v])
        assert found is not None
        gradient = machine(aioflow.convert_to_tensor(found), feeds)
        numeric = np.zeros_like(gradient)
        for at in np.ndindex(numeric.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = TABLE.astype(np.float64)
                moved[at] += step
                machine.do(v.assign(moved).op)
                sides.append(machine(loss, feeds).sum())
            numeric[at] = (sides[0] - sides[1]) / 2e-5
        machine.do(v.initializer)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-4)


def test_gradient_of_gather_from_a_table_of_unknown_shape(machine: Machine) -> None:
    v = table(machine, shape=aioflow.TensorShape(None))
    i = aioflow.placeholder("int64")
    sparse = aioflow.gradients(v.sparse_read(i), [v])[0]
    assert isinstance(sparse, aioflow.IndexedSlices)
    assert sparse.dense_shape is not None
    feeds = {i: np.array([[2, 0]])}
    assert machine(sparse.indices, feeds).tolist() == [2, 0]
    assert machine(sparse.values, feeds).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert machine(sparse.dense_shape, feeds).tolist() == [4, 3]

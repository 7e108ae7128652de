"""`Variable`: attributes, conversion to tensors, reads after updates, initial values, collections."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate


def run(*fetches: Any, init: bool = True, targets: Any = (), resources: ResourceManager | None = None) -> list[Any]:
    """Run the initializers in a step of their own if `init`; return the values of `fetches` from a second step."""
    resources = resources or ResourceManager()
    if init:
        evaluate([], targets=[aioflow.global_variables_initializer()], resources=resources)
    graph = default_graph()
    tensors: Any = [graph.as_graph_element(f) for f in fetches]
    return list(evaluate(tensors, targets=targets, resources=resources))


def test_nodes_of_a_variable_have_the_published_names() -> None:
    v = aioflow.Variable([1.0, 2.0], name="v")
    names = [op.name for op in default_graph().get_operations()]
    assert names == [
        "v/Initializer/initial_value",
        "v",
        "v/IsInitialized/VarIsInitializedOp",
        "v/Assign",
        "v/Read/ReadVariableOp",
    ]
    assert (v.name, v.op.name, v.op.type) == ("v:0", "v", "VarHandleOp")
    assert v.initializer.name == "v/Assign"
    assert v.initial_value.name == "v/Initializer/initial_value:0"
    assert aioflow.Variable(1.0).name == "Variable:0"
    assert aioflow.Variable(1.0).name == "Variable_1:0"
    assert aioflow.Variable(1.0, name="v").name == "v_1:0"
    with aioflow.name_scope("outer"):
        assert aioflow.Variable(1.0, name="v").name == "outer/v:0"


def test_variable_attributes() -> None:
    v = aioflow.Variable(np.zeros((2, 3), np.float32), name="v", trainable=False, constraint=aioflow.identity)
    assert v.dtype is aioflow.as_dtype("float32")
    assert v.shape == v.get_shape() == aioflow.TensorShape([2, 3])
    assert v.graph is default_graph()
    assert not v.trainable
    assert v.constraint is aioflow.identity
    assert repr(v) == "<aioflow.Variable 'v:0' shape=(2, 3) dtype=float32>"
    assert v in {v}
    assert v != aioflow.Variable(1.0)
    assert v.handle.dtype is aioflow.as_dtype("resource")


def test_devices_and_colocation() -> None:
    with aioflow.device("/device:CPU:0"):
        v = aioflow.Variable(1.0, name="v")
    assert v.device == "/device:CPU:0"
    for op in (v.initializer, v.value().op, v.assign_add(1.0).op, aioflow.is_variable_initialized(v).op):
        assert b"loc:@v" in op.get_attr("_class")
    cached = aioflow.Variable(1.0, caching_device="/device:CPU:0")
    assert cached.value().op.type == "Identity"
    assert cached.value().device == "/device:CPU:0"


def test_creation_does_not_wait_for_control_dependencies() -> None:
    gate = aioflow.no_op()
    with aioflow.control_dependencies([gate]):
        v = aioflow.Variable(lambda: aioflow.constant(1.0), name="v")
    for op in default_graph().get_operations():
        assert gate not in op.control_inputs
    with aioflow.control_dependencies([gate]):
        assert gate in v.value().op.control_inputs


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, np.int32(3)),
        ([1.5, 2], np.array([1.5, 2], np.float32)),
        (np.float64(1), np.float64(1)),
        ("text", np.array(b"text", object)),
        (True, np.bool_(True)),
        (lambda: np.ones(2), np.ones(2)),
        (np.zeros((0, 2), np.int8), np.zeros((0, 2), np.int8)),
    ],
)
def test_initial_value_determines_the_dtype(value: Any, expected: Any) -> None:
    got = run(aioflow.Variable(value))[0]
    assert got.dtype == expected.dtype
    assert np.array_equal(got, expected)


def test_dtype_argument_sets_the_dtype() -> None:
    v = aioflow.Variable([1, 2], dtype="float64")
    assert v.dtype.name == "float64"
    assert run(v)[0].dtype == np.float64


def test_value_is_read_by_one_shared_node() -> None:
    v = aioflow.Variable([1.0], name="v")
    count = default_graph().version
    assert v.value() is v.value() is aioflow.convert_to_tensor(v) is v._as_graph_element()
    assert default_graph().version == count


def test_reads_inside_control_dependencies_come_after_them() -> None:
    v = aioflow.Variable(1.0, name="v")
    with aioflow.control_dependencies([v.assign(10.0)]):
        after = v + 1.0
        again = aioflow.identity(v)
    assert run(after, again) == [11, 10]


def test_updates_are_values_and_nodes() -> None:
    v = aioflow.Variable(1.0, name="v")
    update = v.assign_add(2.0)
    assert update.op.type == "AssignAddVariableOp"
    assert isinstance(update, aioflow.Variable)
    assert run(update) == [3]
    assert run(update + 1.0) == [4]
    chained = v.assign(5.0).assign_add(1.0).assign_sub(2.0)
    assert run(chained) == [4]
    assert run(aioflow.identity(chained), chained.read_value()) == [4, 4]
    with aioflow.control_dependencies([update]):
        done = aioflow.no_op()
    resources = ResourceManager()
    run(init=True, targets=[done, aioflow.group(v.assign_add(0.0))], resources=resources)
    assert run(v, init=False, resources=resources) == [3]
    bare = v.assign(1.0, read_value=False)
    assert isinstance(bare, aioflow.Operation)
    assert v.assign(1.0, name="mine").op.name == "mine"


def test_reads_through_an_update_come_after_it() -> None:
    v = aioflow.Variable([[1.0, 2.0], [3.0, 4.0]], name="v")
    update = v.assign_add([[10.0, 10.0], [10.0, 10.0]])
    slices = aioflow.IndexedSlices(aioflow.constant([[1.0, 1.0]]), aioflow.constant([0]))
    got = run(update.sparse_read([1]))[0]
    assert got.tolist() == [[13, 14]]
    assert run(update.gather_nd([[0, 1]]))[0].tolist() == [12]
    assert run(update.scatter_add(slices))[0].tolist() == [[12, 13], [13, 14]]
    assert run(update.scatter_nd_update([[0, 0]], [0.0]))[0].tolist() == [[0, 12], [13, 14]]
    counter = aioflow.Variable(0)
    assert run(counter.assign(5).count_up_to(9)) == [5]


OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]


@pytest.mark.parametrize("op", OPERATORS)
def test_operators_from_both_sides(op: Any) -> None:
    a, b = np.array([2.0, 3.0], np.float32), np.array([4.0, 3.0], np.float32)
    v = aioflow.Variable(a)
    c = aioflow.constant(b)
    results = run(op(v, b), op(b, v), op(v, c), op(c, v), op(v, v))
    wanted = (op(a, b), op(b, a), op(a, b), op(b, a), op(a, a))
    for got, expected in zip(results, wanted, strict=True):
        assert np.allclose(got, expected)


def test_more_operators() -> None:
    x = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)
    v, flag = aioflow.Variable(x), aioflow.Variable([True, False])
    wanted = (-x, abs(x), x[1], x[:, 0], x @ x, x @ x)
    for got, expected in zip(run(-v, abs(v), v[1], v[:, 0], v @ v, x @ v), wanted, strict=True):
        assert np.allclose(got, expected)
    logical = run(~flag, flag & True, True | flag, flag ^ flag, False ^ flag)
    assert [g.tolist() for g in logical] == [[False, True], [True, False], [True, True], [False, False], [True, False]]
    with pytest.raises(DTypeError):
        iter(v)
    with pytest.raises(InvalidArgumentError):
        bool(v)


def test_set_shape_adds_knowledge() -> None:
    v = aioflow.Variable([1.0, 2.0], shape=[None])
    assert v.shape == aioflow.TensorShape([None])
    v.set_shape([2])
    assert v.value().shape == v.shape == aioflow.TensorShape([2])
    with pytest.raises(InvalidArgumentError):
        v.set_shape([3])


def test_variable_of_unknown_shape_accepts_any_shape() -> None:
    v = aioflow.Variable([1.0], validate_shape=False, name="v")
    assert v.shape.ndims is None
    assert run(v.assign([[1.0, 2.0]]))[0].tolist() == [[1, 2]]


# -- initial values that depend on others -----------------------------------------------------------------------------


def test_initialized_value_falls_back_to_the_initial_value() -> None:
    v = aioflow.Variable(3.0, name="v")
    safe = v.initialized_value()
    assert run(safe, init=False) == [3]
    resources = ResourceManager()
    run(v.assign(7.0), resources=resources)
    assert run(safe, init=False, resources=resources) == [7]


def test_initializers_that_read_other_variables_run_together() -> None:
    a = aioflow.Variable(aioflow.constant([2.0, 3.0]), name="a")
    b = aioflow.Variable(a * 10.0 + a, name="b")
    c = aioflow.Variable(b.initialized_value() + 1.0, name="c")
    d = aioflow.Variable(aioflow.identity(c), name="d", dtype="float32")
    assert [x.tolist() for x in run(a, b, c, d)] == [[2, 3], [22, 33], [23, 34], [23, 34]]
    assert run(b, init=False, resources=_after(b.initializer))[0].tolist() == [22, 33]
    assert run(d, init=False, resources=_after(d.initializer))[0].tolist() == [23, 34]


def _after(*targets: Any) -> ResourceManager:
    resources = ResourceManager()
    evaluate([], targets=targets, resources=resources)
    return resources


# -- collections ------------------------------------------------------------------------------------------------------


def test_variable_joins_its_collections() -> None:
    a = aioflow.Variable(1.0, name="a")
    b = aioflow.Variable(1.0, name="b", trainable=False)
    c = aioflow.Variable(1.0, name="x/c", trainable=False, collections=[aioflow.GraphKeys.LOCAL_VARIABLES])
    d = aioflow.Variable(1.0, name="d", collections=["mine"])
    assert aioflow.global_variables() == aioflow.all_variables() == [a, b]
    assert aioflow.trainable_variables() == [a, d]
    assert aioflow.local_variables() == aioflow.local_variables("x/") == [c]
    assert aioflow.local_variables("y/") == []
    assert aioflow.get_collection("mine") == [d]
    aioflow.add_to_collections([aioflow.GraphKeys.MODEL_VARIABLES, aioflow.GraphKeys.MOVING_AVERAGE_VARIABLES], a)
    assert aioflow.model_variables() == aioflow.moving_average_variables() == [a]
    aioflow.add_to_collection("mine", 1)
    assert aioflow.get_collection_ref("mine") == [d, 1]


def test_initializers_of_groups_of_variables() -> None:
    a = aioflow.Variable(1.0, name="a")
    b = aioflow.Variable(2.0, name="b", collections=[aioflow.GraphKeys.LOCAL_VARIABLES])
    for init, names in (
        (aioflow.global_variables_initializer(), [b"b"]),
        (aioflow.initialize_all_variables(), [b"b"]),
        (aioflow.local_variables_initializer(), [b"a"]),
        (aioflow.initialize_local_variables(), [b"a"]),
        (aioflow.variables_initializer([a, b]), []),
        (aioflow.initialize_variables([]), [b"a", b"b"]),
    ):
        report = aioflow.report_uninitialized_variables()
        assert run(report, init=False, resources=_after(init))[0].tolist() == names
    checked = aioflow.assert_variables_initialized()
    with pytest.raises(FailedPreconditionError):
        run(init=False, targets=[checked])
    run(init=False, targets=[checked], resources=_after(aioflow.variables_initializer([a, b])))


def test_reports_without_variables() -> None:
    assert run(aioflow.report_uninitialized_variables(), init=False)[0].shape == (0,)
    assert aioflow.assert_variables_initialized() is None


# -- scopes as functions ----------------------------------------------------------------------------------------------


def test_name_scope_function() -> None:
    x = aioflow.constant(1.0)
    with aioflow.name_scope(None, "default", [x]) as scope:
        assert scope == "default/"
        assert aioflow.constant(1.0).op.name == "default/Const"
    with aioflow.name_scope("named", "default") as scope:
        assert scope == "named/"
    with aioflow.op_scope([x], None, "old") as scope:
        assert scope == "old/"
    with aioflow.name_scope("outer"), aioflow.name_scope(None):
        assert aioflow.no_op().name == "NoOp"
    with pytest.raises(InvalidArgumentError), aioflow.name_scope(None, values=[x]):
        pass
    with aioflow.Graph().as_default():
        other = aioflow.constant(1.0)
    with aioflow.name_scope("there", values=[other]):
        assert default_graph() is other.graph
    with pytest.raises(InvalidArgumentError), aioflow.name_scope("both", values=[x, other]):
        pass


def test_init_scope_and_colocation_functions() -> None:
    gate = aioflow.no_op()
    with aioflow.control_dependencies([gate]), aioflow.init_scope():
        assert aioflow.no_op().control_inputs == []
    with aioflow.colocate_with(gate):
        assert aioflow.no_op().colocation_groups() == [f"loc:@{gate.name}".encode()]


# -- a session --------------------------------------------------------------------------------------------------------


async def test_variable_in_a_session() -> None:
    v = aioflow.Variable(1.0, name="v")
    doubled = v * 2.0
    with pytest.raises(FailedPreconditionError):
        await v.load(2.0)
    async with aioflow.Session() as session:
        with pytest.raises(FailedPreconditionError) as caught:
            await session.run(v)
        assert "uninitialized value v" in str(caught.value)
        await session.run(aioflow.global_variables_initializer())
        assert await v.eval() == 1
        await v.load(4.0, session)
        assert await session.run([v, doubled, "v/Read/ReadVariableOp:0"]) == [4, 8, 4]
        assert await session.run(doubled, {v: 10.0}) == 20
        assert await session.run(v.assign_add(1.0)) == 5
        await session.run(v.assign_add(1.0).op)


async def test_fetched_arrays_do_not_change_later() -> None:
    v = aioflow.Variable(np.zeros(8, np.float32), name="v")
    step = v.assign_add(np.ones(8, np.float32))
    async with aioflow.Session() as session:
        await session.run(v.initializer)
        fetched = [await session.run(v)]
        for _ in range(5):
            await session.run(step.op)
            fetched.append(await session.run(v))
    assert [f.tolist() for f in fetched] == [[float(i)] * 8 for i in range(6)]


async def test_changed_feeds_and_fetches_do_not_change_the_variable() -> None:
    v = aioflow.Variable(np.zeros(4, np.float32), name="v")
    x = aioflow.placeholder("float32", [4])
    put = v.assign(x)
    async with aioflow.Session() as session:
        source = np.ones(4, np.float32)
        await session.run(put.op, {x: source})
        source[:] = 9
        fetched = await session.run(v)
        assert fetched.tolist() == [1, 1, 1, 1]
        with contextlib.suppress(ValueError):  # the array may be read-only
            fetched[:] = 7
        assert (await session.run(v)).tolist() == [1, 1, 1, 1]


# -- errors -----------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        aioflow.Variable()
    with pytest.raises(InvalidArgumentError):
        aioflow.Variable(aioflow.placeholder("float32", [None]))
    with pytest.raises(InvalidArgumentError):
        aioflow.Variable([1.0], shape=[2])
    with pytest.raises(InvalidArgumentError):
        aioflow.Variable(1.0, collections="variables")
    with pytest.raises(InvalidArgumentError):
        aioflow.Variable(1.0, constraint=3)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(DTypeError, match="VariableDef"):
        aioflow.Variable(variable_def=object())
    with pytest.raises(DTypeError):
        aioflow.Variable(aioflow.constant(1), dtype="float32")


@pytest.mark.parametrize("imported", [False, True])
async def test_tensor_by_variable_name_is_its_value(imported: bool) -> None:
    # Programs for TensorFlow 1 look up the weights of a graph by name.
    v = aioflow.Variable([1.0, 2.0], name="v")
    aioflow.multiply(v, 3.0, name="y")
    graph = default_graph()
    if imported:
        stored = aioflow.train.export_meta_graph()
        graph = aioflow.Graph()
        with graph.as_default():
            aioflow.train.import_meta_graph(stored)
    found: Any = graph.get_tensor_by_name("v:0")
    assert (found.dtype, found.shape) == (aioflow.float32, [2])
    with graph.as_default():
        doubled = found * 2.0
        (slope,) = aioflow.gradients(graph.get_tensor_by_name("y:0"), [found])
        changes = [
            aioflow.assign(found, [5.0, 6.0]),
            aioflow.assign_add(found, [1.0, 1.0]),
            aioflow.scatter_update(found, [0], [9.0]),
        ]
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            assert (await session.run("v:0")).tolist() == [1.0, 2.0]
            assert (await session.run([found, doubled, slope]))[1].tolist() == [2.0, 4.0]
            for key in (found, "v:0"):
                assert (await session.run("y:0", {key: [7.0, 8.0]})).tolist() == [21.0, 24.0]
            for change, expected in zip(changes, ([5.0, 6.0], [6.0, 7.0], [9.0, 7.0]), strict=True):
                await session.run(change)
                assert (await session.run(found)).tolist() == expected
    with graph.as_default():
        aioflow.train.Saver({"w": found})  # the saver accepts it as the variable
        (again,) = aioflow.import_graph_def(
            graph.as_graph_def(), {"v:0": found}, return_elements=["y:0"], name="again"
        ) or [None]
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            assert (await session.run(again)).tolist() == [3.0, 6.0]
    with pytest.raises(DTypeError, match="an update needs a variable"):
        aioflow.assign(doubled, [1.0, 2.0])

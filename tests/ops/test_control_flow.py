"""Branches, loops, tensor arrays and the functions over rows: values, structure of the graph, errors, gradients."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors, raw_ops
from aioflow.kernels.array.tensor_array import TensorArrayValue
from aioflow.ops import nest
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.support.dense import dense


def value(tensor: Any, feeds: Any = None) -> Any:
    return evaluate([tensor], feeds)[0].tolist()


def types(graph: af.Graph) -> Counter[str]:
    return Counter(op.type for op in graph.get_operations())


# ── cond ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_cond_runs_only_the_taken_branch(graph: af.Graph) -> None:
    v = af.Variable(0.0)
    pred = af.placeholder("bool", ())
    taken = af.cond(pred, lambda: v.assign_add(1.0).value(), lambda: v.assign_add(100.0).value())
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        assert await session.run(taken, {pred: True}) == 1
        assert await session.run(taken, {pred: False}) == 101
        assert await session.run(v) == 101


def test_captured_tensor_has_one_switch_per_branch(graph: af.Graph) -> None:
    x = af.placeholder("float32", ())
    af.cond(x > 0, lambda: x * x + x, lambda: x - 1.0)
    assert types(graph)["Switch"] == 3  # one for the predicate, and one for each branch
    assert types(graph)["Merge"] == 1


async def test_tensors_inside_control_flow_cannot_be_fed_or_fetched(graph: af.Graph) -> None:
    inner: list[af.Tensor] = []

    def keep(x: af.Tensor) -> af.Tensor:
        inner.append(x + 1)
        return inner[-1]

    af.cond(af.constant(True), lambda: keep(af.constant(1)), lambda: af.constant(2))
    af.while_loop(lambda i: i < 3, keep, [0])
    assert len(inner) == 2
    for tensor in inner:
        assert not graph.is_fetchable(tensor)
        assert not graph.is_feedable(tensor)
    async with af.Session() as session:
        for tensor in inner:
            with pytest.raises(errors.InvalidArgumentError, match="may not be fetched"):
                await session.run(tensor)


def test_branch_constants_depend_on_their_pivot(graph: af.Graph) -> None:
    af.cond(af.placeholder("bool", ()), lambda: af.constant(1.0, name="one"), lambda: af.constant(2.0, name="two"))
    assert [c.name for c in graph.get_operation_by_name("cond/one").control_inputs] == ["cond/switch_t"]
    assert [c.name for c in graph.get_operation_by_name("cond/two").control_inputs] == ["cond/switch_f"]


def test_leaked_branch_tensor_is_dead_if_not_taken(graph: af.Graph) -> None:
    leaked: list[af.Tensor] = []
    pred = af.placeholder("bool", ())

    def side() -> af.Tensor:
        leaked.append(af.constant(1.0) + 1.0)
        return leaked[0]

    af.cond(pred, side, lambda: af.constant(0.0))
    outside = af.identity(leaked[0])
    assert value(outside, {pred: True}) == 2
    with pytest.raises(errors.InvalidArgumentError, match="does not have a value"):
        value(outside, {pred: False})


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda p: af.cond(True, lambda: 1, lambda: 2), errors.DTypeError, "Python bool"),
        (lambda p: af.cond(p, 1, lambda: 2), errors.DTypeError, "not a function"),  # type: ignore[call-overload]
        (lambda p: af.cond(p, lambda: 1), errors.DTypeError, "true_fn and false_fn"),
        (lambda p: af.cond(p, lambda: None, lambda: 2), errors.InvalidArgumentError, "true_fn must return"),
        (lambda p: af.cond(p, lambda: 1, lambda: None), errors.InvalidArgumentError, "false_fn must return"),
        (lambda p: af.cond(p, lambda: 1, lambda: 2.0), errors.DTypeError, "different dtypes"),
        (lambda p: af.cond(p, lambda: (1, 2), lambda: (2, 1, 3)), errors.InvalidArgumentError, "structures"),
        (lambda p: af.cond(af.constant(3), lambda: 1, lambda: 2), errors.DTypeError, "dtype"),
        (lambda p: af.cond(af.constant([True]), lambda: 1, lambda: 2), errors.InvalidArgumentError, "rank"),
        (lambda p: af.case([]), errors.DTypeError, "pairs"),
        (lambda p: af.case([(1, lambda: 2)]), errors.DTypeError, "bool tensor"),  # type: ignore[list-item]  # wrong on purpose
        (lambda p: af.case([p]), errors.DTypeError, "pair"),
        (lambda p: af.switch_case(0, []), errors.DTypeError, "no branches"),
        (lambda p: af.switch_case(0, [(0, lambda: 1), (0, lambda: 2)]), errors.InvalidArgumentError, "two branches"),
    ],
)
def test_cond_and_case_reject_wrong_arguments(
    graph: af.Graph, build: Callable[[Any], Any], error: type, said: str
) -> None:
    with pytest.raises(error, match=said):
        build(af.placeholder("bool", ()))


def test_strict_keeps_a_list_of_one(graph: af.Graph) -> None:
    pred = af.constant(True)
    assert isinstance(af.cond(pred, lambda: [1], lambda: [2]), af.Tensor)
    assert isinstance(af.cond(pred, lambda: [1], lambda: [2], strict=True), list)


def test_case_without_default_fails_if_no_condition_holds(graph: af.Graph) -> None:
    x = af.placeholder("float32", ())
    chosen = af.case([(x > 1, lambda: x), (x > 2, lambda: x * 2.0)])
    assert value(chosen, {x: 3.0}) == 3
    with pytest.raises(errors.InvalidArgumentError, match="none of the conditions"):
        value(chosen, {x: 0.0})
    both = af.case([(x > 1, lambda: x), (x > 2, lambda: x * 2.0)], default=lambda: -x, exclusive=True)
    assert value(both, {x: 1.5}) == 1.5
    assert value(both, {x: 0.5}) == -0.5
    with pytest.raises(errors.InvalidArgumentError, match="more than one condition"):
        value(both, {x: 3.0})


BRANCHES: list[Callable[..., Any]] = [
    lambda x, y: af.cond(af.reduce_sum(x) > 0, lambda: x * y, lambda: x + y * y),
    lambda x, y: af.cond(af.reduce_sum(x) > 0, lambda: x, lambda: x * 2.0) * y,
    lambda x, y: af.cond(af.reduce_sum(x) > 0, lambda: (x, y), lambda: (y * y, x)),
    lambda x, y: af.cond(y[0] > 0, lambda: af.cond(x[0] > 0, lambda: x * y, lambda: y * 3.0), lambda: af.exp(x)),
    lambda x, y: af.cond(x[0] > 0, lambda: af.concat([x, y], 0), lambda: x * 3.0),  # shapes differ
    lambda x, y: af.cond(x[0] > 0, lambda: af.gather(x, [0, 0]), lambda: af.gather(x * y, [1])),
]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("build", BRANCHES)
def test_gradients_of_branches(build: Callable[..., Any], sign: float) -> None:
    check_gradients(build, sign * np.array([0.5, 1.5]), np.array([2.0, -0.7]))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_second_gradients_of_branches(sign: float) -> None:
    def slope(x: af.Tensor) -> Any:
        return af.gradients(af.cond(x[0] > 0, lambda: x**3, lambda: af.exp(x * 2.0)), x)[0]

    check_gradients(slope, sign * np.array([0.5, 1.5]))


async def test_gradients_by_a_variable_that_one_side_reads(graph: af.Graph) -> None:
    v = af.Variable([1.0, 2.0])
    pred = af.placeholder("bool", ())
    made = af.cond(pred, lambda: v.read_value() * 3.0, lambda: af.zeros([2]))
    gathered = af.cond(pred, lambda: v.sparse_read([1, 1]), lambda: af.zeros([2]))
    grads = af.gradients([made, gathered], v)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        assert (await session.run(grads, {pred: True}))[0].tolist() == [3, 5]
        assert (await session.run(grads, {pred: False}))[0].tolist() == [0, 0]


# ── while_loop ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_nodes_of_a_loop(graph: af.Graph) -> None:
    n = af.placeholder("int32", ())
    result = af.while_loop(lambda i: i < n, lambda i: i + 1, [0])
    found = types(graph)
    assert {t: found[t] for t in ("Enter", "Merge", "LoopCond", "Switch", "NextIteration", "Exit")} == {
        "Enter": 2, "Merge": 1, "LoopCond": 1, "Switch": 1, "NextIteration": 1, "Exit": 1,
    }  # fmt: skip
    merge = graph.get_operation_by_name("while/Merge")
    assert [t.op.name for t in merge.inputs] == ["while/Enter", "while/NextIteration"]
    invariant = graph.get_operation_by_name("while/Less/Enter")
    assert invariant.get_attr("is_constant")
    assert invariant.get_attr("frame_name") == b"while"
    assert result.op.control_flow_context is None
    assert [v.exit for v in merge.control_flow_context.variables] == [result]
    constant = graph.get_operation_by_name("while/add/y")
    assert [c.name for c in constant.control_inputs] == ["while/Identity"]
    assert value(result, {n: 4}) == 4


def test_loop_invariant_has_one_enter(graph: af.Graph) -> None:
    x = af.placeholder("float32", ())
    af.while_loop(lambda s: s < x, lambda s: s + x * x, [x])
    assert types(graph)["Enter"] == 2


async def test_nodes_of_invariants_alone_run_once_per_iteration(graph: af.Graph) -> None:
    # Without a control edge from the pivot, such nodes would run once more when the loop ends.
    v = af.Variable(0.0)
    one = af.constant(1.0)

    def body(i: af.Tensor) -> Any:
        with af.control_dependencies([v.assign_add(one, read_value=False)]):
            return i + 1

    loop = af.while_loop(lambda i: i < 5, body, [0])
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        assert await session.run(loop) == 5
        assert await session.run(v) == 5


async def test_control_dependencies_from_outside(graph: af.Graph) -> None:
    v = af.Variable(0.0)
    before = v.assign_add(10.0, read_value=False)

    def body(i: af.Tensor, s: af.Tensor) -> Any:
        with af.control_dependencies([before]):
            return i + 1, s + v

    _, total = af.while_loop(lambda i, s: i < 3, body, [0, 0.0])
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        assert await session.run(total) == 30
        assert await session.run(v) == 10


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_loop_waits_for_outer_control_dependencies(graph: af.Graph, executor: str) -> None:
    # Exits must not wait: they belong to the loop's frame, and the nodes that they would wait for do not.
    v = af.Variable(2.0)
    x = af.constant(3.0)
    with af.control_dependencies([v.assign_add(1.0)]):
        _, y = af.while_loop(lambda i, y: i < 2, lambda i, y: [i + 1, y * v], [0, x])
        (slope,) = dense(af.gradients(y, x))
    assert [op.name for op in graph.get_operations() if op.type == "Exit" and op.control_inputs] == []
    async with af.Session(config=af.SessionConfig(executor=executor)) as session:
        await session.run(af.global_variables_initializer())
        assert await session.run(y) == 27
        assert await session.run(slope) == 16
        assert await session.run(v) == 4


async def test_variable_created_in_a_loop_is_lifted_out(graph: af.Graph) -> None:
    def body(i: af.Tensor, s: af.Tensor) -> Any:
        return i + 1, s + af.get_variable("w", initializer=2.0)

    _, total = af.while_loop(lambda i, s: i < 3, body, [0, 0.0])
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        assert await session.run(total) == 6


def leak(graph: af.Graph) -> Any:
    inside: list[af.Tensor] = []

    def body(i: af.Tensor) -> af.Tensor:
        inside.append(i + 1)
        return inside[0]

    af.while_loop(lambda i: i < 3, body, [0])
    return inside[0]


def test_tensors_of_a_loop_cannot_be_used_outside(graph: af.Graph) -> None:
    inside = leak(graph)
    with pytest.raises(errors.InvalidArgumentError, match="inside a while loop") as caught:
        af.identity(inside)
    assert caught.value.node == "while/add"
    with pytest.raises(errors.InvalidArgumentError, match="inside a while loop"):
        af.while_loop(lambda i: i < 3, lambda i: i + inside, [0])
    with pytest.raises(errors.InvalidArgumentError, match="inside a while loop"), af.control_dependencies([inside]):
        af.constant(1)


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda x: af.while_loop(lambda: True, lambda: 1, []), errors.InvalidArgumentError, "no loop variables"),
        (lambda x: af.while_loop(True, lambda i: i, [0]), errors.DTypeError, "not a function"),  # type: ignore[call-overload]
        (lambda x: af.while_loop(lambda i: i, lambda i: i, [0]), errors.DTypeError, "bool scalar"),
        (lambda x: af.while_loop(lambda a: a > 0, lambda a: a, [x]), errors.InvalidArgumentError, "rank"),
        (
            lambda x: af.while_loop(lambda i: i < 1, lambda i: i, [0], parallel_iterations=0),
            errors.DTypeError,
            ">= 1|positive",
        ),
        (lambda x: af.while_loop(lambda i: i < 1, lambda i: (i, i), [0]), errors.InvalidArgumentError, "structure"),
        (lambda x: af.while_loop(lambda i: i < 1, lambda i: x[0], [0]), errors.DTypeError, "changes its dtype"),
        (
            lambda x: af.while_loop(lambda i, a: i < 1, lambda i, a: (i, af.concat([a, a], 0)), [0, x]),
            errors.InvalidArgumentError,
            r"has shape \(3,\) on entry but \(6,\) after one iteration",
        ),
        (
            lambda x: af.while_loop(lambda i, a: i < 1, lambda i, a: (i, a), [0, x], [(), (4,)]),
            errors.InvalidArgumentError,
            "does not hold on entry",
        ),
        (
            lambda x: af.while_loop(lambda i, a: i < 1, lambda i, a: (i, a), [0, x], [()]),
            errors.InvalidArgumentError,
            "shape_invariants do not fit",
        ),
        (
            lambda x: af.while_loop(lambda i: i < 1, lambda i: i, [0], maximum_iterations=[1, 2]),
            errors.InvalidArgumentError,
            "must be a scalar",
        ),
    ],
)
def test_while_loop_rejects_wrong_arguments(
    graph: af.Graph, build: Callable[[Any], Any], error: type, said: str
) -> None:
    with pytest.raises(error, match=said):
        build(af.placeholder("float32", (3,)))


def test_gradients_within_a_body(graph: af.Graph) -> None:
    # Newton's method: the derivative is computed inside the body.
    def body(i: af.Tensor, x: af.Tensor) -> Any:
        y = x * x - 2.0
        return i + 1, x - y / dense(af.gradients(y, x))[0]

    _, root = af.while_loop(lambda i, x: i < 6, body, [0, 1.0])
    assert value(root) == pytest.approx(2**0.5, rel=1e-6)


def test_update_input_is_checked(graph: af.Graph) -> None:
    x, y = af.constant(1.0), af.constant(2)
    merge = raw_ops.Merge(inputs=[x, x]).output.op
    before = graph.mutations
    with pytest.raises(errors.DTypeError):
        merge.update_input(1, y)
    with pytest.raises(errors.InvalidArgumentError, match="no such input"):
        merge.update_input(2, x)
    with af.Graph().as_default(), pytest.raises(errors.InvalidArgumentError, match="another graph"):
        merge.update_input(1, af.constant(1.0))
    assert graph.mutations == before
    z = af.constant(3.0)
    merge.update_input(1, z)
    assert merge.inputs == (x, z)
    assert graph.mutations == before + 1


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [(((2, 3), (2, 3)), [2, 3]), (((2, 3), (4, 3)), [None, 3]), (((2, 3), (3,)), None), (((2,), None), None)],
)
def test_shapes_of_merge(graph: af.Graph, shapes: Any, expected: Any) -> None:
    merged = raw_ops.Merge(inputs=[af.placeholder("float32", s) for s in shapes])
    assert (None if merged.output.dims is None else list(merged.output.dims)) == expected
    assert merged.value_index.dims == ()


def test_loops_and_branches_are_exported_and_imported(graph: af.Graph) -> None:
    n = af.placeholder("int32", (), name="n")
    looped = af.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + i * n), [0, 0])[1]
    chosen = af.cond(looped > 10, lambda: looped * 2, lambda: looped)
    definition = graph.as_graph_def()
    with af.Graph().as_default():
        m = af.placeholder("int32", ())
        found = [af.import_graph_def(definition, {"n": m}, [chosen.name], name=name)[0] for name in ("one", "two")]
        assert [v.tolist() for v in evaluate(found, {m: 4})] == [48, 48]
        assert [v.tolist() for v in evaluate(found, {m: 2})] == [2, 2]


# ── Assert, Print, Abort ─────────────────────────────────────────────────────────────────────────────────────────────


def test_assert_stops_the_step_with_its_data(graph: af.Graph) -> None:
    x = af.placeholder("float32", (None,))
    check = af.Assert(af.reduce_all(x > 0), [af.constant(b"x must be positive:"), x], summarize=2)
    with af.control_dependencies([check]):
        y = af.identity(x)
    assert value(y, {x: [1.0, 2.0]}) == [1, 2]
    with pytest.raises(errors.InvalidArgumentError, match=r"x must be positive: \[-1.0 2.0...\]") as caught:
        value(y, {x: [-1.0, 2.0, 3.0]})
    assert caught.value.node == "Assert"


def test_print(graph: af.Graph, capfd: pytest.CaptureFixture[str]) -> None:
    x = af.placeholder("int32", (None,))
    state: dict[str, Any] = {}
    shown = af.Print(x, [x, af.constant(2.5)], "seen: ", first_n=2, summarize=3)
    for _ in range(3):
        assert evaluate([shown], {x: [1, 2, 3, 4]}, state=state)[0].tolist() == [1, 2, 3, 4]
    assert capfd.readouterr().err == "seen: [1 2 3...][2.5]\n" * 2
    evaluate([], {}, targets=[raw_ops.PrintV2(input="done", output_stream="stdout")])
    assert capfd.readouterr().out == "done\n"
    check_gradients(lambda x: af.Print(x, [x]) * x, np.array([1.0, 2.0]))


def test_abort_raises_unless_told_otherwise(graph: af.Graph) -> None:
    with pytest.raises(errors.AbortedError, match="enough"):
        evaluate([], {}, targets=[raw_ops.Abort(error_msg="enough")])
    evaluate([], {}, targets=[raw_ops.Abort(error_msg="enough", exit_without_error=True)])


# ── TensorArray ──────────────────────────────────────────────────────────────────────────────────────────────────────


def array(**options: Any) -> af.TensorArray:
    return af.TensorArray("float32", **options)


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: array(size=2).write(2, 1.0).flow, errors.InvalidArgumentError, "has no index 2"),
        (lambda: array(size=2, dynamic_size=True).write(-1, 1.0).flow, errors.InvalidArgumentError, "has no index -1"),
        (lambda: array(size=2).write(0, 1.0).write(0, 1.0).flow, errors.InvalidArgumentError, "written to already"),
        (lambda: array(size=2).read(0), errors.InvalidArgumentError, "nothing has been written"),
        (lambda: array(size=-1).flow, errors.InvalidArgumentError, "negative size"),
        (lambda: array(size=2).unstack(af.zeros([3])).flow, errors.InvalidArgumentError, "has no index 2"),
        (lambda: array(size=2).split(af.zeros([3]), [1, 1]).flow, errors.InvalidArgumentError, "lengths do not fit"),
        (lambda: array(size=0, infer_shape=False).stack(), errors.UnimplementedError, "no elements"),
        (lambda: array(size=1).write(0, 1.0).concat(), errors.InvalidArgumentError, "scalars"),
    ],
)
def test_errors_of_tensor_arrays(graph: af.Graph, build: Callable[[], Any], error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        value(build())


def test_element_is_read_once_unless_clear_after_read_is_false(graph: af.Graph) -> None:
    for clear in (True, False):
        filled = array(size=1, clear_after_read=clear).write(0, 1.0)
        first = filled.read(0)
        with af.control_dependencies([first]):
            second = filled.read(0)
        if clear:
            with pytest.raises(errors.FailedPreconditionError, match="twice"):
                value(second)
        else:
            assert value(second) == 1


def test_static_errors_of_tensor_arrays(graph: af.Graph) -> None:
    with pytest.raises(errors.DTypeError, match="a different dtype"):
        array(size=2).write(0, af.constant(1))
    with pytest.raises(errors.InvalidArgumentError, match="a different shape"):
        array(size=2).write(0, [1.0]).write(1, [1.0, 2.0])
    with pytest.raises(errors.InvalidArgumentError, match="new or from a handle"):
        array(size=2, handle=array(size=1).handle)


def test_unwritten_elements_of_known_shape_are_zero(graph: af.Graph) -> None:
    assert value(array(size=3, element_shape=[2]).write(1, [1.0, 2.0]).stack()) == [[0, 0], [1, 2], [0, 0]]


def test_gradient_arrays_add_up(graph: af.Graph) -> None:
    source = array(size=2)
    grads = source.grad("g").write(0, 1.0).write(0, 2.0).write(1, 5.0)
    assert value(grads.stack()) == [3, 5]
    assert value(source.grad("g", flow=grads.flow).read(0)) == 3
    assert value(grads.size()) == 2


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda g: g.write(1, 1.0).write(1, [1.0]).read(1), "shape does not fit"),
        (lambda g: g.write(1, [1.0]).write(1, 1.0).read(1), "shape does not fit"),
        (lambda g: g.write(1, [1.0]).write(1, [1.0, 2.0]).read(1), "shape does not fit"),
        (lambda g: g.write(0, [1.0, 2.0]).read(0), "shape does not fit"),
        (lambda g: g.write(1, g.write(1, [1.0]).read(1)).read(1), "been read"),
    ],
)
def test_gradients_of_one_element_have_its_shape(graph: af.Graph, build: Callable[..., Any], said: str) -> None:
    gradients = array(size=3, infer_shape=False).write(0, [1.0]).grad("g")
    with pytest.raises(errors.InvalidArgumentError, match=said):
        value(build(gradients))


ARRAYS: list[Callable[..., Any]] = [
    lambda x: rows(x).stack(),
    lambda x: rows(x).gather([1, 1, 0]),
    lambda x: rows(x).read(1) * rows(x).read(0),
    lambda x: rows(x).concat(),
    lambda x: af.TensorArray("float64", size=2, clear_after_read=False).write(0, x[1]).write(1, x[0] * x[1]).stack(),
    lambda x: af.TensorArray("float64", size=3, infer_shape=False).split(x, [1, 0, 1]).concat(),
    lambda x: (
        af.TensorArray("float64", size=4, infer_shape=False, clear_after_read=False)
        .scatter([3, 0], x)
        .gather([0, 3, 0])
    ),
    lambda x: growing_array().split(x, [1, 0, 1]).write(3, x[:1] * x[1:]).concat(),
    lambda x: growing_array().split(x, [1, 1]).write(5, x).gather([1, 0]),
    lambda x: growing_array().unstack(x).write(2, x[0] * x[1]).stack(),
]


def growing_array() -> af.TensorArray:
    return af.TensorArray("float64", size=0, dynamic_size=True, infer_shape=False, clear_after_read=False)


def rows(x: af.Tensor) -> af.TensorArray:
    return af.TensorArray("float64", size=2, clear_after_read=False).unstack(x)


@pytest.mark.parametrize("build", ARRAYS)
def test_gradients_of_tensor_arrays(build: Callable[..., Any]) -> None:
    check_gradients(build, np.array([[0.5, 1.5, -1.0], [2.0, 0.3, 0.7]]))


def test_gradient_arrays_of_two_gradients_calls_are_separate(graph: af.Graph) -> None:
    x = af.constant([[1.0], [2.0]])
    y = array(size=2).unstack(x).stack()
    first, second = (dense(af.gradients(y * y, x))[0] for _ in range(2))
    assert [v.tolist() for v in evaluate([first, second])] == [[[2.0], [4.0]]] * 2


def test_a_closed_array_is_refused(graph: af.Graph) -> None:
    made = array(size=1).write(0, 1.0)
    with af.control_dependencies([made.flow]), af.control_dependencies([made.close()]):
        after = made.identity()
        refused = [after.read(0), after.concat(), raw_ops.TensorArraySizeV3(handle=made.handle, flow_in=after.flow)]
    for each in refused:
        with pytest.raises(errors.InvalidArgumentError, match="is closed"):
            value(each)


def test_array_that_is_closed_during_a_write_keeps_the_write_whole() -> None:
    attrs = {"dtype": af.float32, "element_shape": (), "dynamic_size": False}
    made = TensorArrayValue("a", 1, {**attrs, "clear_after_read": False, "identical_element_shapes": True})
    made.adds_up = True
    closing = threading.Thread(target=made.close)

    class Closing(np.ndarray[Any, Any]):
        def __add__(self, other: Any) -> Any:
            closing.start()
            closing.join(0.05)  # waits for the write, which is not over
            return 3.0

    made.write(0, np.zeros(()).view(Closing))
    made.write(0, np.ones(()))
    closing.join()
    assert made.closed


async def test_steps_do_not_share_an_array(graph: af.Graph) -> None:
    x = af.placeholder("float32", ())
    stacked = array(size=1).write(0, x).stack()
    async with af.Session() as session:
        for i in (1.0, 2.0):
            assert (await session.run(stacked, {x: i})).tolist() == [i]


# ── functions over rows ──────────────────────────────────────────────────────────────────────────────────────────────


def test_row_functions_of_empty_inputs_and_wrong_arguments(graph: af.Graph) -> None:
    none = af.placeholder("float32", (None, 2))
    empty = np.zeros((0, 2), np.float32)
    total = af.foldl(lambda a, row: a + af.reduce_sum(row), none, initializer=af.constant(3.0))
    assert value(total, {none: empty}) == 3
    with pytest.raises(errors.InvalidArgumentError, match="no rows"):
        af.foldl(lambda a, row: a + row, af.zeros([0, 2]))
    functions: list[Any] = [af.map_fn, af.scan, af.foldl, af.foldr]
    for function in functions:
        with pytest.raises(errors.InvalidArgumentError, match="a scalar has no rows"):
            function(lambda *rows: rows[0], 1.0)
        with pytest.raises(errors.DTypeError, match="wrong type for fn"):
            function(3, [1.0])


def test_map_fn_checks_its_structure(graph: af.Graph) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="does not return the structure"):
        af.map_fn(lambda row: (row, row), af.constant([1.0, 2.0]))
    with pytest.raises(errors.InvalidArgumentError, match="first dimensions differ"):
        af.map_fn(lambda rows: rows[0], (af.zeros([2]), af.zeros([3])), dtype="float32")


# ── nest ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nest_flattens_in_the_order_of_sorted_keys() -> None:
    structure = {"b": (1, [2, 3]), "a": 4}
    assert nest.flatten(structure) == [4, 1, 2, 3]
    assert nest.pack(structure, [40, 10, 20, 30]) == {"b": (10, [20, 30]), "a": 40}
    assert list(nest.pack(structure, [40, 10, 20, 30])) == ["b", "a"]
    assert nest.map_structure(lambda x, y: x + y, structure, structure) == {"b": (2, [4, 6]), "a": 8}
    assert nest.describe(structure) == "{'a': ., 'b': (., [., .])}"
    with pytest.raises(errors.InvalidArgumentError):
        nest.pack(structure, [1])
    with pytest.raises(errors.InvalidArgumentError):
        nest.check_same_structure([1, 2], [1, [2]])
    nest.check_same_structure([1, (2,)], (1, [2]))


# ── composite tensors ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("taken", [True, False])
def test_cond_returns_indexed_slices(graph: af.Graph, taken: bool) -> None:
    values, shape = af.constant([[1.0], [2.0]]), af.constant([3, 1])
    made = af.cond(
        af.constant(taken),
        lambda: af.IndexedSlices(values, af.constant([0, 1]), shape),
        lambda: af.IndexedSlices(values * 10.0, af.constant([2, 2]), shape),
    )
    assert isinstance(made, af.IndexedSlices)
    assert value(af.convert_to_tensor(made)) == ([[1], [2], [0]] if taken else [[0], [0], [30]])


@pytest.mark.parametrize("chosen", [True, False])
def test_indices_of_int32_and_int64_become_int64(graph: af.Graph, chosen: bool) -> None:
    def short() -> af.IndexedSlices:
        return af.IndexedSlices(af.constant([1.0]), af.constant([2]))

    def long() -> af.IndexedSlices:
        return af.IndexedSlices(af.constant([3.0, 4.0]), af.constant([0, 1], af.int64))

    branches: Any = (lambda: [short(), long()], lambda: [long(), short()])
    made: list[Any] = af.cond(af.constant(chosen), *branches)
    assert [s.indices.dtype for s in made] == [af.int64, af.int64]
    assert value(made[0].indices) == ([2] if chosen else [0, 1])
    assert value(made[1].values) == ([3, 4] if chosen else [1])


def test_a_dense_and_a_sparse_branch_are_refused(graph: af.Graph) -> None:
    values = af.constant([1.0])
    with pytest.raises(errors.InvalidArgumentError, match="different structures") as caught:
        af.cond(af.constant(True), lambda: af.IndexedSlices(values, af.constant([0])), lambda: values)
    assert caught.value.expected == "IndexedSlices"


def test_while_loop_carries_indexed_slices(graph: af.Graph) -> None:
    start = af.IndexedSlices(af.constant([[1.0, 2.0]]), af.constant([1]), af.constant([3, 2]))

    def body(slices: af.IndexedSlices) -> af.IndexedSlices:
        values = af.concat([slices.values, slices.values * 2.0], 0)
        return af.IndexedSlices(values, af.concat([slices.indices, slices.indices + 1], 0), slices.dense_shape)

    few = lambda s: af.shape(s.values)[0] < 2  # noqa: E731  # used twice
    made = af.while_loop(few, body, [start], [af.TensorShape([None, 2])], return_same_structure=True)[0]
    assert value(af.convert_to_tensor(made)) == [[0, 0], [1, 2], [2, 4]]
    with pytest.raises(errors.InvalidArgumentError, match="shape_invariants for sizes that may vary"):
        af.while_loop(few, body, [start])


def test_the_number_of_entries_may_change_in_a_loop(graph: af.Graph) -> None:
    start = af.SparseTensor([[0, 1]], [3.0], [2, 2])
    more = af.SparseTensor([[1, 0]], [1.0], [2, 2])
    for shapes in (None, [af.TensorShape([]), af.TensorShape([2])], [af.TensorShape([]), af.TensorShape(None)]):
        made = af.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, af.sparse_add(s, more)), (0, start), shapes)[1]
        assert value(af.sparse_tensor_to_dense(made)) == [[0, 3], [3, 0]]
        assert made.values.shape == af.TensorShape([None])
    wrong = [af.TensorShape([]), af.TensorShape([2, 2])]
    with pytest.raises(errors.InvalidArgumentError, match="dense_shape"):
        af.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s), (0, start), wrong)


def test_while_loop_carries_sparse_tensors(graph: af.Graph) -> None:
    start = af.SparseTensor([[0, 1]], [3.0], [2, 2])
    made = af.while_loop(
        lambda i, s: i < 3, lambda i, s: (i + 1, s.with_values(s.values * 2.0)), (0, start), maximum_iterations=2
    )[1]
    assert isinstance(made, af.SparseTensor)
    assert value(made.values) == [12.0]
    with pytest.raises(errors.DTypeError, match="no rows"):
        af.map_fn(lambda row: row, start)

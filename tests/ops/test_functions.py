# The decorator's return type depends on how it is used.
# mypy: disable-error-code="untyped-decorator"
"""Functions: tracing, calls, order of effects, captures, gradients, definitions and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.graph.graphdef import FunctionArg, FunctionDef, FunctionRef, GraphDef, NodeDef
from aioflow.ops.function.copying import inline
from aioflow.ops.function.library import find_function
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.support.dense import dense

X = np.array([0.5, -1.2, 2.0])
Y = np.array([1.5, 0.3, -0.7])
F32 = af.float32


def run(*steps: Any) -> list[Any]:
    """Initialize all variables, and run one step after another in a session; a step is (fetches, feeds) or fetches."""

    async def go() -> list[Any]:
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            return [await session.run(*(s if isinstance(s, tuple) else (s,))) for s in steps]

    return asyncio.run(go())


def nodes(graph: af.Graph) -> list[tuple[str, str]]:
    return [(node.name, node.op) for node in graph.as_graph_def().nodes]


# ── tracing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_trace_per_signature() -> None:
    traced = []

    @af.function
    def f(x: Any, factor: float = 2.0) -> Any:
        traced.append((x.dtype.name, x.dims, factor))
        return x * factor

    a, b = af.placeholder(F32, [3]), af.placeholder(F32, [None])
    made = [f(a), f(a + 1.0), f(a, 2.0), f(x=a), f(b), f(a, 3.0), f(np.float32(1.0)), f(np.zeros(3, np.float32))]
    assert traced == [
        ("float32", (3,), 2.0),
        ("float32", (None,), 2.0),
        ("float32", (3,), 3.0),
        ("float32", (), 2.0),
    ]
    assert [y.op.type for y in made] == ["PartitionedCall"] * 8
    assert len({y.op.name for y in made}) == 8
    assert len(af.get_default_graph().functions) == 4
    values = evaluate(made, {a: [1, 2, 3], b: [4]})
    assert [v.tolist() for v in values] == [[2, 4, 6], [4, 6, 8], [2, 4, 6], [2, 4, 6], [8], [3, 6, 9], 2, [0, 0, 0]]


def test_each_graph_has_its_own_trace() -> None:
    f = af.function(lambda x: x + 1.0, name="plus_one")
    for _ in range(2):
        with af.Graph().as_default() as graph:
            x = af.constant([1.0])
            assert evaluate([f(x), f(x)])[1].tolist() == [2.0]
            assert list(graph.functions) == ["plus_one"]


def test_true_and_one_are_different_arguments() -> None:
    f = af.function(lambda x, flag: x + (10.0 if flag is True else flag))
    x = af.constant(1.0)
    assert evaluate([f(x, True), f(x, 1), f(x, 1.0), f(x, 1)]) == [11.0, 2.0, 2.0, 2.0]
    assert len(af.get_default_graph().functions) == 3


def test_body_is_not_part_of_the_graph(graph: af.Graph) -> None:
    inside: list[Any] = []

    def body(x: Any) -> Any:
        with af.name_scope("layer"):
            inside.append(af.exp(x, name="e"))
        return inside[0] * 2.0

    f = af.function(body, name="f")
    x = af.placeholder(F32, [3], name="x")
    with af.name_scope("outer"), af.control_dependencies([af.no_op(name="before")]), af.device("/cpu:0"):
        y = f(x)
    assert nodes(graph) == [("x", "Placeholder"), ("outer/before", "NoOp"), ("outer/f", "PartitionedCall")]
    assert inside[0].op.name == "layer/e"
    copied = graph.get_operation_by_name("outer/f/layer/e")
    assert copied.call is y.op
    assert copied.device == "/device:CPU:0"
    assert copied.source is not None
    assert copied.source.function == "body"
    with pytest.raises(errors.InvalidArgumentError, match="inside function 'f'"):
        _ = inside[0] + 1.0
    with pytest.raises(errors.InvalidArgumentError, match="inside function 'f'"):
        af.cond(x[0] > 0.0, lambda: inside[0], lambda: x)
    with pytest.raises(errors.InvalidArgumentError, match="may not be fetched"):
        run(inside[0])


def test_a_signature_traces_once() -> None:
    traced = []

    @af.function(input_signature=[af.TensorSpec([None, 2], F32, name="rows"), af.TensorSpec([], af.int32)])
    def f(x: Any, n: Any) -> Any:
        traced.append(x.dims)
        return af.reduce_sum(x) + af.cast(n, F32)

    assert evaluate([f([[1.0, 2.0]], 3), f(np.ones((4, 2)), 1)]) == [6.0, 9.0]
    assert traced == [(None, 2)]
    assert f.get_concrete_function().signature == "f(rows: float32, n: int32) -> (output_0: float32)"
    with pytest.raises(errors.InvalidArgumentError) as caught:
        f([1.0, 2.0], 3)
    assert (caught.value.expected, caught.value.actual) == ("(?, 2)", "(2,)")
    with pytest.raises(errors.DTypeError):
        f(af.constant([[1, 2]]), 3)
    with pytest.raises(errors.InvalidArgumentError, match="wrong shape"):
        f([[1.0, 2.0]], [1, 2])
    short = af.function(lambda a, b: a, input_signature=[af.TensorSpec([])])
    with pytest.raises(errors.InvalidArgumentError, match="has an input signature"):
        short(1.0, 2.0)


def test_a_concrete_function() -> None:
    v = af.Variable([1.0, 1.0, 1.0], name="v")
    f = af.function(lambda a, b: {"sum": a + b * v}, name="f")
    made = f.get_concrete_function(af.TensorSpec([3], F32), np.ones(3, np.float32))
    assert made.name == "f"
    assert made.captured_inputs == [v.handle]
    assert made.signature == "f(a: float32, b: float32, captured: resource) -> (output_0: float32)"
    assert run(made([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]))[0]["sum"].tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(errors.InvalidArgumentError, match="wrong number of arguments"):
        made([1.0, 2.0, 3.0])
    with pytest.raises(errors.InvalidArgumentError, match="wrong shape"):
        made([1.0], [1.0])
    assert made is f.get_concrete_function(af.constant([1.0, 2.0, 3.0]), af.TensorSpec([3], F32))


def test_function_returns_structures_none_and_operations() -> None:
    v = af.Variable(1.0)

    @af.function
    def f(pairs: Any, last: Any) -> Any:
        return {"a": [p * last for p in pairs], "none": None, "node": af.assign_add(v, last).op, "python": (v,)}

    made = f([af.constant(2.0), af.constant(3.0)], af.constant(10.0))
    assert made["none"] is None
    assert isinstance(made["node"], af.Operation)
    first, node, second = run(made["a"], made["node"], v)
    assert (first, node, second) == ([20.0, 30.0], None, 21.0)


def test_composite_tensors_are_arguments_and_results() -> None:
    @af.function
    def f(slices: Any, x: Any) -> Any:
        assert isinstance(slices, af.IndexedSlices)
        return af.IndexedSlices(slices.values * x, slices.indices, slices.dense_shape)

    given = af.IndexedSlices(af.constant([[1.0], [2.0]]), af.constant([2, 0]), af.constant([3, 1]))
    made = f(given, af.constant(10.0))
    assert isinstance(made, af.IndexedSlices)
    assert made.values.op.type == "PartitionedCall"
    assert evaluate([af.convert_to_tensor(made)])[0].tolist() == [[20.0], [0.0], [10.0]]


def test_methods_and_bounded_self_calls_are_traced() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = af.constant(3.0)

        @af.function
        def __call__(self, x: Any) -> Any:
            return x * self.w

    @af.function
    def power(x: Any, n: int) -> Any:
        return x * power(x, n - 1) if n > 1 else x

    assert evaluate([Model()(af.constant(2.0)), power(af.constant(2.0), 5)]) == [6.0, 32.0]


def test_recursion_is_refused(graph: af.Graph) -> None:
    @af.function
    def f(x: Any) -> Any:
        return g(x) + 1.0

    @af.function
    def g(x: Any) -> Any:
        return f(x) * 2.0

    with pytest.raises(errors.UnimplementedError) as caught:
        f(af.constant(1.0))
    assert caught.value.actual == "f → g → f"
    assert graph.functions == {}
    assert [op.type for op in graph.get_operations()] == ["Const"]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(errors.DTypeError, match="not a function"):
        af.function(3)  # type: ignore[call-overload]  # wrong on purpose
    with pytest.raises(errors.DTypeError, match="hashable"):
        af.function(lambda x, s: x)(1.0, {1, 2})
    f = af.function(lambda a, b: af.matmul(a, b), input_signature=[af.TensorSpec(None), af.TensorSpec(None)], name="f")
    with pytest.raises(errors.InvalidArgumentError) as caught:
        f(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
    assert caught.value.node == "f/MatMul"


def test_output_shapes_are_inferred_per_call() -> None:
    f = af.function(lambda a: af.reshape(a, [-1, 2]) * 2.0, input_signature=[af.TensorSpec(None)])
    assert f(af.placeholder(F32, [3, 4])).dims == (6, 2)
    assert f(af.placeholder(F32, None)).dims == (None, 2)


# ── captures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_variables_created_inside_are_created_once() -> None:
    @af.function
    def layer(x: Any) -> Any:
        with af.variable_scope("layer", reuse=af.AUTO_REUSE):
            w = af.get_variable("w", [3, 2], initializer=af.ones_initializer())
        return af.matmul(x, w)

    a, b = layer(af.ones([1, 3])), layer(af.ones([4, 3]))
    assert [v.name for v in af.global_variables()] == ["layer/w:0"]
    assert [v.tolist() for v in run([a, b])[0]] == [[[3.0, 3.0]], [[3.0, 3.0]] * 4]
    (gradient,) = af.gradients(af.reduce_sum(a) + af.reduce_sum(b), af.global_variables())
    assert run(gradient)[0].tolist() == [[5.0, 5.0]] * 3


def test_capture_of_a_loop_tensor_is_refused_outside() -> None:
    kept: list[Any] = []

    def body(i: Any, x: Any) -> Any:
        kept.append(af.function(lambda a: a * af.cast(i, F32)))
        return i + 1, x + kept[0](x)

    i, x = af.while_loop(lambda i, x: i < 4, body, [af.constant(0), af.constant(1.0)])
    assert evaluate([i, x]) == [4, 24.0]
    with pytest.raises(errors.InvalidArgumentError, match="inside a while loop"):
        kept[0](af.constant(1.0))


def test_nodes_inside_wait_for_nodes_outside() -> None:
    v = af.Variable(1.0)
    update = v.assign_add(5.0)

    @af.function
    def f(x: Any) -> Any:
        with af.control_dependencies([update]):
            return af.cond(x > 0.0, lambda: v.read_value() + x, lambda: x)

    assert run(f(af.constant(1.0)), v) == [7.0, 6.0]


# ── effects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_effects_run_with_the_call_in_program_order() -> None:
    v = af.Variable(1.0, name="v")

    @af.function
    def f(x: Any) -> Any:
        v.assign(x)
        first = v + 0.0
        v.assign(v * 10.0)
        v.assign_add(1.0)
        return first, v + 0.0

    x = af.placeholder(F32, [])
    first, second = f(x)
    assert first.op.type == "StatefulPartitionedCall"
    assert run((first, {x: 2.0}), v, ([first, second], {x: 3.0}), (first.op, {x: 4.0}), v) == [
        2.0, 21.0, [3.0, 31.0], None, 41.0
    ]  # fmt: skip
    with af.control_dependencies([first]):
        after = v.read_value()
    assert run((after, {x: 5.0}))[0] == 51.0


@pytest.mark.parametrize("positive", [True, False])
def test_effects_in_nested_control_flow_keep_their_order(positive: bool) -> None:
    v = af.Variable(1.0, name="v")
    double = af.function(lambda: af.assign(v, v * 2.0).op)

    @af.function
    def f(x: Any) -> Any:
        v.assign(x)
        af.cond(x > 0.0, lambda: v.assign_add(1.0).op, lambda: v.assign_sub(1.0).op)
        double()
        af.while_loop(lambda i: i < 3, lambda i: _then(v.assign_add(100.0), i + 1), [0])
        double()
        seen = v + 0.0
        v.assign(-7.0)
        return seen

    x = af.placeholder(F32, [])
    y = f(x)
    start = 5.0 if positive else -5.0
    inner = (start + (1 if positive else -1)) * 2
    assert run((y, {x: start}), v) == [(inner + 300) * 2, -7.0]


def _then(update: Any, value: Any) -> Any:
    with af.control_dependencies([update]):
        return af.identity(value)


def test_call_runs_once_and_only_if_needed() -> None:
    v = af.Variable(0.0)
    f = af.function(lambda x: (x + 1.0, x * v.assign_add(1.0)))
    a, b = f(af.constant(3.0))
    assert run([a, b], a, v, b.op, v) == [[4.0, 3.0], 4.0, 2.0, None, 3.0]


def test_a_fed_call_does_not_run() -> None:
    v = af.Variable(0.0)
    f = af.function(lambda x: x + v.assign_add(1.0))
    y = f(af.constant(3.0))
    assert run((y * 2.0, {y: 10.0}), v, y * 2.0, v) == [20.0, 0.0, 8.0, 1.0]


def test_calls_in_branches_run_with_the_branch() -> None:
    v = af.Variable(0.0)
    f = af.function(lambda x: x + v.assign_add(1.0))
    p = af.placeholder(af.bool, [])
    y = af.cond(p, lambda: f(af.constant(1.0)), lambda: af.constant(-1.0))
    assert run((y, {p: False}), v, (y, {p: True}), v) == [-1.0, 0.0, 2.0, 1.0]


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────

square_sine = af.function(lambda a, b: af.sin(a * b) * a)


@af.function
def everything(a: Any, b: Any) -> Any:
    """Nest calls, branches and loops, with a custom gradient."""

    @af.custom_gradient
    def cube(t: Any) -> Any:
        square = t * t
        return square * t, lambda dy: dy * square * 3.0

    chosen = af.cond(af.reduce_sum(a) > 0.0, lambda: square_sine(a, b), lambda: cube(b) - a)
    inner = af.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, af.sin(t) * chosen + t), [0, b])[1]
    return inner + square_sine(b, a), cube(chosen)


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_of_calls(sign: int) -> None:
    check_gradients(square_sine, sign * X, Y)
    check_gradients(everything, sign * X, Y)
    check_gradients(
        lambda x, y: af.cond(x[0] > 0.0, lambda: everything(x, y)[0], lambda: square_sine(x, y)), X * sign, Y
    )


def test_second_gradients_of_calls() -> None:
    check_gradients(lambda x, y: af.gradients(everything(x, y), [x, y]), X, Y, rtol=1e-4)


def test_gradients_of_calls_in_loops() -> None:
    def loop(x: Any, y: Any) -> Any:
        body = lambda i, t: (i + 1, square_sine(t, y) + 0.1 * everything(y, t)[1])  # noqa: E731  # a loop's body
        return af.while_loop(lambda i, t: i < 3, body, [0, x])[1]

    check_gradients(loop, X, Y)


def test_gradients_inside_a_function() -> None:
    inner = af.function(lambda a, b: af.gradients(everything(a, b)[1], [a, b]))
    x, y = af.placeholder(af.float64, [3]), af.placeholder(af.float64, [3])
    feeds = {x: X, y: Y}
    for mine, other in zip(
        evaluate(inner(x, y), feeds), evaluate(dense(af.gradients(everything(x, y)[1], [x, y])), feeds), strict=True
    ):
        np.testing.assert_allclose(mine, other)
    check_gradients(inner, X, Y, rtol=1e-4)


def test_grad_func_overrides_the_gradient() -> None:
    @af.function
    def back(a: Any, b: Any, dy: Any) -> Any:
        return dy * b * 2.0, dy * a * 3.0

    given = af.function(lambda a, b: a * b, grad_func=back)
    plain = af.function(lambda a, b: a * b, grad_func=lambda op, dy: [dy * op.inputs[1] * 5.0, None])
    x, y = af.constant(X), af.constant(Y)
    found = evaluate(dense(af.gradients(given(x, y), [x, y])) + dense(af.gradients(plain(x, y), [x])))
    for mine, other in zip(found, (Y * 2, X * 3, Y * 5), strict=True):
        np.testing.assert_allclose(mine, other)
    check_gradients(lambda a: af.gradients(given(a, a), a), X)
    with pytest.raises(errors.InvalidArgumentError, match="may only read its arguments"):
        af.function(lambda a: a, grad_func=af.function(lambda a, dy: dy * y))(x)


def test_an_overridden_gradient_of_a_call() -> None:
    f = af.function(lambda a: a * 2.0)
    x = af.constant(X)
    with af.get_default_graph().gradient_override_map({"PartitionedCall": "NobodyRegisteredIt"}):
        y = f(x)
    with pytest.raises(errors.UnimplementedError, match="NobodyRegisteredIt"):
        af.gradients(y, x)


def test_inputs_of_a_call_cannot_be_changed() -> None:
    y = af.function(lambda a: a * 2.0)(af.constant(1.0))
    with pytest.raises(errors.FailedPreconditionError, match="control_dependencies"):
        y.op.add_control_input(af.no_op())
    with pytest.raises(errors.FailedPreconditionError, match="keeps its inputs"):
        y.op.update_input(0, af.constant(2.0))


def test_symbolic_gradient() -> None:
    f = af.function(lambda a, b: (af.sin(a) * b, a + b), name="f")
    x, y = af.placeholder(af.float64, [3]), af.placeholder(af.float64, [3])
    made = f(x, y * x)
    function = made[0].op.attrs["f"]
    dys = [af.constant(X), af.constant(Y)]
    found = af.raw_ops.SymbolicGradient(input=[x, y * x, *dys], Tout=[af.float64] * 2, f=function)
    first, second = evaluate(found, {x: X, y: Y})
    np.testing.assert_allclose(first, X * np.cos(X) * Y * X + Y)
    np.testing.assert_allclose(second, X * np.sin(X) + Y)
    assert [t.dims for t in found] == [(3,), (3,)]


# ── branches and loops as nodes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cond", "holds"),
    [(True, True), (False, False), (0, False), (-2, True), (0.0, False), (b"", False), (b"x", True), ([0.0], True),
     (np.zeros([0, 2]), False)],
)  # fmt: skip
def test_if(cond: Any, holds: bool) -> None:
    f = af.placeholder(
        af.as_dtype(np.asarray(cond).dtype) if not isinstance(cond, bytes) else af.string, np.shape(cond)
    )
    y, z = af.If(f, [af.constant(3.0)], lambda x: [x * 2.0, af.constant(1)], lambda x: [x + 0.5, af.constant(2)])
    assert y.op.type == "StatelessIf"
    assert evaluate([y, z], {f: cond}) == ([6.0, 1] if holds else [3.5, 2])


def test_if_with_effects_and_without_outputs() -> None:
    v = af.Variable(0.0)
    p = af.placeholder(af.bool, [])
    node = af.If(p, [af.constant(3.0)], lambda x: v.assign_add(x).op, lambda x: None)
    assert (node.type, node.outputs) == ("If", [])
    assert run((node, {p: True}), v, (node, {p: False}), v) == [None, 3.0, None, 3.0]


def test_case_and_for_and_partitioned_call() -> None:
    x, y = af.constant(3.0), af.constant(5.0)
    branches = [lambda a: a, lambda a: a * y, lambda a: a - y]
    made = [af.Case(i, [x], branches)[0] for i in (-1, 0, 1, 2, 3)]
    assert evaluate(made) == [-2.0, 3.0, 15.0, -2.0, -2.0]
    up = af.For(1, 6, 2, [x], lambda i, a: a * af.cast(i, F32))
    down = af.For(6, 1, -2, [x], lambda i, a: a * af.cast(i, F32))
    none = af.For(1, 6, -1, [x], lambda i, a: a * 0.0)
    assert evaluate([*up, *down, *none]) == [45.0, 144.0, 3.0]
    assert evaluate(af.PartitionedCall([x, y], lambda a, b: [a * b, a + b])) == [15.0, 8.0]
    with pytest.raises(errors.InvalidArgumentError, match="needs branches"):
        af.Case(0, [x], [])


def test_while_carries_only_what_changes(graph: af.Graph) -> None:
    v = af.Variable([1.0, 2.0])
    scale = af.placeholder(F32, [2], name="scale")
    i, total = af.While([0, [0.0, 0.0]], lambda i, t: i < 3, lambda i, t: [i + 1, t + v * scale])
    assert total.op.type == "StatelessWhile"
    assert [t.dims for t in total.op.outputs] == [(), (2,), (), (2,)]
    entering = [op for op in graph.get_operations() if op.type == "Enter" and not op.attrs["is_constant"]]
    assert len(entering) == 2
    assert [np.asarray(r).tolist() for r in run(([i, total], {scale: [1.0, 10.0]}))[0]] == [3, [3.0, 60.0]]
    grown = af.While([0, [1.0]], lambda i, t: i < 3, lambda i, t: [i + 1, af.concat([t, t], 0)])
    assert (grown[1].dims, evaluate(grown)[1].tolist()) == ((None,), [1.0] * 8)


def test_while_with_effects() -> None:
    v = af.Variable(0.0)
    (n,) = af.While([0], lambda i: v.assign_add(1.0) < 100.0, lambda i: _then(v.assign_add(10.0), i + 1))
    assert n.op.type == "While"
    assert run(n.op, v) == [None, 100.0]
    assert run(n, v) == [9, 100.0]


def test_if_and_while_reject_wrong_arguments() -> None:
    x = af.constant(1.0)
    with pytest.raises(errors.DTypeError, match="different dtypes"):
        af.If(True, [x], lambda a: a, lambda a: af.constant(1))
    with pytest.raises(errors.DTypeError, match="return values of the same dtypes"):
        af.While([x], lambda a: a < 1.0, lambda a: [a, a])
    with pytest.raises(errors.InvalidArgumentError, match="one scalar"):
        af.While([x], lambda a: [a < 1.0, a], lambda a: a)
    with pytest.raises(errors.DTypeError, match="wrong type for the function"):
        af.If(True, [x], lambda a: a, 3)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(errors.DTypeError, match="must be a list"):
        af.If(True, x, lambda a: a, lambda a: a)  # type: ignore[arg-type]  # wrong on purpose
    other = af.function(lambda a: a).get_concrete_function(af.TensorSpec([], af.int32))
    with pytest.raises(errors.DTypeError, match="wrong inputs"):
        af.PartitionedCall([x], other)


# ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def library(*functions: FunctionDef, call: str, args: Sequence[str] = ("x",), outputs: int = 1) -> GraphDef:
    attrs: dict[str, Any] = {"Tin": (F32,) * len(args), "Tout": (F32,) * outputs, "f": FunctionRef(call)}
    made = [NodeDef(a, "Placeholder", (), "", {"dtype": F32, "shape": None}) for a in dict.fromkeys(args)]
    return GraphDef((*made, NodeDef("y", "PartitionedCall", tuple(args), "", attrs)), 1, functions)


def plus(name: str, *body: NodeDef, result: str = "sum", **more: Any) -> FunctionDef:
    default = (NodeDef("sum", "AddV2", ("a", "a"), "", {"T": F32}),)
    return FunctionDef(name, (FunctionArg("a", F32),), (FunctionArg("out", F32),), body or default, (result,), **more)


def call_of(name: str, called: str) -> NodeDef:
    return NodeDef(name, "PartitionedCall", ("a",), "", {"Tin": (F32,), "Tout": (F32,), "f": FunctionRef(called)})


def test_a_definition_holds_the_call_and_the_library(graph: af.Graph) -> None:
    inner = af.function(lambda a: af.exp(a), name="inner")
    outer = af.function(lambda a: inner(a) * 2.0, name="outer")
    af.function(lambda a: a, name="unused").get_concrete_function(af.TensorSpec([]))
    x = af.placeholder(F32, [2], name="x")
    y = outer(x)
    definition = graph.as_graph_def()
    assert [(n.name, n.op) for n in definition.nodes] == [("x", "Placeholder"), ("outer", "PartitionedCall")]
    assert [f.name for f in definition.functions] == ["inner", "outer"]
    assert [n.op for n in definition.functions[1].nodes] == ["PartitionedCall", "Const", "Mul"]
    assert definition.functions[1].inputs == (FunctionArg("a", F32, (2,)),)
    assert GraphDef.from_bytes(definition.to_bytes()) == definition
    assert GraphDef.from_json(definition.to_json()) == definition
    with af.Graph().as_default() as again:
        x2, y2 = af.import_graph_def(definition, return_elements=["x:0", "outer:0"], name="")
        assert again.as_graph_def() == definition
        assert y2.dims == y.dims == (2,)
        assert evaluate([y2], {x2: [0.0, 1.0]})[0].tolist() == pytest.approx([2.0, 2 * np.e])
        af.import_graph_def(definition, name="twice")  # importing the same library again is not a conflict


def test_differentiated_call_is_exported_inlined(graph: af.Graph) -> None:
    inner = af.function(lambda a: af.exp(a), name="inner")
    outer = af.function(lambda a: inner(a) * a, name="outer")
    x = af.placeholder(F32, [2], name="x")
    kept, y = outer(x), outer(x)
    (g,) = dense(af.gradients(y, [x]))
    definition = graph.as_graph_def()
    kinds = {n.name: n.op for n in definition.nodes}
    assert (kinds[kept.op.name], kinds[y.op.name], kinds[f"{y.op.name}/inner"]) == (
        "PartitionedCall", "IdentityN", "IdentityN"
    )  # fmt: skip
    with af.Graph().as_default():
        x2, *again = af.import_graph_def(definition, return_elements=["x:0", kept.name, y.name, g.name], name="")
        values = evaluate(again, {x2: [0.5, 1.0]})
    for mine, other in zip(values, evaluate([kept, y, g], {x: [0.5, 1.0]}), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_stateful_functions_and_own_gradients_survive_a_definition() -> None:
    with af.Graph().as_default() as graph:
        v = af.Variable(1.0, name="v")
        back = af.function(lambda a, dy: dy * 7.0, name="back")
        f = af.function(lambda a: (v.assign_add(a), a * 1.0)[1], name="f", grad_func=back)
        f(af.placeholder(F32, [], name="x"))
        definition = graph.as_graph_def()
    assert [(f.name, f.gradient, f.control_returns) for f in definition.functions] == [
        ("back", "", ()), ("f", "back", ("AssignAddVariableOp",))
    ]  # fmt: skip
    with af.Graph().as_default():
        x, y, handle, start = af.import_graph_def(definition, return_elements=["x:0", "f:0", "v:0", "v/Assign"])
        (g,) = af.gradients(y, [x])
        read = af.raw_ops.ReadVariableOp(resource=handle, dtype=F32)
        feeds = {x: 2.0}
        assert run(start, (y, feeds), read, (g, feeds))[1:] == [2.0, 3.0, 7.0]


def test_import_accepts_a_function_name_as_op() -> None:
    node = NodeDef("z", "double", ("x",))
    definition = GraphDef((*library(plus("double"), call="double").nodes, node), 1, (plus("double"),))
    x, y, z = af.import_graph_def(definition, return_elements=["x:0", "y:0", "z:0"])
    assert evaluate([y, z], {x: 4.0}) == [8.0, 8.0]


@pytest.mark.parametrize(
    ("definition", "error", "said"),
    [
        (library(call="none"), errors.NotFoundError, "no function 'none'"),
        (library(plus("f", call_of("sum", "f")), call="f"), errors.UnimplementedError, "calls itself"),
        (library(plus("f", call_of("sum", "g")), plus("g", call_of("sum", "f")), call="f"), errors.UnimplementedError,
         "calls itself"),
        (library(plus("f"), call="f", args=("x", "z")), errors.InvalidArgumentError, "wrong inputs"),
        (library(plus("f"), call="f", outputs=2), errors.InvalidArgumentError, "do not match the dtypes"),
        (library(plus("f", result="nowhere"), call="f"), errors.InvalidArgumentError, "returns 'nowhere'"),
        (library(plus("f", NodeDef("sum", "AddV2", ("a", "b"), "", {"T": F32})), call="f"), errors.InvalidArgumentError,
         "unknown input 'b'"),
        (library(plus("f", NodeDef("sum", "Shape", ("a",), "", {"T": F32, "out_type": af.int32})), call="f"),
         errors.DTypeError, "wrong dtype"),
    ],
)  # fmt: skip
def test_wrong_definitions_are_refused(
    graph: af.Graph, definition: GraphDef, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        af.import_graph_def(definition)
    assert graph.get_operations() == []
    assert graph.functions == {}


def test_two_functions_of_one_name_are_refused(graph: af.Graph) -> None:
    af.import_graph_def(library(plus("f"), call="f"))
    other = plus("f", NodeDef("sum", "Mul", ("a", "a"), "", {"T": F32}))
    with pytest.raises(errors.AlreadyExistsError, match="a different function 'f'"):
        af.import_graph_def(library(other, call="f"), name="again")
    with pytest.raises(errors.InvalidArgumentError, match="occurs twice"):
        library(plus("f"), other, call="f")


@pytest.mark.parametrize(
    "fields",
    [{"name": ""}, {"name": "two words"}, {"inputs": (FunctionArg("a b", F32),)}, {"returns": ()},
     {"returns": ("a:b",)}, {"gradient": None}, {"nodes": ("a",)}],
)  # fmt: skip
def test_malformed_function_defs_are_refused(fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "f", "inputs": (FunctionArg("a", F32),), "outputs": (FunctionArg("b", F32),),
                            "returns": ("a",)}  # fmt: skip
    FunctionDef(**good)
    with pytest.raises(errors.InvalidArgumentError):
        FunctionDef(**{**good, **fields})


# ── calls with less static information than the trace ────────────────────────────────────────────────────────────────


def scalar_function(name: str, make: Any) -> Any:
    return af.function(make, [af.TensorSpec([], F32)], name).get_concrete_function()


def test_loop_checks_its_condition_shape_at_run_time() -> None:
    scalar_function("holds", lambda x: x > 1.0)
    scalar_function("half", lambda x: x * 0.5)
    x = af.placeholder(F32)
    (y,) = af.raw_ops.While(input=[x], cond="holds", body="half")
    assert run((y, {x: np.float32(8)})) == [1.0]
    with pytest.raises(errors.InvalidArgumentError, match="must be a scalar"):
        run((y, {x: np.array([8, 4], np.float32)}))


def test_traced_shapes_are_not_assumed_for_other_calls() -> None:
    made = scalar_function(
        "f", lambda x: [af.expand_dims(x, 0), af.while_loop(lambda v: v > 1.0, lambda v: v / 2, [x])]
    )
    x = af.placeholder(F32)
    call = af.raw_ops.PartitionedCall(args=[x], f=made.name, Tout=[F32, F32])
    assert [t.dims for t in call] == [None, None]
    one, two = evaluate([*call], {x: np.float32(8)})
    assert [one.tolist(), two.tolist()] == [[8.0], 1.0]


@pytest.mark.parametrize("extra", [[], [1.0, 1.0]])
def test_symbolic_gradient_requires_one_gradient_per_output(extra: list[float]) -> None:
    scalar_function("square", lambda x: x * x)
    assert evaluate(af.raw_ops.SymbolicGradient(input=[3.0, 1.0], f="square", Tout=[F32])) == [6.0]
    with pytest.raises(errors.InvalidArgumentError, match="'square'") as caught:
        af.raw_ops.SymbolicGradient(input=[3.0, *extra], f="square", Tout=[F32])
    assert caught.value.actual == f"{1 + len(extra)} inputs"


def test_inlined_loop_frame_is_named_after_the_scope() -> None:
    graph = af.get_default_graph()
    body = lambda x: af.while_loop(lambda v: v > 1.0, lambda v: v / 2, [x])  # noqa: E731
    x = af.placeholder(F32, [])
    function = find_function(graph, af.function(body)(x).op.attrs["f"].name)
    made = inline(function, [x])[0]
    with af.name_scope("scope"):
        made += inline(function, [x])[0]
    frames = {op.get_attr("frame_name") for op in graph.get_operations() if op.type == "Enter"}
    assert {b"while", b"scope/while"} <= frames
    assert not [frame for frame in frames if frame.startswith(b"/")]
    assert run((made, {x: 8.0}))[0] == [1.0, 1.0]


def test_inlined_loop_waits_at_its_enters_only() -> None:
    # Edges into a loop may only pass through an Enter.
    counter = af.Variable(1.0)
    halved = af.function(lambda x: af.while_loop(lambda v: v > 1.0, lambda v: v / 2, [x]))
    function = find_function(af.get_default_graph(), halved(af.constant(8.0)).op.attrs["f"].name)
    with af.control_dependencies([counter.assign_add(5.0)]):
        [made] = inline(function, [af.constant(8.0)])[0]
    assert run(made, counter) == [1.0, 6.0]

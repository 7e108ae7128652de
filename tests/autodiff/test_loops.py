"""Gradients of while loops and of branches in them, of first and higher order, against central differences."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph.opdef import define_op
from aioflow.kernels.registry import kernel
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.support.dense import dense

X, W = np.array([0.5, 0.3]), np.array([0.7, -0.4])


def times(n: Any, body: Callable[..., Any], *start: Any, **options: Any) -> Any:
    """Run `body` in a loop of `n` iterations and return its results."""
    _, *made = af.while_loop(lambda i, *_: i < n, lambda i, *v: (i + 1, *body(i, *v)), (0, *start), **options)
    return made[0] if len(made) == 1 else made


def invariant(x: Any, w: Any) -> Any:
    return times(4, lambda i, s: [af.tanh(s * w) + x], x)


def never_run(x: Any, w: Any) -> Any:
    return times(0, lambda i, s: [s * w], x)


def swapped(x: Any, w: Any) -> Any:
    return times(3, lambda i, a, b: (b * w, a * a), x, w)


def ignored(x: Any, w: Any) -> Any:
    """Return a loop in which the new value of a variable does not depend on its old value."""
    return times(3, lambda i, a, b: (b * 2.0, w * b), x, x * w)


def one_of_two_used(x: Any, w: Any) -> Any:
    return times(3, lambda i, a, b: (a * w + b, af.sin(b)), x, w)[0]


def growing(x: Any, w: Any) -> Any:
    shapes = [af.TensorShape([]), af.TensorShape([None])]
    return times(3, lambda i, s: [af.concat([s * w[0], x], 0)], x, shape_invariants=shapes)


def broadcast_over_unknown_shapes(x: Any, w: Any) -> Any:
    shapes = [af.TensorShape([]), af.TensorShape(None)]
    return times(3, lambda i, s: [s * w + af.reduce_sum(s)], x, shape_invariants=shapes)


def nested(x: Any, w: Any) -> Any:
    return times(3, lambda i, s: [s + af.sin(s) * times(i + 1, lambda j, t: [af.tanh(t * w + s)], x)], x)


def three_deep(x: Any, w: Any) -> Any:
    return times(2, lambda i, s: [times(2, lambda j, t: [times(2, lambda k, u: [af.sin(u * w + t)], t * s)], s)], x)


def bounded(x: Any, w: Any) -> Any:
    return times(9, lambda i, s: [af.sin(s * w)], x, maximum_iterations=3)


def predicate_of_the_value(x: Any, w: Any) -> Any:
    return af.while_loop(lambda s: af.reduce_sum(s) < 9.0, lambda s: s * (2.0 + w * w), [x * x])


def branch_in_loop(x: Any, w: Any) -> Any:
    def body(i: Any, s: Any) -> list[Any]:
        return [af.cond(af.equal(i % 2, 0), lambda: af.tanh(s * w) * x, lambda: af.exp(-s * s) + w)]

    return times(5, body, x)


def branches_of_unlike_shapes_in_loop(x: Any, w: Any) -> Any:
    def body(i: Any, s: Any) -> list[Any]:
        y = af.cond(af.equal(i % 2, 0), lambda: af.concat([s, x], 0), lambda: s * w)
        return [s + af.reduce_sum(af.sin(y))]

    return times(4, body, x)


def matmul_of_the_branch_that_is_taken(x: Any, w: Any) -> Any:
    """Return a loop with a matmul in one branch, whose values have no shape while the other branch is taken."""

    def product(s: Any) -> Any:
        return af.reduce_sum(af.matmul(af.reshape(s * s, [2, 1]), af.reshape(w, [1, 2])))

    def body(i: Any, s: Any) -> list[Any]:
        return [s * af.cond(af.equal(i % 2, 0), lambda: product(s), lambda: af.reduce_sum(w))]

    return times(3, body, x)


def loop_in_branch(x: Any, w: Any) -> Any:
    return af.cond(af.reduce_sum(x) > 0, lambda: times(3, lambda i, s: [af.tanh(s * w) + x], x), lambda: x * w)


def loop_in_branch_in_loop(x: Any, w: Any) -> Any:
    def body(i: Any, s: Any) -> list[Any]:
        inner: Callable[[], Any] = lambda: times(2, lambda j, t: [af.tanh(t * w) + x], s)  # noqa: E731  # reads better
        return [af.cond(af.equal(i % 2, 0), inner, lambda: af.sin(s) * w)]

    return times(4, body, x)


def branches_of_unknown_shapes_in_loop(x: Any, w: Any) -> Any:
    x, w = (af.placeholder_with_default(t, [None]) for t in (x, w))

    def body(i: Any, s: Any) -> list[Any]:
        return [af.cond(af.equal(i % 2, 0), lambda: af.sin(s * w) * x, lambda: af.reduce_sum(af.exp(s)) * w)]

    return times(4, body, x)


def branch_in_branch_in_loop(x: Any, w: Any) -> Any:
    def body(i: Any, s: Any) -> list[Any]:
        inner: Callable[[], Any] = lambda: af.cond(i < 2, lambda: s * w, lambda: af.sin(s))  # noqa: E731  # as above
        return [af.cond(af.equal(i % 2, 0), inner, lambda: s + w)]

    return times(5, body, x)


def gathered(x: Any, w: Any) -> Any:
    """Return a loop in which each iteration adds a sparse gradient by `w`."""
    return times(3, lambda i, s: [s * af.reduce_sum(af.gather(w, [0, 1, 0])) + af.gather(x, [1, 0])], x)


def gathered_from_a_variable_of_the_loop(x: Any, w: Any) -> Any:
    return times(3, lambda i, s: [af.gather(s, [1, 0]) * w + x], x)


def loop_in_other_branch(x: Any, w: Any) -> Any:
    return loop_in_branch(-x, w)


def gathered_in_a_branch(x: Any, w: Any) -> Any:
    return af.cond(x[0] > 0, lambda: af.gather(w, [0, 0]) * x, lambda: x)


def matmuls(x: Any, w: Any) -> Any:
    weights = af.reshape(af.concat([x, w], 0), [2, 2])
    return times(3, lambda i, s: [af.tanh(af.matmul(s, weights))], af.reshape(x, [1, 2]))


def map_over_rows(x: Any, w: Any) -> Any:
    return af.map_fn(lambda row: af.tanh(row * w[0]) + row * row, x)


def scan_of_rows(x: Any, w: Any) -> Any:
    return af.scan(lambda a, row: af.tanh(a * w[0] + row), x, initializer=af.zeros((), "float64"))


def fold_left(x: Any, w: Any) -> Any:
    return af.foldl(lambda a, row: a * row + w[0], x)


def fold_right(x: Any, w: Any) -> Any:
    return af.foldr(lambda a, row: af.sin(a) * row, x, initializer=w[1])


def scan_in_map(x: Any, w: Any) -> Any:
    rows = af.reshape(x * w[0], [1, -1]) * af.ones([2, 1], "float64")
    return af.map_fn(lambda row: af.reduce_sum(af.scan(lambda a, r: af.sin(a * r) + w[1], row)), rows)


def array_read_and_written(x: Any, w: Any) -> Any:
    source = af.TensorArray("float64", size=2, clear_after_read=False).unstack(x)
    made = af.TensorArray("float64", size=4)

    def body(i: Any, s: Any, out: Any) -> Any:
        s = af.tanh(s * w[0] + source.read(i % 2))
        return i + 1, s, out.write(i, s * s)

    _, _, made = af.while_loop(lambda i, *_: i < 4, body, (0, w[1], made))
    return made.stack()


PROGRAMS = [
    invariant,
    never_run,
    swapped,
    ignored,
    one_of_two_used,
    growing,
    broadcast_over_unknown_shapes,
    nested,
    three_deep,
    bounded,
    predicate_of_the_value,
    branch_in_loop,
    branches_of_unlike_shapes_in_loop,
    branches_of_unknown_shapes_in_loop,
    matmul_of_the_branch_that_is_taken,
    loop_in_branch,
    loop_in_branch_in_loop,
    branch_in_branch_in_loop,
    gathered,
    gathered_from_a_variable_of_the_loop,
    gathered_in_a_branch,
    loop_in_other_branch,
    matmuls,
    map_over_rows,
    scan_of_rows,
    fold_left,
    fold_right,
    scan_in_map,
    array_read_and_written,
]


def check_order(program: Callable[..., Any], order: int) -> None:
    def derived(x: Any, w: Any) -> Any:
        made = program(x, w)
        ys = made if isinstance(made, list) else [made]
        for _ in range(order - 1):
            ys = [af.convert_to_tensor(g) for g in af.gradients(ys, [x, w]) if g is not None]
        return ys if len(ys) > 1 else ys[0]

    check_gradients(derived, X, W)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any], order: int) -> None:
    check_order(program, order)


@pytest.mark.parametrize("program", [invariant, branch_in_loop, scan_of_rows], ids=lambda p: p.__name__)
def test_gradients_of_third_order(program: Callable[..., Any]) -> None:
    """Only a few programs are checked here; the sweep covers all of them."""
    check_order(program, 3)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_session_computes_the_same(program: Callable[..., Any], graph: af.Graph) -> None:
    """A session runs branches and loops as native code; the values equal those of the primitive form, bit for bit."""
    x, w = af.placeholder("float64", (2,)), af.placeholder("float64", (2,))
    first = [g for g in af.gradients(program(x, w), [x, w]) if g is not None]
    second = [g for g in af.gradients(first, [x, w]) if g is not None]
    fetches = [af.convert_to_tensor(g) for g in first + second]
    feeds = {x: X, w: W}
    with af.Session() as session:
        for mine, primitive in zip(session.run_sync(fetches, feeds), evaluate(fetches, feeds), strict=True):
            assert np.array_equal(mine, primitive)


async def test_coroutines_in_the_body(graph: af.Graph) -> None:
    """A loop with async nodes stays in primitive form, as does the gradient loop that calls a coroutine."""

    async def square(v: Any) -> Any:
        await asyncio.sleep(0)
        return v * v

    async def double(v: Any, grad: Any) -> Any:
        await asyncio.sleep(0)
        return 2.0 * v * grad

    def gradient(op: Any, grad: Any) -> Any:
        return af.py_coroutine(double, [op.inputs[0], grad], "float64")

    def body(i: Any, s: Any) -> list[Any]:
        squared = af.py_coroutine(square, [s], "float64", gradient=gradient)
        squared.set_shape(())
        return [squared * x]

    x = af.placeholder("float64", ())
    (grad,) = dense(af.gradients(times(3, body, x), x))
    async with af.Session() as session:
        assert await session.run(grad, {x: 1.1}) == pytest.approx(15 * 1.1**14)


async def test_variables_read_in_the_body(graph: af.Graph) -> None:
    v = af.get_variable("v", initializer=np.array([1.0, 2.0]))
    table = af.get_variable("table", initializer=np.array([[1.0], [2.0], [3.0]]))

    def body(i: Any, s: Any) -> list[Any]:
        return [s * v + af.reduce_sum(af.nn.embedding_lookup(table, [i, 2]))]

    y = times(2, body, af.constant([1.0, 1.0], "float64"))
    by_v, by_table = af.gradients(y, [v, table])
    assert isinstance(by_v, af.Tensor)
    assert isinstance(by_table, af.IndexedSlices)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        # y = (v + t0 + t2) v + t1 + t2 for each of the two elements of v
        assert (await session.run(by_v)).tolist() == [2 * 1.0 + 4.0, 2 * 2.0 + 4.0]
        assert (await session.run(af.convert_to_tensor(by_table))).tolist() == [[3.0], [2.0], [3.0 + 2.0]]


async def test_training_through_a_loop(graph: af.Graph) -> None:
    v = af.get_variable("v", initializer=0.5)
    y = times(5, lambda i, s: [s * v], af.constant(1.0))
    train = af.train.GradientDescentOptimizer(0.01).minimize((y - 2.0) ** 2)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        for _ in range(500):
            await session.run(train)
        assert await session.run(v) == pytest.approx(2.0**0.2, rel=1e-4)


def test_second_differentiation_reuses_the_saved_values(graph: af.Graph) -> None:
    """A second differentiation pops the values that the first one pushed."""
    x = af.placeholder("float64", ())
    y = times(3, lambda i, s: [af.sin(s) * s], x)
    af.gradients(y, x)
    pushes = [op for op in graph.get_operations() if op.type == "TensorListPushBack"]
    af.gradients(y, x)
    assert [op for op in graph.get_operations() if op.type == "TensorListPushBack"] == pushes
    assert {op.inputs[1].op.type for op in pushes} <= {"Sin", "Identity"}


def test_only_shapes_are_saved_if_shapes_suffice(graph: af.Graph) -> None:
    x = af.placeholder("float64", (None,))
    y = times(3, lambda i, s: [s + af.reduce_sum(s)], x)
    af.gradients(y, x)
    kept = [op.inputs[1] for op in graph.get_operations() if op.type == "TensorListPushBack"]
    assert kept
    assert all(not t.dtype.is_floating for t in kept)


def test_back_prop_false_blocks_the_gradient(graph: af.Graph) -> None:
    x = af.placeholder("float64", ())
    y = times(3, lambda i, s: [s * s], x, back_prop=False)
    assert af.gradients(y, x) == [None]
    assert af.gradients(y * x, x)[0] is not None


def test_integers_carry_no_gradient(graph: af.Graph) -> None:
    x = af.placeholder("float64", ())
    count, y = times(3, lambda i, n, s: (n + 2, s * s), af.constant(0), x)
    assert af.gradients([af.cast(count, "float64")], x) == [None]
    assert af.gradients(y, x)[0] is not None


define_op("TestTracked", "x: T", "y: T", ["T: type"], shape=lambda ctx: ctx.tensors[0].dims)
define_op("TestAlive", "x: T", "y: T", ["T: type"], shape=lambda ctx: ctx.tensors[0].dims)
define_op("TestTrackedBack", "x: T", "y: T", ["T: type"], shape=lambda ctx: ctx.tensors[0].dims)
ALIVE: list[Any] = []
COUNTS: list[int] = []


@af.RegisterGradient("TestTracked")
def _tracked_grad(op: Any, grad: Any) -> Any:
    return make("TestAlive", grad * op.outputs[0])


@af.RegisterGradient("TestTrackedBack")
def _tracked_back_grad(op: Any, grad: Any) -> Any:
    return make("TestTracked", grad)


@kernel("TestTrackedBack", fresh=True)
def _tracked_back(x: Any) -> Any:
    return x + 0.0


@kernel("TestTracked", fresh=True)
def _tracked(x: Any) -> Any:
    made = x * 2.0
    ALIVE.append(weakref.ref(made))
    return made


@kernel("TestAlive", fresh=True)
def _alive(x: Any) -> Any:
    COUNTS.append(sum(ref() is not None for ref in ALIVE))
    return x + 0.0


@pytest.mark.parametrize("lifted", [True, False])
def test_saved_values_are_freed_as_they_are_consumed(graph: af.Graph, lifted: bool) -> None:
    x = af.placeholder("float64", (3000,))
    y = times(20, lambda i, s: [make("TestTracked", s) * 0.5], x)
    (grad,) = dense(af.gradients(y, x))
    ALIVE.clear()
    COUNTS.clear()
    with af.Session(config=af.SessionConfig(executor="strands" if lifted else "reference")) as session:
        session.run_sync(grad, {x: np.ones(3000)})
    gc.collect()
    assert len(COUNTS) == 20
    assert COUNTS[0] >= 19
    assert COUNTS[-1] <= 3
    assert all(before >= after for before, after in itertools.pairwise(COUNTS))
    assert not any(ref() is not None for ref in ALIVE)


@pytest.mark.parametrize("executor", ["strands", "reference"])
def test_gradients_of_array_elements_are_freed_when_they_are_joined(graph: af.Graph, executor: str) -> None:
    x = af.placeholder("float64", (20, 3000))
    rows = af.TensorArray("float64", size=20).unstack(x)
    y = times(20, lambda i, s: [s + make("TestTrackedBack", rows.read(i))], np.zeros(3000))
    (grad,) = af.gradients(y, x)
    after = make("TestAlive", grad)
    ALIVE.clear()
    COUNTS.clear()
    with af.Session(config=af.SessionConfig(executor=executor)) as session:
        found = session.run_sync(after, {x: np.ones((20, 3000))})
    assert (found == 2.0).all()
    assert len(ALIVE) == 20
    assert COUNTS == [0]


def test_gradient_of_an_imported_loop_is_rejected(graph: af.Graph) -> None:
    """A graph definition has no record of its loops, which the reverse walk needs."""
    x = af.placeholder("float64", (), name="x")
    y = times(3, lambda i, s: [s * x], x)
    definition = graph.as_graph_def()
    with af.Graph().as_default():
        y, x = af.import_graph_def(definition, return_elements=[y.name, x.name], name="")
        with pytest.raises(af.errors.UnimplementedError, match="only if `while_loop` made it") as caught:
            af.gradients(y * x, x)
        assert caught.value.node == "while/NextIteration_1"
        assert af.gradients(y * 2.0, y)[0] is not None


@pytest.mark.parametrize("static", [(0, 2), (None, 2)])
def test_gradient_of_a_map_over_no_rows(graph: af.Graph, static: Any) -> None:
    x, w = af.placeholder("float64", static), af.constant(W)
    y = af.map_fn(lambda row: af.sin(row * w), x)
    by_x, by_w = evaluate(dense(af.gradients(y, [x, w])), {x: np.zeros((0, 2))})
    assert np.shape(by_x) == (0, 2)
    assert np.array_equal(by_w, [0.0, 0.0])

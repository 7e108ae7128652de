# TensorFlow has no type annotations.
# mypy: disable-error-code="untyped-decorator"
"""Functions against TensorFlow's: the same programs, and the graphs and libraries of each run by the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.testing.evaluate import evaluate
from tests.parity.test_graphdef import from_tensorflow, to_tensorflow
from tests.support.dense import dense

A = np.array([0.5, -1.2, 2.0], np.float32)
B = np.array([1.5, 0.3, -0.7], np.float32)
GRID = np.arange(6, dtype=np.float32).reshape(2, 3) / 4 - 0.5

# ── the same program in both ─────────────────────────────────────────────────────────────────────────────────────────


def a_product(m: Any, x: Any, y: Any) -> Any:
    return m.function(lambda a, b: a * m.sin(b))(x, y)


def many_calls(m: Any, x: Any, y: Any) -> Any:
    f = m.function(lambda a, b: a * b + a)
    return f(f(x, y), f(y, x))


def nested(m: Any, x: Any, y: Any) -> Any:
    inner = m.function(lambda a: m.tanh(a) * a)
    outer = m.function(lambda a, b: inner(a) + inner(b) * a)
    return outer(x, y)


def structures(m: Any, x: Any, y: Any) -> Any:
    made = m.function(lambda a, more: {"p": (a["u"] * more[0], a["v"]), "q": [more[1] + 1.0]})({"u": x, "v": y}, [x, y])
    return [made["p"][0], made["p"][1], made["q"][0]]


def python_arguments(m: Any, x: Any) -> Any:
    @m.function
    def power(a: Any, n: int, again: bool = False) -> Any:
        made = a
        for _ in range(n):
            made = made * a
        return made + 1.0 if again else made

    return [power(x, 1), power(x, 2), power(x, 2, again=True)]


def captured(m: Any, x: Any, y: Any) -> Any:
    scaled = y * 3.0
    f = m.function(lambda a: a * scaled + m.reduce_sum(y))
    return f(x) + f(y)


def captured_by_the_inner(m: Any, x: Any, y: Any) -> Any:
    outside = m.exp(y)

    @m.function
    def outer(a: Any) -> Any:
        half = a * 0.5
        return m.function(lambda b: b * half * outside)(a + 1.0)

    return outer(x)


def a_branch_inside(m: Any, x: Any, y: Any) -> Any:
    return m.function(lambda a, b: m.cond(m.reduce_sum(a) > 0.0, lambda: a * b, lambda: m.sin(a) - b))(x, y)


def a_loop_inside(m: Any, x: Any, y: Any) -> Any:
    @m.function
    def f(a: Any, b: Any) -> Any:
        return m.while_loop(lambda i, t: i < 4, lambda i, t: (i + 1, m.sin(t * b) + a), [0, a])[1]

    return f(x, y)


def a_loop_in_a_branch_inside(m: Any, x: Any, y: Any) -> Any:
    @m.function
    def f(a: Any, b: Any) -> Any:
        def loop() -> Any:
            return m.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * b * 0.5), [0, a])[1]

        return m.cond(m.reduce_sum(b) > 0.0, loop, lambda: a + b)

    return f(x, y)


def called_in_a_loop(m: Any, x: Any, y: Any) -> Any:
    f = m.function(lambda a, b: m.tanh(a) * b + 0.1)
    return m.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, f(t, y)), [0, x])[1]


def called_in_a_branch(m: Any, x: Any, y: Any) -> Any:
    f = m.function(lambda a: m.sin(a) * y)
    return m.cond(m.reduce_sum(x) > 0.0, lambda: f(x) + f(y), lambda: f(x * y))


def with_a_signature(m: Any, x: Any) -> Any:
    f = m.function(lambda a: m.reduce_sum(a, axis=0) * 2.0, input_signature=[m.TensorSpec([None, 3], m.float32)])
    return [f(x), f(m.concat([x, x], 0))]


def a_custom_gradient_inside(m: Any, x: Any) -> Any:
    @m.custom_gradient
    def doubled(t: Any) -> Any:
        square = t * t
        return square, lambda dy: dy * t * 10.0 + square

    @m.function
    def f(a: Any) -> Any:
        return doubled(a * 3.0) + a

    return f(x)


def a_gradient_inside(m: Any, x: Any, y: Any) -> Any:
    @m.function
    def f(a: Any, b: Any) -> Any:
        return m.gradients(m.sin(a) * b * b, [a, b])

    first, second = f(x, y)
    return [first, second]


def integers_and_nothing(m: Any, x: Any, y: Any) -> Any:
    counted, nothing, kept = m.function(lambda a, b: (m.size(a), None, b))(x, y)
    return [counted, m.constant(nothing is None), kept]


DIRECT: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (a_product, (A, B)),
    (many_calls, (A, B)),
    (nested, (A, B)),
    (structures, (A, B)),
    (python_arguments, (A,)),
    (captured, (A, B)),
    (captured_by_the_inner, (A, B)),
    (a_branch_inside, (A, B)),
    (a_branch_inside, (-A, B)),
    (a_loop_inside, (A, B)),
    (a_loop_in_a_branch_inside, (A, B)),
    (a_loop_in_a_branch_inside, (A, -B)),
    (called_in_a_loop, (A, B)),
    (called_in_a_branch, (A, B)),
    (called_in_a_branch, (-A, B)),
    (with_a_signature, (GRID,)),
    (a_custom_gradient_inside, (A,)),
    (a_gradient_inside, (A, B)),
    (integers_and_nothing, (A, B)),
]


@pytest.mark.parametrize(("build", "arrays"), DIRECT, ids=lambda v: getattr(v, "__name__", ""))
def test_programs_match_tensorflow(parity: Any, build: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
    parity(build, *arrays)


# ── TensorFlow's libraries, run here ─────────────────────────────────────────────────────────────────────────────────


def defun(tf: Any, *types: Any, **options: Any) -> Any:
    from tensorflow.python.framework import function

    return function.Defun(*types, **options)


def first_defun(tf: Any, x: Any, y: Any) -> Any:
    @defun(tf, tf.float32, tf.float32)
    def f(a: Any, b: Any) -> Any:
        return a * tf.sin(b), a + b

    return f(x, y)


def defun_with_a_first_branch(tf: Any, x: Any, y: Any) -> Any:
    """Build a function whose body has Switch and Merge nodes."""
    from tensorflow.python.ops import control_flow_util

    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:

        @defun(tf, tf.float32, tf.float32)
        def f(a: Any, b: Any) -> Any:
            return tf.cond(tf.reduce_sum(a) > 0.0, lambda: a * b, lambda: a - b)

        return [f(x, y), f(-x, y)]
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


def functional_if(tf: Any, x: Any, y: Any) -> Any:
    from tensorflow.python.ops import functional_ops

    @defun(tf, tf.float32, tf.float32)
    def then(a: Any, b: Any) -> Any:
        return a * b, tf.exp(a)

    @defun(tf, tf.float32, tf.float32)
    def other(a: Any, b: Any) -> Any:
        return a - b, b

    return [*functional_ops.If(x[0] > 0.0, [x, y], then, other), *functional_ops.If(y[0] > 2.0, [y, x], then, other)]


def functional_if_of_numbers(tf: Any, x: Any, y: Any) -> Any:
    from tensorflow.python.ops import functional_ops

    @defun(tf, tf.float32)
    def then(a: Any) -> Any:
        return a * 2.0

    @defun(tf, tf.float32)
    def other(a: Any) -> Any:
        return a - 1.0

    text, none = tf.constant("true"), tf.constant("")
    return [
        functional_ops.If(p, [x], then, other)[0] for p in (x[1], y[0] * 0.0, tf.constant(-3), text, none, tf.shape(x))
    ]


def functional_while(tf: Any, x: Any, y: Any) -> Any:
    from tensorflow.python.ops import functional_ops

    @defun(tf, tf.int32, tf.float32, tf.float32)
    def going_on(i: Any, a: Any, b: Any) -> Any:
        return i < 5

    @defun(tf, tf.int32, tf.float32, tf.float32)
    def step(i: Any, a: Any, b: Any) -> Any:
        return i + 1, tf.sin(a) * b, b

    return functional_ops.While([tf.constant(0), x, y], going_on, step)[1:]


def functional_for(tf: Any, x: Any, y: Any) -> Any:
    from tensorflow.python.ops import functional_ops

    @defun(tf, tf.int32, tf.float32)
    def step(i: Any, a: Any) -> Any:
        return tf.sin(a) + tf.cast(i, tf.float32)

    return functional_ops.For(tf.constant(1), tf.constant(8), tf.constant(2), [x], step, rewrite_with_while=True)


def traced(tf: Any, x: Any, y: Any) -> Any:
    return tf.function(lambda a, b: a * tf.sin(b) + tf.reduce_mean(a))(x, y)


def traced_in_traced(tf: Any, x: Any, y: Any) -> Any:
    inner = tf.function(lambda a: tf.nn.softmax(a) * a)
    return tf.function(lambda a, b: inner(a) + inner(b))(x, y)


def second_branch(tf: Any, x: Any, y: Any) -> Any:
    return tf.function(lambda a, b: tf.cond(tf.reduce_sum(a) > 0.0, lambda: a * b, lambda: tf.sin(a) - b))(x, y)


def second_branches_in_branches(tf: Any, x: Any, y: Any) -> Any:
    @tf.function
    def f(a: Any, b: Any) -> Any:
        def inner() -> Any:
            return tf.cond(b[0] > 0.0, lambda: a * a, lambda: b * b)

        return tf.cond(a[0] > 0.0, inner, lambda: a + b)

    return [f(x, y), f(y, x), f(-x, y), f(x, -y)]


def second_switch_case(tf: Any, x: Any, y: Any) -> Any:
    @tf.function
    def f(i: Any, a: Any, b: Any) -> Any:
        return tf.switch_case(i, [lambda: a * b, lambda: a + b, lambda: tf.exp(a)])

    return [f(tf.constant(i), x, y) for i in (-1, 0, 1, 2, 7)]


def second_loop(tf: Any, x: Any, y: Any) -> Any:
    @tf.function
    def f(a: Any, b: Any) -> Any:
        return tf.while_loop(lambda i, t: i < 5, lambda i, t: (i + 1, tf.sin(t) * b), [0, a])[1]

    return f(x, y)


def second_loop_of_changing_shape(tf: Any, x: Any, y: Any) -> Any:
    @tf.function
    def f(a: Any, b: Any) -> Any:
        grown = tf.while_loop(
            lambda i, t: i < 3,
            lambda i, t: (i + 1, tf.concat([t, b], 0)),
            [0, a],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
        )[1]
        return tf.reduce_sum(grown * grown)

    return f(x, y)


def second_loops_in_loops(tf: Any, x: Any, y: Any) -> Any:
    @tf.function
    def f(a: Any, b: Any) -> Any:
        def outer(i: Any, t: Any) -> Any:
            inner = tf.while_loop(lambda j, u: j < i, lambda j, u: (j + 1, tf.tanh(u) * b + t), [0, t])[1]
            return i + 1, inner * 0.5

        return tf.while_loop(lambda i, t: i < 3, outer, [0, a])[1]

    return f(x, y)


def second_loop_with_a_branch(tf: Any, x: Any, y: Any) -> Any:
    @tf.function
    def f(a: Any, b: Any) -> Any:
        def body(i: Any, t: Any) -> Any:
            return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: t * b, lambda: tf.sin(t))

        return tf.while_loop(lambda i, t: i < 5, body, [0, a], maximum_iterations=4)[1]

    return f(x, y)


def second_loop_with_arrays(tf: Any, x: Any, y: Any) -> Any:
    """Build a loop with arrays, which are lists in control flow v2 and resources in v1."""

    @tf.function
    def f(a: Any, b: Any) -> Any:
        rows = tf.TensorArray(tf.float32, size=3, clear_after_read=False).unstack(a)
        made = tf.TensorArray(tf.float32, size=4)

        def body(i: Any, s: Any, out: Any) -> Any:
            s = tf.sin(s) * rows.read(i % 3)
            return i + 1, s, out.write(i, s * b)

        return tf.while_loop(lambda i, *_: i < 4, body, (0, tf.constant(1.0), made))[2].stack()

    return f(x, y)


def second_map(tf: Any, x: Any, y: Any) -> Any:
    @tf.function
    def f(a: Any, b: Any) -> Any:
        return tf.map_fn(lambda pair: tf.tanh(pair[0]) * pair[1] + b, (a, b), fn_output_signature=tf.float32)

    return f(x, y)


def python_loop(tf: Any, x: Any, y: Any) -> Any:
    @tf.function
    def f(a: Any, b: Any) -> Any:
        for i in range(3):
            a = tf.matmul(a[:, None] * float(i + 1), b[None, :])[:, 0]
        return a

    return f(x, y)


def a_layer(tf: Any, x: Any, y: Any) -> Any:
    w = tf.constant(np.linspace(-1, 1, 12).reshape(3, 4).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def layer(a: Any) -> Any:
        return tf.nn.relu(tf.matmul(a, w) + 0.1)

    return layer(tf.stack([x, y]))


IMPORTED = [
    first_defun, defun_with_a_first_branch, functional_if, functional_if_of_numbers, functional_while, functional_for,
    traced, traced_in_traced, second_branch, second_branches_in_branches, second_switch_case, second_loop,
    second_loop_of_changing_shape, second_loops_in_loops, second_loop_with_a_branch, second_loop_with_arrays,
    second_map, python_loop, a_layer,
]  # fmt: skip
# Bodies with Switch and Merge, whose gradient only the builder of the branch knows; gradients that TensorFlow lacks.
WITHOUT_GRADIENT = {defun_with_a_first_branch, functional_for, functional_if_of_numbers, functional_while}


@pytest.mark.parametrize("arrays", [(A, B), (-A, B)], ids=["plus", "minus"])
@pytest.mark.parametrize("program", IMPORTED, ids=lambda f: f.__name__)
def test_tensorflow_library_runs_in_aioflow(tf: Any, program: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
    with tf.Graph().as_default() as graph:
        xs = [tf.placeholder(tf.float32, a.shape, name=f"x{i}") for i, a in enumerate(arrays)]
        made = program(tf, *xs)
        ys = list(made) if isinstance(made, list | tuple) else [made]
        definition = graph.as_graph_def()
        names = [y.name for y in ys]
        found = []
        if program not in WITHOUT_GRADIENT:
            total = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in ys])
            found = tf.gradients(total, xs, unconnected_gradients="zero")
        with tf.Session() as session:
            wanted, gradients = session.run([ys, found], dict(zip(xs, arrays, strict=True)))
    with af.Graph().as_default():
        *mine, x0, x1 = af.import_graph_def(from_tensorflow(definition), return_elements=[*names, "x0:0", "x1:0"])
        feeds = dict(zip((x0, x1), arrays, strict=True))
        for ours, other in zip(evaluate(mine, feeds), wanted, strict=True):
            np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-6)
        if gradients:
            total = af.add_n([af.reduce_sum(af.sin(y)) for y in mine])
            found = evaluate(dense(af.gradients(total, [x0, x1], unconnected_gradients="zero")), feeds)
            for ours, other in zip(found, gradients, strict=True):
                np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5)


def test_tensorflow_function_with_custom_gradient(tf: Any) -> None:
    with tf.Graph().as_default() as graph:

        @defun(tf, tf.float32, tf.float32, tf.float32)
        def back(a: Any, b: Any, dy: Any) -> Any:
            return dy * b * 2.0, dy * a * 3.0

        @defun(tf, tf.float32, tf.float32, grad_func=back)
        def f(a: Any, b: Any) -> Any:
            return a * b

        x, y = (tf.placeholder(tf.float32, [3], name=name) for name in "xy")
        z = f(x, y)
        with tf.Session() as session:
            wanted = session.run(tf.gradients(z, [x, y]), {x: A, y: B})
        definition = from_tensorflow(graph.as_graph_def())
    assert [f.gradient for f in definition.functions if f.gradient]
    with af.Graph().as_default():
        z, x, y = af.import_graph_def(definition, return_elements=[z.name, "x:0", "y:0"])
        for ours, other in zip(evaluate(dense(af.gradients(z, [x, y])), {x: A, y: B}), wanted, strict=True):
            np.testing.assert_allclose(ours, other)


@pytest.mark.parametrize("first", [True, False])
def test_variables_in_tensorflow_library(tf: Any, first: bool) -> None:
    """Call a function that updates a variable twice and reads it in between, in program order."""
    with tf.Graph().as_default() as graph:
        v = tf.Variable([1.0, 2.0, 3.0], use_resource=True, name="v")

        @tf.function
        def f(a: Any) -> Any:
            v.assign_add(a)
            between = v + 0.0
            tf.cond(a[0] > 1.0, lambda: v.assign_add(a * 10.0), lambda: v.assign_sub(a))
            return between

        x = tf.placeholder(tf.float32, [3], name="x")
        y = f(x)
        definition = from_tensorflow(graph.as_graph_def())
        init = graph.get_operation_by_name("v/Assign").name
        with tf.Session() as session:
            session.run(init)
            wanted = [
                session.run(y, {x: A if first else B}),
                session.run(y, {x: B}),
                session.run("v/Read/ReadVariableOp:0"),
            ]
    with af.Graph().as_default() as graph:
        start, x, y, read = af.import_graph_def(
            definition, return_elements=["v/Assign", "x:0", y.name, "v/Read/ReadVariableOp:0"], name=""
        )

        async def run() -> list[Any]:
            async with af.Session() as session:
                await session.run(start)
                return [
                    await session.run(y, {x: A if first else B}),
                    await session.run(y, {x: B}),
                    await session.run(read),
                ]

        for ours, other in zip(asyncio.run(run()), wanted, strict=True):
            np.testing.assert_allclose(ours, other)


# ── our libraries, run by TensorFlow ─────────────────────────────────────────────────────────────────────────────────


def our_if(m: Any, x: Any, y: Any) -> Any:
    return m.If(x[0] > 0.0, [x, y], lambda a, b: a * b, lambda a, b: a - b * y)


def our_while(m: Any, x: Any, y: Any) -> Any:
    return m.While([0, x], lambda i, a: i < 4, lambda i, a: [i + 1, m.sin(a) * y])


def our_case(m: Any, x: Any, y: Any) -> Any:
    branches = [lambda a: a * 2.0, lambda a: a * y, lambda a: m.exp(a)]
    return [m.Case(i, [x], branches)[0] for i in (-1, 0, 1, 2, 3)]


def our_for(m: Any, x: Any, y: Any) -> Any:
    return m.For(0, 5, 2, [x], lambda i, a: m.sin(a) * y + m.cast(i, m.float32))


def our_call(m: Any, x: Any, y: Any) -> Any:
    return m.PartitionedCall([x, y], lambda a, b: [a * b, a + b])


def our_differentiated_call(m: Any, x: Any, y: Any) -> Any:
    """Build a call and its gradient, which reads tensors of the body: the exported definition has the body inlined."""
    f = m.function(lambda a, b: m.exp(a) * b)
    z = f(x, y)
    return [z, *m.gradients(z, [x, y])]


EXPORTED = [
    a_product, many_calls, nested, structures, captured, captured_by_the_inner, a_branch_inside, a_loop_inside,
    a_loop_in_a_branch_inside, called_in_a_loop, called_in_a_branch, our_if, our_while, our_case, our_for, our_call,
    our_differentiated_call,
]  # fmt: skip


@pytest.mark.parametrize("program", EXPORTED, ids=lambda f: f.__name__)
def test_aioflow_library_runs_in_tensorflow(tf: Any, program: Callable[..., Any]) -> None:
    with af.Graph().as_default() as graph:
        xs = [af.placeholder(af.float32, a.shape, name=f"x{i}") for i, a in enumerate((A, B))]
        made = program(af, *xs)
        ys = list(made) if isinstance(made, list | tuple) else [made]
        mine = evaluate(ys, dict(zip(xs, (A, B), strict=True)))
        definition = graph.as_graph_def()
    assert (program is our_differentiated_call) != bool(definition.functions)
    assert definition == af.GraphDef.from_bytes(definition.to_bytes()) == af.GraphDef.from_json(definition.to_json())
    with tf.Graph().as_default():
        theirs = tf.import_graph_def(to_tensorflow(tf, definition), name="", return_elements=[y.name for y in ys])
        with tf.Session() as session:
            other = session.run(theirs, {"x0:0": A, "x1:0": B})
    for ours, value in zip(mine, other, strict=True):
        np.testing.assert_allclose(ours, value, rtol=1e-5, atol=1e-6)
    with af.Graph().as_default():
        again = af.import_graph_def(definition, return_elements=[*(y.name for y in ys), "x0:0", "x1:0"])
        values = evaluate(again[:-2], dict(zip(again[-2:], (A, B), strict=True)))
    for ours, value in zip(mine, values, strict=True):
        np.testing.assert_array_equal(ours, value)

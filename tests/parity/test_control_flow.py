"""Branches and loops against TensorFlow's control flow v1: values, dtypes, static shapes, node types."""

from __future__ import annotations

import asyncio
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph.opdef import traits_of
from aioflow.testing.evaluate import evaluate

Pair = namedtuple("Pair", ["a", "b"])
Single = namedtuple("Single", ["one"])

ONE = np.float32(1.5)
TWO = np.float32(2.5)
ROW = np.array([1.0, -2.0, 3.0], np.float32)
GRID = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
INT = np.int32(5)


@pytest.fixture(autouse=True, scope="module")
def first_control_flow(tf: Any) -> Iterator[None]:
    tf.disable_control_flow_v2()
    yield
    tf.enable_control_flow_v2()


# ── branches ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def cond_in_cond(m: Any, x: Any, y: Any) -> Any:
    return m.cond(
        x > 0, lambda: m.cond(y > 2, lambda: x * y, lambda: x + y), lambda: m.cond(y > 2, lambda: x, lambda: y)
    )


def cond_of_constants(m: Any, x: Any) -> Any:
    return m.cond(m.reduce_sum(x) > 0, lambda: m.constant(1.0) + m.zeros([2]), lambda: m.constant([3.0, 4.0]))


def cond_of_structures(m: Any, x: Any, y: Any) -> Any:
    made = m.cond(x < y, lambda: {"p": (x, y), "q": [x * y]}, lambda: {"p": (y, x), "q": [x / y]})
    return [made["p"][0], made["p"][1], made["q"][0]]


def cond_of_named_tuples(m: Any, x: Any, y: Any) -> Any:
    made = m.cond(x > y, lambda: Pair(x, [y]), lambda: Pair(y, [x]))
    return [made.a, made.b[0]]


def cond_of_named_tuples_of_one(m: Any, x: Any, y: Any) -> Any:
    branches = (lambda: Single(x), lambda: Single(y * 2.0))
    made = [m.cond(x > y, *branches), m.case([(x > y, branches[0])], default=branches[1])]
    strict = [m.cond(x > y, *branches, strict=True), m.case([(x > y, branches[0])], default=branches[1], strict=True)]
    return [*made, *(each.one for each in strict)]


def cond_of_shapes(m: Any, x: Any) -> Any:
    """Build branches of different shapes, so that the static shape of the result is partly unknown."""
    return m.cond(m.reduce_sum(x) > 0, lambda: m.concat([x, x], 0), lambda: m.zeros([1, 3]))


def cond_of_ranks(m: Any, x: Any) -> Any:
    return m.cond(m.reduce_sum(x) > 0, lambda: x, lambda: m.reduce_sum(x))


def cond_shares_a_tensor(m: Any, x: Any, y: Any) -> Any:
    both = x * y
    return m.cond(x > 0, lambda: both + x, lambda: both * y) + both


def case_of_three(m: Any, x: Any) -> Any:
    pairs = [(x < 0, lambda: m.negative(x)), (x < 1, lambda: x * 10.0), (x < 2, lambda: x * 100.0)]
    return m.case(pairs, default=lambda: m.zeros_like(x))


def case_without_default(m: Any, x: Any) -> Any:
    return m.case([(x < 0, lambda: m.negative(x)), (x >= 0, lambda: x * 10.0)], exclusive=True)


def switch_case(m: Any, i: Any, x: Any) -> Any:
    return m.switch_case(i, [lambda: x, lambda: x * x, lambda: x + 1.0])


def switch_case_of_pairs(m: Any, i: Any, x: Any) -> Any:
    return m.switch_case(i, {1: lambda: x * 5.0, 0: lambda: x * 2.0}, default=lambda: m.zeros_like(x))


BRANCHES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    *((cond_in_cond, (np.float32(x), np.float32(y))) for x in (-1.0, 1.0) for y in (1.0, 3.0)),
    (cond_of_constants, (ROW,)),
    (cond_of_constants, (-ROW,)),
    (cond_of_structures, (ONE, TWO)),
    (cond_of_structures, (TWO, ONE)),
    (cond_of_named_tuples, (ONE, TWO)),
    (cond_of_named_tuples_of_one, (TWO, ONE)),
    (cond_shares_a_tensor, (ONE, TWO)),
    (cond_shares_a_tensor, (-ONE, TWO)),
    *((case_of_three, (np.float32(x),)) for x in (-3.0, 0.5, 1.5, 7.0)),
    (case_without_default, (-ONE,)),
    (case_without_default, (ONE,)),
    *((switch_case, (np.int32(i), ONE)) for i in (-1, 0, 1, 2, 9)),
    *((switch_case_of_pairs, (np.int32(i), ONE)) for i in (0, 1, 2)),
]


@pytest.mark.parametrize(("build", "arrays"), BRANCHES, ids=lambda v: getattr(v, "__name__", ""))
def test_branches_and_their_gradients(parity: Any, build: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
    parity(build, *arrays)


WITHOUT_GRADIENTS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (cond_of_shapes, (GRID,)),
    (cond_of_shapes, (GRID + 5,)),
    (cond_of_ranks, (GRID,)),
]


@pytest.mark.parametrize(("build", "arrays"), WITHOUT_GRADIENTS, ids=lambda v: getattr(v, "__name__", ""))
def test_branches_whose_gradients_fail_in_tensorflow(
    parity: Any, build: Callable[..., Any], arrays: tuple[Any, ...]
) -> None:
    """Skip gradients: TensorFlow takes the shape of one side for that of the other. tests/ops checks ours."""
    parity(build, *arrays, grad=False)


# ── loops ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def counter(m: Any, n: Any) -> Any:
    return m.while_loop(lambda i: i < n, lambda i: i + 1, [0])


def accumulator(m: Any, n: Any, x: Any) -> Any:
    return m.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + x * m.cast(i, m.float32)), [0, m.zeros_like(x)])


def no_iteration(m: Any, x: Any) -> Any:
    return m.while_loop(lambda x: m.reduce_sum(x) > 1e6, lambda x: x * 2.0, [x])


def unused_and_unchanged(m: Any, n: Any, x: Any) -> Any:
    """Build a loop with one unchanged variable and one that is replaced by an outer tensor."""
    return m.while_loop(lambda i, a, b: i < n, lambda i, a, b: (i + 1, a, x), (0, x * 2.0, x * 3.0))


def swap(m: Any, n: Any, x: Any, y: Any) -> Any:
    return m.while_loop(lambda i, a, b: i < n, lambda i, a, b: [i + 1, b, a], [m.constant(0), x, y])


def nested(m: Any, n: Any, x: Any) -> Any:
    def outer(i: Any, s: Any) -> Any:
        _, t = m.while_loop(lambda j, t: j < i, lambda j, t: (j + 1, t * 0.5 + x), [0, s])
        return i + 1, t

    return m.while_loop(lambda i, s: i < n, outer, [0, m.zeros_like(x)])


def thrice_nested(m: Any, n: Any) -> Any:
    def loop(body: Callable[[Any, Any], Any], start: Any) -> Any:
        return m.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, body(i, s)), [0, start])[1]

    return loop(lambda i, s: loop(lambda j, t: loop(lambda k, u: u + i * j - k, t), s), 0)


def inner_reads_outermost(m: Any, n: Any, x: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        return i + 1, m.while_loop(lambda t: m.reduce_sum(t) < m.reduce_sum(x) * 20.0, lambda t: t + x, [s])

    return m.while_loop(lambda i, s: i < n, body, [0, x])


def cond_in_loop(m: Any, n: Any, x: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        return i + 1, m.cond(m.equal(i % 2, 0), lambda: s + x, lambda: s * 0.5)

    return m.while_loop(lambda i, s: i < n, body, [0, x])


def cond_on_an_invariant_in_loop(m: Any, n: Any, x: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        return i + 1, m.cond(n > 3, lambda: s + 1.0, lambda: s - m.constant(1.0))

    return m.while_loop(lambda i, s: i < n, body, [0, x])


def cond_in_the_predicate(m: Any, n: Any) -> Any:
    return m.while_loop(lambda i: m.cond(i < 2, lambda: m.constant(True), lambda: i < n), lambda i: i + 1, [0])


def loop_in_cond(m: Any, n: Any, x: Any) -> Any:
    looped = lambda: m.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + x), [0, x])[1]  # noqa: E731
    return [m.cond(n > 3, looped, lambda: x), m.cond(n > 100, looped, lambda: x * 7.0)]


def loop_in_cond_in_loop(m: Any, n: Any, x: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        def inner() -> Any:
            return m.while_loop(lambda j, t: j < i, lambda j, t: (j + 1, t + x), [0, s])[1]

        return i + 1, m.cond(i > 2, inner, lambda: s - 1.0)

    return m.while_loop(lambda i, s: i < n, body, [0, x])


def growing(m: Any, n: Any, x: Any) -> Any:
    shapes = [m.TensorShape([]), m.TensorShape([None, 3])]
    return m.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, m.concat([s, s[:1] + 1.0], 0)), [0, x], shapes)


def growing_unknown_rank(m: Any, n: Any, x: Any) -> Any:
    shapes = [m.TensorShape([]), m.TensorShape(None)]
    return m.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, m.expand_dims(s, 0)), [0, x], shapes)


def bounded(m: Any, n: Any) -> Any:
    return m.while_loop(lambda i, s: i < 100, lambda i, s: (i + 1, s + i), (0, 0), maximum_iterations=n)


def bounded_beyond(m: Any, n: Any) -> Any:
    return m.while_loop(lambda i: i < n, lambda i: i + 1, [0], maximum_iterations=50)


def structure(m: Any, n: Any, x: Any) -> Any:
    start = {"i": m.constant(0), "pair": Pair(x, [x, x * 2.0])}

    def body(s: Any) -> Any:
        a, (b, c) = s["pair"]
        return [{"i": s["i"] + 1, "pair": Pair(b, [c, a + b])}]

    made = m.while_loop(lambda s: s["i"] < n, body, [start])
    return [made["i"], made["pair"].a, *made["pair"].b] if isinstance(made, dict) else [made[0]["pair"].a]


def named_tuple_of_one(m: Any, n: Any) -> Any:
    made = m.while_loop(lambda s: s.one < n, lambda s: [Single(s.one + 2)], [Single(m.constant(0))])
    listed = m.while_loop(lambda s: s[0] < n, lambda s: [[s[0] + 2]], [[m.constant(0)]])
    return [made.one, *listed, m.while_loop(lambda i: i < n, lambda i: Single(i + 2), Single(m.constant(0)))]


def same_structure(m: Any, n: Any) -> Any:
    made = m.while_loop(lambda i: i < n, lambda i: [i + 2], [0], return_same_structure=True)
    assert isinstance(made, list | tuple)
    return made


def one_iteration_at_a_time(m: Any, n: Any, x: Any) -> Any:
    body = lambda i, s: (i + 1, m.tanh(s) + x)  # noqa: E731
    return m.while_loop(lambda i, s: i < n, body, [0, x], parallel_iterations=1)


def gcd(m: Any, n: Any) -> Any:
    return m.while_loop(lambda a, b: b > 0, lambda a, b: (b, a % b), [n * 84, n * 36])


def newton(m: Any, x: Any) -> Any:
    """Build a loop whose number of iterations depends on the data."""
    enough = lambda r, i: m.abs(r * r - x) > 1e-4  # noqa: E731
    return m.while_loop(enough, lambda r, i: (0.5 * (r + x / r), i + 1), [x, 0])


def matrix_power(m: Any, n: Any, x: Any) -> Any:
    square = m.matmul(x, x, transpose_b=True)
    return m.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, m.matmul(s, square) * 0.1), [0, square])[1]


def array_filled(m: Any, n: Any, x: Any) -> Any:
    arrays = m.TensorArray(m.float32, size=n)
    _, made = m.while_loop(
        lambda i, ta: i < n, lambda i, ta: (i + 1, ta.write(i, x * m.cast(i, m.float32))), [0, arrays]
    )
    return [made.stack(), made.size()]


def array_growing(m: Any, n: Any) -> Any:
    arrays = m.TensorArray(m.int32, size=0, dynamic_size=True, clear_after_read=False)
    arrays = arrays.write(0, 1).write(1, 1)

    def body(i: Any, ta: Any) -> Any:
        return i + 1, ta.write(i, ta.read(i - 1) + ta.read(i - 2))

    return m.while_loop(lambda i, ta: i < n + 5, body, [2, arrays])[1].stack()


def array_ops(m: Any, x: Any) -> Any:
    rows = m.TensorArray(m.float32, size=2, clear_after_read=False).unstack(x)
    parts = m.TensorArray(m.float32, size=3, infer_shape=False).split(m.reshape(x, [-1]), [1, 3, 2])
    placed = m.TensorArray(m.float32, size=4, element_shape=[3]).scatter([3, 1], x)
    return [rows.gather([1, 0, 1]), rows.read(1), rows.concat(), parts.concat(), placed.gather([1, 3]), parts.size()]


def mapped(m: Any, x: Any) -> Any:
    return m.map_fn(lambda row: row * row + 1.0, x)


def mapped_over_two(m: Any, x: Any) -> Any:
    return m.map_fn(lambda pair: m.reduce_sum(pair[0]) + pair[1], (x, x[:, 0]), dtype=m.float32)


def mapped_to_two(m: Any, x: Any) -> Any:
    made = m.map_fn(lambda row: (row * 2.0, m.argmax(row)), x, dtype=(m.float32, m.int64))
    return list(made)


def map_in_map(m: Any, x: Any) -> Any:
    return m.map_fn(lambda row: m.map_fn(lambda v: v * m.reduce_sum(row), row), x)


def scanned(m: Any, x: Any) -> Any:
    return [
        m.scan(lambda a, row: a * 0.5 + row, x),
        m.scan(lambda a, row: a + m.reduce_sum(row), x, initializer=m.constant(1.0)),
        m.scan(lambda a, row: a * 0.5 + row, x, reverse=True),
    ]


def scanned_without_a_part(m: Any, x: Any, start: Any) -> Any:
    """Build scans whose gradients are zero for used values and missing for unused ones."""
    return [
        m.scan(lambda a, row: a * 0.0 + row * 0.0, x, initializer=start),
        m.scan(lambda a, row: row * 2.0, x, initializer=start),
        m.scan(lambda a, row: a * 2.0, x, initializer=start),
        m.foldl(lambda a, row: a * 2.0, x, initializer=start),
        m.foldr(lambda a, row: row, x, initializer=start),
    ]


def one_of_scanned_without_a_part(index: int) -> Callable[..., Any]:
    return lambda m, x, start: scanned_without_a_part(m, x, start)[index]


def scanned_pairs(m: Any, x: Any) -> Any:
    return list(m.scan(lambda a, row: (a[1], a[0] + row[0]), x, initializer=(m.constant(0.0), m.constant(1.0))))


def folded(m: Any, x: Any) -> Any:
    return [
        m.foldl(lambda a, row: a * 0.5 - row, x),
        m.foldr(lambda a, row: a * 0.5 - row, x),
        m.foldl(lambda a, row: a + m.reduce_sum(row), x, initializer=m.constant(10.0)),
        m.foldr(lambda a, row: a / 2.0 + m.reduce_max(row), x, initializer=m.constant(10.0)),
    ]


LOOPS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (counter, (INT,)),
    (accumulator, (INT, ROW)),
    (no_iteration, (ROW,)),
    (unused_and_unchanged, (INT, ROW)),
    (swap, (INT, ONE, TWO)),
    (nested, (INT, ROW)),
    (thrice_nested, (np.int32(4),)),
    (inner_reads_outermost, (INT, np.abs(ROW))),
    (cond_in_loop, (INT, ROW)),
    (cond_on_an_invariant_in_loop, (INT, ROW)),
    (cond_on_an_invariant_in_loop, (np.int32(2), ROW)),
    (cond_in_the_predicate, (INT,)),
    (loop_in_cond, (INT, ROW)),
    (loop_in_cond, (np.int32(1), ROW)),
    (loop_in_cond_in_loop, (np.int32(6), ROW)),
    (bounded, (INT,)),
    (bounded, (np.int32(0),)),
    (bounded_beyond, (INT,)),
    (structure, (INT, ROW)),
    (same_structure, (INT,)),
    (named_tuple_of_one, (INT,)),
    (one_iteration_at_a_time, (np.int32(30), ROW)),
    (gcd, (INT,)),
    (newton, (TWO,)),
    (matrix_power, (INT, GRID)),
    (array_filled, (INT, ROW)),
    (array_growing, (INT,)),
    (array_ops, (GRID,)),
    (mapped, (GRID,)),
    (mapped_over_two, (GRID,)),
    (mapped_to_two, (GRID,)),
    (map_in_map, (GRID,)),
    (scanned, (GRID,)),
    *((one_of_scanned_without_a_part(i), (ROW, TWO)) for i in range(5)),
    (scanned_pairs, (GRID,)),
    (folded, (GRID,)),
]


@pytest.mark.parametrize(("build", "arrays"), LOOPS, ids=lambda v: getattr(v, "__name__", ""))
def test_loops_and_their_gradients(parity: Any, build: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
    parity(build, *arrays, static=build is not array_ops)  # TensorFlow loses the number of gathered rows
    same_in_a_session(build, arrays)


def kept(m: Any, size: int = 0) -> Any:
    return m.TensorArray(m.float32, size, dynamic_size=size == 0, infer_shape=False, clear_after_read=False)


ARRAYS: dict[str, Callable[[Any, Any], Any]] = {
    "a write after a split": lambda m, x: kept(m).split(x, [1, 2, 3]).write(3, x[:1] * 2.0).concat(),
    "a write far after a split": lambda m, x: kept(m).split(x, [1, 2, 3]).write(5, x[:1] * 2.0).gather([0]),
    "what was written after a split": lambda m, x: kept(m).split(x, [1, 2, 3]).write(3, x[:1]).read(3),
    "a split with empty parts": lambda m, x: kept(m, 4).split(x, [0, 2, 0, 4]).concat(),
    "one part of a split": lambda m, x: kept(m, 3).split(x, [1, 2, 3]).read(1),
    "a split read twice": lambda m, x: (lambda a: m.reduce_sum(a.stack()) + m.reduce_sum(a.concat()))(
        kept(m, 2).split(x, [3, 3])
    ),
    "a write after an unstack": lambda m, x: kept(m).unstack(x).write(6, x[0] * 2.0).stack(),
    "writes of several shapes": lambda m, x: kept(m, 2).write(0, x[:2]).write(1, x[1:]).concat(),
    "one row of an unstack": lambda m, x: kept(m, 6).unstack(x).read(1),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_gradients_through_arrays(parity: Any, name: str) -> None:
    parity(ARRAYS[name], np.arange(12, dtype=np.float32).reshape(6, 2), static=False)


GRADIENT_ARRAYS: dict[str, Callable[[Any, Any], Any]] = {
    "a scalar and a vector": lambda m, g: g.write(1, 1.0).write(1, [1.0]).read(1),
    "a vector and a scalar": lambda m, g: g.write(1, [1.0]).write(1, 1.0).read(1),
    "another shape than before": lambda m, g: g.write(0, [1.0, 2.0]).read(0),
    "after a read": lambda m, g: g.write(1, g.write(1, [1.0]).read(1)).read(1),
    "nothing written": lambda m, g: g.read(1),
}


@pytest.mark.parametrize("name", GRADIENT_ARRAYS)
def test_gradient_arrays_reject_invalid_writes_and_reads(tf: Any, name: str) -> None:
    for m in (tf, af):
        with m.Graph().as_default():
            gradients = m.TensorArray(m.float32, 3, infer_shape=False).write(0, [1.0]).grad("g")
            y = GRADIENT_ARRAYS[name](m, gradients)
            with pytest.raises(m.errors.InvalidArgumentError):
                evaluate([y]) if m is af else m.Session().run(y)


GROWING: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (growing, (INT, GRID)),
    (growing_unknown_rank, (INT, ROW)),
]


@pytest.mark.parametrize(("build", "arrays"), GROWING, ids=lambda v: getattr(v, "__name__", ""))
def test_loops_whose_gradients_fail_in_tensorflow(
    parity: Any, build: Callable[..., Any], arrays: tuple[Any, ...]
) -> None:
    """Skip gradients: TensorFlow takes the shape after the loop for that before it. tests/autodiff checks ours."""
    parity(build, *arrays, grad=False)
    same_in_a_session(build, arrays)


def same_in_a_session(build: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
    """Check that a session, which may run loops as native code, returns the values of the primitive form."""
    with af.Graph().as_default():
        xs = [af.placeholder(a.dtype.name, a.shape) for a in arrays]
        made = build(af, *xs)
        feeds = dict(zip(xs, arrays, strict=True))
        listed = list(made) if isinstance(made, list | tuple) else [made]
        primitive = evaluate(listed, feeds)
        for mine, other in zip(asyncio.run(run_once(listed, feeds)), primitive, strict=True):
            assert np.array_equal(mine, other)
            assert np.asarray(mine).dtype == np.asarray(other).dtype


async def run_once(fetches: list[Any], feeds: Any) -> list[Any]:
    async with af.Session() as session:
        found: list[Any] = await session.run(fetches, feeds)
        return found


# ── variables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def assigned_in_a_loop(m: Any, v: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        with m.control_dependencies([v.assign_add(1.0)]):
            return i + 1, s + v.read_value()

    return m.while_loop(lambda i, s: i < 5, body, [0, m.constant(0.0)], parallel_iterations=1)


def read_in_later_iterations(m: Any, v: Any) -> Any:
    """Build a loop that reads a variable anew in each iteration."""

    def body(i: Any, s: Any) -> Any:
        read = s + v
        with m.control_dependencies([read]), m.control_dependencies([v.assign(v * 2.0)]):
            return i + 1, m.identity(read)

    return m.while_loop(lambda i, s: i < 5, body, [0, m.constant(0.0)], parallel_iterations=1)


def assigned_in_a_branch(m: Any, v: Any) -> Any:
    taken = m.cond(m.constant(3) > 2, lambda: v.assign_add(10.0).read_value(), lambda: v.assign_add(100.0).read_value())
    with m.control_dependencies([taken]):
        return m.cond(v.read_value() > 100.0, lambda: v + 1.0, lambda: v * 2.0)


def assigned_before_a_loop(m: Any, v: Any) -> Any:
    with m.control_dependencies([v.assign(7.0)]):
        return m.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + v), [0, m.constant(0.0)])


def operation_as_a_branch(m: Any, v: Any) -> Any:
    done = m.cond(m.constant(1) > 2, lambda: m.group(v.assign(5.0)), lambda: m.no_op())
    with m.control_dependencies([done]):
        return v.read_value()


def trained_in_a_loop(m: Any, v: Any) -> Any:
    """Build gradient descent with the gradient inside the loop body."""

    def body(i: Any) -> Any:
        value = v.read_value()
        (slope,) = m.gradients((value - 3.0) ** 2, [value])
        with m.control_dependencies([v.assign_sub(0.1 * slope)]):
            return i + 1

    with m.control_dependencies([m.while_loop(lambda i: i < 20, body, [0], parallel_iterations=1)]):
        return v.read_value()


VARIABLES = [
    assigned_in_a_loop, read_in_later_iterations, assigned_in_a_branch, assigned_before_a_loop, operation_as_a_branch,
    trained_in_a_loop,
]  # fmt: skip


@pytest.mark.parametrize("build", VARIABLES)
def test_variables(tf: Any, build: Callable[[Any, Any], Any]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(1.0, use_resource=True)
        made = build(tf, v)
        session.run(tf.global_variables_initializer())
        theirs = [session.run(made), session.run(v)]

    async def ours() -> Any:
        with af.Graph().as_default():
            v = af.Variable(1.0)
            made = build(af, v)
            async with af.Session() as session:
                await session.run(af.global_variables_initializer())
                return [await session.run(made), await session.run(v)]

    np.testing.assert_allclose(numbers(asyncio.run(ours())), numbers(theirs), rtol=1e-6)


def numbers(nested: Any) -> list[float]:
    return [float(n) for item in nested for n in np.ravel(item)]


# ── the graph ────────────────────────────────────────────────────────────────────────────────────────────────────────

STRUCTURES = [
    (counter, (INT,)), (accumulator, (INT, ROW)), (swap, (INT, ONE, TWO)), (nested, (INT, ROW)),
    (cond_in_loop, (INT, ROW)), (loop_in_cond_in_loop, (INT, ROW)), (cond_in_cond, (ONE, TWO)),
    (cond_of_structures, (ONE, TWO)), (inner_reads_outermost, (INT, ROW)), (growing, (INT, GRID)),
]  # fmt: skip


@pytest.mark.parametrize(("build", "arrays"), STRUCTURES, ids=lambda v: getattr(v, "__name__", ""))
def test_graph_has_the_same_control_flow_nodes(tf: Any, build: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
    """Compare the number of nodes of each control-flow op, and the edges between them by the op types of their ends."""
    found = [steering(m, build, arrays) for m in (af, tf)]
    assert found[0] == found[1]


def steering(m: Any, build: Callable[..., Any], arrays: tuple[Any, ...]) -> Any:
    with m.Graph().as_default() as graph:
        build(m, *(m.placeholder(a.dtype.name, a.shape) for a in arrays))
        nodes = [op for op in graph.get_operations() if traits_of(op.type).is_control_flow]
        edges = Counter((t.op.type, op.type) for op in nodes for t in op.inputs if traits_of(t.op.type).is_control_flow)
        frames = Counter(op.get_attr("is_constant") for op in nodes if op.type == "Enter")
        return Counter(op.type for op in nodes), edges, frames

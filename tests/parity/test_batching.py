"""Batch functions and batch nodes in both systems: one graph, run by the concurrent steps that fill one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import OpError
from tests.parity.test_graphdef import from_tensorflow, to_tensorflow

Build = Callable[[Any, Any], Any]
LONG = 20_000_000  # microseconds; long enough that a batch starts only when it is full
ROWS = np.arange(8, dtype=np.float32).reshape(4, 2) - 3.0


def rows_of(*sizes: int) -> list[Any]:
    """Return one feed per step: consecutive rows of `ROWS`, wrapping around, plus the index of the first row."""
    found, at = [], 0
    for size in sizes:
        found.append(np.take(ROWS, range(at, at + size), axis=0, mode="wrap") + np.float32(at))
        at += size
    return found


def function(m: Any, **settings: Any) -> Any:
    given = {"num_batch_threads": 2, "max_batch_size": 4, "batch_timeout_micros": LONG, **settings}
    return m.nondifferentiable_batch_function(**given)


# ── programs of one placeholder [rows, 2]; together the steps fill one batch ─────────────────────────────────────────


def how_many(m: Any, x: Any) -> Any:
    return function(m)(lambda a: (a * 2.0 + m.cast(m.shape(a)[0], m.float32), m.reduce_sum(a, 1)))(x)


def filled_up(m: Any, x: Any) -> Any:
    made = function(m, allowed_batch_sizes=[4], batch_timeout_micros=1000)
    return made(lambda a: a + m.cast(m.shape(a)[0], m.float32))(x)


def several_arguments(m: Any, x: Any) -> Any:
    made = function(m)(lambda a, b: {"sum": a + b, "of": [m.reduce_max(b, 1), a]})(x, m.square(x))
    return [made["sum"], *made["of"]]


def captured(m: Any, x: Any) -> Any:
    weights = m.get_variable("weights", initializer=m.constant([[1.0, 2.0], [0.5, -1.0]]), use_resource=True)
    shift = m.constant([0.25, 0.5])
    return function(m)(lambda a: m.matmul(a, weights) + shift)(x)


def integers_and_text(m: Any, x: Any) -> Any:
    return function(m)(lambda a: (m.cast(a, m.int64), m.as_string(m.cast(a[:, 0], m.int32))))(x)


def with_a_loop(m: Any, x: Any) -> Any:
    def grown(a: Any) -> Any:
        return m.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2.0 - 1.0), [0, a])[1]

    return function(m)(grown)(x)


def with_a_branch(m: Any, x: Any) -> Any:
    return function(m)(lambda a: m.cond(m.reduce_sum(a) > 0.0, lambda: a * 2.0, lambda: -a))(x)


def in_a_function(m: Any, x: Any) -> Any:
    inner = function(m)(lambda a: a * m.cast(m.shape(a)[0], m.float32))
    return m.function(lambda a: inner(a) + 1.0)(x)


def batch_node(m: Any, x: Any, size: int = 4) -> Any:
    return m.raw_ops.Batch(
        in_tensors=[x, x[:, 0]],
        num_batch_threads=1,
        max_batch_size=size,
        batch_timeout_micros=LONG,
        grad_timeout_micros=LONG,
    )


def carried(m: Any, x: Any) -> Any:
    batch = batch_node(m, x)
    made = batch.batched_tensors[0] * 3.0 + m.reduce_sum(batch.batched_tensors[1])
    return m.raw_ops.Unbatch(
        batched_tensor=made, batch_index=batch.batch_index, id=batch.id, timeout_micros=LONG, shared_name="u"
    )


def gradients_of_carried(m: Any, x: Any) -> Any:
    """Batch the gradients by `UnbatchGrad`, in the order of the first batch, and unbatch the result."""
    batch = batch_node(m, x)
    index, number = batch.batch_index, batch.id
    carried = batch.batched_tensors[0]
    back = m.raw_ops.UnbatchGrad(original_input=carried, batch_index=index, grad=x * x, id=number, shared_name="w")
    return m.raw_ops.Unbatch(
        batched_tensor=back + 2.0 * carried, batch_index=index, id=number, timeout_micros=LONG, shared_name="v"
    )


PROGRAMS = pytest.mark.parametrize(
    "build",
    [
        how_many, filled_up, several_arguments, captured, integers_and_text, with_a_loop, with_a_branch, in_a_function,
        carried, gradients_of_carried,
    ],
)  # fmt: skip
SIZES = pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 3), (2, 1, 1), (4,)])


def built(m: Any, build: Build) -> tuple[Any, Any, Any]:
    """Return the graph, the fetches and the initializer."""
    with m.Graph().as_default() as graph:
        x = m.placeholder(m.float32, [None, 2], name="x")
        fetches = build(m, x)
        return graph, fetches, m.global_variables_initializer()


def run_theirs(tf: Any, graph: Any, fetches: Any, fed: Sequence[Any], init: Any = None) -> list[Any]:
    """Return the result of each concurrent step in TensorFlow, or the name of its error."""
    with tf.Session(graph=graph) as session, ThreadPoolExecutor(len(fed)) as threads:
        if init is not None:
            session.run(init)

        def step(values: Any) -> Any:
            try:
                return session.run(fetches, {"x:0": values})
            except tf.errors.OpError as error:
                return type(error).__name__

        return list(threads.map(step, fed))


def run_ours(graph: Any, fetches: Any, fed: Sequence[Any], init: Any = None) -> list[Any]:
    async def step(session: Any, values: Any) -> Any:
        try:
            return await session.run(fetches, {"x:0": values})
        except OpError as error:
            return type(error).__name__

    async def run() -> list[Any]:
        async with af.Session(graph=graph) as session:
            if init is not None:
                await session.run(init)
            async with asyncio.timeout(60):
                return list(await asyncio.gather(*(step(session, values) for values in fed)))

    return asyncio.run(run())


def flat(found: Any) -> list[Any]:
    return [each for part in found for each in flat(part)] if isinstance(found, list | tuple) else [found]


def assert_alike(ours: list[Any], theirs: list[Any]) -> None:
    for mine, other in zip(flat(ours), flat(theirs), strict=True):
        if isinstance(mine, str):
            assert mine == other
            continue
        assert mine.shape == other.shape
        if mine.dtype == object:
            assert mine.tolist() == other.tolist()
        else:
            assert mine.dtype == other.dtype
            np.testing.assert_allclose(mine, other, rtol=1e-6)


@PROGRAMS
@SIZES
def test_concurrent_steps_return_the_same_values(tf: Any, build: Build, sizes: tuple[int, ...]) -> None:
    graph, fetches, init = built(tf, build)
    theirs = run_theirs(tf, graph, fetches, rows_of(*sizes), init)
    graph, fetches, init = built(af, build)
    assert_alike(run_ours(graph, fetches, rows_of(*sizes), init), theirs)


@PROGRAMS
@pytest.mark.parametrize("from_them", [True, False])
def test_each_system_runs_the_others_graph(tf: Any, build: Build, from_them: bool) -> None:
    (source, fetches, init), fed = built(tf if from_them else af, build), rows_of(1, 2, 1)
    names = [each.name for each in (fetches if isinstance(fetches, list | tuple) else [fetches])]
    theirs, ours = (source, af.Graph()) if from_them else (tf.Graph(), source)
    if from_them:
        with ours.as_default():
            af.import_graph_def(from_tensorflow(source.as_graph_def()), name="")
    else:
        with theirs.as_default():
            tf.import_graph_def(to_tensorflow(tf, source.as_graph_def()), name="")
    expected = run_theirs(tf, theirs, names, fed, init.name)
    assert_alike(run_ours(ours, names, fed, init.name), expected)


@PROGRAMS
def test_static_shapes(tf: Any, build: Build) -> None:
    """Compare only the shapes that TensorFlow infers; it infers none for results of a batch function."""
    theirs, ours = ([t.shape for t in flat(built(m, build)[1])] for m in (tf, af))
    for mine, other in zip(ours, theirs, strict=True):
        if other.ndims is not None:
            assert mine.as_list() == other.as_list()


def too_many(m: Any, x: Any) -> Any:
    return function(m, max_batch_size=3)(lambda a: a)(x)


def different_rows(m: Any, x: Any) -> Any:
    return function(m)(lambda a, b: a)(x, x[1:])


def without_rows(m: Any, x: Any) -> Any:
    return function(m, batch_timeout_micros=0)(lambda a: m.concat([a, a], 0))(x)


def a_scalar(m: Any, x: Any) -> Any:
    return function(m)(lambda a: a)(m.placeholder_with_default(m.reduce_sum(x), None))


def wrong_sizes(m: Any, x: Any) -> Any:
    made = function(m, allowed_batch_sizes=[2, 3], batch_timeout_micros=0, enable_large_batch_splitting=False)
    return made(lambda a: a)(x)


def rows_that_do_not_fit(m: Any, x: Any) -> Any:
    return function(m, batch_timeout_micros=0)(lambda a: m.matmul(a, m.ones([3, 1])))(
        m.placeholder_with_default(x, [None, None])
    )


def too_many_to_carry(m: Any, x: Any) -> Any:
    return batch_node(m, x, size=3)[0]


def nobody_carries(m: Any, x: Any) -> Any:
    index, number = m.zeros([0, 3], m.int64), m.constant(5, m.int64)
    return m.raw_ops.Unbatch(batched_tensor=x, batch_index=index, id=number, timeout_micros=1000)


@pytest.mark.parametrize(
    "build",
    [
        too_many, different_rows, without_rows, a_scalar, wrong_sizes, rows_that_do_not_fit, too_many_to_carry,
        nobody_carries,
    ],
)  # fmt: skip
def test_failing_steps_raise_the_same_errors(tf: Any, build: Build) -> None:
    graph, fetches, _ = built(tf, build)
    theirs = run_theirs(tf, graph, fetches, rows_of(4))
    graph, fetches, _ = built(af, build)
    ours = run_ours(graph, fetches, rows_of(4))
    assert isinstance(ours[0], str)
    assert ours == theirs


@SIZES
def test_gradients_through_a_batch_equal_those_without_batching(tf: Any, sizes: tuple[int, ...]) -> None:
    def each(m: Any, x: Any) -> Any:
        return [m.gradients(m.square(x) * x[:, :1] * m.constant([[1.0, 5.0]]), x)[0]]

    def batched(m: Any, x: Any) -> Any:
        batch = batch_node(m, x)
        rows, first = batch.batched_tensors
        y = m.raw_ops.Unbatch(
            batched_tensor=m.square(rows) * first[:, None],
            batch_index=batch.batch_index,
            id=batch.id,
            timeout_micros=LONG,
        )
        return m.gradients(y * m.constant([[1.0, 5.0]]), x)

    theirs = run_theirs(tf, *built(tf, each)[:2], rows_of(*sizes))
    assert_alike(run_ours(*built(af, batched)[:2], rows_of(*sizes)), theirs)

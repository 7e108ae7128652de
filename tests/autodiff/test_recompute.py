"""Tests of `recompute_grad`: bit-identical values and gradients, with less memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import UnimplementedError

Wrap = Callable[[Any], Any]


def plain(f: Any) -> Any:
    return f


def weights(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return af.Variable((np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(dtype))


def gradients(ys: Any, xs: Sequence[Any], **more: Any) -> list[Any]:
    return list(af.gradients(ys, list(xs), **more))


async def both(build: Callable[[Wrap], tuple[Any, list[Any]]], executor: str = "strands", steps: int = 2) -> list[Any]:
    """Assert that `recompute_grad` changes no bit of the value and gradients over some steps, and return them."""
    seen: list[list[list[Any]]] = []
    for wrap in (plain, af.recompute_grad):
        with af.Graph().as_default():
            loss, sources = build(wrap)
            fetches = [loss, *[g for g in gradients(loss, sources) if g is not None]]
            async with af.Session(config=af.SessionConfig(executor=executor)) as sess:
                await sess.run(af.global_variables_initializer())
                seen.append([await sess.run(fetches) for _ in range(steps)])
    for expected, found in zip(*seen, strict=True):
        assert len(expected) == len(found) > 1
        for a, b in zip(expected, found, strict=True):
            parts = [(a.values, b.values), (a.indices, b.indices)] if hasattr(a, "indices") else [(a, b)]
            assert all(np.asarray(p).tobytes() == np.asarray(q).tobytes() for p, q in parts)
    return seen[1][-1]


def layers(wrap: Wrap, dropped: float = 0.0, count: int = 3, size: int = 6, rows: int = 5) -> tuple[Any, list[Any]]:
    h: Any = af.constant(np.random.default_rng(9).standard_normal((rows, size)).astype(np.float32))
    x, sources = h, [h]
    for i in range(count):
        w, b = weights(size, size, seed=i), weights(size, seed=10 + i)

        def layer(h: Any, w: Any = w, b: Any = b, i: int = i) -> Any:
            inner = af.nn.softplus(af.matmul(h, w) + b)
            if dropped:
                inner = af.nn.dropout(inner, rate=dropped, seed=i)
            return h + af.tanh(inner)

        h = wrap(layer)(h)
        sources += [w, b]
    return af.reduce_mean(af.square(h)), [x, *sources[1:]]


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_gradients_are_the_same_to_the_last_bit(executor: str) -> None:
    await both(layers, executor)


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_random_values_are_drawn_once(executor: str) -> None:
    """The gradient uses the masks of the forward pass, in each step: others would be those of a different function."""
    await both(lambda wrap: layers(wrap, dropped=0.4), executor)


async def test_results_may_be_drawn_or_read_values() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        w, x = weights(3), af.constant([1.0, 2.0, 3.0])

        @wrap
        def noisy(v: Any) -> Any:
            noise = af.random_normal([3], seed=4)
            return v * noise, noise, af.convert_to_tensor(w), v

        product, noise, read, given = noisy(x)
        return af.reduce_sum(product * noise + read * given), [x, w]

    await both(build)


async def test_unseeded_masks_are_the_same_in_the_gradient() -> None:
    x = af.constant(np.ones(1000, np.float32))
    y = af.recompute_grad(lambda v: af.nn.dropout(v * 3.0, rate=0.5))(x)
    (by_x,) = gradients(y, [x])
    async with af.Session() as sess:
        for _ in range(3):
            values, gradient = await sess.run([y, by_x])
            assert 0 < np.count_nonzero(values) < 1000
            np.testing.assert_array_equal(gradient, values)


async def peak(sess: af.Session, fetch: Any, feeds: Any) -> int:
    await sess.run(fetch, feeds)
    gc.collect()
    tracemalloc.start()
    try:
        await sess.run(fetch, feeds)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dropped", [0.0, 0.4])
async def test_peak_memory_falls(dropped: float) -> None:
    """Twelve chained functions keep twelve arguments and the intermediates of one function, not of twelve."""
    found = {}
    for wrap in (plain, af.recompute_grad):
        with af.Graph().as_default():
            loss, sources = layers(wrap, dropped, count=12, size=32, rows=2048)
            norms = af.add_n([af.reduce_sum(g) for g in gradients(loss, sources)])
            async with af.Session(config=af.SessionConfig(threads=1)) as sess:
                await sess.run(af.global_variables_initializer())
                found[wrap] = await peak(sess, norms, {})
    assert found[af.recompute_grad] < 0.6 * found[plain]


async def test_peak_memory_falls_in_a_loop() -> None:
    """A loop saves only the arguments of each iteration."""

    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        w = weights(32, 32)
        x = af.constant(np.random.default_rng(1).standard_normal((1024, 32)).astype(np.float32))

        @wrap
        def cell(h: Any) -> Any:
            return af.tanh(af.nn.softplus(af.sigmoid(af.matmul(h, w)) * af.matmul(h, af.transpose(w))))

        _, h = af.while_loop(lambda i, _: i < 10, lambda i, h: (i + 1, cell(h)), [0, x])
        return af.reduce_sum(h), [x, w]

    await both(build)
    found = {}
    for wrap in (plain, af.recompute_grad):
        with af.Graph().as_default():
            loss, sources = build(wrap)
            total = af.add_n([af.reduce_sum(g) for g in gradients(loss, sources)])
            async with af.Session() as sess:
                await sess.run(af.global_variables_initializer())
                found[wrap] = await peak(sess, total, {})
    assert found[af.recompute_grad] < 0.5 * found[plain]


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_recomputation_in_a_loop_with_masks_and_a_branch(executor: str) -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        w, x = weights(4, 4), af.constant(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32))

        @wrap
        def cell(h: Any, k: Any) -> Any:
            wider = af.cond(k > 1, lambda: af.matmul(h, w), lambda: af.exp(-h * h))
            return af.nn.dropout(af.tanh(wider), rate=0.25, seed=5)

        _, h = af.while_loop(lambda i, _: i < 4, lambda i, h: (i + 1, h + cell(h, i)), [0, x])
        return af.reduce_sum(af.square(h)), [x, w]

    await both(build, executor)


async def test_recomputed_function_with_a_loop() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        w, x = weights(4, 4), af.constant(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32))

        @wrap
        def recurrent(h: Any) -> Any:
            return af.while_loop(lambda i, _: i < 5, lambda i, h: (i + 1, af.tanh(af.matmul(h, w)) + h), [0, h])[1]

        return af.reduce_sum(af.square(recurrent(recurrent(x)))), [x, w]

    await both(build)


async def test_recomputed_function_with_a_tensor_array() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        x = af.constant(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32))
        running = wrap(lambda rows: af.scan(lambda total, row: af.tanh(total + row), rows))
        return af.reduce_sum(af.square(running(x))), [x]

    await both(build)


async def test_nested_recomputation_gives_the_same_gradients() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        w, x = weights(4, 4), af.constant(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32))

        @wrap
        def inner(h: Any) -> Any:
            return af.nn.dropout(af.tanh(af.matmul(h, w)), rate=0.25, seed=3)

        @wrap
        def outer(h: Any) -> Any:
            return inner(af.exp(inner(h))) + h

        return af.reduce_sum(af.square(outer(x))), [x, w]

    await both(build)


async def test_loops_in_nested_recomputed_functions() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        w, x = weights(4, 4), af.constant(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32))

        @wrap
        def loop(h: Any) -> Any:
            return af.while_loop(lambda i, _: i < 5, lambda i, h: (i + 1, af.tanh(af.matmul(h, w)) + h), [0, h])[1]

        outer = wrap(wrap(lambda h: loop(loop(h) * 2.0)))
        return af.reduce_sum(af.square(outer(x))), [x, w]

    await both(build)


async def test_structures_defaults_and_unread_results() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        w = weights(3)
        x, y = af.constant([1.0, 2.0, 3.0]), af.constant([0.5, 0.25, 0.125])

        @wrap
        def both_of(pair: Any, scale: Any, *, power: int = 2, mode: str | None = None) -> Any:
            assert isinstance(power, int)
            assert mode == "sum"
            a, b = pair["a"], pair["b"]
            return {"sum": af.pow(a + b * w, float(power)) * scale, "product": a * b, "count": af.size(a)}

        made = both_of({"a": x, "b": y}, np.float32(3.0), power=3, mode="sum")
        assert set(made) == {"sum", "product", "count"}
        return af.reduce_sum(made["sum"]), [x, y, w]

    await both(build)


async def test_embedding_lookup_gradient_is_sparse() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        table, ids = weights(5, 3), af.constant([4, 1, 4])
        rows = wrap(lambda ids: af.tanh(af.nn.embedding_lookup(table, ids)))(ids)
        return af.reduce_sum(af.square(rows)), [table]

    found = await both(build)
    assert found[1].indices.tolist() == [4, 1, 4]


async def test_gradient_of_gathered_rows_of_a_result() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        x = af.constant(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32))
        return af.reduce_sum(af.gather(wrap(lambda v: af.tanh(v) * 2.0)(x), [2, 0, 2])), [x]

    await both(build)


async def test_gradients_of_gradients() -> None:
    def build(wrap: Wrap) -> tuple[Any, list[Any]]:
        x = af.constant([0.5, -1.0, 2.0])
        y = wrap(lambda v: af.tanh(v) * af.exp(-v * v))(x)
        (first,) = gradients(y, [x])
        return af.reduce_sum(af.square(first)), [x]

    await both(build)


async def test_variables_made_inside_are_made_once() -> None:
    def dense(h: Any) -> Any:
        with af.variable_scope("layer", reuse=af.AUTO_REUSE):
            w = af.get_variable("w", [4, 4], initializer=af.initializers.glorot_uniform(seed=1))
            return af.tanh(af.matmul(h, w))

    x = af.constant(np.ones((2, 4), np.float32))
    loss = af.reduce_sum(af.recompute_grad(dense)(x))
    (w,) = af.trainable_variables()
    (gradient,) = gradients(loss, [w])
    (expected,) = gradients(af.reduce_sum(dense(x)), [w])
    assert len(af.global_variables()) == 1
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        a, b = await sess.run([gradient, expected])
    assert a.tobytes() == b.tobytes()


async def test_side_effects_happen_once() -> None:
    calls = af.Variable(0, trainable=False)
    x = af.constant([1.0, 2.0])

    @af.recompute_grad
    def counted(v: Any) -> Any:
        with af.control_dependencies([calls.assign_add(1)]):
            return af.exp(af.identity(v))

    y = counted(x)
    (gradient,) = gradients(y, [x])
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        for _ in range(3):
            values, slopes = await sess.run([y, gradient])
            assert values.tobytes() == slopes.tobytes()
        assert await sess.run(calls) == 3


async def test_variable_update_between_passes_does_not_change_the_gradient() -> None:
    """The variable is read once: a change between the two computations does not affect the second."""
    w, x = af.Variable(2.0), af.constant(3.0)
    y = af.recompute_grad(lambda v: af.square(v * w))(x)
    with af.control_dependencies([y]):
        late = w.assign(100.0, read_value=False)
    with af.control_dependencies([late]):
        seed = af.identity(af.constant(1.0) * y / y)
    (by_x,) = gradients(y, [x], grad_ys=[seed])
    async with af.Session() as sess:
        await sess.run(w.initializer)
        assert await sess.run(by_x) == 2 * 3.0 * 2.0**2
        assert await sess.run(w) == 100.0


async def test_training_gives_the_same_loss() -> None:
    losses = {}
    for wrap in (plain, af.recompute_grad):
        with af.Graph().as_default():
            loss, _ = layers(wrap, dropped=0.1)
            train = af.train.AdamOptimizer(0.02).minimize(loss)
            async with af.Session() as sess:
                await sess.run(af.global_variables_initializer())
                for _ in range(20):
                    await sess.run(train)
                losses[wrap] = await sess.run(loss)
    assert losses[plain].tobytes() == losses[af.recompute_grad].tobytes()


def test_random_ops_in_an_inner_loop_are_rejected() -> None:
    x = af.constant([1.0, 2.0])

    @af.recompute_grad
    def noisy(v: Any) -> Any:
        return af.while_loop(lambda i, _: i < 3, lambda i, u: (i + 1, u * af.random_uniform([2])), [0, v])[1]

    y = noisy(x)
    with pytest.raises(UnimplementedError, match="branches and loops") as caught:
        gradients(y, [x])
    assert "RandomUniform" in str(caught.value)

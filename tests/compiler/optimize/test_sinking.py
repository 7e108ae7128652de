"""Transposes that move behind elementwise nodes: which are removed, which stay, and that no bit of a result changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.compiler.optimize.fold_batch_norm import fold_batch_norm
from aioflow.compiler.optimize.fuse_bias import fuse_bias
from aioflow.compiler.optimize.transposes import transposes
from aioflow_numpy import convolution, kernels
from tests.compiler.optimize.steps import assert_equivalent, assert_same_bits, fetched, ops, optimized, run, step
from tests.support.random_examples import examples

FIRST, LAST = [0, 3, 1, 2], [0, 2, 3, 1]  # the orders that put channels first and last


def _values(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _image(x: Any, channels: int = 3, seed: int = 2) -> Any:
    """Return a convolution whose result is transposed to channels first."""
    kernel = af.constant(_values(1, 1, x.dims[3], channels, seed=seed))
    return af.transpose(af.nn.conv2d(x, kernel, 1, "VALID"), FIRST)


def _convolved(y: Any) -> Any:
    return _image(af.transpose(y, LAST))


def _per_channel(*shape: int) -> Any:
    return af.constant(_values(*shape))


CARRIED: dict[str, Callable[[Any], Any]] = {
    "a function of each element": lambda y: af.nn.relu(y),
    "one with a slope": lambda y: af.nn.leaky_relu(y),
    "a chain": lambda y: af.tanh(af.nn.relu6(y) - 1.0),
    "one number per channel": lambda y: y * _per_channel(3, 1, 1) + _per_channel(1, 3, 1, 1),
    "one number per column": lambda y: y - _per_channel(5),
    "another image": lambda y: af.nn.relu(y + _image(af.transpose(y, LAST), seed=3)),
    "a gate": lambda y: y * af.sigmoid(_image(af.reduce_mean(af.transpose(y, LAST), [1, 2], keepdims=True))),
    "a choice": lambda y: af.where(y > 0.5, y, -y),
    "another dtype": lambda y: af.cast(af.cast(y, "float64") * 2.0, "float32"),
}


@pytest.mark.parametrize("between", CARRIED.values(), ids=list(CARRIED))
@pytest.mark.parametrize("batch", [1, 2])
async def test_no_transpose_is_left_between_convolutions(between: Callable[[Any], Any], batch: int) -> None:
    x = af.placeholder("float32", [batch, 4, 5, 3])
    y = _convolved(between(_image(x)))
    graph = step(af.transpose(y, LAST), [x])
    result = await assert_equivalent(graph, [_values(batch, 4, 5, 3)], transposes, dead_code)
    assert ops(result)["Transpose"] == 0
    assert ops(result)["Conv2D"] == ops(graph)["Conv2D"]


STAYS: dict[str, Callable[[Any, Any], Any]] = {
    "a sum over an axis": lambda y, x: af.reduce_sum(y, 3, keepdims=True) + y,
    "an image that lies the other way": lambda y, x: y + af.reshape(x, [2, 3, 4, 5]),
    "a table": lambda y, x: y + _per_channel(4, 5),
    "rows that are chosen": lambda y, x: af.raw_ops.Select(condition=af.constant([True, False]), t=y, e=-y),
    "what is added to the last axis": lambda y, x: af.nn.bias_add(y, af.constant(_values(5))),
    "ones, which are made in rows": lambda y, x: af.ones_like(y, optimize=False) * y,
    "another order": lambda y, x: y + af.transpose(af.tanh(af.reshape(x, [2, 4, 3, 5])), [0, 2, 1, 3]),
}


@pytest.mark.parametrize("between", STAYS.values(), ids=list(STAYS))
async def test_transposes_do_not_pass_nodes_of_unknown_layout(between: Callable[[Any, Any], Any]) -> None:
    x = af.placeholder("float32", [2, 4, 5, 3])
    graph = step(_convolved(between(_image(x), x)), [x])
    result = await assert_equivalent(graph, [_values(2, 4, 5, 3)], transposes, dead_code)
    assert ops(result)["Transpose"] >= 2


async def test_feeds_may_have_any_layout() -> None:
    x = af.placeholder("float32", [2, 4, 5, 3])
    y = af.nn.relu(af.transpose(x, FIRST))
    graph = step([af.reduce_sum(y, [1]), af.transpose(y, LAST)], [x])
    result = optimized(graph, transposes, dead_code)
    for value in (_values(2, 4, 5, 3), _values(3, 5, 4, 2).T, np.broadcast_to(_values(1, 1, 5, 3), (2, 4, 5, 3))):
        for executor in ("strands", "reference"):
            wanted, found = await run(graph, [value], executor), await run(result, [value], executor)
            assert_same_bits(found.values, wanted.values)


@pytest.mark.parametrize("readers", [1, 3])
async def test_transpose_with_several_readers_is_not_duplicated(readers: int) -> None:
    x = af.placeholder("float32", [2, 4, 5, 3])
    y = _image(x)
    graph = step([af.reduce_sum(f(y), 1) for f in (af.nn.relu, af.tanh, af.exp)[:readers]], [x])
    result = await assert_equivalent(graph, [_values(2, 4, 5, 3)], transposes, dead_code)
    assert ops(result)["Transpose"] == 1


async def test_fetched_layout_and_later_layout_share_the_computation() -> None:
    x = af.placeholder("float32", [2, 4, 5, 3])
    y = af.nn.relu(_image(x))
    graph = step([y, af.transpose(af.tanh(y), LAST)], [x])
    result = await assert_equivalent(graph, [_values(2, 4, 5, 3)], transposes, dead_code)
    assert ops(result) == {"Conv2D": 1, "Relu": 1, "Tanh": 1, "Transpose": 1}
    assert fetched(result).op == "Transpose"
    assert fetched(result, 1).op == "Tanh"


@pytest.mark.parametrize("taken", [True, False])
async def test_branches_and_loops(taken: bool) -> None:
    x, flag = af.placeholder("float32", [2, 4, 5, 3]), af.placeholder("bool", [])

    def body(i: Any, y: Any) -> Any:
        images = af.transpose(af.nn.avg_pool2d(y, 1, 1, "VALID"), FIRST)
        return [i + 1, af.transpose(af.nn.relu(images * _per_channel(3, 1, 1)), LAST)]

    def loop() -> Any:
        return af.while_loop(lambda i, _: i < 3, body, [0, x])[1]

    graph = step(af.cond(flag, loop, lambda: af.nn.relu(af.transpose(af.transpose(x, FIRST) * 2.0, LAST))), [x, flag])
    result = await assert_equivalent(graph, [_values(2, 4, 5, 3), np.bool_(taken)], transposes, dead_code)
    assert ops(result)["Transpose"] <= 2


async def test_layers_in_another_layout_are_fused() -> None:
    x = af.placeholder("float32", [2, 4, 5, 3])
    scale, offset, mean, variance = (af.constant(np.abs(_values(3, seed=seed)) + 0.5) for seed in range(4))
    images = af.nn.conv2d(x, af.constant(_values(1, 1, 3, 3)), 1, "VALID")
    turned = af.transpose(af.transpose(images, FIRST), LAST)
    normal = af.nn.fused_batch_norm(turned, scale, offset, mean, variance, is_training=False)[0]
    y = af.nn.relu(af.transpose(normal, FIRST))
    z = af.nn.relu(_convolved(y) + _per_channel(3, 1, 1))
    graph = step(af.transpose(z, LAST), [x])
    result = optimized(graph, transposes, dead_code, fold_batch_norm, fuse_bias)
    assert ops(result)["_FusedConv2D"] == 2
    assert not ops(result).keys() & {"Transpose", "Relu", "BiasAdd", "AddV2", "FusedBatchNormV3"}
    (wanted,), (found,) = [(await run(g, [_values(2, 4, 5, 3)])).values for g in (graph, result)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


_UNARY: list[Callable[[Any], Any]] = [
    af.nn.relu,
    af.tanh,
    af.exp,
    af.sigmoid,
    af.nn.leaky_relu,
    af.nn.selu,
    af.negative,
    lambda y: y * 0.5,
    lambda y: 1.0 - y,
    lambda y: af.minimum(y, 3.0),
    lambda y: af.cast(af.cast(y, "float64"), "float32"),
    lambda y: y + _per_channel(*[1] * (y.shape.ndims - 1), y.dims[-1]),
    lambda y: y * _per_channel(*[y.dims[1]], *[1] * (y.shape.ndims - 2)),
]
_BINARY = [af.add, af.multiply, af.maximum, lambda a, b: af.where(a > b, a, b)]


def _random_step(seed: int) -> tuple[Any, list[Any]]:
    """Return a graph of transposes, elementwise functions and sums, and its feeds.

    The sums are sensitive to the memory layout of their operands.
    """
    rng = random.Random(seed)
    shape = [rng.choice([1, 2, 3, 5, 8]) for _ in range(rng.choice([3, 4]))]
    x = af.placeholder("float32", shape)
    pool = [af.tanh(af.reshape(af.matmul(af.reshape(x, [-1, shape[-1]]), af.ones([shape[-1]] * 2)), shape)), af.tanh(x)]
    for _ in range(14):
        y = rng.choice(pool[-4:])
        kind = rng.random()
        if kind < 0.35:
            order = list(range(len(shape)))
            rng.shuffle(order)
            pool.append(
                af.transpose(
                    y, rng.choice([order, [0, 2, 1, 3], [1, 0, 2, 3]])[: len(shape)] if len(shape) == 4 else order
                )
            )
        elif kind < 0.75:
            pool.append(rng.choice(_UNARY)(y))
        elif kind < 0.9:
            alike = [other for other in pool if other.dims == y.dims]
            pool.append(rng.choice(_BINARY)(y, rng.choice(alike)))
        else:
            pool.append(y + af.reduce_sum(y, rng.randrange(len(shape)), keepdims=True))
    shown = [*pool[-3:], *rng.sample(pool, 2)]
    sums = [af.reduce_sum(y, rng.randrange(len(shape))) for y in shown]
    return step([*shown, *sums], [x]), [_values(*shape, seed=seed)]


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1_000_000))
async def test_random_graphs_give_the_same_bits(seed: int) -> None:
    with af.Graph().as_default():
        graph, feeds = _random_step(seed)
    result = await assert_equivalent(graph, feeds, transposes, dead_code)
    assert ops(result)["Transpose"] <= ops(graph)["Transpose"]


def test_transposed_constant_filter_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def conv2d(image: Any, kernel: Any, *how: Any) -> Any:
        seen.append(kernel)
        return convolution.conv2d(image, kernel, *how)

    monkeypatch.setitem(kernels._FORWARD, "Conv2D", conv2d)
    x, filters = af.placeholder("float32", [None, 4, 5, 3]), _values(6, 3, 2, 2)
    y = af.nn.conv2d(x, af.transpose(af.constant(filters), [2, 3, 1, 0]), 1, "VALID")
    with af.Session() as session:
        found = [session.run_sync(y, {x: _values(count, 4, 5, 3)}) for count in (1, 2)]
    assert all(kernel.flags.c_contiguous for kernel in seen)
    assert seen[0] is seen[1]
    how = ((1, 1), ((0, 0), (0, 0)), (1, 1), "NHWC")
    for made, count in zip(found, (1, 2), strict=True):
        wanted = convolution.conv2d(_values(count, 4, 5, 3), filters.transpose(2, 3, 1, 0), *how)
        assert_same_bits([made], [wanted])

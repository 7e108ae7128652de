"""The `transposes` pass: transposes and reshapes that cancel, and products that absorb transposes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.compiler.optimize.transposes import transposes
from tests.compiler.optimize.steps import assert_equivalent, ops, optimized, step


def _feed(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


async def test_inverse_transposes_cancel() -> None:
    x = af.placeholder("float32", [2, 3, 4])
    y = af.tanh(x)
    graph = step(af.transpose(af.transpose(y, [2, 0, 1]), [1, 2, 0]) + 1.0, [x])
    assert ops(await assert_equivalent(graph, [_feed(2, 3, 4)], transposes, dead_code)) == {"Tanh": 1, "AddV2": 1}


async def test_two_transposes_merge_into_one() -> None:
    x = af.placeholder("float32", [2, 3, 4])
    once = af.transpose(af.tanh(x), [2, 0, 1])
    graph = step([af.transpose(once, [0, 2, 1]) * 2.0, once], [x])
    assert ops(await assert_equivalent(graph, [_feed(2, 3, 4)], transposes, dead_code))["Transpose"] == 2
    alone = step(af.transpose(once, [0, 2, 1]) * 2.0, [x])
    assert ops(await assert_equivalent(alone, [_feed(2, 3, 4)], transposes, dead_code))["Transpose"] == 1


async def test_a_chain_of_transposes() -> None:
    x = af.placeholder("float32", [2, 3, 4])
    y = af.tanh(x)
    for _ in range(4):
        y = af.transpose(y, [1, 2, 0])
    graph = step(y * 1.5, [x])
    assert ops(await assert_equivalent(graph, [_feed(2, 3, 4)], transposes, dead_code))["Transpose"] == 1


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_transposes_in_a_loop_read_constants_of_the_loop(count: int) -> None:
    x, n = af.placeholder("float32", [2, 2, 2]), af.placeholder("int32", [])

    def body(i: Any, y: Any) -> Any:
        return [i + 1, af.transpose(af.transpose(af.tanh(y), [1, 2, 0]), [0, 2, 1])]

    graph = step(af.while_loop(lambda i, _: i < n, body, [0, x])[1], [x, n])
    result = await assert_equivalent(graph, [_feed(2, 2, 2), np.int32(count)], transposes, dead_code)
    assert ops(result)["Transpose"] == 1


def test_transpose_with_a_fed_order_is_kept() -> None:
    x, order = af.placeholder("float32", [2, 3]), af.placeholder("int32", [2])
    graph = step(af.transpose(af.transpose(x, order), [1, 0]), [x, order])
    assert ops(optimized(graph, transposes)) == ops(graph)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "complex64"])
@pytest.mark.parametrize(("flag_a", "flag_b"), [(False, False), (True, False), (True, True)])
async def test_matmul_absorbs_transposes_of_its_operands(dtype: str, flag_a: bool, flag_b: bool) -> None:
    shapes = (5, 7) if flag_a else (7, 5), (7, 3) if flag_b else (3, 7)
    a, b = (af.placeholder(dtype, shape) for shape in shapes)
    product = af.raw_ops.MatMul(a=af.transpose(a), b=af.transpose(b), transpose_a=flag_a, transpose_b=flag_b)
    numpy_dtype = a.dtype.as_numpy_dtype
    feeds = [(_feed(*shape, dtype="float64") * 5).astype(numpy_dtype) for shape in shapes]
    assert ops(await assert_equivalent(step(product, [a, b]), feeds, transposes, dead_code)) == {"MatMul": 1}


@pytest.mark.parametrize("size", [3, 64, 700])
async def test_matmul_absorbs_transposes_at_every_size(size: int) -> None:
    """The kernel splits products above some size into blocks. Gradients consist of such products."""
    a, b = af.placeholder("float32", [size, 3 * size]), af.placeholder("float32", [size, 2])
    feeds = [_feed(size, 3 * size), _feed(size, 2)]
    products = [af.matmul(af.transpose(a), b), af.matmul(af.transpose(a), a), af.matmul(a, af.transpose(a))]
    result = await assert_equivalent(step(products, [a, b]), feeds, transposes, dead_code)
    assert ops(result) == {"MatMul": 3}


async def test_a_batched_product_transposes_the_last_two_axes() -> None:
    a, b = af.placeholder("float32", [2, 5, 7]), af.placeholder("float32", [2, 5, 3])
    graph = step(af.matmul(af.transpose(a, [0, 2, 1]), b), [a, b])
    feeds = [_feed(2, 5, 7), _feed(2, 5, 3)]
    assert ops(await assert_equivalent(graph, feeds, transposes, dead_code)) == {"BatchMatMulV2": 1}
    other = step(af.matmul(af.transpose(a, [2, 0, 1]), af.reshape(b, [1, 5, 6])), [a, b])
    assert ops(optimized(other, transposes, dead_code)) == ops(other)


async def test_complex_batched_matmul_keeps_its_transpose() -> None:
    # The adjoint flags of BatchMatMulV2 conjugate as well as transpose.
    a = af.placeholder("complex64", [2, 5, 7])
    graph = step(af.matmul(af.transpose(a, [0, 2, 1]), a), [a])
    feed = (_feed(2, 5, 7) + 1j * _feed(2, 5, 7)).astype(np.complex64)
    assert ops(await assert_equivalent(graph, [feed], transposes, dead_code)) == ops(graph)


async def test_consecutive_reshapes_merge_into_the_last() -> None:
    x = af.placeholder("float32", [None, 6])
    y = af.matmul(x, af.ones([6, 6]))
    graph = step(af.reshape(af.reshape(af.reshape(y, [-1]), [-1, 3, 2]), [-1, 4]), [x])
    result = await assert_equivalent(graph, [_feed(4, 6)], transposes, dead_code)
    assert ops(result) == {"MatMul": 1, "Reshape": 1}


async def test_a_reshape_that_may_fail_is_kept() -> None:
    x = af.placeholder("float32", [None])
    y = af.fill([af.size(x)], 1.0)
    y.set_shape([None])
    graph = step(af.reshape(af.reshape(y, [-1, 4]), [-1, 2]), [x])
    assert ops(optimized(graph, transposes, dead_code))["Reshape"] == 2


async def test_a_reshape_that_copies_is_kept() -> None:
    """The reshape to a vector makes the transposed values row-major. Without it they stay column-major."""
    x = af.placeholder("float32", [300, 200])
    turned = af.transpose(af.tanh(x))
    graph = step(af.reduce_sum(af.reshape(af.reshape(turned, [-1]), [200, 300]), 1), [x])
    result = await assert_equivalent(graph, [_feed(300, 200)], transposes, dead_code)
    assert ops(result)["Reshape"] == 2

"""Products fused with bias and activation: which are, which are not, and the same values to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize.fuse_bias import fuse_bias
from aioflow.errors import InvalidArgumentError
from tests.compiler.optimize.fused_runs import check, never, ops, pruned, run

RNG = np.random.default_rng(0)
ACTIVATIONS: tuple[Callable[[Any], Any], ...] = (
    af.nn.relu,
    af.nn.relu6,
    af.tanh,
    af.sigmoid,
    af.nn.elu,
    af.identity,
)


def feed(*shape: int, dtype: str = "float32", static: list[int | None] | None = None) -> tuple[Any, Any]:
    value = (3 * RNG.standard_normal(shape)).astype(dtype)
    return af.placeholder(dtype, list(shape) if static is None else static), value


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [0, 1, 7, 600])
def test_matrix_products(rows: int, activation: Callable[[Any], Any], dtype: str) -> None:
    (x, vx), (w, vw), (b, vb) = (
        feed(rows, 40, dtype=dtype, static=[None, 40]),
        feed(40, 120, dtype=dtype),
        feed(120, dtype=dtype),
    )
    y = activation(af.nn.bias_add(af.matmul(x, w), b))
    after = check(fuse_bias, [y], {x: vx, w: vw, b: vb})
    assert ops(after)["_FusedMatMul"] == 1
    assert ops(after)["BiasAdd"] == 0
    if activation is not af.identity:
        assert ops(after) == {"_FusedMatMul": 1}
        assert after.nodes[y.op.name].attrs["fused_ops"] == ("BiasAdd", y.op.type)


def test_transposed_products_and_plain_additions() -> None:
    (x, vx), (w, vw), (b, vb) = feed(40, 300), feed(120, 40), feed(120)
    product = af.matmul(x, w, transpose_a=True, transpose_b=True)
    for y in (product + b, af.nn.relu(b + product)):
        assert ops(check(fuse_bias, [y], {x: vx, w: vw, b: vb})) == {"_FusedMatMul": 1}


def test_an_activation_without_a_bias() -> None:
    (x, vx), (w, vw), (image, vimage), (kernel, vkernel) = feed(5, 40), feed(40, 12), feed(2, 9, 9, 3), feed(3, 3, 3, 8)
    convolved = af.nn.conv2d(image, kernel, strides=[1, 1, 1, 1], padding="SAME")
    for made, feeds in ((af.matmul(x, w), {x: vx, w: vw}), (convolved, {image: vimage, kernel: vkernel})):
        for activation in ACTIVATIONS[:-1]:
            y = activation(made)
            after = check(fuse_bias, [y], feeds)
            assert ops(after) == {f"_Fused{made.op.type}": 1}
            assert after.nodes[y.op.name].attrs["fused_ops"] == (y.op.type,)


CONVOLUTIONS = [
    # image, filter, strides, padding
    ((2, 30, 31, 3), (5, 5, 3, 32), 1, "SAME"),
    ((2, 30, 31, 16), (3, 3, 16, 70), 2, "VALID"),
    ((3, 20, 20, 64), (1, 1, 64, 8), 1, "SAME"),
    ((1, 20, 20, 8), (3, 3, 4, 6), 1, "SAME"),
    ((2, 9, 9, 4), (3, 3, 1, 8), 1, "SAME"),
    ((0, 9, 9, 4), (3, 3, 4, 8), 1, "SAME"),
]


@pytest.mark.parametrize(("image", "kernel", "stride", "padding"), CONVOLUTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_convolutions(image: Any, kernel: Any, stride: int, padding: str, dtype: str) -> None:
    (x, vx), (w, vw), (b, vb) = feed(*image, dtype=dtype), feed(*kernel, dtype=dtype), feed(kernel[3], dtype=dtype)
    strides = [1, stride, stride, 1]
    for activation in (af.nn.relu, af.sigmoid, af.identity):
        y = activation(af.nn.bias_add(af.nn.conv2d(x, w, strides=strides, padding=padding), b))
        after = check(fuse_bias, [y], {x: vx, w: vw, b: vb})
        assert ops(after)["_FusedConv2D"] == 1
        assert ops(after)["BiasAdd"] == 0


@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise_convolutions(multiplier: int) -> None:
    (x, vx), (w, vw), (b, vb) = feed(4, 40, 40, 24), feed(3, 3, 24, multiplier), feed(24 * multiplier)
    made = af.nn.depthwise_conv2d_native(x, w, strides=[1, 1, 1, 1], padding="SAME")
    after = check(fuse_bias, [af.nn.relu6(af.nn.bias_add(made, b))], {x: vx, w: vw, b: vb})
    assert ops(after) == {"_FusedDepthwiseConv2dNative": 1}


def test_what_is_not_fused() -> None:
    (x, vx), (w, vw), (b, vb) = feed(5, 40), feed(40, 12), feed(12)
    (row, vrow), (column, vcolumn) = feed(1, 12), feed(5, 1)
    feeds = {x: vx, w: vw, b: vb, row: vrow, column: vcolumn}
    product = af.matmul(x, w)
    assert ops(check(fuse_bias, [product + row], feeds))["MatMul"] == 1
    assert ops(check(fuse_bias, [product + column], feeds))["MatMul"] == 1
    assert ops(check(fuse_bias, [product + product], feeds))["MatMul"] == 1
    assert ops(check(fuse_bias, [af.nn.relu(product), product], feeds)) == {"MatMul": 1, "Relu": 1}
    biased = af.nn.bias_add(product, b)
    assert ops(check(fuse_bias, [af.nn.relu(biased), product], feeds))["MatMul"] == 1
    assert ops(check(fuse_bias, [af.nn.relu(biased), biased], feeds)) == {"_FusedMatMul": 1, "Relu": 1}
    with af.control_dependencies([af.no_op()]):
        gated = af.nn.relu(biased)
    assert ops(check(fuse_bias, [gated], feeds)) == {"_FusedMatMul": 1, "Relu": 1, "NoOp": 1}
    with af.device("/cpu:1"):
        elsewhere = af.nn.relu(biased)
    assert ops(fuse_bias(pruned([elsewhere], list(feeds)), never)) == {"_FusedMatMul": 1, "Relu": 1}
    assert ops(fuse_bias(pruned([biased], list(feeds), [product.op]), never))["MatMul"] == 1


def test_channels_first_and_integers_are_not_fused() -> None:
    (x, vx), (w, vw), (b, vb) = feed(1, 3, 9, 9), feed(3, 3, 3, 4), feed(4)
    made = af.nn.conv2d(x, w, strides=[1, 1, 1, 1], padding="SAME", data_format="NCHW")
    biased = af.nn.bias_add(made, b, data_format="NCHW")
    assert ops(check(fuse_bias, [af.nn.relu(biased)], {x: vx, w: vw, b: vb}))["Conv2D"] == 1
    columns, vcolumns = feed(9)  # a bias of `_FusedConv2D` would be one of channels
    assert ops(check(fuse_bias, [made + columns], {x: vx, w: vw, columns: vcolumns}))["Conv2D"] == 1
    (x, vx), (w, vw), (b, vb) = feed(4, 5, dtype="int32"), feed(5, 6, dtype="int32"), feed(6, dtype="int32")
    assert ops(check(fuse_bias, [af.matmul(x, w) + b], {x: vx, w: vw, b: vb}))["MatMul"] == 1


def test_each_failure_is_laid_to_the_users_node() -> None:
    x, w, b = (af.placeholder("float32", [None] * rank) for rank in (2, 2, 1))
    product = af.matmul(x, w, name="product")
    biased = af.nn.bias_add(product, b, name="biased")
    after = fuse_bias(pruned([af.nn.relu(biased)], [x, w, b]), never)
    assert ops(after) == {"_FusedMatMul": 1}
    feeds = {x: np.ones((300, 400)), w: np.ones((401, 600)), b: np.ones(600)}
    with pytest.raises(InvalidArgumentError) as caught:
        run(after, feeds)
    assert (caught.value.node, caught.value.op_type, caught.value.source) == ("product", "MatMul", product.op.source)
    for count in (599, 1):
        with pytest.raises(InvalidArgumentError, match="bias") as caught:
            run(after, feeds | {w: np.ones((400, 600)), b: np.ones(count)})
        assert (caught.value.node, caught.value.source) == ("biased", biased.op.source)


async def test_a_step_of_training_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x, labels = af.placeholder("float32", [None, 30]), af.placeholder("int32", [None])
    w = af.Variable(rng.standard_normal((30, 300)).astype(np.float32))
    hidden = af.nn.relu(af.nn.bias_add(af.matmul(x, w), af.Variable(np.ones(300, np.float32))))
    logits = af.matmul(hidden, af.Variable(rng.standard_normal((300, 10)).astype(np.float32)))
    loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    step = af.train.GradientDescentOptimizer(0.1).minimize(loss)
    feeds = {x: rng.standard_normal((500, 30)), labels: rng.integers(0, 10, 500)}
    found = []
    for switches in ({"fuse_bias": False, "fuse_elementwise": False}, {}):
        async with af.Session(config=af.SessionConfig(optimizations=switches)) as session:
            await session.run(af.global_variables_initializer())
            losses = [(await session.run([loss, step], feeds))[0] for _ in range(4)]
            found.append((np.array(losses).tobytes(), (await session.run(w)).tobytes()))
    assert found[0] == found[1]

"""Products fused with bias and activation: when they are fused, and that values stay the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize.fuse_bias import fuse_bias
from aioflow.errors import InvalidArgumentError
from aioflow.typing import PaddingLike
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
def test_matrix_product_absorbs_bias_and_activation(rows: int, activation: Callable[[Any], Any], dtype: str) -> None:
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


def test_activation_without_a_bias() -> None:
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
def test_convolution_absorbs_bias_and_activation(
    image: Any, kernel: Any, stride: int, padding: PaddingLike, dtype: str
) -> None:
    (x, vx), (w, vw), (b, vb) = feed(*image, dtype=dtype), feed(*kernel, dtype=dtype), feed(kernel[3], dtype=dtype)
    strides = [1, stride, stride, 1]
    for activation in (af.nn.relu, af.sigmoid, af.identity):
        y = activation(af.nn.bias_add(af.nn.conv2d(x, w, strides=strides, padding=padding), b))
        after = check(fuse_bias, [y], {x: vx, w: vw, b: vb})
        assert ops(after)["_FusedConv2D"] == 1
        assert ops(after)["BiasAdd"] == 0


@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise_convolution_absorbs_bias_and_activation(multiplier: int) -> None:
    (x, vx), (w, vw), (b, vb) = feed(4, 40, 40, 24), feed(3, 3, 24, multiplier), feed(24 * multiplier)
    made = af.nn.depthwise_conv2d_native(x, w, strides=[1, 1, 1, 1], padding="SAME")
    after = check(fuse_bias, [af.nn.relu6(af.nn.bias_add(made, b))], {x: vx, w: vw, b: vb})
    assert ops(after) == {"_FusedDepthwiseConv2dNative": 1}


def test_products_that_are_not_fused() -> None:
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
    columns, vcolumns = feed(9)  # a bias of `_FusedConv2D` is one value per channel
    assert ops(check(fuse_bias, [made + columns], {x: vx, w: vw, columns: vcolumns}))["Conv2D"] == 1
    (x, vx), (w, vw), (b, vb) = feed(4, 5, dtype="int32"), feed(5, 6, dtype="int32"), feed(6, dtype="int32")
    assert ops(check(fuse_bias, [af.matmul(x, w) + b], {x: vx, w: vw, b: vb}))["MatMul"] == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["MatMul", "Conv2D", "DepthwiseConv2dNative"])
@pytest.mark.parametrize("biased", [True, False])
def test_swish_is_fused_into_its_product(biased: bool, kind: str, dtype: str) -> None:
    for size in (0, 3, 40):
        x, y, feeds = product(kind, size, dtype)
        feeds[x].reshape(-1)[:3] = (np.inf, -np.inf, np.nan)[: feeds[x].size]
        if biased:
            b, feeds[b] = feed(int(y.shape[-1]), dtype=dtype)
            y = af.nn.bias_add(y, b)
        for made in (y * af.sigmoid(y), af.sigmoid(y) * y):
            after = check(fuse_bias, [made], feeds)
            assert ops(after) == {f"_Fused{kind}": 1}
            assert set(after.nodes[made.op.name].attrs["fused_ops"]) == {*(["BiasAdd"] * biased), "Sigmoid", "Mul"}


def product(kind: str, size: int, dtype: str = "float32", n: int = 2) -> tuple[Any, Any, dict[Any, Any]]:
    """Return the input of a product, its result, and the feeds."""
    if kind == "MatMul":
        (x, vx), (w, vw) = feed(size, 40, dtype=dtype), feed(40, 120, dtype=dtype)
        return x, af.matmul(x, w), {x: vx, w: vw}
    (x, vx), (w, vw) = feed(n, size, size, 16, dtype=dtype), feed(3, 3, 16, 1, dtype=dtype)
    convolve: Callable[..., Any] = af.nn.depthwise_conv2d_native
    if kind == "Conv2D":
        (w, vw), convolve = feed(3, 3, 16, 24, dtype=dtype), af.nn.conv2d
    return x, convolve(x, w, strides=[1, 1, 1, 1], padding="SAME"), {x: vx, w: vw}


def test_patterns_that_are_not_a_swish() -> None:
    (x, vx), (w, vw), (other, vother) = feed(5, 40), feed(40, 12), feed(5, 12)
    feeds = {x: vx, w: vw, other: vother}
    y = af.matmul(x, w)
    apart = {"MatMul": 1, "Sigmoid": 1, "Mul": 1}
    gate = af.sigmoid(y)
    made = y * gate
    assert ops(check(fuse_bias, [made], feeds)) == {"_FusedMatMul": 1}
    assert ops(check(fuse_bias, [made, gate], feeds)) == apart
    assert ops(check(fuse_bias, [made, y], feeds)) == apart
    assert ops(fuse_bias(pruned([made], list(feeds), [gate.op]), never)) == apart
    (slope,) = af.gradients(made, x)
    assert isinstance(slope, af.Tensor)
    assert ops(check(fuse_bias, [made, slope], feeds))["Sigmoid"] == 1  # the gradient reads the sigmoid
    assert ops(check(fuse_bias, [made, af.reduce_sum(y)], feeds)) == apart | {"Sum": 1}
    assert ops(check(fuse_bias, [af.sigmoid(y) * other], feeds)) == {"_FusedMatMul": 1, "Mul": 1}
    assert ops(check(fuse_bias, [af.sigmoid(other) * y], feeds)) == apart
    assert ops(check(fuse_bias, [y + af.sigmoid(y)], feeds))["MatMul"] == 1
    assert ops(check(fuse_bias, [y * af.tanh(y)], feeds))["MatMul"] == 1
    with af.control_dependencies([af.no_op()]):
        gated = af.sigmoid(y)
    assert ops(check(fuse_bias, [y * gated], feeds)) == apart | {"NoOp": 1}
    with af.control_dependencies([gate]):
        after = af.no_op()
    assert ops(fuse_bias(pruned([made], list(feeds), [after]), never)) == apart | {"NoOp": 1}
    with af.device("/cpu:1"):
        elsewhere = af.sigmoid(y)
    assert ops(fuse_bias(pruned([y * elsewhere], list(feeds)), never)) == apart


async def test_fusion_in_loops_branches_and_on_several_devices() -> None:
    rng = np.random.default_rng(5)
    x, w = af.placeholder("float32", [None, 40]), af.constant(rng.standard_normal((40, 40)).astype(np.float32) / 7)
    b = af.constant(rng.standard_normal(40).astype(np.float32))

    def swish(value: Any) -> Any:
        y = af.nn.bias_add(af.matmul(value, w), b)
        return y * af.sigmoid(y)

    _, looped = af.while_loop(lambda i, _: i < 5, lambda i, value: (i + 1, swish(value)), [af.constant(0), x])
    either = af.cond(af.reduce_sum(x) > 0, lambda: swish(x), lambda: swish(-x))
    with af.device("/cpu:1"):
        there = swish(x)
    y = af.nn.bias_add(af.matmul(x, w), b)
    with af.device("/cpu:1"):
        gate = af.sigmoid(y)
    image = af.reshape(x, [-1, 4, 5, 2])
    filters = af.constant(rng.standard_normal((3, 3, 2, 2)).astype(np.float32) / 4)

    def residual(value: Any) -> Any:
        return af.nn.relu(value + af.nn.bias_add(af.nn.conv2d(value, filters, padding="SAME"), b[:2]))

    _, deep = af.while_loop(lambda i, _: i < 5, lambda i, value: (i + 1, residual(value)), [af.constant(0), image])
    _, kept = af.while_loop(  # the addend comes from outside the loop
        lambda i, _: i < 5,
        lambda i, value: (i + 1, image + af.nn.bias_add(af.nn.conv2d(value, filters, padding="SAME"), b[:2])),
        [af.constant(0), image],
    )
    with af.device("/cpu:1"):
        far = residual(image)
    one = af.cond(af.reduce_sum(x) > 0, lambda: residual(image), lambda: image)
    made = [looped, either, swish(there), y * gate, deep, kept, residual(far), one]
    value = rng.standard_normal((30, 40)).astype(np.float32)
    found = []
    for switches in ({"fuse_bias": False, "fuse_elementwise": False}, {}):
        config = af.SessionConfig(optimizations=switches, device_count={"CPU": 2}, reproducible=True)
        async with af.Session(config=config) as session:
            found.append([each.tobytes() for sign in (1, -1) for each in await session.run(made, {x: sign * value})])
    assert found[0] == found[1]


def convolved(x: Any, outputs: int = 16, name: str | None = None) -> tuple[Any, dict[Any, Any]]:
    """Return a convolution with a bias, and the feeds for its weights."""
    (w, vw), (b, vb) = feed(3, 3, int(x.shape[-1]), outputs, dtype=x.dtype.name), feed(outputs, dtype=x.dtype.name)
    made = af.nn.conv2d(x, w, strides=[1, 1, 1, 1], padding="SAME")
    return af.nn.bias_add(made, b, name=name), {w: vw, b: vb}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, lambda total: total * af.sigmoid(total)])
@pytest.mark.parametrize("size", [0, 3, 40])
def test_residual_sum_is_fused_into_its_convolution(size: int, activation: Callable[[Any], Any], dtype: str) -> None:
    (x, vx), (other, vother) = feed(2, size, size, 16, dtype=dtype), feed(2, size, size, 16, dtype=dtype)
    vother.reshape(-1)[:3] = (np.inf, -np.inf, np.nan)[: vother.size]
    y, weights = convolved(x)
    for total in (y + other, other + y, x + y):
        made = activation(total)
        after = check(fuse_bias, [made], {x: vx, other: vother, **weights})
        assert ops(after)["_FusedConv2D"] == 1
        assert not ops(after).keys() & {"Add", "AddV2", "BiasAdd", "Relu", "Mul", "Conv2D"}


def test_residual_sums_that_are_not_fused() -> None:
    (x, vx), (other, vother), (row, vrow) = feed(2, 9, 9, 16), feed(2, 9, 9, 16), feed(1, 1, 1, 16)
    y, weights = convolved(x)
    feeds = {x: vx, other: vother, row: vrow, **weights}
    biased = {"_FusedConv2D": 1, "AddV2": 1}
    total = other + y
    assert ops(check(fuse_bias, [af.nn.relu(total), total], feeds)) == {"_FusedConv2D": 1, "Relu": 1}
    assert ops(check(fuse_bias, [total, y], feeds)) == biased
    assert ops(check(fuse_bias, [y + row], feeds)) == biased
    assert ops(check(fuse_bias, [y + y], feeds)) == biased
    assert ops(check(fuse_bias, [y + 1.0], feeds)) == biased
    assert ops(fuse_bias(pruned([total], list(feeds), [y.op]), never)) == biased
    with af.control_dependencies([af.no_op()]):
        gated = y + other
    assert ops(check(fuse_bias, [gated], feeds)) == biased | {"NoOp": 1}
    with af.device("/cpu:1"):
        elsewhere, there = y + other, af.tanh(other)
    assert ops(fuse_bias(pruned([elsewhere], list(feeds)), never)) == biased
    assert ops(fuse_bias(pruned([there + y], list(feeds)), never)) == biased | {"Tanh": 1}
    late = af.tanh(other)  # runs after the convolution
    assert ops(check(fuse_bias, [y + late], feeds)) == biased | {"Tanh": 1}
    (a, va), (w, vw), (b, vb), (c, vc) = feed(5, 40), feed(40, 12), feed(12), feed(5, 12)
    assert ops(check(fuse_bias, [af.matmul(a, w) + b + c], {a: va, w: vw, b: vb, c: vc}))["AddV2"] == 1


def test_later_of_two_convolutions_takes_the_sum() -> None:
    x, vx = feed(2, 9, 9, 16)
    (one, weights), (other, more) = convolved(x, name="one"), convolved(x, name="other")
    for total in (one + other, other + one):
        after = check(fuse_bias, [af.nn.relu(total)], {x: vx, **weights, **more})
        assert ops(after) == {"_FusedConv2D": 2}
        (last,) = (node for node in after.nodes.values() if "Relu" in node.attrs.get("fused_ops", ()))
        first = total.op.inputs[0].op.name  # in the step's order
        assert (last.inputs[-1].node, after.nodes[first].attrs["fused_ops"]) == (first, ("BiasAdd",))


def test_residual_sum_with_other_shapes_at_run_time() -> None:
    (x, vx), (other, vother) = (feed(n, 9, 9, 16, static=[None, 9, 9, 16]) for n in (1, 3))
    y, weights = convolved(x)
    total = y + other
    after = check(fuse_bias, [af.nn.relu(total)], {x: vx, other: vother, **weights})  # the shapes broadcast
    assert ops(after) == {"_FusedConv2D": 1}
    feeds = {x: np.ones((2, 9, 9, 16)), other: vother, **weights}
    with pytest.raises(InvalidArgumentError) as caught:
        run(after, feeds)
    assert (caught.value.node, caught.value.source) == (total.op.name, total.op.source)


def test_error_names_the_original_node() -> None:
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


async def test_training_step_gives_the_same_bits() -> None:
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

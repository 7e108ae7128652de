"""Products in 16 bits: what is converted, that each value is cast once, and that a model learns as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.optimize.passes import MIXED_PRECISION
from aioflow.compiler.pipeline import CompileOptions, compile_step
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.prune import StepRequest
from aioflow.demo.digits import load_digits
from aioflow.demo.model import build
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Half

TYPES = ["bfloat16", "float16"]
NARROW = {"bfloat16": af.bfloat16, "float16": af.float16}


def switches(name: str) -> dict[str, bool]:
    return {MIXED_PRECISION[name]: True}


async def compiled(fetches: Sequence[Any], feeds: Sequence[Any] = (), name: str = "bfloat16") -> ClientGraph:
    """Return the graph of a step, verified between all passes; without fusion, to keep nodes distinct."""
    off = {"fuse_elementwise": False, "fuse_bias": False}
    options = CompileOptions(verify=True, optimizations={**off, **switches(name)})
    async with af.Session() as sess:
        plan = compile_step(StepRequest(tuple(feeds), tuple(fetches)), ClusterView(tuple(sess.worker.devices)), options)
    ((_, graph),) = plan.by_device()
    return graph


def narrow(graph: ClientGraph, name: str = "bfloat16") -> Counter[str]:
    """Return the number of nodes of each op with 16-bit outputs."""
    nodes: list[Node] = list(graph.nodes.values())
    return Counter(node.op for node in nodes if any(spec.dtype is NARROW[name] for spec in node.outputs))


def variable(*shape: int) -> Any:
    return af.Variable(np.ones(shape, np.float32))


@pytest.mark.parametrize("name", TYPES)
async def test_products_and_nodes_between_them_are_narrow(name: str) -> None:
    x = af.placeholder("float32", [8, 4])
    h = af.nn.relu(af.nn.bias_add(af.matmul(x, variable(4, 4)), variable(4)))
    loss = af.reduce_sum(af.nn.softmax(af.nn.bias_add(af.matmul(h, variable(4, 2)), variable(2))))
    graph = await compiled([loss], [x], name)
    found = narrow(graph, name)
    # The feed, two matrices and a bias are cast. The second bias is added in float32, since the softmax reads it.
    assert found == {"MatMul": 2, "BiasAdd": 1, "Relu": 1, "Cast": 4}
    assert graph.nodes[loss.op.name].outputs[0].dtype is af.float32


async def test_variable_is_cast_once_for_all_readers() -> None:
    x, w = af.placeholder("float32", [8, 4]), variable(4, 4)
    loss = af.reduce_sum(af.nn.relu(af.matmul(af.nn.relu(af.matmul(x, w)), w)))
    graph = await compiled([loss, *af.gradients(loss, [w])], [x])
    (read,) = (node for node in graph.nodes.values() if node.op == "ReadVariableOp")
    casts = [node for node in graph.nodes.values() if node.op == "Cast" and node.inputs[0].node == read.name]
    assert len(casts) == 1
    assert narrow(graph)["MatMul"] == 5  # two, one by the inner product's argument, and two by w
    readers = Counter(edge for node in graph.nodes.values() if node.op == "Cast" for edge in node.inputs)
    assert max(readers.values()) == 1


async def test_no_value_is_cast_to_16_bits_and_back() -> None:
    x = af.placeholder("float32", [8, 4])
    y = x
    for _ in range(4):
        y = af.transpose(af.reshape(af.nn.relu(af.matmul(y, variable(4, 4))), [4, 8]))
    graph = await compiled([y], [x])
    casts = {node.name: node for node in graph.nodes.values() if node.op == "Cast"}
    assert not [c for c in casts.values() if c.inputs[0].node in casts]
    assert len([c for c in casts.values() if c.outputs[0].dtype is af.float32]) == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda y: af.exp(y),
        lambda y: af.reduce_mean(y, 0, keepdims=True) + af.zeros([8, 4]),
        lambda y: y - 1.0,
        lambda y: af.square(y),
        lambda y: af.nn.softmax(y),
        lambda y: af.rsqrt(y),
    ],
)
async def test_ops_that_need_float32_get_it(build: Any) -> None:
    x = af.placeholder("float32", [8, 4])
    y = af.matmul(build(af.matmul(x, variable(4, 4))), variable(4, 4))
    graph = await compiled([y], [x])
    assert narrow(graph) == {"MatMul": 2, "Cast": 4}


async def test_shapes_and_comparisons_read_the_narrow_value() -> None:
    x = af.placeholder("float32", [None, 4])
    h = af.nn.relu(af.matmul(x, variable(4, 4)))
    y = af.matmul(h, variable(4, 4))
    graph = await compiled([y, af.shape(h), h > 0.5], [x])
    read = {
        node.op: graph.spec(node.inputs[0]).dtype for node in graph.nodes.values() if node.op in ("Shape", "Greater")
    }
    assert read == {"Shape": af.bfloat16, "Greater": af.bfloat16}


async def test_constant_out_of_range_keeps_its_reader_wide() -> None:
    """1e6 is infinite in float16, and 1e-9 is 0."""
    for value, kept in ((2.0, 1), (1e6, 0), (1e-9, 0)):
        with af.Graph().as_default():
            x = af.placeholder("float32", [8, 4])
            y = af.matmul(af.matmul(x, variable(4, 4)) * value, variable(4, 4))
            assert narrow(await compiled([y], [x], "float16"), "float16")["Mul"] == kept


async def test_float64_and_integers_are_not_changed() -> None:
    a, b = af.placeholder("float64", [4, 4]), af.placeholder("int32", [4, 4])
    graph = await compiled([af.matmul(a, a), af.matmul(b, b)], [a, b])
    assert narrow(graph) == {}


async def test_loop_invariant_is_cast_outside_of_the_loop() -> None:
    w, x = variable(4, 4).read_value(), af.placeholder("float32", [8, 4])
    _, y = af.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, af.nn.relu(af.matmul(v, w))), [0, x])
    graph = await compiled([y], [x])
    entering = [n for n in graph.nodes.values() if n.op == "Enter" and n.outputs[0].dtype is af.bfloat16]
    assert len(entering) == 1
    assert graph.nodes[entering[0].inputs[0].node].op == "Cast"


def rounded(value: Any, name: str) -> Any:
    return np.asarray(value, np.float32).astype(NARROW[name].np_dtype).astype(np.float32)


@pytest.mark.parametrize("executor", ["strands", "reference"])
@pytest.mark.parametrize("name", TYPES)
async def test_values_are_rounded_once_after_sums_in_float32(name: str, executor: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((9, 300)).astype(np.float32), rng.standard_normal((300, 5)).astype(np.float32)
    x, w = af.placeholder("float32", [None, 300]), af.Variable(b)
    config = af.SessionConfig(optimizations=switches(name), executor=executor)
    async with af.Session(config=config) as sess:
        await sess.run(w.initializer)
        found = await sess.run(af.matmul(x, w), {x: a})
        assert (await sess.run(w)).tobytes() == b.tobytes(), "the variable has all its digits"
    assert found.dtype == np.float32
    exact = rounded(a, name).astype(np.float64) @ rounded(b, name).astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=2.0 ** (-8 if name == "bfloat16" else -11) * 1.01, atol=1e-4)
    np.testing.assert_array_equal(found, rounded(found, name))


async def test_convolution_with_branches_and_gradients() -> None:
    rng = np.random.default_rng(3)
    image = af.constant(rng.standard_normal((2, 8, 8, 3)).astype(np.float32))
    filters, dense = af.Variable(rng.standard_normal((3, 3, 3, 4)).astype(np.float32)), variable(64, 2)
    h = af.nn.max_pool2d(af.nn.relu(af.nn.conv2d(image, filters, 1, "SAME")), 2, 2, "SAME")
    wide = af.cond(af.reduce_sum(h) > 0, lambda: h * 2.0, lambda: h)
    loss = af.reduce_mean(af.square(af.matmul(af.reshape(wide, [2, 64]), dense)))
    gradients = af.gradients(loss, [filters, dense])
    found = []
    for on in (False, True):
        config = af.SessionConfig(optimizations={MIXED_PRECISION["bfloat16"]: on})
        async with af.Session(config=config) as sess:
            await sess.run(af.global_variables_initializer())
            found.append(await sess.run([loss, *gradients]))
    for expected, value in zip(*found, strict=True):
        assert value.dtype == np.float32
        assert not np.array_equal(value, expected)
        np.testing.assert_allclose(value, expected, atol=0.03 * np.abs(expected).max())


async def test_variable_for_another_device_is_sent_in_16_bits() -> None:
    with af.device("/cpu:1"):
        w = af.Variable(np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32))
    with af.device("/cpu:0"):
        x = af.placeholder("float32", [2, 64])
        y = af.matmul(x, w)
    rows = np.random.default_rng(2).standard_normal((2, 64)).astype(np.float32)
    config = af.SessionConfig(device_count={"CPU": 2}, optimizations=switches("bfloat16"))
    async with af.Session(config=config) as sess:
        await sess.run(w.initializer)
        view = ClusterView(tuple(sess.worker.devices), pins=sess.worker.pins)
        plan = compile_step(StepRequest((x,), (y,)), view, CompileOptions(optimizations=switches("bfloat16")))
        sent = [
            node.outputs[0].dtype for node in plan.nodes() if node.op == "_Recv" and node.outputs[0].dims == (64, 64)
        ]
        assert sent == [af.bfloat16]
        found = await sess.run(y, {x: rows})
        exact = rounded(rows, "bfloat16") @ rounded(await sess.run(w), "bfloat16")
    np.testing.assert_allclose(found, exact, rtol=2.0**-8, atol=1e-4)


async def test_constants_are_cast_at_compile_time() -> None:
    x = af.placeholder("float32", [8, 4])
    graph = await compiled([af.matmul(x, af.constant(np.ones((4, 3), np.float32)))], [x])
    assert [n.outputs[0].dtype for n in graph.nodes.values() if n.op == "Const"] == [af.bfloat16]


async def learned(optimizations: Any, epochs: int = 6) -> tuple[list[float], float]:
    """Train the demo's model on the digits, and return the loss of each epoch and the final accuracy."""
    train, test = load_digits().split()
    model = build()
    config = af.SessionConfig(optimizations=optimizations, reproducible=True)
    async with af.Session(graph=model.graph, config=config) as sess:
        await sess.run(model.initialize)
        losses = []
        for epoch in range(epochs):
            order = np.random.default_rng(epoch).permutation(len(train))
            total = 0.0
            for start in range(0, len(order) - 63, 64):
                rows = order[start : start + 64]
                feeds = {model.images: train.images[rows], model.labels: train.labels[rows]}
                loss, _ = await sess.run([model.loss, model.train], feeds)
                total += float(loss)
            losses.append(total)
        right = await sess.run(model.accuracy, {model.images: test.images, model.labels: test.labels})
    return losses, float(right)


@pytest.mark.parametrize("name", TYPES)
async def test_digits_are_learned_as_in_float32(name: str) -> None:
    expected, right = await learned(True)
    losses, found = await learned(switches(name))
    assert losses != expected
    np.testing.assert_allclose(losses, expected, rtol=0.05)
    assert found > right - 0.01 > 0.9


# ── enabled for a graph ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_rewrite_of_a_graph_applies_to_its_sessions() -> None:
    x = af.placeholder("float32", [1, 1])
    w = af.Variable([[1.0 + 2.0**-9]])
    y = af.matmul(x, w)
    async with af.Session() as sess, af.Session(config=af.SessionConfig(optimizations=False)) as plain:
        await sess.run(w.initializer)
        await plain.run(w.initializer)

        async def value(session: af.Session) -> float:
            return float((await session.run(y, {x: [[1.0]]}))[0, 0])

        assert await value(sess) == 1.0 + 2.0**-9
        inner = af.train.GradientDescentOptimizer(0.1)
        optimizer = af.train.experimental.enable_mixed_precision_graph_rewrite(inner, 1, "bfloat16")
        assert isinstance(optimizer, af.train.experimental.MixedPrecisionLossScaleOptimizer)
        assert await value(sess) == 1.0
        assert await value(plain) == 1.0 + 2.0**-9, "what a session says itself goes before"
        af.mixed_precision.enable_mixed_precision_graph_rewrite(inner)
        assert await value(sess) == 1.0 + 2.0**-9, "which float16 has the digits for"
        af.train.experimental.disable_mixed_precision_graph_rewrite()
        assert await value(sess) == 1.0 + 2.0**-9
    with af.Graph().as_default() as other:
        assert other.optimizations == {}


async def test_training_in_float16_with_a_dynamic_scale() -> None:
    """Gradients of 1e-7 would be lost without a scale, and a scale that is too large is lowered during training."""
    rng = np.random.default_rng(2)
    inputs, wanted = rng.standard_normal((32, 8)).astype(np.float32), rng.standard_normal((32, 1)).astype(np.float32)
    losses = []
    for scaled in (False, True):
        with af.Graph().as_default():
            x, y = af.placeholder("float32", [32, 8]), af.placeholder("float32", [32, 1])
            w = af.get_variable("w", initializer=np.zeros((8, 1), np.float32))
            loss = 1e-7 * af.reduce_mean(af.squared_difference(af.matmul(x, w), y))
            opt: Any = af.train.GradientDescentOptimizer(1e6)
            if scaled:
                scale = af.train.experimental.DynamicLossScale(2.0**40)
                opt = af.train.experimental.enable_mixed_precision_graph_rewrite(opt, scale)
            train = opt.minimize(loss)
            async with af.Session() as sess:
                await sess.run(af.global_variables_initializer())
                for _ in range(60):
                    await sess.run(train, {x: inputs, y: wanted})
                losses.append(float(await sess.run(loss, {x: inputs, y: wanted})))
                if scaled:
                    assert 1 < await sess.run(scale()) < 2.0**40
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda f: f("Adam"), DTypeError),
        (lambda f: f(f(af.train.AdamOptimizer())), InvalidArgumentError),
        (lambda f: f(af.train.AdamOptimizer(), "static"), InvalidArgumentError),
        (lambda f: f(af.train.AdamOptimizer(), 1, af.float32), InvalidArgumentError),
    ],
)
def test_invalid_rewrites_are_rejected(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make(af.train.experimental.enable_mixed_precision_graph_rewrite)


def test_half_traits_of_ops() -> None:
    expected = {
        "Conv2D": Half.GAINS, "MatMul": Half.GAINS, "Relu": Half.FOLLOWS, "Reshape": Half.FOLLOWS,
        "Tanh": Half.FOLLOWS, "Exp": Half.WIDE, "Sum": Half.WIDE, "Cholesky": Half.WIDE, "ResourceApplyAdam": Half.WIDE,
    }  # fmt: skip
    assert {name: traits_of(name).in_16_bits for name in expected} == expected

"""Imported models whose weights are variables: trained, saved, and initialized again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import aioflow
from aioflow.interop import onnx


def network() -> ModelProto:
    """Return a small image classifier with a convolution, batch normalization and a dense layer."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((0.3 * rng.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "conv.w", "conv.b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.w", "fc.b"], ["y"], transB=1),
    ]
    weights = [
        weight("conv.w", 4, 1, 3, 3),
        weight("conv.b", 4),
        numpy_helper.from_array(np.ones(4, np.float32), "bn.scale"),
        weight("bn.bias", 4),
        weight("bn.mean", 4),
        numpy_helper.from_array(np.ones(4, np.float32), "bn.var"),
        weight("fc.w", 2, 4),
        weight("fc.b", 2),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


async def test_an_imported_model_is_trained_and_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 32)
    images = rng.standard_normal((32, 1, 6, 6)).astype(np.float32) + labels.reshape(-1, 1, 1, 1).astype(np.float32)
    model = onnx.load(network(), trainable=True)
    assert set(model.variables) == {"conv.w", "conv.b", "bn.scale", "bn.bias", "fc.w", "fc.b"}
    x, scores = model.inputs["x"], model.outputs["y"]
    with model.graph.as_default():
        loss = aioflow.reduce_mean(
            aioflow.nn.sparse_softmax_cross_entropy_with_logits(labels=aioflow.constant(labels), logits=scores)
        )
        train = aioflow.train.AdamOptimizer(0.03).minimize(loss)
        saver = aioflow.train.Saver(list(model.variables.values()))
        others = aioflow.global_variables_initializer()
    plain = onnx.load(network())
    async with aioflow.Session(graph=plain.graph) as session:
        expected = (await session.run(plain.outputs, {plain.inputs["x"]: images}))["y"]
    async with aioflow.Session(graph=model.graph) as session:
        await session.run(others)
        await model.initialize(session)
        np.testing.assert_allclose(await session.run(scores, {x: images}), expected, atol=1e-6)
        first = await session.run(loss, {x: images})
        before = await session.run(model.variables["conv.w"])
        for _ in range(60):
            await session.run(train, {x: images})
        last = await session.run(loss, {x: images})
        trained = await session.run(scores, {x: images})
        assert np.abs(await session.run(model.variables["conv.w"]) - before).max() > 0.01
        path = str(await saver.save(session, str(tmp_path / "model")))
        await model.initialize(session)
        np.testing.assert_allclose(await session.run(scores, {x: images}), expected, atol=1e-6)
        await saver.restore(session, path)
        np.testing.assert_array_equal(await session.run(scores, {x: images}), trained)
    assert last < first / 3


def test_float_scales_that_determine_shapes_are_not_variables() -> None:
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert onnx.load(model, trainable=True).outputs["y"].dims == (1, 1, 4, 4)


async def test_weights_in_constant_nodes_are_trained() -> None:
    """Some exporters write no initializers at all."""
    proto = network()
    weights = [
        helper.make_node("Constant", [], [each.name], name=f"node of {each.name}", value=each)
        for each in proto.graph.initializer
    ]
    one = numpy_helper.from_array(np.array([0.5], np.float32))
    axes = numpy_helper.from_array(np.array([2, 3], np.int64))
    numbers = [
        helper.make_node("Constant", [], ["half"], value=one),
        helper.make_node("Constant", [], ["whole"], value=axes),
        helper.make_node("Mul", ["x", "half"], ["scaled"]),
    ]
    proto.graph.node[0].input[0] = "scaled"
    nodes = [*weights, *numbers, *proto.graph.node]
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(nodes)
    model = onnx.load(proto, trainable=True)
    assert set(model.variables) == {"conv.w", "conv.b", "bn.scale", "bn.bias", "fc.w", "fc.b"}
    assert not onnx.load(proto).variables
    x = np.random.default_rng(0).standard_normal((3, 1, 6, 6)).astype(np.float32)
    with model.graph.as_default():
        loss = aioflow.reduce_sum(aioflow.square(model.outputs["y"]))
        train = aioflow.train.GradientDescentOptimizer(0.05).minimize(loss)
    plain = onnx.load(network())
    async with aioflow.Session(graph=plain.graph) as session:
        expected = await session.run(plain.outputs["y"], {plain.inputs["x"]: x / 2})
    async with aioflow.Session(graph=model.graph) as session:
        await model.initialize(session)
        np.testing.assert_allclose(await session.run(model.outputs["y"], {model.inputs["x"]: x}), expected, atol=1e-6)
        first = await session.run(loss, {model.inputs["x"]: x})
        for _ in range(20):
            await session.run(train, {model.inputs["x"]: x})
        assert await session.run(loss, {model.inputs["x"]: x}) < first / 2


async def test_gradient_of_a_gathered_source_is_dense() -> None:
    domain = "ai.onnx.preview.training"
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["g"]),
        helper.make_node("Mul", ["g", "g"], ["q"]),
        helper.make_node("ReduceSum", ["q"], ["y"], keepdims=0),
        helper.make_node("Gradient", ["x"], ["d"], domain=domain, xs=["x"], y="y"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("d", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.array([1, 1], np.int64), "i")],
    )
    model = onnx.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)])
    )
    async with aioflow.Session(graph=model.graph) as session:
        d = await session.run(model.outputs["d"], {model.inputs["x"]: np.array([5, 2, 7, 1], np.float32)})
    np.testing.assert_array_equal(d, [0, 8, 0, 0])

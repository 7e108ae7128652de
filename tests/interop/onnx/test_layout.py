"""Imported image networks run with their channels last: few transposes remain, and layers are fused."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.compiler.prune import StepRequest, prune
from aioflow.interop import onnx as importer
from aioflow.runtime.folding import fold
from tests.compiler.optimize.steps import ops
from tests.interop.onnx.one_node import run_model

_LIGHT = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")


def _optimized(model: ModelProto | str, **switches: bool) -> ClientGraph:
    loaded = importer.load(model)
    graph = prune(StepRequest(tuple(loaded.inputs.values()), tuple(loaded.outputs.values()), ()))
    for each in chosen_passes(switches):
        graph = each.run(graph, fold)
    return graph


def _turned_images(graph: ClientGraph) -> int:
    """Return the number of transposes, without those of filters."""
    sources = Counter(graph.nodes[n.inputs[0].node].op for n in graph.nodes.values() if n.op == "Transpose")
    return sources.total() - sources["Fill"]  # the light models compute their large filters in each step


# The remaining transposes are those of the fed images and of the input of the last layer.
@pytest.mark.parametrize(
    ("name", "left"),
    [("resnet50", 2), ("squeezenet", 2), ("inception_v1", 2), ("inception_v2", 2), ("densenet121", 2), ("zfnet512", 2)],
)
def test_whole_networks_keep_their_channels_last(name: str, left: int) -> None:
    graph = _optimized(os.path.join(_LIGHT, f"light_{name}.onnx"))
    assert _turned_images(graph) <= left


def test_the_layers_of_a_large_network_are_fused() -> None:
    found = ops(_optimized(os.path.join(_LIGHT, "light_resnet50.onnx"), fold_batch_norm=True))
    assert found["_FusedConv2D"] == 53
    assert found["Relu"] + found["FusedBatchNormV3"] + found["BiasAdd"] == 0
    assert found["_ElementwiseChain"] + found["Add"] + found["AddV2"] == 0  # sums with a residue are in convolutions


def _values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


_WEIGHTS = {
    "w1": _values(6, 3, 3, 3, seed=1),
    "b1": _values(6, seed=2),
    "scale": np.abs(_values(6, seed=3)),
    "shift": _values(6, seed=4),
    "mean": _values(6, seed=5),
    "variance": np.abs(_values(6, seed=6)) + 0.5,
    "w2": _values(4, 6, 1, 1, seed=7),
    "factor": _values(6, 1, 1, seed=8),
    "pads": np.array([0, 0, 1, 0, 0, 0, 0, 2], np.int64),
}


def _model(nodes: list[Any], shape: list[int | str | None]) -> ModelProto:
    weights = [numpy_helper.from_array(v, n) for n, v in _WEIGHTS.items() if any(n in node.input for node in nodes)]
    given = helper.make_tensor_value_info("x", 1, shape)
    made = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _expected(model: ModelProto, feed: dict[str, Any]) -> Any:
    found: Any = ReferenceEvaluator(model).run(None, feed)
    return found[0]


def _conv(x: str, y: str, *weights: str) -> Any:
    size = _WEIGHTS[weights[0]].shape[2]
    return helper.make_node("Conv", [x, *weights], [y], kernel_shape=[size, size], pads=[size // 2] * 4)


_BETWEEN = {
    "activations": [helper.make_node("HardSwish", ["a"], ["c"])],
    "a slope": [helper.make_node("LeakyRelu", ["a"], ["c"], alpha=0.1)],
    "a factor per channel": [helper.make_node("Mul", ["a", "factor"], ["c"])],
    "padding": [helper.make_node("Pad", ["a", "pads"], ["c"])],
    "branches": [
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("AveragePool", ["r"], ["v"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Sum", ["m", "v"], ["c"]),
    ],
    "parts that are joined": [
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], ceil_mode=1, strides=[1, 1]),
        helper.make_node("AveragePool", ["r"], ["v"], kernel_shape=[2, 2]),
        helper.make_node("Concat", ["m", "v"], ["n"], axis=2),
        helper.make_node("Concat", ["n", "n"], ["d"], axis=0),
        helper.make_node("Sigmoid", ["d"], ["c"]),
    ],
    "squeeze and excite": [
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("HardSigmoid", ["g"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["c"]),
    ],
}


@pytest.mark.parametrize("between", _BETWEEN.values(), ids=list(_BETWEEN))
@pytest.mark.parametrize("known", [True, False])
async def test_ops_between_layers_need_no_transposes(between: list[Any], known: bool) -> None:
    model = _model([_conv("x", "a", "w1", "b1"), *between, _conv("c", "y", "w2")], [2 if known else "n", 3, 5, 7])
    feed = {"x": _values(2, 3, 5, 7, seed=10)}
    (found,) = await run_model(model, feed)
    np.testing.assert_allclose(found, _expected(model, feed), rtol=1e-4, atol=1e-4)
    assert _turned_images(_optimized(model)) == 2  # of the feed and of the fetch


async def test_a_layer_with_normalization_and_activation_is_one_node() -> None:
    norm = helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["n"])
    nodes = [_conv("x", "a", "w1"), norm, helper.make_node("Relu", ["n"], ["c"]), _conv("c", "y", "w2")]
    graph = _optimized(_model(nodes, ["n", 3, 5, 7]), fold_batch_norm=True)
    assert ops(graph) == {"_FusedConv2D": 1, "Conv2D": 1, "Transpose": 2}


async def test_images_of_one_axis_are_transposed_once() -> None:
    weights = {"k": _values(4, 3, 3, seed=1), "l": _values(2, 4, 1, seed=2)}
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], kernel_shape=[3], pads=[1, 1], strides=[2]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[2]),
        helper.make_node("Conv", ["m", "l"], ["y"], kernel_shape=[1]),
    ]
    given, made = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [2, 3, 11]), ("y", None)))
    stored = [numpy_helper.from_array(v, n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "g", [given], [made], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = {"x": _values(2, 3, 11, seed=3)}
    (found,) = await run_model(model, feed)
    np.testing.assert_allclose(found, _expected(model, feed), rtol=1e-4, atol=1e-5)
    assert _turned_images(_optimized(model)) == 2


async def test_axis_dependent_ops_use_the_models_axes() -> None:
    nodes = [
        _conv("x", "a", "w1", "b1"),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Softmax", ["r"], ["p"], axis=1),
        helper.make_node("Reshape", ["p", "s"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["y"], axes=[3], keepdims=1),
    ]
    model, feed = _model(nodes, [2, 3, 5, 7]), {"x": _values(2, 3, 5, 7, seed=10)}
    (found,) = await run_model(model, feed)
    np.testing.assert_allclose(found, _expected(model, feed), rtol=1e-4, atol=1e-5)

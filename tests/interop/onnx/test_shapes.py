"""Inputs of ONNX models without a shape in the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.interop import onnx
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from tests.interop.onnx.test_optional_inputs import parse

__all__ = ["hard", "shapeless"]


def shapeless(
    op: str, *weights: Any, opset: int = 20, outputs: tuple[str, ...] = ("y",), **attributes: Any
) -> ModelProto:
    """Return a model of one node whose first input has no shape; the others are weights."""
    names = [f"w{i}" for i in range(len(weights))]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], outputs, "node", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(each), name) for each, name in zip(weights, names, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def hard() -> ModelProto:
    """Return a model that can only be imported if the rank of its input is known."""
    return shapeless("Slice", [0], [1], [-2])


async def run(model: Any, x: Any) -> Any:
    async with af.Session(graph=model.graph) as session:
        return (await session.run(model.outputs, {model.inputs["x"]: x}))["y"]


async def test_load_accepts_the_shape_of_an_input() -> None:
    model = onnx.load(hard(), shapes={"x": [None, 3]})
    assert model.inputs["x"].dims == (None, 3)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(await run(model, x), x[:1])
    assert onnx.load(hard(), {"x": (-1, 3)}).inputs["x"].dims == (None, 3)


async def test_load_merges_a_shape_with_that_of_the_file() -> None:
    model = parse("g (float[N, 3] x, float[K] w) => (float[N, 3] y) <float[1] w = {1}> { y = Add(x, w) }")
    assert onnx.load(model, shapes={"x": [5, None]}).inputs["x"].dims == (5, 3)
    assert onnx.load(model, shapes={"w": [1]}).optional["w"].dims == (1,)


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({"z": [3]}, InvalidArgumentError, "no input 'z'"),
        ({"x": [None, 4]}, InvalidArgumentError, "input 'x' cannot have that shape"),
        ({"x": [3]}, InvalidArgumentError, "input 'x' cannot have that shape"),
        ({"x": [None, -3]}, InvalidArgumentError, "size"),
        ({"x": ["N", 3]}, DTypeError, "size"),
        ([("x", [None, 3])], DTypeError, "shapes"),
    ],
)
def test_load_refuses_shapes_that_no_input_can_have(shapes: Any, error: type[Exception], message: str) -> None:
    model = parse("g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }")
    with pytest.raises(error, match=message):
        onnx.load(model, shapes=shapes)


def test_load_refuses_the_shape_of_a_sequence() -> None:
    model = parse("g (seq(float[N]) x) => (float[N] y) { y = ConcatFromSequence <axis = 0> (x) }")
    with pytest.raises(InvalidArgumentError, match="cannot have that shape") as caught:
        onnx.load(model, shapes={"x": [3]})
    assert caught.value.expected == "no tensor"


@pytest.mark.parametrize(
    "model",
    [
        hard(),
        shapeless("TopK", np.array([1]), axis=-2),
        shapeless("Unsqueeze", np.array([-1, -2])),
        shapeless("DFT", opset=17),
        shapeless("STFT", np.array(2)),
        shapeless("NonZero"),
    ],
)
def test_the_error_names_the_input_and_how_to_pass_its_shape(model: ModelProto) -> None:
    with pytest.raises(UnsupportedError, match="unknown rank") as caught:
        onnx.load(model)
    assert "shapes={name: [None, 3]}" in caught.value.message
    assert "--shape NAME=?,3" in caught.value.message
    assert [each.node for each in caught.value.unsupported if each.op == "an input"] == ["x"]


def test_errors_of_other_kinds_do_not_mention_shapes() -> None:
    with pytest.raises(UnsupportedError) as caught:
        onnx.load(shapeless("Nothing"))
    assert caught.value.unsupported == (UnsupportedOp("Nothing", "node"),)


def test_ops_with_a_fixed_rank_determine_the_rank_of_the_input() -> None:
    image, matrix = np.zeros([4, 3, 2, 2], np.float32), np.zeros([3, 5], np.float32)
    for model, rank in (
        (shapeless("Conv", image), 4),
        (shapeless("MaxPool", kernel_shape=[2]), 3),
        (shapeless("Gemm", matrix), 2),
        (shapeless("Transpose", perm=[2, 0, 1]), 3),
        (shapeless("DepthToSpace", blocksize=2), 4),
        (shapeless("Pad", np.array([1, 1, 0, 0])), 2),
        (shapeless("Upsample", np.array([1, 1, 2, 2], np.float32), opset=9), 4),
    ):
        assert onnx.load(model).inputs["x"].dims == (None,) * rank, model.graph.node[0].op_type


async def test_a_rank_fixed_inside_a_branch_holds_only_there() -> None:
    text = """g (float x, bool b) => (float y) {
        y = If <then_branch = t () => (float p) { p = DepthToSpace <blocksize = 1> (x) },
                else_branch = e () => (float q) { q = Neg(x) }> (b) }"""
    model = parse(text)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for branch in model.graph.node[0].attribute:
        branch.g.output[0].type.tensor_type.ClearField("shape")
    loaded = onnx.load(model)
    assert loaded.inputs["x"].dims is None
    async with af.Session(graph=loaded.graph) as session:
        for x, b in ((np.ones([2], np.float32), False), (np.ones([1, 1, 1, 1], np.float32), True)):
            found = await session.run(loaded.outputs["y"], {loaded.inputs["x"]: x, loaded.inputs["b"]: b})
            np.testing.assert_array_equal(found, x if b else -x)
        feeds = {loaded.inputs["x"]: np.ones([2], np.float32), loaded.inputs["b"]: True}
        with pytest.raises(InvalidArgumentError, match="shape"):
            await session.run(loaded.outputs["y"], feeds)

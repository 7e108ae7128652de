"""Import of ONNX models as graphs: names, functions, and rejected models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import aioflow
from aioflow.errors import DataLossError, InvalidArgumentError, NotFoundError
from aioflow.graph.static_value import constant_value
from aioflow.interop import onnx
from aioflow.interop.onnx import backend
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp

HEADER = '<ir_version: 9, opset_import: ["": 18, "mine": 1]>\n'


def parse(text: str) -> ModelProto:
    return parser.parse_model(HEADER + text)


async def run(model: ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    loaded = onnx.load(model)
    async with aioflow.Session(graph=loaded.graph) as session:
        feeds = dict(zip(loaded.inputs.values(), inputs, strict=True))
        return list((await session.run(loaded.outputs, feeds)).values())


def product() -> ModelProto:
    weights = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "layer.w")
    nodes = [
        helper.make_node("MatMul", ["x 1", "layer.w"], ["h"], "/layer:0/MatMul"),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x 1", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


async def test_a_model_computes_the_values_of_its_nodes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(product().SerializeToString())
    x = np.array([[1, -2, 3]], np.float32)
    expected = np.maximum(x @ np.arange(6, dtype=np.float32).reshape(3, 2), 0)
    for source in (path, str(path), path.read_bytes(), product()):
        model = onnx.load(source)
        async with aioflow.Session(graph=model.graph) as session:
            values = await session.run(model.outputs, {model.inputs["x 1"]: x})
        np.testing.assert_array_equal(values["y"], expected)


def large(*weights: TensorProto) -> ModelProto:
    """Return a model that adds weights of 100 kB, which are not copied by the parser."""
    graph = helper.make_graph(
        [helper.make_node("Sum", [each.name for each in weights], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [100, 256])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def ramp(name: str, start: int) -> TensorProto:
    return numpy_helper.from_array(np.arange(start, start + 25_600, dtype=np.float32).reshape(100, 256), name)


async def test_large_weights_have_the_values_of_the_file() -> None:
    a, b = ramp("a", 0), ramp("b", 7)
    expected = np.arange(25_600, dtype=np.float32).reshape(100, 256) * 2 + 7
    # A field that occurs twice has the last value, in protocol buffers.
    twice = ramp("a", 3).SerializeToString() + TensorProto(raw_data=a.raw_data).SerializeToString()
    repeated = large(b)
    repeated.graph.node[0].input.insert(0, "a")
    data = repeated.SerializeToString() + b"\x3a" + varint(len(twice) + 1 + len(varint(len(twice))))
    data += b"\x2a" + varint(len(twice)) + twice
    assert ModelProto.FromString(data).graph.initializer[1].name == "a"
    for given in (large(a, b), large(a, b).SerializeToString(), data):
        model = onnx.load(given)
        async with aioflow.Session(graph=model.graph) as session:
            np.testing.assert_array_equal((await session.run(model.outputs))["y"], expected)


def test_large_weights_of_less_than_a_byte_are_loaded() -> None:
    weight = helper.make_tensor("w", TensorProto.INT4, [140_000], bytes(range(250)) * 280, raw=True)
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [140_000])
    graph = helper.make_graph([node], "g", [], [output], [weight, scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    one, other = (onnx.load(given).graph.get_operation_by_name("w") for given in (model, model.SerializeToString()))
    np.testing.assert_array_equal(constant_value(one.outputs[0]), constant_value(other.outputs[0]))


def test_files_that_no_encoder_writes_are_left_to_the_parser() -> None:
    model = large(ramp("a", 0))
    graph = model.graph.SerializeToString()
    rest = model.SerializeToString().replace(b"\x3a" + varint(len(graph)) + graph, b"")
    assert len(rest) < 100
    # Empty descriptions, which count as fields, and a size with a superfluous byte.
    described = graph + b"\x52\x00" * 150_000
    loaded = onnx.load(rest + b"\x3a" + varint(len(described)) + described)
    value = constant_value(loaded.graph.get_operation_by_name("a").outputs[0])
    np.testing.assert_array_equal(value, numpy_helper.to_array(ramp("a", 0)))
    size = varint(len(graph))
    padded = rest + b"\x3a" + size[:-1] + bytes([size[-1] | 0x80]) + b"\x80" * (9 - len(size)) + b"\x00" + graph
    with pytest.raises(DataLossError):
        onnx.load(padded)


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value >= 0x80 else bytes([value])


def test_large_weights_that_do_not_fill_their_shape_are_rejected() -> None:
    weight = ramp("a", 0)
    data = large(weight).SerializeToString()
    for damaged in (data[:-20_000], data[:200]):
        with pytest.raises(DataLossError):
            onnx.load(damaged)
    weight.raw_data = weight.raw_data[:-4]
    with pytest.raises(DataLossError, match="'a'"):
        onnx.load(large(weight).SerializeToString())


def test_nodes_have_the_models_names() -> None:
    model = onnx.load(product())
    assert list(model.inputs) == ["x 1"]
    assert model.inputs["x 1"].dims == (None, 3)
    names = [op.name for op in model.graph.get_operations()]
    assert {"x_1", "layer.w", "layer_0/MatMul", "y"} <= set(names)
    assert model.outputs["y"] is model.graph.get_tensor_by_name("y:0")


async def test_functions_of_a_model_need_no_translation() -> None:
    text = "g (float[2] x) => (float[2] y) { y = mine.twice <factor = 3.0> (x) }\n"
    function = """<opset_import: ["": 18], domain: "mine">
    twice <factor> (a) => (b) { f = Constant <value_float: float = @factor> ()
                                s = Add(a, a)
                                b = Add(s, f) }"""
    [y] = await run(parse(text + function), np.array([1, 2], np.float32))
    np.testing.assert_array_equal(y, [5, 7])


def test_every_op_that_cannot_be_imported_is_listed() -> None:
    text = """g (float[2] x, bool b) => (float[2] y) {
        a = mine.Foo (x)
        c = Relu (a)
        d = mine.Bar (c)
        y = If <then_branch = t () => (float[2] p) { p = mine.Inner (d) },
                else_branch = e () => (float[2] q) { q = Identity (d) }> (b)
    }"""
    with pytest.raises(UnsupportedError, match="mine:Foo") as caught:
        onnx.load(parse(text))
    found = caught.value.unsupported
    assert UnsupportedOp("mine:Foo", "a") in found
    assert UnsupportedOp("mine:Bar", "d") in found
    assert UnsupportedOp("mine:Inner", "p") in found
    assert not any(each.op == "Relu" for each in found)


def test_a_wrong_model_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        onnx.load(tmp_path / "none.onnx")
    with pytest.raises(DataLossError):
        onnx.load(product().SerializeToString()[:-7])
    with pytest.raises(InvalidArgumentError, match="no graph"):
        onnx.load(b"")
    with pytest.raises(InvalidArgumentError, match="nothing before has made") as caught:
        onnx.load(parse("g (float[2] x) => (float[2] y) { y = Relu (h)\n h = Relu (y) }"))
    assert caught.value.actual == "'h'"
    with pytest.raises(InvalidArgumentError, match="one name"):
        onnx.load(parse("g (float[2] x) => (float[2] y) { y = Relu (x)\n y = Relu (x) }"))


@pytest.mark.parametrize(
    ("nodes", "op"),
    [
        ("h = Relu (x)\n [here] y = MatMul (h, x)", "MatMul"),
        ("h = Relu (x)\n [here] y = Relu (none)", "Relu"),
        ("y = Relu (x)\n [here] y = Tanh (x)", "Tanh"),
        (
            "y = If <then_branch = t () => (float[2, 3] p) { [here] p = Tanh (none) },"
            " else_branch = e () => (float[2, 3] q) { q = Identity (x) }> (b)",
            "Tanh",
        ),
    ],
)
def test_errors_of_a_node_name_it(nodes: str, op: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        onnx.load(parse(f"g (float[2, 3] x, bool b) => (float[2, 3] y) {{ {nodes} }}"))
    assert (caught.value.node, caught.value.op_type) == ("here", op)


async def test_a_path_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    model = onnx.load(product())
    with pytest.raises(NotFoundError, match="none"):
        await onnx.export(model, path=tmp_path / "none" / "model.onnx")
    with pytest.raises(InvalidArgumentError, match="no file"):
        onnx.load(tmp_path)


def test_backend_runs_a_node_with_the_given_config() -> None:
    node, x = helper.make_node("Log", ["x"], ["y"]), np.array([-1.0], np.float32)
    config = aioflow.SessionConfig(check_finite=True)
    assert np.isnan(backend.run_node(node, [x])[0]).all()
    with pytest.raises(InvalidArgumentError, match="NaN"):
        backend.run_node(node, [x], config=config)
    with pytest.raises(InvalidArgumentError, match="NaN"):
        backend.run_model(parse("g (float[1] x) => (float[1] y) { y = Log (x) }"), [x], config=config)

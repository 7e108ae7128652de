"""Export of subgraphs that are several ops in aioflow and one operator in ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import aioflow as af
from aioflow.interop.onnx import export, load
from tests.interop.onnx_out.running import same

Array = NDArray[Any]
_IMAGE = (2, 4, 5, 6)


def floats(*shape: int) -> Array:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 2).astype(np.float32)


def model_of(
    op: str, shape: Sequence[Any], constants: Sequence[Array | np.generic | None], dtype: Any = np.float32, **attrs: Any
) -> onnx.ModelProto:
    """Return a model of one node with one input and constants."""
    names = [None if c is None else f"c{i}" for i, c in enumerate(constants)]
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in (dtype, np.float32)]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *(name or "" for name in names)], ["y"], "n", **attrs)],
        "g",
        [helper.make_tensor_value_info("x", kinds[0], shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(c), f"c{i}") for i, c in enumerate(constants) if c is not None],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def ops_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


_int8, _uint8 = np.int8, np.uint8
_scales = np.array([0.5, 0.25, 1.5, 0.1], np.float32)
ONE_NODE: Mapping[str, tuple[str, Sequence[Any], Sequence[Array | np.generic | None], dict[str, Any]]] = {
    "hard swish": ("HardSwish", _IMAGE, (), {}),
    "hard sigmoid": ("HardSigmoid", _IMAGE, (), {"alpha": 0.3, "beta": 0.4}),
    "gelu": ("Gelu", _IMAGE, (), {}),
    "gelu by tanh": ("Gelu", _IMAGE, (), {"approximate": "tanh"}),
    "clip": ("Clip", _IMAGE, (np.float32(-1), np.float32(1)), {}),
    "clip, the wrong way round": ("Clip", _IMAGE, (np.float32(1), np.float32(-1)), {}),
    "layer normalization": ("LayerNormalization", (3, 4, 5), (floats(5), floats(5)), {}),
    "layer normalization of two axes": ("LayerNormalization", (3, 4, 5), (floats(4, 5), floats(4, 5)), {"axis": 1}),
    "layer normalization without offset": ("LayerNormalization", (3, 4, 5), (floats(5),), {"epsilon": 0.25}),
    "gemm": ("Gemm", (3, 4), (floats(4, 5), floats(5)), {}),
    "gemm, transposed": ("Gemm", (4, 3), (floats(5, 4), floats(3, 1)), {"transA": 1, "transB": 1}),
    "convolution": ("Conv", _IMAGE, (floats(6, 4, 3, 3), floats(6)), {"pads": [1, 0, 1, 0]}),
    "quantized": ("QuantizeLinear", _IMAGE, (np.float32(0.1), _uint8(100)), {}),
    "quantized with a sign": ("QuantizeLinear", _IMAGE, (np.float32(0.1), _int8(-3)), {}),
    "quantized about 0": ("QuantizeLinear", _IMAGE, (np.float32(0.1), None), {}),
    "quantized by channel": ("QuantizeLinear", _IMAGE, (_scales, np.arange(4, dtype=_int8)), {"axis": 1}),
}


@pytest.mark.parametrize("name", ONE_NODE)
@pytest.mark.parametrize("dynamic", [False, True])
async def test_imported_node_is_exported_as_the_same_operator(name: str, dynamic: bool) -> None:
    op, shape, constants, attrs = ONE_NODE[name]
    batch = [None, *shape[1:]] if dynamic and op != "Gemm" else shape
    first = model_of(op, batch, constants, **attrs)
    second = await export(load(first))
    onnx.checker.check_model(second, full_check=True)
    assert ops_of(second) == [op]
    x = floats(*shape)
    (wanted,), (found,) = (ReferenceEvaluator(each).run(None, {"x": x}) for each in (first, second))
    same(wanted, found, 1e-5)


@pytest.mark.parametrize(
    ("scale", "zero", "axis"),
    [
        (np.float32(0.1), _int8(3), 1),
        (_scales, np.arange(4, dtype=_int8), 1),
        (_scales, None, 1),
        (np.float32(2), None, 1),
    ],
)
@pytest.mark.parametrize("shape", [_IMAGE, (3, 4)])
async def test_dequantize_linear_survives_import_and_export(
    scale: Array | np.generic, zero: Array | np.generic | None, axis: int, shape: Any
) -> None:
    first = model_of("DequantizeLinear", shape, (scale, zero), np.int8, axis=axis)
    second = await export(load(first))
    assert ops_of(second) == ["DequantizeLinear"]
    x = np.random.default_rng(0).integers(-128, 128, shape, np.int8)
    (wanted,), (found,) = (ReferenceEvaluator(each).run(None, {"x": x}) for each in (first, second))
    same(wanted, found, 0)


@pytest.mark.parametrize("bias", [(), (floats(6),)])
@pytest.mark.parametrize("attrs", [{}, {"strides": [2], "pads": [1, 2]}, {"auto_pad": "SAME_UPPER", "group": 2}])
async def test_convolution_of_one_spatial_axis_is_exported_as_one_conv(bias: Any, attrs: dict[str, Any]) -> None:
    first = model_of("Conv", (2, 4, 9), (floats(6, 4 // attrs.get("group", 1), 3), *bias), **attrs)
    second = await export(load(first))
    assert ops_of(second) == ["Conv"]
    (wanted,), (found,) = (ReferenceEvaluator(each).run(None, {"x": floats(2, 4, 9)}) for each in (first, second))
    same(wanted, found, 1e-5)


async def test_conv2d_of_one_row_is_exported_as_1d_conv() -> None:
    x = af.placeholder(af.float32, [None, 9, 4], name="x")
    kernel = af.constant(floats(3, 4, 6))
    made = af.nn.conv2d(af.expand_dims(x, 1), af.expand_dims(kernel, 0), [1, 1, 2, 1], "SAME")
    y = af.nn.bias_add(af.squeeze(made, [1]), af.constant(floats(6)))
    model = await export(x.graph, {"y": y})
    assert sorted(ops_of(model)) == ["Conv", "Transpose", "Transpose"]
    (found,) = ReferenceEvaluator(model).run(None, {"x": floats(2, 9, 4)})
    async with af.Session(graph=x.graph) as session:
        same(await session.run(y, {x: floats(2, 9, 4)}), found, 1e-5)


@pytest.mark.parametrize("sizes", [[0, 0, 2, 3], [0, -1], [0, 0, 6]])
async def test_reshape_by_fed_shape_is_exported_as_one_reshape(sizes: list[int]) -> None:
    node = helper.make_node("Reshape", ["x", "sizes"], ["y"])
    fed = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, None, None]),
        helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, [len(sizes)]),
    ]
    graph = helper.make_graph([node], "g", fed, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    second = await export(load(model))
    assert ops_of(second) == ["Reshape"]
    given = {"x": floats(2, 3, 6), "sizes": np.array(sizes)}
    (wanted,), (found,) = (ReferenceEvaluator(each).run(None, given) for each in (model, second))
    same(wanted, found, 0)


async def test_weights_cast_to_wider_dtype_are_stored_narrow() -> None:
    weights = af.constant(floats(40, 50).astype(np.float16))
    x = af.placeholder(af.float32, [None, 40], name="x")
    model = await export(x.graph, {"y": af.matmul(x, af.cast(weights, af.float32))})
    assert ops_of(model) == ["Cast", "MatMul"]
    assert model.ByteSize() < 2 * 40 * 50 + 500


async def test_8_bit_weights_are_exported_as_8_bit() -> None:
    weights = np.random.default_rng(0).integers(-128, 128, (300, 400), np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["float"], axis=1),
        helper.make_node("MatMul", ["x", "float"], ["y"]),
    ]
    held = {"w": weights, "scale": np.linspace(0.1, 1, 400, dtype=np.float32), "zero": np.zeros(400, np.int8)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, 300])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, 400])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    first = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    second = await export(load(first))
    assert ops_of(second) == ["DequantizeLinear", "MatMul"]
    assert second.ByteSize() < 1.01 * first.ByteSize()


_bytes = np.random.default_rng(0).integers(0, 255, (4, 6, 30, 40)).astype(np.uint8)


@pytest.mark.parametrize(
    ("op", "shape", "constants"),
    [
        ("MatMulInteger", (3, 30), (_bytes[0, 0],)),
        ("MatMulInteger", (3, 30), (_bytes[0, 0], np.uint8(7))),
        ("MatMulInteger", (3, 30), (_bytes[0, 0].astype(np.int8), np.uint8(7), _bytes[0, 0, 0].astype(np.int8))),
        ("MatMulInteger", (2, 3, 30), (_bytes[0, 0], None, np.uint8(7))),
        ("ConvInteger", (2, 6, 31, 41), (_bytes, np.uint8(7), np.uint8(3))),
        ("ConvInteger", (2, 6, 31, 41), (_bytes,)),
        (
            "QLinearConv",
            (1, 6, 31, 41),
            (np.float32(0.1), np.uint8(7), _bytes, np.float32(0.2), np.uint8(3), np.float32(9), np.uint8(5)),
        ),
    ],
)
async def test_integer_products_are_exported_with_8_bit_weights(op: str, shape: Any, constants: Any) -> None:
    first = model_of(op, shape, constants, np.uint8)
    second = await export(load(first))
    assert second.ByteSize() < first.ByteSize() + 500
    assert ops_of(second) == [op]
    x = np.random.default_rng(1).integers(0, 255, shape).astype(np.uint8)
    (wanted,), (found,) = (ReferenceEvaluator(each).run(None, {"x": x}) for each in (first, second))
    same(wanted, found, 0)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x * af.nn.relu6(x + 3) / 6,
        lambda x: af.identity(x * af.minimum(af.maximum(0.5 + x * np.float32(1 / 6), 0), 1)),
    ],
)
async def test_hard_swish_of_single_ops_is_recognized(build: Any) -> None:
    x = af.placeholder(af.float32, [None, 3], name="x")
    model = await export(x.graph, {"y": build(x)})
    assert ops_of(model) == ["HardSwish"]


async def test_shared_inner_node_prevents_fusion_and_is_computed_once() -> None:
    x = af.placeholder(af.float32, [None, 3], name="x")
    inner = af.nn.relu6(x + 3)
    model = await export(x.graph, {"y": x * inner / 6, "inner": inner}, {"x": x})
    assert "HardSwish" not in ops_of(model)
    assert ops_of(model).count("Clip") == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x * af.nn.relu6(x + 2) / 6,
        lambda x: x * af.nn.relu6(x[:, ::-1] + 3) / 6,
        lambda x: af.cast(x, af.float64) * af.nn.relu6(af.cast(x, af.float64) + 3) / 6,
    ],
)
async def test_similar_expressions_are_not_exported_as_hard_swish(build: Any) -> None:
    x = af.placeholder(af.float32, [None, 3], name="x")
    assert "HardSwish" not in ops_of(await export(x.graph, {"y": build(x)}))


async def test_operator_of_later_opset_is_expanded_in_earlier_opset() -> None:
    model = load(model_of("Gelu", _IMAGE, ()))
    assert "Gelu" not in ops_of(await export(model, opset=19))


async def test_constant_folding_survives_long_chains() -> None:
    x, factor = af.placeholder(af.float32, [3], name="x"), af.constant(np.float32(1))
    # More nodes than Python's recursion limit of 1000.
    for _ in range(1100):
        factor = factor * np.float32(1)
    model = await export(x.graph, {"y": x * factor})
    assert ops_of(model) in ([], ["Mul"], ["Identity"])


async def test_hard_swish_is_recognized_in_branches_and_loops() -> None:
    x = af.placeholder(af.float32, [3], name="x")
    y = af.cond(x[0] > 0, lambda: x * af.nn.relu6(x + 3) / 6, lambda: x)
    _, z = af.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * af.nn.relu6(v + 3) / 6), [0, y])
    model = await export(x.graph, {"z": z}, {"x": x})
    assert str(model.graph).count('op_type: "HardSwish"') == 2
    for given in (floats(3), abs(floats(3))):
        (found,) = ReferenceEvaluator(model).run(None, {"x": given})
        async with af.Session(graph=x.graph) as session:
            same(await session.run(z, {x: given}), found, 1e-5)

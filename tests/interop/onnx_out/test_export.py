"""`export`: results and refusals. ONNX's reference evaluator is the oracle for the models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

import aioflow as af
from aioflow.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from aioflow.interop.model import Model, Signature
from aioflow.interop.onnx import export
from aioflow.interop.onnx.exporting.assembly import assembled
from aioflow.interop.unsupported import UnsupportedError
from tests.interop.onnx_out.cases import CASES, Case
from tests.interop.onnx_out.running import Arrays, compare


def floats(values: Any) -> NDArray[np.float32]:
    """Return the values as a float32 array."""
    return np.array(values, np.float32)


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the outputs of ONNX's reference evaluator."""
    found: Any = ReferenceEvaluator(model).run(None, dict(feeds))
    return [np.asarray(value) for value in found]


@pytest.mark.parametrize("case", [c for c in CASES if c.reference], ids=lambda case: case.name)
@pytest.mark.parametrize("dynamic", [False, True], ids=["known", "unknown"])
async def test_exported_model_computes_what_the_graph_computes(case: Case, dynamic: bool) -> None:
    await compare(case.build, case.arrays, evaluate, dynamic=dynamic, tolerance=case.tolerance)


@pytest.mark.parametrize("opset", [18, 19, 21, 22, 23])
async def test_export_supports_each_opset(opset: int) -> None:
    def build(x: Any) -> Any:
        scores = af.reduce_mean(af.nn.softmax(af.pad(x, [[0, 0], [1, 1]])), 1)
        return [af.gather(scores, [1, 0]), *af.split(x, 2, 1), af.cast(x[:, ::2], af.int32)]

    given = np.arange(8, dtype=np.float32).reshape(2, 4)
    model = await compare(build, [given], evaluate, opset=opset)
    assert [each.version for each in model.opset_import] == [opset]


def _dense() -> tuple[Any, Any, Any]:
    x = af.placeholder(af.float32, [None, 3], name="images")
    weights = af.Variable(np.arange(6, dtype=np.float32).reshape(3, 2), name="dense/kernel")
    return x, weights, af.nn.relu(af.matmul(x, weights) - 4.0, name="scores")


async def test_variables_become_initializers_with_the_values_of_the_session() -> None:
    x, weights, scores = _dense()
    update = weights.assign_add([[1, 0], [0, 1], [0, 0]])
    async with af.Session() as session:
        await session.run(weights.initializer)
        await session.run(update)
        model = await export(session, {"logits": scores}, {"x": x})
        held = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
        np.testing.assert_array_equal(held["dense/kernel"], [[1, 1], [2, 4], [4, 5]])
        given = floats([[1, 2, 3], [0, 0, 1], [-1, 0, 0], [2, 2, 2]])
        (found,) = evaluate(model, {"x": given})
        np.testing.assert_allclose(found, np.maximum(given @ held["dense/kernel"] - 4, 0))


async def test_inputs_and_outputs_are_named_after_nodes_by_default() -> None:
    x, weights, scores = _dense()
    async with af.Session() as session:
        await session.run(weights.initializer)
        model = await export(session, [scores, weights])
    assert "scores" in [node.name for node in model.graph.node]
    assert [value.name for value in model.graph.input] == ["images"]
    assert [value.name for value in model.graph.output] == ["scores", "dense/kernel/Read/ReadVariableOp"]
    np.testing.assert_array_equal(
        evaluate(model, {"images": np.zeros((1, 3), np.float32)})[1], np.arange(6).reshape(3, 2)
    )
    assert x.op.name == "images"


async def test_nodes_keep_their_names() -> None:
    x, weights, scores = _dense()
    async with af.Session() as session:
        await session.run(weights.initializer)
        model = await export(session, {"logits": scores}, {"x": x})
    assert [(node.op_type, node.name) for node in model.graph.node] == [
        ("MatMul", "MatMul"),
        ("Sub", scores.op.inputs[0].op.name),
        ("Relu", "scores"),
    ]


async def test_unknown_sizes_get_names_and_known_sizes_stay() -> None:
    x = af.placeholder(af.float32, [None, 3], name="x")
    model = await export(x.graph, {"y": af.reduce_sum(x, 1)})
    sizes = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert sizes == ["x_dim_0", 3]


async def test_one_tensor_can_be_several_outputs_or_input_and_output() -> None:
    x = af.placeholder(af.float32, [2], name="x")
    y = x + 1
    model = await export(x.graph, {"a": y, "b": y, "same": x, "three": af.constant(3)}, {"x": x})
    found = evaluate(model, {"x": floats([1, 2])})
    assert [value.tolist() for value in found] == [[2, 3], [2, 3], [1, 2], 3]


async def test_intermediate_tensor_can_be_an_input() -> None:
    x = af.placeholder(af.float32, [2], name="x")
    middle = af.py_func(lambda v: v, [x], af.float32)
    middle.set_shape([2])
    model = await export(x.graph, {"y": middle * 2}, {"features": middle})
    assert evaluate(model, {"features": floats([1, 2])})[0].tolist() == [2, 4]


async def test_model_exports_its_own_values_or_those_of_a_session() -> None:
    graph = af.Graph()
    with graph.as_default():
        x = af.placeholder(af.float32, [None], name="x")
        scale = af.Variable(2.0, name="scale")
        signature = Signature({"x": x}, {"y": x * scale})
        tripled = scale.assign(3.0)

    async def initialize(session: af.Session) -> None:
        await session.run(scale.initializer)

    model = Model(graph, {"serving_default": signature}, {"scale": scale}, initialize)
    given = {"x": floats([1, 10])}
    assert evaluate(await export(model), given)[0].tolist() == [2, 20]
    async with af.Session(graph=graph) as session:
        await session.run(tripled)
        assert evaluate(await export(model, session=session), given)[0].tolist() == [3, 30]


async def test_control_dependencies_are_left_out() -> None:
    x = af.placeholder(af.float32, [None], name="x")
    with af.control_dependencies([af.Assert(af.reduce_all(x > 0), [x])]):
        y = af.identity(x) * 2
    model = await export(x.graph, {"y": y})
    assert [node.op_type for node in model.graph.node] == ["Mul"]


async def test_chained_convolutions_need_only_two_transposes() -> None:
    def build(x: Any) -> Any:
        for _ in range(3):
            kernel = af.constant(np.ones((3, 3, 2, 2), np.float32) / 9)
            y = af.nn.relu(af.nn.bias_add(af.nn.conv2d(x, kernel, [1, 1, 1, 1], "SAME"), [0.5, -0.5]))
            x = x + af.nn.max_pool(y, [1, 3, 3, 1], [1, 1, 1, 1], "SAME")
        return x

    given = np.random.default_rng(1).random((1, 5, 6, 2), np.float32)
    model = await compare(build, [given], evaluate)
    assert [node.op_type for node in model.graph.node].count("Transpose") == 2


# -- files -------------------------------------------------------------------------------------------------------------


def sizes_in(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file in the folder, by name."""
    return {each.name: each.stat().st_size for each in folder.iterdir()}


async def test_export_writes_a_file(tmp_path: Path) -> None:
    x = af.placeholder(af.float32, [None, 600], name="x")
    weights = af.constant(np.arange(600, dtype=np.float32).reshape(600, 1))
    path = tmp_path / "model.onnx"
    await export(x.graph, {"y": af.matmul(x, weights)}, path=path)
    assert sizes_in(tmp_path).keys() == {"model.onnx"}
    assert evaluate(onnx.load(path), {"x": np.ones((1, 600), np.float32)})[0] == 600 * 599 / 2


async def test_cancelled_export_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, going_on = threading.Event(), threading.Event()

    def slowly(*args: Any) -> onnx.ModelProto:
        begun.set()
        going_on.wait()
        return assembled(*args)

    monkeypatch.setattr("aioflow.interop.onnx.exporting.export.assembled", slowly)
    x = af.placeholder(af.float32, [2])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(export(af.get_default_graph(), [x * 2.0], path=tmp_path / "model.onnx"))
        await asyncio.to_thread(begun.wait)
        task.cancel()
    going_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()  # joins a thread that might still write
    assert task.cancelled()
    assert sizes_in(tmp_path) == {}


async def test_external_data_goes_into_a_second_file(tmp_path: Path) -> None:
    x = af.placeholder(af.float32, [None, 600], name="x")
    weights = af.constant(np.arange(600, dtype=np.float32).reshape(600, 1))
    path = tmp_path / "model.onnx"
    await export(x.graph, {"y": af.matmul(x, weights) + 1}, path=path, external_data=True)
    sizes = sizes_in(tmp_path)
    assert sizes["model.onnx.data"] == 2400
    assert sizes["model.onnx"] < 1000
    assert evaluate(onnx.load(path), {"x": np.ones((1, 600), np.float32)})[0] == 600 * 599 / 2 + 1


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_unsupported_error_lists_every_node_with_its_reason() -> None:
    x = af.placeholder(af.float32, [3, 3], name="x")
    counter = af.Variable(0.0, name="counter")
    y = af.random_normal([3, 3], name="noise") + af.linalg.inv(x, name="inverse")
    z = af.py_func(lambda v: v, [x], af.float32, name="mine") + counter.assign_add(1.0)
    async with af.Session() as session:
        await session.run(counter.initializer)
        with pytest.raises(UnsupportedError, match="cannot be exported") as caught:
            await export(session, {"y": y, "z": z})
    listed = {each.node: (each.op, each.why) for each in caught.value.unsupported}
    assert listed["noise/RandomStandardNormal"] == ("RandomStandardNormal", "random numbers would be others")
    assert listed["inverse"] == ("MatrixInverse", "no translation")
    assert listed["mine"] == ("PyFunc", "it calls a Python function of this process")
    assert any(op == "AssignAddVariableOp" for op, _ in listed.values())
    assert len(listed) == 4


async def test_refusal_names_the_unsupported_dtype() -> None:
    x = af.placeholder(af.float64, [1, 4, 4, 1], name="x")
    y = af.nn.conv2d(x, af.ones([2, 2, 1, 1], af.float64), [1, 1, 1, 1], "SAME")
    with pytest.raises(UnsupportedError, match="no float64 convolution"):
        await export(x.graph, {"y": y})


@pytest.mark.parametrize("op", [af.shape, af.size])
async def test_refusal_names_the_node_that_reads_an_unsupported_dtype(op: Any) -> None:
    x = af.placeholder(af.float32, [None, 3], name="x")
    y = op(af.cast(x, af.complex64, name="wide"), name="counted")
    with pytest.raises(UnsupportedError) as caught:
        await export(x.graph, {"y": y})
    why = "no runtime takes complex64"
    assert {each.node: each.why for each in caught.value.unsupported} == {"wide": why, "counted": why}


@pytest.mark.parametrize("op", [af.shape, af.rank, lambda x: af.constant(1.0)])
async def test_input_of_an_unsupported_dtype_is_named(op: Any) -> None:
    x = af.placeholder(af.complex64, [None, 3], name="waves")
    with pytest.raises(DTypeError, match="not a dtype of ONNX models") as caught:
        await export(x.graph, {"y": op(x)}, {"x": x})
    assert caught.value.node == "waves"


async def test_operator_of_later_opset_is_refused_in_earlier_opset() -> None:
    x = af.placeholder(af.string, [None], name="x")
    joined = af.strings.join([x, x])
    await export(x.graph, {"y": joined})
    with pytest.raises(UnsupportedError, match="from opset 20"):
        await export(x.graph, {"y": joined}, opset=18)


async def test_placeholder_missing_from_inputs_is_named() -> None:
    x, y = af.placeholder(af.float32, [2], name="x"), af.placeholder(af.float32, [2], name="forgotten")
    with pytest.raises(InvalidArgumentError, match="placeholder that is not an input") as caught:
        await export(x.graph, {"z": x + y}, {"x": x})
    assert caught.value.node == "forgotten"


async def test_export_of_variables_needs_a_session() -> None:
    _, _, scores = _dense()
    with pytest.raises(FailedPreconditionError, match="needs a session with their values"):
        await export(scores.graph, {"y": scores})


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"opset": 17}, InvalidArgumentError, "no such opset"),
        ({"outputs": None}, InvalidArgumentError, "needs outputs"),
        ({"inputs": {"y": "x:0"}}, InvalidArgumentError, "an input and an output have the same name"),
        ({"outputs": {"": "y:0"}}, DTypeError, "a name among the outputs"),
        ({"outputs": ["y:0", "y:0"]}, InvalidArgumentError, "two outputs have the same name"),
        ({"outputs": {"y": "y"}}, DTypeError, "must be tensors"),
        ({"source": 3}, DTypeError, "nothing to export"),
    ],
)
async def test_arguments_are_checked(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    x = af.placeholder(af.float32, [2], name="x")
    af.identity(x, name="y")
    given = {"source": x.graph, "outputs": {"y": "y:0"}, **arguments}
    with pytest.raises(error, match=says):
        await export(**given)


async def test_variable_can_be_read_in_a_loop() -> None:
    scale = af.Variable(2.0, name="scale")
    x = af.placeholder(af.float32, [], name="x")
    _, y = af.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * scale.read_value()), [0, x])
    async with af.Session() as session:
        await session.run(scale.initializer)
        model = await export(session, {"y": y}, {"x": x})
    assert evaluate(model, {"x": floats(5)})[0] == 40


@pytest.mark.parametrize("name", ["Equal", "NotEqual"])
async def test_equality_of_incompatible_shapes_is_refused(name: str) -> None:
    x, y = (af.placeholder(af.float32, [size]) for size in (2, 3))
    z = af.extend.make(name, x, y, incompatible_shape_error=False)
    with pytest.raises(UnsupportedError, match="incompatible shapes"):
        await export(x.graph, {"z": z})

"""Tests of com.microsoft nodes without a translation: onnxruntime computes each as it is in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import aioflow as af
from aioflow import raw_ops, saved
from aioflow.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError
from aioflow.interop import onnx
from aioflow.interop.unsupported import UnsupportedError
from tests.backends.onnxruntime.steps import floats
from tests.net.clusters import cluster

FLOAT = TensorProto.FLOAT
DOMAIN = "com.microsoft"


def model_of(*nodes: Any, x: Any = (3, 3), y: Any = None) -> ModelProto:
    """Return a model from x to y, of these shapes."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, x)],
        [helper.make_tensor_value_info("y", FLOAT, y)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain=DOMAIN, name=f"the_{op}", **attributes)


INVERSE = node("Inverse", ["x"], ["i"])
DISTANCES = node("CDist", ["i", "i"], ["y"], metric="euclidean")


def distances(x: Any) -> Any:
    rows = np.linalg.inv(x.astype(np.float64))
    return np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(-1))


async def test_engine_nodes_compute_beside_translated_nodes() -> None:
    model = onnx.load(model_of(INVERSE, DISTANCES))
    with model.graph.as_default():
        doubled = model.outputs["y"] + model.outputs["y"]
    x = floats(3, 3)
    for config in (None, af.SessionConfig(delegate="onnxruntime")):
        async with af.Session(graph=model.graph, config=config) as session:
            found = await session.run(doubled, {model.inputs["x"]: x})
        np.testing.assert_allclose(found, 2 * distances(x), rtol=1e-3, atol=2e-2)


def test_shapes_come_from_the_engine_and_the_file() -> None:
    nodes = (INVERSE, DISTANCES)
    assert onnx.load(model_of(*nodes)).outputs["y"].dims is None
    assert onnx.load(model_of(*nodes, y=("n", 3))).outputs["y"].dims == (None, 3)
    alone = node("Inverse", ["x"], ["y"])
    assert onnx.load(model_of(alone, x=("n", 3, 3))).outputs["y"].dims == (None, 3, 3)


async def test_inputs_and_outputs_may_be_omitted() -> None:
    proto = model_of(
        node("Pad", ["x", "pads", ""], ["padded"]),
        node("Unique", ["padded"], ["", "", "counts"]),
        helper.make_node("Cast", ["counts"], ["y"], to=FLOAT),
        x=(4,),
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "pads"))
    model = onnx.load(proto)
    async with af.Session(graph=model.graph) as session:
        found = await session.run(model.outputs["y"], {model.inputs["x"]: np.array([2, 1, 2, 3], np.float32)})
    assert sorted(found) == [1, 1, 2, 3]


async def test_node_rejected_by_its_translation_is_computed_by_onnxruntime() -> None:
    turned = node("RotaryEmbedding", ["x", "positions", "cos", "sin"], ["y"], scale=0.5)
    proto = model_of(turned, x=(2, 5, 8), y=(2, 5, 8))
    constants = {"positions": np.array([3]), "cos": floats(10, 4), "sin": floats(10, 4)}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model, x = onnx.load(proto), floats(2, 5, 8)
    async with af.Session(graph=model.graph) as session:
        found = await session.run(model.outputs["y"], {model.inputs["x"]: x})
    cos, sin, one, other = constants["cos"][3:8], constants["sin"][3:8], x[..., :4], x[..., 4:]
    np.testing.assert_allclose(found, np.concatenate([one * cos - other * sin, other * cos + one * sin], -1), atol=1e-5)


def test_node_without_used_outputs_is_skipped() -> None:
    model = onnx.load(model_of(node("Inverse", ["x"], [""]), helper.make_node("Relu", ["x"], ["y"])))
    assert "OnnxNode" not in {operation.type for operation in model.graph.get_operations()}


def test_errors_give_the_reason() -> None:
    with pytest.raises(UnsupportedError, match=r"com.microsoft:Nope: no such op \("):
        onnx.load(model_of(node("Nope", ["x"], ["y"])))
    with pytest.raises(UnsupportedError, match=r"com.microsoft:Inverse: no such op; .*Unrecognized attribute"):
        onnx.load(model_of(node("Inverse", ["x"], ["y"], depth=3)))
    with pytest.raises(UnsupportedError, match=r"com.microsoft:Gelu: attribute 'depth'"):  # a translation's own error
        onnx.load(model_of(node("Gelu", ["x"], ["y"], depth=3)))
    sequence = helper.make_node("SequenceConstruct", ["x"], ["s"])
    with pytest.raises(UnsupportedError, match="takes tensors only"):
        onnx.load(model_of(sequence, node("Inverse", ["s"], ["y"])))


async def test_missing_onnxruntime_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model_of(INVERSE, DISTANCES)
    model = onnx.load(proto)
    monkeypatch.setattr("aioflow_onnxruntime.missing", lambda: "onnxruntime")
    with pytest.raises(UnsupportedError, match=r"no such op; .*pip install 'aioflow-engine\[onnxruntime\]'"):
        onnx.load(proto)
    async with af.Session(graph=model.graph) as session:
        with pytest.raises(NotFoundError, match=r"(?s)pip install .*node: +'the_Inverse'"):
            await session.run(model.outputs["y"], {model.inputs["x"]: floats(3, 3)})


async def test_errors_name_the_node_and_values_are_limited() -> None:
    model = onnx.load(model_of(node("CDist", ["x", "x"], ["y"], metric="euclidean"), x=("n", 2)))
    config = af.SessionConfig(max_value_bytes=1 << 20)
    async with af.Session(graph=model.graph, config=config) as session:
        with pytest.raises(ResourceExhaustedError, match="the_CDist"):
            await session.run(model.outputs["y"], {model.inputs["x"]: floats(1000, 2)})
    proto = model_of(node("Pad", ["x", "pads"], ["y"]), x=None)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "pads"))
    model = onnx.load(proto)
    async with af.Session(graph=model.graph) as session:
        with pytest.raises(InvalidArgumentError, match=r"(?s)onnxruntime: .*node: +'the_Pad'"):
            await session.run(model.outputs["y"], {model.inputs["x"]: floats(2, 3)})


async def test_client_computes_engine_nodes_in_a_cluster() -> None:
    x = floats(3, 3)
    model = onnx.load(model_of(INVERSE, DISTANCES))
    async with cluster("worker") as (server,), af.Session(server.target, graph=model.graph) as session:
        found = await session.run(model.outputs["y"], {model.inputs["x"]: x})
    np.testing.assert_allclose(found, distances(x), rtol=1e-3, atol=2e-2)


async def test_engine_nodes_cannot_be_saved(tmp_path: Path) -> None:
    model = onnx.load(model_of(INVERSE, DISTANCES))
    async with af.Session(graph=model.graph) as session:
        with pytest.raises(UnsupportedError, match="an engine for ONNX models, which wrong inputs may crash"):
            await saved.save(session, tmp_path / "model", model.signatures)


def arrays_of(model: ModelProto) -> Any:
    return np.frombuffer(model.SerializeToString(), np.uint8)


async def refused(model: Any, why: str, **how: Any) -> None:
    with af.Graph().as_default():
        made = raw_ops.OnnxNode(
            inputs=[floats(3, 3)], model=model, Tout=[how.pop("dtype", af.float32)], output_shapes=[None]
        )
        async with af.Session() as session:
            with pytest.raises(InvalidArgumentError, match=why):
                await session.run(made)


async def test_untrusted_node_is_checked() -> None:
    plain = model_of(node("Inverse", ["x"], ["y"]))
    await refused(np.frombuffer(b"nothing of a model", np.uint8), "cannot be read")
    await refused(np.zeros(0, np.uint8), "onnxruntime: ")
    await refused(arrays_of(plain), "does not fit", dtype=af.float64)


@pytest.mark.parametrize("where", ["weights", "an attribute", "a branch"])
async def test_no_node_reads_files(where: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(36))
    outside = TensorProto(name="w", dims=[3, 3], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value=str(tmp_path / "secret"))
    if where == "weights":
        model = model_of(helper.make_node("Add", ["x", "w"], ["y"]))
        model.graph.initializer.append(outside)
    elif where == "an attribute":
        model = model_of(
            helper.make_node("Constant", [], ["w"], value=outside), helper.make_node("Add", ["x", "w"], ["y"])
        )
    else:
        inner = helper.make_graph(
            [helper.make_node("Identity", ["w"], ["z"])], "b", [], [helper.make_tensor_value_info("z", FLOAT, None)]
        )
        inner.initializer.append(outside)
        model = model_of(node("Whatever", ["x"], ["y"], then_branch=inner))
    await refused(arrays_of(model), "in other files")

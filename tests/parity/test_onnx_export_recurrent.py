"""Exported recurrent layers in onnxruntime: whole-layer ops, and the loops of Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import aioflow as af
from aioflow.interop.onnx import export, load
from aioflow.interop.tensorflow import load_saved_model
from tests.interop.onnx_out.running import compare
from tests.parity.test_onnx_export import onnxruntime_run
from tests.parity.test_recurrent import NAMES, STEPS, arrays

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("steps", [STEPS, 2])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("op", ["BlockLSTM", "BlockLSTMV2"])
async def test_all_outputs_of_block_lstm(op: str, peephole: bool, clip: float, steps: int) -> None:
    def build(*tensors: Any) -> Any:
        given = dict(zip(NAMES, tensors, strict=True)) | {"seq_len_max": af.constant(steps, af.int64)}
        return list(getattr(af.raw_ops, op)(use_peephole=peephole, cell_clip=clip, **given))

    await compare(build, arrays(), onnxruntime_run)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("sizes", [[6, 2], ["steps", "batch"]])
async def test_loaded_lstm_exports_as_an_lstm(sizes: list[Any], lengths: bool) -> None:
    """Export a loaded LSTM as an LSTM, and run it at other lengths if they are open.

    The outputs in use decide whether an LSTM node is enough.
    """
    original = _lstm(sizes, lengths)
    model = load(original)
    out = await export(model)
    assert "LSTM" in {node.op_type for node in out.graph.node}
    for steps, batch in [(6, 2)] if sizes == [6, 2] else [(6, 2), (3, 4)]:
        x = np.random.default_rng(1).standard_normal((steps, batch, 3)).astype(np.float32)
        feeds: dict[str, NDArray[Any]] = {"x": x}
        if lengths:
            feeds["lengths"] = np.array([2, 3, 1, 3][:batch], np.int32)
        for wanted, found in zip(onnxruntime_run(original, feeds), onnxruntime_run(out, feeds), strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-5)


async def test_lstm_without_cell_outputs_exports_as_one_lstm() -> None:
    original = _lstm([6, 2], False)
    del original.graph.output[1:]
    out = await export(load(original))
    kinds = [node.op_type for node in out.graph.node]
    assert kinds.count("LSTM") == 1
    assert not {"Scan", "Loop"} & set(kinds)


def _lstm(sizes: list[Any], lengths: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        name: numpy_helper.from_array((rng.standard_normal(shape) * 0.5).astype(np.float32), name)
        for name, shape in (("w", (1, 20, 3)), ("r", (1, 20, 5)), ("b", (1, 40)))
    }
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*sizes, 3])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [sizes[1]]))
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "b", *(["lengths"] if lengths else [])], ["y", "h", "c"], hidden_size=5
    )
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "h", "c")]
    graph = helper.make_graph([node], "g", inputs, outputs, list(weights.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


X = np.random.default_rng(0).standard_normal((3, 8, 3)).astype(np.float32)


@pytest.fixture(params=["LSTM", "GRU"])
def keras_layer(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, NDArray[Any]]:
    """Export a Keras model of one layer, and return its folder and its result for X."""
    import tensorflow

    layer = getattr(tensorflow.keras.layers, request.param)(12)
    model = tensorflow.keras.Sequential([tensorflow.keras.Input((8, 3)), layer])
    model.export(str(tmp_path), verbose=False)
    return tmp_path, model(X).numpy()


async def test_last_output_of_a_keras_layer(keras_layer: tuple[Path, NDArray[Any]]) -> None:
    """Export a layer whose loop writes the only row of an array in each step."""
    folder, expected = keras_layer
    model = load_saved_model(folder)
    async with af.Session(graph=model.graph) as session:
        await model.initialize(session)
        out = await export(model, session=session)
    (found,) = onnxruntime_run(out, {out.graph.input[0].name: X})
    np.testing.assert_allclose(found, expected, atol=1e-5)

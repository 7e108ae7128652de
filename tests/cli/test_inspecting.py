"""The weights that `aioflow inspect` counts, for each format; and weights without a graph."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aioflow as af
from aioflow.cli import main
from aioflow.interop.safetensors.weights import save as save_weights
from aioflow.saved import Signature

THEIRS = Path(__file__).parents[1] / "interop" / "tensorflow" / "data"
WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)


def document(capsys: pytest.CaptureFixture[str], path: str | Path, status: int = 0) -> Any:
    assert main(["inspect", "--json", str(path)]) == status
    return json.loads(capsys.readouterr().out)


def tensors(found: Any) -> dict[str, tuple[str, list[int], int]]:
    """Return dtype, shape and bytes, by name."""
    return {p["name"]: (p["dtype"], p["shape"], p["size"]) for p in found["parameters"]["tensors"]}


# ── models of TensorFlow ─────────────────────────────────────────────────────────────────────────────────────────────


# A Keras checkpoint has each variable twice.
def test_keras_variables_are_counted_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, THEIRS / "keras")
    assert tensors(found) == {
        "conv1d/kernel": ("float32", [2, 3, 3], 72),
        "conv1d/bias": ("float32", [3], 12),
        "dense/kernel": ("float32", [12, 2], 96),
        "dense/bias": ("float32", [2], 8),
    }
    assert found["parameters"]["count"] == 2 * 3 * 3 + 3 + 12 * 2 + 2


def test_initial_values_are_not_weights(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, THEIRS / "saved_model_v1")
    assert sorted(tensors(found)) == ["bias", "calls", "kernel"]


def test_constants_of_a_frozen_model_are_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def write() -> None:
        with af.Graph().as_default():
            x = af.placeholder("float32", [None, 3], name="x")
            y = af.reshape(af.matmul(x, af.constant(WEIGHT, name="w")), af.constant([-1, 1, 2], name="sizes"), name="y")
            async with af.Session() as session:
                await af.interop.tensorflow.save_saved_model(session, tmp_path / "m", Signature({"x": x}, {"y": y}))
                await af.saved.save(session, tmp_path / "ours", Signature({"x": x}, {"y": y}))

    asyncio.run(write())
    for name in ("m", "ours"):
        assert tensors(document(capsys, tmp_path / name)) == {"w": ("float32", [3, 2], 24)}


# ── constants ────────────────────────────────────────────────────────────────────────────────────────────────────────

CONSTANTS: dict[str, tuple[Any, bool]] = {
    "weights": (WEIGHT, True),
    "half": (WEIGHT.astype(np.float16), True),
    "complex": (WEIGHT.astype(np.complex64), True),
    "quantized": (WEIGHT.astype(np.int8), True),
    "unsigned": (WEIGHT.astype(np.uint8), True),
    "shape": (np.array([3, 2], np.int32), False),
    "indices": (np.arange(100), False),
    "mask": (np.ones((8, 8), bool), False),
    "words": (np.array([b"a", b"b"], object), False),
    "scalar": (np.float32(2.5), False),
    "one": (np.ones(1, np.float32), False),
}
COUNTED = sorted(name for name, (_, counts) in CONSTANTS.items() if counts)


def test_constants_of_a_definition_that_count_as_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with af.Graph().as_default() as graph:
        for name, (value, _) in CONSTANTS.items():
            af.constant(value, name=name)
    assert sorted(tensors(document(capsys, af.train.write_graph(graph, tmp_path, "frozen")))) == COUNTED


def test_onnx_initializers_that_count_as_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        helper.make_node("Reshape", ["weights", "shape"], ["y"]),
        helper.make_node("Constant", [], ["held"], value=numpy_helper.from_array(WEIGHT)),
        helper.make_node("Constant", [], ["axes"], value=numpy_helper.from_array(np.arange(4))),
    ]
    values = [numpy_helper.from_array(value, name) for name, (value, _) in CONSTANTS.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [], [out], values)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m")
    assert sorted(tensors(document(capsys, tmp_path / "m"))) == sorted([*COUNTED, "held"])


# ── safetensors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def write_weights(folder: Path, **files: dict[str, Any]) -> None:
    for name, arrays in files.items():
        asyncio.run(save_weights(folder / f"{name}.safetensors", arrays))


def test_folder_with_a_whole_file_is_that_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_weights(tmp_path, model={"w": WEIGHT}, adapter={"other": WEIGHT}, rank_0={"w": WEIGHT})
    found = document(capsys, tmp_path)
    assert tensors(found) == {"w": ("float32", [3, 2], 24)}
    assert found["versions"] == {"files": "1"}


def test_index_lists_the_files_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_weights(tmp_path, first={"a": WEIGHT}, second={"b": WEIGHT[:1], "unlisted": WEIGHT}, unrelated={"c": WEIGHT})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "first.safetensors", "b": "second.safetensors"}}))
    for path in (tmp_path, index):
        found = document(capsys, path)
        assert tensors(found) == {"a": ("float32", [3, 2], 24), "b": ("float32", [1, 2], 8)}
        assert found["versions"] == {"files": "2"}


def test_unrelated_files_are_listed_separately(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_weights(tmp_path, text_encoder={"w": WEIGHT}, unet={"w": WEIGHT[:1]})
    assert sorted(tensors(document(capsys, tmp_path))) == ["text_encoder.safetensors: w", "unet.safetensors: w"]


# ── checkpoints and meta graphs ──────────────────────────────────────────────────────────────────────────────────────


async def train(folder: Path, **form: Any) -> None:
    """Write two checkpoints with their meta graphs, of two variables; only the meta graphs have Adam's slots."""
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 3], name="x")
        w, b = af.Variable(WEIGHT, name="w"), af.Variable(np.zeros(2, np.float64), name="b")
        loss = af.reduce_mean(af.matmul(x, w) + af.cast(b, "float32"))
        af.train.AdamOptimizer().minimize(loss)
        start = af.global_variables_initializer()
        saver = af.train.Saver([w, b], **form)
        async with af.Session() as session:
            await session.run(start)
            for step in (9, 10):
                await saver.save(session, folder / "ck", global_step=step)
        af.train.export_meta_graph(folder / "text.meta", as_text=True, graph=graph)
        af.train.export_meta_graph(folder / "renamed", saver_def=saver.as_saver_def(), graph=graph)


SAVED = {"w": ("float32", [3, 2], 24), "b": ("float64", [2], 16)}


@pytest.mark.parametrize("form", [{}, {"incremental": True}, {"write_version": 2}])
@pytest.mark.parametrize("has_state", [True, False])
def test_folder_of_checkpoints_is_its_newest(
    form: dict[str, Any], has_state: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(train(tmp_path, **form))
    if not has_state:
        (tmp_path / "checkpoint").unlink()
    found = document(capsys, tmp_path)
    assert found["format"] == "checkpoint"
    assert found["versions"] == {"newest": "ck-10", "of": "2"}
    assert tensors(found) == SAVED


@pytest.mark.parametrize("name", ["v1", "v1_sharded", "v2", "v2_sharded"])
@pytest.mark.parametrize("moved", [False, True])
def test_checkpoints_of_tensorflow(name: str, moved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = THEIRS / "checkpoints" / name
    if moved:
        folder = Path(shutil.copytree(folder, tmp_path / "moved"))
    files = [file for file in folder.iterdir() if file.name != "checkpoint"]
    for path in (folder, folder / "model-3", *files):
        found = document(capsys, path)
        assert found["format"] == "checkpoint"
        assert tensors(found)["layer/kernel"] == ("float32", [3, 2], 24)
    assert document(capsys, folder)["versions"] == {"newest": "model-3", "of": "1"}


@pytest.mark.parametrize("name", ["ck-9.meta", "text.meta", "renamed"])
def test_inspect_recognizes_meta_graphs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(train(tmp_path))
    shutil.move(tmp_path / name, tmp_path / f"alone_{name}")
    found = document(capsys, tmp_path / f"alone_{name}")
    assert found["format"] == "meta graph"
    assert found["ops"]["ResourceApplyAdam"] == 2
    kept = tensors(found)
    assert {key: kept[key] for key in SAVED} == SAVED
    assert kept["w/Adam"] == SAVED["w"]
    assert all("nitial" not in key for key in kept), "what variables begin with is not counted beside them"
    assert main(["inspect", str(tmp_path / f"alone_{name}")]) == 0
    assert re.search(r"^  w +float32 +\[3, 2\] +24 B$", capsys.readouterr().out, re.MULTILINE)
    assert main(["run", str(tmp_path / f"alone_{name}")]) == 2
    assert "no signature to call" in capsys.readouterr().err


def test_meta_graph_with_unknown_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(train(tmp_path))
    text = (tmp_path / "text.meta").read_text().replace('"MatMul"', '"OddOne"')
    (tmp_path / "odd.meta").write_text(text)
    found = document(capsys, tmp_path / "odd.meta", status=1)
    assert {each["op"] for each in found["unsupported"]} == {"OddOne"}


def test_damaged_meta_graph_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(train(tmp_path))
    data = (tmp_path / "ck-9.meta").read_bytes()
    (tmp_path / "cut.meta").write_bytes(data[: len(data) - 40])
    assert main(["inspect", str(tmp_path / "cut.meta")]) == 2
    assert capsys.readouterr().err.count("\n") == 1

"""ONNX models behind the service: optional inputs, and outputs whose columns have labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.interop.unsupported import UnsupportedError
from aioflow.serve import ModelOptions, ModelSource, Repository
from aioflow.serve.metadata import metadata_of
from aioflow.serve.protocol import InferRequest, MalformedRequestError
from tests.support.loops import on_each_loop

pytest.importorskip("onnx", reason="aioflow-engine[onnx] is not installed")

from tests.interop.onnx.test_maps import ROWS, X, zip_map
from tests.interop.onnx.test_optional_inputs import parse
from tests.interop.onnx.test_shapes import hard
from tests.serve.folders import save_model, scaled
from tests.support.cancelling import cancel_at_each_turn

ADD = "g (float[N, 2] x, float[2] w, float[2] v) => (float[N, 2] y) <float[2] w = {10, 20}, float[2] v = {0, 0}>"


async def infer(repository: Repository, **inputs: Any) -> Any:
    response = await repository.get("m").infer(InferRequest(inputs))
    return response.outputs


def tensors(metadata: dict[str, Any], what: str) -> dict[str, Any]:
    return {each.pop("name"): each for each in metadata[what]}


@pytest.mark.parametrize("batch", ["auto", "never"])
async def test_labelled_columns_are_returned_as_a_tensor(tmp_path: Path, batch: Any) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(zip_map(classlabels_strings=["b", "a"]).SerializeToString())
    async with Repository({"m": path}, ModelOptions(batch=batch)) as repository:
        await repository.load_all()
        served = repository.get("m")
        assert served.calls["serving_default"].is_batched is (batch == "auto")
        np.testing.assert_array_equal((await infer(repository, x=X))["maps"], X)
        columns = {"datatype": "FP32", "shape": [-1, 2]}
        labels = {"parameters": {"labels": ["b", "a"]}}
        assert tensors(metadata_of(served, [1]), "outputs") == {"maps": columns | labels}
        assert tensors(metadata_of(served, [1], parameters=False), "outputs") == {"maps": columns}
        model = served.model
        async with af.Session(graph=model.graph) as session:  # outside the service, the model returns its dictionaries
            assert (await session.run(model.outputs, {model.inputs["x"]: X}))["maps"] == ROWS


async def test_optional_inputs_run_in_separate_steps(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(parse(f"{ADD} {{ h = Add(x, w)  y = Sub(h, v) }}").SerializeToString())
    async with Repository({"m": path}) as repository:
        await repository.load_all()
        served = repository.get("m")
        assert served.calls["serving_default"].is_batched
        w, v = np.array([1, 2], np.float32), np.array([5, 6], np.float32)
        default = np.array([10, 20], np.float32)
        for given, wanted in (
            ({}, X + default),
            ({"w": w}, X + w),
            ({"v": v}, X + default - v),
            ({"v": v, "w": w}, X + w - v),
        ):
            np.testing.assert_array_equal((await infer(repository, x=X, **given))["y"], wanted)
        assert sum(call.statistics().answered for call in served.all_calls) == 4
        for wrong in ({"w": w}, {"x": X, "z": w}, {"x": X, "w": w.astype(np.float64)}, {"x": X, "w": w[:1]}):
            with pytest.raises(MalformedRequestError):
                await infer(repository, **wrong)
        inputs = tensors(metadata_of(served, [1]), "inputs")
        assert {name for name, each in inputs.items() if each.get("parameters") == {"optional": True}} == {"w", "v"}
        assert list(tensors(metadata_of(served, [1], parameters=False), "inputs")) == ["x"]


async def test_configured_shapes_replace_unknown_ones(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(hard().SerializeToString())
    source = ModelSource(str(path), shapes={"x": (None, 3)})
    async with Repository({"m": source, "without": path}) as repository:
        with pytest.raises(UnsupportedError, match="--shape"):
            await repository.load("without")
        await repository.load("m")
        assert tensors(metadata_of(repository.get("m"), [1]), "inputs")["x"]["shape"] == [-1, 3]
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal((await infer(repository, x=x))["y"], x[:1])
        with pytest.raises(MalformedRequestError, match="shape"):
            await infer(repository, x=x[:, :2])


async def test_configured_shapes_are_rejected_for_other_formats(tmp_path: Path) -> None:
    folder = await save_model(tmp_path / "m", scaled(2))
    async with Repository({"m": ModelSource(str(folder), shapes={"x": (None, 3)})}) as repository:
        with pytest.raises(InvalidArgumentError, match="already defines the shapes"):
            await repository.load("m")


@on_each_loop
async def test_request_with_optional_inputs_may_be_cancelled_at_any_turn(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(parse(f"{ADD} {{ h = Add(x, w)  y = Sub(h, v) }}").SerializeToString())
    w = np.array([1, 2], np.float32)

    async with Repository({"m": path}) as repository:
        await repository.load_all()

        async def work() -> None:
            np.testing.assert_array_equal((await infer(repository, x=X, w=w))["y"], X + w)

        await cancel_at_each_turn(work, work)
        assert repository.get("m").users == 0

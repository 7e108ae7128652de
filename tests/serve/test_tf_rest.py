"""TensorFlow Serving's REST API over HTTP, with the forms of its documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from tests.serve.folders import save_model, scaled, summed
from tests.serve.service import families, serving


def half_plus_two() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
    x = af.placeholder("float32", [None], name="x")
    return {"x": x}, {"y": x * 0.5 + 2.0}


def sensors() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
    """Build the model of the documentation's requests: a text, five signals and a matrix for each instance."""
    tag = af.placeholder("string", [None], name="tag")
    signal = af.placeholder("float32", [None, 5], name="signal")
    sensor = af.placeholder("int64", [None, 2, 2], name="sensor")
    return {"tag": tag, "signal": signal, "sensor": sensor}, {
        "tag": af.identity(tag),
        "tag_bytes": af.identity(tag),
        "total": af.reduce_sum(signal, axis=1),
        "twice": sensor * 2,
    }


ROWS: list[dict[str, Any]] = [
    {"tag": "foo", "signal": [1, 2, 3, 4, 5], "sensor": [[1, 2], [3, 4]]},
    {"tag": {"b64": "YmFy"}, "signal": [3, 4, 1, 2, 5], "sensor": [[4, 5], [6, 8]]},
]


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return await save_model(tmp_path / "m", half_plus_two)


async def test_single_inputs_and_outputs_are_plain_values(folder: Path) -> None:
    async with serving({"m": folder}) as (_, client):
        for path in ("/v1/models/m:predict", "/v1/models/m/versions/1:predict", "/v1/models/m%3Apredict"):
            response = await client.post(path, json={"instances": [1.0, 2.0, 5.0]})
            assert (response.status_code, response.json()) == (200, {"predictions": [2.5, 3.0, 4.5]}), path
        for asked, found in (
            ({"inputs": [1.0, 2.0]}, {"outputs": [2.5, 3.0]}),
            ({"inputs": {"x": [1.0]}}, {"outputs": [2.5]}),
            ({"instances": [{"x": 1}, {"x": 2}]}, {"predictions": [2.5, 3.0]}),
            ({"instances": [1], "signature_name": "serving_default"}, {"predictions": [2.5]}),
            ({"instances": [1], "signature_name": ""}, {"predictions": [2.5]}),
        ):
            response = await client.post("/v1/models/m:predict", json=asked)
            assert (response.status_code, response.json()) == (200, found), asked


async def test_several_inputs_and_outputs_are_objects(tmp_path: Path) -> None:
    async with serving({"m": await save_model(tmp_path / "m", sensors)}) as (_, client):
        response = await client.post("/v1/models/m:predict", json={"instances": ROWS})
        rows = [
            {"tag": "foo", "tag_bytes": {"b64": "Zm9v"}, "total": 15.0, "twice": [[2, 4], [6, 8]]},
            {"tag": "bar", "tag_bytes": {"b64": "YmFy"}, "total": 15.0, "twice": [[8, 10], [12, 16]]},
        ]
        assert response.json() == {"predictions": rows}
        columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
        response = await client.post("/v1/models/m:predict", json={"inputs": columns})
        assert response.json() == {"outputs": {name: [row[name] for row in rows] for name in rows[0]}}
        data = {"instances": [{**ROWS[0], "tag": {"b64": "/w"}}]}  # not UTF-8, and without padding
        response = await client.post("/v1/models/m:predict", json=data)
        assert response.status_code == 400
        assert "'tag' is not UTF-8" in response.json()["error"]


async def test_output_without_rows_needs_the_column_format(tmp_path: Path) -> None:
    async with serving({"m": await save_model(tmp_path / "m", summed)}) as (_, client):
        response = await client.post("/v1/models/m:predict", json={"inputs": [1.0, 2.0]})
        assert response.json() == {"outputs": 3.0}
        response = await client.post("/v1/models/m:predict", json={"instances": [1.0, 2.0]})
        assert response.status_code == 400
        assert "column format" in response.json()["error"]


async def test_numbers_have_their_own_digits_and_may_be_infinite(tmp_path: Path) -> None:
    async with serving({"m": await save_model(tmp_path / "m", scaled(2))}) as (_, client):
        content = b'{"instances": [[NaN, Infinity, -Infinity], [0.1, 1, 1e10]]}'
        response = await client.post("/v1/models/m:predict", content=content)
        assert response.text == '{"predictions":[[NaN,Infinity,-Infinity],[0.2,2.0,20000000000.0]]}'


async def test_large_responses_are_whole(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    async with serving({"m": await save_model(tmp_path / "m", scaled(2))}) as (_, client):
        for name, answer in (("instances", "predictions"), ("inputs", "outputs")):
            response = await client.post("/v1/models/m:predict", json={name: x.tolist()})
            np.testing.assert_allclose(np.array(response.json()[answer], np.float32), x * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "either 'instances' or 'inputs'"),
        ({"instances": [1], "inputs": [1]}, "either 'instances' or 'inputs'"),
        ({"instances": []}, "'instances' is empty"),
        ({"instances": 1.0}, "'instances' of the request is wrong"),
        ({"instances": [1, [2]]}, "wrong type"),
        ({"instances": [[1], 2]}, "does not match its shape"),
        ({"instances": [[1], [2, 3]]}, "does not match its shape"),
        ({"instances": [{"x": 1}, 2]}, "objects and plain values"),
        ({"instances": [{"x": 1}, {"y": 2}]}, "different names"),
        ({"instances": [{"y": 2}]}, "no such input"),
        ({"instances": [{}]}, "other inputs"),
        ({"instances": ["text"]}, "wrong type"),
        ({"instances": [True]}, "wrong type"),
        ({"instances": [None]}, "wrong type"),
        ({"instances": [{"b64": "YQ=="}]}, "wrong type"),
        ({"instances": [1e300]}, "does not fit its datatype"),
        ({"instances": [[1.0]]}, "another shape"),
        ({"inputs": 1.0}, "another shape"),
        ({"instances": [1], "signature_name": "no"}, "no such signature"),
        ({"instances": [1], "signature_name": 5}, "'signature_name'"),
        ({"instances": [1], "parameters": {"timeout": -1}}, "'timeout'"),
    ],
)
async def test_wrong_requests_state_their_fault(folder: Path, body: Any, said: str) -> None:
    async with serving({"m": folder}) as (_, client):
        response = await client.post("/v1/models/m:predict", json=body)
        assert response.status_code == 400
        assert said in response.json()["error"]
        found = await families(client)
        assert found["aioflow_requests_total"]["m", "refused", "1"] == 1


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[" * 100 + "]" * 100, 413),
        ("[" * 200_000 + "]" * 200_000, 400),
        ("1" * 5000, 400),
        ("1e999", 400),
        ('["a", "a"', 400),
        ("{" + '"x":' * 2 + "1}", 400),
    ],
)
async def test_hostile_json_is_refused(folder: Path, text: str, status: int) -> None:
    async with serving({"m": folder}) as (_, client):
        response = await client.post("/v1/models/m:predict", content=f'{{"instances": [{text}]}}'.encode())
        assert response.status_code == status, response.text
        assert set(response.json()) == {"error"}
        assert (await client.post("/v1/models/m:predict", json={"instances": [1]})).status_code == 200


@pytest.mark.parametrize(
    "value", [{"b64": "!"}, {"b64": "ä"}, {"b64": "a"}, {"b64": 5}, {"b64": "YQ", "c": 1}, "\ud800"]
)
async def test_wrong_byte_strings_are_refused(tmp_path: Path, value: Any) -> None:
    async with serving({"m": await save_model(tmp_path / "m", sensors)}) as (_, client):
        content = json.dumps({"instances": [{**ROWS[0], "tag": value}]})
        response = await client.post("/v1/models/m:predict", content=content)
        assert response.status_code == 400
        assert "'tag'" in response.json()["error"]


async def test_status_and_metadata(folder: Path) -> None:
    async with serving({"m": folder}) as (_, client):
        status = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        for path in ("/v1/models/m", "/v1/models/m/versions/1"):
            assert (await client.get(path)).json() == {"model_version_status": [status]}
        found = (await client.get("/v1/models/m/metadata")).json()
        assert found["model_spec"] == {"name": "m", "signature_name": "", "version": "1"}
        signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
        shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
        assert signature["inputs"] == {"x": {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": "x:0"}}
        assert signature["method_name"] == "tensorflow/serving/predict"
        for path, status_code in (
            ("/v1/models/no", 404),
            ("/v1/models/no/metadata", 404),
            ("/v1/models/m/versions/2", 404),
            ("/v1/models/m/versions/2/metadata", 404),
            ("/v1/models/m/labels/stable", 400),
            ("/v1/models/m/else", 404),
        ):
            assert (await client.get(path)).status_code == status_code, path
        assert (await client.post("/v1/models/no:predict", json={"instances": [1]})).status_code == 404
        assert (await client.post("/v1/models/m:no", json={"instances": [1]})).status_code == 405
        await client.post("/v2/repository/models/m/unload")
        assert (await client.get("/v1/models/m")).json()["model_version_status"][0]["state"] == "END"
        paths = json.loads((await client.get("/openapi.json")).text)["paths"]
        assert "/v1/models/{model}:predict" in paths


# ── examples ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def save_with_examples(folder: Path) -> Path:
    """Save a model that doubles the feature `x`, of numbers, and says yes or no about it, by TensorFlow's methods."""
    with af.Graph().as_default() as graph:
        examples = af.placeholder("string", [None], name="examples")
        features = {"x": af.io.FixedLenFeature([], "float32"), "name": af.io.FixedLenFeature([], "string", b"")}
        parsed = af.io.parse_example(examples, features)
        twice = af.reshape(parsed["x"], [-1, 1]) * 2.0
        classes = af.stack([parsed["name"], parsed["name"]], axis=1)
        regress, classify = (f"tensorflow/serving/{method}" for method in ("regress", "classify"))
        inputs, both = {"inputs": examples}, {"classes": classes, "scores": af.concat([twice, -twice], axis=1)}
        signatures = {
            "serving_default": af.saved.Signature(inputs, {"outputs": twice}, regress),
            "classify": af.saved.Signature(inputs, both, classify),
            "scores": af.saved.Signature(inputs, {"scores": both["scores"]}, classify),
        }
    async with af.Session(graph=graph) as session:
        await af.saved.save(session, folder, signatures)
    return folder


async def test_examples_are_classified_and_have_values(tmp_path: Path) -> None:
    examples = [{"x": 1.5, "name": "a"}, {"x": [2.0], "name": {"b64": "Yg=="}}]
    async with serving({"m": await save_with_examples(tmp_path / "m")}) as (_, client):
        response = await client.post("/v1/models/m:regress", json={"examples": examples})
        assert response.json() == {"results": [3.0, 4.0]}
        response = await client.post(
            "/v1/models/m/versions/1:classify", json={"signature_name": "classify", "examples": examples}
        )
        assert response.json() == {"results": [[["a", 3.0], ["a", -3.0]], [["b", 4.0], ["b", -4.0]]]}
        response = await client.post(
            "/v1/models/m:classify", json={"signature_name": "scores", "context": {"x": 1.0}, "examples": [{}]}
        )
        assert response.json() == {"results": [[["", 2.0], ["", -2.0]]]}
        metadata = (await client.get("/v1/models/m/metadata")).json()["metadata"]["signature_def"]["signature_def"]
        assert metadata["classify"]["method_name"] == "tensorflow/serving/classify"


async def test_wrong_examples_are_refused(tmp_path: Path) -> None:
    async with serving({"m": await save_with_examples(tmp_path / "m")}) as (_, client):
        for body, said in (
            ({}, "'examples'"),
            ({"examples": []}, "'examples' is empty"),
            ({"examples": [1]}, "not an object"),
            ({"examples": [{"x": 1.0}], "context": {"x": 2.0}}, "in 'context' and in an example"),
            ({"examples": [{"x": None}]}, "wrong type"),
            ({"examples": [{"x": [1.0, "a"]}]}, "wrong type"),
            ({"examples": [{"x": [[1.0]]}]}, "wrong type"),
            ({"examples": [{"x": 1 << 80}]}, "does not fit"),
            ({"examples": [{"x": 1e300}]}, "does not fit"),
            ({"examples": [{"\ud800": 1.0}]}, "not text"),
            ({"examples": [{"x": {"b64": "!"}}]}, "no byte string"),
            ({"examples": [{"x": 1}]}, "x"),  # an integer feature, where the model wants floats
            ({"examples": [{"x": 1.0}], "signature_name": "classify"}, "cannot regress"),
        ):
            response = await client.post("/v1/models/m:regress", content=json.dumps(body))
            assert response.status_code == 400, body
            assert said in response.json()["error"], body

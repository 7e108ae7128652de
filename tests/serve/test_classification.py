"""Outputs as classes: Triton's classification extension, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import NotFoundError
from aioflow.serve import ModelOptions, Repository
from aioflow.serve.classification import classified, read_labels
from tests.serve.folders import save_model, scaled
from tests.serve.service import asked, serving

X = np.array([[1, 3, 2], [0, -1, 5]], np.float32)


def classes(count: object) -> dict[str, object]:
    return asked(X, outputs=[{"name": "y", "parameters": {"classification": count}}])


async def test_highest_elements_of_each_row_have_index_and_label(tmp_path: Path) -> None:
    folder = await save_model(tmp_path / "m", scaled(2))
    (tmp_path / "labels.txt").write_text("cat\ndog\n", encoding="utf-8")
    for labels, wanted in (
        (None, ["6.000000:1", "4.000000:2", "10.000000:2", "0.000000:0"]),
        (tmp_path / "labels.txt", ["6.000000:1:dog", "4.000000:2", "10.000000:2", "0.000000:0:cat"]),
    ):
        async with serving({"m": folder}, ModelOptions(labels=labels)) as (_, client):
            (output,) = (await client.post("/v2/models/m/infer", json=classes(2))).json()["outputs"]
            assert output == {"name": "y", "datatype": "BYTES", "shape": [2, 2], "data": wanted}
            (output,) = (await client.post("/v2/models/m/infer", json=classes(99))).json()["outputs"]
            assert output["shape"] == [2, 3]
            (output,) = (await client.post("/v2/models/m/infer", json=classes(0))).json()["outputs"]
            assert output["datatype"] == "FP32"
            assert "classification" in (await client.get("/v2")).json()["extensions"]


def test_labels_are_lines_whatever_their_characters(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes("\ufeffa\u2028b\r\n\nc\x0bd".encode())
    assert read_labels(str(path)) == ("a\u2028b", "", "c\x0bd")


async def test_wrong_requests_of_classes_are_refused(tmp_path: Path) -> None:
    def texts() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
        x = af.placeholder("float32", [None, 3], name="x")
        return {"x": x}, {"y": af.strings.as_string(x)}

    async with serving({"m": await save_model(tmp_path / "m", texts)}) as (_, client):
        for count, said in (
            (-1, "'classification'"),
            (1.5, "'classification'"),
            (True, "'classification'"),
            (1, "numbers"),
        ):
            response = await client.post("/v2/models/m/infer", json=classes(count))
            assert response.status_code == 400
            assert said in response.json()["error"]


async def test_missing_file_of_labels_is_reported(tmp_path: Path) -> None:
    folder = await save_model(tmp_path / "m", scaled(2))
    async with Repository({"m": folder}, ModelOptions(labels=tmp_path / "no")) as repository:
        with pytest.raises(NotFoundError, match="no"):
            await repository.load("m")


def test_ties_nan_and_other_shapes() -> None:
    def found(values: object, dtype: str, count: int, has_rows: bool = False) -> object:
        return classified(np.array(values, dtype), "y", count, (), has_rows).tolist()

    assert found([2, 7, 7, 1], "int64", 3) == [b"7:1", b"7:2", b"2:0"]
    assert found([[np.nan, 1.0, np.inf]], "float32", 3) == [[b"inf:2", b"1.000000:1", b"nan:0"]]
    assert found([[[1.0], [2.0]]], "float64", 1) == [[b"2.000000:1"]]
    assert found([4, 5], "uint8", 1, has_rows=True) == [[b"4:0"], [b"5:0"]]
    assert found(3.0, "float32", 1) == [b"3.000000:0"]
    assert found(np.empty((0, 3)), "float32", 2) == []

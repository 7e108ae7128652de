"""ONNX models on the command line: optional inputs, and outputs whose columns have labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.cli import main
from tests.interop.onnx.test_maps import X, zip_map
from tests.interop.onnx.test_optional_inputs import ADD, parse


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "labelled.onnx"
    path.write_bytes(zip_map(classlabels_strings=["yes", "no"]).SerializeToString())
    return path


@pytest.fixture
def optional(tmp_path: Path) -> Path:
    path = tmp_path / "optional.onnx"
    path.write_bytes(parse(ADD).SerializeToString())
    return path


def signature(capsys: pytest.CaptureFixture[str], path: Path) -> Any:
    assert main(["inspect", "--json", str(path)]) == 0
    return json.loads(capsys.readouterr().out)["signatures"]["serving_default"]


def test_run_shows_and_writes_labelled_columns(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    given = ["--inputs", "[[0.25, 0.75], [0.5, 0.125]]", "--output-folder", str(folder)]
    for name in ("all.npz", "maps.npy"):
        assert main(["run", str(labelled), *given, "--output", str(tmp_path / name)]) == 0
        assert "{yes: 0.25, no: 0.75}; …" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(tmp_path / "maps.npy"), X)
    np.testing.assert_array_equal(np.load(folder / "maps.npy"), X)
    with np.load(tmp_path / "all.npz") as stored:
        np.testing.assert_array_equal(stored["maps"], X)
        assert stored["maps.labels"].tolist() == ["yes", "no"]


def test_inspect_shows_labels_and_optional_inputs(
    labelled: Path, optional: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [output] = signature(capsys, labelled)["outputs"]
    assert (output["shape"], output["labels"]) == ([None, 2], ["yes", "no"])
    found = signature(capsys, optional)
    assert [each["name"] for each in found["inputs"]] == ["x"]
    assert [each["name"] for each in found["optional_inputs"]] == ["w"]
    assert main(["inspect", str(optional)]) == 0
    assert "opt  w  float32" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "profile"])
def test_commands_take_optional_inputs(optional: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(optional), "--inputs", "[1, 2]"]) == 0
    assert main([command, str(optional), "--inputs", "x=[1, 2]", "w=[3, 4]"]) == 0
    shown = capsys.readouterr().out
    assert command == "profile" or ("11, 12" in shown and "4, 6" in shown)
    assert main([command, str(optional), "--inputs", "x=[1, 2]", "z=[3]"]) == 2


def test_graph_draws_models_with_labelled_columns(labelled: Path, tmp_path: Path) -> None:
    assert main(["graph", str(labelled), "-o", str(tmp_path / "g.json")]) == 0
    assert main(["profile", str(labelled), "--fill", "random"]) == 0

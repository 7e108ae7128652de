"""ONNX models on the command line: optional inputs, and outputs with labeled columns."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.cli import main
from aioflow.cli.serve import add_parser
from aioflow.cli.serve_options import given_options
from aioflow.errors import InvalidArgumentError
from tests.interop.onnx.test_maps import X, zip_map
from tests.interop.onnx.test_optional_inputs import ADD, parse
from tests.interop.onnx.test_shapes import hard


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
def test_commands_accept_optional_inputs(optional: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(optional), "--inputs", "[1, 2]"]) == 0
    assert main([command, str(optional), "--inputs", "x=[1, 2]", "w=[3, 4]"]) == 0
    shown = capsys.readouterr().out
    assert command == "profile" or ("11, 12" in shown and "4, 6" in shown)
    assert main([command, str(optional), "--inputs", "x=[1, 2]", "z=[3]"]) == 2


def test_graph_draws_models_with_labelled_columns(labelled: Path, tmp_path: Path) -> None:
    assert main(["graph", str(labelled), "-o", str(tmp_path / "g.json")]) == 0
    assert main(["profile", str(labelled), "--fill", "random"]) == 0


def test_commands_accept_a_shape_that_the_file_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shapeless.onnx"
    path.write_bytes(hard().SerializeToString())
    assert main(["run", str(path), "--inputs", "[[1, 2], [3, 4]]"]) == 2
    shown = capsys.readouterr()
    assert "--shape NAME=?,3" in shown.err
    assert main(["run", str(path), "--inputs", "[[1, 2], [3, 4]]", "--shape", "x=?,2"]) == 0
    assert "[1, 2]" in capsys.readouterr().out
    for command in ("run", "profile"):
        assert main([command, str(path), "--fill", "ones", "--shape", "x=-1,3"]) == 0
    assert main(["graph", str(path), "-o", str(tmp_path / "g.json"), "--shape", "x=?,3"]) == 0
    assert main(["inspect", str(path), "--shape", "x=?,3"]) == 0
    assert main(["run", str(path), "--fill", "ones", "--shape", "z=?,3"]) == 2
    with pytest.raises(SystemExit):
        main(["run", str(path), "--shape", "x=?,three"])


@pytest.mark.parametrize(
    ("models", "shapes", "wanted"),
    [
        (["m=a.onnx"], ["x=?,3"], {"m": {"x": (None, 3)}}),
        (["m=a.onnx"], ["m:x=?,3", "input:0=2"], {"m": {"x": (None, 3), "input:0": (2,)}}),
        (["m=a.onnx", "n=b.onnx"], ["m:x:0=-1", "n:y="], {"m": {"x:0": (None,)}, "n": {"y": ()}}),
    ],
)
def test_serve_accepts_shapes_of_inputs(models: list[str], shapes: list[str], wanted: Any) -> None:
    arguments = _parsed(models, shapes)
    assert {name: dict(source.shapes) for name, source in given_options(arguments, {}).models.items()} == wanted


def test_serve_rejects_a_shape_without_a_model_name() -> None:
    with pytest.raises(InvalidArgumentError, match="does not name a model"):
        given_options(_parsed(["m=a.onnx", "n=b.onnx"], ["x=3"]), {})


def _parsed(models: list[str], shapes: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", *models, *(part for shape in shapes for part in ("--shape", shape))])

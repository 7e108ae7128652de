"""The charts that are drawn from stored tables."""

from __future__ import annotations

import builtins
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.charts import CHARTS, FOLDER, draw
from benchmarks.history import Run, runs
from benchmarks.tables import Quantity, Row, Table

_NETS = {
    "Plain: VGG-11 (Simonyan and Zisserman, 2015), 64×64": 0.5,
    "another net": 2.0,
    "geometric mean of 2 nets": 1.0,
}


def _run(**ratios: float) -> Run:
    rows = [Row(case, {"ratio": Quantity(ratio)}) for case, ratio in ratios.items()]
    return Run("20260101T000000", "abc1234", {"some processor": ""}, {"nets-onednn": Table(rows)})


def _texts(file: Path) -> list[str]:
    """Return the texts that matplotlib has drawn as paths, from its comments."""
    found = ET.parse(file, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))).iter(ET.Comment)  # type: ignore[arg-type] # a comment's tag is a function
    return [(comment.text or "").strip() for comment in found]


def test_charts_have_labels_values_and_the_environment(tmp_path: Path) -> None:
    files = draw([_run(**_NETS)], tmp_path)
    assert [file.name for file in files] == ["tensorflow-light.svg", "tensorflow-dark.svg"]
    for file in files:
        texts = _texts(file)
        assert {"VGG-11, 64×64", "2.00×", "another net", "0.50×", "with oneDNN"} <= set(texts)
        assert "Commit abc1234, 2026-01-01: some processor." in texts
        assert not any("mean" in text for text in texts)


def test_charts_have_titles_for_screen_readers(tmp_path: Path) -> None:
    (file, _) = draw([_run(**_NETS)], tmp_path)
    title = ET.parse(file).getroot().find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text == CHARTS["tensorflow"].title


def test_charts_of_the_same_tables_are_the_same(tmp_path: Path) -> None:
    first, second = ([file.read_bytes() for file in draw([_run(**_NETS)], tmp_path / name)] for name in ("a", "b"))
    assert first == second


def test_series_without_a_table_is_left_out(tmp_path: Path) -> None:
    (file, _) = draw([_run(**_NETS)], tmp_path)
    assert "with onnxruntime" not in _texts(file)


def test_missing_matplotlib_is_answered_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    assert draw([_run(**_NETS)], tmp_path) == []
    assert "pip install 'aioflow-engine[bench]'" in capsys.readouterr().err


def test_charts_of_the_repository_are_small_and_show_the_stored_tables(tmp_path: Path) -> None:
    drawn = list(draw(runs(), tmp_path))
    assert {file.name for file in drawn} == {f"{name}-{theme}.svg" for name in CHARTS for theme in ("light", "dark")}
    for file in drawn:
        kept = FOLDER / file.name
        assert kept.stat().st_size < 200_000
        # The paths may differ with the version of matplotlib, the texts do not.
        assert _texts(kept) == _texts(file), "run `python -m benchmarks.charts`"

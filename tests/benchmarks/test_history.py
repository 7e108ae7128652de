"""The kept tables of benchmarks, and the comparison that reports slower rows."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks.history import compared, keep, latest


def table(date: str = "20260101T000000", kernels: str = "3.2.0", **ratios: float) -> dict[str, Any]:
    rows = {row: {"ratio": ratio} for row, ratio in ratios.items()}
    return {"table": "nets", "date": date, "commit": "abc1234", "kernels": kernels, "rows": rows}


def test_row_is_slower_if_its_ratio_grows_beyond_noise() -> None:
    lines = compared(table(vgg=1.0, resnet=1.0, dense=2.0), table(vgg=1.08, resnet=1.25, dense=1.0))
    assert lines == ["slower by 25%: resnet: 1.000 → 1.250"]


def test_rows_of_only_one_table_are_not_compared() -> None:
    assert compared(table(vgg=1.0), table(resnet=9.0)) == []


def test_the_last_table_with_the_same_kernels_is_found(tmp_path: Path) -> None:
    for date, kernels, ratio in (("20260102T", "3.2.0", 2.0), ("20260101T", "3.2.0", 1.0), ("20260103T", "off", 3.0)):
        keep(table(date, kernels, vgg=ratio), tmp_path)
    keep({**table("20260104T", vgg=4.0), "table": "cases"}, tmp_path)
    found = latest(table("20260105T"), tmp_path)
    assert found == table("20260102T", vgg=2.0)


def test_latest_returns_none_without_a_matching_table(tmp_path: Path) -> None:
    keep(table(), tmp_path)
    assert latest({**table(), "table": "cases"}, tmp_path) is None
    assert latest(table(), tmp_path / "missing") is None


def test_benchmarks_keep_the_environment_if_numpy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert importlib.reload(benchmarks).REMOVED == {}
    assert os.environ["OPENBLAS_CORETYPE"] == "Haswell"

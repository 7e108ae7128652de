"""The stored tables of benchmarks, and the comparison that reports slower rows."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

import benchmarks
from benchmarks.history import FOLDER, Run, compared, keep, latest, runs
from benchmarks.tables import Quantity, Row, Table, Target, beside


def table(*targets: Target, **ratios: float) -> Table:
    return Table([Row(case, {"ratio": Quantity(ratio)}, targets) for case, ratio in ratios.items()])


def run(date: str = "20260101T000000", **tables: Table) -> Run:
    return Run(date, "abc1234", {"some processor": "", "Python": "3.11"}, tables)


def test_row_is_slower_if_its_ratio_grows_beyond_noise() -> None:
    lines = compared(table(vgg=1.0, resnet=1.0, dense=2.0), table(vgg=1.08, resnet=1.25, dense=1.0))
    assert lines == ["slower by 25%: resnet: 1.000 → 1.250"]


def test_row_whose_ratio_should_be_high_is_slower_if_it_falls() -> None:
    before, now = (table(Target(least=2.0), faster=ratio) for ratio in (4.0, 3.0))
    assert compared(before, now) == ["slower by 33%: faster: 4.000 → 3.000"]
    assert compared(now, before) == []


def test_rows_of_only_one_table_are_not_compared() -> None:
    assert compared(table(vgg=1.0), table(resnet=9.0)) == []
    assert compared(Table([Row("import", {"ratio": "—"})]), table(**{"import": 1.0})) == []


def test_stored_runs_are_read_as_they_were(tmp_path: Path) -> None:
    rows = [
        beside("add", Quantity(4.6e-6, "s", "alone"), Quantity(1.8e-4, "s"), Target(0.15)),
        Row("lag", {"longest": Quantity(0.028, "s"), "steps": "—"}, (Target(1e-3, column="longest"), Target(least=2))),
    ]
    stored = run(steps=Table(rows, ["Peak: 100 GFLOP/s."]))
    keep(stored, tmp_path)
    assert runs(tmp_path) == [stored]


def test_latest_is_the_last_run_with_the_table(tmp_path: Path) -> None:
    for date, tables in (("20260102T", {"nets": table(vgg=2.0)}), ("20260101T", {"nets": table(vgg=1.0)})):
        keep(run(date, **tables), tmp_path)
    keep(run("20260103T", steps=table(add=4.0)), tmp_path)
    found = latest("nets", runs(tmp_path))
    assert found == run("20260102T", nets=table(vgg=2.0))
    assert latest("lag", runs(tmp_path)) is None
    assert runs(tmp_path / "missing") == []


def test_head_of_a_run_has_its_commit_and_environment() -> None:
    assert run().head() == "Commit abc1234, 2026-01-01: some processor, Python 3.11."


def test_history_of_the_repository_can_be_read() -> None:
    stored = runs(FOLDER)
    assert [each.date for each in stored] == sorted(each.date for each in stored)
    assert all(each.tables for each in stored)


def test_benchmarks_keep_the_environment_if_numpy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert importlib.reload(benchmarks).REMOVED == {}
    assert os.environ["OPENBLAS_CORETYPE"] == "Haswell"

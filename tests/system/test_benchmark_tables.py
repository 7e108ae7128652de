"""Tests of benchmarks in separate processes."""

from __future__ import annotations

import importlib
import os
import sys

import pytest

import benchmarks
from benchmarks.history import machine
from benchmarks.report import Section, run_program


def test_section_program_runs_with_the_kernels_of_its_section() -> None:
    code = "import os, sys; print(os.environ['AIOFLOW_ONEDNN']); print(sys.argv[1:]); raise SystemExit(3)"
    section = Section("one", "One", ("-c", code), {"AIOFLOW_ONEDNN": "off"})
    assert list(run_program(section)) == ["off", "['--json']", 3]


def test_benchmarks_remove_settings_that_give_numpy_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OPENBLAS_L2_SIZE", "512")
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "numpy")  # as in a new process
        removed = importlib.reload(benchmarks).REMOVED
    assert removed == {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "512"}
    assert not removed.keys() & os.environ.keys()
    monkeypatch.setattr("benchmarks.history.REMOVED", removed)
    assert "OPENBLAS_CORETYPE=Haswell removed from the environment" in machine()

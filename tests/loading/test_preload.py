"""Preload hooks: discovered like entry points, run before NumPy, and harmless to the import if they fail."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from pathlib import Path

import pytest

from aioflow.loading import preload


def distribution(folder: Path, name: str, entry_points: str | None) -> None:
    metadata = folder / f"{name}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.partition('-')[0]}\nVersion: 1\n")
    if entry_points is not None:
        (metadata / "entry_points.txt").write_text(entry_points)


def test_finds_what_importlib_metadata_finds() -> None:
    theirs = {(e.name, e.value) for e in importlib.metadata.entry_points(group=preload.GROUP)}
    assert {tuple(hook) for hook in preload.find_hooks(sys.path)} == theirs


def test_reads_only_its_own_group(tmp_path: Path) -> None:
    hooks = "[aioflow.preload]\n# a comment\none = m:f\ntwo=m:g\n"
    distribution(tmp_path, "a-1", f"[console_scripts]\nx = y:z\n\n{hooks}\n[other]\nq = r:s\n")
    distribution(tmp_path, "b-1", None)
    distribution(tmp_path, "c-1", "[aioflow.preloads]\nno = m:f\n")
    assert preload.find_hooks([str(tmp_path)]) == [("one", "m:f"), ("two", "m:g")]


def test_first_of_two_versions_on_the_path_counts(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        distribution(tmp_path / folder, f"a-{folder}", f"[aioflow.preload]\nhook = {folder}:f\n")
    assert preload.find_hooks([str(tmp_path / "first"), str(tmp_path / "second")]) == [("hook", "first:f")]


def test_identical_hooks_of_two_distributions_count_once(tmp_path: Path) -> None:
    """The package is also installed under an earlier name."""
    for name in ("aioflow-0.1.0", "aioflow_engine-0.1.0"):
        distribution(tmp_path, name, "[aioflow.preload]\nnumpy = m:f\n")
    assert preload.find_hooks([str(tmp_path)]) == [("numpy", "m:f")]


def test_odd_path_entries_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    assert preload.find_hooks([str(tmp_path / "a.zip"), str(tmp_path / "missing"), ""]) == []


@pytest.mark.parametrize(
    "target", ["no_such_module:f", "os:no_such_function", "os", "builtins:int.no", "aioflow.loading.preload:GROUP"]
)
def test_a_failing_hook_is_logged_with_its_name_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    distribution(tmp_path, "a-1", f"[aioflow.preload]\nbroken = {target}\nfine = time:time\n")
    with caplog.at_level(logging.WARNING):
        assert preload.run_preload_hooks([str(tmp_path)]) == ("fine",)
    [record] = caplog.records
    assert "'broken'" in record.message
    assert target in record.message
    assert record.exc_info is not None

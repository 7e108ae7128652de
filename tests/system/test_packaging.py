"""Tests of the wheel that users install: it contains everything that the code reads, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from aioflow.release import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the contents of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.fixture(scope="module")
def names(installed: Path) -> set[str]:
    return {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}


def test_wheel_holds_the_top_level_packages(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    expected = {"aioflow", "aioflow_cupy", "aioflow_numpy", "aioflow_onednn", "aioflow_onnxruntime"}
    assert {top for top in tops if not top.endswith(".dist-info")} == expected


@pytest.mark.parametrize(
    "name",
    [
        "aioflow/py.typed",
        "aioflow_numpy/py.typed",
        "aioflow/demo/digits/optdigits.npz",
        "aioflow/demo/digits/README.md",
    ],
)
def test_wheel_holds_the_data_files(names: set[str], name: str) -> None:
    assert name in names


def test_distribution_name_matches_the_messages(installed: Path) -> None:
    [metadata] = installed.glob("*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    assert f"Name: {DISTRIBUTION}" in lines
    # Otherwise pip would install the unrelated project that has this name in the index.
    assert not [line for line in lines if line.startswith(("Requires-Dist: aioflow ", "Requires-Dist: aioflow["))]


def test_no_text_advises_to_install_the_unrelated_project() -> None:
    texts = [path for pattern in ("*.md", "*.py", "*.toml") for path in ROOT.rglob(pattern)]
    wrong = re.compile(r"aioflow\[[a-z]|pip install '?aioflow(?!-engine)")
    ours = [path for path in texts if not {".venv", ".tox"} & set(path.relative_to(ROOT).parts)]
    assert not [path.name for path in ours if path != Path(__file__) and wrong.search(path.read_text("utf-8"))]


def test_wheel_holds_every_module(names: set[str]) -> None:
    for root, package in ((ROOT, "aioflow"), (ROOT / "backends", "aioflow_numpy")):
        missing = {p.relative_to(root).as_posix() for p in (root / package).rglob("*.py")} - names
        assert not missing


def test_wheel_holds_the_files_of_the_status_page(names: set[str]) -> None:
    folder = ROOT / "aioflow/serve/page"
    files = {path.relative_to(ROOT).as_posix() for path in folder.iterdir() if path.suffix in (".html", ".css", ".js")}
    assert len(files) >= 3
    assert files <= names


def test_wheel_holds_the_license_and_the_entry_points(names: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert any(name.endswith(".dist-info/entry_points.txt") for name in names)


_ASKS = """
import aioflow
try:
    aioflow.metrics
except AttributeError as error:
    print(str(error).splitlines()[0])
"""


def test_messages_name_documents_in_the_wheel(installed: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", _ASKS],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    document = installed / "aioflow/docs/compatibility.md"
    assert document.is_file()
    assert [str(document) in line for line in process.stdout.splitlines()] == [True]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_checkout_holds_no_large_file() -> None:
    """Check for files added by accident, such as the wheels of other packages, which every clone would download."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    assert not [path.name for path in files if path.is_file() and path.stat().st_size > 200_000]

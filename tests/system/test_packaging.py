"""Tests of the wheel and the source distribution: what they contain, and what users get who install them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from aioflow.release import DISTRIBUTION, RELEASE
from tests.support.processes import SECONDS

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 200_000  # of a file


def _wheel(source: Path, folder: Path) -> Path:
    [wheel] = WheelBuilder(str(source)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of the checkout."""
    return _wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """Return a folder with the contents of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "installed")
    return wheel.parent / "installed"


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
    aioflow.distributions
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


# ── the files of the checkout, and the source distribution ────────────────────────────────────────────────────────────

in_a_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")


def _tracked() -> list[str]:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


@in_a_checkout
def test_checkout_holds_no_large_file() -> None:
    """Check for files added by accident, such as the wheels of other packages, which every clone would download."""
    files = [ROOT / name for name in _tracked()]
    assert not [path.name for path in files if path.is_file() and path.stat().st_size > MOST_BYTES]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the contents of the source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    [sdist] = SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [unpacked] = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


@in_a_checkout
def test_sdist_holds_the_files_of_the_checkout(source: Path) -> None:
    """Compare with all tracked files, since the tests read documents, settings and benchmarks."""
    files = {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}
    missing = set(_tracked()) - set(files)
    assert {name for name in missing if not name.startswith(".ci/")} == set()
    assert not [name for name, path in files.items() if path.stat().st_size > MOST_BYTES]


def _contents(wheel: Path) -> dict[str, int]:
    """Return the checksums of the files."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


def test_wheel_from_the_sdist_equals_that_of_the_checkout(source: Path, wheel: Path) -> None:
    assert _contents(_wheel(source, source.parent)) == _contents(wheel)


# ── a fresh environment ───────────────────────────────────────────────────────────────────────────────────────────────


class Environment(NamedTuple):
    """A virtual environment with the wheel of the source distribution, and a folder outside of the checkout."""

    scripts: Path
    modules: Path
    elsewhere: Path

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment and return its output."""
        return subprocess.run(
            [str(self.scripts / program), *arguments],
            cwd=self.elsewhere,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            check=True,
            text=True,
            encoding="utf-8",
            timeout=SECONDS,
        ).stdout


@pytest.fixture(scope="module")
def fresh(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install the wheel into a new environment, which finds the dependencies in that of the tests."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, timeout=SECONDS)
    base = {"base": str(folder), "platbase": str(folder)}
    scripts, modules = (Path(sysconfig.get_path(name, "venv", base)) for name in ("scripts", "purelib"))
    (elsewhere := folder / "elsewhere").mkdir()
    found = Environment(scripts, modules, elsewhere)
    options = ("--no-index", "--no-deps", "--disable-pip-version-check")
    found.run("python", "-m", "pip", "install", *options, str(_wheel(source, elsewhere)))
    # Only then, since pip would find an aioflow that is installed there. A folder that a .pth file names is searched
    # last, and its own .pth files (an editable aioflow) have no effect.
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (modules / "dependencies.pth").write_text("\n".join(sorted(others)), encoding="utf-8")
    return found


_ADDS_AND_SAVES = """
import asyncio
import aioflow as af

async def main():
    print(af.__file__)
    x = af.placeholder("float32", [None], name="x")
    async with af.Session() as session:
        print(await session.run(af.constant(20.0) + 22.0))
        await af.saved.save(session, "model", af.saved.Signature({"x": x}, {"y": x * 2.0}))

asyncio.run(main())
"""


def test_commands_of_a_fresh_environment_report_this_release(fresh: Environment) -> None:
    assert fresh.run("aioflow", "--version") == f"aioflow {RELEASE}\n"
    assert f"aioflow {RELEASE}\n" in fresh.run("python", "-m", "aioflow.worker", "--version")
    assert "--cluster JOB=HOST:PORT" in fresh.run("python", "-m", "aioflow.worker", "--help")
    found = [" ".join(line.split()) for line in fresh.run("aioflow", "doctor").splitlines()]
    assert f"aioflow {RELEASE}" in found
    assert f"backend numpy from {DISTRIBUTION}" in " ".join(found)


def test_fresh_environment_computes_saves_and_checks_a_model(fresh: Environment) -> None:
    file, total = fresh.run("python", "-c", _ADDS_AND_SAVES).split()
    assert Path(file).is_relative_to(fresh.modules)
    assert float(total) == 42
    assert fresh.run("aioflow", "serve", "--check", "m=model").startswith("m version 1: ")
    (fresh.elsewhere / "serve.toml").write_text("[models.m]\npath = 'model'\n", encoding="utf-8")
    assert fresh.run("aioflow", "serve", "--check", "--config", "serve.toml").startswith("m version 1: ")

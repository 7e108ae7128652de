"""Tests that a unit test fails if it starts a child process, in any way, or writes into the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes import SECONDS

ROOT = Path(__file__).resolve().parents[2]

_TESTS = """
import asyncio, multiprocessing, os, shutil, sqlite3, subprocess, sys
import pytest
import uvloop

PROGRAM = [sys.executable, "-c", ""]
ROOT = os.environ["ROOT"]

async def on_loop():
    await (await asyncio.create_subprocess_exec(*PROGRAM)).wait()

@pytest.fixture(scope="module")
def program():
    subprocess.run(PROGRAM, check=True)

def test_fixture(program):
    pass

def test_subprocess():
    subprocess.run(PROGRAM, check=True)

def test_swallowed():
    try:
        subprocess.run(["no such program"])
    except OSError:
        pass

async def test_asyncio():
    await on_loop()

def test_uvloop():
    uvloop.run(on_loop())

def test_fork():
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)

def test_spawn():
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()

def test_system():
    os.system("true")

def test_writing():
    with pytest.raises(OSError):
        open(os.path.join(ROOT, "tests", "none", "file"), "w")

def test_making():
    with pytest.raises(OSError):
        os.mkdir(os.path.join(ROOT, "tests", "none", "folder"))

def test_moving(tmp_path):
    (tmp_path / "moved").touch()
    with pytest.raises(OSError):
        shutil.move(tmp_path / "moved", os.path.join(ROOT, "tests", "none", "moved"))

def test_database():
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(os.path.join(ROOT, "tests", "none", "a.git.db"))

def test_none(tmp_path):
    os.getpid()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    shutil.rmtree(tmp_path / "folder")
    sqlite3.connect(":memory:").close()
    with open(ROOT + "/README.md") as file, open(tmp_path / "copy", "w") as copy:
        copy.write(file.read())
"""


def test_unit_tests_that_start_children_or_write_to_the_repository_fail(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(_TESTS, encoding="utf-8")
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-p", "tests.conftest", "-W", "ignore", str(file)],
        cwd=ROOT,
        env=os.environ | {"ROOT": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) \S*::test_(\w+)", done.stdout, re.MULTILINE)
    kinds = ["subprocess", "swallowed", "asyncio", "uvloop", "fork", "spawn", "system"]
    assert sorted(failed) == sorted(["fixture", "writing", "making", "moving", "database", *kinds]), (
        done.stdout + done.stderr
    )
    assert "a unit test is one process" in done.stdout

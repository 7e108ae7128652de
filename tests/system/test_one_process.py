"""A unit test that starts a child fails, whichever way it starts it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.processes import SECONDS

ROOT = Path(__file__).resolve().parents[2]

_TESTS = """
import asyncio, multiprocessing, os, subprocess, sys
import pytest
import uvloop

PROGRAM = [sys.executable, "-c", ""]

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

def test_none():
    os.getpid()
"""


def test_every_child_of_a_unit_test_fails_it(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(_TESTS, encoding="utf-8")
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-p", "tests.conftest", "-W", "ignore", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) \S*::test_(\w+)", done.stdout, re.MULTILINE)
    kinds = ["subprocess", "swallowed", "asyncio", "uvloop", "fork", "spawn", "system"]
    assert sorted(failed) == sorted(["fixture", *kinds]), done.stdout + done.stderr
    assert "a unit test is one process" in done.stdout

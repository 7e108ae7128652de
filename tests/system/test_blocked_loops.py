"""Tests of the check that fails tests which block their event loop, unless they state a reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import SECONDS

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import asyncio, threading, time
import pytest
import pytest_asyncio
from tests.support import loop_watch

loop_watch.BUSY, loop_watch.IDLE = 0.2, 2.0

def compute() -> None:
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass

async def test_computing() -> None:
    asyncio.get_running_loop().call_soon(compute)
    await asyncio.sleep(0)

async def test_sleeping() -> None:
    asyncio.get_running_loop().call_later(0.01, time.sleep, 2.5)
    await asyncio.sleep(0.02)

async def test_lock() -> None:
    threading.Event().wait(2.5)

async def test_who_fails_anyway() -> None:
    compute()
    raise ValueError("its own error")

def test_a_loop_in_a_thread() -> None:
    async def blocked() -> None:
        compute()
    thread = threading.Thread(target=asyncio.run, args=(blocked(),))
    thread.start()
    thread.join()

@pytest_asyncio.fixture
async def slow():
    compute()
    yield

async def test_slow_fixture(slow) -> None:
    pass

@pytest.mark.blocks_loop("measures what happens then")
async def test_on_purpose() -> None:
    compute()

@pytest.mark.blocks_loop
async def test_without_a_reason() -> None:
    compute()

async def test_waiting() -> None:
    await asyncio.sleep(2.5)

async def test_busy_machine() -> None:
    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await asyncio.sleep(0)

async def test_thread() -> None:
    await asyncio.to_thread(compute)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of a run of these tests."""
    folder = tmp_path_factory.mktemp("blocked")
    file = folder / "test_blocking.py"
    file.write_text(TESTS, encoding="utf-8")
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-p", "tests.conftest", "-v", "--tb=short", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    return done.stdout + done.stderr


def outcomes(output: str, name: str) -> list[str]:
    """Return the outcomes of one of the tests, in its phases."""
    return re.findall(rf"::{name} (PASSED|FAILED|ERROR)", output)


HELD = {
    "test_computing": "Handle compute()",
    "test_sleeping": " sleep(",  # Python 3.13 omits the arguments
    "test_lock": "coro=<test_lock()",
    "test_a_loop_in_a_thread": "coro=<test_a_loop_in_a_thread.<locals>.blocked()",
}


@pytest.mark.parametrize("name", HELD)
def test_test_that_blocks_its_loop_fails_and_names_the_callback(output: str, name: str) -> None:
    assert outcomes(output, name) == ["FAILED"], output
    report, _, _ = output.partition("short test summary")  # the summary repeats everything where CI is set
    (line,) = (line for line in report.splitlines() if HELD[name] in line and "s of the processor and" in line)
    busy, idle = (float(text) for text in re.findall(r"(\d+\.\d+) s", line)[:2])
    assert (busy > 0.2) == (name not in ("test_sleeping", "test_lock")), line
    assert busy > 0.2 or idle > 2.0, line


def test_error_of_the_blocking_test_is_still_reported(output: str) -> None:
    assert outcomes(output, "test_who_fails_anyway") == ["FAILED"], output
    assert "ValueError: its own error" in output


def test_fixture_that_blocks_the_loop_fails(output: str) -> None:
    assert outcomes(output, "test_slow_fixture") == ["ERROR"], output


def test_blocks_loop_marker_requires_a_reason(output: str) -> None:
    assert outcomes(output, "test_on_purpose") == ["PASSED"], output
    assert outcomes(output, "test_without_a_reason") == ["ERROR"]
    assert "blocks_loop needs a reason" in output


@pytest.mark.parametrize("name", ["test_waiting", "test_busy_machine", "test_thread"])
def test_waiting_and_work_in_threads_do_not_count_as_blocking(output: str, name: str) -> None:
    assert outcomes(output, name) == ["PASSED"], output

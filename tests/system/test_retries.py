"""Reruns of flaky tests: the report lists them with tracebacks, and too many of them fail the run."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.processes import SECONDS

ROOT = Path(__file__).resolve().parents[2]

_TESTS = """
import pytest

runs = [0] * 4

@pytest.mark.parametrize(("number", "failures"), [(0, 0), (1, 1), (2, 1), (3, {last})])
def test_it(number, failures):
    runs[number] += 1
    assert runs[number] > failures, f"failure {{runs[number]}} of {{number}}"
"""


def run(folder: Path, last: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests that fail 0, 1, 1 and `last` times before they pass, with the project's pytest settings."""
    file = folder / "test_some.py"
    file.write_text(_TESTS.format(last=last), encoding="utf-8")
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-p", "tests.conftest", *options, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """Return the results of several test runs, which run concurrently."""
    asked: dict[str, tuple[int, tuple[str, ...]]] = {
        "alone": (0, ("--flaky-limit", "2")),
        "worker": (0, ("--flaky-limit", "2", "-n", "1")),
        "too many": (0, ("--flaky-limit", "1")),
        "failed": (9, ("--flaky-limit", "3")),
        "without": (0, ()),
    }
    with ThreadPoolExecutor(len(asked)) as pool:
        runs = {
            name: pool.submit(run, tmp_path_factory.mktemp("run"), last, *options)
            for name, (last, options) in asked.items()
        }
    return {name: each.result() for name, each in runs.items()}


def flaky(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"^FLAKY \S*::(\S+)", done.stdout, re.MULTILINE))


@pytest.mark.parametrize("name", ["alone", "worker"])
def test_flaky_tests_are_listed_with_their_first_failures(
    ended: dict[str, subprocess.CompletedProcess[str]], name: str
) -> None:
    done = ended[name]
    assert done.returncode == 0, done.stdout + done.stderr
    assert flaky(done) == {"test_it[1-1]", "test_it[2-1]"}
    assert {"AssertionError: failure 1 of 1", "AssertionError: failure 1 of 2"} <= set(
        re.findall(r"AssertionError: failure \d of \d", done.stdout)
    )


def test_more_flaky_tests_than_allowed_fail_the_run(ended: dict[str, subprocess.CompletedProcess[str]]) -> None:
    done = ended["too many"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(flaky(done)) == 2


def test_a_test_that_always_fails_is_not_flaky(
    ended: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    done = ended["failed"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert flaky(done) == {"test_it[1-1]", "test_it[2-1]"}
    assert re.search(r"^FAILED .*test_it\[3-9\]", done.stdout, re.MULTILINE)


def test_no_reruns_without_the_option(ended: dict[str, subprocess.CompletedProcess[str]]) -> None:
    done = ended["without"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 2 passed" in done.stdout

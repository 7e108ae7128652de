"""Tests that no test waits forever: time limits work in every kind of hang, and every child process has a limit."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.processes import SECONDS

ROOT = Path(__file__).resolve().parents[2]

HANGING = """
import asyncio, ctypes, threading
from collections.abc import Iterator
import pytest
import uvloop
from hypothesis import given, strategies as st

async def waits_for_nobody() -> None:
    await asyncio.Event().wait()

async def test_task() -> None:
    async with asyncio.TaskGroup() as tg:
        tg.create_task(waits_for_nobody())

def test_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(waits_for_nobody())

def test_lock() -> None:
    threading.Event().wait()

@given(st.integers())
def test_examples(n: int) -> None:
    threading.Event().wait()

@pytest.fixture
def sticky() -> Iterator[None]:
    yield
    threading.Event().wait()

def test_teardown(sticky: None) -> None:
    raise RuntimeError("switches off the limit")

def test_in_c() -> None:
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # holding the interpreter's lock, too

def test_last() -> None:
    pass
"""


def run(folder: Path, *names: str, last_resort: float) -> subprocess.CompletedProcess[str]:
    """Run these hanging tests with the project's settings, but limits of 1 s and finally `last_resort` seconds."""
    file = folder / "test_hanging.py"
    file.write_text(HANGING, encoding="utf-8")
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-o", "timeout=1"]
    options += ["-o", f"faulthandler_timeout={last_resort}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), *options]
        + [f"{file}::{name}" for name in names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """Return the finished runs. They spend their time waiting, so they run at the same time."""
    asked: dict[str, tuple[tuple[str, ...], float]] = {
        "test_lock": (("test_task", "test_uvloop", "test_lock", "test_last"), SECONDS)
    }
    asked.update((name, ((name, "test_last"), 3.0)) for name in ("test_examples", "test_teardown", "test_in_c"))
    with ThreadPoolExecutor(len(asked)) as pool:
        runs = {
            name: pool.submit(run, tmp_path_factory.mktemp(name), *names, last_resort=seconds)
            for name, (names, seconds) in asked.items()
        }
    return {name: each.result() for name, each in runs.items()}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGALRM on Windows: the limit ends the run there")
def test_hanging_test_fails_where_it_waits_and_the_next_one_runs(
    ended: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    done = ended["test_lock"]
    assert "3 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("Failed: Timeout (>1.0s)") >= 2
    assert "RuntimeError: Event loop stopped" in done.stdout, "what uvloop makes of it"
    assert done.stderr.count("in waits_for_nobody") == 2, "the tasks are shown"


@pytest.mark.skipif(sys.platform == "win32", reason="the C library has another name there")
@pytest.mark.parametrize(
    ("name", "where"), [("test_examples", "test_examples"), ("test_teardown", "sticky"), ("test_in_c", "test_in_c")]
)
def test_hang_that_no_signal_ends_ends_the_run_with_a_traceback(
    ended: dict[str, subprocess.CompletedProcess[str]], name: str, where: str
) -> None:
    """Cover the hangs that the first limit cannot end.

    Hypothesis repeats failures, a failure switches the limit off, and C code does not see signals.
    """
    done = ended[name]
    assert done.returncode == 1
    assert "Timeout (0:00:03)!" in done.stderr, done.stdout + done.stderr
    assert f"in {where}\n" in done.stderr


def endless(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and advice for each call that starts a process without a time limit."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        if name in ("subprocess.run", "subprocess.check_output", "subprocess.check_call", "subprocess.call"):
            if not any(keyword.arg == "timeout" for keyword in call.keywords):
                yield call.lineno, f"{name} without a timeout"
        elif name.rpartition(".")[2] in ("Popen", "create_subprocess_exec", "create_subprocess_shell"):
            yield call.lineno, f"{name}: start it by tests/support/processes.py"


def test_endless_finds_processes_without_a_limit() -> None:
    source = (
        "subprocess.run(a)\nsubprocess.Popen(a)\nawait asyncio.create_subprocess_exec(a)\nsubprocess.run(a, timeout=9)"
    )
    found = endless(compile(source, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    assert sorted(line for line, _ in found) == [1, 2, 3]


def test_every_process_started_by_a_test_has_a_limit() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "processes.py"]
    assert len(files) > 100
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files}
    starting = {path: ast.parse(text) for path, text in texts.items() if "subprocess" in text}
    assert len(starting) > 5
    assert [f"{path}:{line}: {what}" for path, tree in starting.items() for line, what in endless(tree)] == []

"""Rules for tests: what a busy machine, or another test, changes is not asserted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time"}
_COUNTS = {"active_count", "num_fds", "num_threads"}


def _calls(tree: ast.AST, names: set[str]) -> bool:
    found = (ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call))
    return not names.isdisjoint(found)


def _durations(function: ast.AST) -> set[str]:
    """Names of variables of a function that hold the time between two looks at a clock."""
    times: set[str] = set()
    durations: set[str] = set()
    for node in ast.walk(function):  # an assignment comes before its uses
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Sub) and _calls(node.value, _CLOCKS):
                durations.add(node.targets[0].id)
            elif _calls(node.value, _CLOCKS):
                times.add(node.targets[0].id)
    return durations


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Assertions that other processes, or other tests, can make fail."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        durations = _durations(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Assert):
                continue
            differences = [each for each in ast.walk(node.test) if isinstance(each, ast.BinOp)]
            named = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
            if any(_calls(each, _CLOCKS) for each in differences) or named & durations:
                yield node.lineno, "asserts how long something took; give it a limit, by asyncio.timeout say"
            if _calls(node.test, _COUNTS):
                yield node.lineno, "counts threads or descriptors at one moment; wait, or look at those it knows"


@pytest.mark.parametrize(
    ("source", "is_fault"),
    [
        ("assert time.perf_counter() - began < 1", True),
        ("took = monotonic() - began; assert took < 1", True),
        ("assert threading.active_count() == before", True),
        ("assert psutil.Process(pid).num_threads() < 9", True),
        ("assert time.monotonic() < end", False),
        ("assert loop.time() == 2.0", False),
    ],
)
def test_assertions_about_the_machine_are_found(source: str, is_fault: bool) -> None:
    assert bool(list(faults(ast.parse(f"def test(): {source}")))) is is_fault


def test_no_test_asserts_anything_about_the_machine() -> None:
    tests = Path(__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in tests.rglob("*.py")}
    looked_at = {path: text for path, text in texts.items() if any(name in text for name in _CLOCKS | _COUNTS)}
    assert len(looked_at) > 5
    found = [
        f"{path.relative_to(tests)}:{line}: {what}"
        for path, text in looked_at.items()
        for line, what in faults(ast.parse(text))
    ]
    assert not found, "\n".join(found)

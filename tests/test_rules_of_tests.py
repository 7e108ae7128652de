"""Rules for tests: no assertion and no port depends on the load of the machine or on other programs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time"}
_COUNTS = {"active_count", "num_fds", "num_threads"}
_LISTENERS = {"bind", "create_server", "start_server", "TCPServer", "HTTPServer", "ServerOptions"}


def _calls(tree: ast.AST, names: set[str]) -> bool:
    found = (ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call))
    return not names.isdisjoint(found)


def _durations(function: ast.AST) -> set[str]:
    """Return the names of a function's variables that hold the difference of two clock readings."""
    times: set[str] = set()
    durations: set[str] = set()
    for node in ast.walk(function):  # assignments are visited before their uses in later statements
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Sub) and _calls(node.value, _CLOCKS):
                durations.add(node.targets[0].id)
            elif _calls(node.value, _CLOCKS):
                times.add(node.targets[0].id)
    return durations


def _has_fixed_port(call: ast.Call) -> bool:
    """Return True if a call listens at a literal port: `port=`, or the end of an address."""
    named = [each.value for each in call.keywords if each.arg in ("port", "grpc_port", "status_port")]
    addresses = [each for each in call.args if isinstance(each, ast.Tuple) and len(each.elts) == 2]
    ports = [*named, *(address.elts[1] for address in addresses)]
    return any(isinstance(each, ast.Constant) and isinstance(each.value, int) and each.value for each in ports)


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the assertions and ports that other processes, or other tests, can make fail."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func).rpartition(".")[2] in _LISTENERS and _has_fixed_port(call):
            yield call.lineno, "listens at a fixed port; give 0, and ask which port it is"
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
        ("server.bind(('127.0.0.1', 8000))", True),
        ("await asyncio.start_server(serve, port=8000)", True),
        ("socket.create_server(('127.0.0.1', 0))", False),
        ("await asyncio.open_connection('127.0.0.1', 1)", False),
    ],
)
def test_faults_finds_dependence_on_the_machine(source: str, is_fault: bool) -> None:
    assert bool(list(faults(ast.parse(f"async def test(): {source}")))) is is_fault


def test_no_test_depends_on_the_machine() -> None:
    tests = Path(__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in tests.rglob("*.py")}
    looked_at = {
        path: text for path, text in texts.items() if any(name in text for name in _CLOCKS | _COUNTS | _LISTENERS)
    }
    assert len(looked_at) > 5
    found = [
        f"{path.relative_to(tests)}:{line}: {what}"
        for path, text in looked_at.items()
        for line, what in faults(ast.parse(text))
    ]
    assert not found, "\n".join(found)

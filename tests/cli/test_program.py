"""The ends of programs: on signals, even ignored ones; at closed pipes and full disks; with one line for a mistake."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import pytest

import aioflow as af
import aioflow.cli.calibrate
import aioflow.cli.program
import aioflow.worker
from aioflow.net.cluster_spec import free_addresses
from aioflow.observe.logs import REQUEST_ID
from aioflow.runtime.calibrate import calibrate
from aioflow.train import write_graph
from tests.support.processes import SECONDS, program

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals and pipes")


@contextmanager
def waiting(folder: Path, name: str, *, ignores_interrupts: bool = True) -> Iterator[Popen[str]]:
    """Start a program that runs for very long, and wait until it prints that it serves."""
    [address] = free_addresses(1)
    commands = {
        "demo": ["aioflow", "demo", "--steps", "1000000", "--dir", str(folder)],
        "worker": ["aioflow.worker", "--cluster", f"ps={address}", "--job", "ps", "--task", "0"],
        "worker demo": ["aioflow.worker", "demo", "--steps", "1000000"],
    }
    with program("-m", *commands[name], ignores_interrupts=ignores_interrupts, stderr=PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "erv" in line:  # "Serving predictions at …", "… serves at …"
                break
        yield process


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("name", ["demo", "worker", "worker demo"])
def test_signal_ends_a_program_started_in_the_background(tmp_path: Path, name: str, number: signal.Signals) -> None:
    """A shell starts background programs with SIGINT ignored, and a child inherits ignored signals."""
    with waiting(tmp_path, name) as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == (0 if (name, number) == ("worker", signal.SIGTERM) else 128 + number)
    assert "Traceback" not in errors
    assert len(errors.splitlines()) <= 1, errors


@posix
def test_signal_during_a_request_is_not_logged_as_a_part_of_it() -> None:
    found: list[str] = []

    async def answer() -> None:
        REQUEST_ID.set("7")
        signal.raise_signal(signal.SIGTERM)

    async def main() -> None:
        ended = asyncio.Event()

        def end() -> None:
            found.append(REQUEST_ID.get())
            ended.set()

        stopping.append(end)
        async with asyncio.TaskGroup() as group:
            group.create_task(answer())
        await ended.wait()

    stopping: list[Callable[[], None]] = []
    aioflow.cli.program.run(main(), on_terminate=lambda: stopping[0]())
    assert found == [""]


@pytest.fixture
def ignored_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored_interrupts")
def test_interrupt_ends_a_computing_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal arrives between two rounds of a measurement that would last hours."""
    asked = 0

    def clock() -> float:
        nonlocal asked
        asked += 1
        if asked == 20:
            signal.raise_signal(signal.SIGINT)
        assert asked < 100, "it goes on"
        return 0.0

    monkeypatch.setattr(aioflow.cli.calibrate, "calibrate", partial(calibrate, clock=clock))
    assert aioflow.cli.main(["calibrate"]) == 130
    assert capsys.readouterr().err == "aioflow: interrupted\n"


async def _cleaning_up(interrupt: Callable[[], None], at: str) -> None:
    """Be interrupted twice: the second time while a task cleans up, or from a callback of the loop."""

    async def part() -> None:
        try:
            await asyncio.sleep(SECONDS)
        finally:
            if at == "child":
                interrupt()
                await asyncio.sleep(SECONDS)

    loop = asyncio.get_running_loop()
    loop.call_soon(interrupt)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(part())
    finally:
        if at == "main":
            interrupt()
            await asyncio.sleep(SECONDS)
        elif at == "callback":
            loop.call_soon(interrupt)
            await asyncio.sleep(SECONDS)


@posix
@pytest.mark.parametrize("at", ["child", "main", "callback"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_second_signal_ends_run_without_a_traceback(
    loop: str, at: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = pytest.importorskip(loop)
    monkeypatch.setattr(aioflow.cli.program, "loop_factory", lambda: module.new_event_loop)
    signals = 0

    def interrupt() -> None:
        nonlocal signals
        signals += 1
        signal.raise_signal(signal.SIGINT)

    def command() -> int:
        aioflow.cli.program.run(_cleaning_up(interrupt, at))
        return 0

    assert aioflow.cli.program.run_command("aioflow", command) == 130
    gc.collect()  # the loop logs an unretrieved error of a task here
    assert (signals, capfd.readouterr().err) == (2, "aioflow: interrupted\n")


@posix
def test_third_signal_ends_run_if_the_loop_does_not_turn() -> None:
    async def main() -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        pytest.fail("it goes on")

    with pytest.raises(KeyboardInterrupt):
        aioflow.cli.program.run(main())


# ── the output ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """Yield the writing end of a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def ended(command: str, graph_file: str, folder: Path, stdout: int, **environment: str) -> tuple[int, str]:
    """Return the exit status of a command, and its error output."""
    arguments = command.replace("GRAPH", graph_file).split()
    with program(
        *("-m", "aioflow", *arguments), stdout=stdout, stderr=PIPE, cwd=folder, env=os.environ | environment
    ) as process:
        _, errors = process.communicate(timeout=SECONDS)
        return process.returncode, errors


@posix
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("ops", ""), ("ops", "1"), ("doctor", ""), ("demo --steps 1", ""), ("explain GRAPH --fetch y", "1")],
)
def test_broken_pipe_is_not_an_error(
    tmp_path: Path, graph_file: str, closed_pipe: int, command: str, unbuffered: str
) -> None:
    """Covers a closed reader, as in `aioflow ops | head -1`."""
    status, errors = ended(command, graph_file, tmp_path, closed_pipe, PYTHONUNBUFFERED=unbuffered)
    assert errors == ""
    assert status == 141


@posix
@pytest.mark.parametrize("command", ["aioflow doctor", "aioflow demo --steps 1"])
def test_program_runs_without_standard_streams(tmp_path: Path, command: str) -> None:
    """Covers closed streams, as in `aioflow doctor >&- 2>&-`: sockets and files must not be mistaken for them."""
    closed = "import os, runpy, sys; sys.stdin = sys.stdout = sys.stderr = None; [os.close(n) for n in range(3)]"
    start = f"sys.argv = {command.split()}; runpy.run_module('aioflow', run_name='__main__', alter_sys=True)"
    with program("-c", f"{closed}; {start}", stdout=DEVNULL, cwd=tmp_path) as process:
        assert process.wait(SECONDS) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_full_disk_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        status, errors = ended("doctor", "", tmp_path, full.fileno())
    assert errors == "aioflow: No space left on device\n"
    assert status == 2


@pytest.mark.parametrize("command", ["explain GRAPH --fetch y", "explain --help", "demo --steps 1"])
def test_narrow_ascii_terminal(tmp_path: Path, graph_file: str, command: str) -> None:
    environment = {"COLUMNS": "1", "PYTHONIOENCODING": "ascii"}
    assert ended(command, graph_file, tmp_path, DEVNULL, **environment) == (0, "")


# ── mistakes, in one line ────────────────────────────────────────────────────────────────────────────────────────────


def main_of(name: str) -> Callable[[list[str]], int]:
    return {"aioflow": aioflow.cli.main, "worker": aioflow.worker.main}[name]


def refused(capsys: pytest.CaptureFixture[str], name: str, *argv: str) -> str:
    """Return the only line that a command prints before it ends with status 2."""
    try:
        status: object = main_of(name)(list(argv))
    except SystemExit as stopped:
        status = stopped.code
    errors = capsys.readouterr().err
    assert status == 2, errors
    [line] = errors.splitlines()
    return str(line)


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    with af.Graph().as_default() as graph:
        af.square(af.placeholder("float32", [], name="x"), name="y")
    return str(write_graph(graph, tmp_path, "graph.json"))


@pytest.mark.parametrize(
    ("name", "argv", "expected"),
    [
        ("aioflow", "demo --port 99999", "'99999' is not a number from 0 to 65535"),
        ("aioflow", "demo --port -1", "'-1' is not a number from 0 to 65535"),
        ("aioflow", "demo --port http", "'http' is not a number from 0 to 65535"),
        ("aioflow", "demo --steps -5", "'-5' is not a number of at least 1"),
        ("aioflow", "demo --steps 0", "'0' is not a number of at least 1"),
        ("aioflow", "demo --steps 1e3", "'1e3' is not a number of at least 1"),
        ("aioflow", "demo --dir FILE --steps 1", "File exists: FILE"),
        ("aioflow", "demo --dir FILE/in --steps 1", "Not a directory: FILE/in"),
        ("aioflow", "demo --dir EMPTY --steps 1", "'' is not a name"),
        ("aioflow", "demo extra", "unrecognized arguments: extra"),
        ("aioflow", "demo --port TAKEN --steps 1 --dir FOLDER", "Address already in use: 127.0.0.1:TAKEN"),
        ("aioflow", "calibrate --seconds inf", "'inf' is not a positive number of seconds"),
        ("aioflow", "calibrate --seconds x", "'x' is not a positive number of seconds"),
        ("aioflow", "calibrate --output FOLDER", "FOLDER is a folder"),
        ("aioflow", "calibrate --output FILE/in --seconds 1e-9", "FILE"),
        ("aioflow", "explain", "required: MODEL"),
        ("aioflow", "explain MISSING --fetch y", "there is no model MISSING"),
        ("aioflow", "explain FOLDER --fetch y", "FOLDER is not a model in a known format"),
        ("aioflow", "explain EMPTY --fetch y", "'' is not a name"),
        ("aioflow", "explain FILE --fetch y", "FILE"),
        ("aioflow", "explain BYTES.json --fetch y", "BYTES.json"),
        ("aioflow", "explain BYTES.pb --fetch y", "BYTES.pb"),
        ("aioflow", "explain GRAPH --fetch z", "z"),
        ("aioflow", "explain GRAPH --fetch y:7", "an index below 1"),
        ("aioflow", "explain GRAPH --fetch y --device-count TPU=2", "no such backend: TPU"),
        ("aioflow", "explain GRAPH --fetch y --device-count CPU=0", "CPU=0"),
        ("aioflow", "explain GRAPH --fetch y --device-count CPU=99999999", "CPU=99999999"),
        ("aioflow", "explain GRAPH --fetch y --device-count GPU=1 --run", "GPU"),
        ("aioflow", "explain GRAPH --fetch y --strategy best", "'best'"),
        ("aioflow", "explain GRAPH --fetch y --svg FOLDER", "FOLDER is a folder"),
        ("aioflow", "explain GRAPH --fetch y --svg MISSING/a.svg", "No such file or directory"),
        ("aioflow", "explain GRAPH --fetch y --calibration MISSING", "MISSING"),
        ("aioflow", "explain GRAPH --fetch y --calibration BYTES.json", "BYTES.json"),
        ("aioflow", "explain GRAPH --fetch y --calibration FOLDER", "FOLDER"),
        ("worker", "", "no cluster is given"),
        ("worker", "--cluster ps=127.0.0.1:99999 --job ps --task 0", "127.0.0.1:99999"),
        ("worker", "--cluster ps=127.0.0.1 --job ps --task 0", "host:port"),
        ("worker", "--cluster ps=127.0.0.1:1 --cluster ps=127.0.0.1:2 --job ps --task 0", "the job 'ps' twice"),
        ("worker", "--cluster ps= --job ps --task 0", "ps="),
        ("worker", "--cluster ps=127.0.0.1:2222 --job ps --task 3", "job ps (--job), task 3 (--task)"),
        ("worker", "--cluster ps=127.0.0.1:2222 --job ps --task -1", "'-1' is not a number of at least 0"),
        ("worker", "--cluster ps=127.0.0.1:2222 --job ps --task 0 --cpus 0", "'0' is not a number of at least 1"),
        ("worker", "--cluster ps=192.0.2.1:2222 --job ps --task 0", "loopback"),
        ("worker", "--cluster ps=127.0.0.1:TAKEN --job ps --task 0", "TAKEN"),
        ("worker", "--cluster ps=127.0.0.1:0 --status-port TAKEN", "TAKEN"),
        ("worker", "--cluster ps=127.0.0.1:0 --status-port 99999", "'99999' is not a number from 0 to 65535"),
        ("worker", "demo --steps -3", "'-3' is not a number"),
        ("worker", "demo extra", "unrecognized arguments: extra"),
    ],
)
def test_mistake_is_one_line(
    tmp_path: Path, graph_file: str, capsys: pytest.CaptureFixture[str], name: str, argv: str, expected: str
) -> None:
    file = tmp_path / "file"
    file.write_text("Hello,\n")
    for suffix in ("json", "pb"):
        (tmp_path / f"bytes.{suffix}").write_bytes(bytes(range(256)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {
            "FILE": str(file),
            "FOLDER": str(tmp_path),
            "MISSING": str(tmp_path / "missing"),
            "BYTES": str(tmp_path / "bytes"),
            "GRAPH": graph_file,
            "TAKEN": str(taken.getsockname()[1]),
            "EMPTY": "",
        }

        def filled(text: str) -> str:
            return re.sub("|".join(words), lambda found: words[found[0]], text)

        line = refused(capsys, name, *(filled(word) for word in argv.split()))
        assert filled(expected) in line
        assert line.startswith(("aioflow", "python -m aioflow"))


@pytest.mark.parametrize("name", ["aioflow", "worker"])
def test_version_option(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main_of(name)(["--version"])
    assert not stopped.value.code
    assert capsys.readouterr().out == f"aioflow {af.__version__}\n"


def test_a_printed_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unbuffered(io.RawIOBase):
        def __init__(self) -> None:
            self.writes: list[bytes] = []

        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            self.writes.append(bytes(data))
            return len(data)

    raw = Unbuffered()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8", write_through=True))  # type: ignore[type-var]  # as of PYTHONUNBUFFERED
    aioflow.cli.program.print_line("listening at http://127.0.0.1:8000")
    assert raw.writes == [b"listening at http://127.0.0.1:8000\n"]

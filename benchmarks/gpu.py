"""`python -m benchmarks.gpu --into FOLDER`: the tests and the benchmarks of the CuPy backend on a GPU, within minutes.

First come the tests of tests/gpu, then the sections of `benchmarks.gpu_sections`: products against cuBLAS, training
steps with and without CUDA graphs beside PyTorch's, copies, the overhead of a step, convolutions. Each is a process of
its own with a time limit, so that neither an error of CUDA nor an endless loop in one ends the others. It needs no
network, and skips what is not installed.

The folder gets RESULTS_GPU.md, which is written again after each part, tests.log, and sections.log with the tracebacks
and all other output. Without a GPU the program tells so, and ends with status 0.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from benchmarks.history import commit
from benchmarks.kernels import fresh_environment

__all__ = ["main"]

_ROOT: Final = Path(__file__).parent.parent
_RESULTS: Final = "RESULTS_GPU.md"
_LEAST: Final = 5.0  # seconds; no part is started with less time left


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run.

    Attributes:
        name: Name on the command line.
        title: Heading in the results.
        limit: Seconds that it may take.
        arguments: Arguments of Python for its program.
        is_table: Whether the output is Markdown for the results; otherwise only its last lines are shown.
    """

    name: str
    title: str
    limit: float
    arguments: Sequence[str]
    is_table: bool = True


def _section(name: str, title: str, limit: float) -> Part:
    return Part(name, title, limit, ("-m", "benchmarks.gpu", "--section", name))


_TESTS: Final = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "timeout=120", "tests/gpu")

# The limits add up to more than the whole run may take: few parts need theirs.
PARTS: Final = (
    _section("machine", "Machine", 60),
    Part("tests", "Tests", 180, _TESTS, is_table=False),
    _section("products", "Matrix products", 75),
    _section("mlp", "Training of a perceptron", 90),
    _section("transformer", "Training of a transformer block", 120),
    _section("copies", "Copies between host and device", 60),
    _section("hop", "Overhead of a step", 45),
    _section("convolutions", "Convolutions", 75),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a part.

    Attributes:
        output: Its output.
        seconds: Its duration.
        problem: The reason why it is not complete, or None.
        errors: What else it has written, with its traceback.
    """

    output: str
    seconds: float
    problem: str | None = None
    errors: str = ""


Launch = Callable[[Part, float, Path], Outcome]


def launch(part: Part, limit: float, folder: Path) -> Outcome:
    """Run a part's program for at most `limit` seconds, and append what it writes to the logs of the folder."""
    started = time.monotonic()
    lines = folder / ("current.md" if part.is_table else f"{part.name}.log")
    environment = {**fresh_environment(), "PYTHONUNBUFFERED": "1"}
    with lines.open("w", encoding="utf-8") as output, (folder / "sections.log").open("a", encoding="utf-8") as log:
        print(f"== {part.name}", file=log, flush=True)
        begin = log.tell()
        program = subprocess.Popen(
            [sys.executable, *part.arguments],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log if part.is_table else subprocess.STDOUT,
        )
        problem = _wait(program, limit)
    text = lines.read_text("utf-8", errors="replace").strip()
    errors = (folder / "sections.log").read_bytes()[begin:].decode("utf-8", errors="replace").strip()
    if part.is_table:
        lines.unlink()
    return Outcome(text, time.monotonic() - started, problem, errors)


def _wait(program: subprocess.Popen[bytes], limit: float) -> str | None:
    """Wait for a program, and return what went wrong."""
    try:
        status = program.wait(limit)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:.0f} s"
    finally:
        program.kill()  # nothing, if it has ended
        program.wait()
    return None if status == 0 else f"ended with status {status}"


def run(
    parts: Sequence[Part],
    folder: Path,
    limit: float,
    head: str = "",
    *,
    launch: Launch = launch,
    clock: Callable[[], float] = time.monotonic,
    show: Callable[[str], None] = lambda text: print(text, flush=True),
) -> int:
    """Run the parts one after another for at most `limit` seconds, and return the number of those that failed.

    The results are written after each part, so that a run that is killed leaves what it had.

    Args:
        parts: The parts.
        folder: The folder for results and logs.
        limit: Seconds for all parts.
        head: Text before the parts.
        launch: Runs a part.
        clock: Returns the time in seconds.
        show: Called with the text of each part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began, failed = clock(), 0
    texts = [head] if head else []
    for part in parts:
        left = limit - (clock() - began)
        if left < _LEAST:
            text = f"## {part.title}\n\nSkipped: only {max(left, 0):.0f} of {limit:.0f} s were left."
        else:
            outcome = launch(part, min(part.limit, left), folder)
            text = _described(part, outcome)
            failed += outcome.problem is not None
        show(text + "\n")
        texts.append(text)
        _write(folder / _RESULTS, "\n\n".join(texts) + "\n")
    return failed


def _described(part: Part, outcome: Outcome) -> str:
    text = outcome.output if part.is_table else "```text\n" + _end_of(outcome.output) + "\n```"
    log = "sections.log" if part.is_table else f"{part.name}.log"
    problem = "" if outcome.problem is None else f"**Not complete**: {outcome.problem}, see {log}. "
    errors = outcome.errors if outcome.problem is not None else ""
    shown = [text, f"```text\n{_end_of(errors, 20)}\n```" if errors else "", f"{problem}({outcome.seconds:.0f} s)"]
    return "\n\n".join([f"## {part.title}", *filter(None, shown)])


def _end_of(output: str, lines: int = 40) -> str:
    return "\n".join(output.splitlines()[-lines:])


def _write(path: Path, text: str) -> None:
    """Replace a file at once, so that it is complete at any moment."""
    beside = path.with_suffix(".new")
    beside.write_text(text, "utf-8")
    beside.replace(path)


def missing() -> str | None:
    """Return why nothing can be measured here, or None."""
    from aioflow_cupy.backend import CupyBackend  # heavy, as the sections are: each has a process of its own

    try:
        found = CupyBackend().count()
    except ImportError as error:
        return str(error)
    return None if found else "CuPy finds no GPU"


def _print_section(name: str, output: TextIO) -> int:
    from benchmarks.gpu_sections import lines

    for line in lines(name):
        print(line, file=output, flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and benchmarks, and return 1 if a part failed, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="folder for results and logs")
    parser.add_argument("--limit", type=float, default=480, metavar="SECONDS", help="time for everything (480)")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="run these parts only")
    parser.add_argument("--commit", help="name of the commit, if the folder is no checkout of git")
    parser.add_argument("--section", choices=[part.name for part in PARTS], help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.section is not None:
        return _print_section(chosen.section, sys.stdout)
    if chosen.into is None:
        parser.error("--into FOLDER is required")
    began = time.monotonic()
    reason = missing()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    parts = [part for part in PARTS if chosen.only is None or part.name in chosen.only]
    head = f"# The CuPy backend on a GPU\n\nCommit {chosen.commit or commit()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    return int(run(parts, chosen.into, chosen.limit - (time.monotonic() - began), head) > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The complete RESULTS.md: each table is made by its own program, one after another, with oneDNN and with NumPy alone.

The output of a program is a table in Markdown, and is shown as it arrives. The file is written when all programs have
ended, even if one has failed; its section then reports the failure. The exit status of a program is also nonzero if a
comparison finds a slowdown.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.history import COMPARE
from benchmarks.kernels import NUMPY_ALONE, fresh_environment, have_onednn

__all__ = ["Section", "report", "sections"]

_ROOT: Final = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report.

    Attributes:
        title: Heading of the section.
        arguments: Arguments of Python for the program that prints the section.
        environment: Additional environment variables.
    """

    title: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def sections(cases: Sequence[str], rounds: int, options: Sequence[str]) -> list[Section]:
    """Return all sections for this machine. `options` apply to the tables that can be kept and compared."""
    found = []
    kernels = {"oneDNN": {}, "NumPy alone": NUMPY_ALONE} if have_onednn() else {"NumPy alone": {}}
    for name, environment in kernels.items():
        chosen = ("--rounds", str(rounds), *options)
        found.append(Section(f"Steps, {name}", ("-m", "benchmarks", *cases, *chosen), environment))
        found.append(Section(f"Image nets, one picture, {name}", ("-m", "benchmarks.nets", *chosen), environment))
    found.append(Section("The loop's lag while a network trains in it", ("-m", "benchmarks.lag")))
    found.append(Section("Import", ("-m", "benchmarks.imports")))
    found.append(Section("The rest", ("-m", "benchmarks.others")))
    return found


def report(
    parts: Sequence[Section], head: str, show: Callable[[str], None], run: Callable[[Section], Iterator[str | int]]
) -> tuple[str, int]:
    """Return the text of the report, and the highest exit status of its programs.

    Args:
        parts: Sections of the report.
        head: Text before the sections.
        show: Called with each line as it arrives.
        run: Function that yields the lines of a program, and then its exit status, like `run_program`.
    """
    text, worst = [head], 0
    for part in parts:
        show(f"\n## {part.title}\n")
        lines: list[str] = []
        status = 0
        for line in run(part):
            if isinstance(line, int):
                status = line
            else:
                lines.append(line)
                show(line)
        text += [f"## {part.title}", *(["\n".join(lines)] if lines else [])]
        # A comparison that finds a slowdown has a nonzero status too, but then it has printed its table.
        if status and not (COMPARE in part.arguments and any(line.startswith("|") for line in lines)):
            text.append(f"`python {' '.join(part.arguments)}` failed.")
            show(text[-1])
        worst = max(worst, status)
    return "\n\n".join(text) + "\n", worst


def run_program(part: Section) -> Iterator[str | int]:
    """Yield the lines that the section's program prints, as they arrive, and then its exit status."""
    with subprocess.Popen(
        [sys.executable, *part.arguments],
        cwd=_ROOT,
        env={**fresh_environment(), **part.environment},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        if program.stdout is not None:
            for line in program.stdout:
                yield line.rstrip("\n")
    yield program.returncode

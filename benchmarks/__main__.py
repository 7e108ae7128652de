"""`python -m benchmarks [case …]`: time the cases against tensorflow-cpu.

Without cases, run all benchmarks, with oneDNN if it is installed and with NumPy alone, and write RESULTS.md. That takes
ten minutes on an otherwise idle machine.

`--keep` stores the ratios with the commit, and `--compare` reports what has become slower since they were stored.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import aioflow  # before TensorFlow, so that its backends may prepare NumPy's libraries
from benchmarks.cases import CASES
from benchmarks.harness import HEAD, Measured, measure
from benchmarks.history import add_options, machine, reported
from benchmarks.report import report, run_program, sections
from benchmarks.roofline import measured_peak


async def _measured(names: list[str], rounds: int) -> list[Measured]:
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    tf.disable_control_flow_v2()  # loops in the form that both support
    measured = []
    for name in names:
        measured.append(await measure(CASES[name], tf, aioflow, rounds))
        print(measured[-1].row(measured_peak()), flush=True)
    return measured


def _everything(arguments: argparse.Namespace) -> int:
    how = f"Made by `python -m benchmarks`. Medians of {arguments.rounds} alternating rounds in one process"
    head = f"# Benchmarks\n\n{how}; {machine()}."
    options = [f"--{name}" for name in ("keep", "compare") if getattr(arguments, name)]
    parts = sections(list(CASES), arguments.rounds, options)
    print(head, flush=True)
    text, status = report(parts, head, lambda line: print(line, flush=True), run_program)
    Path(__file__).with_name("RESULTS.md").write_text(text, "utf-8")
    return status


def main() -> int:
    """Run the chosen cases, or all benchmarks if no case is given. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="cases to time; everything without any")
    parser.add_argument("--rounds", type=int, default=7)
    add_options(parser)
    arguments = parser.parse_args()
    if not arguments.cases:
        return _everything(arguments)
    print(machine(), file=sys.stderr)  # stdout contains only the table
    print(f"{measured_peak()}\n\n{HEAD}", flush=True)
    return reported("cases", asyncio.run(_measured(arguments.cases, arguments.rounds)), arguments)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks`: run all benchmarks, store their tables, and write the pages of results and the charts.

Run it on an otherwise idle machine. Tables are stored in `benchmarks/history`, with the commit and the environment.
`python -m benchmarks CASE …` times only these steps against tensorflow-cpu, and stores nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import aioflow  # before TensorFlow, so that its backends may prepare NumPy's libraries
from benchmarks import charts
from benchmarks.cases import CASES
from benchmarks.harness import measure
from benchmarks.history import keep, machine, new_run, runs
from benchmarks.report import PAGES, page_text, run_program, run_sections, slower
from benchmarks.roofline import measured_peak
from benchmarks.tables import Printer


async def _print_steps(printer: Printer, names: Sequence[str], rounds: int) -> None:
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    tf.disable_control_flow_v2()  # loops in the form that both support
    printer.note(f"{measured_peak()}")
    for name in names:
        printer.row((await measure(CASES[name], tf, aioflow, rounds)).row(measured_peak()))


def _write() -> None:
    """Write the pages and the charts from the stored tables."""
    stored = runs()
    for page in PAGES:
        Path(__file__).with_name(page.file).write_text(page_text(page, stored), "utf-8")
    charts.draw(stored)


def _measure(options: argparse.Namespace) -> int:
    """Measure the chosen sections, or all, and write everything. Return the exit status."""
    sections = {section.name: section for page in PAGES for section in page.sections}
    stored, run = runs(), new_run()
    print(run.head(), flush=True)
    chosen = [sections[name] for name in options.sections or sections]
    faults = []
    for fault in run_sections(chosen, run, options, run_program, keep):
        print(fault.text, file=sys.stderr, flush=True)
        faults.append(fault)
    worse = list(slower(run, stored)) if options.compare else []
    print("\n".join([*(fault.text for fault in faults), *worse]), file=sys.stderr)
    if run.tables:
        _write()
    return 1 if worse or any(fault.is_failure for fault in faults) else 0


def main() -> int:
    """Run the chosen cases or sections, or all benchmarks. Return the exit status."""
    names = [section.name for page in PAGES for section in page.sections]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="steps to time; all benchmarks without any")
    parser.add_argument("--steps", action="store_true", help="time all steps, and store nothing")
    parser.add_argument("--rounds", type=int, default=7, help="of each step")
    parser.add_argument("--sections", nargs="+", choices=names, help="measure only these tables")
    parser.add_argument("--compare", action="store_true", help="report what became slower since the last stored tables")
    parser.add_argument("--write", action="store_true", help="write pages and charts from the stored tables")
    Printer.add_options(parser)
    options = parser.parse_args()
    if options.write:
        _write()
        return 0
    if not options.cases and not options.steps:
        return _measure(options)
    print(machine(), file=sys.stderr)  # stdout contains only the table
    asyncio.run(_print_steps(Printer(options), options.cases or list(CASES), options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.imports`: the time of `import aioflow` beyond `import numpy`, in alternating fresh processes.

It is also measured with a first graph, and with a first session and its first step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.tables import Printer, Row, Target, seconds

__all__ = ["import_rows"]

_ROUNDS: Final = 15
_TARGET: Final = 0.12  # seconds
_BEGIN: Final = "import time, numpy; begin = time.process_time(), time.perf_counter()"
_END: Final = "print(time.process_time() - begin[0], time.perf_counter() - begin[1])"
_PROGRAMS: Final = {
    "`import aioflow` beyond `import numpy`": "import aioflow",
    "the same, and a graph of one product": "import aioflow as af\naf.matmul([[1.0]], [[2.0]])",
    "the same, a session, and its first step": (
        "import aioflow as af\nwith af.Session() as session: session.run_sync(af.constant(1.0) + 1.0)"
    ),
}


def import_rows() -> list[Row]:
    """Return table rows: medians of processor time and wall time, the first row with its target."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _PROGRAMS}
    for number in range(_ROUNDS + 1):
        for name, code in _PROGRAMS.items():
            times = _in_a_process(code)
            if number:  # the first round writes bytecode
                found[name].append(times)
    rows: list[Row] = []
    for name, times in found.items():
        busy, elapsed = (median(each) for each in zip(*times, strict=True))
        targets = () if rows else (Target(_TARGET, column="processor time"),)
        rows.append(Row(name, {"processor time": seconds(busy), "by the clock": seconds(elapsed)}, targets))
    return rows


def _in_a_process(code: str) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", f"{_BEGIN}\n{code}\n{_END}"],
        check=True,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""},  # if set, every process would compile every module
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    busy, elapsed = map(float, done.stdout.split())
    return busy, elapsed


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    Printer.add_options(parser)
    printer = Printer(parser.parse_args())
    for each in import_rows():
        printer.row(each)

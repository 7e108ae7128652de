"""Results stored with their commit in `benchmarks/history`, and the detection of slowdowns since then.

Only ratios are compared, not times, since machines differ and are shared.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aioflow_numpy.blas import loaded_blas
from aioflow_onednn.entry import describe
from benchmarks import REMOVED
from benchmarks.harness import Measured

__all__ = ["COMPARE", "add_options", "commit", "compared", "keep", "latest", "machine", "reported"]

COMPARE: Final = "--compare"
_FOLDER: Final = Path(__file__).with_name("history")
_NOISE: Final = 0.1  # relative growth of a ratio that is noise on a shared machine

Table = Mapping[str, Any]


def add_options(parser: ArgumentParser) -> None:
    """Add `--keep` and `--compare`, for `reported`."""
    parser.add_argument("--keep", action="store_true", help="keep the table, with the commit, in benchmarks/history")
    parser.add_argument(COMPARE, action="store_true", help="say what became slower since the last kept table")


def reported(name: str, measured: Sequence[Measured], options: Namespace) -> int:
    """Compare and keep a table according to the options. Return the exit status: 1 if something became slower."""
    table = _table(name, measured)
    lines: list[str] = []
    if options.compare:
        before = latest(table, _FOLDER)
        lines = compared(before, table) if before else []
        none = "nothing became slower" if before else "no such table has been kept"
        print("\n".join(lines) or none, file=sys.stderr)  # stdout contains only the table
    if options.keep:
        print(f"kept: {keep(table, _FOLDER)}", file=sys.stderr)
    return 1 if lines else 0


def machine() -> str:
    """Describe the machine: the processor, its cores, Python, and the kernels of the BLAS."""
    model = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor()
    )
    parts = [model, f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    parts += [f"OpenBLAS with {blas.core_type} kernels" for blas in loaded_blas()[:1]]
    parts += [f"{name}={value} removed from the environment" for name, value in REMOVED.items()]
    return ", ".join(parts)


def keep(table: Table, folder: Path) -> Path:
    """Write a table into a folder, and return the path of its file: date, commit, name."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{table['date']}-{table['commit']}-{table['table']}.json"
    path.write_text(json.dumps(table, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")
    return path


def latest(table: Table, folder: Path) -> Table | None:
    """Return the latest stored table of the same name and the same kernels."""
    found: list[Table] = [json.loads(path.read_text("utf-8")) for path in folder.glob(f"*-{table['table']}.json")]
    alike = [each for each in found if each["kernels"] == table["kernels"]]
    return max(alike, key=lambda each: str(each["date"]), default=None)


def compared(before: Table, now: Table) -> list[str]:
    """Return a line for each row of both tables whose ratio has grown by more than noise."""
    lines = []
    for row, measured in now["rows"].items():
        old = before["rows"].get(row)
        if old is not None and measured["ratio"] > old["ratio"] * (1 + _NOISE):
            change = measured["ratio"] / old["ratio"] - 1
            lines.append(f"slower by {change:.0%}: {row}: {old['ratio']:.3f} → {measured['ratio']:.3f}")
    return lines


def _table(name: str, measured: Sequence[Measured]) -> Table:
    rows = {
        each.case.name: {"ratio": each.ratio, "ours": each.ours, "theirs": each.theirs, "target": each.target}
        for each in measured
    }
    return {
        "table": name,
        "date": datetime.now(UTC).strftime("%Y%m%dT%H%M%S"),
        "commit": commit(),
        "machine": machine(),
        "kernels": describe()["oneDNN"].split(" (")[0],
        "rows": rows,
    }


def commit() -> str:
    """Return the commit of the checkout, with a mark if the working tree differs from it."""
    if shutil.which("git") is None:
        return "unknown"
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=_FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "unknown"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []

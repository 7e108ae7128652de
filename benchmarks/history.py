"""Results stored with their commit and environment in `benchmarks/history`, and the detection of slowdowns since then.

Only ratios are compared, not times, since machines differ and are shared.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from aioflow_numpy.blas import loaded_blas
from aioflow_onednn.entry import describe
from benchmarks import REMOVED
from benchmarks.tables import Row, Table

__all__ = ["FOLDER", "Run", "commit", "compared", "keep", "latest", "machine", "new_run", "runs"]

FOLDER: Final = Path(__file__).with_name("history")
_NOISE: Final = 0.1  # relative growth of a ratio that is noise on a shared machine
# Packages by which results depend on the environment, and the names of their distributions.
_PACKAGES: Final = {
    "NumPy": ("numpy",),
    "TensorFlow": ("tensorflow-cpu", "tensorflow"),
    "onnxruntime": ("onnxruntime",),
}


@dataclass(frozen=True, slots=True)
class Run:
    """The tables of one run of `python -m benchmarks`.

    Attributes:
        date: Start of the run, in UTC.
        commit: The commit of the checkout, with a mark if the working tree differed from it.
        environment: Descriptions of the machine and of libraries.
        tables: The tables by the names of their sections.
    """

    date: str
    commit: str
    environment: Mapping[str, str]
    tables: dict[str, Table] = field(default_factory=dict)

    def head(self) -> str:
        """Return a sentence on the environment, for the tables."""
        day = f"{self.date[:4]}-{self.date[4:6]}-{self.date[6:8]}"
        details = ", ".join(f"{name} {value}".strip() for name, value in self.environment.items())
        return f"Commit {self.commit}, {day}: {details}."


def new_run() -> Run:
    """Return a run without tables, of this moment and this environment."""
    return Run(datetime.now(UTC).strftime("%Y%m%dT%H%M%S"), commit(), environment())


def environment() -> dict[str, str]:
    """Describe the machine: processor, load, Python, libraries, and the kernels of the BLAS."""
    lines = _cpuinfo()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    found = {model: "", f"{os.cpu_count()} cores": "", "Python": platform.python_version()}
    for name, distributions in _PACKAGES.items():
        if version := next(filter(None, map(_version, distributions)), ""):
            found[name] = version
    if loaded := loaded_blas():
        found["OpenBLAS with"] = f"{loaded[0].core_type} kernels"
    found["oneDNN"] = describe()["oneDNN"].split(" (")[0]
    found |= {f"{name}={value} removed from the environment": "" for name, value in REMOVED.items()}
    if hasattr(os, "getloadavg"):  # not on Windows
        found["load at the start"] = f"{os.getloadavg()[0]:.1f}"
    return found


def machine() -> str:
    """Describe the machine in one line."""
    return ", ".join(f"{name} {value}".strip() for name, value in environment().items())


def keep(run: Run, folder: Path = FOLDER) -> Path:
    """Write a run into a folder, and return the path of its file: date and commit."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{run.date}-{run.commit}.json"
    tables = {
        name: {"notes": table.notes, "rows": [row.to_json() for row in table.rows]}
        for name, table in run.tables.items()
    }
    found = {"date": run.date, "commit": run.commit, "environment": run.environment, "tables": tables}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def runs(folder: Path = FOLDER) -> list[Run]:
    """Return the stored runs, the latest last."""
    found = []
    for path in folder.glob("*.json"):
        run = json.loads(path.read_text("utf-8"))
        tables = {
            name: Table([Row.from_json(row) for row in table["rows"]], table["notes"])
            for name, table in run["tables"].items()
        }
        found.append(Run(run["date"], run["commit"], run["environment"], tables))
    return sorted(found, key=lambda run: run.date)


def latest(name: str, stored: Sequence[Run]) -> Run | None:
    """Return the latest of the stored runs that has a table of that name."""
    return next((run for run in reversed(stored) if name in run.tables), None)


def compared(before: Table, now: Table) -> list[str]:
    """Return a line for each row of both tables whose ratio has become worse by more than noise."""
    lines = []
    stored = {row.case: row.value("ratio") for row in before.rows}
    for row in now.rows:
        old, new = stored.get(row.case), row.value("ratio")
        if old is None or new is None:
            continue
        more_is_better = any(each.column == "ratio" and math.isfinite(each.least) for each in row.targets)
        change = (old / new if more_is_better else new / old) - 1
        if change > _NOISE:
            lines.append(f"slower by {change:.0%}: {row.case}: {old:.3f} → {new:.3f}")
    return lines


def commit() -> str:
    """Return the commit of the checkout, with a mark if the working tree differs from it."""
    if shutil.which("git") is None:
        return "unknown"
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "unknown"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []

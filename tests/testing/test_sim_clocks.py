"""A simulation has no real clock: those that modules import by name are replaced, so all must be there before."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import importlib, pkgutil, sys, time
import aioflow.testing.sim_net
before = set(sys.modules)
for area in ("net", "train", "distributed", "session"):
    package = importlib.import_module(f"aioflow.{area}")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
clocks = (time.perf_counter, time.monotonic)
later = [vars(sys.modules[name]) for name in sorted(set(sys.modules) - before) if name.startswith("aioflow")]
print([names["__name__"] for names in later if any(clock in names.values() for clock in clocks)])
"""


def test_what_reads_a_clock_is_loaded_before_a_simulation() -> None:
    command = [sys.executable, "-c", _PROGRAM]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert found.strip() == "[]"

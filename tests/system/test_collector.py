"""Tests of garbage collection in programs and in forked children."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from aioflow.memory.collector import full_collections_postponed
from tests.memory.test_collector import (
    made,
    nothing_frozen,  # noqa: F401  # fixtures
)

_DROPPING = """
import gc
from aioflow.memory import collector

class Dropped:
    alive = 0

    def __init__(self):
        self.own, self.more = self, [[] for _ in range(2000)]
        Dropped.alive += 1

    def __del__(self):
        Dropped.alive -= 1

looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
collector._LITTLE, most = 1000, 0
for _ in range(2000):
    with collector.full_collections_postponed():
        Dropped()
    most = max(most, Dropped.alive)
print(2 in looks, most < 1000)
"""


def test_garbage_does_not_accumulate_over_blocks() -> None:
    """Run a program that arranges steps repeatedly, and drops them in reference cycles.

    The program is small: in a large process, such as that of the tests, Python itself lets much garbage accumulate.
    """
    command = [sys.executable, "-c", _DROPPING]
    assert subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout == "True True\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_child_forked_inside_a_block_runs_full_collections() -> None:
    with full_collections_postponed():
        child = os.fork()
        if not child:
            before = gc.get_stats()[2]["collections"]
            kept = made()
            os._exit(0 if kept and gc.get_stats()[2]["collections"] > before else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

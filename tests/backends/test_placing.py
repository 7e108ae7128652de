"""Tests of thread placement: a helper thread wakes on another processor than its waker's, and may then run on any."""

from __future__ import annotations

import os
import threading

import pytest

import aioflow  # noqa: F401  # before NumPy, so that its backends may prepare it
from aioflow_numpy.placing import roam, wake_elsewhere
from aioflow_numpy.threads import for_each, thread_count

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or not 1 < len(os.sched_getaffinity(0)) <= 4,
    reason="needs Linux and two to four processors",
)


def test_sleeping_thread_is_kept_off_this_processor_until_it_runs() -> None:
    wake, checked = threading.Event(), threading.Event()
    seen: list[set[int]] = []

    def sleeper() -> None:
        wake.wait()
        seen.append(os.sched_getaffinity(0))
        roam(allowed)
        seen.append(os.sched_getaffinity(0))
        checked.set()

    thread = threading.Thread(target=sleeper)
    thread.start()
    mine = os.sched_getaffinity(0)
    allowed = wake_elsewhere([thread.native_id or 0])
    wake.set()
    thread.join()
    assert checked.is_set()
    assert seen[0] < mine
    assert seen[1] == mine == allowed
    assert os.sched_getaffinity(0) == mine


@pytest.mark.skipif(thread_count() < 2, reason="the BLAS has one thread, so kernels have")
def test_helpers_may_run_anywhere_after_waking() -> None:
    affinities: dict[int, set[int]] = {}
    both = threading.Barrier(2, timeout=20)

    def work(_: int) -> None:
        both.wait()  # each of the two threads has one item
        affinities[threading.get_ident()] = os.sched_getaffinity(0)

    for_each(work, [0, 1])
    assert list(affinities.values()) == [os.sched_getaffinity(0)] * 2

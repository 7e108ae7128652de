"""Tests of OpenBLAS's threads in processes that fork."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

import numpy as np
import pytest

from aioflow_numpy.blas import loaded_blas
from aioflow_numpy.blas_threads import alone, blas_threads
from aioflow_numpy.products import matmul
from tests.backends.test_blas_threads import count, held, no_other_products, three_threads  # noqa: F401  # fixtures

pytestmark = pytest.mark.skipif(not loaded_blas(), reason="only OpenBLAS has a count that is held")
LIMIT = 120  # seconds for operations that take milliseconds on an idle machine


def in_a_child(check: Callable[[], object]) -> None:
    """Run a check in a forked process, without tracing.

    Another thread may hold a lock of the tracer during the fork, and the child could never release it.
    """
    tracer = sys.gettrace()
    sys.settrace(None)
    child = os.fork()
    if child == 0:
        try:
            threading.settrace(None)
            signal.alarm(LIMIT)
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    sys.settrace(tracer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
# Python 3.12 and later warn of a fork beside other threads, which is the subject of these tests.
forks_beside_threads = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def expect(number: int) -> None:
    assert count() == blas_threads() == number
    a = np.ones((300, 300))
    assert (matmul(a, a) == 300).all()
    assert alone(count) == 1
    assert count() == number


@forks
@forks_beside_threads
def test_forked_child_keeps_the_users_thread_count() -> None:
    in_a_child(lambda: expect(3))
    with held():
        in_a_child(lambda: expect(3))
        assert count() == 1
    assert count() == 3


@forks
@forks_beside_threads
def test_child_forked_during_products_keeps_the_thread_count() -> None:
    """Fork repeatedly, at random points of other threads' entries and exits of `alone`."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            alone(abs, 1)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(20):
            in_a_child(lambda: expect(3))
    finally:
        stop.set()
        for worker in workers:
            worker.join(LIMIT)
    assert count() == 3


@forks
@forks_beside_threads
def test_fork_inside_a_product_keeps_the_thread_count() -> None:
    """Fork inside `alone`, as a signal handler might. Both processes must leave it correctly."""
    child = alone(os.fork)
    if child == 0:
        os._exit(0 if count() == 3 and alone(count) == 1 and count() == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert count() == 3

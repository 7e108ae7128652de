"""Threads of OpenBLAS in processes that fork."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from aioflow_numpy.blas import loaded_blas
from aioflow_numpy.blas_threads import alone, blas_threads
from aioflow_numpy.compiled.background import BACKGROUND
from aioflow_numpy.products import matmul
from tests.waiting import until

pytestmark = pytest.mark.skipif(not loaded_blas(), reason="only OpenBLAS has a count that is held")
LIMIT = 120  # seconds for what takes milliseconds on a quiet machine


@functools.cache
def library() -> Any:
    """NumPy's OpenBLAS, as threadpoolctl sees it; other packages bring copies of their own."""
    path = loaded_blas()[0].library
    return next(one for one in ThreadpoolController().lib_controllers if os.path.samefile(one.filepath, path))


def count() -> int:
    """How many threads a product of the user's would have."""
    return int(library().num_threads)


def set_count(number: int) -> None:
    """What the user does who changes it for good."""
    library().set_num_threads(number)


@pytest.fixture(autouse=True)
def no_other_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep other threads from products: those of kernels that earlier tests left running, and the background compiler,
    which tries new machine code beside NumPy's products. Jobs for it begin after the test.
    """
    assert BACKGROUND.wait(LIMIT)
    until(lambda: blas_threads() == count(), LIMIT)
    jobs: list[Callable[[], None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(BACKGROUND, "ask", jobs.append)
        yield
    for job in jobs:
        BACKGROUND.ask(job)


@pytest.fixture(autouse=True)
def three_threads(no_other_products: None) -> Iterator[None]:
    """The user's choice, on any machine."""
    before = count()
    set_count(3)
    try:
        yield
        assert blas_threads() == count()  # nobody holds it
    finally:
        set_count(before)


@contextmanager
def held() -> Iterator[None]:
    """While this is open, another thread is in a product."""
    inside, leave = threading.Event(), threading.Event()

    def product() -> None:
        inside.set()
        assert leave.wait(LIMIT)

    thread = threading.Thread(target=alone, args=(product,))
    thread.start()
    assert inside.wait(LIMIT)
    try:
        yield
    finally:
        leave.set()
        thread.join(LIMIT)
        assert not thread.is_alive()


def in_a_child(check: Callable[[], object]) -> None:
    """Run a check in a forked process. Not traced: some thread may hold a tracer's lock, which no fork renews."""
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
# Python 3.12 and later warn of a fork beside other threads, which is what is tried here.
forks_beside_threads = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def expect(number: int) -> None:
    assert count() == blas_threads() == number
    a = np.ones((300, 300))
    assert (matmul(a, a) == 300).all()
    assert alone(count) == 1
    assert count() == number


@forks
@forks_beside_threads
def test_a_child_has_the_users_count() -> None:
    in_a_child(lambda: expect(3))
    with held():
        in_a_child(lambda: expect(3))
        assert count() == 1
    assert count() == 3


@forks
@forks_beside_threads
def test_a_child_of_a_process_that_multiplies_all_the_time() -> None:
    """The fork may come at any point of another thread's way in or out."""
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
def test_a_fork_inside_a_product() -> None:
    """As a signal handler's would be: both processes find their way out."""
    child = alone(os.fork)
    if child == 0:
        os._exit(0 if count() == 3 and alone(count) == 1 and count() == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert count() == 3

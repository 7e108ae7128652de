"""Tests of the BLAS's thread count: it is the user's again after any product of ours that held it at one."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

import aioflow as af
from aioflow_numpy import threads
from aioflow_numpy.blas import loaded_blas
from aioflow_numpy.blas_threads import alone, blas_threads
from aioflow_numpy.compiled.wanted import BACKGROUND
from aioflow_numpy.products import matmul
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not loaded_blas(), reason="only OpenBLAS has a count that is held")

LIMIT = 120  # seconds for operations that take milliseconds on a quiet machine


@functools.cache
def library() -> Any:
    """Return NumPy's OpenBLAS, as threadpoolctl sees it; other packages bring copies of their own."""
    path = loaded_blas()[0].library
    return next(one for one in ThreadpoolController().lib_controllers if os.path.samefile(one.filepath, path))


def count() -> int:
    """Return the number of threads of a product that the user calls."""
    return int(library().num_threads)


def set_count(number: int) -> None:
    """Set the number of threads, as a user does."""
    library().set_num_threads(number)


@pytest.fixture(autouse=True)
def no_other_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep other threads from running products.

    Such products come from kernels that earlier tests left running, and from the background compiler, which tries new
    machine code beside NumPy's products. The compiler's jobs start after the test.
    """
    assert BACKGROUND.wait(LIMIT)
    until(lambda: blas_threads() == count(), LIMIT)
    jobs: list[Callable[[], None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(BACKGROUND, "begin", jobs.append)
        yield
    for job in jobs:
        BACKGROUND.begin(job)


@pytest.fixture(autouse=True)
def three_threads(no_other_products: None) -> Iterator[None]:
    """Set the user's choice to three threads, on any machine."""
    before = count()
    set_count(3)
    try:
        yield
        assert blas_threads() == count()  # no product holds it
    finally:
        set_count(before)


@contextmanager
def held() -> Iterator[None]:
    """Keep another thread in a product for the duration of the block."""
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


def test_count_is_one_while_a_product_runs() -> None:
    assert alone(count) == 1
    assert count() == 3
    assert alone(blas_threads) == blas_threads() == 3  # for our own blocks


def test_alone_passes_arguments_and_results() -> None:
    assert alone(divmod, 7, 2) == (3, 1)
    assert alone(sorted, [1, 2], reverse=True) == [2, 1]


def test_products_of_every_size_restore_the_count() -> None:
    for size in (2, 30, 65, 200, 600):
        matmul(np.ones((size, size)), np.ones((size, size)))
        assert count() == 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_failing_product_restores_the_count(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        alone(fail)
    assert count() == 3


def test_failing_kernel_restores_the_count() -> None:
    singular = af.linalg.inv(af.zeros([50, 50]) + af.placeholder(af.float32, [], name="x"))
    with af.Session() as session:
        with pytest.raises(af.errors.InvalidArgumentError, match="invertible"):
            session.run_sync(singular, {"x:0": 0.0})
        assert count() == 3


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer here")
def test_interrupt_at_any_point_restores_the_count() -> None:
    class Interrupt(BaseException):
        pass

    wanted, interrupted = False, 0
    # Interrupts inside other code, such as a tracer's, are out of scope.
    ours = {alone.__code__.co_filename, __file__}

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal wanted
        if wanted and frame is not None and frame.f_code.co_filename in ours:
            wanted = False
            raise Interrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for _ in range(100):
            try:
                wanted = True
                signal.setitimer(signal.ITIMER_VIRTUAL, 1e-4)  # the signal comes with the processor's next tick
                for _ in range(20_000):
                    alone(abs, 1)
                wanted = False  # Python 3.11 may miss a signal that another thread received
            except Interrupt:
                interrupted += 1
                assert count() == 3
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert interrupted > 30


def test_many_threads_hold_the_count_at_one() -> None:
    seen: list[int] = []

    def work(seed: int) -> None:
        a = np.random.default_rng(seed).standard_normal((90, 90))
        seen.extend(alone(lambda: (np.matmul(a, a), count())[1]) for _ in range(200))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert set(seen) == {1}
    assert count() == 3


def test_last_product_restores_the_count() -> None:
    with held():
        assert count() == 1
        with held():
            assert count() == 1
        assert count() == 1
        assert alone(count) == 1
        assert count() == 1
    assert count() == 3


# -- changes by the user -----------------------------------------------------------------------------------------------


def test_change_between_products_is_restored() -> None:
    matmul(np.ones((200, 200)), np.ones((200, 200)))
    for number in (2, 5, 1, 4):
        set_count(number)
        assert alone(count) == 1
        assert count() == blas_threads() == number


def test_limits_around_products() -> None:
    for limit in (1, 2):
        with threadpool_limits(limit, user_api="blas"):
            matmul(np.ones((600, 600)), np.ones((600, 600)))
            assert count() == blas_threads() == limit
        assert count() == 3


def test_change_during_a_product_is_kept() -> None:
    with held():
        set_count(2)
        assert blas_threads() == 2
    assert count() == 2


def test_change_is_kept_though_another_product_starts_after_it() -> None:
    with held():
        set_count(2)
        assert alone(count) == 1
        assert blas_threads() == 2
    assert count() == 2


def test_limit_that_ends_during_a_product() -> None:
    limits = threadpool_limits(2, user_api="blas")
    with held():
        limits.restore_original_limits()
        assert blas_threads() == 3
    assert count() == 3


def test_blocks_use_the_users_thread_count() -> None:
    for number in (1, 2, 3):
        set_count(number)
        assert threads.thread_count() == number
        with held():
            assert threads.thread_count() == number


# -- the user's own products -------------------------------------------------------------------------------------------


def test_products_of_the_user_are_correct_beside_ours() -> None:
    """The user's products may run on OpenBLAS's threads or on one, while ours run as fast as they can."""
    rng = np.random.default_rng(0)
    ours = [rng.standard_normal((s, s)).astype(np.float32) for s in (70, 150, 400)]
    a, b = rng.standard_normal((300, 310)), rng.standard_normal((310, 290))
    spd = a @ a.T + 300 * np.eye(300)
    expected = a @ b, np.linalg.cholesky(spd), a.T @ np.ones(300)
    stop, wrong = threading.Event(), []

    def multiply() -> None:
        exact = [x.astype(np.float64) @ x for x in ours]
        while not stop.is_set():
            for x, want in zip(ours, exact, strict=True):
                if not np.allclose(matmul(x, x), want, atol=1e-2):
                    wrong.append("ours")

    workers = [threading.Thread(target=multiply) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(60):
            found = a @ b, np.linalg.cholesky(spd), a.T @ np.ones(300)
            wrong += ["his" for x, y in zip(found, expected, strict=True) if not np.allclose(x, y, atol=1e-9)]
    finally:
        stop.set()
        for worker in workers:
            worker.join(LIMIT)
    assert not wrong
    assert count() == 3

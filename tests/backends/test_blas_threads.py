"""The BLAS's thread count is the user's: he has it again whatever happens while a product of ours holds it."""

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
    """Return the number of threads of a product that the user calls."""
    return int(library().num_threads)


def set_count(number: int) -> None:
    """Set the number of threads, as a user does."""
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
        patch.setattr(BACKGROUND, "begin", jobs.append)
        yield
    for job in jobs:
        BACKGROUND.begin(job)


@pytest.fixture(autouse=True)
def three_threads(no_other_products: None) -> Iterator[None]:
    """The user's choice, on any machine."""
    before = count()
    set_count(3)
    try:
        yield
        assert blas_threads() == count()  # no product holds it
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


def test_it_is_one_while_a_product_runs() -> None:
    assert alone(count) == 1
    assert count() == 3
    assert alone(blas_threads) == blas_threads() == 3  # for our own blocks


def test_what_a_function_is_given_and_gives() -> None:
    assert alone(divmod, 7, 2) == (3, 1)
    assert alone(sorted, [1, 2], reverse=True) == [2, 1]


def test_products_of_every_size_leave_it_alone() -> None:
    for size in (2, 30, 65, 200, 600):
        matmul(np.ones((size, size)), np.ones((size, size)))
        assert count() == 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_product_that_fails(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        alone(fail)
    assert count() == 3


def test_a_kernel_that_fails() -> None:
    singular = af.linalg.inv(af.zeros([50, 50]) + af.placeholder(af.float32, [], name="x"))
    with af.Session() as session:
        with pytest.raises(af.errors.InvalidArgumentError, match="invertible"):
            session.run_sync(singular, {"x:0": 0.0})
        assert count() == 3


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer here")
def test_an_interrupt_at_any_point() -> None:
    class Interrupt(BaseException):
        pass

    wanted, interrupted = False, 0
    ours = {alone.__code__.co_filename, __file__}  # a tracer's code, say, is not made for this

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
                signal.setitimer(signal.ITIMER_VIRTUAL, 1e-4)  # comes with the processor's next tick
                for _ in range(20_000):
                    alone(abs, 1)
                wanted = False  # Python 3.11 may miss a signal that another thread got
            except Interrupt:
                interrupted += 1
                assert count() == 3
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert interrupted > 30


def test_many_threads_at_once() -> None:
    seen: list[int] = []

    def work(seed: int) -> None:
        a = np.random.default_rng(seed).standard_normal((90, 90))
        seen.extend(alone(lambda: (np.matmul(a, a), count())[1]) for _ in range(200))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert set(seen) == {1}
    assert count() == 3


def test_the_last_one_out_gives_it_back() -> None:
    with held():
        assert count() == 1
        with held():
            assert count() == 1
        assert count() == 1
        assert alone(count) == 1
        assert count() == 1
    assert count() == 3


# -- the user changes it -----------------------------------------------------------------------------------------------


def test_a_change_between_products_is_what_is_given_back() -> None:
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


def test_a_change_while_a_product_runs_stands() -> None:
    with held():
        set_count(2)
        assert blas_threads() == 2
    assert count() == 2


def test_a_change_stands_though_another_product_begins_after_it() -> None:
    with held():
        set_count(2)
        assert alone(count) == 1
        assert blas_threads() == 2
    assert count() == 2


def test_a_limit_that_ends_while_a_product_runs() -> None:
    limits = threadpool_limits(2, user_api="blas")
    with held():
        limits.restore_original_limits()
        assert blas_threads() == 3
    assert count() == 3


def test_blocks_take_as_many_threads_as_the_user_gives() -> None:
    for number in (1, 2, 3):
        set_count(number)
        assert threads.thread_count() == number
        with held():
            assert threads.thread_count() == number


# -- fork --------------------------------------------------------------------------------------------------------------


# -- the user's own products -------------------------------------------------------------------------------------------


def test_the_users_products_are_right_beside_ours() -> None:
    """His are shared by OpenBLAS's threads or not, as they fall; ours run as fast as they can meanwhile."""
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

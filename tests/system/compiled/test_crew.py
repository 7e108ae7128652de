"""Tests of products whose parts are computed by helper threads that busy-wait."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from aioflow_numpy import crew as module
from aioflow_numpy import deep_products, products, threads
from aioflow_numpy.account import Account
from aioflow_numpy.blas_products import Gemm, find_products, product_parts
from aioflow_numpy.blas_threads import alone
from aioflow_numpy.compiled.crew import SINGLE, crew_program
from aioflow_numpy.compiled.wanted import BACKGROUND
from aioflow_numpy.crew import Crew
from tests.support.processes import SECONDS
from tests.system.compiled.chains import Array, compiler
from tests.system.compiled.crews import helpers, noting

SOME = Gemm(1, SINGLE)  # never called

pytestmark = [
    compiler,
    pytest.mark.skipif(find_products() is None, reason="NumPy has another BLAS than OpenBLAS"),
]


class _Clock:
    """A clock that advances by `step` seconds with every reading."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


def _ready(clock: Callable[[], float] = time.perf_counter) -> Crew:
    crew = Crew(clock)
    crew.prepare()
    return crew


@pytest.fixture
def _no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the pauses of the helpers.

    There are more threads than processors, so the threads wait for one another, and their accounts would run empty.
    """
    monkeypatch.setattr(Account, "enter", lambda self, seconds: None)


class _Woken(list[int]):
    """A stand-in that wakes no helper, and records the requested counts."""

    def __call__(self, count: int) -> bool:
        self.append(count)
        return True


def _never(count: int) -> bool:
    raise AssertionError("the helpers were to be awake")


def _multiplied(crew: Crew, a: Array, b: Array, out: Array, bounds: tuple[int, ...], by_rows: bool) -> None:
    """Multiply with the crew, as soon as a helper is awake."""
    end = time.monotonic() + SECONDS
    while not crew.multiply(a, b, out, bounds, by_rows, 1, lambda _: True):
        assert time.monotonic() < end, "nobody waits awake"


def _by_numpy(a: Array, b: Array, bounds: tuple[int, ...], by_rows: bool) -> Array:
    parts = [slice(*each) for each in pairwise(bounds)]
    made = [alone(np.matmul, a[p] if by_rows else a, b if by_rows else b[:, p]) for p in parts]
    return np.concatenate(made, 0 if by_rows else 1)


def _matrix(rng: np.random.Generator, rows: int, columns: int, dtype: Any) -> Array:
    """Return a matrix in row or column order, contiguous or part of a larger one."""
    room = rng.standard_normal((rows + 3, columns + 5)).astype(dtype)
    if rng.random() < 0.5:
        room = np.asfortranarray(room)
    part = room[1 : rows + 1, 2 : columns + 2]
    return part if rng.random() < 0.5 else part.copy("K")


@pytest.mark.usefixtures("_no_rests")
def test_parts_equal_numpy_and_nothing_else_is_written() -> None:
    rng, crew = np.random.default_rng(0), _ready()
    with helpers(crew, 2):
        for _ in range(500):
            rows, inner, columns = (int(n) for n in rng.integers(8, 150, 3))
            dtype = np.float32 if rng.random() < 0.5 else np.float64
            a, b = _matrix(rng, rows, inner, dtype), _matrix(rng, inner, columns, dtype)
            by_rows = bool(rng.integers(2))
            size = rows if by_rows else columns
            bounds = (0, *sorted({2 * int(n) for n in rng.integers(1, size // 2, 3)}), size)
            room = np.full((rows + 2, columns + 3), 7, dtype)
            _multiplied(crew, a, b, room[1:-1, 1:-2], bounds, by_rows)
            wanted = np.full_like(room, 7)
            wanted[1:-1, 1:-2] = _by_numpy(a, b, bounds, by_rows)
            np.testing.assert_array_equal(room, wanted, strict=True)


@pytest.mark.usefixtures("_no_rests")
def test_products_of_few_rows_are_bitwise_equal_with_and_without_helpers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check also that the results are close to exact ones, and that nothing else is written."""
    rng, crew, without = np.random.default_rng(1), _ready(), Crew()
    monkeypatch.setattr(deep_products, "thread_count", lambda: 3)
    monkeypatch.setattr(deep_products, "wake_helpers", lambda count: True)
    shared: list[int] = []
    share, (summing, sums) = crew.share, noting(crew.sums)

    def shares(code: Any, parts: Any, *places: int) -> bool:
        shared.append(parts.count)
        return share(code, parts, *places)

    monkeypatch.setattr(crew, "share", shares)
    monkeypatch.setattr(crew, "sums", summing)
    with helpers(crew, 2):
        for _ in range(50):
            narrow = rng.random() < 0.5  # pieces are long then
            sizes = rng.integers(
                (2, 2500, 64) if narrow else (2, 700, 200), (120, 5000, 130) if narrow else (120, 2500, 700)
            )
            rows, inner, columns = (int(n) for n in sizes)
            dtype = np.float32 if rng.random() < 0.5 else np.float64
            a, b = _matrix(rng, rows, inner, dtype), rng.standard_normal((inner, columns + 5)).astype(dtype)[:, 2:-3]
            made = np.full((2, rows + 2, columns + 3), 7, dtype)
            for room, by in zip(made, (crew, without), strict=True):
                monkeypatch.setattr(deep_products, "CREW", by)
                products.matmul(a, b, room[1:-1, 1:-2])
            np.testing.assert_array_equal(made[0], made[1], strict=True)
            wanted = np.full(made.shape[1:], 7.0)
            wanted[1:-1, 1:-2] = a.astype(float) @ b.astype(float)
            np.testing.assert_allclose(made[0], wanted, rtol=1e-4, atol=1e-3)
    assert len(sums) > 35
    assert None not in sums, "there is code for each"
    assert max(shared) > 1


@pytest.mark.usefixtures("_no_rests")
def test_several_threads_may_multiply_concurrently() -> None:
    crew = _ready()

    def multiply(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            a, b = rng.standard_normal((60, 80), np.float32), rng.standard_normal((80, 90), np.float32)
            out, bounds = np.empty((60, 90), np.float32), (0, 20, 50, 90)
            _multiplied(crew, a, b, out, bounds, False)
            np.testing.assert_array_equal(out, _by_numpy(a, b, bounds, False))

    with helpers(crew, 2), ThreadPoolExecutor(3) as pool:
        list(pool.map(multiply, range(3)))


def test_awake_helper_computes_a_part() -> None:
    """Multiply until sharing has saved time: the helper occupies a processor, and the caller does half of the work."""
    crew = _ready()
    a, b = np.ones((1200, 1200), np.float32), np.ones((1200, 1200), np.float32)
    out = np.empty_like(a)
    saved: list[float] = []
    with pytest.MonkeyPatch.context() as patch, helpers(crew, 1):
        patch.setattr(Account, "enter", lambda self, seconds: saved.append(seconds))
        end = time.monotonic() + SECONDS
        while not any(seconds > 0 for seconds in saved):
            assert time.monotonic() < end, "no part was taken, or none of them saved time"
            _multiplied(crew, a, b, out, (0, 600, 1200), True)
    assert (out == 1200).all()


def test_sleeping_helpers_are_woken_once_and_the_product_is_not_shared() -> None:
    crew, woken = _ready(), _Woken()
    crew.gather(1)
    a, out = np.ones((8, 8), np.float32), np.zeros((8, 8), np.float32)
    for _ in range(3):
        assert not crew.multiply(a, a.copy(), out, (0, 4, 8), True, 1, woken)
    assert woken == [1]
    assert not out.any()
    crew.stay(0, lambda: True)  # it was awake, and then had other work
    assert not crew.multiply(a, a.copy(), out, (0, 4, 8), True, 1, woken)
    assert woken == [1, 1]


def test_helper_may_wake_before_the_waking_call_returns() -> None:
    crew, woken = _ready(), _Woken()
    crew.gather(1)
    a, out = np.ones((8, 8), np.float32), np.zeros((8, 8), np.float32)

    def wake(count: int) -> bool:
        crew.stay(0, lambda: True)
        return woken(count)

    for _ in range(2):
        assert not crew.multiply(a, a.copy(), out, (0, 4, 8), True, 1, wake)
    assert woken == [1, 1]


def test_multiply_wakes_only_as_many_helpers_as_parts() -> None:
    crew, woken = _ready(), _Woken()
    crew.gather(7)
    a = np.ones((9, 8), np.float32)
    assert not crew.multiply(a, np.ones((8, 8), np.float32), a.copy(), (0, 3, 6, 9), True, 1, woken)
    assert woken == [2]


def test_helper_waits_briefly_and_leaves_when_called() -> None:
    crew = _ready(_Clock())
    crew.gather(1)
    crew.stay(0, lambda: False)  # returns by itself
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PATIENCE", 10**12)
        helper = threading.Thread(target=crew.stay, args=(0, lambda: False), daemon=True)
        helper.start()
        end = time.monotonic() + SECONDS
        while helper.is_alive():
            assert time.monotonic() < end, "it does not hear that it is called"
            crew.call()
            time.sleep(0.001)


def test_helper_pauses_after_waits_without_work() -> None:
    clock = _Clock(1e-3)
    crew = _ready(clock)
    crew.gather(1)
    looked: list[None] = []

    def is_wanted() -> bool:
        looked.append(None)
        return False

    for _ in range(50):
        crew.stay(0, is_wanted)
    assert 2 < len(looked) < 10, "the account is empty after some moments"
    before = len(looked)
    clock.now += 2
    crew.stay(0, is_wanted)
    assert len(looked) == before + 1


def test_call_before_a_product_counts_as_wait_without_work() -> None:
    """Call the helpers repeatedly, as other kernels do in programs without products."""
    crew = _ready()
    crew.gather(1)
    stayed = 0
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        caller = threading.Timer(0.0005, crew.call)
        caller.start()
        begun = time.thread_time()
        crew.stay(0, lambda: False)
        stayed += time.thread_time() - begun > 1e-4
        caller.join()
    assert stayed < 50


def test_large_product_requires_all_helpers() -> None:
    crew = _ready()
    a, out = np.ones((9, 8), np.float32), np.zeros((9, 8), np.float32)
    with helpers(crew, 1):
        _multiplied(crew, a, np.ones((8, 8), np.float32), out, (0, 3, 6, 9), True)
        for _ in range(100):
            assert not crew.multiply(a, a[:8].copy(), out, (0, 3, 6, 9), True, 2, lambda _: True)


def test_product_is_computed_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = _ready()
    monkeypatch.setattr(products, "CREW", crew)
    monkeypatch.setattr(threads, "CREW", crew)
    monkeypatch.setattr(products, "thread_count", lambda: 2)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    a = np.ones((150, 150), np.float32)
    crew.gather(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        patch.setattr(threads, "_started", threads._started.__wrapped__)
        for _ in range(2):
            assert (products.matmul(a, a.copy()) == 150).all()


def test_started_helpers_work_if_others_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def refused(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threads, "CREW", Crew())
    monkeypatch.setattr(threads, "_threads", [])
    monkeypatch.setattr(threads, "_started", functools.cache(threads._started.__wrapped__))
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for _ in range(3):
            done: list[int] = []
            threads.for_each(done.append, range(20))
            assert sorted(done) == list(range(20))
    assert threads._threads == started


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads run where the system lets them")
def test_stuck_helper_regains_its_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every wait as too long: the helper was bound to another processor, which another program may use."""
    crew, here = _ready(), os.sched_getaffinity(0)
    if len(here) < 2:
        pytest.skip("there is one processor")
    monkeypatch.setattr(module, "_STUCK", -1)
    a = np.ones((8, 8), np.float32)
    with helpers(crew, 1):
        _multiplied(crew, a, a.copy(), a.copy(), (0, 4, 8), True)
        assert all(os.sched_getaffinity(thread) == here for thread in crew._ids.values())


_AT_ONCE = """
import threading
from aioflow_numpy import threads
barrier = threading.Barrier(8)
def first():
    barrier.wait()
    threads.for_each(lambda item: None, range(4))
users = [threading.Thread(target=first) for _ in range(8)]
for user in users: user.start()
for user in users: user.join()
names = [thread.name for thread in threading.enumerate() if "blocks" in thread.name]
assert len(names) == len(set(names)), names
"""


def test_concurrent_first_uses_start_the_same_helpers() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", _AT_ONCE], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr


def test_pauses_grow_with_losses_and_shrink_after_gains() -> None:
    clock = _Clock()
    account = Account(clock)

    def rest() -> float:
        """Spend the whole account and return how long it stays closed."""
        while account.is_open(clock.now):
            account.enter(-1e-3)
        begun = clock.now
        while not account.is_open(clock.now):
            clock.now += 1e-3
        return clock.now - begun

    rests = [rest() for _ in range(10)]
    assert rests[0] < 0.03
    assert rests[1] == pytest.approx(2 * rests[0], rel=0.1)
    assert max(rests) < 1.1
    for _ in range(10):
        account.enter(1e-3)
    assert rest() < 0.03


def test_event_loop_does_not_wait_for_helpers() -> None:
    crew = _ready()
    a = np.ones((8, 8), np.float32)

    async def on_a_loop() -> bool:
        return crew.multiply(a, a.copy(), a.copy(), (0, 4, 8), True, 1, _never)

    with helpers(crew, 1):
        _multiplied(crew, a, a.copy(), a.copy(), (0, 4, 8), True)
        assert not any(asyncio.run(on_a_loop()) for _ in range(10))


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        (np.ones((1, 9), np.float32), np.ones((9, 8), np.float32), np.ones((1, 8), np.float32)),
        (np.ones((9, 1), np.float32), np.ones((1, 8), np.float32), np.ones((9, 8), np.float32)),
        (np.ones((8, 18), np.float32)[:, ::2], np.ones((9, 8), np.float32), np.ones((8, 8), np.float32)),
        (np.ones((9, 8), np.float32)[:, ::-1], np.ones((8, 8), np.float32), np.ones((9, 8), np.float32)),
        (np.broadcast_to(np.float32(1), (9, 8)), np.ones((8, 8), np.float32), np.ones((9, 8), np.float32)),
        (np.ones((9, 8), np.float32), np.ones((8, 8), np.float32), np.ones((8, 9), np.float32).T),
    ],
)
def test_operands_that_numpy_passes_differently_to_blas_are_left_to_numpy(a: Array, b: Array, out: Array) -> None:
    assert product_parts(SOME, a, b, out, (0, 4, 8), True) is None


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        (np.ones((9, 8), np.float32), np.ones((7, 6), np.float32), np.ones((9, 6), np.float32)),
        (np.ones((9, 8), np.float32), np.ones((8, 6), np.float64), np.ones((9, 6), np.float64)),
        (np.ones((9, 8), np.float32), np.ones((8, 6), np.float32), np.ones((9, 6), np.float64)),
        (np.ones((9, 8), np.float32), np.ones((8, 6), np.float32), np.ones((8, 6), np.float32)),
        (np.ones((9, 8), np.float32), np.ones((8, 6), np.float32), _read_only(np.ones((9, 6), np.float32))),
        (
            np.frombuffer(b"0" * 289, np.float32, 72, 1).reshape(9, 8),
            np.ones((8, 6), np.float32),
            np.ones((9, 6), np.float32),
        ),
    ],
)
def test_mismatched_operands_are_left_to_numpy(a: Array, b: Array, out: Array) -> None:
    assert product_parts(SOME, a, b, out, (0, 4, 8), True) is None


def test_matrix_times_its_transpose_is_left_to_numpy() -> None:
    a = np.ones((9, 8), np.float32)
    assert product_parts(SOME, a, a.T, np.empty((9, 9), np.float32), (0, 4, 8), True) is None
    assert product_parts(SOME, a, a.T.copy(), np.empty((9, 9), np.float32), (0, 4, 8), True) is not None
    assert product_parts(SOME, a, a[4:].T, np.empty((9, 5), np.float32), (0, 4, 8), True) is None, "a part of it is"


def test_crew_is_compiled_after_enough_products_with_equal_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a result has the same bits before and after compilation, with and without helpers."""
    crew = Crew()
    monkeypatch.setattr(module, "_WORTH", 2**24)
    monkeypatch.setattr(products, "CREW", crew)
    monkeypatch.setattr(products, "wake_helpers", lambda count: True)  # the test has its own helpers
    monkeypatch.setattr(products, "thread_count", lambda: 2)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((130, 200), np.float32), rng.standard_normal((200, 150), np.float32)
    before = products.matmul(a, b)
    for _ in range(5):
        products.matmul(a, b)
    assert BACKGROUND.wait(SECONDS)
    with helpers(crew, 1) as returned:
        end = time.monotonic() + SECONDS
        while crew.multiply(a, b, np.empty_like(before), (0, 75, 150), False, 1, lambda _: True) is False:
            assert time.monotonic() < end, "it is not there"
        for _ in range(500):
            np.testing.assert_array_equal(products.matmul(a, b), before, strict=True)
    assert returned[0]


def test_mismatched_shapes_raise_with_awake_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = _ready()
    monkeypatch.setattr(products, "CREW", crew)
    monkeypatch.setattr(products, "wake_helpers", lambda count: True)
    monkeypatch.setattr(products, "thread_count", lambda: 2)
    a = np.ones((200, 200), np.float32)
    with helpers(crew, 1):
        _multiplied(crew, a, a.copy(), a.copy(), (0, 100, 200), True)
        for _ in range(20):
            with pytest.raises(ValueError, match="mismatch"):
                products.matmul(a, np.ones((199, 200), np.float32))


def test_code_with_different_results_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text, usual, wrong = crew_program("INTEGER"), "i > 0, c", "i >= 0, c"
    assert usual in text
    monkeypatch.setattr(module, "crew_program", lambda integer: text.replace("INTEGER", integer).replace(usual, wrong))
    crew = _ready()
    crew.gather(1)
    a = np.ones((8, 8), np.float32)
    assert not crew.multiply(a, a.copy(), a.copy(), (0, 4, 8), True, 1, _never)
    assert "not calling the BLAS directly" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the fork is the subject of this test
def test_forked_child_multiplies_without_helpers() -> None:
    crew = _ready()
    a, b = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)
    out = np.empty_like(a)
    with helpers(crew, 1):
        _multiplied(crew, a, b, out, (0, 32, 64), True)
        child = os.fork()
        if child == 0:
            alone_here = not crew.multiply(a, b, out, (0, 32, 64), True, 1, lambda _: True)
            os._exit(0 if alone_here and (products.matmul(a, b) == 64).all() else 1)
        assert os.waitpid(child, 0)[1] == 0
        _multiplied(crew, a, b, out, (0, 32, 64), True)

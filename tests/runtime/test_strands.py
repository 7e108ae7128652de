"""Strands return the same values as the node-by-node executor and never write to memory that others hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.ops.apply import make
from aioflow.runtime import strand
from tests.runtime.programs import random_program
from tests.support.random_examples import examples

_COMPUTES: list[Callable[[], None]] = []

if "TestComputes" not in OPS:
    define_op("TestComputes", "x: T", "y: T", ["T: type"], stateful=True, shape=lambda ctx: ctx.dims("x"))

if not KERNELS.for_op("TestComputes"):

    @kernel("TestComputes")
    def _computes(x: Any) -> Any:
        for compute in _COMPUTES:
            compute()
        return x


async def _both(
    program: object, fetches: list[af.Tensor], feeds: dict[af.Tensor, object]
) -> tuple[list[Any], list[Any]]:
    async with af.Session(config=af.SessionConfig(executor="reference")) as plain:
        expected = await plain.run(fetches, feeds)
    async with af.Session() as session:
        await session.run(fetches, feeds)  # the first run is in a thread, the second may be inline
        return expected, await session.run(fetches, feeds)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), known=st.booleans())
async def test_strands_equal_the_reference_executor(seed: int, known: bool) -> None:
    with af.Graph().as_default():
        program = random_program(seed, rows=1 if known else None)
        before = {t: v.copy() for t, v in program.feeds.items()}
        expected, actual = await _both(program, program.fetches, dict(program.feeds))
        for want, have in zip(expected, actual, strict=True):
            np.testing.assert_array_equal(have, want)
        for tensor, value in program.feeds.items():
            np.testing.assert_array_equal(value, before[tensor], err_msg="a feed was written to")


async def test_fetched_array_belongs_to_the_caller() -> None:
    x = af.placeholder("float32", [64, 512])
    doubled = x + x
    view = af.reshape(doubled, [512, 64])
    data = np.ones((64, 512), np.float32)
    async with af.Session() as session:
        for _ in range(3):
            first, second, constant = await session.run([doubled, view, af.constant([1.0, 2.0])], {x: data})
            first[:] = 7
            constant[:] = 7
            assert (second == 2).all()
        assert (await session.run(af.constant([1.0, 2.0])) == [1.0, 2.0]).all()
        assert (data == 1).all()


async def test_dying_buffers_are_reused() -> None:
    x = af.placeholder("float32", [None])
    y = x
    for _ in range(20):
        y = af.tanh(y + 1.0)
    data = np.ones(200_000, np.float32)
    async with af.Session() as session:
        await session.run(y, {x: data})
        tracemalloc = pytest.importorskip("tracemalloc")
        tracemalloc.start()
        await session.run(y, {x: data})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2.5 * data.nbytes


async def test_view_keeps_its_buffer_from_being_reused() -> None:
    x = af.placeholder("float32", [512, 64])
    base = x * 2.0
    view = af.transpose(base)
    changed = af.tanh(base)  # the last direct use of `base`, while `view` still shares its memory
    total = af.matmul(view, changed)
    data = np.random.default_rng(0).standard_normal((512, 64)).astype(np.float32)
    async with af.Session() as session:
        for _ in range(2):
            result = await session.run(total, {x: data})
    np.testing.assert_allclose(result, (data * 2).T @ np.tanh(data * 2), rtol=2e-4, atol=2e-3)


async def test_constant_is_never_written_to() -> None:
    big = af.constant(np.ones((128, 128), np.float32))
    y = af.negative(big + 1.0)
    async with af.Session() as session:
        for _ in range(3):
            assert (await session.run(y) == -2).all()


async def test_fetching_a_tensor_twice_returns_two_arrays() -> None:
    y = af.placeholder("float32", [3]) * 2.0
    async with af.Session() as session:
        a, b = await session.run([y, y], {y.op.inputs[0]: [1, 2, 3]})
        a[:] = 0
        assert (b == [2, 4, 6]).all()


async def test_scalars_are_returned_as_scalars() -> None:
    x = af.placeholder("float32", [])
    async with af.Session() as session:
        values: list[Any] = [await session.run(x + 1.0, {x: 2}), await session.run(af.reduce_sum(af.ones([3])))]
        for value in values:
            assert isinstance(value, np.float32)
            assert value == 3


@pytest.mark.parametrize(("worked", "inline"), [(0.5, True), (0.1, False)])
async def test_waiting_for_the_gil_does_not_keep_a_strand_in_a_thread(
    graph: af.Graph, monkeypatch: pytest.MonkeyPatch, worked: float, inline: bool
) -> None:
    """A strand that mostly waited for the interpreter lock is inlined; one that waits by itself stays in the thread."""
    clocks, threads = {"passed": 0.0, "worked": 0.0}, []

    def compute() -> None:
        threads.append(threading.get_ident())
        clocks["passed"] += 1.0
        clocks["worked"] += worked

    _COMPUTES[:] = [compute]

    monkeypatch.setattr(strand, "perf_counter", lambda: clocks["passed"])
    monkeypatch.setattr(strand, "thread_time", lambda: clocks["worked"])
    result = make("TestComputes", af.constant(1))
    async with af.Session(config=af.SessionConfig(inline_budget=0.7)) as session:
        for _ in range(2):
            assert await session.run(result) == 1
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [False, inline]

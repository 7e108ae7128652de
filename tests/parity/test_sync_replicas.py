"""`train.SyncReplicasOptimizer` in both systems: one replica computes two gradients a step, one of which is stale."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from tests.parity.step_programs import plain

OPTIMIZERS = {
    "gradient descent": lambda m: m.train.GradientDescentOptimizer(0.1),
    "momentum": lambda m: m.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda m: m.train.AdamOptimizer(0.01),
    "ftrl": lambda m: m.train.FtrlOptimizer(0.1),
}
ROWS = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]], np.float32)


def program(m: Any, kind: str, averaged: bool = False) -> list[Any]:
    """Build two updates of two gradients each. The second update first gets a gradient of a stale step."""
    m.set_random_seed(1)
    dense = m.get_variable("dense", initializer=np.arange(6, dtype=np.float32).reshape(3, 2))
    table = m.get_variable("table", initializer=np.ones((4, 2), np.float32))
    unused = m.get_variable("unused", initializer=np.float32(1.0))
    step = m.train.get_or_create_global_step()
    gradient, rows = m.placeholder("float32", [3, 2]), m.placeholder("int64", [3])
    sparse = m.IndexedSlices(gradient * 2.0, rows, m.constant([4, 2], "int64"))
    average = m.train.ExponentialMovingAverage(0.5) if averaged else None
    opt = m.train.SyncReplicasOptimizer(
        OPTIMIZERS[kind](m), 2, 1, variable_averages=average, variables_to_average=[dense] if averaged else None
    )
    train = m.group(opt.apply_gradients([(gradient, dense), (sparse, table), (None, unused)], step))
    (local_step,) = m.local_variables()
    sync = opt.get_chief_queue_runner().enqueue_ops[0]
    tokens = opt.get_chief_queue_runner().queue.size()
    shadow = [average.average(dense)] if average is not None else []
    slots = [opt.get_slot(v, name) for v in (dense, table) for name in opt.get_slot_names()]
    state = [dense, table, unused, step, local_step, tokens, *slots, *shadow]
    init_tokens, initialize = opt.get_init_tokens_op(2), m.global_variables_initializer()
    feeds = [{gradient: ROWS * (i + 1), rows: [i % 2, 3, 3]} for i in range(5)]
    return [
        (initialize, {}),
        (m.local_variables_initializer(), {}),
        (opt.ready_for_local_init_op, {}),
        (opt.chief_init_op, {}),
        (init_tokens, {}),
        (train, feeds[0]),
        (train, feeds[1]),
        (state, {}),
        (sync, {}),
        (state, {}),
        (train, feeds[2]),  # stale: it began with one of the initial tokens
        (train, feeds[3]),
        (state, {}),
        (init_tokens, {}),
        (train, feeds[4]),
        (sync, {}),
        (state, {}),
        (m.group(opt.local_step_init_op), {}),
        (state, {}),
    ]


async def ours(build: Callable[[Any], list[Any]]) -> list[Any]:
    """Return the result of each step in aioflow."""
    with aioflow.Graph().as_default():
        steps = build(aioflow)
        async with aioflow.Session() as session:
            return [plain(await session.run(fetch, feeds, timeout=60.0)) for fetch, feeds in steps]


def theirs(tf: Any, build: Callable[[Any], list[Any]]) -> list[Any]:
    """Return the result of each step in TensorFlow."""
    with tf.Graph().as_default():
        steps = build(tf)
        with tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=60_000)) as session:
            return [plain(session.run(fetch, feeds)) for fetch, feeds in steps]


def leaves(value: Any) -> Any:
    """Flatten nested lists to a list of their leaves."""
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_updates_tokens_and_slots_match_tensorflow(tf: Any, kind: str, averaged: bool) -> None:
    def build(m: Any) -> list[Any]:
        return program(m, kind, averaged)

    mine, other = asyncio.run(ours(build)), theirs(tf, build)
    for number, (a, b) in enumerate(zip(mine, other, strict=True)):
        ours_flat, theirs_flat = leaves(a), leaves(b)
        assert [type(v) for v in ours_flat] == [type(v) for v in theirs_flat], number
        if None in theirs_flat:
            assert ours_flat == theirs_flat, number
        else:
            np.testing.assert_allclose(ours_flat, theirs_flat, rtol=1e-5, atol=1e-6, err_msg=f"step {number}")


def test_variable_names_match_tensorflow(tf: Any) -> None:
    def names(m: Any) -> list[list[str]]:
        with m.Graph().as_default():
            program(m, "adam", averaged=True)
            found = [m.global_variables(), m.local_variables(), m.moving_average_variables()]
            return [[v.name for v in variables] for variables in found]

    assert names(aioflow) == names(tf)

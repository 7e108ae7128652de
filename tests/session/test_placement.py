"""Placement through the public interface: several CPU devices, the placement log, soft placement, and errors."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError

TASK = "/job:localhost/replica:0/task:0"


def on(devices: int, **settings: Any) -> af.Session:
    return af.Session(config=af.SessionConfig(device_count={"CPU": devices}, **settings))


async def placed(session: af.Session, fetches: Any, caplog: pytest.LogCaptureFixture, **feeds: Any) -> dict[str, str]:
    """Run a step and return the short name of each node's device from the placement log."""
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="aioflow.placement"):
        await session.run(fetches, **feeds)
    found = [re.fullmatch(rf"(\S+): \(\w+\): {TASK}/device:(\S+)", m) for m in caplog.messages]
    return {match[1]: match[2] for match in found if match is not None}


async def test_nodes_run_on_their_requested_devices(caplog: pytest.LogCaptureFixture) -> None:
    x = af.placeholder("float32", [2], name="x")
    with af.device("/cpu:1"):
        a = af.add(x, 1.0, name="a")
    with af.device("/device:CPU:2"):
        b = af.multiply(a, 10.0, name="b")
    async with on(3, log_device_placement=True) as session:
        devices = await placed(session, [a, b], caplog, feed_dict={x: [1.0, 2.0]})
        assert (devices["a"], devices["b"]) == ("CPU:1", "CPU:2")
        np.testing.assert_array_equal(await session.run(b, {x: [1.0, 2.0]}), [20.0, 30.0])


async def test_ops_on_a_variable_run_on_its_device_in_every_step(caplog: pytest.LogCaptureFixture) -> None:
    with af.device("/cpu:1"):
        v = af.Variable([1.0, 2.0], name="v")
    with af.device("/cpu:0"):
        loss = af.reduce_sum(af.square(v), name="loss")
        train = af.train.MomentumOptimizer(0.25, 0.9).minimize(loss)
    async with on(2, log_device_placement=True) as session:
        await placed(session, af.global_variables_initializer(), caplog)
        devices = await placed(session, train, caplog)
        update = next(name for name in devices if name.endswith("ApplyMomentum"))
        assert devices[update] == devices["v"] == "CPU:1"
        devices = await placed(session, loss, caplog)
        assert devices["loss"] == "CPU:0"
        np.testing.assert_allclose(await session.run(v), [0.5, 1.0])


async def test_loop_with_its_body_on_another_device() -> None:
    def body(i: Any, total: Any) -> Any:
        with af.device("/cpu:1"):
            return i + 1, af.cond(total > 20.0, lambda: total - 1.0, lambda: total * 2.0)

    with af.device("/cpu:0"):
        result = af.while_loop(lambda i, _: i < 9, body, [0, 1.0])
    total = 1.0
    for _ in range(9):
        total = total - 1.0 if total > 20.0 else total * 2.0
    async with on(2) as session:
        assert await session.run(list(result)) == [9, total]


async def test_impossible_request_names_every_device_and_the_line() -> None:
    with af.device("/gpu:0"):
        c = af.constant(1.0, name="c")
    line = c.op.source
    assert line is not None
    async with on(2) as session:
        with pytest.raises(InvalidArgumentError) as caught:
            await session.run(c)
        assert caught.value.node == "c"
        text = str(caught.value)
        for index in range(2):
            assert f"{TASK}/device:CPU:{index}: node 'c' asks for /device:GPU:0 ({line})" in text
        assert "allow_soft_placement=True" in text
    for devices in (1, 2):
        async with on(devices, allow_soft_placement=True) as session:
            assert await session.run(c) == 1.0


async def test_update_of_variables_on_different_devices_is_rejected() -> None:
    with af.device("/cpu:0"):
        v = af.Variable([1.0], name="v")
    with af.device("/cpu:1"):
        m = af.Variable([0.0], name="m")
    update = af.raw_ops.ResourceApplyMomentum(var=v.handle, accum=m.handle, lr=1.0, grad=[1.0], momentum=0.9)
    async with on(2) as session:
        with pytest.raises(InvalidArgumentError, match="'v' and 'm' must be together and ask for different devices"):
            await session.run(update)


async def test_soft_placement_does_not_move_a_variable() -> None:
    with af.device("/cpu:1"):
        v = af.Variable([1.0, 2.0], name="v")
    w = af.Variable([5.0, 5.0], name="w")
    with af.device("/cpu:2"):
        x = af.add(af.placeholder_with_default([1.0, 1.0], [2]), 1.0)
    with af.colocate_with(x):
        update = v.assign_add(x, read_value=True)  # colocated with a node that requests another device
    with af.colocate_with(v.op):
        other = w.assign_add(x, read_value=True)  # requires two variables on one device
    async with on(3, allow_soft_placement=True, placement="round_robin") as session:
        await session.run(v.initializer)
        await session.run([x, w.initializer])
        np.testing.assert_array_equal(await session.run(update), [3.0, 4.0])
        np.testing.assert_array_equal(await session.run(other), [7.0, 7.0])
        found = await session.run([v, w])
    np.testing.assert_array_equal(found, [[3.0, 4.0], [7.0, 7.0]])


async def test_transfer_request_does_not_wait_for_consumers_of_its_value() -> None:
    # The dequeue on the second device waits for the enqueue, which waits for the large value of the first.
    size = 600
    with af.device("/cpu:0"):
        x = af.placeholder("float32", [size, size])
        large = af.exp(x)
    with af.device("/cpu:1"):
        queue = af.FIFOQueue(2, ["float32"], shapes=[(size, size)])
        y = af.placeholder("float32", [size, size])
        other = y
        for _ in range(1):
            other = af.matmul(other, y)
        z = first = queue.dequeue()
        for _ in range(6):
            z = af.matmul(z, first)
        total = af.reduce_sum(z)
        enqueue = queue.enqueue(large + other)
    async with asyncio.timeout(120), af.Session(config=af.SessionConfig(device_count={"CPU": 2})) as session:
        await session.run(
            [total, enqueue], {x: np.full((size, size), -6.4, np.float32), y: np.zeros((size, size), np.float32)}
        )

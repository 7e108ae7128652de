"""Sessions with several devices: locations of state, traces, and repeated placement of a step."""

from __future__ import annotations

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from tests.support.waiting import time_runs_out

FOUR = af.SessionConfig(device_count={"CPU": 4})
CPU = "/job:localhost/replica:0/task:0/device:CPU:{}"


def devices_of(session: af.Session, fetches: object) -> dict[str, str]:
    """Return the device of each node of a step, or one of the devices of a node that is on several."""
    return {node.name: device for device, node in session.plan(fetches).placed_nodes()}


async def test_session_has_as_many_devices_as_configured() -> None:
    async with af.Session(config=FOUR) as session:
        assert session.list_devices() == [CPU.format(i) for i in range(4)]


def test_session_needs_a_cpu() -> None:
    with pytest.raises(InvalidArgumentError, match="CPU"):
        af.SessionConfig(device_count={"CPU": 0})


async def test_variable_stays_on_its_device_between_steps() -> None:
    v = af.Variable(np.zeros((600, 600), np.float32), name="v")
    x = af.placeholder("float32", [600, 600])
    # In the second step, heavy work beside the read of the variable might move the variable to another device.
    heavy = [af.matmul(af.matmul(x, x), v + float(i)) for i in range(4)]
    async with af.Session(config=FOUR) as session:
        await session.run(v.initializer)
        await session.run(v.assign_add(np.ones((600, 600), np.float32)))
        first = devices_of(session, v.assign_add(np.ones((600, 600), np.float32)))["v"]
        await session.run(heavy, {x: np.eye(600, dtype=np.float32)})
        assert devices_of(session, heavy)["v"] == first
        assert (await session.run(v)).min() == 1.0


async def test_trace_has_the_nodes_of_each_device() -> None:
    with af.device("/cpu:1"):
        a = af.random_uniform([3], name="a")
    with af.device("/cpu:2"):
        b = af.add(a, 1.0, name="b")
    metadata = af.RunMetadata()
    async with af.Session(config=FOUR) as session:
        await session.run(b, options=af.RunOptions(trace_level=af.TraceLevel.FULL), run_metadata=metadata)
    nodes = {stats.device: {n.node for n in stats.nodes} for stats in metadata.step_stats}
    assert any(name.startswith("a/") for name in nodes[CPU.format(1)])
    assert "b" in nodes[CPU.format(2)]
    assert any(n.endswith("_recv") for n in nodes[CPU.format(2)])


async def test_step_is_placed_again_if_measured_costs_differ() -> None:
    # Shapes alone suggest that both calls are free, so they share a device; a trace shows that each takes 20 ms.
    def slow(x: np.ndarray) -> np.ndarray:
        total = np.float32(0)
        for _ in range(20):
            total += np.sort(np.random.default_rng(0).random(40_000)).astype(np.float32)[0]
        return x + total

    x = af.placeholder("float32", [2])
    branches = [af.py_func(slow, [x], af.float32, stateful=False, name=name) for name in ("left", "right")]
    config = af.SessionConfig(device_count={"CPU": 2}, replace_after=6)
    async with af.Session(config=config) as session:
        before = devices_of(session, branches)
        assert before["left"] == before["right"]
        for _ in range(7):
            await session.run(branches, {x: [1.0, 2.0]})
        after = devices_of(session, branches)
        assert after["left"] != after["right"]


async def test_failing_kernel_ends_the_step_on_all_devices() -> None:
    with af.device("/cpu:0"):
        x = af.placeholder("int32", [])
        with af.control_dependencies([af.no_op()]):
            bad = af.floordiv(1, x, name="bad")
    with af.device("/cpu:1"):
        after = bad + 1
    async with af.Session(config=FOUR) as session:
        for _ in range(3):
            with pytest.raises(InvalidArgumentError) as raised:
                await session.run(after, {x: 0}, timeout=10)
            assert raised.value.node == "bad"
        assert await session.run(after, {x: 1}) == 2
        assert (await session.worker.state()).running == 0


async def test_timeout_names_the_waiting_recv() -> None:
    queue = af.FIFOQueue(1, [af.float32], shapes=[()])
    with af.device("/cpu:1"):
        other = queue.dequeue() + 1.0
    with af.device("/cpu:0"):
        end = other * 2.0
    async with af.Session(config=FOUR) as session:
        assert "Recv of edge" in str(await time_runs_out(session, session.run(end, timeout=60), 2))

"""Parts of steps computed by onnxruntime, in all ways to run a step; and the cases that prevent delegation."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.ir import BODY, ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.partition import partition
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.arrays import to_array
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.ops.delegated import DELEGATED
from aioflow.runtime.delegates import PREPARATIONS
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker
from aioflow_onnxruntime import entry, sessions
from aioflow_onnxruntime.kernels import Delegated
from tests.backends.onnxruntime.steps import BY_ONNXRUNTIME, floats, layers, run_twice
from tests.interop.onnx_out.running import same
from tests.net.clusters import cluster
from tests.runtime.split import CPU


async def test_net_is_one_part_in_each_way_to_run_it(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 128, 10)
    rows = floats(16, 64)
    async with af.Session() as ours:
        wanted = await ours.run(y, {x: rows})
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        _, found = await run_twice(session, parts, y, {x: rows})
        assert len(parts) == 1
        same(wanted, found, 1e-5)
        call = session.batched(y, [x])
        async with asyncio.TaskGroup() as tg:
            calls = [tg.create_task(call(rows[at : at + 4])) for at in range(0, 16, 4)]
        same(wanted, np.concatenate([each.result() for each in calls]), 1e-5)
        streamed = [value async for value in session.stream(y, [{x: rows[:4]}, {x: rows[4:]}])]
        same(wanted, np.concatenate(streamed), 1e-5)
        handle = await session.partial_run_setup([y], [x])
        same(wanted, await session.partial_run(handle, y, {x: rows}), 1e-5)
    same(wanted, np.asarray(af.Session(config=BY_ONNXRUNTIME).run_sync(y, {x: rows})), 1e-5)


async def test_each_device_has_its_parts(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    with af.device("/cpu:0"):
        a = layers(x, 128, 64)
    with af.device("/cpu:1"):
        b = layers(a, 128, 64)
    with af.device("/cpu:0"):
        c = layers(a + b, 128, 10)
    rows = floats(32, 64)
    async with af.Session(config=af.SessionConfig(device_count={"CPU": 2})) as ours:
        wanted = await ours.run(c, {x: rows})
    config = af.SessionConfig(delegate="onnxruntime", device_count={"CPU": 2})
    async with af.Session(config=config) as session:
        _, found = await run_twice(session, parts, c, {x: rows})
    assert len(parts) == 3
    same(wanted, found, 1e-5)


async def test_cluster_workers_delegate_their_parts(parts: list[Delegated]) -> None:
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 64])
        with af.device("/job:a"):
            a = layers(x, 128, 64)
        with af.device("/job:b"):
            b = layers(a, 128, 64)
        with af.device("/job:a"):
            c = layers(a + b, 128, 10)
    rows = floats(32, 64)
    async with cluster("a", "b", tcp=True) as servers:
        async with af.Session(servers[0].target, graph=graph) as ours:
            wanted = await ours.run(c, {x: rows})
        async with af.Session(servers[0].target, graph=graph, config=BY_ONNXRUNTIME) as session:
            _, found = await run_twice(session, parts, c, {x: rows})
    assert len(parts) == 3
    same(wanted, found, 1e-5)


async def test_result_is_not_overwritten_by_the_next_step(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 64)
    rows = floats(16, 64)
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        _, first = await run_twice(session, parts, [y, y], {x: rows})
        kept = first[0].copy()
        first[0][:] = 7.0
        second = await session.run([y, y], {x: rows})
    np.testing.assert_array_equal(first[1], kept)
    np.testing.assert_array_equal(second[0], kept)


async def test_feeds_may_have_any_layout(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 64)
    rows = floats(64, 16)
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        _, wanted = await run_twice(session, parts, y, {x: np.ascontiguousarray(rows.T)})
        given = [rows.T, rows.T[::-1][::-1], rows.T.astype(">f4"), np.asfortranarray(rows.T)]
        for array in given:
            same(wanted, await session.run(y, {x: array}), 1e-6)
        assert (await session.run(y, {x: rows.T[:0]})).shape == (0, 64)


async def test_model_shares_the_memory_of_large_constants(parts: list[Delegated]) -> None:
    weights = floats(64, 64)
    x = af.placeholder("float32", [None, 64])
    y = af.matmul(af.tanh(x), af.constant(weights)) * 2.0 + 1.0
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await run_twice(session, parts, af.matmul(y, y, transpose_b=True), {x: floats(64, 64)})
        (part,) = parts
        assert part.part is not None
        (held,) = part.part.held.values()
        (constant,) = (n.attrs["value"] for n in part.graph.nodes.values() if n.op == "Const" and n.outputs[0].dims)
        assert np.shares_memory(held, constant)


async def test_error_names_the_node(parts: list[Delegated]) -> None:
    x, z = af.placeholder("float32", [None, 64]), af.placeholder("float32", [None, 64])
    y = layers(af.concat([layers(x, 128), z], 1, name="joined"), 64)
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await run_twice(session, parts, y, {x: floats(4, 64), z: floats(4, 64)})
        with pytest.raises(af.errors.InvalidArgumentError, match="onnxruntime") as raised:
            await session.run(y, {x: floats(4, 64), z: floats(3, 64)})
        assert raised.value.node == "joined"
        assert raised.value.source is not None
        await session.run(y, {x: floats(3, 64), z: floats(3, 64)})


async def test_nodes_run_themselves_if_no_thread_can_start(
    parts: list[Delegated], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 64)
    rows = floats(4, 64)
    async with af.Session() as ours, af.Session(config=BY_ONNXRUNTIME) as session:
        wanted = await ours.run(y, {x: rows})
        assert await session.run(af.constant(1.0)) == 1.0  # starts the threads of the device
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            same(wanted, await session.run(y, {x: rows}), 1e-6)
            await asyncio.wait_for(session.prepared(), 10)
        await run_twice(session, parts, y, {x: rows})


async def test_small_parts_have_one_thread_each(parts: list[Delegated], monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    options = sessions.options_for

    def noted(count: int) -> Any:
        threads.append(count)
        return options(count)

    monkeypatch.setattr(sessions, "options_for", noted)
    x = af.placeholder("float32", [64])
    y = x
    for _ in range(20):
        y = af.cumsum(af.tanh(af.exp(y) * 0.1))
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await run_twice(session, parts, y, {x: floats(64)})
    assert threads == [1] * 20


async def test_model_runs_without_a_failing_onnxruntime_optimization(
    parts: list[Delegated], caplog: pytest.LogCaptureFixture
) -> None:
    x = af.placeholder("float64", [None, 64])
    y = af.clip_by_value(af.nn.relu(x * 2.0), 0.5, 1.5)
    rows = floats(4, 64).astype(np.float64)
    async with af.Session() as ours, af.Session(config=BY_ONNXRUNTIME) as session:
        _, found = await run_twice(session, parts, y, {x: rows})
        same(await ours.run(y, {x: rows}), found, 1e-12)
    assert not caplog.records


async def test_model_rejected_by_onnxruntime_is_logged_once(
    parts: list[Delegated], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(sessions, "made", refused)
    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 64)
    rows = floats(4, 64)
    async with af.Session() as ours, af.Session(config=BY_ONNXRUNTIME) as session:
        wanted = await ours.run(y, {x: rows})
        with caplog.at_level(logging.WARNING, "aioflow.delegate"):
            for _ in range(3):
                same(wanted, await session.run(y, {x: rows}), 1e-6)
                await session.prepared()
    (record,) = caplog.records
    assert "is not delegated: no such kernel" in record.getMessage()


async def test_stopped_step_ends_between_two_nodes(parts: list[Delegated], monkeypatch: pytest.MonkeyPatch) -> None:
    size = 600
    x = af.placeholder("float32", [size, size])
    y = x
    for _ in range(60):
        y = af.tanh(af.matmul(y, y))
    value = floats(size, size)
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await run_twice(session, parts, y, {x: value})
        seen = asyncio.Event()
        original, loop = parts[0].part, asyncio.get_running_loop()
        assert original is not None
        run = original.run

        def noted(values: Any) -> Any:
            loop.call_soon_threadsafe(seen.set)
            return run(values)

        monkeypatch.setattr(original, "run", noted)
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(session.run(y, {x: value}))
            await seen.wait()
            task.cancel()
        assert task.cancelled()
        with pytest.raises(af.errors.DeadlineExceededError):
            await session.run(y, {x: value}, timeout=1e-3)
        assert np.isfinite(await session.run(y, {x: value})).all()


async def test_max_value_bytes_is_enforced(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 64)
    config = af.SessionConfig(delegate="onnxruntime", max_value_bytes=64 * 64 * 4)
    async with af.Session(config=config) as session:
        await run_twice(session, parts, y, {x: floats(8, 64)})
        with pytest.raises(af.errors.ResourceExhaustedError):
            await session.run(y, {x: floats(65, 64)})


async def test_check_finite_covers_the_outputs(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    y = af.log(layers(x, 128, 64) - 2.0)
    config = af.SessionConfig(delegate="onnxruntime", check_finite=True)
    async with af.Session(config=config) as session:
        for _ in range(2):
            with pytest.raises(af.errors.InvalidArgumentError, match=r"NaN|nan"):
                await session.run(y, {x: floats(8, 64)})
            await session.prepared()


async def test_variables_are_read_in_every_step(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    weights = af.Variable(floats(64, 64))
    y = layers(af.matmul(x, weights), 128, 10)
    rows = floats(8, 64)
    async with af.Session(config=BY_ONNXRUNTIME) as session, af.Session() as ours:
        for each in (session, ours):
            await each.run(weights.initializer)
        await run_twice(session, parts, y, {x: rows})
        for each in (session, ours):
            await each.run(weights.assign(floats(64, 64) * 0 + 0.01))
        same(await ours.run(y, {x: rows}), await session.run(y, {x: rows}), 1e-5)


async def test_impossible_delegates_raise_typed_errors() -> None:
    with pytest.raises(af.errors.NotFoundError, match="no engine 'nothing'"):
        af.Session(config=af.SessionConfig(delegate="nothing"))
    session = af.Session(config=af.SessionConfig(delegate="onnxruntime:Nothing"))
    for use in (session.__aenter__(), session.run(af.constant(1.0))):
        with pytest.raises(af.errors.NotFoundError, match="no such execution provider"):
            await use
    with pytest.raises(af.errors.InvalidArgumentError, match="reproducible"):
        af.SessionConfig(delegate="onnxruntime", reproducible=True)


@pytest.mark.parametrize("delegate", ["onnxruntime:CPU", "onnxruntime:CPUExecutionProvider", "auto"])
async def test_provider_is_named_after_a_colon(delegate: str, parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 64)
    async with af.Session(config=af.SessionConfig(delegate=delegate)) as session:
        await run_twice(session, parts, y, {x: floats(8, 64)})
    assert parts


async def test_reproducible_sessions_do_not_delegate(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 64)
    async with af.Session(config=af.SessionConfig(delegate="auto", reproducible=True)) as session:
        plan = session.plan(y, [x])
        await session.run(y, {x: floats(8, 64)})
    assert not parts
    assert not any(node.op == DELEGATED for node in plan.nodes())


async def test_missing_package_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioflow_onnxruntime.find_spec", lambda name: None)
    with pytest.raises(af.errors.NotFoundError, match="onnxruntime is not installed") as raised:
        await af.Session(config=af.SessionConfig(delegate="onnxruntime")).__aenter__()
    assert "pip install 'aioflow-engine[onnxruntime]'" in str(raised.value)
    async with af.Session(config=af.SessionConfig(delegate="auto")) as session:
        assert session.engine is None
    assert "not used" in entry.describe()["onnxruntime"]


async def test_part_sent_by_a_client_respects_max_value_bytes(parts: list[Delegated]) -> None:
    """A client of a worker may send any part: nodes that reserve memory do so inside a part, too."""
    x = af.placeholder("int32", [])
    graph = prune(StepRequest((x,), (af.fill([x], 1.0) * 2.0,)))
    body = replace(graph, nodes={name: replace(node, control=()) for name, node in graph.nodes.items()})
    spec = OutputSpec(af.float32, (None,))
    attrs = {"Tin": (af.int32,), "Tout": (af.float32,), "delegate": "onnxruntime", "seconds": 1e-3, BODY: body}
    given = OutputSpec(af.int32, ())
    arg = Node("_arg_0", ARG, attrs={"T": af.int32, "index": 0}, outputs=(given,), device=CPU.format(0))
    part = Node("part", DELEGATED, (Edge("_arg_0", 0),), (), attrs, (spec,), CPU.format(0))
    retval = Node("_retval_0", RETVAL, (Edge("part", 0),), attrs={"T": af.float32, "index": 0}, device=CPU.format(0))
    made = ClientGraph({node.name: node for node in (arg, part, retval)}, 1, 1)
    config = af.SessionConfig(max_value_bytes=1000)
    worker = Worker(config)
    handle = worker.register_now(next(iter(partition(made).parts.values())), 1, config)
    for _ in range(2):
        step = Step()
        with pytest.raises(af.errors.ResourceExhaustedError):
            await worker.run(handle, [to_array(10**9, af.int32)], step)
        step.finish()
        await PREPARATIONS.ended()
    assert parts[0].part is not None


async def test_cost_of_a_part_is_not_attributed_to_its_last_node(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    y = layers(x, 128, 64)
    config = af.SessionConfig(delegate="onnxruntime", device_count={"CPU": 2}, replace_after=2)
    rows = floats(8, 64)
    async with (
        af.Session(config=af.SessionConfig(device_count={"CPU": 2})) as ours,
        af.Session(config=config) as session,
    ):
        wanted = await ours.run(y, {x: rows})
        for _ in range(6):
            same(wanted, await session.run(y, {x: rows}), 1e-5)
            await session.prepared()
        assert parts
        metadata = af.RunMetadata()
        await session.run(y, {x: rows}, options=af.RunOptions(trace_level=af.TraceLevel.FULL), run_metadata=metadata)
        assert any(node.op == DELEGATED for device in metadata.step_stats for node in device.nodes)
        planner = session._planner
        planner.observe(metadata.step_stats)
        assert planner.costs.measured.seconds(y.op.name, "CPU") is None

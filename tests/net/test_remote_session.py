"""Sessions on clusters, from the view of a user of `Session(server.target)`."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.ir import Plan
from aioflow.compiler.partition import partition
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.arrays import to_array
from aioflow.net import worker_service
from aioflow.net.client_task import ClientTask
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.comm import CommOptions
from aioflow.net.remote_cluster import RemoteCluster
from aioflow.net.server import Server
from aioflow.runtime.step import Step
from aioflow.sync.background import Background
from tests.net.clusters import cluster, given_up_at_once, inproc
from tests.runtime.flow_programs import random_flow_program
from tests.runtime.programs import random_program
from tests.support.outcomes import bits, failure
from tests.support.random_examples import examples
from tests.support.waiting import time_runs_out

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
TASKS = ("/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0")


def variable_and_product() -> tuple[af.Variable, af.Tensor]:
    with af.device(PS):
        v = af.Variable([1.0, 2.0], name="v")
    with af.device(WORKER):
        return v, af.multiply(v, 2.0, name="product")


@pytest.mark.parametrize("tcp", [False, True], ids=["inproc", "tcp"])
@pytest.mark.parametrize("target", [0, 1])
async def test_step_runs_on_the_requested_tasks(tcp: bool, target: int) -> None:
    v, product = variable_and_product()
    add = af.assign_add(v, [1.0, 1.0])
    async with cluster("ps", "worker", tcp=tcp) as servers, af.Session(servers[target].target) as session:
        assert session.list_devices()[0] == f"{TASKS[target]}/device:CPU:0"
        assert sorted(session.list_devices()) == [f"{task}/device:CPU:0" for task in TASKS]
        await session.run(v.initializer)
        for _ in range(3):
            await session.run(add)
        np.testing.assert_array_equal(await session.run(product), [8.0, 10.0])
        assert [next(iter(server.worker.devices)) for server in servers] == [f"{task}/device:CPU:0" for task in TASKS]
        plan = session.plan(product)
        assert set(plan.parts) == set(TASKS)


@pytest.mark.parametrize("tcp", [False, True], ids=["inproc", "tcp"])
async def test_sessions_of_a_server_share_batches(tcp: bool) -> None:
    x = af.placeholder(af.float32, [None])
    rows = af.nondifferentiable_batch_function(1, 2, 30_000_000)(
        lambda a: a + af.cast(af.shape(a)[0], af.float32) * 10.0
    )(x)
    async with (
        cluster("worker", tcp=tcp) as (server,),
        af.Session(server.target) as one,
        af.Session(server.target) as two,
        asyncio.timeout(20),
    ):
        found = await asyncio.gather(one.run(rows, {x: [1.0]}), two.run(rows, {x: [2.0]}))
    assert [each.tolist() for each in found] == [[21.0], [22.0]]


async def test_sessions_share_only_variables() -> None:
    v, product = variable_and_product()
    with af.device(PS):
        noise = af.random_uniform([], seed=3)
    async with cluster("ps", "worker") as (ps, worker):
        async with af.Session(ps.target) as one, af.Session(worker.target) as two:
            await one.run(v.initializer)
            assert (await two.run(product)).tolist() == [2.0, 4.0]
            assert await one.run(noise) == await two.run(noise)  # each session has its own sequence of random numbers
            assert (await ps.worker.state()).registered > 0
        for server in (ps, worker):
            while (await server.worker.state()).registered:  # noqa: ASYNC110  # they learn of the end from the connections
                await asyncio.sleep(0.001)
        async with af.Session(worker.target) as three:
            assert (await three.run(v)).tolist() == [1.0, 2.0]


async def test_step_without_fetches_returns_an_empty_structure() -> None:
    async with cluster("ps") as (ps,), af.Session(ps.target) as session:
        assert await session.run([]) == []
        assert await session.run(()) == ()


async def test_clear_drops_variables_on_all_workers() -> None:
    v, _ = variable_and_product()
    async with cluster("ps", "worker") as (_, worker), af.Session(worker.target) as session:
        await session.run(v.initializer)
        await session.clear()
        with pytest.raises(af.errors.FailedPreconditionError):
            await session.run(v)


async def test_unrelated_graphs_share_resources_by_container_and_name() -> None:
    """Share queues and variables between clients without contact; another container stays separate."""
    graphs = {name: af.Graph() for name in ("one", "two", "apart")}
    parts = {}
    for name, graph in graphs.items():
        with graph.as_default(), graph.container("apart" if name == "apart" else "shared"), af.device(PS):
            v = af.Variable([0.0], name="v")
            queue = af.FIFOQueue(3, [af.float32], shapes=[[1]], shared_name="values")
            put, size = queue.enqueue(v + 1.0), queue.size()
        parts[name] = v, put, queue.dequeue(), size
    async with cluster("ps", "worker") as (ps, worker):
        async with af.Session(ps.target, graph=graphs["one"]) as one:
            v, put, _, _ = parts["one"]
            await one.run(v.initializer)
            await one.run(v.assign([4.0]).op)
            await one.run(put)
        async with (
            af.Session(worker.target, graph=graphs["two"]) as two,
            af.Session(worker.target, graph=graphs["apart"]) as apart,
        ):
            v, put, get, size = parts["two"]
            assert (await two.run(v)).tolist() == [4.0]
            await two.run(put)
            assert [(await two.run(get)).tolist() for _ in range(2)] == [[5.0], [5.0]]
            assert await apart.run(parts["apart"][3]) == 0
            assert isinstance(await failure(apart.run(parts["apart"][0])), af.errors.FailedPreconditionError)
            await apart.run(parts["apart"][0].initializer)
            await two.clear(["shared"])
            assert isinstance(await failure(two.run(v)), af.errors.FailedPreconditionError)
            assert (await apart.run(parts["apart"][0])).tolist() == [0.0]


async def test_step_raises_the_first_cause_on_every_worker() -> None:
    """Let one worker fail while the others wait for it: all waiters receive that error."""
    x = af.placeholder("float32", [None])
    with af.device(PS):
        bad = af.reshape(x, [2, 2], name="bad")
        never = af.FIFOQueue(1, [af.float32], shapes=[()]).dequeue(name="never")
    with af.device(WORKER):
        waits = af.identity(bad) + never
    async with cluster("ps", "worker", "worker", tcp=True) as (*_, other), af.Session(other.target) as session:
        for _ in range(3):
            error = await failure(session.run([waits, never], {x: np.ones(3)}))
            assert (error.node, type(error)) == ("bad", af.errors.InvalidArgumentError)


async def test_stream_on_a_cluster_applies_each_step_once() -> None:
    v, product = variable_and_product()
    add = af.assign_add(v, [1.0, 1.0])
    async with cluster("ps", "worker", tcp=True) as (_, worker), af.Session(worker.target) as session:
        await session.run(v.initializer)
        seen = []
        async with session.stream(add, prefetch=3) as steps:
            async for value in steps:
                seen.append(value[0])
                if len(seen) == 10:
                    break
        assert len(set(seen)) == 10  # concurrent steps are applied once each, in any order
        assert (await session.run(product))[0] >= 2 * max(seen)


async def test_error_names_task_node_and_source() -> None:
    x = af.placeholder("float32", [None])
    with af.device(PS):
        bad = af.reshape(x, [2, 2], name="bad")
    with af.device(WORKER):
        y = bad + 1.0
    async with cluster("ps", "worker") as (_, worker), af.Session(worker.target) as session:
        with pytest.raises(af.errors.InvalidArgumentError) as raised:
            await session.run(y, {x: np.ones(3)})
        assert raised.value.message.startswith(f"From {TASKS[0]}:")
        assert (raised.value.node, raised.value.op_type) == ("bad", "Reshape")
        assert raised.value.source is not None
        assert raised.value.source.filename == __file__
        assert (await session.run(y, {x: np.ones(4)})).tolist() == [[2.0, 2.0], [2.0, 2.0]]


async def until_running(servers: list[Server]) -> None:
    while not all([(await server.worker.state()).running for server in servers]):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def stuck_step() -> tuple[Any, Any]:
    """Return a fetch on the worker that waits for a queue on the ps, and the enqueue that ends the wait."""
    with af.device(PS):
        queue = af.FIFOQueue(1, [af.float32], shapes=[()], name="queue")
        element = queue.dequeue(name="waits")
    with af.device(WORKER):
        return af.identity(element), queue.enqueue(1.0)


async def test_timeout_names_the_worker_and_leaves_nothing() -> None:
    fetch, enqueue = stuck_step()
    async with cluster("ps", "worker") as servers, af.Session(servers[1].target) as session:
        error = await time_runs_out(session, session.run(fetch, timeout=60.0), 2)
        assert TASKS[0] in str(error)
        assert [(await server.worker.state()).running for server in servers] == [0, 0]
        await session.run(enqueue)
        assert await session.run(fetch) == 1.0  # the stopped step has not dequeued the element


async def test_cancellation_stops_the_step_on_all_workers() -> None:
    fetch, _ = stuck_step()
    async with cluster("ps", "worker") as servers, af.Session(servers[1].target) as session, asyncio.TaskGroup() as tg:
        run = tg.create_task(session.run(fetch))
        await until_running(servers)
        async with asyncio.timeout(60):
            while True:
                (report,) = await session.stuck_report()
                assert TASKS[0] in str(report)
                if "waits" in [node for node, _, _ in report.waiting]:  # reported by the parameter server itself
                    break
        assert "queue" in str(report)
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()
        assert [(await server.worker.state()).running for server in servers] == [0, 0]


async def test_cancelled_run_waits_for_the_running_kernel() -> None:
    """Guarantee that no update arrives after `run` has ended."""
    begun, go = threading.Event(), threading.Event()

    def hold(value: Any) -> Any:
        begun.set()
        go.wait(20)
        return value

    with af.device(PS):
        held = af.py_func(hold, [af.constant(1.0)], af.float32)
    async with cluster("ps", "worker") as servers, af.Session(servers[1].target) as session, asyncio.TaskGroup() as tg:
        run = tg.create_task(session.run(held))
        await asyncio.to_thread(begun.wait, 20)
        run.cancel()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not run.done()
        go.set()
        await asyncio.wait([run])
        assert run.cancelled()
        assert (await servers[0].worker.state()).running == 0


async def test_closing_the_session_stops_its_steps() -> None:
    fetch, _ = stuck_step()
    async with cluster("ps", "worker") as servers, asyncio.TaskGroup() as tg:
        session = af.Session(servers[0].target)
        run = tg.create_task(failure(session.run(fetch)))
        await until_running(servers)
        await session.close()
        assert isinstance(await run, af.errors.CancelledError)
        assert [(await server.worker.state()).running for server in servers] == [0, 0]
        assert isinstance(await failure(session.run(fetch)), af.errors.ClosedSessionError)


async def test_stopped_server_ends_the_steps_that_wait_for_it() -> None:
    fetch, _ = stuck_step()
    small = af.SessionConfig(plan_cache_size=1)
    async with cluster("ps", "worker", tcp=True) as (ps, worker), af.Session(worker.target, config=small) as session:
        async with asyncio.TaskGroup() as tg:
            run = tg.create_task(failure(session.run(fetch)))
            await until_running([ps, worker])
            await ps.stop()
        assert isinstance(run.result(), af.errors.UnavailableError)
        assert TASKS[0] in str(run.result())
        assert (await worker.worker.state()).running == 0
        with given_up_at_once():
            again = await failure(session.run(fetch))
        assert isinstance(again, af.errors.UnavailableError)
        assert TASKS[0] in str(again)
        with af.device(WORKER):
            assert await session.run(af.constant(1.0) + 1.0) == 2.0  # a plan with a part on the ps is evicted for it


async def test_session_reconnects_after_the_restart_of_a_task() -> None:
    """Raise once that the state of the task is lost."""
    v, product = variable_and_product()
    other = v.read_value() + 1.0
    ports = free_addresses(2)
    spec = {"ps": ports[:1], "worker": ports[1:]}
    async with Server(spec, "worker", 0) as worker, af.Session(worker.target) as session:
        async with Server(spec, "ps", 0):
            await session.run(v.initializer)
            await session.run(product)
            await session.run(other)
        for fetch in (product, v.read_value() * 3.0):  # a compiled step and a new one
            async with Server(spec, "ps", 0):
                error = await failure(session.run(fetch))
                assert isinstance(error, af.errors.AbortedError)
                assert "restarted" in str(error)
                assert TASKS[0] in str(error)
                assert not error.may_have_been_applied
                assert isinstance(await failure(session.run(fetch)), af.errors.FailedPreconditionError)
                await session.run(v.initializer)
                assert (await session.run(product)).tolist() == [2.0, 4.0]
                assert (await session.run(other)).tolist() == [2.0, 3.0]


async def test_value_is_not_delivered_to_a_restarted_task() -> None:
    """Let the sending worker detect the restart, even if the client does not."""
    with af.device(WORKER):
        sent = af.constant([1.0]) + 1.0
    with af.device(PS):
        read = af.identity(sent, name="read")
    async with cluster("ps", "worker") as (ps, worker):
        remote = RemoteCluster(worker.target)
        await remote.connect()
        remote._hub.peers[ps.task] += 1  # the incarnation of a later process
        plan = placed(StepRequest((), (read,)), {"read": f"{TASKS[0]}/device:CPU:0"}, f"{TASKS[1]}/device:CPU:0")
        registered = await remote.register(plan, 0, af.SessionConfig())
        error = await failure(registered.run([], Step(id=remote.next_step())))
        assert isinstance(error, af.errors.AbortedError)
        assert "restarted" in str(error)
        await remote.close()


def placed(request: StepRequest, devices: dict[str, str], other: str) -> Plan:
    graph = prune(request)
    nodes = {name: replace(node, device=devices.get(name, other)) for name, node in graph.nodes.items()}
    return partition(replace(graph, nodes=nodes))


async def test_unreachable_or_malformed_target_raises_a_typed_error() -> None:
    (port,) = free_addresses(1)
    for target in (f"aioflow://{port}", *inproc(1)):
        error = await failure(RemoteCluster(target, timeout=0.1).connect())
        assert isinstance(error, af.errors.UnavailableError)
        assert target.partition("//")[2] in str(error)
    for malformed in ("aioflow://nowhere", "aioflow://"):
        with pytest.raises(af.errors.InvalidArgumentError):
            af.Session(malformed)
    with pytest.raises(af.errors.NotFoundError):
        af.Session("grpc://127.0.0.1:2222")
    async with asyncio.timeout(120):
        error = await failure(af.Session("aioflow://192.0.2.1:2222").run(af.constant(1.0)))
    assert isinstance(error, af.errors.PermissionDeniedError)


async def test_devices_are_known_once_the_session_is_connected() -> None:
    v, product = variable_and_product()
    async with cluster("ps", "worker") as (_, worker):
        session = af.Session(worker.target, config=af.SessionConfig(replace_after=3))
        for ask in (session.list_devices, lambda: session.plan(product)):
            with pytest.raises(af.errors.FailedPreconditionError, match="not known yet"):
                ask()
        await session.run(v.initializer)
        for _ in range(5):  # traced, and placed again
            assert (await session.run(product)).tolist() == [2.0, 4.0]
        assert set(session.plan(product).parts) == set(TASKS)
        await session.close()


async def test_task_may_start_after_the_session() -> None:
    v, product = variable_and_product()
    ports = free_addresses(2)
    spec = {"ps": ports[:1], "worker": ports[1:]}
    async with Server(spec, "worker", 0) as worker, af.Session(worker.target) as session:
        with af.device(WORKER):
            assert await session.run(af.constant(1.0) + 1.0) == 2.0  # needs no other task
        with given_up_at_once():
            error = await failure(session.run(product))
        assert isinstance(error, af.errors.UnavailableError)
        assert TASKS[0] in str(error)
        async with Server(spec, "ps", 0, config=af.SessionConfig(device_count={"CPU": 2})):
            await session.run(v.initializer)
            assert (await session.run(product)).tolist() == [2.0, 4.0]
            assert f"{TASKS[0]}/device:CPU:1" in session.list_devices()


async def test_server_starts_with_the_session_that_needs_it() -> None:
    server = af.train.Server.create_local_server()
    target = server.target
    assert not target.endswith(":0")
    for _ in range(2):
        async with af.Session(target) as session:
            assert await session.run(af.constant(2.0) * 2.0) == 4.0
    assert server.target == target
    await server.stop()
    waiting = af.train.Server({"local": inproc(1)})
    async with af.Session(waiting.target) as session:
        assert await session.run(af.constant(2.0) * 2.0) == 4.0
    await waiting.stop()
    with pytest.raises(af.errors.FailedPreconditionError):
        await waiting.start()


@pytest.mark.parametrize("started", [False, True])
async def test_local_servers_with_free_ports_are_distinct(started: bool) -> None:
    v = af.Variable([1.0, 2.0], name="v")
    servers = [af.train.Server.create_local_server() for _ in range(3)]
    assert len({server.target for server in servers}) == 3
    for server in servers[1:] if started else []:
        await server.start()
    async with af.Session(servers[0].target) as first, af.Session(servers[1].target) as second:
        await first.run(v.initializer)
        assert (await first.run(v)).tolist() == [1.0, 2.0]
        error = await failure(second.run(v))
        assert isinstance(error, af.errors.FailedPreconditionError)
        await second.run(v.assign([3.0, 4.0]))
        assert (await first.run(v)).tolist() == [1.0, 2.0]
    for server in servers:
        await server.stop()


async def test_port_is_reserved_for_its_server() -> None:
    server = af.train.Server.create_local_server()
    port = int(server.target.rpartition(":")[2])
    assert server.cluster.as_dict() == {"local": [f"127.0.0.1:{port}"]}
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    await server.stop()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


@pytest.mark.parametrize("tcp", [False, True], ids=["inproc", "tcp"])
async def test_two_servers_of_a_process_need_two_addresses(tcp: bool) -> None:
    spec = {"local": free_addresses(1) if tcp else inproc(1)}
    for start in (False, True):
        server = Server(spec)
        if start:
            await server.start()
        with pytest.raises(af.errors.AlreadyExistsError, match=r"already uses .* in this process"):
            Server(spec)
        await server.stop()
    forgotten = Server(spec)
    del forgotten
    gc.collect()
    async with Server(spec) as server, af.Session(server.target) as session:
        assert await session.run(af.constant(2.0) * 2.0) == 4.0


async def test_servers_may_share_connection_options() -> None:
    options = CommOptions()
    first, second = (Server({"local": inproc(1)}, options=options) for _ in range(2))
    assert len({first.incarnation, second.incarnation, options.incarnation}) == 3


@pytest.mark.parametrize("tcp", [False, True], ids=["inproc", "tcp"])
async def test_config_of_the_server_is_the_default_of_its_sessions(tcp: bool) -> None:
    """Use the server's settings where the session has none of its own."""
    x = af.placeholder("float32", [])
    y = af.math.log(x, name="y")
    waits = af.FIFOQueue(1, ["float32"], [[]]).dequeue()
    config = af.SessionConfig(operation_timeout=0.5, check_finite=True, device_count={"CPU": 2}, optimizations=False)
    async with cluster("worker", tcp=tcp, config=config) as (server,):
        async with af.Session(server.target) as session:
            assert session.config == config
            assert (await failure(session.run(y, {x: -1.0}))).node == "y"
            assert isinstance(await failure(session.run(waits)), af.errors.DeadlineExceededError)
        late = af.Session(server.target)  # a session that is not entered
        assert isinstance(await failure(late.make_callable(waits)()), af.errors.DeadlineExceededError)
        await late.close()
        async with af.Session(server.target, config=af.SessionConfig(operation_timeout=30.0, threads=1)) as session:
            assert session.config == replace(config, operation_timeout=30.0, threads=1)
            assert (await failure(session.run(y, {x: -1.0}))).node == "y"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await session.run(waits)


async def test_config_of_the_server_reaches_other_event_loops() -> None:
    config = af.SessionConfig(operation_timeout=7, optimizations={"arithmetic": False}, compression="bfloat16")

    async def elsewhere(target: str) -> af.SessionConfig:
        async with af.Session(target, graph=af.Graph()) as session:
            return session.config

    async with cluster("worker", tcp=True, config=config) as (server,):
        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere(server.target))) == config


async def test_config_of_an_unstarted_server_reaches_its_sessions() -> None:
    waits = af.FIFOQueue(1, ["float32"], [[]]).dequeue()
    server = Server.create_local_server(af.SessionConfig(operation_timeout=0.05))
    async with af.Session(server.target) as session:
        assert isinstance(await failure(session.run(waits)), af.errors.DeadlineExceededError)
    await server.stop()


async def test_trace_covers_all_workers() -> None:
    v, product = variable_and_product()
    async with cluster("ps", "worker") as (_, worker), af.Session(worker.target) as session:
        await session.run(v.initializer)
        metadata = af.RunMetadata()
        await session.run(product, options=af.RunOptions(trace_level=af.TraceLevel.FULL), run_metadata=metadata)
    ops = {stats.device: {node.op for node in stats.nodes} for stats in metadata.step_stats}
    assert ops.keys() == {f"{task}/device:CPU:0" for task in TASKS}
    assert {"ReadVariableOp", "_Send"} <= ops[f"{TASKS[0]}/device:CPU:0"]
    assert {"_Recv", "Mul"} <= ops[f"{TASKS[1]}/device:CPU:0"]
    assert all(node.duration >= 0 for stats in metadata.step_stats for node in stats.nodes)


async def test_trace_times_of_all_workers_use_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the workers' clock a thousand seconds ahead."""
    v, product = variable_and_product()
    monkeypatch.setattr(worker_service, "perf_counter", lambda: time.perf_counter() + 1000.0)
    async with cluster("ps", "worker", "worker") as (*_, other), af.Session(other.target) as session:
        await session.run(v.initializer)
        metadata = af.RunMetadata()
        started = time.perf_counter()
        await session.run(product, options=af.RunOptions(trace_level=af.TraceLevel.FULL), run_metadata=metadata)
        ended = time.perf_counter()
    nodes = {node.op: node for stats in metadata.step_stats for node in stats.nodes}
    assert all(started <= started + node.start <= ended for node in nodes.values())
    sent, received = nodes["_Send"], nodes["Mul"]
    assert sent.start < received.start + received.duration  # a value is not received before it is sent


async def test_reset_clears_containers_of_all_workers() -> None:
    v, product = variable_and_product()
    with af.device(PS), af.container("kept"):
        kept = af.Variable(5.0, name="kept")
    async with cluster("ps", "worker") as (_, worker), af.Session(worker.target) as session:
        await session.run([v.initializer, kept.initializer])
        assert (await session.run(product)).tolist() == [2.0, 4.0]
        await af.Session.reset(worker.target, ["", "other"])
        assert isinstance(await failure(session.run(product)), af.errors.FailedPreconditionError)
        assert await session.run(kept) == 5.0
        await session.run(v.initializer)
        await af.Session.reset(worker.target)
        for value in (product, kept):
            assert isinstance(await failure(session.run(value)), af.errors.FailedPreconditionError)
        assert af.get_default_session() is session


async def test_stored_tensors_stay_on_their_worker() -> None:
    x = af.placeholder("float32", [2])
    with af.device(PS):
        there = af.get_session_handle(x * 2.0)
    with af.device("/job:worker/task:0"):
        here = af.get_session_handle(x + 1.0)
        more = af.identity(x, name="more") * 10.0
    async with cluster("ps", "worker") as (ps, worker):
        async with af.Session(worker.target) as session:
            one, two = await session.run([there, here], {x: [1.0, 2.0]})
            assert ("/job:ps/" in one.handle, "/job:ps/" in two.handle) == (True, False)
            holder, tensor = af.get_session_tensor(one.handle, "float32")
            assert (await session.run(tensor + 1.0, {holder: one.handle})).tolist() == [3.0, 5.0]
            assert (await session.run(more, {x: one})).tolist() == [20.0, 40.0]
            assert (await two.eval()).tolist() == [2.0, 3.0]
            await one.delete()
            assert isinstance(await failure(session.run(tensor, {holder: one.handle})), af.errors.InvalidArgumentError)
        async with af.Session(ps.target) as other:
            holder, tensor = af.get_session_tensor(two.handle, "float32")
            assert isinstance(await failure(other.run(tensor, {holder: two.handle})), af.errors.InvalidArgumentError)


async def test_session_config_reaches_the_workers() -> None:
    x = af.placeholder("float32", [])
    with af.device(PS):
        y = af.math.log(x, name="y")
    async with cluster("ps", "worker") as (_, worker):
        async with af.Session(worker.target, config=af.SessionConfig(check_finite=True)) as session:
            error = await failure(session.run(y, {x: -1.0}))
            assert (error.node, "not finite" in str(error)) == ("y", True)
        async with af.Session(worker.target) as session:
            assert np.isnan(await session.run(y, {x: -1.0}))


async def test_local_only_methods_are_refused() -> None:
    x = af.placeholder("float32", [])
    with af.device(PS):
        y = x + 1.0
    async with cluster("ps", "worker") as (_, worker), af.Session(worker.target) as session:
        with pytest.raises(af.errors.UnimplementedError):
            _ = session.worker
        assert await session.run(y, {x: 1.0}) == 2.0


def test_run_sync_keeps_the_connections() -> None:
    """Call `run_sync` without an event loop; the connections persist between the calls."""
    v, product = variable_and_product()
    ready, done = threading.Event(), threading.Event()
    targets: list[str] = []

    async def serve() -> None:
        async with cluster("ps", "worker", tcp=True) as (_, worker):
            targets.append(worker.target)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        with af.Session(targets[0]) as session:
            session.run_sync(v.initializer)
            assert session.run_sync(product).tolist() == [2.0, 4.0]
            with pytest.raises(af.errors.FailedPreconditionError):
                asyncio.run(session.run(product))  # on another event loop
            assert session.run_sync(product).tolist() == [2.0, 4.0]
    finally:
        done.set()
        thread.join()


async def test_concurrent_steps_of_two_sessions_are_applied_once() -> None:
    with af.device(PS):
        v = af.Variable(0.0, name="v")
        add = af.assign_add(v, 1.0)
    with af.device(WORKER), af.control_dependencies([add.op]):
        y = af.identity(v.read_value())
    async with (
        cluster("ps", "worker") as (ps, worker),
        af.Session(ps.target) as one,
        af.Session(worker.target) as two,
    ):
        await one.run(v.initializer)
        async with asyncio.TaskGroup() as tg:
            runs = [tg.create_task(session.run(y)) for session in (one, two) for _ in range(30)]
        assert max(float(run.result()) for run in runs) == 60.0
        assert float(await two.run(v)) == 60.0


# ── bitwise equality ─────────────────────────────────────────────────────────────────────────────────────────────────


def scattered(request: StepRequest, seed: int) -> Plan:
    """Place each node on a random device of two tasks, and users of resources on the first device."""
    rng = random.Random(seed)
    graph = prune(request)
    nodes = {}
    for name, node in graph.nodes.items():
        specs = [*node.outputs, *(graph.spec(edge) for edge in node.inputs)]
        touches = any(spec.dtype is af.resource for spec in specs) or "seed" in node.attrs
        device = f"{TASKS[0 if touches else rng.randrange(2)]}/device:CPU:{0 if touches else rng.randrange(2)}"
        nodes[name] = replace(node, device=device)
    return partition(replace(graph, nodes=nodes))


KINDS = st.sampled_from(["plain", "branches", "loops"])


async def same_bits(seed: int, kind: str, executor: str, tcp: bool) -> None:
    with af.Graph().as_default():
        program = random_program(seed) if kind == "plain" else random_flow_program(seed, loops=kind == "loops")
        fetches = list(program.fetches)
        async with af.Session(config=af.SessionConfig(executor="reference", optimizations=False)) as session:
            whole = await session.run(fetches, program.feeds)
        request = StepRequest(tuple(program.feeds), tuple(fetches))
        feeds = [to_array(v, t.dtype) for t, v in program.feeds.items()]
        async with cluster("ps", "worker", tcp=tcp, config=af.SessionConfig(device_count={"CPU": 2})) as servers:
            remote = RemoteCluster(servers[seed % 2].target)
            await remote.connect()
            config = af.SessionConfig(inline_budget=0.0 if seed % 3 == 0 else 2e-4, executor=executor)
            plan = await remote.register(scattered(request, seed), 0, config)
            step = Step(id=remote.next_step())
            try:
                async with asyncio.timeout(120):
                    parts = await plan.run(feeds, step)
            finally:
                step.finish()
                await remote.close()
        assert bits(parts) == bits(whole)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000), kind=KINDS, executor=st.sampled_from(["strands", "strands", "reference"]))
def test_step_on_two_workers_equals_one_on_a_single_device(seed: int, kind: str, executor: str) -> None:
    asyncio.run(same_bits(seed, kind, executor, tcp=False))


@pytest.mark.parametrize("seed", range(6))
async def test_step_over_tcp_equals_one_on_a_single_device(seed: int) -> None:
    await same_bits(seed, ("loops", "plain", "branches")[seed % 3], ("strands", "reference")[seed // 3], tcp=True)


async def test_opening_the_client_task_of_a_closed_session_is_aborted() -> None:
    """Cancel the background task before it has started."""

    class Closing(Background):
        async def start(self, work: Any) -> Any:
            task = await super().start(work)
            task.cancel()
            return task

    background = Closing()
    own = ClientTask("/job:client/replica:0/task:0", lambda task: pytest.fail(task), background)
    async with asyncio.timeout(60):
        for _ in range(2):
            assert isinstance(await failure(own.open(1.0)), af.errors.AbortedError)
    await background.close()


async def test_session_that_was_not_entered_connects_on_first_use(graph: af.Graph) -> None:
    async def partially(session: af.Session) -> Any:
        handle = await session.partial_run_setup([y], [x])
        return await session.partial_run(handle, y, {x: fed})

    async def streamed(session: af.Session) -> Any:
        async with session.stream(y, {x: fed}) as steps:
            return await anext(steps)

    fed = np.ones((1, 2), np.float32)
    async with cluster("worker", "worker") as servers, asyncio.timeout(60):
        with af.device("/job:worker/task:1"):
            x = af.placeholder(af.float32, [None, 2])
            y = x * 2.0
        for use in (
            partially,
            streamed,
            lambda session: session.run(y, {x: fed}),
            lambda session: session.batched(y, [x])(fed),
            lambda session: session.make_callable(y, [x])(fed),
        ):
            session = af.Session(servers[0].target, graph=graph)
            np.testing.assert_array_equal(await use(session), fed * 2)
            await session.close()


@pytest.mark.parametrize("tcp", [False, True], ids=["inproc", "tcp"])
async def test_partial_run_fetches_from_another_server_of_the_process(graph: af.Graph, tcp: bool) -> None:
    async with cluster("worker", "worker", tcp=tcp) as servers:
        with af.device("/job:worker/task:1"):
            x = af.placeholder(af.float32, [])
            doubled = x + x
            more = doubled + 1
        async with asyncio.timeout(60), af.Session(servers[0].target, graph=graph) as session:
            handle = await session.partial_run_setup([doubled, more], [x])
            assert await session.partial_run(handle, doubled, {x: 3.0}) == 6
            assert await session.partial_run(handle, more) == 7


@pytest.mark.parametrize("chief", ["session", "monitored session"])
async def test_servers_of_one_program_listen_when_first_needed(chief: str) -> None:
    """Run a program written for TensorFlow, whose servers listen from their construction."""
    spec = {job: [f"{address}"] for job, address in zip(("ps", "worker"), free_addresses(2), strict=True)}
    ps, worker = Server(spec, "ps", 0), Server(spec, "worker", 0)
    try:
        with af.device("/job:ps"):
            step = af.train.get_or_create_global_step()
        add = step.assign_add(1)
        async with asyncio.timeout(60.0):
            if chief == "session":
                async with af.Session(worker.target) as session:
                    await session.run(step.initializer)
                    assert await session.run(add) == 1
            else:
                async with af.train.MonitoredTrainingSession(worker.target) as monitored:
                    assert await monitored.run(add) == 1
    finally:
        await worker.stop()
        await ps.stop()


@pytest.mark.parametrize("why", ["it is not to", "it is another thread's"])
async def test_server_does_not_start_if_disabled_or_of_another_thread(why: str) -> None:
    spec = {"worker": free_addresses(2)}
    first = Server(spec, "worker", 0)
    if why == "it is not to":
        second = Server(spec, "worker", 1, start=False)
    else:
        second = await asyncio.to_thread(Server, spec, "worker", 1)
    try:
        async with af.Session(first.target, config=af.SessionConfig(operation_timeout=2.0)) as session:
            with af.device("/job:worker/task:1"):
                there = af.constant(1.0) + 1.0
            with pytest.raises((af.errors.UnavailableError, af.errors.DeadlineExceededError)):
                await session.run(there)
    finally:
        await first.stop()
        await second.stop()

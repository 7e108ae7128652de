"""The contract of a worker, as executable checks: `await check_worker(factory)` tests one against `WorkerAPI`.

The contract is `aioflow.runtime.worker.WorkerAPI`. A factory opens one or two workers for the duration of a block:

- `in_process()`: the worker of a local session.
- `served(scheme)`: two servers, both reached over connections.
- `beside()`: two servers, the first one used without a connection.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

import aioflow as af
from aioflow.compiler.ir import Node, Plan
from aioflow.compiler.partition import partition
from aioflow.compiler.prune import StepRequest, prune
from aioflow.config import SessionConfig
from aioflow.errors import (
    AioflowError,
    CancelledError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from aioflow.graph.arrays import to_array
from aioflow.graph.device_spec import task_of
from aioflow.memory.values import Value
from aioflow.net.channel import Channel
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.remote_worker import RemoteWorker
from aioflow.net.server import Server, client_options, target_address
from aioflow.net.transports import connect
from aioflow.runtime.parts import StepOfParts
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker, WorkerAPI

__all__ = ["JOINT_CHECKS", "SINGLE_CHECKS", "Check", "Factory", "beside", "check_worker", "in_process", "served"]

Workers: TypeAlias = Sequence[WorkerAPI]
Factory: TypeAlias = Callable[[], AbstractAsyncContextManager[Workers]]
Check: TypeAlias = Callable[[Workers], Awaitable[None]]
Assign: TypeAlias = Callable[[Node], str]

_SECONDS: Final = 60.0  # the limit of one check, so that a hang becomes a TimeoutError
_STEPS: Final = itertools.count(1)
_NUMBERS: Final = itertools.count(1)


async def check_worker(factory: Factory) -> None:
    """Run every check. The checks of steps on two workers run only if the factory opens two.

    Raises:
        InternalError: the worker breaks the contract; the message states how.
        TimeoutError: a check hangs.
    """
    # Opened once only to learn the number of workers.
    async with factory() as workers:
        pass
    for check in (*SINGLE_CHECKS, *(JOINT_CHECKS if len(workers) > 1 else ())):
        async with asyncio.timeout(_SECONDS), factory() as workers:
            await check(workers)


# ── factories ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_process() -> Factory:
    """Return a factory of one worker, that of a local session."""

    @asynccontextmanager
    async def factory() -> AsyncIterator[Workers]:
        yield [Worker()]

    return factory


@asynccontextmanager
async def _servers(scheme: str) -> AsyncIterator[list[Server]]:
    number = next(_NUMBERS)
    # A number in the address, because checks of one process share the namespace of addresses.
    addresses = [f"inproc://check-{number}-{i}" for i in range(2)] if scheme == "inproc" else free_addresses(2)
    async with AsyncExitStack() as stack:
        servers = [Server({"worker": addresses}, "worker", index) for index in range(2)]
        for server in servers:
            await stack.enter_async_context(server)
        yield servers


@asynccontextmanager
async def _channel(server: Server) -> AsyncIterator[Channel]:
    async with Channel(await connect(target_address(server.target), options=client_options(), peer=server.task)) as it:
        yield it


def served(scheme: str) -> Factory:
    """Return a factory of two servers behind connections; `scheme` is "inproc" or "tcp"."""

    @asynccontextmanager
    async def factory() -> AsyncIterator[Workers]:
        async with _servers(scheme) as servers, AsyncExitStack() as stack:
            # Peers are known by their incarnation, so that a restarted server is noticed.
            peers = {server.task: server.incarnation for server in servers}
            channels = [await stack.enter_async_context(_channel(server)) for server in servers]
            yield [RemoteWorker(channel, peers) for channel in channels]

    return factory


def beside() -> Factory:
    """Return a factory of two servers, the first of which the client uses without a connection, as a session does."""

    @asynccontextmanager
    async def factory() -> AsyncIterator[Workers]:
        async with _servers("inproc") as (here, there):
            peers = {server.task: server.incarnation for server in (here, there)}
            session = await here.open_session(peers)
            try:
                async with _channel(there) as channel:
                    yield [session, RemoteWorker(channel, peers)]
            finally:
                await session.close()

    return factory


# ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _require(condition: bool, what: str, expected: object = None, actual: object = None) -> None:
    if not condition:
        raise InternalError(what, expected=expected, actual=actual)


_Error = TypeVar("_Error", bound=AioflowError)


async def _failure(kind: type[_Error], what: str, awaitable: Awaitable[object]) -> _Error:
    """Return the error that `awaitable` raises. Raise InternalError if it does not raise one of this kind."""
    try:
        result = await awaitable
    except kind as error:
        return error
    raise InternalError(what, expected=kind.__name__, actual=result)


def _bits(values: Sequence[Value]) -> list[object]:
    arrays = [np.asarray(value) for value in values]
    return [(a.dtype, a.shape, a.tolist() if a.dtype == object else a.tobytes()) for a in arrays]


async def _plan(workers: Workers, request: StepRequest, assign: Assign | None = None) -> Plan:
    """Return the plan of a step; without `assign` all nodes are on the first device."""
    first = (await workers[0].state()).devices[0]
    graph = prune(request)
    nodes = {name: replace(node, device=assign(node) if assign else first) for name, node in graph.nodes.items()}
    return partition(replace(graph, nodes=nodes))


async def _register(workers: Workers, plan: Plan) -> StepOfParts:
    homes = {task_of((await worker.state()).devices[0]): worker for worker in workers}
    parts = [
        (homes[task], part, await homes[task].register(part, 1, SessionConfig())) for task, part in plan.parts.items()
    ]
    return StepOfParts(parts)


async def _run(registered: StepOfParts, feeds: Sequence[Value] = (), step: Step | None = None) -> list[Any]:
    step = step or Step(id=next(_STEPS))
    try:
        return await registered.run(feeds, step)
    finally:
        step.finish()


async def _prepared(
    workers: Workers, fetches: Sequence[af.Tensor | af.Operation], feeds: Sequence[af.Tensor] = ()
) -> StepOfParts:
    tensors = tuple(f for f in fetches if isinstance(f, af.Tensor))
    operations = tuple(f for f in fetches if isinstance(f, af.Operation))
    return await _register(workers, await _plan(workers, StepRequest(tuple(feeds), tensors, operations)))


def _halves(devices: Sequence[str], names: Mapping[str, int]) -> Assign:
    """Return a placement by name: `names` maps a prefix to a device index; all other nodes go to the first device."""

    def assign(node: Node) -> str:
        return devices[next((n for name, n in names.items() if node.name.startswith(name)), 0)]

    return assign


async def _devices(workers: Workers) -> list[str]:
    return [(await worker.state()).devices[0] for worker in workers]


# ── one worker ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fetches_come_in_order(workers: Workers) -> None:
    """Check that fetches come in the order of the request, whatever the order of the nodes. A feed may be unused."""
    with af.Graph().as_default():
        x, unused, y = (af.placeholder("float32", [2], name=name) for name in ("x", "unused", "y"))
        plan = await _prepared(workers, [y * 2.0, x + 1.0, y], [x, unused, y])
    feeds = [np.array(v, np.float32) for v in ([1, 2], [9, 9], [3, 4])]
    values = await _run(plan, feeds)
    _require([v.tolist() for v in values] == [[6, 8], [2, 3], [3, 4]], "wrong fetches", None, values)


async def values_keep_their_types(workers: Workers) -> None:
    """Check that every kind of value returns with the type that a local session returns."""
    given: list[Any] = [
        np.float32(1.5),
        np.array([], np.float64),
        np.int64(-3),
        np.bool_(True),
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.array([1 + 2j], np.complex64),
        np.array([b"a", b"", b"long" * 100], object),
        np.array([[True], [False]]),
    ]
    with af.Graph().as_default():
        fed = [af.placeholder(af.as_dtype(v.dtype), v.shape) for v in given]
        # A copy of each feed: a fetch of the feed itself would test nothing.
        whole = [*(af.identity(t) for t in fed), af.constant("text"), af.constant(2, af.int32), af.constant([0.5])]
        plan = await _prepared(workers, whole, fed)
    values = await _run(plan, given)
    expected = [*given, b"text", np.int32(2), np.array([0.5], np.float32)]
    _require(_bits(values) == _bits(expected), "a value changed", expected, values)
    kinds = [type(value) for value in values]
    _require(kinds == [type(e) for e in expected], "a value has a different type", [type(e) for e in expected], kinds)


async def fetched_values_belong_to_the_caller(workers: Workers) -> None:
    """Check that a change of a fetched array does not change the variable."""
    with af.Graph().as_default():
        v = af.Variable([1.0, 2.0], name="kept")
        init = await _prepared(workers, [v.initializer])
        read = await _prepared(workers, [v.read_value()])
    await _run(init)
    (value,) = await _run(read)
    # In place: the array must be the caller's own.
    value[:] = 0.0
    (again,) = await _run(read)
    _require(again.tolist() == [1.0, 2.0], "a fetched array shares memory with the variable", [1.0, 2.0], again)


async def state_outlives_steps(workers: Workers) -> None:
    """Check that variables belong to the worker, not to a step."""
    with af.Graph().as_default():
        v = af.Variable(1.0, name="counter")
        init = await _prepared(workers, [v.initializer])
        add = await _prepared(workers, [af.identity(af.assign_add(v, 1.0))])
    error = await _failure(FailedPreconditionError, "an uninitialized variable was read", _run(add))
    _require("counter" in str(error), "the error does not name the variable", "counter", str(error))
    await _run(init)
    values = [float((await _run(add))[0]) for _ in range(3)]
    _require(values == [2.0, 3.0, 4.0], "a variable lost its value between steps", [2.0, 3.0, 4.0], values)


async def an_unknown_handle_is_refused(workers: Workers) -> None:
    """Check that a part that was never registered, or was deregistered, cannot be run, while other parts can."""
    worker = workers[0]
    with af.Graph().as_default():
        plans = [await _plan(workers, StepRequest((), (af.constant(v),))) for v in (1.0, 2.0)]
    parts = [part for plan in plans for part in plan.parts.values()]
    handles = [await worker.register(part, 1, SessionConfig()) for part in parts]
    await worker.deregister(handles[0])
    for handle in (handles[0], 12345):
        await _failure(
            NotFoundError, "a run of an unknown handle succeeded", worker.run(handle, [], Step(id=next(_STEPS)))
        )
    values = await worker.run(handles[1], [], Step(id=next(_STEPS)))
    _require(values == [2.0], "the wrong part was deregistered", [2.0], values)


async def the_number_of_feeds_is_checked(workers: Workers) -> None:
    """Check that too few or too many feeds are rejected, even if some of them are not read."""
    worker = workers[0]
    with af.Graph().as_default():
        x, unused = (af.placeholder("float32", [], name=name) for name in ("x", "unused"))
        request = StepRequest((x, unused), (x + 1.0,))
        (part,) = (await _plan(workers, request)).parts.values()
    handle = await worker.register(part, 1, SessionConfig())
    # Also with the right number for the nodes that are read.
    for feeds in ([], [np.float32(1)], [np.float32(1)] * 3):
        step = Step(id=next(_STEPS))
        try:
            run = worker.run(handle, feeds, step)
            await _failure(InvalidArgumentError, "a step with the wrong number of feeds ran", run)
        finally:
            step.finish()


async def state_counts(workers: Workers) -> None:
    """Check that `state` reports the number of registered parts."""
    worker = workers[0]
    before = await worker.state()
    with af.Graph().as_default():
        plan = await _prepared(workers, [af.constant(1.0)])
    during = await worker.state()
    await plan.deregister()
    after = await worker.state()
    counts = [s.registered - before.registered for s in (during, after)]
    _require(counts == [1, 0], "wrong number of registered parts", [1, 0], counts)
    _require(bool(before.devices) and before.running == 0, "wrong state", "devices, and no running step", before)


async def steps_run_at_once(workers: Workers) -> None:
    """Check that steps run concurrently: a step that waits for an element receives it from another step."""
    with af.Graph().as_default():
        queue = af.FIFOQueue(10, [af.float32], shapes=[()], shared_name="check")
        x = af.placeholder("float32", [])
        put = await _prepared(workers, [queue.enqueue(x)], [x])
        get = await _prepared(workers, [queue.dequeue()])
    async with asyncio.TaskGroup() as tg:
        # All dequeues first, so that they wait when the elements come.
        taken = [tg.create_task(_run(get)) for _ in range(20)]
        for number in range(20):
            tg.create_task(_run(put, [np.float32(number)]))
    values = sorted(float(task.result()[0]) for task in taken)
    _require(values == [float(n) for n in range(20)], "elements were lost or received twice", None, values)


async def an_error_names_its_node(workers: Workers) -> None:
    """Check that a kernel's error keeps its class, its node and the line that created the node.

    The worker must be able to run the step again.
    """
    with af.Graph().as_default():
        x = af.placeholder("float32", [None])
        bad = af.reshape(x, [2, 2], name="bad")
        plan = await _prepared(workers, [bad], [x])
    error = await _failure(
        InvalidArgumentError, "a reshape to a wrong size succeeded", _run(plan, [np.ones(3, np.float32)])
    )
    _require((error.node, error.op_type) == ("bad", "Reshape"), "wrong node in the error", "bad (Reshape)", error.node)
    _require(
        error.source is not None and error.source.lineno > 0, "no source line in the error", "a line", error.source
    )
    (value,) = await _run(plan, [np.ones(4, np.float32)])
    _require(value.shape == (2, 2), "the worker returns a wrong result after an error", (2, 2), value.shape)


async def _stuck(workers: Workers) -> StepOfParts:
    """Register a step that waits forever."""
    with af.Graph().as_default():
        queue = af.FIFOQueue(1, [af.float32], shapes=[()])
        return await _prepared(workers, [queue.dequeue(name="waits")])


async def _until_running(worker: WorkerAPI, steps: int = 1) -> None:
    while (await worker.state()).running < steps:  # noqa: ASYNC110  # the step may run in another process
        # Polling: the step may run in another process, so no event can tell.
        await asyncio.sleep(0.001)


async def an_aborted_step_stops(workers: Workers) -> None:
    """Check that `abort` ends the step with this id, with the given error, and leaves another step running."""
    worker, plan = workers[0], await _stuck(workers)
    first, second = Step(id=next(_STEPS)), Step(id=next(_STEPS))
    async with asyncio.TaskGroup() as tg:
        run = tg.create_task(_failure(CancelledError, "an aborted step continued", _run(plan, step=first)))
        other = tg.create_task(_failure(CancelledError, "an aborted step continued", _run(plan, step=second)))
        await _until_running(worker, 2)
        await worker.abort(first.id, CancelledError("the reason for it"))
        error = await run
        # Only the step with this id.
        _require(not other.done(), "another step was aborted")
        await worker.abort(second.id, CancelledError("another reason"))
    _require("the reason for it" in str(error), "wrong error message", "the reason for it", str(error))
    _require("another reason" in str(other.result()), "wrong error message", "another reason", other.result())
    await worker.abort(99, CancelledError("nothing"))  # an unknown step is ignored


async def cancelling_leaves_nothing(workers: Workers) -> None:
    """Check that a cancelled call ends only when nothing of its step runs any more."""
    worker, plan = workers[0], await _stuck(workers)
    async with asyncio.TaskGroup() as tg:
        run = tg.create_task(_run(plan))
        await _until_running(worker)
        run.cancel()
        # `wait` does not raise the cancellation.
        await asyncio.wait([run])
        _require(run.cancelled(), "a cancelled run did not raise CancelledError", "cancelled", run)
        state = await worker.state()
    _require(state.running == 0, "a cancelled step is still running", 0, state.running)


async def a_stopped_step_stops(workers: Workers) -> None:
    """Check that `Step.stop` ends a step, as closing a session does."""
    worker, plan = workers[0], await _stuck(workers)
    step = Step(id=next(_STEPS))
    async with asyncio.TaskGroup() as tg:
        run = tg.create_task(_failure(CancelledError, "a stopped step continued", _run(plan, step=step)))
        await _until_running(worker)
        step.stop(CancelledError("the session was closed"))
        error = await run
    _require("the session was closed" in str(error), "wrong error message", "the session was closed", str(error))
    _require((await worker.state()).running == 0, "a stopped step is still running")
    stopped = await _failure(CancelledError, "a step ran after it was stopped", _run(plan, step=step))
    _require("the session was closed" in str(stopped), "wrong error message", "the session was closed", str(stopped))


async def large_tensors_go_both_ways(workers: Workers) -> None:
    """Check that 20 MB pass in and out, beside small steps."""
    with af.Graph().as_default():
        x = af.placeholder("float32", [None])
        large = await _prepared(workers, [-x], [x])
        small = await _prepared(workers, [af.constant(1.0) + 1.0])
    value = np.arange(5_000_000, dtype=np.float32)
    async with asyncio.TaskGroup() as tg:
        run = tg.create_task(_run(large, [value]))
        for _ in range(10):
            await _run(small)
    _require(bool(np.array_equal(run.result()[0], -value)), "a large tensor changed")


SINGLE_CHECKS: Final[tuple[Check, ...]] = (
    fetches_come_in_order,
    values_keep_their_types,
    fetched_values_belong_to_the_caller,
    state_outlives_steps,
    an_unknown_handle_is_refused,
    the_number_of_feeds_is_checked,
    state_counts,
    steps_run_at_once,
    an_error_names_its_node,
    an_aborted_step_stops,
    cancelling_leaves_nothing,
    a_stopped_step_stops,
    large_tensors_go_both_ways,
)


# ── two workers ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def tensors_cross_both_ways(workers: Workers) -> None:
    """Check that values pass from each worker to the other within one step, in several concurrent steps."""
    devices = await _devices(workers)
    with af.Graph().as_default():
        x = af.placeholder("float32", [2], name="x")
        a = af.add(x, 1.0, name="there_a")
        b = af.multiply(a, 3.0, name="here_b")
        c = af.add(b, a, name="there_c")
        words = af.identity(af.constant(["a", "bc"]), name="here_words")
        request = StepRequest((x,), (c, b, af.identity(words, name="there_words")))
        plan = await _register(workers, await _plan(workers, request, _halves(devices, {"there": 1})))
    async with asyncio.TaskGroup() as tg:
        runs = [tg.create_task(_run(plan, [np.array([n, -n], np.float32)])) for n in range(30)]
    for n, run in enumerate(runs):
        c_value, b_value, text = run.result()
        wanted = [[4.0 * n + 4, 4.0 - 4 * n], [3.0 * n + 3, 3.0 - 3 * n], [b"a", b"bc"]]
        got = [c_value.tolist(), b_value.tolist(), text.tolist()]
        _require(got == wanted, "values changed between the workers", wanted, got)


async def dead_values_and_loops_cross(workers: Workers) -> None:
    """Check that a branch and a loop over two workers return the values that they return on one device."""
    devices = await _devices(workers)
    with af.Graph().as_default():
        n = af.placeholder("int32", [], name="n")
        x = af.placeholder("float32", [3], name="x")
        side = af.cond(n > 2, lambda: af.tanh(x) * 2.0, lambda: af.exp(x))
        _, total = af.while_loop(lambda i, _: i < n, lambda i, t: (i + 1, af.sin(t) + side), [0, x])
        request = StepRequest((n, x), (total, side))
        whole = await _register(workers, await _plan(workers, request))
        # Nodes alternate between the devices, so that nearly every edge crosses.
        numbers = itertools.count()
        cut = await _plan(workers, request, lambda _: devices[next(numbers) % 2])
        plan = await _register(workers, cut)
    for count in (0, 1, 3, 7):
        feeds = [np.int32(count), to_array([0.1, -2.0, 3.0], af.float32)]
        one, two = await _run(whole, feeds), await _run(plan, feeds)
        _require(_bits(one) == _bits(two), "two workers computed a different result than one worker", one, two)


async def a_failure_stops_both(workers: Workers) -> None:
    """Check that a failure of one worker reaches the caller while the other one waits for it, and that both stop."""
    devices = await _devices(workers)
    with af.Graph().as_default():
        x = af.placeholder("float32", [None], name="x")
        bad = af.reshape(x, [2, 2], name="there_bad")
        read = af.identity(bad, name="here_read")
        queue = af.FIFOQueue(1, [af.float32], shapes=[()], name="here_queue")
        request = StepRequest((x,), (read, queue.dequeue(name="here_waits")))
        plan = await _register(workers, await _plan(workers, request, _halves(devices, {"there": 1})))
    error = await _failure(
        InvalidArgumentError, "a reshape to a wrong size succeeded", _run(plan, [np.ones(3, np.float32)])
    )
    _require(error.node == "there_bad", "the error is not the first failure", "there_bad", error.node)
    running = [(await worker.state()).running for worker in workers]
    _require(running == [0, 0], "a failed step is still running", [0, 0], running)


async def large_tensors_cross(workers: Workers) -> None:
    """Check that 20 MB pass from worker to worker."""
    devices = await _devices(workers)
    with af.Graph().as_default():
        x = af.fill([5_000_000], 0.5, name="there_x")
        y = af.reduce_sum(af.identity(x, name="here_x"), name="here_y")
        request = StepRequest((), (y,))
        plan = await _register(workers, await _plan(workers, request, _halves(devices, {"there": 1})))
    for _ in range(3):
        (value,) = await _run(plan)
        _require(float(value) == 2_500_000.0, "a large tensor changed", 2_500_000.0, value)


JOINT_CHECKS: Final[tuple[Check, ...]] = (
    tensors_cross_both_ways,
    dead_values_and_loops_cross,
    a_failure_stops_both,
    large_tensors_cross,
)

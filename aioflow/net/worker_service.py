"""A worker for clients with connections: each message is one call of a `WorkerSession` method.

Each connection is one client. When it ends, the client's parts, steps and state are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from time import monotonic, perf_counter
from typing import Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import Part
from aioflow.concurrency.threads import in_thread
from aioflow.errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.memory.values import Array, Value
from aioflow.net.channel import Channel, Reply, Service, ServiceRequest, Taker
from aioflow.net.comm import Comm, Idle
from aioflow.net.errors_codec import decode_error, encode_error
from aioflow.net.exchange import UNANSWERED
from aioflow.net.framing import Packed
from aioflow.net.limits import Quota
from aioflow.net.messages import (
    ABORT,
    CLAIM,
    CLOCK,
    DELIVER,
    DEREGISTER,
    HELLO,
    HOLDS,
    REGISTER,
    REPORT,
    RESET,
    RUN,
    SETTLE,
    STATE,
    STATUS,
    TRACEPARENT,
    UNDERSTANDS,
    WANTED,
    Abort,
    Aborted,
    Clock,
    Greeting,
    Handle,
    Hello,
    Parsed,
    Ran,
    Register,
    Reset,
    Run,
    State,
    Understands,
    Wanted,
    WhetherWanted,
    config_of,
    from_wire,
    pack_stats,
    parse,
    to_wire_value,
)
from aioflow.net.outbox import Outbox
from aioflow.net.plan_codec import decode_part
from aioflow.net.requests import OpenRequests, all_open_requests
from aioflow.net.resource_directory import ResourceDirectory, pack_rows, pack_texts, read_homes, read_rows
from aioflow.net.status import ServerStatus, loop_lag, pack_status
from aioflow.net.step_table import Origin
from aioflow.net.task_worker import TaskWorker
from aioflow.runtime.handing_over import Unfinished
from aioflow.runtime.spans import process_spans
from aioflow.runtime.stats import FiniteProbe, TraceProbe
from aioflow.runtime.step import Step

_NODE: Final = 4 << 10  # estimated bytes of a node, including its kernel and code
_LARGE_PLAN: Final = 64 << 10  # bytes; larger plans are decoded in a thread, so as not to block the event loop
_ERROR_BYTES: Final = 16 << 10
_SOONER: Final = 0.7  # fraction of the client's time limit after which it is told the reason for its wait
_ANSWER_SECONDS: Final = 5.0  # for a client to answer
_LONGEST: Final = 86_400.0 * 365  # seconds; not every event loop supports longer timers

_Succeed: TypeAlias = Callable[["_Client", Sequence[int], float | None], Awaitable[None]]


class _Part:
    """The facts about a registered part that are needed to run it.

    Args:
        part: The part; None for a handle that is not registered.
        check_finite: Whether values are checked to be finite.
        size: Estimated bytes of the part.
    """

    __slots__ = ("check_finite", "feeds", "ran", "sends", "size", "specs", "total")

    def __init__(self, part: Part | None, check_finite: bool, size: int = 0) -> None:
        self.size = size
        self.feeds = () if part is None else part.feeds
        self.specs = () if part is None else part.feed_specs
        self.total = 0 if part is None else part.all_feeds
        self.check_finite = check_finite
        self.sends = part is not None and bool(part.destinations)
        self.ran = Packed(Ran(None, 0.0)._asdict())

    def spread(self, tensors: Sequence[Array]) -> list[Value]:
        """Return the feeds of the whole step, with those of this part taken from the message.

        Raises:
            InvalidArgumentError: the number of feeds is wrong, or one does not have the dtype or shape declared by the
                part.
        """
        if len(tensors) != len(self.feeds):
            raise InvalidArgumentError("wrong number of feeds", expected=len(self.feeds), actual=len(tensors))
        # The feeds of other parts stay None: nothing in this part reads them.
        values: list[Value] = [None] * self.total
        for index, spec, tensor in zip(self.feeds, self.specs, tensors, strict=True):
            if tensor.dtype != spec.dtype.np_dtype or not is_compatible(spec.dims, tensor.shape):
                raise InvalidArgumentError(
                    f"feed {index} does not fit the part",
                    expected=f"{spec.dtype} {format_dims(spec.dims)}",
                    actual=f"{tensor.dtype} {tensor.shape}",
                )
            values[index] = from_wire(tensor)
        return values


def _stop_after(seconds: float, step: Step) -> None:
    """Stop the step after this time: its client has given it up by then, and may be unable to report that."""
    late = DeadlineExceededError("the step exceeded its timeout", expected=f"at most {seconds:g} s")
    timer = asyncio.get_running_loop().call_later(min(seconds, _LONGEST), step.stop, late)
    step.releases.append(timer.cancel)


def _ran(part: _Part, values: Sequence[Value]) -> Reply:
    return Reply(part.ran, [to_wire_value(value) for value in values])


async def _when_finished(part: _Part, values: Unfinished) -> Reply:
    return _ran(part, await values.finish())


class WorkerService:
    """The server side of all connections to one worker.

    Args:
        worker: The worker.
        hello: Returns the description of the server.
        homes: The resource directory.
        status: Returns the status of the server.
        has_sent_all: Returns True if all values for other tasks have arrived.
    """

    def __init__(
        self,
        worker: TaskWorker,
        hello: Callable[[], Hello],
        homes: ResourceDirectory,
        status: Callable[[], ServerStatus],
        has_sent_all: Callable[[], bool],
    ) -> None:
        self._worker = worker
        self._has_sent_all = has_sent_all
        self._status = status
        self._hello = hello
        self._homes = homes
        self._open: Quota | None = None  # limits the open requests of all clients
        self._connected: dict[_Client, None] = {}
        self._clients: dict[int, dict[_Client, None]] = {}  # clients that have sent HELLO, by incarnation

    async def serve(self, comm: Comm) -> None:
        """Serve one connection until it ends. A cancellation closes it gracefully if nothing is left to do for it."""
        # One quota for all clients of the worker, made with the first connection.
        room = self._open = self._open or all_open_requests(comm.limits)
        requests = OpenRequests(comm.limits, room)
        client = _Client(self._worker, self._hello(), self._homes, comm, self._succeed, requests, self._status)
        self._connected[client] = None
        comm.idle, comm.tell = client.idle, client.channel.tell
        try:
            async with client.outbox, client.channel:
                try:
                    await client.channel.wait_ended()
                except asyncio.CancelledError:
                    # The normal end of a program cancels all tasks, and must not look like a crash to other tasks.
                    if client.idle() is not None and self._has_sent_all():
                        await client.channel.close()
                    raise
        finally:
            del self._connected[client]
            await client.close()
            same = self._clients.get(comm.peer_incarnation, {})
            # `pop` returns None only for a client that has sent HELLO.
            if same.pop(client, client) is None and not same:
                del self._clients[comm.peer_incarnation]

    @property
    def connections(self) -> int:
        """Number of connections being served."""
        return len(self._connected)

    @property
    def is_quiet(self) -> bool:
        """True if no values for the clients' own tasks are left to send."""
        return all(client.outbox.is_empty for client in self._connected)

    async def answered(self) -> None:
        """Wait until all requests received so far are answered."""
        for client in list(self._connected):
            await client.channel.answered()

    async def close_gracefully(self) -> None:
        """Close all connections gracefully and wait until they have ended."""
        clients = list(self._connected)
        for client in clients:
            await client.channel.end("the server has shut down")
        for client in clients:
            await client.ended.wait()

    async def _succeed(self, client: _Client, ended: Sequence[int], seconds: float | None) -> None:
        """End the client's previous connections and those of closed sessions, and wait until none of their steps runs.

        The client has given these connections up, which the network may not have reported to this end. Without this, a
        step that waits or computes here would continue, and be applied after all.

        Args:
            client: The new connection.
            ended: Incarnations of closed sessions.
            seconds: Time limit.

        Raises:
            UnavailableError: a step still computes after the time limit, and cannot be stopped.
        """
        number = client.channel.comm.peer_incarnation
        before = [other for one in {number, *ended} for other in self._clients.get(one, ()) if other is not client]
        # No await since the list was made, and registered before waiting: a still newer connection will end this one,
        # too.
        self._clients.setdefault(number, {})[client] = None
        for other in before:
            other.channel.comm.abort("the client opened a new connection")
        try:
            async with asyncio.timeout(seconds):
                for other in before:
                    await other.ended.wait()
        except TimeoutError as error:
            raise UnavailableError(
                "a step that the client abandoned is still running here; it can stop only when its kernel returns"
            ) from error


class _Client:
    """One connection.

    Args:
        worker: The worker.
        hello: Description of the server.
        homes: The resource directory.
        comm: The comm of the connection.
        succeed: Ends the client's previous connections and those of its closed sessions.
        open_requests: Limits the open requests of this connection.
        status: Returns the status of the server.

    Attributes:
        outbox: Sends values to the client's own task.
        channel: The channel over the comm.
        ended: Set when nothing of the client is left.
    """

    def __init__(
        self,
        worker: TaskWorker,
        hello: Hello,
        homes: ResourceDirectory,
        comm: Comm,
        succeed: _Succeed,
        open_requests: OpenRequests,
        status: Callable[[], ServerStatus],
    ) -> None:
        self._server_status = status
        self.ended = asyncio.Event()
        self._succeed = succeed
        self._homes = homes
        self._hello = hello._asdict()
        self._peers: dict[str, int] = {}
        self._parts: dict[int, _Part] = {}
        services: Mapping[str, Service] = {
            HELLO: self._greet,
            REGISTER: self._register,
            DEREGISTER: self._deregister,
            RUN: self._run,
            CLOCK: self._clock,
            REPORT: self._report,
            ABORT: self._abort,
            SETTLE: self._resolve,
            HOLDS: self._holds,
            CLAIM: self._claim,
            STATE: self._state,
            STATUS: self._status,
            RESET: self._reset,
            UNDERSTANDS: self._understands,
        }
        self.outbox = Outbox(self._reach, most=comm.limits.unsent_bytes)
        self._session = worker.open_session(self._peers, Origin(self.outbox.push))
        takers: Mapping[str, Taker] = {DELIVER: partial(worker.deliver, source=self._session.number)}
        self.channel = Channel(comm, services, takers, open_requests)
        self._steps = worker.steps
        self._is_task = worker.is_task
        self._limits = comm.limits
        self._asked = Parsed(Run)
        self._quota = Quota("registered parts of one client", comm.limits.parts, comm.limits.part_bytes)
        self._running = Quota("concurrent steps of one client", comm.limits.steps, 0)

    @asynccontextmanager
    async def _reach(self, task: str) -> AsyncIterator[Channel]:
        yield self.channel

    def idle(self) -> Idle | None:
        """Return since when the connection has been idle, or None if it is in use."""
        if self.channel.is_busy or not self.outbox.is_empty:
            return None
        return Idle(bool(self._parts), self.channel.comm.used_at)

    async def close(self) -> None:
        self._steps.lose(self._session.number)
        try:
            await self._session.close()
        finally:
            self.ended.set()

    async def _greet(self, request: ServiceRequest) -> Reply:
        ended = parse(Greeting, request.header).ended if request.header else ()
        # Fail before the client gives up, so that it receives the reason.
        seconds = None if request.timeout is None else _SOONER * request.timeout
        await self._succeed(self, ended, seconds)
        return Reply(self._hello)

    async def _register(self, request: ServiceRequest) -> Reply:
        asked = parse(Register, request.header)
        config = config_of(asked.config)
        tensors = list(request.tensors)
        size = sum(tensor.nbytes for tensor in tensors)
        # First room for the received bytes, then for the estimate of the bound part, whose size is unknown before.
        with self._quota.reserved(1, size):
            if sum(tensor.nbytes for tensor in tensors[:1]) > _LARGE_PLAN:
                part = await in_thread(decode_part, asked.part, tensors, self._limits, effects=False)
            else:
                part = decode_part(asked.part, tensors, self._limits)
        size += part.size * _NODE
        with self._quota.reserved(1, size):
            handle = await self._session.register(part, 0, config)
            self._quota.add(1, size)
        self._peers.update((task, number) for task, number in asked.peers.items() if self._is_task(task))
        self._parts[handle] = _Part(part, config.check_finite, size)
        return Reply({"handle": handle})

    async def _deregister(self, request: ServiceRequest) -> None:
        handle = parse(Handle, request.header).handle
        part = self._parts.pop(handle, None)
        if part is not None:
            self._quota.give(1, part.size)
        await self._session.deregister(handle)

    def _run(self, request: ServiceRequest) -> Reply | Awaitable[Reply]:
        """Run one step, at once if it is short."""
        asked = self._asked(request.header)
        part = self._parts.get(asked.handle)
        is_late = self.channel.comm.since(asked.beat) > asked.patience
        is_reported = asked.traceparent is not None and process_spans() is not None
        if part is None or is_late or asked.trace or is_reported or part.check_finite:
            return self._run_in_task(request, asked)
        step = Step(None, request.number)
        step.begun = set()
        try:
            values = self._session.run_brief(asked.handle, part.spread(request.tensors), step)
        except OpError as error:
            step.account(error)
            raise
        finally:
            step.finish()
        if values is None:
            return self._run_in_task(request, asked)
        if part.sends:
            self._follow(step)
        if not asked.answered:
            return UNANSWERED
        return _ran(part, values) if isinstance(values, list) else _when_finished(part, values)

    async def _run_in_task(self, request: ServiceRequest, asked: Run) -> Reply:
        try:
            self._running.take(1, 0)
        except ResourceExhaustedError as error:
            error.may_have_been_applied = False
            raise
        try:
            with self._reported(request, asked):
                return await self._run_within_quota(request, asked)
        finally:
            self._running.give(1, 0)

    def _reported(self, request: ServiceRequest, asked: Run) -> AbstractContextManager[None]:
        spans = process_spans()
        if spans is None or asked.traceparent is None:
            return nullcontext()
        return spans.served(self._hello["task"], request.number, asked.traceparent)

    async def _run_within_quota(self, request: ServiceRequest, asked: Run) -> Reply:
        part = self._parts.get(asked.handle) or _Part(None, False)  # the session raises the error
        trace = TraceProbe(perf_counter) if asked.trace else None
        step = Step(FiniteProbe(trace) if part.check_finite else trace, request.number)
        step.begun = set()
        try:
            late = self.channel.comm.since(asked.beat)
            if late > asked.patience:
                await self._require_wanted(step.id, asked, late)
            step.holding = partial(self._holding, step.id, asked)
            step.holds_after = monotonic() + asked.patience - self.channel.comm.silence
            for seconds in (asked.seconds, self._limits.step_seconds):
                if seconds is not None:
                    _stop_after(seconds, step)
            values = await self._session.run(asked.handle, part.spread(request.tensors), step, asked.answered)
        except OpError as error:
            step.account(error)
            raise
        finally:
            step.finish()
        self._session.hold(step)
        if part.sends:  # delivery of values that it has sent may still fail
            self._follow(step)
        if not asked.answered:
            return UNANSWERED
        ran = _ran(part, values)
        if trace is None:
            return ran
        devices, times = pack_stats(trace.stats())
        return Reply(Ran(devices, trace.origin)._asdict(), [*ran.tensors, *times])

    def _follow(self, step: Step) -> None:
        """Notify the client if the step is stopped after its part here has ended.

        Otherwise parts on other tasks would wait for ever.
        """

        def tell() -> None:
            step.watchers.clear()
            if step.error is not None:
                self.channel.notify(ABORT, {"step": step.id, "error": encode_error(step.error, _ERROR_BYTES)})

        step.watchers.append(tell)
        # The step may have been stopped before the watcher was added.
        if step.requested:
            tell()

    async def _require_wanted(self, step: int, asked: Run, late: float) -> None:
        """Raise AbortedError if a step has arrived so late that its client has given it up."""
        with suppress(OpError):  # no answer counts as "not wanted"
            # None, for an answer that was delayed, does not count: the client may have given the step up since.
            if await self._is_wanted(step, asked):
                return
        raise AbortedError(
            "the step arrived late, and its client no longer waits for it",
            expected=f"at most {asked.patience:g} s",
            actual=f"{late:.3f} s",
        )

    async def _is_wanted(self, step: int, asked: Run) -> bool | None:
        """Return whether the client waits for the step; None if its answer was delayed. Raises OpError if none came."""
        clock = asyncio.get_running_loop().time
        patience = min(asked.patience, _ANSWER_SECONDS)
        until = clock() + patience
        reply = await self.channel.call(WANTED, {"step": step}, timeout=patience)
        return parse(WhetherWanted, reply.header).wanted if clock() <= until else None

    def _holding(self, step: int, asked: Run) -> Awaitable[None] | None:
        """Return a wait for the client's confirmation if it has been silent for long, else None.

        A step that has waited calls this before it goes on: a silent client may have given the step up, and be unable
        to report that.
        """
        return self._until_wanted(step, asked) if self.channel.comm.silence > asked.patience else None

    async def _until_wanted(self, step: int, asked: Run) -> None:
        """Wait until the client confirms that it waits for the step, or the connection ends.

        Raises:
            AbortedError: the client does not wait for the step any more.
        """
        while True:
            wanted = None
            with suppress(DeadlineExceededError):
                wanted = await self._is_wanted(step, asked)
            # A delayed answer decides nothing: the client may have given the step up since, so it is asked again.
            if wanted is not None:
                break
        if not wanted:
            raise AbortedError("the step resumed late, and its client no longer waits for it")

    async def _clock(self, request: ServiceRequest) -> Reply:
        return Reply(Clock(perf_counter())._asdict())

    async def _report(self, request: ServiceRequest) -> Reply:
        waiting = self._session.waiting(parse(Wanted, request.header).step)
        seconds = np.array([seconds for _, seconds, _ in waiting], np.float64)
        return Reply({}, [seconds, pack_texts([[node, what] for node, _, what in waiting])] if waiting else [])

    async def _abort(self, request: ServiceRequest) -> Reply:
        asked = parse(Abort, request.header)
        error: OpError = decode_error(asked.error, request.peer)
        return Reply(Aborted(await self._session.abort(asked.step, error))._asdict())

    async def _resolve(self, request: ServiceRequest) -> Reply:
        rows = await read_homes(request.tensors, self.channel.comm.limits)
        devices = await self._homes.resolve([resource for resource, _ in rows], [device for _, device in rows])
        return Reply({}, await pack_rows([[device] for device in devices]))

    def _require_task(self, request: ServiceRequest) -> None:
        if not self.channel.comm.peer_is_task:
            raise PermissionDeniedError(
                f"{request.kind!r} is reserved for tasks of the cluster", expected="a task", actual="a client"
            )

    async def _holds(self, request: ServiceRequest) -> Reply:
        self._require_task(request)
        rows = await read_rows(request.tensors, 2, self.channel.comm.limits)
        names = [(container, name) for container, name in rows]
        found = self._homes.holdings.look_up(names, self.channel.comm.peer_incarnation)
        return Reply({}, await pack_rows([(*resource, device) for resource, device in found]))

    async def _claim(self, request: ServiceRequest) -> None:
        self._require_task(request)
        rows = await read_homes(request.tensors, self.channel.comm.limits)
        self._homes.holdings.claim(dict(rows), self.channel.comm.peer_incarnation)

    async def _state(self, request: ServiceRequest) -> Reply:
        state = await self._session.state()
        return Reply(State(list(state.devices), state.registered, state.running)._asdict())

    async def _status(self, request: ServiceRequest) -> Reply:
        lag = await loop_lag()
        return Reply({}, pack_status(replace(self._server_status(), lag=lag)))

    async def _understands(self, request: ServiceRequest) -> Reply:
        return Reply(Understands([TRACEPARENT])._asdict())

    async def _reset(self, request: ServiceRequest) -> None:
        await self._session.reset(parse(Reset, request.header).containers)

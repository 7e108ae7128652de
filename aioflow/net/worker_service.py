"""A worker for those who come by a connection: each message is one method of a `WorkerSession`.

A connection is one client. When it ends, what the client had here ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import Part
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
from aioflow.net.channel import Channel, Reply, Request, Service, Taker
from aioflow.net.comm import Comm, Idle
from aioflow.net.errors_codec import decode_error, encode_error
from aioflow.net.exchange import UNANSWERED
from aioflow.net.frame_header import Packed
from aioflow.net.home_rows import pack_rows, read_homes, read_rows
from aioflow.net.homes import Homes, pack_texts
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
from aioflow.net.open_requests import OpenRequests, all_open_requests
from aioflow.net.outbox import Outbox
from aioflow.net.own_process import loop_lag
from aioflow.net.plan_codec import decode_part
from aioflow.net.quota import Quota
from aioflow.net.server_status import ServerStatus
from aioflow.net.status_document import pack_status
from aioflow.net.step_table import Origin
from aioflow.net.task_worker import TaskWorker
from aioflow.runtime.handing_over import Unfinished
from aioflow.runtime.spans import process_spans
from aioflow.runtime.stats import FiniteProbe, TraceProbe
from aioflow.runtime.step import Step
from aioflow.work.threads import in_thread

__all__ = ["WorkerService"]

_NODE: Final = 4 << 10  # bytes that a node takes, with its kernel and its code
_LARGE_PLAN: Final = 64 << 10  # bytes: a larger plan is decoded in a thread, so that the loop goes on
_ERROR_BYTES: Final = 16 << 10
_SOONER: Final = 0.7  # than the client gives up, it is told what it waits for
_ANSWER_SECONDS: Final = 5.0  # for a client that is asked
_LONGEST: Final = 86_400.0 * 365  # seconds; not every event loop takes longer ones

_Succeed: TypeAlias = Callable[["_Client", Sequence[int], float | None], Awaitable[None]]


class _Part:
    """What must be known of a registered part to run it: which feeds go where, whether values are checked, or sent.

    Args:
        size: Bytes that it takes, by estimate.
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

    def spread(self, tensors: Sequence[Any]) -> list[Any]:
        """The feeds of the whole step, of which the message has those of this part.

        Raises:
            InvalidArgumentError: it has more or fewer, or one does not have the dtype or shape that the part says.
        """
        if len(tensors) != len(self.feeds):
            raise InvalidArgumentError("wrong number of feeds", expected=len(self.feeds), actual=len(tensors))
        values: list[Any] = [None] * self.total
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
    """Stop the step after so many seconds: its client has given it up by then, and may not be able to say so."""
    late = DeadlineExceededError("the time limit of the step has passed", expected=f"at most {seconds:g} s")
    timer = asyncio.get_running_loop().call_later(min(seconds, _LONGEST), step.stop, late)
    step.releases.append(timer.cancel)


def _ran(part: _Part, values: Sequence[Any]) -> Reply:
    return Reply(part.ran, [to_wire_value(value) for value in values])


async def _when_finished(part: _Part, values: Unfinished) -> Reply:
    return _ran(part, await values.finish())


class WorkerService:
    """Serves the clients of one worker.

    Args:
        hello: What it says of itself.
        homes: Where resources are.
        status: How the server is.
    """

    def __init__(
        self, worker: TaskWorker, hello: Callable[[], Hello], homes: Homes, status: Callable[[], ServerStatus]
    ) -> None:
        self._worker = worker
        self._status = status
        self._hello = hello
        self._homes = homes
        self._open: Quota | None = None  # what all clients ask
        self._connected: dict[_Client, None] = {}
        self._clients: dict[int, dict[_Client, None]] = {}  # those that have introduced themselves, by their numbers

    async def serve(self, comm: Comm) -> None:
        """Serve one connection until it ends."""
        room = self._open = self._open or all_open_requests(comm.limits)
        requests = OpenRequests(comm.limits, room)
        client = _Client(self._worker, self._hello(), self._homes, comm, self._succeed, requests, self._status)
        self._connected[client] = None
        comm.idle, comm.tell = client.idle, client.channel.tell
        try:
            async with client.outbox, client.channel:
                await client.channel.wait_ended()
        finally:
            del self._connected[client]
            await client.close()
            same = self._clients.get(comm.peer_incarnation, {})
            if same.pop(client, client) is None and not same:
                del self._clients[comm.peer_incarnation]

    @property
    def connections(self) -> int:
        """How many are served."""
        return len(self._connected)

    @property
    def is_quiet(self) -> bool:
        """Whether no values are left that go to clients' own tasks."""
        return all(client.outbox.is_empty for client in self._connected)

    async def answered(self) -> None:
        """Wait until all that was asked by now has its answer."""
        for client in list(self._connected):
            await client.channel.answered()

    async def say_goodbye(self) -> None:
        """End all connections in order, and wait until they have."""
        clients = list(self._connected)
        for client in clients:
            await client.channel.end("the server has ended")
        for client in clients:
            await client.ended.wait()

    async def _succeed(self, client: _Client, ended: Sequence[int], seconds: float | None) -> None:
        """End the connections that the client had before, and those of sessions that have ended, and wait until nothing
        of them is running.

        The client has given them up, and this end cannot know where the network has not said so: a step that waits
        here, or computes, would go on, and be applied after all.

        Raises:
            UnavailableError: something still computes after so many seconds, and cannot be stopped.
        """
        number = client.channel.comm.peer_incarnation
        before = [other for one in {number, *ended} for other in self._clients.get(one, ()) if other is not client]
        self._clients.setdefault(number, {})[client] = None
        for other in before:
            other.channel.comm.abort("its client has made another one")
        try:
            async with asyncio.timeout(seconds):
                for other in before:
                    await other.ended.wait()
        except TimeoutError as error:
            raise UnavailableError(
                "a step that the client has given up still computes here, and can be stopped when its kernel returns"
            ) from error


class _Client:
    """One connection.

    Args:
        succeed: Ends the connection that the client had before, and those of its sessions of these numbers.
        open_requests: Its own.
        status: How the server is.

    Attributes:
        outbox: Of values for the task that the client itself is.
        ended: Set when nothing of it is left.
    """

    def __init__(
        self,
        worker: TaskWorker,
        hello: Hello,
        homes: Homes,
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
            SETTLE: self._settle,
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
        self._running = Quota("steps of one client at a time", comm.limits.steps, 0)

    @asynccontextmanager
    async def _reach(self, task: str) -> AsyncIterator[Channel]:
        yield self.channel

    def idle(self) -> Idle | None:
        """Since when nothing of it runs and nothing is asked; None if that is not so."""
        if self.channel.is_busy or not self.outbox.is_empty:
            return None
        return Idle(bool(self._parts), self.channel.comm.used_at)

    async def close(self) -> None:
        self._steps.lose(self._session.number)
        try:
            await self._session.close()
        finally:
            self.ended.set()

    async def _greet(self, request: Request) -> Reply:
        ended = parse(Greeting, request.header).ended if request.header else ()
        seconds = None if request.timeout is None else _SOONER * request.timeout  # or nobody hears why
        await self._succeed(self, ended, seconds)
        return Reply(self._hello)

    async def _register(self, request: Request) -> Reply:
        asked = parse(Register, request.header)
        config = config_of(asked.config)
        tensors = list(request.tensors)
        size = sum(tensor.nbytes for tensor in tensors)
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

    async def _deregister(self, request: Request) -> None:
        handle = parse(Handle, request.header).handle
        part = self._parts.pop(handle, None)
        if part is not None:
            self._quota.give(1, part.size)
        await self._session.deregister(handle)

    def _run(self, request: Request) -> Reply | Awaitable[Reply]:
        """One step, right here if it is short."""
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

    async def _run_in_task(self, request: Request, asked: Run) -> Reply:
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

    def _reported(self, request: Request, asked: Run) -> AbstractContextManager[None]:
        spans = process_spans()
        if spans is None or asked.traceparent is None:
            return nullcontext()
        return spans.served(self._hello["task"], request.number, asked.traceparent)

    async def _run_within_quota(self, request: Request, asked: Run) -> Reply:
        part = self._parts.get(asked.handle) or _Part(None, False)  # the session says that there is none
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
        if part.sends:  # what it has sent may turn out later not to have arrived
            self._follow(step)
        if not asked.answered:
            return UNANSWERED
        ran = _ran(part, values)
        if trace is None:
            return ran
        devices, times = pack_stats(trace.stats())
        return Reply(Ran(devices, trace.origin)._asdict(), [*ran.tensors, *times])

    def _follow(self, step: Step) -> None:
        """Tell the client if the step is stopped, though its part here has ended: the others' parts wait in vain."""

        def tell() -> None:
            step.watchers.clear()
            if step.error is not None:
                self.channel.notify(ABORT, {"step": step.id, "error": encode_error(step.error, _ERROR_BYTES)})

        step.watchers.append(tell)
        if step.requested:
            tell()

    async def _require_wanted(self, step: int, asked: Run, late: float) -> None:
        """Raises AbortedError: the step has come so late that its client may have given it up, and it has.

        An answer that was long on its way is none: the client may have given the step up since.
        """
        with suppress(OpError):  # no answer is one, too
            if await self._is_wanted(step, asked):
                return
        raise AbortedError(
            "the step has come late, and its client does not wait for it any more",
            expected=f"at most {asked.patience:g} s",
            actual=f"{late:.3f} s",
        )

    async def _is_wanted(self, step: int, asked: Run) -> bool | None:
        """Whether the client waits for the step; None if its answer was long on its way. Raises OpError: none came."""
        clock = asyncio.get_running_loop().time
        patience = min(asked.patience, _ANSWER_SECONDS)
        until = clock() + patience
        reply = await self.channel.call(WANTED, {"step": step}, timeout=patience)
        return parse(WhetherWanted, reply.header).wanted if clock() <= until else None

    def _holding(self, step: int, asked: Run) -> Awaitable[None] | None:
        """What a step that has waited waits for besides, where its client has been silent for so long that it may have
        given it up, and cannot say so.
        """
        return self._until_wanted(step, asked) if self.channel.comm.silence > asked.patience else None

    async def _until_wanted(self, step: int, asked: Run) -> None:
        """Wait for the client, for as long as the connection lasts.

        Raises:
            AbortedError: it does not wait for the step any more.
        """
        while True:
            wanted = None
            with suppress(DeadlineExceededError):
                wanted = await self._is_wanted(step, asked)
            if wanted is not None:
                break
        if not wanted:
            raise AbortedError("the step went on late, and its client does not wait for it any more")

    async def _clock(self, request: Request) -> Reply:
        return Reply(Clock(perf_counter())._asdict())

    async def _report(self, request: Request) -> Reply:
        waiting = self._session.waiting(parse(Wanted, request.header).step)
        seconds = np.array([seconds for _, seconds, _ in waiting], np.float64)
        return Reply({}, [seconds, pack_texts([[node, what] for node, _, what in waiting])] if waiting else [])

    async def _abort(self, request: Request) -> Reply:
        asked = parse(Abort, request.header)
        error: OpError = decode_error(asked.error, request.peer)
        return Reply(Aborted(await self._session.abort(asked.step, error))._asdict())

    async def _settle(self, request: Request) -> Reply:
        rows = await read_homes(request.tensors, self.channel.comm.limits)
        devices = await self._homes.settle([resource for resource, _ in rows], [device for _, device in rows])
        return Reply({}, await pack_rows([[device] for device in devices]))

    def _require_task(self, request: Request) -> None:
        if not self.channel.comm.peer_is_task:
            raise PermissionDeniedError(
                f"{request.kind!r} is asked by tasks of the cluster", expected="a task", actual="a client"
            )

    async def _holds(self, request: Request) -> Reply:
        self._require_task(request)
        rows = await read_rows(request.tensors, 2, self.channel.comm.limits)
        names = [(container, name) for container, name in rows]
        found = self._homes.holdings.look_up(names, self.channel.comm.peer_incarnation)
        return Reply({}, await pack_rows([(*resource, device) for resource, device in found]))

    async def _claim(self, request: Request) -> None:
        self._require_task(request)
        rows = await read_homes(request.tensors, self.channel.comm.limits)
        self._homes.holdings.claim(dict(rows), self.channel.comm.peer_incarnation)

    async def _state(self, request: Request) -> Reply:
        state = await self._session.state()
        return Reply(State(list(state.devices), state.registered, state.running)._asdict())

    async def _status(self, request: Request) -> Reply:
        lag = await loop_lag()
        return Reply({}, pack_status(replace(self._server_status(), lag=lag)))

    async def _understands(self, request: Request) -> Reply:
        return Reply(Understands([TRACEPARENT])._asdict())

    async def _reset(self, request: Request) -> None:
        await self._session.reset(parse(Reset, request.header).containers)

"""A worker in another process: each method sends one message, and `run` sends one message per step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Final

from aioflow.compiler.ir import Part, worth_a_thread
from aioflow.concurrency.threads import in_thread, to_its_end
from aioflow.config import SessionConfig
from aioflow.errors import (
    DataLossError,
    OpError,
    UnavailableError,
    UnimplementedError,
)
from aioflow.memory.values import Value
from aioflow.net.channel import Channel, Reply, packed
from aioflow.net.framing import Document, Packed
from aioflow.net.messages import (
    CLOCK,
    DEREGISTER,
    HELLO,
    REGISTER,
    RESET,
    RUN,
    SETTLE,
    STATE,
    STATS_TENSORS,
    STATUS,
    TRACEPARENT,
    UNDERSTANDS,
    Clock,
    Handle,
    Hello,
    Ran,
    Run,
    State,
    Understands,
    config_document,
    parse,
    unpack_stats,
)
from aioflow.net.pending_steps import PendingCall, PendingSteps, RegisteredPart, owned
from aioflow.net.plan_codec import encode_part
from aioflow.net.resource_directory import Resource, pack_texts, unpack_texts
from aioflow.net.status import Activity, ServerStatus, unpack_status
from aioflow.runtime.spans import Spans
from aioflow.runtime.stats import FiniteProbe, TraceProbe
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Begun, WorkerState

_ABORT_SECONDS: Final = 2.0
_PATIENCE: Final = 0.9  # seconds
_REPORT_SECONDS: Final = 1.0
_CLOCK_SECONDS: Final = 60.0  # validity of a comparison of clocks
_CLOCK_ASKS: Final = 5
_REGISTER_SECONDS: Final = 60.0  # per part: binding kernels and generating code take long


class RemoteWorker:
    """A worker at the other end of a channel (`runtime.worker.WorkerAPI`).

    A step has no deadline but its caller's. It ends early if the connection does, which is watched by heartbeats.

    Args:
        channel: The open connection, to be closed by its creator.
        peers: Incarnations by task. A registered part receives those of the tasks it sends to.
        timeout: Seconds to wait for the answer to a short request.
        patience: Seconds after which the worker asks whether a late step is still wanted (`steps.wants`). Less than the
            dead-peer timeout of the connection.
        home: Whether the worker is in this process.

    Attributes:
        steps: The steps that run at the worker.
    """

    def __init__(
        self,
        channel: Channel,
        peers: Mapping[str, int] | None = None,
        timeout: float = 10.0,
        patience: float = _PATIENCE,
        home: bool = False,
    ) -> None:
        self._channel = channel
        self._peers = {} if peers is None else peers
        self._timeout = timeout
        self._patience = patience
        self._home = home
        self.steps = PendingSteps(channel)
        self._parts: dict[int, RegisteredPart] = {}
        # Headers of steps without options, with what they depend on.
        self._documents: dict[int, tuple[tuple[int, bool], Packed]] = {}
        self._understands: Sequence[str] | None = None  # the optional fields; None before the first query
        # Time of the last comparison of clocks, and the seconds by which the worker's is ahead.
        self._clock: tuple[float, float] | None = None

    @property
    def peer(self) -> str:
        """Name of the task in errors."""
        return self._channel.peer

    @property
    def is_open(self) -> bool:
        """True until the connection is known to have ended."""
        return self._channel.error is None

    async def hello(self, ended: Sequence[int] = ()) -> Hello:
        """Return the worker's description of itself. From then on, errors name the worker by its task.

        Args:
            ended: Numbers of closed sessions. When this returns, the worker runs none of their steps.
        """
        reply = await self._ask(HELLO, {"ended": list(ended)} if ended else {})
        hello = parse(Hello, reply.header)
        self._channel.comm.peer = hello.task
        return hello

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Register a part of a plan. `session` is ignored, since the connection identifies the session.

        Raises:
            OpError: the worker refuses the part.
            UnavailableError: the worker cannot be reached.
        """
        if worth_a_thread(part.size):
            header, tensors = await in_thread(partial(encode_part, part, home=self._home), effects=False)
        else:
            header, tensors = encode_part(part, home=self._home)
        peers = {task: self._peers[task] for task in sorted(part.destinations) if task in self._peers}
        document = {"part": header, "config": config_document(config), "peers": peers}
        reply = await self._channel.call(REGISTER, document, tensors, timeout=_REGISTER_SECONDS)
        handle = parse(Handle, reply.header).handle
        self._parts[handle] = RegisteredPart(
            part.all_feeds, part.feeds, part.changes, bool(part.destinations), part.gives_back
        )
        return handle

    async def deregister(self, handle: int) -> None:
        """Forget a part; a running step of it continues."""
        self._parts.pop(handle, None)
        self._documents.pop(handle, None)
        with suppress(UnavailableError):  # the worker forgets the part with the connection
            await self._ask(DEREGISTER, {"handle": handle})

    def begin(
        self, handle: int, feeds: Sequence[Value], step: Step, on_end: Callable[[OpError | None], None], quietly: bool
    ) -> Begun | None:
        """Send the request of a step without waiting.

        Args:
            handle: The registered part.
            feeds: The feeds of the whole step.
            step: The step.
            on_end: Called when the part ends, with its error or None; if `quietly`, only with errors.
            quietly: Whether the worker answers only if the part fails.

        Returns:
            The pending call, or None if the request would have to wait, or the step is traced or checked.

        Raises:
            InvalidArgumentError: `feeds` are not those of the whole step.
            UnavailableError: the worker cannot be reached any more.
        """
        part = self._parts.get(handle)
        if part is None or step.probe is not None or step.spans is not None:
            return None
        call = PendingCall(self.steps, part, step, on_end, quietly)
        document = self._document(handle, step, None, not quietly)
        return call if call.begin(document, part.taken(feeds)) else None

    async def run(self, handle: int, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run a registered part once and return its fetches.

        When this returns or raises, the worker runs nothing of the step any more, unless it is unreachable.

        Args:
            handle: The registered part.
            feeds: The feeds of the whole step.
            step: The step.

        Raises:
            InvalidArgumentError: `feeds` are not those of the whole step.
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
            UnavailableError: the worker cannot be reached any more; the error names it.
        """
        probe = step.probe.trace if isinstance(step.probe, FiniteProbe) else step.probe
        trace = probe if isinstance(probe, TraceProbe) else None
        part = self._parts.get(handle) or _unknown(feeds)
        tensors = part.taken(feeds)
        traceparent = None if step.spans is None else await self._traceparent(step.spans)
        wait = self.steps.wait_for(step)
        step.waiting[wait] = None
        document = self._document(handle, step, trace, True, traceparent)
        # Before the request: the worker may ask at once whether the step is wanted.
        self.steps.begun(part, step)
        try:
            reply = await self._reply(document, tensors, step)
        except asyncio.CancelledError:  # keep `wait` in the step, so that a timeout names it
            await to_its_end(self.steps.stop(step))  # so that elements taken by the step are put back
            raise
        finally:
            self.steps.forget(step)
        del step.waiting[wait]
        self.steps.has_ended(part, step)
        return await self._fetches(reply, trace)

    async def _traceparent(self, spans: Spans) -> str | None:
        """Return the parent for the worker's spans; None without one, or if the worker does not support it."""
        if self._understands is None:
            try:
                self._understands = parse(Understands, (await self._ask(UNDERSTANDS, {})).header).fields
            except UnimplementedError:  # of a release without this request
                self._understands = ()
        return spans.traceparent() if TRACEPARENT in self._understands else None

    def _document(
        self,
        handle: int,
        step: Step,
        trace: TraceProbe | None,
        answered: bool = True,
        traceparent: str | None = None,
    ) -> Packed:
        """Return the header of a `Run` request. Headers of steps without options are cached until the next beat."""
        heard = self._channel.comm.heard
        # A duration, since the clocks of two processes have nothing in common.
        seconds = None if step.deadline is None else max(0.0, step.deadline - asyncio.get_running_loop().time())
        is_usual = trace is None and seconds is None and traceparent is None
        known = self._documents.get(handle)
        if is_usual and known is not None and known[0] == (heard, answered):
            return known[1]
        run = Run(handle, trace is not None, heard, self._patience, seconds, answered, traceparent)
        document = packed(RUN, run.document())
        if is_usual:
            self._documents[handle] = (heard, answered), document
        return document

    async def _reply(self, document: Packed, tensors: Sequence[Value], step: Step) -> Reply:
        """Send the request and return the worker's answer. If the step is stopped first, abort the part."""
        waiting = step.stoppable()
        try:
            async with waiting:
                return await self._channel.calls.ask(document, tensors, step.id)
        except OpError as error:
            # The error of a stopped step is that of another worker, which knows nothing about changes at this one.
            if waiting.stopped:
                await to_its_end(self.steps.stop(step))
            elif not error.may_have_been_applied:
                self.steps.not_begun(step)
            raise

    async def _fetches(self, reply: Reply, trace: TraceProbe | None) -> list[Value]:
        if trace is None:
            return self.steps.fetches(reply)
        devices, origin = parse(Ran, reply.header)
        tensors = list(reply.tensors)
        if devices is None or len(tensors) < STATS_TENSORS:
            raise DataLossError(
                f"{self._channel.peer} sent no timings for a traced step",
                expected="devices and timings",
                actual=devices,
            )
        trace.add(unpack_stats(devices, tensors[-STATS_TENSORS:]), origin - await self._ahead())
        return [owned(tensor) for tensor in tensors[:-STATS_TENSORS]]

    async def abort(self, step: int, error: OpError) -> bool:
        """Stop a step because of an error elsewhere, and put back the elements that it has taken.

        Returns when the worker runs nothing of the step any more.

        Args:
            step: The id of the step.
            error: The error that the step's operations fail with.

        Returns:
            Whether the step may have changed anything.

        Raises:
            DeadlineExceededError: the worker has not stopped the step within two seconds; it still will.
        """
        return await self.steps.abort(step, error)

    async def _ahead(self) -> float:
        """Return the lead of the worker's clock over `perf_counter` in seconds, from the fastest of several answers."""
        now = perf_counter()
        if self._clock is None or now - self._clock[0] > _CLOCK_SECONDS:
            found: list[tuple[float, float]] = []
            for _ in range(_CLOCK_ASKS):
                asked = perf_counter()
                there = parse(Clock, (await self._ask(CLOCK, {})).header).now
                answered = perf_counter()
                # As in NTP, the other clock is taken to be read halfway between request and answer; the fastest answer
                # errs least.
                found.append((answered - asked, there - (asked + answered) / 2))
            self._clock = now, min(found)[1]
        return self._clock[1]

    async def resolve(self, resources: Sequence[Resource], devices: Sequence[str]) -> list[str]:
        """Return the devices of resources; the proposed ones are adopted for resources without a device."""
        rows = [[*resource, device] for resource, device in zip(resources, devices, strict=True)]
        reply = await self._channel.call(SETTLE, {}, [pack_texts(rows)], timeout=self._timeout)
        return [device for (device,) in unpack_texts(reply.tensors, 1, len(rows))]

    async def state(self) -> WorkerState:
        """Return the state of the worker."""
        state = parse(State, (await self._ask(STATE, {})).header)
        return WorkerState(tuple(state.devices), state.registered, state.running)

    async def status(self) -> ServerStatus:
        """Return the status of the worker's server, or what `state` returns if the server does not know the request."""
        try:
            return unpack_status((await self._ask(STATUS, {})).tensors)
        except UnimplementedError:
            state = await self.state()
            activity = Activity(parts=state.registered, running=state.running)
            return ServerStatus(self.peer, "", "serves", 0.0, tuple(state.devices), activity)

    async def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of these containers, or of all."""
        await self._ask(RESET, {"containers": None if containers is None else list(containers)})

    async def _ask(self, kind: str, header: Document) -> Reply:
        return await self._channel.call(kind, header, timeout=self._timeout)


def _unknown(feeds: Sequence[Value]) -> RegisteredPart:
    """Return a stand-in for a handle that is not registered; the worker will answer with an error."""
    return RegisteredPart(len(feeds), (), changes=False, sends=False, gives_back=False)

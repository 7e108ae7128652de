"""A worker in another process: each method sends one message, and `run` sends one message per step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final, NamedTuple

from aioflow.compiler.ir import Part, worth_a_thread
from aioflow.concurrency.threads import in_thread, to_its_end
from aioflow.config import SessionConfig
from aioflow.errors import (
    CancelledError,
    DataLossError,
    InternalError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
    UnimplementedError,
)
from aioflow.net.channel import Channel, Reply, packed
from aioflow.net.comm import gone
from aioflow.net.errors_codec import encode_error
from aioflow.net.exchange import REMEMBERED
from aioflow.net.frame_header import Packed
from aioflow.net.messages import (
    ABORT,
    CLOCK,
    DEREGISTER,
    HELLO,
    REGISTER,
    REPORT,
    RESET,
    RUN,
    SETTLE,
    STATE,
    STATS_TENSORS,
    STATUS,
    TRACEPARENT,
    UNDERSTANDS,
    Aborted,
    Clock,
    Handle,
    Hello,
    Parsed,
    Ran,
    Run,
    State,
    Understands,
    config_document,
    parse,
    to_wire_value,
    unpack_stats,
)
from aioflow.net.plan_codec import encode_part
from aioflow.net.resource_directory import Resource, pack_texts, unpack_texts
from aioflow.net.status.document import unpack_status
from aioflow.net.status.server import Activity, ServerStatus
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
        patience: Seconds after which the worker asks whether a late step is still wanted (`wants`). Less than the
            dead-peer timeout of the connection.
        home: Whether the worker is in this process.
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
        self._parts: dict[int, _Registered] = {}
        # Headers of steps without options, with what they depend on.
        self._documents: dict[int, tuple[tuple[int, bool], Packed]] = {}
        self._ran = Parsed(Ran)
        self._wanted: dict[int, Step] = {}
        # Steps whose part has ended, but whose values sent from there may not have arrived.
        self._sent: dict[int, Step] = {}
        self._unanswered = 0  # number of parts begun that report only failures
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
        self._parts[handle] = _Registered(
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
        self, handle: int, feeds: Sequence[Any], step: Step, on_end: Callable[[OpError | None], None], quietly: bool
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
        share = _Share(self, part, step, on_end, quietly)
        document = self._document(handle, step, None, not quietly)
        if not self._channel.calls.begin(step.id, document, part.taken(feeds), share):
            return None
        share.begun()
        return share

    def _has_begun(self, part: _Registered, step: Step) -> None:
        self._wanted[step.id] = step
        if part.changes and step.begun is not None:
            step.begun.add(self._channel.peer)

    def _has_ended(self, part: _Registered, step: Step) -> None:
        """Process the successful end of a part."""
        self._may_be_given_back(part, step)
        if part.sends:
            self._sent[step.id] = step
            step.releases.append(lambda: self._forget(step))
            if self._channel.error is not None:
                self.ended(gone(self._channel.peer, self._channel.error))

    def _may_be_given_back(self, part: _Registered, step: Step) -> None:
        if part.gives_back:
            step.took(partial(self._stop, step))

    async def run(self, handle: int, feeds: Sequence[Any], step: Step) -> list[Any]:
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
        wait = _Wait(self._channel.peer, partial(self.waiting, step.id))
        step.waiting[wait] = None
        # Before the request: the worker may ask at once whether the step is wanted.
        self._has_begun(part, step)
        try:
            reply = await self._reply(self._document(handle, step, trace, True, traceparent), tensors, step)
        except OpError as error:
            if not error.may_have_been_applied:
                self._not_begun(step)
            raise
        except asyncio.CancelledError:  # keep `wait` in the step, so that a timeout names it
            await to_its_end(self._stop(step))  # so that elements taken by the step are put back
            raise
        finally:
            self._wanted.pop(step.id, None)
        del step.waiting[wait]
        self._has_ended(part, step)
        return await self._fetches(reply, trace)

    def wants(self, step: int) -> bool:
        """Return True if a step is still awaited here."""
        return step in self._wanted

    def _forget(self, step: Step) -> None:
        self._sent.pop(step.id, None)

    def failed(self, step: int, error: OpError) -> None:
        """Stop a step, because a value sent by the worker's part cannot be delivered. That part may have ended."""
        running = self._wanted.get(step) or self._sent.get(step)
        if running is not None:
            running.stop(error)

    def ended(self, error: OpError) -> None:
        """Stop the steps whose values may be lost: the connection has ended, so no confirmation will come.

        A worker that closed the connection gracefully waited for the delivery of its values first.
        """
        for step in () if self._channel.in_order else list(self._sent.values()):
            step.stop(error)

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

    def _is_forgotten(self, ordinal: int) -> bool:
        """Return True if the worker may no longer remember that it has run a quiet part.

        Args:
            ordinal: The number of quiet parts begun up to and including this one. Parts that began earlier may have
                ended later, so this allows for as many as can be open.
        """
        return self._unanswered - ordinal >= REMEMBERED - self._channel.comm.limits.open_requests

    def _not_begun(self, step: Step) -> None:
        if step.begun is not None:
            step.begun.discard(self._channel.peer)

    async def _reply(self, document: Packed, tensors: Sequence[Any], step: Step) -> Reply:
        """Send the request and return the worker's answer. If the step is stopped first, abort the part."""
        waiting = step.stoppable()
        try:
            async with waiting:
                return await self._channel.calls.ask(document, tensors, step.id)
        except OpError:
            if waiting.stopped:
                await to_its_end(self._stop(step))
            raise

    async def _fetches(self, reply: Reply, trace: TraceProbe | None) -> list[Any]:
        devices, origin = self._ran(reply.header)
        tensors = list(reply.tensors)
        if trace is not None:
            if devices is None or len(tensors) < STATS_TENSORS:
                raise DataLossError(
                    f"{self._channel.peer} sent no timings for a traced step",
                    expected="devices and timings",
                    actual=devices,
                )
            trace.add(unpack_stats(devices, tensors[-STATS_TENSORS:]), origin - await self._ahead())
            del tensors[-STATS_TENSORS:]
        return [_own(tensor) for tensor in tensors]

    async def _stop(self, step: Step) -> None:
        with suppress(OpError):  # the worker is unreachable or busy; an abort request is all that can be done
            if not await self.abort(step.id, step.error or CancelledError("the step was stopped")):
                self._not_begun(step)

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
        header = {"step": step, "error": encode_error(error, 16 << 10)}
        return parse(Aborted, (await self._channel.call(ABORT, header, timeout=_ABORT_SECONDS)).header).begun

    async def _ahead(self) -> float:
        """Return the lead of the worker's clock over `perf_counter` in seconds, from the fastest of several answers."""
        now = perf_counter()
        if self._clock is None or now - self._clock[0] > _CLOCK_SECONDS:
            found: list[tuple[float, float]] = []
            for _ in range(_CLOCK_ASKS):
                asked = perf_counter()
                there = parse(Clock, (await self._ask(CLOCK, {})).header).now
                answered = perf_counter()
                found.append((answered - asked, there - (asked + answered) / 2))
            self._clock = now, min(found)[1]
        return self._clock[1]

    async def waiting(self, step: int) -> Sequence[tuple[str, float, str]]:
        """Return the waits of a step on the worker, in the form of `StuckStep.waiting`."""
        reply = await self._channel.call(REPORT, {"step": step}, timeout=_REPORT_SECONDS)
        if not reply.tensors:
            return ()
        seconds, *texts = reply.tensors
        rows = unpack_texts(texts, 2, seconds.size)
        return [(node, waited, what) for (node, what), waited in zip(rows, seconds.reshape(-1).tolist(), strict=True)]

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

    async def _ask(self, kind: str, header: Mapping[str, Any]) -> Reply:
        return await self._channel.call(kind, header, timeout=self._timeout)


class _Registered(NamedTuple):
    """The facts about a registered part that are needed to run it.

    Attributes:
        all_feeds: Number of feeds of the whole step.
        feeds: Indices of the feeds that the part takes.
        changes: Whether the part changes state that other steps see.
        sends: Whether the part sends values to other tasks.
        gives_back: Whether an abort puts elements back even if the part has just ended.
    """

    all_feeds: int
    feeds: tuple[int, ...]
    changes: bool
    sends: bool
    gives_back: bool

    def taken(self, feeds: Sequence[Any]) -> list[Any]:
        """Return the part's feeds out of those of a whole step.

        Raises:
            InvalidArgumentError: the number of feeds is wrong.
        """
        if len(feeds) != self.all_feeds:
            raise InvalidArgumentError("wrong number of feeds", expected=self.all_feeds, actual=len(feeds))
        return [to_wire_value(feeds[index]) for index in self.feeds]


class _Share:
    """A pending call: a part that runs on a worker (`runtime.worker.Begun`), and receives the answer to its request."""

    __slots__ = (
        "_failed",
        "_is_open",
        "_on_end",
        "_ordinal",
        "_part",
        "_quietly",
        "_reply",
        "_step",
        "_wait",
        "_worker",
    )

    def __init__(
        self,
        worker: RemoteWorker,
        part: _Registered,
        step: Step,
        on_end: Callable[[OpError | None], None],
        quietly: bool,
    ) -> None:
        self._quietly = quietly
        self._worker = worker
        self._part = part
        self._step = step
        self._on_end = on_end
        self._reply: Reply | None = None
        self._failed = False
        self._ordinal = 0
        self._is_open = True
        self._wait = _Wait(worker.peer, partial(worker.waiting, step.id))

    def begun(self) -> None:
        """Record that the request has been sent."""
        self._worker._unanswered += self._quietly
        self._ordinal = self._worker._unanswered
        self._step.waiting[self._wait] = None
        self._worker._has_begun(self._part, self._step)

    def done(self) -> bool:
        """Return True once there is an answer."""
        return self._failed or self._reply is not None

    def set_result(self, reply: Reply) -> None:
        """Process the end of the part. For a quiet part, this comes only when its worker closes gracefully."""
        self._reply = reply
        del self._step.waiting[self._wait]
        self._worker._has_ended(self._part, self._step)
        if not self._quietly:
            self._on_end(None)

    def set_exception(self, error: OpError) -> None:
        """Process the failure of the part or of its connection."""
        self._failed = True
        if not error.may_have_been_applied and not (self._quietly and self._worker._is_forgotten(self._ordinal)):
            self._worker._not_begun(self._step)
        self._on_end(error)

    def results(self) -> list[Any]:
        """Return the fetches. Raises DataLossError if the answer is malformed."""
        if self._quietly:
            return []
        if self._reply is None:
            raise InternalError("the fetches of a part were read before it ended")
        self._worker._ran(self._reply.header)
        return [_own(tensor) for tensor in self._reply.tensors]

    async def stop(self) -> None:
        """Abort the part. The wait for it stays in the step, so that a timeout names it."""
        self._is_open = False
        self._worker._channel.calls.give_up(self._step.id)
        try:
            await self._worker._stop(self._step)
        finally:
            self._worker._wanted.pop(self._step.id, None)

    def close(self) -> None:
        """Stop expecting an answer."""
        if self._is_open:
            self._is_open = False
            self._worker._wanted.pop(self._step.id, None)
            calls = self._worker._channel.calls
            # A quiet part reports only failures: unless the step was stopped, it has ended without one.
            has_ended = self.done() or (self._quietly and not self._step.requested)
            (calls.forget if has_ended else calls.give_up)(self._step.id)
            if self._quietly and has_ended:
                self._step.waiting.pop(self._wait, None)
                if self._reply is None:
                    self._worker._may_be_given_back(self._part, self._step)


def _unknown(feeds: Sequence[Any]) -> _Registered:
    """Return a stand-in for a handle that is not registered; the worker will answer with an error."""
    return _Registered(len(feeds), (), changes=False, sends=False, gives_back=False)


class _Wait:
    """The wait for a worker, as an entry of `Step.waiting`."""

    __slots__ = ("inquire", "node", "since")

    def __init__(self, peer: str, inquire: Callable[[], Awaitable[Sequence[tuple[str, float, str]]]]) -> None:
        self.node = peer
        self.since = monotonic()
        self.inquire = inquire

    def describe(self) -> str:
        """Describe what the step waits for."""
        return "the peer's part of the step"


def _own(tensor: Any) -> Any:
    """Return a fetched value as one that the caller owns."""
    if not tensor.ndim:
        return tensor[()]
    return tensor if tensor.flags.writeable else tensor.copy()

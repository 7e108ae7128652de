"""A worker in another process: each method is one message, and `run` is one message per step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final, NamedTuple

from aioflow.compiler.ir import Part, worth_a_thread
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
from aioflow.net.homes import Resource, pack_texts, unpack_texts
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
from aioflow.net.server_status import Activity, ServerStatus
from aioflow.net.status_document import unpack_status
from aioflow.runtime.spans import Spans
from aioflow.runtime.stats import FiniteProbe, TraceProbe
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Begun, WorkerState
from aioflow.work.threads import in_thread, to_its_end

__all__ = ["RemoteWorker"]

_ABORT_SECONDS: Final = 2.0
_PATIENCE: Final = 0.9  # seconds
_REPORT_SECONDS: Final = 1.0
_CLOCK_SECONDS: Final = 60.0  # for which a comparison of clocks holds
_CLOCK_ASKS: Final = 5
_REGISTER_SECONDS: Final = 60.0  # per part: kernels are bound, and code is generated


class RemoteWorker:
    """A worker at the other end of a channel (`runtime.worker.WorkerAPI`).

    Args:
        channel: The connection, open; whoever made it closes it.
        peers: For each task the number of its process; a part is told those of the tasks that it sends to.
        timeout: Seconds for an answer to a short question.
        patience: Seconds after which the worker asks, of a step that comes late, whether it is still wanted (`wants`).
            Less than what it must be silent for until the connection counts as dead.
        home: Whether the worker is in this process.

    A step has no deadline but its caller's: it ends early if the connection does, which heartbeats watch.
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
        self._documents: dict[int, tuple[tuple[int, bool], Packed]] = {}  # of usual steps, with what differs
        self._ran = Parsed(Ran)
        self._wanted: dict[int, Step] = {}
        self._sent: dict[int, Step] = {}  # its part has ended, and what that has sent may not have arrived
        self._unanswered = 0  # how many parts have begun that need not say that they have ended
        self._understands: Sequence[str] | None = None  # of optional fields; None as long as nobody has asked
        self._clock: tuple[float, float] | None = None  # when it was compared with ours, and how far it is ahead

    @property
    def peer(self) -> str:
        """The task, as errors name it."""
        return self._channel.peer

    @property
    def is_open(self) -> bool:
        """Whether it can be asked, as far as is known."""
        return self._channel.error is None

    async def hello(self, ended: Sequence[int] = ()) -> Hello:
        """Who is there. Errors call the worker by the name of its task from now on.

        Args:
            ended: The numbers of sessions of which nothing is to be running there when this returns.
        """
        reply = await self._ask(HELLO, {"ended": list(ended)} if ended else {})
        hello = parse(Hello, reply.header)
        self._channel.comm.peer = hello.task
        return hello

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Prepare a part of a plan; `session` is ignored, since the connection is one.

        Raises:
            OpError: the worker cannot; or UnavailableError: it cannot be reached.
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
        """Forget a part; a step of it that is running goes on."""
        self._parts.pop(handle, None)
        self._documents.pop(handle, None)
        with suppress(UnavailableError):  # it has forgotten the part with the connection
            await self._ask(DEREGISTER, {"handle": handle})

    def begin(
        self, handle: int, feeds: Sequence[Any], step: Step, on_end: Callable[[OpError | None], None], quietly: bool
    ) -> Begun | None:
        """Send the request of a step, if that takes no waiting; None where it does, or times are asked for.

        Args:
            quietly: Whether the worker answers only if the part fails.

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
        """The part of a step has ended well."""
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
        """Run a registered part once and return its fetches. When this returns or raises, nothing of the step is
        running there any more, as far as the worker can be reached.

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
        self._has_begun(part, step)
        try:
            reply = await self._reply(self._document(handle, step, trace, True, traceparent), tensors, step)
        except OpError as error:
            if not error.may_have_been_applied:
                self._not_begun(step)
            raise
        except asyncio.CancelledError:  # the wait stays in the step, so that a timeout names it
            await to_its_end(self._stop(step))  # or what the step has taken would be lost
            raise
        finally:
            self._wanted.pop(step.id, None)
        del step.waiting[wait]
        self._has_ended(part, step)
        return await self._fetches(reply, trace)

    def wants(self, step: int) -> bool:
        """Whether somebody still waits for a step there."""
        return step in self._wanted

    def _forget(self, step: Step) -> None:
        self._sent.pop(step.id, None)

    def failed(self, step: int, error: OpError) -> None:
        """Something that the worker's part of a step has sent cannot be delivered; that part may have ended."""
        running = self._wanted.get(step) or self._sent.get(step)
        if running is not None:
            running.stop(error)

    def ended(self, error: OpError) -> None:
        """The connection has ended: what the worker has sent may not have arrived, and nobody will say so.

        One who says goodbye has waited for that before.
        """
        for step in () if self._channel.in_order else list(self._sent.values()):
            step.stop(error)

    async def _traceparent(self, spans: Spans) -> str | None:
        """The span that the worker's own is to follow; None where there is none, or the worker cannot be told."""
        if self._understands is None:
            try:
                self._understands = parse(Understands, (await self._ask(UNDERSTANDS, {})).header).fields
            except UnimplementedError:  # it is of a release that does not know the question
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
        """The header of a request with a `Run`, which stays the same from beat to beat if nothing special is asked."""
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
        """Whether the worker may not know any more that it has run a part that need not say so, of which so many had
        begun with it: others that had begun before may have ended since.
        """
        return self._unanswered - ordinal >= REMEMBERED - self._channel.comm.limits.open_requests

    def _not_begun(self, step: Step) -> None:
        if step.begun is not None:
            step.begun.discard(self._channel.peer)

    async def _reply(self, document: Packed, tensors: Sequence[Any], step: Step) -> Reply:
        """What the worker answers, unless the step is stopped before."""
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
                raise DataLossError(f"{self._channel.peer} has sent no times", expected="a traced step", actual=devices)
            trace.add(unpack_stats(devices, tensors[-STATS_TENSORS:]), origin - await self._ahead())
            del tensors[-STATS_TENSORS:]
        return [_own(tensor) for tensor in tensors]

    async def _stop(self, step: Step) -> None:
        with suppress(OpError):  # it cannot be reached, or is busy: more than to ask cannot be done
            if not await self.abort(step.id, step.error or CancelledError("the step was stopped")):
                self._not_begun(step)

    async def abort(self, step: int, error: OpError) -> bool:
        """Stop a step, because of an error somewhere else; returns when nothing of it is running there any more, and
        whether it may have changed anything. What it has only taken is given back.

        Raises:
            DeadlineExceededError: the worker has not stopped it within two seconds; it will.
        """
        header = {"step": step, "error": encode_error(error, 16 << 10)}
        return parse(Aborted, (await self._channel.call(ABORT, header, timeout=_ABORT_SECONDS)).header).begun

    async def _ahead(self) -> float:
        """By how many seconds its clock is ahead of `perf_counter` here, as the fastest of several answers says."""
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
        """What a step waits for there, as `StuckStep.waiting`."""
        reply = await self._channel.call(REPORT, {"step": step}, timeout=_REPORT_SECONDS)
        if not reply.tensors:
            return ()
        seconds, *texts = reply.tensors
        rows = unpack_texts(texts, 2, seconds.size)
        return [(node, waited, what) for (node, what), waited in zip(rows, seconds.reshape(-1).tolist(), strict=True)]

    async def settle(self, resources: Sequence[Resource], devices: Sequence[str]) -> list[str]:
        """The devices of resources, which are those proposed where nobody has decided otherwise."""
        rows = [[*resource, device] for resource, device in zip(resources, devices, strict=True)]
        reply = await self._channel.call(SETTLE, {}, [pack_texts(rows)], timeout=self._timeout)
        return [device for (device,) in unpack_texts(reply.tensors, 1, len(rows))]

    async def state(self) -> WorkerState:
        """How the worker is."""
        state = parse(State, (await self._ask(STATE, {})).header)
        return WorkerState(tuple(state.devices), state.registered, state.running)

    async def status(self) -> ServerStatus:
        """How its server is; of one that does not know the question, what `state` says of it."""
        try:
            return unpack_status((await self._ask(STATUS, {})).tensors)
        except UnimplementedError:
            state = await self.state()
            activity = Activity(parts=state.registered, running=state.running)
            return ServerStatus(self.peer, "", "serves", 0.0, tuple(state.devices), activity)

    async def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of the containers, or of all."""
        await self._ask(RESET, {"containers": None if containers is None else list(containers)})

    async def _ask(self, kind: str, header: Mapping[str, Any]) -> Reply:
        return await self._channel.call(kind, header, timeout=self._timeout)


class _Registered(NamedTuple):
    """What must be known of a part to run it: how many feeds a step has, which of them it takes, what it does.

    Attributes:
        sends: Whether other tasks get something from it.
        gives_back: Whether an abort gives something back even where the part has just ended.
    """

    all_feeds: int
    feeds: tuple[int, ...]
    changes: bool
    sends: bool
    gives_back: bool

    def taken(self, feeds: Sequence[Any]) -> list[Any]:
        """Those of the feeds of a whole step. Raises InvalidArgumentError: these are not of one."""
        if len(feeds) != self.all_feeds:
            raise InvalidArgumentError("wrong number of feeds", expected=self.all_feeds, actual=len(feeds))
        return [to_wire_value(feeds[index]) for index in self.feeds]


class _Share:
    """A part that a worker runs (`runtime.worker.Begun`): where the answer to its request goes."""

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
        """The request has been sent."""
        self._worker._unanswered += self._quietly
        self._ordinal = self._worker._unanswered
        self._step.waiting[self._wait] = None
        self._worker._has_begun(self._part, self._step)

    def done(self) -> bool:
        """Whether there is an answer."""
        return self._failed or self._reply is not None

    def set_result(self, reply: Reply) -> None:
        """The part has ended. One that need not say so does where its worker says goodbye."""
        self._reply = reply
        del self._step.waiting[self._wait]
        self._worker._has_ended(self._part, self._step)
        if not self._quietly:
            self._on_end(None)

    def set_exception(self, error: OpError) -> None:
        """It has failed, or the worker cannot be reached any more."""
        self._failed = True
        if not error.may_have_been_applied and not (self._quietly and self._worker._is_forgotten(self._ordinal)):
            self._worker._not_begun(self._step)
        self._on_end(error)

    def results(self) -> list[Any]:
        """The fetches. Raises DataLossError: the answer is none."""
        if self._quietly:
            return []
        if self._reply is None:
            raise InternalError("a part that has not ended is asked for its fetches")
        self._worker._ran(self._reply.header)
        return [_own(tensor) for tensor in self._reply.tensors]

    async def stop(self) -> None:
        """Have it stopped; the wait for it stays in the step, so that a timeout names it."""
        self._is_open = False
        self._worker._channel.calls.give_up(self._step.id)
        try:
            await self._worker._stop(self._step)
        finally:
            self._worker._wanted.pop(self._step.id, None)

    def close(self) -> None:
        """Expect no answer any more."""
        if self._is_open:
            self._is_open = False
            self._worker._wanted.pop(self._step.id, None)
            calls = self._worker._channel.calls
            has_ended = self.done() or (self._quietly and not self._step.requested)
            (calls.forget if has_ended else calls.give_up)(self._step.id)
            if self._quietly and has_ended:
                self._step.waiting.pop(self._wait, None)
                if self._reply is None:
                    self._worker._may_be_given_back(self._part, self._step)


def _unknown(feeds: Sequence[Any]) -> _Registered:
    """The worker says that there is no such part."""
    return _Registered(len(feeds), (), changes=False, sends=False, gives_back=False)


class _Wait:
    """The wait for a worker, as `Step.waiting` has it."""

    __slots__ = ("inquire", "node", "since")

    def __init__(self, peer: str, inquire: Callable[[], Awaitable[Sequence[tuple[str, float, str]]]]) -> None:
        self.node = peer
        self.since = monotonic()
        self.inquire = inquire

    def describe(self) -> str:
        """What it waits for."""
        return "its part of the step"


def _own(tensor: Any) -> Any:
    """A fetched value that belongs to the caller."""
    if not tensor.ndim:
        return tensor[()]
    return tensor if tensor.flags.writeable else tensor.copy()

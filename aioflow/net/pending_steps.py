"""The steps that run at one worker in another process, and the pending calls of their parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from aioflow.errors import CancelledError, InternalError, InvalidArgumentError, OpError
from aioflow.memory.values import Array, Value
from aioflow.net.channel import Channel, Reply
from aioflow.net.comm import gone
from aioflow.net.errors_codec import encode_error
from aioflow.net.exchange import REMEMBERED
from aioflow.net.framing import Packed
from aioflow.net.messages import ABORT, REPORT, Aborted, Parsed, Ran, parse, to_wire_value
from aioflow.net.resource_directory import unpack_texts
from aioflow.runtime.step import Step

_ABORT_SECONDS: Final = 2.0
_REPORT_SECONDS: Final = 1.0


class RegisteredPart(NamedTuple):
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

    def taken(self, feeds: Sequence[Value]) -> list[Value]:
        """Return the part's feeds out of those of a whole step.

        Raises:
            InvalidArgumentError: the number of feeds is wrong.
        """
        if len(feeds) != self.all_feeds:
            raise InvalidArgumentError("wrong number of feeds", expected=self.all_feeds, actual=len(feeds))
        return [to_wire_value(feeds[index]) for index in self.feeds]


class Wait:
    """The wait for a worker, as an entry of `Step.waiting`."""

    __slots__ = ("inquire", "node", "since")

    def __init__(self, peer: str, inquire: Callable[[], Awaitable[Sequence[tuple[str, float, str]]]]) -> None:
        self.node = peer
        self.since = monotonic()
        self.inquire = inquire

    def describe(self) -> str:
        """Describe what the step waits for."""
        return "the peer's part of the step"


class PendingSteps:
    """The steps with a part at a worker, from the request until the values that the part sent have arrived.

    Args:
        channel: The connection to the worker.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ran = Parsed(Ran)
        self._wanted: dict[int, Step] = {}
        # Steps whose part has ended, but whose values sent from there may not have arrived.
        self._sent: dict[int, Step] = {}
        self._quiet = 0  # number of parts begun that report only failures

    # -- the parts ----------------------------------------------------------------------------------------------------

    def begin(self, document: Packed, tensors: Sequence[Value], call: PendingCall) -> bool:
        """Send the request of a call if that needs no waiting, and return whether it was sent.

        Raises:
            UnavailableError: the worker cannot be reached any more.
        """
        return self._channel.calls.begin(call.step.id, document, tensors, call)

    def begun(self, part: RegisteredPart, step: Step) -> None:
        """Record that a part is about to begin, or has begun."""
        self._wanted[step.id] = step
        if part.changes and step.begun is not None:
            step.begun.add(self._channel.peer)

    def not_begun(self, step: Step) -> None:
        """Record that a part has not begun after all, so that it has changed nothing."""
        if step.begun is not None:
            step.begun.discard(self._channel.peer)

    def has_ended(self, part: RegisteredPart, step: Step) -> None:
        """Process the successful end of a part."""
        self.may_be_given_back(part, step)
        if part.sends:
            self._sent[step.id] = step
            step.releases.append(lambda: self._arrived(step))
            if self._channel.error is not None:
                self.connection_ended(gone(self._channel.peer, self._channel.error))

    def _arrived(self, step: Step) -> None:
        self._sent.pop(step.id, None)

    def may_be_given_back(self, part: RegisteredPart, step: Step) -> None:
        """Put back the elements that an ended part has taken, if the step fails elsewhere."""
        if part.gives_back:
            step.took(partial(self.stop, step))

    def forget(self, step: Step) -> None:
        """Record that a part is no longer awaited."""
        self._wanted.pop(step.id, None)

    def forget_call(self, step: Step) -> None:
        """Remove the call of a part that has ended."""
        self._channel.calls.forget(step.id)

    def give_up_call(self, step: Step) -> None:
        """Abandon the call of a part, and tell the worker so."""
        self._channel.calls.give_up(step.id)

    def fetches(self, reply: Reply) -> list[Value]:
        """Return the fetches of a part. Raises DataLossError if the answer is malformed."""
        self._ran(reply.header)
        return [owned(tensor) for tensor in reply.tensors]

    # -- parts that report only failures ------------------------------------------------------------------------------

    def next_quiet(self) -> int:
        """Return the number of quiet parts begun, including one that begins now."""
        self._quiet += 1
        return self._quiet

    def is_forgotten(self, ordinal: int) -> bool:
        """Return True if the worker may no longer remember that it has run a quiet part.

        Args:
            ordinal: The number of quiet parts begun up to and including this one. Parts that began earlier may have
                ended later, so this allows for as many as can be open.
        """
        return self._quiet - ordinal >= REMEMBERED - self._channel.comm.limits.open_requests

    # -- the steps ----------------------------------------------------------------------------------------------------

    def is_awaited(self, step: int) -> bool:
        """Return True if a step is still awaited here."""
        return step in self._wanted

    def failed(self, step: int, error: OpError) -> None:
        """Stop a step, because a value sent by the worker's part cannot be delivered. That part may have ended."""
        running = self._wanted.get(step) or self._sent.get(step)
        if running is not None:
            running.stop(error)

    def connection_ended(self, error: OpError) -> None:
        """Stop the steps whose values may be lost: the connection has ended, so no confirmation will come.

        A worker that closed the connection gracefully waited for the delivery of its values first.
        """
        # A copy of the values: stopping a step may remove it from the table.
        for step in () if self._channel.in_order else list(self._sent.values()):
            step.stop(error)

    async def stop(self, step: Step) -> None:
        """Abort a step at the worker as far as it can be reached, for the error that has stopped the step."""
        with suppress(OpError):  # the worker is unreachable or busy; an abort request is all that can be done
            if not await self.abort(step.id, step.error or CancelledError("the step was stopped")):
                self.not_begun(step)

    async def abort(self, step: int, error: OpError) -> bool:
        """Stop a step at the worker; see `RemoteWorker.abort`."""
        header = {"step": step, "error": encode_error(error, 16 << 10)}
        return parse(Aborted, (await self._channel.call(ABORT, header, timeout=_ABORT_SECONDS)).header).begun

    def wait_for(self, step: Step) -> Wait:
        """Return the wait for the step's part, which starts now."""
        return Wait(self._channel.peer, partial(self.waiting, step.id))

    async def waiting(self, step: int) -> Sequence[tuple[str, float, str]]:
        """Return the waits of a step on the worker, in the form of `StuckStep.waiting`."""
        reply = await self._channel.call(REPORT, {"step": step}, timeout=_REPORT_SECONDS)
        if not reply.tensors:
            return ()
        seconds, *texts = reply.tensors
        rows = unpack_texts(texts, 2, seconds.size)
        return [(node, waited, what) for (node, what), waited in zip(rows, seconds.reshape(-1).tolist(), strict=True)]


class PendingCall:
    """A part that runs on a worker (`runtime.worker.Begun`), and receives the answer to its request.

    Args:
        steps: The steps at the worker.
        part: The part.
        step: Its step.
        on_end: Called when the part ends, with its error or None; if `quietly`, only with errors.
        quietly: Whether the worker answers only if the part fails.
    """

    __slots__ = ("_failed", "_is_open", "_on_end", "_ordinal", "_part", "_quietly", "_reply", "_steps", "_wait", "step")

    def __init__(
        self,
        steps: PendingSteps,
        part: RegisteredPart,
        step: Step,
        on_end: Callable[[OpError | None], None],
        quietly: bool,
    ) -> None:
        self.step = step
        self._quietly = quietly
        self._steps = steps
        self._part = part
        self._on_end = on_end
        self._reply: Reply | None = None
        self._failed = False
        self._ordinal = 0
        self._is_open = True
        self._wait = steps.wait_for(step)

    def begin(self, document: Packed, tensors: Sequence[Value]) -> bool:
        """Send the request if that needs no waiting, and return whether it was sent.

        Raises:
            UnavailableError: the worker cannot be reached any more.
        """
        if not self._steps.begin(document, tensors, self):
            return False
        if self._quietly:
            self._ordinal = self._steps.next_quiet()
        self.step.waiting[self._wait] = None
        self._steps.begun(self._part, self.step)
        return True

    def done(self) -> bool:
        """Return True once there is an answer."""
        return self._failed or self._reply is not None

    def set_result(self, reply: Reply) -> None:
        """Process the end of the part. For a quiet part, this comes only when its worker closes gracefully."""
        self._reply = reply
        del self.step.waiting[self._wait]
        self._steps.has_ended(self._part, self.step)
        if not self._quietly:
            self._on_end(None)

    def set_exception(self, error: OpError) -> None:
        """Process the failure of the part or of its connection."""
        self._failed = True
        # At a graceful close the worker reports the quiet parts that have run, but it remembers only the latest.
        if not error.may_have_been_applied and not (self._quietly and self._steps.is_forgotten(self._ordinal)):
            self._steps.not_begun(self.step)
        self._on_end(error)

    def results(self) -> list[Value]:
        """Return the fetches. Raises DataLossError if the answer is malformed."""
        if self._quietly:
            return []
        if self._reply is None:
            raise InternalError("the fetches of a part were read before it ended")
        return self._steps.fetches(self._reply)

    async def stop(self) -> None:
        """Abort the part. The wait for it stays in the step, so that a timeout names it."""
        self._is_open = False
        self._steps.give_up_call(self.step)
        try:
            await self._steps.stop(self.step)
        finally:
            self._steps.forget(self.step)

    def close(self) -> None:
        """Stop expecting an answer."""
        if self._is_open:
            self._is_open = False
            self._steps.forget(self.step)
            # A quiet part reports only failures: unless the step was stopped, it has ended without one.
            has_ended = self.done() or (self._quietly and not self.step.requested)
            (self._steps.forget_call if has_ended else self._steps.give_up_call)(self.step)
            if self._quietly and has_ended:
                self.step.waiting.pop(self._wait, None)
                if self._reply is None:
                    self._steps.may_be_given_back(self._part, self.step)


def owned(tensor: Array) -> Value:
    """Return a fetched value as one that the caller owns."""
    if not tensor.ndim:
        return tensor[()]
    return tensor if tensor.flags.writeable else tensor.copy()

"""The steps that a worker takes part in, by their ids, without I/O, and the values that arrive before they begin."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from aioflow.errors import AbortedError, CancelledError, OpError, ResourceExhaustedError
from aioflow.memory.values import Value
from aioflow.net.channel import Channel
from aioflow.net.limits import DEFAULT_LIMITS, Limits
from aioflow.net.outbox import ValueMessage
from aioflow.net.tensor_format import bytes_of
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step

# ── values that arrived before they were requested, by source and in total ────────────────────────────────────────────
#
# Messages overtake each other, so such a value is kept even if its step has not started yet. It may never be requested,
# so the memory is bounded: if a limit is exceeded, the largest step of the largest source is given up.


_EACH: Final = 1024  # bytes of a value besides its elements: its key, table entries, the array object


class _Brought:
    """The values of one source: bytes by step."""

    __slots__ = ("steps", "total")

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.total = 0


class EarlyValues:
    """The counts of early values. A source is any hashable key; None stands for this process.

    Attributes:
        total: Bytes of all early values.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sources: dict[Hashable, _Brought] = {}
        self.total = 0

    def add(self, source: Hashable, step: int, edge: str, tag: str, value: Value) -> None:
        """Count a value that is kept for a step."""
        size = size_of(edge, tag, value)
        brought = self._sources.setdefault(source, _Brought())
        brought.steps[step] = brought.steps.get(step, 0) + size
        brought.total += size
        self.total += size

    def remove(self, step: int) -> None:
        """Remove a step that has ended or whose values are dropped."""
        # Several sources may have sent values for one step.
        for source, brought in list(self._sources.items()):
            size = brought.steps.pop(step, 0)
            brought.total -= size
            self.total -= size
            if not brought.steps:
                del self._sources[source]

    def correct(self, step: int, size: int) -> None:
        """Lower each source's count of a step to at most `size` bytes: its other values have been requested."""
        for brought in self._sources.values():
            gone = max(0, brought.steps.get(step, 0) - size)
            if gone:
                brought.steps[step] -= gone
                brought.total -= gone
                self.total -= gone

    def bytes_of(self, step: int) -> int:
        """Return the bytes counted for a step."""
        return sum(brought.steps.get(step, 0) for brought in self._sources.values())

    def steps_of(self, source: Hashable) -> list[int]:
        """Return the steps that a source has sent values for."""
        brought = self._sources.get(source)
        return [] if brought is None else list(brought.steps)

    def excess(self, source: Hashable) -> tuple[int, ResourceExhaustedError] | None:
        """Return a step to give up and the reason, after `source` has sent a value; None if all limits hold."""
        brought, limits = self._sources.get(source), self._limits
        # Values of this process itself count only towards the total.
        if brought is not None and source is not None and brought.total > limits.early_bytes:
            return _largest(brought), _error("bytes of one connection", limits.early_bytes, brought.total)
        if self.total > limits.all_early_bytes:
            most = max(self._sources.values(), key=lambda brought: brought.total)
            return _largest(most), _error("bytes of all connections", limits.all_early_bytes, self.total)
        return None

    def excess_of_steps(self, steps: Collection[int], most: int) -> tuple[int, ResourceExhaustedError]:
        """Return a step to give up and the reason, if there are too many.

        It is the first step of the source that has sent values for the most steps.
        """
        found = max(([step for step in brought.steps if step in steps] for brought in self._sources.values()), key=len)
        return found[0], _error("steps", most, len(steps))


def _largest(brought: _Brought) -> int:
    # The largest step frees the most room for one failure.
    return max(brought.steps, key=brought.steps.__getitem__)


def _error(whose: str, limit: int, actual: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"values for the step arrived before they were requested, and were dropped: too many {whose}",
        expected=f"at most {limit}",
        actual=actual,
    )


def size_of(edge: str, tag: str, value: Value) -> int:
    """Return the bytes that a kept value takes; strings count with their contents."""
    return _EACH + len(edge) + len(tag) + bytes_of(value)


# ── ids of steps that have ended on a worker, or will never start there, without I/O ──────────────────────────────────
#
# The latest hundred thousand are remembered. Each id counts for the client that sent it, and the client with the most
# loses its oldest. A client that invents ids therefore displaces only its own.

_MOST: Final = 100_000


@dataclass(slots=True, eq=False)
class _End:
    """The end of a step.

    Attributes:
        id: Id of the step.
        error: The error for a client that starts it late; None if it has ended normally.
        whom: The client that may not start it; None for all clients.
        changed: Whether it has made permanent changes.
    """

    id: int
    error: OpError | None
    whom: Hashable
    changed: bool


class EndedSteps:
    """The memory of ended steps. A client is any hashable key; None stands for those that have disconnected.

    Args:
        most: Maximum number of steps, of all clients.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        # A step that has run has one end. One that never began has an end for each client that has aborted it.
        self._ends: dict[int, tuple[_End, ...]] = {}
        # By client. Finding the oldest key of a dictionary is slow after many deletions, so there is a queue, too.
        self._orders: dict[Hashable, deque[_End]] = {}
        self._count = 0  # of all queues, also of ends that another end of the same step has replaced

    def __contains__(self, id: int) -> bool:
        return id in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def refuses(self, id: int, client: Hashable) -> bool:
        """Return True if the client may not start the step."""
        return self._find(id, client) is not None

    def error(self, id: int, client: Hashable) -> OpError | None:
        """Return why the client may not start the step; None if it may, or if the step has ended normally."""
        end = self._find(id, client)
        return None if end is None else end.error

    def _find(self, id: int, client: Hashable) -> _End | None:
        return next((end for end in self._ends.get(id, ()) if end.whom is None or end.whom == client), None)

    def has_changed(self, id: int) -> bool:
        """Return True if the step has run and has made permanent changes."""
        return any(end.changed for end in self._ends.get(id, ()))

    def set_changed(self, id: int) -> None:
        """Record that the step has made permanent changes after all."""
        for end in self._ends.get(id, ()):
            end.changed = True

    def add(
        self, id: int, error: OpError | None, client: Hashable, whom: Hashable = None, changed: bool = False
    ) -> None:
        """Record that a step has ended or will not start.

        Args:
            id: Id of the step.
            error: As for `_End`.
            client: The client that the id counts for.
            whom: The client that may not start it; None for all clients.
            changed: Whether it has made permanent changes.
        """
        end = _End(id, error, whom, changed)
        others = () if whom is None else (each for each in self._ends.get(id, ()) if each.whom != whom)
        self._ends[id] = (*others, end)
        self._orders.setdefault(client, deque()).append(end)
        self._count += 1
        if self._count > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Forget the oldest steps of the client with the most."""
        # One percent at a time, since finding that client takes a scan over all clients.
        client = max(self._orders, key=lambda one: len(self._orders[one]))
        order = self._orders[client]
        for _ in range(min(len(order), 1 + self._most // 100)):
            end = order.popleft()
            self._count -= 1
            # Other ends of the same step have their own places in queues.
            others = tuple(each for each in self._ends.pop(end.id, ()) if each is not end)
            if others:
                self._ends[end.id] = others
        if not order:
            del self._orders[client]

    def lose(self, client: Hashable) -> None:
        """Count the steps of a disconnected client under None."""
        order = self._orders.pop(client, None)
        if order is not None:
            self._orders.setdefault(None, deque()).extend(order)


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Values for a step may arrive before the step begins here, and after it has ended. Early values are kept for a while,
# within limits; late ones are dropped. The ids of ended steps are remembered (`EndedSteps`).


_MOST_EARLY: Final = 1024
_EARLY_SECONDS: Final = 60.0
_MOST_TEXT: Final = 400  # characters per text of an error kept for a step that may never begin


class Origin(NamedTuple):
    """The client of a step.

    Attributes:
        take: Delivers values to the client's own task; thread-safe.
        connection: As for `ValueMessage`.
    """

    take: Callable[[ValueMessage], None]
    connection: Callable[[str], Channel | None] | None = None


class JointStep:
    """The local part of a step.

    Attributes:
        rendezvous: The step's rendezvous; None if the part neither sends nor receives.
        step: The running step; None before it has begun.
        peers: Incarnation of the receiving process for each task that the part sends to.
        origin: The client of the step, if known.
        client: Key of the step's client; before the step has begun, of the client that sent the first value.
    """

    __slots__ = ("_ended", "_over", "client", "id", "origin", "peers", "rendezvous", "step", "timer")

    def __init__(self, id: int, rendezvous: Rendezvous | None) -> None:
        self.id = id
        self.rendezvous = rendezvous
        self._over = False
        self._ended: asyncio.Event | None = None
        self.step: Step | None = None
        self.peers: Mapping[str, int] = {}
        self.origin: Origin | None = None
        self.client: Hashable = None
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: OpError) -> None:
        """Stop the step because of an error elsewhere. Call on its event loop."""
        if self.step is not None:
            self.step.stop(error)

    def end(self) -> None:
        """Declare that nothing of the step runs any more."""
        self._over = True
        if self._ended is not None:
            self._ended.set()

    async def ended(self) -> None:
        """Wait for `end`."""
        if not self._over:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()


class StepTable:
    """The steps of one worker. Any hashable identifies a client; None stands for this process.

    Args:
        make: Returns the rendezvous of a step, given the step's id.
        limits: Limits on values that arrive before their steps.
    """

    def __init__(self, make: Callable[[int], Rendezvous], limits: Limits = DEFAULT_LIMITS) -> None:
        self._make = make
        self._values = EarlyValues(limits)
        self._loop = asyncio.get_running_loop()
        self._steps: dict[int, JointStep] = {}
        self._early: dict[int, JointStep] = {}
        self._ended = EndedSteps()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def early_bytes(self) -> int:
        """Upper bound on the bytes of values that arrived before they were requested."""
        return self._values.total

    def get(self, id: int) -> JointStep | None:
        """Return the running step with this id, if any."""
        return self._steps.get(id)

    def begin(
        self, id: int, step: Step, peers: Mapping[str, int], meets: bool = True, client: Hashable = None
    ) -> JointStep:
        """Register a step that begins here. Call `end` afterwards.

        Args:
            id: The id of the step.
            step: The step.
            peers: As for `JointStep`.
            meets: Whether the part sends or receives anything.
            client: Key of the step's client, the only one that can abort it.

        Raises:
            OpError: the step has been aborted, was given up because it began too late, or values for it were dropped.
        """
        if id in self._steps or self._ended.refuses(id, client):
            raise self._ended.error(id, client) or AbortedError(
                "the step has already run here", expected="a new step", actual=id
            )
        # Values that arrived before the step are in the rendezvous of this entry.
        joint = self._early.pop(id, None)
        if joint is None:
            joint = JointStep(id, self._make(id) if meets else None)
        if joint.timer is not None:
            joint.timer.cancel()
        joint.step = step
        joint.peers, joint.client = peers, client
        self._steps[id] = joint
        return joint

    def end(self, joint: JointStep) -> None:
        """Remove a step of which nothing runs any more."""
        del self._steps[joint.id]
        self._values.remove(joint.id)
        if joint.rendezvous is not None:
            joint.rendezvous.abort(CancelledError("the step has ended"))
        self._ended.add(joint.id, None, joint.client, changed=joint.step is not None and joint.step.changed)
        joint.end()

    def deliver(self, id: int, edge: str, tag: str, value: Value, source: Hashable = None) -> None:
        """Deliver a value to a step. A value for a step that has ended is dropped.

        Args:
            id: The id of the step.
            edge: The edge that the value belongs to.
            tag: Tag of the value within the step.
            value: The value.
            source: Key of the client that sent the value, as for `lose`.

        Raises:
            InternalError: the value has already been delivered.
        """
        joint = self._steps.get(id)
        if joint is not None:
            meeting = joint.rendezvous
            # Without a rendezvous, no node of the part receives values.
            if meeting is not None and meeting.deliver(edge, tag, value) and source is not None:
                self._values.add(source, id, edge, tag, value)
                self._make_room(source)
        elif id not in self._ended:
            self._deliver_early(id, edge, tag, value, source)

    def _deliver_early(self, id: int, edge: str, tag: str, value: Value, source: Hashable) -> None:
        joint = self._early.get(id)
        if joint is None:
            joint = self._early[id] = JointStep(id, self._make(id))
            joint.client = source
            joint.timer = self._loop.call_later(_EARLY_SECONDS, self._give_up, id, _never_came(id))
        if joint.rendezvous is not None:
            joint.rendezvous.deliver(edge, tag, value)
            self._values.add(source, id, edge, tag, value)
        if len(self._early) > _MOST_EARLY:
            self._give_up(*self._values.excess_of_steps(self._early, _MOST_EARLY))
        self._make_room(source)

    def _make_room(self, source: Hashable) -> None:
        while (excess := self._values.excess(source)) is not None:
            id, error = excess
            joint = self._steps.get(id)
            if joint is None:
                self._give_up(id, error)
            # The count is an upper bound, which includes values consumed since: measure before a running step is
            # stopped.
            elif not self._has_less(joint):
                self._values.remove(id)
                joint.fail(error)
                if joint.rendezvous is not None:
                    joint.rendezvous.abort(error)

    def _has_less(self, joint: JointStep) -> bool:
        """Return True if a running step has consumed at least half of its values since they were counted."""
        kept = () if joint.rendezvous is None else joint.rendezvous.kept()
        size, counted = sum(size_of(*value) for value in kept), self._values.bytes_of(joint.id)
        self._values.correct(joint.id, size)
        return 2 * size <= counted

    def lose(self, source: Hashable) -> None:
        """Give up the steps that have not begun and have values from this client, whose connection has ended."""
        # `&` makes a set of its own, since giving a step up removes it from the table.
        for id in self._early.keys() & set(self._values.steps_of(source)):
            self._give_up(id, AbortedError("values for the step came by a connection that has gone since", actual=id))
        self._ended.lose(source)

    def has_changed(self, id: int) -> bool:
        """Return True if the step has run here, has ended, and has made a permanent change."""
        return self._ended.has_changed(id)

    def set_changed(self, id: int) -> None:
        """Record that a step that has ended here has made a permanent change after all."""
        self._ended.set_changed(id)

    def abort(self, id: int, error: OpError, client: Hashable = None) -> JointStep | None:
        """Stop a client's step, and return it if it is running. A step that has not begun never will.

        Do nothing, and return None, if the running step belongs to another client.
        """
        joint = self._steps.get(id)
        if joint is not None:
            if joint.client != client:
                return None
            joint.fail(error)
        # Remembered as ended, so that the step is refused if its request arrives after the abort.
        elif not self._ended.refuses(id, client):
            self._drop_early(id)
            self._ended.add(id, _shortened(error), client, client)
        return joint

    def _give_up(self, id: int, error: OpError) -> None:
        early = self._early.get(id)
        self._drop_early(id)
        self._ended.add(id, error, None if early is None else early.client)

    def _drop_early(self, id: int) -> None:
        joint = self._early.pop(id, None)
        if joint is not None and joint.timer is not None:
            joint.timer.cancel()
            self._values.remove(id)

    def close(self) -> None:
        """Drop the early values."""
        for id in list(self._early):
            self._drop_early(id)


def _never_came(id: int) -> OpError:
    return AbortedError("values for the step came, and then the step did not", actual=id)


def _shortened(error: OpError) -> OpError:
    """Truncate an error that a peer has sent, since many of them may be kept."""
    texts = (error.message, error.node, error.op_type, error.expected, error.actual)
    message, node, op_type, expected, actual = (None if text is None else str(text)[:_MOST_TEXT] for text in texts)
    return type(error)(message or "", node=node, op_type=op_type, expected=expected, actual=actual)

"""The steps that a worker takes part in, by their ids, without I/O.

Values for a step may come before the step itself is begun here, and go on coming after it has ended: the first are kept
for a while, within limits, the others are dropped. The ids of steps that have ended are remembered (`ended_steps`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from aioflow.errors import AbortedError, CancelledError, OpError
from aioflow.net.channel import Channel
from aioflow.net.early_values import EarlyValues, size_of
from aioflow.net.ended_steps import EndedSteps
from aioflow.net.limits import DEFAULT_LIMITS, Limits
from aioflow.net.outbox import Parcel
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step

__all__ = ["JointStep", "Origin", "StepTable"]

_MOST_EARLY: Final = 1024
_EARLY_SECONDS: Final = 60.0
_MOST_TEXT: Final = 400  # letters of an error that is kept for a step which may never begin


class Origin(NamedTuple):
    """The client of a step, as the worker knows it.

    Attributes:
        take: Takes values to the task that the client itself is; from any thread.
        connection: As of `Parcel`.
    """

    take: Callable[[Parcel], None]
    connection: Callable[[str], Channel | None] | None = None


class JointStep:
    """One step, as far as this worker is concerned.

    Attributes:
        rendezvous: None where nothing is sent or received.
        step: What runs here; None before it has begun.
        peers: For each task that it sends to, the number of the process that it is meant for.
        origin: Its client, where that is known.
        client: Whose step it is; before it has begun, who has brought the first value.
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
        self.client: Any = None
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: OpError) -> None:
        """Stop it because of an error somewhere else. Call on its event loop."""
        if self.step is not None:
            self.step.stop(error)

    def end(self) -> None:
        """Nothing of it is running any more."""
        self._over = True
        if self._ended is not None:
            self._ended.set()

    async def ended(self) -> None:
        """Wait for `end`."""
        if not self._over:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()


class StepTable:
    """The steps of one worker. A client is whatever can be a key: None stands for this process.

    Args:
        make: Makes the rendezvous of a step; it gets the id of the step.
        limits: Of the values that come before their steps.
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
        """What the values take that came before they were asked for, at the most."""
        return self._values.total

    def get(self, id: int) -> JointStep | None:
        """The step, unless it has not begun or has ended."""
        return self._steps.get(id)

    def begin(self, id: int, step: Step, peers: Mapping[str, int], meets: bool = True, client: Any = None) -> JointStep:
        """The step runs here from now on; `end` must follow.

        Args:
            peers: As of `JointStep`.
            meets: Whether anything is sent or received in it.
            client: Whose step it is; nobody else stops it.

        Raises:
            OpError: it has been aborted before, or took so long to begin that it has been given up, or values for it
                have been dropped.
        """
        if id in self._steps or self._ended.refuses(id, client):
            raise self._ended.error(id) or AbortedError(
                "the step has already run here", expected="a new step", actual=id
            )
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
        """Nothing of the step is running any more."""
        del self._steps[joint.id]
        self._values.remove(joint.id)
        if joint.rendezvous is not None:
            joint.rendezvous.abort(CancelledError("the step has ended"))
        self._ended.add(joint.id, None, joint.client, changed=joint.step is not None and joint.step.changed)
        joint.end()

    def deliver(self, id: int, edge: str, tag: str, value: Any, source: Any = None) -> None:
        """A value for a step has come; nothing is done for one that has ended.

        Args:
            source: The client that has brought it, which `lose` will be told of.

        Raises:
            InternalError: it has come twice.
        """
        joint = self._steps.get(id)
        if joint is not None:
            meeting = joint.rendezvous  # without one nobody asks for it
            if meeting is not None and meeting.deliver(edge, tag, value) and source is not None:
                self._values.add(source, id, edge, tag, value)
                self._make_room(source)
        elif id not in self._ended:
            self._deliver_early(id, edge, tag, value, source)

    def _deliver_early(self, id: int, edge: str, tag: str, value: Any, source: Any) -> None:
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

    def _make_room(self, source: Any) -> None:
        while (excess := self._values.excess(source)) is not None:
            id, error = excess
            joint = self._steps.get(id)
            if joint is None:
                self._give_up(id, error)
            elif not self._has_less(joint):
                self._values.remove(id)
                joint.fail(error)
                if joint.rendezvous is not None:
                    joint.rendezvous.abort(error)

    def _has_less(self, joint: JointStep) -> bool:
        """Whether a step that runs has asked for half of its values or more since they were counted."""
        kept = () if joint.rendezvous is None else joint.rendezvous.kept()
        size, counted = sum(size_of(*value) for value in kept), self._values.bytes_of(joint.id)
        self._values.correct(joint.id, size)
        return 2 * size <= counted

    def lose(self, source: Any) -> None:
        """A client has gone: what it has brought for steps that have not begun is dropped, and they will not."""
        for id in self._early.keys() & set(self._values.steps_of(source)):
            self._give_up(id, AbortedError("values for the step came by a connection that has gone since", actual=id))
        self._ended.lose(source)

    def has_changed(self, id: int) -> bool:
        """Return whether the step has run here, has ended, and has changed anything for good."""
        return self._ended.has_changed(id)

    def set_changed(self, id: int) -> None:
        """Note that a step that has ended here has changed something for good after all."""
        self._ended.set_changed(id)

    def abort(self, id: int, error: OpError, client: Any = None) -> JointStep | None:
        """Stop a step of a client; one that has not begun will not. Returns it if it is running."""
        joint = self._steps.get(id)
        if joint is not None:
            if joint.client != client:
                return None
            joint.fail(error)
        elif id not in self._ended:
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
        """Drop what came early."""
        for id in list(self._early):
            self._drop_early(id)


def _never_came(id: int) -> OpError:
    return AbortedError("values for the step came, and then the step did not", actual=id)


def _shortened(error: OpError) -> OpError:
    """What is kept of an error that a peer has sent, perhaps many of them."""
    texts = (error.message, error.node, error.op_type, error.expected, error.actual)
    message, node, op_type, expected, actual = (None if text is None else str(text)[:_MOST_TEXT] for text in texts)
    return type(error)(message or "", node=node, op_type=op_type, expected=expected, actual=actual)

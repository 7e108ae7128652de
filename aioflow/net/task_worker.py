"""The worker of one task of a cluster: a `Worker` whose steps exchange values with other tasks.

Each client has a `WorkerSession`, whether it uses a connection (`worker_service.py`) or is a session in the same
process. Parts, kernel state and steps belong to that session and end with it. Variables and other resources belong to
the worker.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from aioflow.compiler.ir import Part
from aioflow.config import SessionConfig
from aioflow.errors import CancelledError, DataLossError, InvalidArgumentError, NotFoundError, OpError
from aioflow.graph.boundary import RECV, SEND
from aioflow.graph.device_spec import task_of
from aioflow.memory.values import Value
from aioflow.net.admission import StepAdmission
from aioflow.net.channel import ServiceRequest
from aioflow.net.limits import DEFAULT_LIMITS, Limits
from aioflow.net.messages import Deliver, Parsed, from_wire
from aioflow.net.outbox import ValueMessage
from aioflow.net.step_table import JointStep, Origin, StepTable
from aioflow.runtime.cluster import register
from aioflow.runtime.executable import Executable
from aioflow.runtime.frames import DEAD
from aioflow.runtime.handing_over import Unfinished
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import GiveBack, Step, has_failed
from aioflow.runtime.worker import Begun, Worker, WorkerState

SendMessage: TypeAlias = Callable[[ValueMessage], None]

_NAMES: Final = 4096  # more than the devices of a cluster; bounded, since peers could invent names
_HELD_SECONDS: Final = 2.0  # for which elements taken by an ended step are held for an `abort`
_MOST_HELD: Final = 64  # steps whose elements are held
_owner_of: Final = lru_cache(_NAMES)(task_of)


class TaskWorker:
    """A worker with its steps and its outbox. It belongs to the running event loop.

    Args:
        worker: Runs the parts.
        push: Sends values to other tasks; thread-safe.
        is_task: Returns whether a task belongs to the cluster. Any other task is that of the step's client.
        limits: Limits on data from peers.

    Attributes:
        is_task: As above, with a cache.
        admission: Admits the steps of all clients.
    """

    def __init__(
        self,
        worker: Worker,
        push: SendMessage,
        is_task: Callable[[str], bool] = lambda _: True,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.worker = worker
        self._push = push
        self.is_task = lru_cache(_NAMES)(is_task)
        self._devices = frozenset(worker.devices)
        self._sessions = itertools.count(-1, -1)  # negative; sessions in this process have positive numbers
        self.steps = StepTable(self._rendezvous, limits)
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._closed = False
        self._parsed = Parsed(Deliver)
        self.task = _owner_of(next(iter(worker.devices)))
        self.admission = StepAdmission(self.task)

    def _rendezvous(self, step: int) -> Rendezvous:
        def push(edge: str, tag: str, value: Value, to: str) -> None:
            joint = self.steps.get(step)
            if joint is None:
                return  # the step has ended
            task, origin = _owner_of(to), joint.origin
            connection = None if origin is None else origin.connection
            message = ValueMessage(task, joint.peers.get(task, 0), step, edge, tag, value, joint.fail, connection)
            if self.is_task(task):
                self._push(message)
            elif origin is not None:
                origin.take(message)
            else:
                joint.fail(NotFoundError("a value was sent to a task that is not in the cluster", actual=task))

        return Rendezvous(self._loop, self._devices, push)

    @property
    def is_open(self) -> bool:
        """True while the server runs."""
        return not self._closed

    @property
    def is_here(self) -> bool:
        """True if the caller is on the worker's event loop."""
        return asyncio.get_running_loop() is self._loop

    def close(self) -> None:
        """Close the worker at the end of its server."""
        self._closed = True
        self.steps.close()

    def deliver(self, request: ServiceRequest, source: Hashable = None) -> None:
        """Deliver a value that has arrived over a connection.

        Args:
            request: The push with the value.
            source: As for `StepTable.deliver`.

        Raises:
            DataLossError: the message is malformed.
        """
        asked = self._parsed(request.header)
        if len(request.tensors) != (0 if asked.dead else 1):
            raise DataLossError(
                f"a malformed value from {request.peer}",
                expected="one tensor, or no tensor for a dead value",
                actual=asked,
            )
        value = DEAD if asked.dead else from_wire(request.tensors[0])
        self.steps.deliver(request.number, asked.edge, asked.tag, value, source)

    def take(self, message: ValueMessage) -> None:
        """Deliver a value sent within this process. Thread-safe."""
        if threading.get_ident() == self._home:
            self._take(message)
        else:
            self._loop.call_soon_threadsafe(self._take, message)

    def _take(self, message: ValueMessage) -> None:
        try:
            self.steps.deliver(message.step, message.edge, message.tag, message.value)
        except OpError as error:
            message.fail(error)

    def open_session(self, peers: Mapping[str, int] | None = None, origin: Origin | None = None) -> WorkerSession:
        """Open a session for one client.

        Args:
            peers: Incarnations by task, as known to the client.
            origin: The client.
        """
        return WorkerSession(self, next(self._sessions), {} if peers is None else peers, origin)


class _Handle(NamedTuple):
    """The facts about a registered part.

    Attributes:
        executable: The executable for calls that do not wait; None unless the part is one strand.
        meets: Whether the part sends or receives anything.
        changes: Whether the part changes state.
    """

    executable: Executable | None
    meets: bool
    changes: bool


class _Held(NamedTuple):
    """The elements taken by an ended step, until its client reports whether to put them back.

    Attributes:
        taken: Callbacks that put the elements back.
        changed: Whether the step has changed anything else.
        is_delivered: Whether the fetches have been sent, so that without a report the elements belong to the client.
    """

    taken: Sequence[GiveBack]
    changed: bool
    is_delivered: bool

    def put_back(self) -> None:
        """Put the elements back, the last first."""
        for give_back in reversed(self.taken):
            give_back()


class WorkerSession:
    """The interface of a worker for one client (`runtime.worker.WorkerAPI`). Call `close` afterwards.

    Args:
        owner: The worker.
        number: Key of the client in `StepTable`.
        peers, origin: As for `TaskWorker.open_session`; `peers` is read at each step.

    Attributes:
        number: Key of the client in `StepTable`.
    """

    def __init__(self, owner: TaskWorker, number: int, peers: Mapping[str, int], origin: Origin | None) -> None:
        self._origin = origin
        self._closed = False
        self._owner = owner
        self._worker = owner.worker
        self.number = number
        self._peers = peers
        self._handles: dict[int, _Handle] = {}
        self._running: dict[JointStep, None] = {}
        self._held: dict[int, _Held] = {}
        self._aborted: dict[int, OpError] = {}  # the client's reasons, by aborted running step

    @property
    def is_open(self) -> bool:
        """True while the session accepts calls."""
        return not self._closed and self._owner.is_open

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Bind the kernels of a part and generate its strands; `session` is ignored.

        Raises:
            UnimplementedError: a node has no kernel.
            NotFoundError: the part uses devices that do not exist here.
        """
        handle = await register(self._worker, part, self.number, config)
        executable = self._worker.executable(handle)
        meets = any(node.op in (SEND, RECV) for node in part.nodes())
        self._handles[handle] = _Handle(executable if isinstance(executable, Executable) else None, meets, part.changes)
        return handle

    async def deregister(self, handle: int) -> None:
        """Forget a part; a running step of it continues."""
        if handle in self._handles:
            # Before the await, so that a second call does nothing.
            del self._handles[handle]
            await self._worker.deregister(handle)

    async def run(self, handle: int, feeds: Sequence[Value], step: Step, answered: bool | None = None) -> list[Value]:
        """Run a registered part once and return its fetches.

        Args:
            handle: The registered part.
            feeds: The feeds of the whole step.
            step: The step.
            answered: Whether a remote client waits for the answer. None for a client in this process, which puts back
                taken elements itself.

        Raises:
            NotFoundError: this client has not registered the part.
            UnavailableError: the worker is shutting down and begins no more steps.
            InvalidArgumentError: the step has no id although the part sends or receives values.
            OpError: a kernel failed, or the step was stopped; the first cause.
        """
        known = self._handles.get(handle)
        if known is None:
            raise NotFoundError(
                "the step is not registered with this worker", expected="a registered handle", actual=handle
            )
        if step.requested:
            # The step was stopped before it began here.
            step.halt()
        joint = self._enter(step, known)
        failed = True
        try:
            fetches = await self._worker.run(handle, feeds, step)
            failed = False
            return fetches
        except BaseException as error:
            if answered is not None:
                await self._unwind(step, error, answered)  # before `_leave`, which lets `abort` answer
            raise
        finally:
            self._leave(step, joint, failed)

    def hold(self, step: Step, is_delivered: bool = True) -> None:
        """Hold the elements taken by an ended step until `abort` decides whether to put them back.

        Args:
            step: The ended step.
            is_delivered: Whether the fetches are sent to the client, so that without an `abort` the client owns the
                elements. Otherwise they are put back after two seconds, or when the session closes.
        """
        if taken := step.keep():
            self._held[step.id] = _Held(taken, step.changed, is_delivered)
            asyncio.get_running_loop().call_later(_HELD_SECONDS, self._let_go, step.id)
            if len(self._held) > _MOST_HELD:
                # The oldest one, since a dictionary keeps the order of insertion.
                self._let_go(next(iter(self._held)))

    def _let_go(self, step: int) -> None:
        held = self._held.pop(step, None)
        if held is None:
            return
        if held.is_delivered:
            self._owner.steps.set_changed(step)  # the elements are gone; a later abort must report that
        else:
            held.put_back()

    async def _unwind(self, step: Step, error: BaseException, answered: bool) -> None:
        """Put back the elements taken by a failed step (`Step.unwind`), or hold them until `abort` decides.

        They are held if this end cannot know the outcome of the whole step. In spite of a deadline or the end of the
        connection, the step may have succeeded: if its client does not wait for this part, and the part has sent its
        values.
        """
        aborted = self._aborted.pop(step.id, None)
        is_known = aborted is not None or has_failed(error)
        if not (is_known or answered) and step.rendezvous is not None and step.rendezvous.has_sent:
            self.hold(step)
        elif not is_known and isinstance(error, asyncio.CancelledError) and step.error is None:
            self.hold(step, is_delivered=False)  # cancelled request: another worker may have failed on these elements
        else:
            # The cancellation may have stopped the step before the client's reason arrived.
            reasons = [each for each in (error, step.error, aborted) if each is not None and has_failed(each)]
            await step.unwind(reasons[0] if reasons else error)

    def begin(
        self, handle: int, feeds: Sequence[Value], step: Step, on_end: Callable[[OpError | None], None], quietly: bool
    ) -> Begun | None:
        """Return None always: an in-process part is awaited, not started in the background."""
        return None

    def run_brief(self, handle: int, feeds: Sequence[Value], step: Step) -> list[Value] | Unfinished | None:
        """Like `run`, for callers that do not wait. Return None and begin nothing unless the part is known to be short.

        Large fetches may remain to be copied: then the result is an `Unfinished`.
        """
        known = self._handles.get(handle)
        if known is None or known.executable is None or len(feeds) != known.executable.feeds:
            return None
        if not known.executable.is_brief(feeds):
            return None
        joint = self._enter(step, known)
        step.changed = known.executable.changes
        failed = True
        try:
            fetches = known.executable.run_brief(feeds, step)
            failed = False
            return fetches
        finally:
            self._leave(step, joint, failed)

    def run_inline(self, handle: int, feeds: Sequence[Value]) -> list[Value] | Unfinished | None:
        """Like `run_brief`, for a step of this worker alone, without an id. None on another event loop, too."""
        known, admission = self._handles.get(handle), self._owner.admission
        if known is None or known.executable is None or known.meets or not (admission.is_open and self._owner.is_here):
            return None
        try:
            fetches = known.executable.run_inline(feeds)
        except OpError as error:
            admission.has_run(failed=True)
            # A part without side effects has changed nothing, wherever it has failed.
            error.may_have_been_applied = known.changes
            raise
        if fetches is not None:
            admission.has_run(failed=False)
        return fetches

    def _enter(self, step: Step, known: _Handle) -> JointStep | None:
        """Begin the step here. `_leave` must follow. Raises OpError if the step is refused."""
        self._owner.admission.begin(step)
        try:
            if step.id:
                return self._begin(step, known)
            if known.meets:
                raise InvalidArgumentError("a step that sends or receives values has no id", expected="> 0", actual=0)
        except BaseException:
            self._owner.admission.end(step, failed=True)
            raise
        return None

    def _leave(self, step: Step, joint: JointStep | None, failed: bool) -> None:
        if step.changed and step.begun is not None:
            step.begun.add(self._owner.task)
        if joint is not None:
            self._running.pop(joint, None)
            self._owner.steps.end(joint)
        self._owner.admission.end(step, failed)

    def _begin(self, step: Step, known: _Handle) -> JointStep:
        joint = self._owner.steps.begin(step.id, step, self._peers, known.meets, self.number)
        joint.origin = self._origin
        self._running[joint] = None
        step.rendezvous = joint.rendezvous
        return joint

    def waiting(self, step: int) -> Sequence[tuple[str, float, str]]:
        """Return the waits of a step here, in the form of `StuckStep.waiting`; none for a step of another client."""
        joint = self._owner.steps.get(step)
        return () if joint not in self._running or joint.step is None else joint.step.report().waiting

    async def abort(self, step: int, error: OpError) -> bool:
        """Stop a step of this client because of an error elsewhere, and put back the elements that it has taken.

        Waits until nothing of the step runs here any more.

        Returns:
            Whether the step may have changed anything.
        """
        begun = self._owner.steps.has_changed(step)
        joint = self._owner.steps.abort(step, error, self.number)
        if joint is not None:
            # Before waiting: `_unwind` then knows the outcome of the whole step, and puts the elements back itself.
            self._aborted[step] = error
            await joint.ended()
            self._aborted.pop(step, None)
            begun = joint.step is None or joint.step.changed
        held = self._held.pop(step, None)
        if held is None:
            return begun
        if has_failed(error):
            return True
        held.put_back()
        return held.changed

    def take(self, message: ValueMessage) -> None:
        """Deliver a value sent within this process. Thread-safe."""
        self._owner.take(message)

    def deliver(self, request: ServiceRequest) -> None:
        """Deliver a value that has arrived over a connection."""
        self._owner.deliver(request)

    async def state(self) -> WorkerState:
        """Return the state of the worker, which counts the parts and steps of all clients."""
        return await self._worker.state()

    async def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of these containers, or of all."""
        self._worker.reset(containers)

    async def close(self) -> None:
        """Stop the client's running steps, and drop its parts and state."""
        self._closed = True
        # A copy, since steps leave the table as they end.
        running = list(self._running)
        for joint in running:
            joint.fail(CancelledError("the client of the step has disconnected"))
        try:
            for joint in running:
                await joint.ended()
        finally:
            # Only now: the steps above may have left elements behind while they ended.
            for step in list(self._held):
                self._let_go(step)
            try:
                await self._worker.background(self.number).close()
            finally:
                self._handles.clear()
                self._worker.forget_session(self.number)
                self._owner.steps.lose(self.number)

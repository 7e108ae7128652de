"""A plan on the workers of a cluster: registered part by part, and registered again with workers that were lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias, TypeVar

from aioflow.compiler.ir import Part
from aioflow.config import SessionConfig
from aioflow.errors import AbortedError, ClosedSessionError, OpError
from aioflow.memory.values import Value
from aioflow.net.client_task import ClientTask
from aioflow.net.links import Link
from aioflow.net.remote_worker import RemoteWorker
from aioflow.net.task_worker import WorkerSession
from aioflow.runtime.handing_over import Unfinished
from aioflow.runtime.parts import StepOfParts
from aioflow.runtime.step import Step
from aioflow.sync.background import Background

T = TypeVar("T")
Way: TypeAlias = Link | ClientTask


class Standing(NamedTuple):
    """The conditions under which a plan stays valid.

    Attributes:
        resolve: Resolves the resources of restarted tasks again; called with these tasks.
        holds: Returns True while all resources are where they were when the plan was made.
    """

    resolve: Callable[[Collection[str]], Awaitable[None]]
    holds: Callable[[], bool]


class _Registered(NamedTuple):
    """A part that its worker has registered; valid while the worker is open."""

    worker: RemoteWorker | WorkerSession
    part: Part
    handle: int


class RemoteStep:
    """A plan registered with workers (`runtime.cluster.RegisteredStep`). Call `open` first.

    Args:
        parts: Parts, each with the way to its worker; remote ones first.
        config: Settings of the session.
        patience: Connection timeout for a worker, in seconds.
        background: Runs the calls that register and deregister parts, which outlive a cancelled caller.
        standing: The conditions under which the plan stays valid.
        unanswered: Tasks whose parts report only failures, as for `StepOfParts`.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Way, Part]],
        config: SessionConfig,
        patience: float,
        background: Background,
        standing: Standing,
        unanswered: Collection[str] = (),
    ) -> None:
        self._unanswered = unanswered
        self._standing = standing
        self._parts = tuple(parts)
        self._config = config
        self._patience = patience
        self._background = background
        self._lock = asyncio.Lock()
        self._registered: Sequence[_Registered] = ()
        self._step = StepOfParts(())
        self._running = 0
        self._is_dropped = False

    def run_inline(self, feeds: Sequence[Value]) -> list[Value] | Unfinished | None:
        """Run a short step whose only part is in this process and return its fetches; None if it has to be awaited."""
        if len(self._parts) != 1 or not self._is_ready:
            return None
        worker, _, handle = self._registered[0]
        return worker.run_inline(handle, feeds) if isinstance(worker, WorkerSession) else None

    @property
    def _is_ready(self) -> bool:
        for known in self._registered:
            if not known.worker.is_open:
                return False
        return len(self._registered) == len(self._parts)

    async def open(self) -> None:
        """Register each part with its worker, unless all are registered.

        Raises:
            OpError: a worker refuses or cannot be reached; the first cause. Parts registered by other workers are
                forgotten.
            AbortedError: a worker was restarted and this had not been reported yet, or resources have moved since
                planning.
        """
        # Read before waiting for the lock: a restart that is reported meanwhile concerns this plan, too.
        restarts = [way.restarts for way, _ in self._parts]
        async with self._lock:
            if not self._is_ready:
                await _all(way.open(self._patience) for way, _ in self._parts)
                # Before `tell`, which raises: afterwards the restart counts as reported, and nothing is resolved again.
                if restarted := [way.task for way, _ in self._parts if not way.is_told]:
                    await self._standing.resolve(restarted)
                for way, _ in self._parts:
                    way.tell()
                self._require_standing()
                # Resources may move while the workers register their parts, hence the check on both sides.
                await self._register()
                self._require_standing()
        for (way, _), before in zip(self._parts, restarts, strict=True):
            if isinstance(way, Link) and way.restarts != before:
                # Another step has reported the restart meanwhile, but this step was planned before it, too.
                raise way.restarted()

    def _require_standing(self) -> None:
        if not self._standing.holds():
            error = AbortedError("variables are on other tasks than they were when the step was planned")
            error.may_have_been_applied = False
            raise error

    async def _register(self) -> None:
        await self._forget()
        known: dict[str, _Registered] = {}
        try:
            done = await outcomes(self._prepare(way, part, known) for way, part in self._parts)
            if errors := [outcome for outcome in done if outcome is not None]:
                raise next((error for error in errors if isinstance(error, OpError)), errors[0])
        except BaseException:
            # The workers that did register their parts must forget them.
            self._registered = list(known.values())
            await self._forget()
            raise
        self._registered = [known[part.task] for _, part in self._parts]
        self._step = StepOfParts(self._registered, self._unanswered)

    async def _prepare(self, way: Way, part: Part, known: dict[str, _Registered]) -> None:
        """Register one part and add it to `known`.

        If the caller is cancelled, a part that is registered later is deregistered at once.

        Raises:
            OpError: the worker cannot be reached any more, or refuses; or the session is closed.
        """
        worker = way.worker
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Retrieves the error, or asyncio would log it if the caller was cancelled.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())

        async def register() -> None:
            try:
                handle = await worker.register(part, 0, self._config)
            except Exception as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                registered = _Registered(worker, part, handle)
                if answer.done():
                    await _deregister([registered])
                else:
                    known[part.task] = registered
                    answer.set_result(None)

        def ended(_: asyncio.Task[None]) -> None:
            if not answer.done():  # cancelled as the session closed, perhaps before the task began
                answer.set_exception(ClosedSessionError.refusing())

        (await self._background.start(register())).add_done_callback(ended)
        await answer

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step on all workers and return the fetches in order.

        Raises:
            OpError: a worker failed; the first cause. By then the others have stopped or are unreachable. The error
                states whether updates may have been made.
        """
        step.begun = set()
        self._running += 1
        try:
            if not self._is_ready:
                async with step.stoppable():
                    await self.open()
            return await self._step.run(feeds, step)
        except OpError as error:
            step.account(error)
            raise
        finally:
            self._running -= 1
            if self._is_dropped and not self._running:
                await self._forget()

    async def deregister(self) -> None:
        """Make the workers forget their parts once no step runs any more, without waiting for their answers."""
        self._is_dropped = True
        if not self._running:
            await self._forget()

    async def _forget(self) -> None:
        # Taken out before the await, so that no other caller deregisters the same parts.
        registered, self._registered = self._registered, ()
        if registered:
            with suppress(ClosedSessionError):  # the workers forget everything when the connections end
                await self._background.start(_deregister(registered))


async def _deregister(parts: Sequence[_Registered]) -> None:
    """Send each worker a deregister request. A worker that misses it forgets its part with the connection."""
    await outcomes(known.worker.deregister(known.handle) for known in parts if known.worker.is_open)


async def outcomes(calls: Iterable[Coroutine[object, object, T]]) -> list[T | BaseException]:
    """Run the calls concurrently and return the result or the error of each, when all have ended."""
    begun: list[Coroutine[object, object, T]] = []

    async def outcome(call: Coroutine[object, object, T]) -> T | BaseException:
        try:
            return await call
        except (Exception, asyncio.CancelledError) as error:  # if the group is cancelled, it raises that itself
            return error

    try:
        begun.extend(calls)  # outside the group, which would wrap an error of the iterable in an ExceptionGroup
        async with asyncio.TaskGroup() as tg:
            tasks = [tg.create_task(outcome(call)) for call in begun]
    finally:
        for call in begun:
            call.close()  # of a task that was cancelled before it began; avoids a "never awaited" warning
    return [task.result() for task in tasks]


async def _all(calls: Iterable[Coroutine[object, object, object]]) -> None:
    """Wait for all of the calls and raise the first error."""
    for outcome in await outcomes(calls):
        if isinstance(outcome, BaseException):
            raise outcome

"""Driver that runs the tasks of a step on all devices of a worker.

A task whose inputs are complete is put in the ready queue. A strand that is expected to be short runs directly from the
queue; a longer one runs in its device's threads. A Recv registers a callback with the rendezvous. Only an async kernel
that has to wait becomes an asyncio task. A task that ends queues its followers that have become ready. All of this
happens on the step's event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from aioflow.compiler.ir import Edge
from aioflow.config import SessionConfig
from aioflow.errors import CancelledError, OpError
from aioflow.graph.boundary import RECV
from aioflow.kernels.registry import Converter
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode, kernel_error, to_keep
from aioflow.runtime.handing_over import copied_in_thread, is_large, large_bytes
from aioflow.runtime.rendezvous import PENDING
from aioflow.runtime.stats import Report
from aioflow.runtime.step import Step
from aioflow.runtime.strand import Strand
from aioflow.runtime.tasks import Task

_SLICE: Final = 1e-3  # seconds of work on the loop after which other callbacks get a turn
_NONE: Final[Mapping[int, Value]] = {}


class _Slots(NamedTuple):
    """One argument of an async node: like `Argument`, with slots for its sources."""

    slots: tuple[int, ...]
    is_sequence: bool
    convert: Converter | None


@dataclass(frozen=True, slots=True)
class _Entry:
    """One task, with its values as slots of the run.

    Attributes:
        strand: The strand that computes it, or None for an async node.
        bound: The async node; for a strand, its first node.
        edge_name: The tensor name of a Recv, otherwise empty.
        source: The sending device of a Recv, otherwise empty.
        inputs: Slots of the inputs.
        outputs: Slots of the outputs.
        followers: Indices of the tasks that wait for this one.
        counted: Input slots that are dropped when their last reader has begun.
        arguments: Arguments of the kernel of an async node.
        kept: Slots of inputs that are the caller's arrays, if the kernel may keep its inputs.
        unpacks: `BoundNode.unpacks` of an async node.
    """

    strand: Strand | None
    bound: BoundNode
    edge_name: str
    source: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    followers: tuple[int, ...]
    counted: tuple[int, ...]
    arguments: tuple[_Slots, ...] = ()
    kept: frozenset[int] = frozenset()
    unpacks: bool = False

    def gather(self, values: Sequence[Value], owned: Mapping[int, Value]) -> list[Value]:
        """Return the kernel's arguments, as `bind.gather` does, but without lookups; `owned` are copies made before."""
        result: list[Value] = []
        for slots, is_sequence, convert in self.arguments:
            items = [values[slot] for slot in slots]
            if self.kept:
                items = [self._own(slot, value, owned) for slot, value in zip(slots, items, strict=True)]
            if convert is not None:
                items = [convert(item) for item in items]
            result.append(tuple(items) if is_sequence else items[0])
        return result

    def _own(self, slot: int, value: Value, owned: Mapping[int, Value]) -> Value:
        return owned[slot] if slot in owned else to_keep(value) if slot in self.kept else value


class TaskProgram:
    """The tasks of one device's subgraph, ready to run any number of times.

    Args:
        tasks: The tasks in topological order.
        strands: For each task its strand, or None if it is an async node.
        constants: The values of the constants.
        feeds: For each feed that is read, its index in the step.
        fetched: The values that a run returns.
        fed: Values that may share memory with a feed.
        large: Values between tasks that are worth dropping before the end.
        config: The settings of the session.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        strands: Sequence[Strand | None],
        constants: Mapping[Edge, Value],
        feeds: Mapping[Edge, int],
        fetched: Sequence[Edge],
        fed: frozenset[Edge],
        large: frozenset[Edge],
        config: SessionConfig,
    ) -> None:
        edges = [*constants, *feeds, *(e for task in tasks for e in task.outputs)]
        self._slots = {edge: slot for slot, edge in enumerate(dict.fromkeys(edges))}
        self._feeds = tuple((self._slots[edge], index) for edge, index in feeds.items())
        self._fetched = tuple(self._slots[edge] for edge in fetched)
        # Each run begins with a copy of this list, so the constants are in place and are never assigned in a run.
        self._blank: list[Value] = [None] * len(self._slots)
        for edge, value in constants.items():
            self._blank[self._slots[edge]] = value
        self._needs = [len(task.needs) for task in tasks]
        # A fetched value is read once more after the last task, by `fetches`.
        droppable = large - set(fetched)
        self._readers: dict[int, int] = {}
        for edge in (e for task in tasks for e in task.inputs if e in droppable):
            self._readers[self._slots[edge]] = self._readers.get(self._slots[edge], 0) + 1
        self.fed = fed
        self.limit = config.max_value_bytes
        self._large = large_bytes(config.inline_budget)
        self._followers: list[list[int]] = [[] for _ in tasks]
        for i, task in enumerate(tasks):
            for need in task.needs:
                self._followers[need].append(i)
        self.entries = tuple(self._entry(i, tasks, strands[i]) for i in range(len(tasks)))
        self.first = tuple(i for i, count in enumerate(self._needs) if not count)

    def _entry(self, index: int, tasks: Sequence[Task], strand: Strand | None) -> _Entry:
        task = tasks[index]
        bound = task.nodes[0]
        outputs = task.outputs
        if strand is None:  # the kernel returns all outputs, also unread ones
            outputs = tuple(Edge(bound.node.name, port) for port in range(len(bound.node.outputs)))
            for edge in outputs:
                if edge not in self._slots:
                    self._slots[edge] = len(self._slots)
                    self._blank.append(None)
        received = bound.node.op == RECV and strand is None
        asked = () if strand is not None else bound.arguments
        # The code of a strand makes such copies itself (`NodeLife.copies`).
        fed = self.fed if strand is None and bound.kernel.retains else frozenset[Edge]()
        return _Entry(
            strand,
            bound,
            bound.node.attrs["tensor_name"] if received else "",
            bound.node.attrs["send_device"] if received else "",
            tuple(self._slots[e] for e in task.inputs),
            tuple(self._slots[e] for e in outputs),
            tuple(self._followers[index]),
            tuple(self._slots[e] for e in task.inputs if self._slots[e] in self._readers),
            tuple(_Slots(tuple(self._slots[e] for e in a.sources), a.is_sequence, a.convert) for a in asked),
            frozenset(self._slots[e] for e in bound.node.inputs if e in fed),
            strand is None and bound.unpacks,
        )

    def begin(self, feeds: Sequence[Value]) -> TaskRun:
        """Return the state of a new run."""
        values = self._blank[:]
        for slot, index in self._feeds:
            values[slot] = feeds[index]
        return TaskRun(self, values, self._needs[:], self._readers.copy())

    def large_copies(self, entry: _Entry, values: Sequence[Value]) -> dict[int, Value]:
        """Return the inputs of an async node, by slot, that must be copied and are too large for the event loop."""
        return {slot: values[slot] for slot in entry.kept if is_large(values[slot], self._large)}

    def fetches(self, run: TaskRun) -> list[Value]:
        """Return the fetched values of a run that has ended."""
        return [run.values[slot] for slot in self._fetched]


class TaskRun:
    """The state of one device's part of one step.

    Attributes:
        program: The tasks.
        values: The values computed so far, by slot.
        pending: For each task, the number of tasks that it still waits for.
        readers: For slots that are dropped early, the number of readers that have not begun.
    """

    __slots__ = ("pending", "program", "readers", "values")

    def __init__(self, program: TaskProgram, values: list[Value], pending: list[int], readers: dict[int, int]) -> None:
        self.program = program
        self.values = values
        self.pending = pending
        self.readers = readers

    def drop(self, slots: Sequence[int]) -> None:
        """Note that a task has read these slots, and release the values that no other task will read."""
        for slot in slots:
            self.readers[slot] -= 1
            if not self.readers[slot]:
                self.values[slot] = None


class Driver:
    """The run of one step's tasks on all devices of the worker."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._ready: deque[tuple[TaskRun, int]] = deque()
        self._left = 0
        self._pumping = False
        # Coroutines that wait for a TaskGroup in which they can become asyncio tasks.
        self._later: list[Coroutine[object, object, None]] = []
        # Coroutines of kernels, closed at the end in case they are never awaited.
        self._begun: list[Coroutine[object, object, object]] = []
        self._held: list[tuple[_Arrival, Value]] = []  # values that arrived while the step is on hold
        self._group: asyncio.TaskGroup | None = None
        self._finished: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    async def run(self, runs: Sequence[TaskRun], flows: Sequence[Coroutine[object, object, None]] = ()) -> None:
        """Run all tasks of `runs`, concurrently with `flows`, the parts of the step that have their own executor.

        Raises:
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
        """
        self._later += flows
        self._left = sum(len(run.pending) for run in runs)
        for run in runs:
            self._ready.extend((run, index) for index in run.program.first)
        try:
            # `_stopped` is no watcher yet, so a request made before this point is noticed only here.
            if self._step.requested:
                self._step.halt()
            self._pump()
            if self._error is not None:
                raise self._error
            # A step whose tasks have all ended within `_pump` creates neither an asyncio task nor a future.
            if self._left or self._later:
                await self._rest()
        finally:
            for coroutine in (*self._later, *self._begun):  # never awaited because the step failed
                coroutine.close()

    async def _rest(self) -> None:
        step = self._step
        step.watchers.append(self._stopped)
        try:
            while (self._left or self._later) and self._error is None:
                if self._later:
                    await self._beside_tasks()
                else:  # only values are outstanding, which needs no asyncio task
                    with suppress(Exception):  # `_error` holds it
                        await self._until_finished()
        finally:
            self._ready.clear()
            step.watchers.remove(self._stopped)
        if self._error is not None:
            # A kernel that fails after a stop request most likely fails because of it, so the reason of the request
            # takes precedence.
            cause = step.error or self._error
            raise cause from cause.__cause__

    async def _beside_tasks(self) -> None:
        """Run the coroutines that need asyncio tasks."""
        try:
            async with asyncio.TaskGroup() as kernel_group:
                # From here on `_start` creates tasks in this group instead of collecting coroutines for the next one.
                self._group = kernel_group
                later, self._later = self._later, []
                running = [kernel_group.create_task(coroutine) for coroutine in later]
                if self._left:
                    await self._until_finished()
                if running := [task for task in running if not task.done()]:
                    # Wait inside the group's block. Before Python 3.13, a group whose task fails during its exit leaves
                    # the caller counted as cancelled (`asyncio.Task.cancelling`). Then a surrounding `asyncio.timeout`
                    # raises no TimeoutError.
                    await asyncio.wait(running)
        except BaseExceptionGroup as group:
            cause = self._step.end(group)
            raise cause from cause.__cause__
        finally:
            self._group = None

    async def _until_finished(self) -> None:
        """Wait until all tasks of the step have ended, or the first one needs an asyncio task."""
        self._finished = self._loop.create_future()
        if self._ready:
            self._wake()
        try:
            await self._finished
        except BaseException as error:  # the step was cancelled; start nothing while its tasks end
            self._fail(error)
            raise

    # -- the queue ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._loop.call_soon(self._pump, context=self._context)

    def _pump(self) -> None:
        """Run ready tasks, for at most a slice of time."""
        if self._pumping or self._error is not None:
            return
        self._pumping = True
        ready = self._ready
        deadline = perf_counter() + _SLICE
        try:
            # Entered once for all tasks of the slice, which is why strands are run by `call_inline`, not by
            # `try_inline`.
            with np.errstate(all="ignore"):
                while ready:
                    run, index = ready.popleft()
                    self._begin(run, index)
                    # Other callbacks get a turn, if a coroutine is awaiting the rest.
                    if ready and perf_counter() > deadline and self._finished is not None:
                        self._wake()
                        break
        except Exception as error:
            if isinstance(error, OpError):
                self._step.stop(error)
            self._fail(error)
        finally:
            self._pumping = False
        if not self._left and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def _begin(self, run: TaskRun, index: int) -> None:
        entry = run.program.entries[index]
        strand = entry.strand
        if strand is not None:
            values = [run.values[slot] for slot in entry.inputs]
            if entry.counted:
                run.drop(entry.counted)
            # The forms of code that run inline report no nodes, so a strand with a probe always runs in a thread.
            outputs = strand.call_inline(values, self._step) if self._step.probe is None else None
            if outputs is None:
                self._start(self._hop(run, index, strand, values))
            else:
                self._complete(run, index, outputs)
        elif entry.edge_name:
            self._receive(run, index, entry)
        else:
            large = run.program.large_copies(entry, run.values) if entry.kept else None
            if large:
                self._start(self._call_with_copies(run, index, entry, large))
            else:
                self._call(run, index, entry, _NONE)

    def _complete(self, run: TaskRun, index: int, outputs: Sequence[Value]) -> None:
        entry = run.program.entries[index]
        for slot, value in zip(entry.outputs, outputs, strict=True):
            run.values[slot] = value
        pending = run.pending
        for follower in entry.followers:
            pending[follower] -= 1
            if not pending[follower]:
                self._ready.append((run, follower))
        self._left -= 1

    def _arrived(self, run: TaskRun, index: int, outputs: Sequence[Value]) -> None:
        """Complete a task from outside of the ready queue, and continue the queue."""
        self._complete(run, index, outputs)
        # Within `_pump` its own loop continues: a nested one would recurse once per task.
        if not self._pumping:
            self._pump()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            if self._finished is not None and not self._finished.done():
                self._finished.set_exception(error)
                self._finished.exception()  # marks it as retrieved; the awaiting coroutine may be ending already

    def _stopped(self) -> None:
        self._fail(self._step.error or CancelledError("the step was stopped"))

    # -- what has to be awaited --------------------------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[object, object, None]) -> None:
        if self._group is None:
            # Without a group, end `_until_finished`, so that `_rest` opens one.
            self._later.append(coroutine)
            if self._finished is not None and not self._finished.done():
                self._finished.set_result(None)
        else:
            # The current context may be that of any callback. Kernels see the context of the step's caller, each its
            # own copy.
            self._group.create_task(coroutine, context=self._context.copy())

    async def _hop(self, run: TaskRun, index: int, strand: Strand, values: Sequence[Value]) -> None:
        try:
            outputs = await strand.hop(values, self._step)
        # `Step.end` then raises this error, not that of another task of the group.
        except OpError as error:
            self._step.stop(error)
            raise
        self._arrived(run, index, outputs)

    def _receive(self, run: TaskRun, index: int, entry: _Entry) -> None:
        report = self._step.probe.begin() if self._step.probe is not None else None
        arrival = _Arrival(self, run, index, entry, report)
        value = self._step.meeting.receive(entry.edge_name, "", arrival)
        if value is PENDING:
            # Values are delivered on this loop, so none can have arrived since `receive` returned.
            self._step.waiting[arrival] = None
        else:
            self._received(arrival, value)

    def received(self, arrival: _Arrival, value: Value) -> None:
        """Accept the value of a Recv, or hold it back while the step is on hold."""
        step = self._step
        step.waiting.pop(arrival, None)
        # A hold is in progress. `_go_on` will deliver this value too, after those that arrived before it.
        if self._held:
            self._held.append((arrival, value))
            return
        hold = None if monotonic() < step.holds_after else step.hold()
        if hold is None:
            self._received(arrival, value)
            return
        self._held.append((arrival, value))
        if inspect.iscoroutine(hold):
            self._begun.append(hold)
        self._start(self._go_on(hold, arrival.entry.bound))

    async def _go_on(self, hold: Awaitable[None], bound: BoundNode) -> None:
        """Await `hold`, then deliver the values that arrived meanwhile; an error of `hold` is attributed to `bound`."""
        try:
            await hold
        except Exception as error:
            failure = kernel_error(error, bound.node)
            self._step.stop(failure)
            raise failure from failure.__cause__
        # Emptied before the delivery: tasks that it starts may receive further values, for which this hold is over.
        held, self._held = self._held, []
        for arrival, value in held:
            self._received(arrival, value)

    def _received(self, arrival: _Arrival, value: Value) -> None:
        if arrival.report is not None:
            arrival.report(arrival.entry.bound, (value,))
        if self._error is None:
            self._arrived(arrival.run, arrival.index, (value,))

    async def _call_with_copies(self, run: TaskRun, index: int, entry: _Entry, large: Mapping[int, Value]) -> None:
        try:
            copies = await copied_in_thread(list(large.values()), self._step, run.program.limit)
            self._call(run, index, entry, dict(zip(large, copies, strict=True)))
        except Exception as error:
            failure = kernel_error(error, entry.bound.node)
            self._step.stop(failure)
            raise failure from failure.__cause__

    def _call(self, run: TaskRun, index: int, entry: _Entry, owned: Mapping[int, Value]) -> None:
        """Call the kernel of an async node; `owned` are the copies already made for it."""
        bound = entry.bound
        report = self._step.probe.begin() if self._step.probe is not None else None
        try:
            arguments = entry.gather(run.values, owned)
            # `arguments` holds the values now. They are freed as soon as the kernel has released them.
            run.drop(entry.counted)
            result = bound.call(*arguments, step=self._step) if bound.kernel.takes_step else bound.call(*arguments)
        except Exception as error:
            failure = kernel_error(error, bound.node)
            raise failure from failure.__cause__

        def done(result: Any) -> None:
            outputs = tuple(result) if entry.unpacks else (result,) if entry.outputs else ()
            if report is not None:
                report(bound, outputs)
            self._arrived(run, index, outputs)

        # The kernel of an async node may return its result at once, and then needs no asyncio task.
        if hasattr(result, "__await__"):
            if inspect.iscoroutine(result):
                self._begun.append(result)
            self._start(self._await(bound, result, done))
        else:
            done(result)

    async def _await(self, bound: BoundNode, result: Awaitable[Value], done: Callable[[Value], None]) -> None:
        try:
            value = await self._step.wait_for(bound.node.name, result)
        except Exception as error:
            failure = kernel_error(error, bound.node)
            self._step.stop(failure)
            raise failure from failure.__cause__
        done(value)


class _Arrival:
    """A pending Recv, which the rendezvous calls with the value."""

    __slots__ = ("driver", "entry", "index", "node", "report", "run", "since")

    def __init__(self, driver: Driver, run: TaskRun, index: int, entry: _Entry, report: Report | None) -> None:
        self.node = entry.bound.node.name
        self.since = monotonic()
        self.driver = driver
        self.run = run
        self.index = index
        self.entry = entry
        self.report = report

    def __call__(self, value: Value) -> None:
        self.driver.received(self, value)

    def describe(self) -> str:
        """Return a description of the edge and its sender."""
        return f"Recv of {self.entry.edge_name} from {self.entry.source}"

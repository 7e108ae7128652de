"""Executor of a subgraph whose branches or loops are in primitive form: the driver of the sans-IO core in `frames`.

Sync kernels run without interruption: on the event loop until the inline budget is used up, then in a device's thread.
They run in a thread from the start if the longest kernel of earlier steps with feeds of that size exceeds the budget.
The first step of each size does, too. Async kernels are awaited, all ready ones concurrently. A step can be stopped
between two kernels.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph
from aioflow.concurrency.stopping import BoundedWork, OffloadToThread, doing
from aioflow.errors import InternalError
from aioflow.graph.signature.arguments import places
from aioflow.graph.traits import Role
from aioflow.kernels.joinable import body_alone
from aioflow.memory.values import Value
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode, RaisedLoop, kernel_error, to_keep
from aioflow.runtime.codegen import Line, compiled
from aioflow.runtime.executor import StepWork, work_here
from aioflow.runtime.flow_program import FlowNode, FlowProgram
from aioflow.runtime.frames import DEAD, Execute, Propagator, ReadyNode
from aioflow.runtime.handing_over import copied_in_thread, is_large, large_bytes
from aioflow.runtime.step import Step
from aioflow.runtime.strand import CostEstimate, magnitude

Collect: TypeAlias = Callable[[Sequence[Value]], Sequence[Value]]
NodeReport: TypeAlias = Callable[[Any, Sequence[Value]], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """An async kernel that has been called. Its result may have to be awaited."""

    activation: ReadyNode
    bound: BoundNode
    result: Any
    report: NodeReport | None


@dataclass(slots=True)
class _Longest:
    """The duration in seconds of the longest kernel of a step.

    A separate object, so that the functions that run kernels hold no reference to the core that holds them.
    """

    seconds: float = 0.0


@dataclass(slots=True)
class _Run:
    """The state of one step in this executor.

    Attributes:
        core: The dataflow core.
        step: The step.
        inline: Whether kernels run on the event loop at first.
        longest: The duration of the longest kernel so far.
    """

    core: Propagator
    step: Step
    inline: bool
    longest: _Longest


class Dataflow:
    """One device's subgraph with control flow. `run` may be called concurrently any number of times."""

    def __init__(
        self,
        graph: ClientGraph,
        bound: Sequence[BoundNode],
        executor: Executor,
        budget: float,
        limit: int | None = None,
    ) -> None:
        """Build the program of the subgraph.

        Args:
            graph: The subgraph.
            bound: Its bound nodes.
            executor: The executor of the device.
            budget: Inline budget, in seconds.
            limit: `SessionConfig.max_value_bytes`.
        """
        self._program = FlowProgram(graph, bound)
        self._executor = executor
        self._budget = budget
        self._limit = limit
        self._longest = CostEstimate()  # of the longest kernel of a step
        for node in self._program.nodes.values():
            if node.bound is not None and not node.bound.kernel.is_async:
                node.compute = _computation(node.bound)
                node.acts = node.bound.is_waited_for
                node.is_elastic = node.bound.kernel.elastic or isinstance(node.bound, RaisedLoop)
        awaited = [n for n in self._program.nodes.values() if n.bound is not None and n.compute is None]
        self._awaited = {n: (_collector(n.bound, False), _packer(n.bound)) for n in awaited if n.bound is not None}
        self._large = large_bytes(budget)

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step and return the fetched values in order. Other holders may exist, so the caller copies them.

        Raises:
            OpError: a kernel failed, a fetched tensor is dead, or the step was stopped.
        """
        core = Propagator(self._program)
        waiting: list[_Begun] = []
        running: set[_Begun] = set()
        size = magnitude(feeds)
        run = _Run(core, step, self._longest.expect(size) <= self._budget, _Longest())
        try:
            await self._follow(run, await self._advance(run, partial(core.start, feeds)), waiting)
            if waiting:
                await self._await_rest(run, waiting, running)
        finally:
            # If the step failed, its remaining coroutines are never awaited: their tasks may have been cancelled before
            # their first turn. Closing them avoids the warning "never awaited".
            for begun in (*waiting, *running):
                if inspect.iscoroutine(begun.result):
                    begun.result.close()
        # A step that fails does not come here: it may not have reached its longest kernel.
        self._longest.observe(size, run.longest.seconds)
        return core.fetches()

    async def _advance(self, run: _Run, go: Callable[[], list[ReadyNode]]) -> list[ReadyNode]:
        """Run sync kernels until only async ones are ready, and return those."""
        report = run.step.probe.begin() if run.step.probe is not None else None
        waiting: list[ReadyNode] = []
        if run.inline:
            run.core.execute = _on_loop(run.step, report, run.longest, self._budget, self._limit)
            waiting = _quietly(go)
            if not run.core.unfinished:
                return waiting
            # The budget is used up, so continue in a thread.
            go = run.core.resume
        return waiting + await self._executor.run(run.step, self._in_thread, run, report, go)

    def _in_thread(self, run: _Run, report: NodeReport | None, go: Callable[[], list[ReadyNode]]) -> list[ReadyNode]:
        work = work_here(run.step)
        work.limit = self._limit
        # No kernel with effects is running yet, so the thread may be abandoned if the executor permits that.
        work.end_critical()
        run.core.execute = _in_thread(run.step, report, run.longest, work)
        return _quietly(go)

    async def _follow(self, run: _Run, activations: Sequence[ReadyNode], waiting: list[_Begun]) -> None:
        """Call async kernels and run the followers of kernels that complete at once; append the others to `waiting`."""
        queue = deque(activations)
        while queue:
            activation = queue.popleft()
            begun = self._begin(activation, await self._inputs(activation, run.step), run.step)
            if hasattr(begun.result, "__await__"):
                waiting.append(begun)
            else:
                outputs = self._end(begun, begun.result)
                queue.extend(await self._advance(run, partial(run.core.finish, activation, outputs)))

    async def _inputs(self, activation: ReadyNode, step: Step) -> Sequence[Value]:
        """Return the inputs of an async kernel, copied if the kernel retains them."""
        bound, inputs = activation.node.bound, activation.inputs
        if bound is None or not bound.kernel.retains:
            return inputs
        # The owner of a loop's value is unknown at this point, so a retained value is always copied.
        if any(is_large(value, self._large) for value in inputs):
            return await copied_in_thread(inputs, step, self._limit)
        return [to_keep(value) for value in inputs]

    async def _await_rest(self, run: _Run, waiting: list[_Begun], running: set[_Begun]) -> None:
        """Await async kernels, `running` holding those in progress, and run what becomes ready, until none is left."""
        finished: asyncio.Queue[tuple[_Begun, Value]] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as outer_group:
                # Raises the step's error when the step is stopped, which cancels the group.
                guard = outer_group.create_task(run.step.watch())
                async with asyncio.TaskGroup() as kernel_group:
                    while waiting or running:
                        for begun in waiting:
                            kernel_group.create_task(_await_kernel(begun, finished, run.step))
                        running.update(waiting)
                        waiting.clear()
                        begun, result = await finished.get()
                        running.remove(begun)
                        go = partial(run.core.finish, begun.activation, self._end(begun, result))
                        await self._follow(run, await self._advance(run, go), waiting)
                # All kernels have ended. The outer group would wait for a stop request that may never come.
                guard.cancel()
        except BaseExceptionGroup as group:
            cause = run.step.end(group)
            raise cause from cause.__cause__

    def _begin(self, activation: ReadyNode, inputs: Sequence[Value], step: Step) -> _Begun:
        bound = activation.node.bound
        if bound is None:
            raise InternalError(f"node {activation.node.origin.name!r} has no kernel and was to be awaited")
        report = step.probe.begin() if step.probe is not None else None
        try:
            if activation.node.kind is Role.RECV:
                result = bound.call(step=step, tag=inputs[0])
            else:
                extra = {"step": step} if bound.kernel.takes_step else {}
                result = bound.call(*self._awaited[activation.node][0](inputs), **extra)
        except Exception as error:
            failure = kernel_error(error, bound.node)
            raise failure from failure.__cause__
        return _Begun(activation, bound, result, report)

    def _end(self, begun: _Begun, result: Value) -> Sequence[Value]:
        """Return the outputs of an async kernel, and report them."""
        outputs = self._awaited[begun.activation.node][1](result)
        if begun.report is not None and result is not DEAD:
            begun.report(begun.bound, outputs)
        return outputs


async def _await_kernel(begun: _Begun, finished: asyncio.Queue[tuple[_Begun, Value]], step: Step) -> None:
    try:
        result = await step.wait_for(begun.bound.node.name, begun.result)
    except Exception as error:
        failure = kernel_error(error, begun.bound.node)
        step.stop(failure)
        raise failure from failure.__cause__
    finished.put_nowait((begun, result))


def _quietly(go: Callable[[], list[ReadyNode]]) -> list[ReadyNode]:
    with np.errstate(all="ignore"):
        return go()


def _on_loop(step: Step, report: NodeReport | None, longest: _Longest, budget: float, limit: int | None) -> Execute:
    """Return a function that runs sync kernels on the event loop until the budget is used up.

    Before each kernel the step may be stopped.
    """
    last = perf_counter()
    deadline = last + budget

    def execute(core: Propagator, node: FlowNode, inputs: Sequence[Value]) -> Sequence[Value] | None:
        nonlocal last
        compute = node.compute
        if compute is None:
            return None
        if step.requested:
            step.halt()
        try:
            if not node.is_elastic:
                outputs = compute(inputs, step)
            elif isinstance(node.bound, RaisedLoop):
                # The duration of a loop is unknown in advance, so a raised loop never runs on the event loop.
                raise OffloadToThread
            else:
                # `OffloadToThread` is no `Exception`: it passes through to the core, which queues the node again.
                outputs = doing(BoundedWork(limit), compute, inputs, step)
        except Exception as error:
            failure = kernel_error(error, node.origin)
            raise failure from failure.__cause__
        if report is not None:
            report(node.bound, outputs)
        now = perf_counter()
        # One reading of the clock per kernel: its time includes that of the core since the kernel before it.
        if now - last > longest.seconds:
            longest.seconds = now - last
        last = now
        if now > deadline:
            # The outputs are still delivered. The core returns before the next node.
            core.pause()
        return outputs

    return execute


def _in_thread(step: Step, report: NodeReport | None, longest: _Longest, work: StepWork) -> Execute:
    """Return a function that runs sync kernels in a thread. Before each kernel the step may be stopped."""

    def execute(core: Propagator, node: FlowNode, inputs: Sequence[Value]) -> Sequence[Value] | None:
        compute = node.compute
        if compute is None:
            return None
        # For `running_node`: here no line of generated code identifies the node.
        work.node = node.origin.name
        started = perf_counter()
        try:
            if node.acts:
                work.begin_critical()
                outputs = compute(inputs, step)
                work.end_critical()
            else:
                if step.requested:
                    step.halt()
                outputs = compute(inputs, step)
        except Exception as error:
            failure = kernel_error(error, node.origin)
            raise failure from failure.__cause__
        seconds = perf_counter() - started
        if seconds > longest.seconds:
            longest.seconds = seconds
        # A raised loop reports its nodes itself.
        if report is not None and not isinstance(node.bound, RaisedLoop):
            report(node.bound, outputs)
        return outputs

    return execute


def _computation(bound: BoundNode) -> Callable[[Sequence[Value], Step], Sequence[Value]]:
    """Return a function from the inputs of a node to its outputs."""
    # The form is chosen once per node, so that a step does no work that the node does not need.
    call, collect, pack = body_alone(bound.call), _collector(bound, bound.kernel.retains), _packer(bound)
    if bound.kernel.sends:
        return lambda inputs, step: pack(call(inputs[0], step=step, tag=inputs[1]))
    if bound.kernel.takes_step:
        return lambda inputs, step: pack(call(*collect(inputs), step=step))
    if collect is not _as_they_are or pack is not _one:
        return lambda inputs, step: pack(call(*collect(inputs)))
    if bound.kernel.expression is not None:
        return _expressed(bound.kernel.expression, len(bound.arguments))
    return lambda inputs, step: (call(*inputs),)


@cache
def _expressed(expression: str, count: int) -> Callable[[Sequence[Value], Step], Sequence[Value]]:
    """Return a function that evaluates an operator expression, on scalars several times faster than a ufunc."""
    text = expression.format(*(f"inputs[{i}]" for i in range(count)))
    lines = (Line("def compute(inputs, step):"), Line(f"    return ({text},)"))
    return compiled(lines, f"expression {expression}", {})


def _packer(bound: BoundNode) -> Callable[[Any], Sequence[Value]]:
    """Return a function from the return value of a kernel to its outputs."""
    if bound.unpacks:
        return tuple
    return _one if bound.node.outputs else _none


def _one(result: Value) -> Sequence[Value]:
    return (result,)


def _none(result: Value) -> Sequence[Value]:
    return ()


def _as_they_are(inputs: Sequence[Value]) -> Sequence[Value]:
    return inputs


def _collector(bound: BoundNode, keep: bool) -> Collect:
    """Return a function from the flat inputs of a node to the arguments of its kernel, copied if `keep`."""
    arguments = bound.arguments
    if all(not a.is_sequence and a.convert is None for a in arguments):
        return (lambda inputs: [to_keep(value) for value in inputs]) if keep else _as_they_are

    placed = list(zip(arguments, places(len(a.sources) for a in arguments), strict=True))

    def collect(inputs: Sequence[Value]) -> Sequence[Value]:
        found: list[Value] = []
        for argument, place in placed:
            items = inputs[place]
            if keep:  # the owner of a loop's value is unknown here, so copy
                items = [to_keep(item) for item in items]
            if argument.convert is not None:
                items = [argument.convert(item) for item in items]
            found.append(tuple(items) if argument.is_sequence else items[0])
        return found

    return collect

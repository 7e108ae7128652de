"""Runs a subgraph that has branches or loops in primitive form: the driver around the sans-IO core in `frames`.

Sync kernels run in one go, on the loop as long as the inline budget lasts and in a device's thread after that; async
kernels are awaited, all that are ready at once. Between two kernels a step may be stopped.
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
from aioflow.errors import InternalError
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode, LiftedLoop, kernel_error, own
from aioflow.runtime.codegen import Line, compiled
from aioflow.runtime.flow_program import FlowNode, Kind, Program
from aioflow.runtime.frames import DEAD, Activation, Execute, Propagator
from aioflow.runtime.step import Step, root_cause

__all__ = ["Dataflow"]

Collect: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
Report: TypeAlias = Callable[[Any, Sequence[Any]], None]


@dataclass(frozen=True, slots=True)
class _Begun:
    """An async kernel that has been called: what it returned may have to be awaited."""

    activation: Activation
    bound: BoundNode
    result: Any
    report: Report | None


class Dataflow:
    """One device's subgraph with control flow. `run` may be called any number of times at once."""

    def __init__(self, graph: ClientGraph, bound: Sequence[BoundNode], executor: Executor, budget: float) -> None:
        self._program = Program(graph, bound)
        self._executor = executor
        self._budget = budget
        for node in self._program.nodes.values():
            if node.bound is not None and not node.bound.kernel.is_async:
                node.compute = _computation(node.bound)
        awaited = [n for n in self._program.nodes.values() if n.bound is not None and n.compute is None]
        self._awaited = {n: (_collector(n.bound), _packer(n.bound)) for n in awaited if n.bound is not None}

    async def run(self, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run one step and return the fetched values in order; the caller of the session must not get them uncopied.

        Raises:
            OpError: a kernel failed, a fetched tensor is dead, or the step was stopped.
        """
        core = Propagator(self._program)
        waiting: list[_Begun] = []
        try:
            await self._settle(core, await self._advance(core, partial(core.start, feeds), step), step, waiting)
            if waiting:
                await self._await_rest(core, waiting, step)
        finally:
            for begun in waiting:  # a coroutine that was made and, since the step failed, is never awaited
                if inspect.iscoroutine(begun.result):
                    begun.result.close()
        return core.fetches()

    async def _advance(self, core: Propagator, go: Callable[[], list[Activation]], step: Step) -> list[Activation]:
        """Run sync kernels until only async ones are left, and return those."""
        report = step.probe.begin() if step.probe is not None else None
        if self._budget < 0:  # no kernel may run here
            core.execute = _executor(step, report, None)
            return await self._executor.run(step, _quietly, go)
        core.execute = _executor(step, report, perf_counter() + self._budget)
        waiting = _quietly(go)
        if core.unfinished:
            core.execute = _executor(step, report, None)
            waiting += await self._executor.run(step, _quietly, core.resume)
        return waiting

    async def _settle(
        self, core: Propagator, activations: Sequence[Activation], step: Step, waiting: list[_Begun]
    ) -> None:
        """Begin async kernels, and run all that follows from those that need not wait; the others go to `waiting`."""
        queue = deque(activations)
        while queue:
            activation = queue.popleft()
            begun = self._begin(activation, step)
            if hasattr(begun.result, "__await__"):
                waiting.append(begun)
            else:
                outputs = self._end(begun, begun.result)
                queue.extend(await self._advance(core, partial(core.finish, activation, outputs), step))

    async def _await_rest(self, core: Propagator, waiting: list[_Begun], step: Step) -> None:
        """Await async kernels and run what they make ready, until nothing is left."""
        finished: asyncio.Queue[tuple[_Begun, Any]] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as outer_group:
                guard = outer_group.create_task(step.watch())
                async with asyncio.TaskGroup() as kernel_group:
                    running = 0
                    while waiting or running:
                        for begun in waiting:
                            kernel_group.create_task(_await_kernel(begun, finished, step))
                        running += len(waiting)
                        waiting.clear()
                        begun, result = await finished.get()
                        running -= 1
                        go = partial(core.finish, begun.activation, self._end(begun, result))
                        await self._settle(core, await self._advance(core, go, step), step, waiting)
                guard.cancel()
        except BaseExceptionGroup as group:
            cause = root_cause(group)
            raise cause from cause.__cause__

    def _begin(self, activation: Activation, step: Step) -> _Begun:
        bound = activation.node.bound
        if bound is None:
            raise InternalError(f"node {activation.node.origin.name!r} has no kernel and was to be awaited")
        report = step.probe.begin() if step.probe is not None else None
        try:
            if activation.node.kind is Kind.RECV:
                result = bound.call(step=step, tag=activation.inputs[0])
            else:
                result = bound.call(*self._awaited[activation.node][0](activation.inputs))
        except Exception as error:
            failure = kernel_error(error, bound.node)
            raise failure from failure.__cause__
        return _Begun(activation, bound, result, report)

    def _end(self, begun: _Begun, result: Any) -> Sequence[Any]:
        """The outputs of an async kernel, reported."""
        outputs = self._awaited[begun.activation.node][1](result)
        if begun.report is not None and result is not DEAD:
            begun.report(begun.bound, outputs)
        return outputs


async def _await_kernel(begun: _Begun, finished: asyncio.Queue[tuple[_Begun, Any]], step: Step) -> None:
    try:
        result = await step.wait_for(begun.bound.node.name, begun.result)
    except Exception as error:
        failure = kernel_error(error, begun.bound.node)
        step.stop(failure)
        raise failure from failure.__cause__
    finished.put_nowait((begun, result))


def _quietly(go: Callable[[], list[Activation]]) -> list[Activation]:
    with np.errstate(all="ignore"):
        return go()


def _executor(step: Step, report: Report | None, deadline: float | None) -> Execute:
    """Runs sync kernels for a core, which it makes pause after the deadline. Before each the step may be stopped."""

    def execute(core: Propagator, node: FlowNode, inputs: Sequence[Any]) -> Sequence[Any] | None:
        compute = node.compute
        if compute is None:
            return None
        if step.requested:
            step.halt()
        try:
            outputs = compute(inputs, step)
        except Exception as error:
            failure = kernel_error(error, node.origin)
            raise failure from failure.__cause__
        if report is not None and not isinstance(node.bound, LiftedLoop):
            report(node.bound, outputs)
        if deadline is not None and perf_counter() > deadline:
            core.pause()
        return outputs

    return execute


def _computation(bound: BoundNode) -> Callable[[Sequence[Any], Step], Sequence[Any]]:
    """A function from the inputs of a node to its outputs."""
    call, collect, pack = bound.call, _collector(bound), _packer(bound)
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
def _expressed(expression: str, count: int) -> Callable[[Sequence[Any], Step], Sequence[Any]]:
    """The same from an operator expression, which on scalars is several times faster than a function of NumPy."""
    text = expression.format(*(f"inputs[{i}]" for i in range(count)))
    lines = (Line("def compute(inputs, step):"), Line(f"    return ({text},)"))
    return compiled(lines, "compute", f"expression {expression}", {})


def _packer(bound: BoundNode) -> Callable[[Any], Sequence[Any]]:
    """A function from what a kernel returns to its outputs."""
    if bound.unpacks:
        return tuple
    return _one if bound.node.outputs else _none


def _one(result: Any) -> Sequence[Any]:
    return (result,)


def _none(result: Any) -> Sequence[Any]:
    return ()


def _as_they_are(inputs: Sequence[Any]) -> Sequence[Any]:
    return inputs


def _collector(bound: BoundNode) -> Collect:
    """A function from the flat inputs of a node to the arguments of its kernel."""
    arguments, keep = bound.arguments, bound.kernel.retains
    if all(not a.is_sequence and a.convert is None for a in arguments):
        return (lambda inputs: [own(value) for value in inputs]) if keep else _as_they_are

    def collect(inputs: Sequence[Any]) -> Sequence[Any]:
        found: list[Any] = []
        position = 0
        for argument in arguments:
            count = len(argument.sources)
            items = inputs[position : position + count]
            position += count
            if keep:  # whose memory it is cannot be told from a loop's values: what is kept is copied
                items = [own(item) for item in items]
            if argument.convert is not None:
                items = [argument.convert(item) for item in items]
            found.append(tuple(items) if argument.is_sequence else items[0])
        return found

    return collect

"""Runs a subgraph that has branches or loops in primitive form: the driver around the sans-IO core in `frames`.

Sync kernels run in one go, on the loop as long as the inline budget lasts and in a device's thread after that; async
kernels are awaited, all that are ready at once. Between two kernels a step may be stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache, partial
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph
from aioflow.runtime.bind import BoundNode, LiftedLoop, kernel_error, own
from aioflow.runtime.codegen import Line, compiled
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.flow_program import FlowNode, Program
from aioflow.runtime.frames import Activation, Execute, Propagator
from aioflow.runtime.step import Step, root_cause

__all__ = ["Dataflow"]

Collect: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
Report: TypeAlias = Callable[[Any, Sequence[Any]], None]


class Dataflow:
    """One device's subgraph with control flow. `run` may be called any number of times at once."""

    def __init__(self, graph: ClientGraph, bound: Sequence[BoundNode], threads: DeviceThreads, budget: float) -> None:
        self._program = Program(graph, bound)
        self._threads = threads
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
        waiting = await self._advance(core, partial(core.start, feeds), step)
        if waiting:
            await self._await_rest(core, waiting, step)
        return core.fetches()

    async def _advance(self, core: Propagator, go: Callable[[], list[Activation]], step: Step) -> list[Activation]:
        """Run sync kernels until only async ones are left, and return those."""
        report = step.probe.begin() if step.probe is not None else None
        core.execute = _executor(step, report, perf_counter() + self._budget)
        waiting = _quietly(go)
        if core.unfinished:
            core.execute = _executor(step, report, None)
            waiting += await self._threads.run(step, _quietly, core.resume)
        return waiting

    async def _await_rest(self, core: Propagator, waiting: list[Activation], step: Step) -> None:
        """Await async kernels and run what they make ready, until nothing is left."""
        finished: asyncio.Queue[tuple[Activation, Sequence[Any]]] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as outer_group:
                guard = outer_group.create_task(step.watch())
                async with asyncio.TaskGroup() as kernel_group:
                    for activation in waiting:
                        kernel_group.create_task(self._await_kernel(activation, finished, step))
                    running = len(waiting)
                    while running:
                        activation, outputs = await finished.get()
                        running -= 1
                        go = partial(core.finish, activation, outputs)
                        for more in await self._advance(core, go, step):
                            kernel_group.create_task(self._await_kernel(more, finished, step))
                            running += 1
                guard.cancel()
        except BaseExceptionGroup as group:
            cause = root_cause(group)
            raise cause from cause.__cause__

    async def _await_kernel(
        self, activation: Activation, finished: asyncio.Queue[tuple[Activation, Sequence[Any]]], step: Step
    ) -> None:
        bound = activation.node.bound
        if bound is None:
            return
        collect, pack = self._awaited[activation.node]
        report = step.probe.begin() if step.probe is not None else None
        try:
            result = bound.call(*collect(activation.inputs))
            if hasattr(result, "__await__"):
                result = await step.wait_for(bound.node.name, result)
        except Exception as error:
            failure = kernel_error(error, bound.node)
            step.stop(failure)
            raise failure from failure.__cause__
        outputs = pack(result)
        if report is not None:
            report(bound, outputs)
        finished.put_nowait((activation, outputs))


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
    if bound.kernel.takes_stop:
        return lambda inputs, step: pack(call(*collect(inputs), stop=step))
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

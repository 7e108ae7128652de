"""Runs a subgraph that has branches or loops in primitive form: the driver around the sans-IO core in `frames`.

Sync kernels run in one go, on the loop as long as the inline budget lasts and in a device's thread after that; async
kernels are awaited, all that are ready at once. Between two kernels a step may be stopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from aioflow.compiler.ir import ClientGraph
from aioflow.runtime.bind import BoundNode, LiftedLoop, kernel_error, own
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.flow_program import FlowNode, Program
from aioflow.runtime.frames import Activation, Propagator
from aioflow.runtime.step import Step, root_cause

__all__ = ["Dataflow"]

Collect = Callable[[list[Any]], list[Any]]


class Dataflow:
    """One device's subgraph with control flow. `run` may be called any number of times at once."""

    def __init__(self, graph: ClientGraph, bound: Sequence[BoundNode], threads: DeviceThreads, budget: float) -> None:
        self._program = Program(graph, bound)
        self._threads = threads
        self._budget = budget
        self._collect = {n: _collector(n) for n in self._program.nodes.values() if n.bound is not None}
        self._pack = {n: _packer(n.bound) for n in self._program.nodes.values() if n.bound is not None}

    async def run(self, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run one step and return the fetched values in order; the caller of the session must not get them uncopied.

        Raises:
            OpError: a kernel failed, a fetched tensor is dead, or the step was stopped.
        """
        core = Propagator(self._program)
        ready = deque(core.start(feeds))
        waiting = await self._advance(core, ready, step)
        if waiting:
            await self._await_rest(core, waiting, step)
        return core.fetches()

    async def _advance(self, core: Propagator, ready: deque[Activation], step: Step) -> list[Activation]:
        """Run sync kernels until only async ones are left, and return those."""
        waiting: list[Activation] = []
        report = step.probe.begin() if step.probe is not None else None
        if not self._drain(core, ready, waiting, step, report, perf_counter() + self._budget):
            await self._threads.run(step, self._drain, core, ready, waiting, step, report, float("inf"))
        return waiting

    def _drain(
        self,
        core: Propagator,
        ready: deque[Activation],
        waiting: list[Activation],
        step: Step,
        report: Callable[[Any, Sequence[Any]], None] | None,
        deadline: float,
    ) -> bool:
        """Run what is ready; False if time ran out before the end."""
        with np.errstate(all="ignore"):
            while ready:
                activation = ready.popleft()
                bound = activation.node.bound
                if bound is not None and bound.kernel.is_async:
                    waiting.append(activation)
                    continue
                if step.requested:
                    step.halt()
                outputs = self._compute(activation, step)
                if report is not None and not isinstance(bound, LiftedLoop):
                    report(bound, outputs)
                ready.extend(core.finish(activation, outputs))
                if perf_counter() > deadline:
                    return not ready
        return True

    def _compute(self, activation: Activation, step: Step) -> Sequence[Any]:
        node = activation.node
        bound = node.bound
        if bound is None:
            return ()
        try:
            arguments = self._collect[node](activation.inputs)
            result = bound.call(*arguments, stop=step) if bound.kernel.takes_stop else bound.call(*arguments)
        except Exception as error:
            failure = kernel_error(error, bound.node)
            raise failure from failure.__cause__
        return self._pack[node](result)

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
                        ready = deque(core.finish(activation, outputs))
                        for more in await self._advance(core, ready, step):
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
        report = step.probe.begin() if step.probe is not None else None
        try:
            result = bound.call(*self._collect[activation.node](activation.inputs))
            if hasattr(result, "__await__"):
                result = await step.wait_for(bound.node.name, result)
        except Exception as error:
            failure = kernel_error(error, bound.node)
            step.stop(failure)
            raise failure from failure.__cause__
        outputs = self._pack[activation.node](result)
        if report is not None:
            report(bound, outputs)
        finished.put_nowait((activation, outputs))


def _packer(bound: BoundNode) -> Callable[[Any], Sequence[Any]]:
    """A function from what a kernel returns to its outputs."""
    if bound.unpacks:
        return tuple
    return _one if bound.node.outputs else _none


def _one(result: Any) -> Sequence[Any]:
    return (result,)


def _none(result: Any) -> Sequence[Any]:
    return ()


def _collector(node: FlowNode) -> Collect:
    """A function from the flat inputs of a node to the arguments of its kernel."""
    bound = node.bound
    if bound is None or all(not a.is_sequence and a.convert is None for a in bound.arguments):
        if bound is not None and bound.kernel.retains:
            return lambda inputs: [own(value) for value in inputs]
        return lambda inputs: inputs
    arguments, keep = bound.arguments, bound.kernel.retains

    def collect(inputs: list[Any]) -> list[Any]:
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

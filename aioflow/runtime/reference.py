"""The reference executor, which defines the meaning of a step. Each node is a coroutine, all of them in one TaskGroup.

A node awaits its inputs and control inputs, and computes. A sync kernel runs in the device's executor, an async kernel
is awaited, and Send and Recv meet in the step's rendezvous. So a step on several devices is one such group per device.
A value may be dead: a Switch makes it dead on the side not taken, a Merge takes its first live input, and all other
nodes pass deadness on without computing. The first error cancels the group, which waits for all tasks to end.

Every other executor returns the same results, and the tests compare them. This one is not optimized: only it takes the
time to compare the results of each kernel with the declaration of the op.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.errors import InternalError, OpError
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.graph.traits import Role
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode, gather, kernel_error, to_keep
from aioflow.runtime.dataflow import Dataflow
from aioflow.runtime.executor import work_here
from aioflow.runtime.fetched import fetches_of
from aioflow.runtime.frames import DEAD, dead_fetch, wrong_predicate
from aioflow.runtime.step import Step

Outputs: TypeAlias = Any  # a sequence or DEAD; one output of a Switch is DEAD
Sources: TypeAlias = Mapping[str, "asyncio.Task[Outputs]"]

_OF_LOOPS: Final = frozenset({Role.ENTER, Role.EXIT, Role.NEXT, Role.LOOP_CONDITION})
_ENDS: Final = (Role.SEND, Role.RECV)  # of an edge between devices: the Send tells the Recv whether the value is dead


class Reference:
    """The reference executor of one device's subgraph without loops. `run` may be called concurrently.

    Args:
        graph: The subgraph.
        bound: Its nodes that have kernels.
        executor: The executor of the device.
    """

    def __init__(self, graph: ClientGraph, bound: Sequence[BoundNode], executor: Executor) -> None:
        self._nodes = tuple(graph.nodes.values())
        self._fetches = fetches_of(graph)
        self._bound = {b.node.name: b for b in bound}
        self._executor = executor

    @staticmethod
    def can_run(graph: ClientGraph) -> bool:
        """Return whether the graph has no loop."""
        return not any(traits_of(node.op).role in _OF_LOOPS for node in graph.nodes.values())

    async def run(self, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run one step and return the fetched values in order. Other holders may exist, so the caller copies them.

        Raises:
            OpError: a kernel failed, a fetched tensor is dead, or the step was stopped.
        """
        if step.requested:
            step.halt()
        try:
            async with asyncio.TaskGroup() as step_group:
                # Raises the step's error when the step is stopped, which cancels the group.
                guard = step_group.create_task(step.watch())
                work = step_group.create_task(self._run_all(feeds, step))
                await asyncio.wait([work])  # within the block; see Driver._beside_tasks
                guard.cancel()
        except BaseExceptionGroup as group:
            cause = step.end(group)
            raise cause from cause.__cause__
        return [_fetched(node, outputs) for node, outputs in zip(self._fetches, work.result(), strict=True)]

    async def _run_all(self, feeds: Sequence[Any], step: Step) -> list[Outputs]:
        """Run all nodes and return the outputs of the fetched ones."""
        nodes: dict[str, asyncio.Task[Outputs]] = {}
        async with asyncio.TaskGroup() as node_group:
            for node in self._nodes:
                sources = {name: nodes[name] for name in node.predecessors()}
                nodes[node.name] = node_group.create_task(self._run(node, sources, feeds, step))
            fetches = [nodes[fetch.name] for fetch in self._fetches]
            nodes.clear()  # from here on only a value's readers hold it
        return [task.result() for task in fetches]

    async def _run(self, node: Node, sources: Sources, feeds: Sequence[Any], step: Step) -> Outputs:
        """Await the inputs of a node and return its outputs."""
        role = traits_of(node.op).role
        if role is Role.MERGE:
            return await _merge(node, sources)
        done = {name: await task for name, task in sources.items()}
        inputs = {edge: _value(done[edge.node], edge) for edge in node.inputs}
        dead = any(value is DEAD for value in (*inputs.values(), *(done[name] for name in node.control)))
        if role is Role.TRIGGER:
            return ()
        if dead and role not in _ENDS:
            return DEAD
        if role is Role.FEED:
            return (feeds[node.attrs["index"]],)
        if role is Role.FETCH:
            return tuple(inputs.values())
        try:
            outputs = await self._compute(node, inputs, step)
        except OpError as error:
            step.stop(error)  # before the tasks are cancelled, so that they and other devices end with this error
            raise
        return DEAD if role is Role.SEND and dead else outputs

    async def _compute(self, node: Node, inputs: Mapping[Edge, Any], step: Step) -> Outputs:
        if step.requested:
            step.halt()
        if traits_of(node.op).role is Role.SWITCH:
            data, predicate = (inputs[edge] for edge in node.inputs)
            return (DEAD, data) if await self._executor.run(step, _side, node, predicate) else (data, DEAD)
        bound = self._bound[node.name]
        if not bound.kernel.is_async:
            return await self._executor.run(step, _call, bound, inputs, step)
        if bound.kernel.retains:
            inputs = await self._executor.run(step, _copies, inputs)
        report = step.probe.begin() if step.probe is not None else None
        try:
            result = _called(bound, inputs, step)
            if hasattr(result, "__await__"):
                result = await step.wait_for(node.name, result)
        except Exception as error:
            failure = kernel_error(error, node)
            raise failure from failure.__cause__
        if result is DEAD:  # a Recv has received it
            return DEAD
        outputs = _declared(bound, result)
        if report is not None:
            report(bound, outputs)
        return outputs


def plain_runner(
    graph: ClientGraph, bound: Sequence[BoundNode], executor: Executor, budget: float
) -> Reference | Dataflow:
    """Return the executor of a graph in primitive form without a session; `budget` is `SessionConfig.inline_budget`."""
    return Reference(graph, bound, executor) if Reference.can_run(graph) else Dataflow(graph, bound, executor, budget)


def _value(outputs: Outputs, edge: Edge) -> Any:
    return DEAD if outputs is DEAD else outputs[edge.port]


def _fetched(fetch: Node, outputs: Outputs) -> Any:
    if outputs is DEAD:
        raise dead_fetch(fetch)
    return outputs[0]


async def _merge(node: Node, sources: Sources) -> Outputs:
    """Return the first live input to arrive and its index, or DEAD if all are dead. Control inputs may be dead."""
    for name in node.control:
        await sources[name]
    coming = {sources[edge.node] for edge in node.inputs}
    while coming:
        _, coming = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
        for index, edge in enumerate(node.inputs):
            source = sources[edge.node]
            if source.done() and (value := _value(source.result(), edge)) is not DEAD:
                return value, np.int32(index)
    return DEAD


# -- in the device's executor ------------------------------------------------------------------------------------------


def _side(switch: Node, predicate: Any) -> bool:
    if np.ndim(predicate):
        raise wrong_predicate(switch, predicate)
    return bool(predicate)


def _copies(inputs: Mapping[Edge, Any]) -> dict[Edge, Any]:
    """Return copies for a kernel that keeps its inputs."""
    # This executor does not track the ownership of buffers, so it always copies.
    return {edge: to_keep(value) for edge, value in inputs.items()}


def _call(bound: BoundNode, inputs: Mapping[Edge, Any], step: Step) -> Outputs:
    """Return the outputs of a sync kernel.

    The kernel is not started if the step was asked to stop. A kernel with effects runs in a critical section.
    """
    work = work_here(step)
    work.node = bound.node.name
    report = step.probe.begin() if step.probe is not None else None
    if step.requested:
        step.halt()
    try:
        if bound.kernel.retains:
            inputs = _copies(inputs)
        if bound.is_waited_for:
            work.begin_critical()
        outputs = _declared(bound, _called(bound, inputs, step))
        work.end_critical()
    except Exception as error:
        failure = kernel_error(error, bound.node)
        raise failure from failure.__cause__
    if report is not None:
        report(bound, outputs)
    return outputs


def _called(bound: BoundNode, inputs: Mapping[Edge, Any], step: Step) -> Any:
    extra = {"step": step} if bound.kernel.takes_step else {}
    with np.errstate(all="ignore"):
        return bound.call(*gather(bound, inputs), **extra)


def _declared(bound: BoundNode, result: Any) -> Outputs:
    """Return the outputs of a node from its kernel's result.

    Raises:
        InternalError: the result is not what the op declares.
    """
    node = bound.node
    if bound.unpacks and (not isinstance(result, tuple | list) or len(result) != len(node.outputs)):
        actual = f"{len(result)} of them" if isinstance(result, tuple | list) else type(result).__name__
        raise _undeclared(node, "outputs", f"a tuple of {len(node.outputs)} outputs", actual)
    outputs = bound.outputs_of(result)
    for position, (value, spec) in enumerate(zip(outputs, node.outputs, strict=True)):
        if value is DEAD or spec.dtype.np_dtype.hasobject:  # strings and handles have several representations
            continue
        dtype = getattr(value, "dtype", None)
        if dtype != spec.dtype.np_dtype or not is_compatible(spec.dims, tuple(value.shape)):
            expected = f"{spec.dtype.name} of shape {format_dims(spec.dims)}"
            actual = type(value).__name__ if dtype is None else f"{dtype} of shape {value.shape}"
            raise _undeclared(node, f"output {position}", expected, actual)
    return outputs


def _undeclared(node: Node, what: str, expected: str, actual: str) -> InternalError:
    return InternalError(
        f"the kernel of {node.op} does not return the {what} that the op declares", expected=expected, actual=actual
    )

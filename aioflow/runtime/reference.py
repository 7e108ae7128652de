"""The reference executor, which defines the meaning of a step. Each node is a coroutine, all of them in one TaskGroup.

A node awaits its inputs and control inputs, and computes. A sync kernel runs in the device's executor, an async kernel
is awaited, and Send and Recv meet in the step's rendezvous. So a step on several devices is one such group per device.
A value may be dead: a Switch makes it dead on the side not taken, a Merge takes its first live input, and all other
nodes pass deadness on without computing. The first error cancels the group, which waits for all tasks to end.

In a loop a node is a coroutine in each iteration. An Enter reads a value from outside in the first iteration, and a
loop invariant has it in all of them. What a NextIteration reads is read in the next iteration by the nodes behind it.
The next iteration begins when one of these values is alive. An Exit returns the first live value of all iterations.

Every other executor returns the same results, and the tests compare them. This one is not optimized: only it takes the
time to compare the results of each kernel with the declaration of the op.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.compiler.control_flow import LoopFrame, check_frames, frames_behind
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.errors import InternalError, OpError
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.graph.traits import Role
from aioflow.memory.values import Array, Value
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode, gather, kernel_error, to_keep
from aioflow.runtime.executor import work_here
from aioflow.runtime.fetched import fetches_of
from aioflow.runtime.frames import DEAD, dead_fetch, wrong_predicate
from aioflow.runtime.step import Step

NodeOutputs: TypeAlias = Any  # a sequence or DEAD; one output of a Switch is DEAD
Sources: TypeAlias = Mapping[str, "asyncio.Task[NodeOutputs]"]

_ENDS: Final = (Role.SEND, Role.RECV)  # of an edge between devices: the Send tells the Recv whether the value is dead
_PASSES: Final = (Role.FETCH, Role.ENTER, Role.EXIT, Role.NEXT, Role.LOOP_CONDITION)


class _Iteration:
    """One iteration of a running loop; the step outside of all loops is one, too.

    Attributes:
        frame: The loop, or None.
        around: The tag of the surrounding iteration.
        number: Its number in the loop.
        outputs: The tasks of the nodes whose outputs are in it. An absent node has no value in this iteration.
        following: Returns the next iteration, or None after the last one.
        running: The unfinished tasks of each iteration of the loop in progress, oldest first.
    """

    def __init__(self, frame: LoopFrame | None, around: str = "", number: int = 0) -> None:
        self.frame, self.around, self.number = frame, around, number
        self.outputs: dict[str, asyncio.Task[NodeOutputs]] = {}
        self.following: asyncio.Task[_Iteration | None] | None = None
        self.running: deque[set[asyncio.Task[NodeOutputs]]] = deque()

    @property
    def tag(self) -> str:
        """The names and iteration numbers of the loops around it, which Send and Recv add to the names of edges."""
        return "" if self.frame is None else f"{self.around};{self.frame.name}:{self.number}"

    def sources(self, node: Node) -> Sources:
        """Return the tasks of the nodes that a node reads or waits for."""
        return {name: self.outputs[name] for name in node.predecessors() if name in self.outputs}


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a step: the group of its nodes, the feeds, and the step."""

    group: asyncio.TaskGroup
    feeds: Sequence[Value]
    step: Step


class ReferenceExecutor:
    """The reference executor of one device's subgraph. `run` may be called concurrently.

    Args:
        graph: The subgraph.
        bound: Its nodes that have kernels.
        executor: The executor of the device.

    Raises:
        InvalidArgumentError: as for `check_frames`.
    """

    def __init__(self, graph: ClientGraph, bound: Sequence[BoundNode], executor: Executor) -> None:
        check_frames(graph)
        self._frames = frames_behind(graph)
        self._fetches = fetches_of(graph)
        self._bound = {b.node.name: b for b in bound}
        self._executor = executor
        # The loops inside each loop and inside the whole step, outer ones first, and the nodes in all of them.
        self._loops: dict[LoopFrame | None, list[LoopFrame]] = {None: []}
        self._nodes: dict[LoopFrame | None, list[Node]] = {None: []}
        for node in graph.nodes.values():
            frame = self._frames[node.name]
            if frame is not None and frame not in self._loops:
                self._loops[frame], self._nodes[frame] = [], []
                for outer in _around(frame.parent):
                    self._loops[outer].append(frame)
            for outer in _around(frame):
                self._nodes[outer].append(node)

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
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

    async def _run_all(self, feeds: Sequence[Value], step: Step) -> list[NodeOutputs]:
        """Run all nodes and return the outputs of the fetched ones."""
        async with asyncio.TaskGroup() as node_group:
            whole = _Iteration(None)
            self._begin(_Run(node_group, feeds, step), whole)
            fetches = [whole.outputs[fetch.name] for fetch in self._fetches]
            del whole  # from here on only a value's readers hold it
        return [task.result() for task in fetches]

    def _begin(self, run: _Run, first: _Iteration) -> None:
        """Begin an iteration, and the first iterations of the loops inside it."""
        now: dict[LoopFrame | None, _Iteration] = {first.frame: first}
        for inner in self._loops[first.frame]:
            now[inner] = _Iteration(inner, now[inner.parent].tag)
        for node in self._nodes[first.frame]:
            frame, role = self._frames[node.name], node.role
            there = now[frame]
            if role is Role.NEXT or (role is Role.ENTER and frame is first.frame):
                continue  # `_next` has added those with a value
            if role is Role.EXIT:
                work = self._leave(run, node, now[self._frames[node.inputs[0].node]])
            else:
                source = there if role is not Role.ENTER or frame is None else now[frame.parent]
                work = self._run(run, node, source.sources(node), there.tag)
            there.outputs[node.name] = run.group.create_task(work)
        for begun in now.values():
            if begun.frame is not None:
                unfinished = set(begun.outputs.values())
                for task in begun.outputs.values():
                    task.add_done_callback(unfinished.discard)  # a task that has ended holds its outputs
                begun.running.append(unfinished)
                begun.following = run.group.create_task(self._next(run, begun, begun.frame.parallel_iterations))

    async def _next(self, run: _Run, now: _Iteration, parallel: int) -> _Iteration | None:
        """Begin the next iteration as soon as it has a live value, and return it; return None if it has none.

        At most `parallel` iterations are in progress.
        """
        following = _Iteration(now.frame, now.around, now.number + 1)
        carried: dict[Edge, asyncio.Task[NodeOutputs]] = {}
        for node in self._nodes[now.frame]:
            if self._frames[node.name] is now.frame and node.role is Role.NEXT:
                task = run.group.create_task(self._run(run, node, now.sources(node), now.tag))
                carried[Edge(node.name, 0)] = following.outputs[node.name] = task
            elif node.role is Role.ENTER and self._frames[node.name] is now.frame and node.attrs["is_constant"]:
                following.outputs[node.name] = now.outputs[node.name]
        # Without a live value the loop has ended: dead NextIterations begin no iteration.
        if await _first_live(carried) is DEAD:
            return None
        following.running = now.running
        if len(following.running) >= parallel and (oldest := following.running.popleft()):
            await asyncio.wait(oldest)
        self._begin(run, following)
        return following

    async def _leave(self, run: _Run, node: Node, now: _Iteration | None) -> NodeOutputs:
        """Return the output of an Exit, given the first iteration of its loop."""
        while now is not None and now.following is not None:
            outputs = await self._run(run, node, now.sources(node), now.tag)
            if outputs is not DEAD:
                return outputs
            now = await now.following
        return DEAD

    async def _run(self, run: _Run, node: Node, sources: Sources, tag: str) -> NodeOutputs:
        """Await the inputs of a node and return its outputs."""
        role = node.role
        if role is Role.MERGE:
            for name in sources.keys() & node.control:  # they may be dead
                await sources[name]
            found = await _first_live({edge: sources[edge.node] for edge in node.inputs if edge.node in sources})
            return DEAD if found is DEAD else (found[1], np.int32(node.inputs.index(found[0])))
        done = {name: await task for name, task in sources.items()}
        inputs = {edge: _value(done.get(edge.node, DEAD), edge) for edge in node.inputs}
        dead = any(value is DEAD for value in (*inputs.values(), *(done.get(name, DEAD) for name in node.control)))
        if role is Role.TRIGGER:
            return ()
        # Send and Recv also run if they are dead: one must send DEAD, the other receive it.
        if dead and role not in _ENDS:
            return DEAD
        if role is Role.FEED:
            return (run.feeds[node.attrs["index"]],)
        if role in _PASSES:
            return tuple(inputs.values())
        try:
            outputs = await self._compute(node, inputs, run.step, tag)
        except OpError as error:
            run.step.stop(error)  # before the tasks are cancelled, so that they and other devices end with this error
            raise
        # A dead Send has run, so that its receiver learns of it. Its followers are dead nevertheless.
        return DEAD if role is Role.SEND and dead else outputs

    async def _compute(self, node: Node, inputs: Mapping[Edge, Value], step: Step, tag: str) -> NodeOutputs:
        if step.requested:
            step.halt()
        if node.role is Role.SWITCH:
            data, predicate = (inputs[edge] for edge in node.inputs)
            return (DEAD, data) if await self._executor.run(step, _side, node, predicate) else (data, DEAD)
        bound = self._bound[node.name]
        if not bound.kernel.is_async:
            return await self._executor.run(step, _call, bound, inputs, step, tag)
        if bound.kernel.retains:
            inputs = await self._executor.run(step, _copies, inputs)
        report = step.probe.begin() if step.probe is not None else None
        try:
            result = _called(bound, inputs, step, tag)
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


def _around(frame: LoopFrame | None) -> Iterator[LoopFrame | None]:
    """Yield a loop, those around it, and None for the whole step."""
    while frame is not None:
        yield frame
        frame = frame.parent
    yield None


def _value(outputs: NodeOutputs, edge: Edge) -> Value:
    return DEAD if outputs is DEAD else outputs[edge.port]


def _fetched(fetch: Node, outputs: NodeOutputs) -> Value:
    if outputs is DEAD:
        raise dead_fetch(fetch)
    return outputs[0]


async def _first_live(sources: Mapping[Edge, asyncio.Task[NodeOutputs]]) -> NodeOutputs:
    """Return the first live value to arrive, as a pair with its edge, or DEAD if all are dead."""
    coming = set(sources.values())
    while coming:
        _, coming = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
        for edge, task in sources.items():
            if task.done() and (value := _value(task.result(), edge)) is not DEAD:
                return edge, value
    return DEAD


# ── in the device's executor ──────────────────────────────────────────────────────────────────────────────────────────


def _side(switch: Node, predicate: Array) -> bool:
    if np.ndim(predicate):
        raise wrong_predicate(switch, predicate)
    return bool(predicate)


def _copies(inputs: Mapping[Edge, Value]) -> dict[Edge, Value]:
    """Return copies for a kernel that keeps its inputs."""
    # This executor does not track the ownership of buffers, so it always copies.
    return {edge: to_keep(value) for edge, value in inputs.items()}


def _call(bound: BoundNode, inputs: Mapping[Edge, Value], step: Step, tag: str) -> NodeOutputs:
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
        outputs = _declared(bound, _called(bound, inputs, step, tag))
        work.end_critical()
    except Exception as error:
        failure = kernel_error(error, bound.node)
        raise failure from failure.__cause__
    if report is not None:
        report(bound, outputs)
    return outputs


def _called(bound: BoundNode, inputs: Mapping[Edge, Value], step: Step, tag: str) -> Any:
    extra: dict[str, object] = {"step": step} if bound.kernel.takes_step else {}
    if bound.node.role in _ENDS:
        extra["tag"] = tag
    with np.errstate(all="ignore"):
        return bound.call(*gather(bound, inputs), **extra)


def _declared(bound: BoundNode, result: Value) -> NodeOutputs:
    """Return the outputs of a node from its kernel's result.

    Raises:
        InternalError: the result is not what the op declares.
    """
    node = bound.node
    if bound.unpacks and (not isinstance(result, tuple | list) or len(result) != len(node.outputs)):
        actual = f"{len(result)} of them" if isinstance(result, tuple | list) else type(result).__name__
        raise _undeclared(node, "outputs", f"a tuple of {len(node.outputs)} outputs", actual)
    outputs: Sequence[Any] = bound.outputs_of(result)
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

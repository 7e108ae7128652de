"""Tagged dataflow: selects the next nodes to run in a graph with loops and branches. Sans-IO: it never waits.

The semantics are TensorFlow's (whitepaper, 4.4), after the MIT tagged-token machine. A value carries a tag: a frame
and an iteration of it. `Enter` opens a frame, `NextIteration` passes a value to the next iteration, and `Exit` returns
a value to the surrounding frame. A value may be *dead*: `Switch` makes it dead on the side not taken, every node but
`Merge` passes deadness on, and dead nodes are not computed.

    core = Propagator(program)
    ready = core.start(feeds)            # activations whose kernels may run now, in any order
    ready = core.finish(activation, outputs)
    core.fetches()                       # once `core.outstanding` is 0

Running a sync kernel immediately is cheaper: the core calls `core.execute` before it returns a kernel as an activation.
`core.pause()` makes the core return early, as does a kernel that raises `OffloadToThread`; `core.resume()` continues.

Rule 1: all decisions about readiness are in this module. Rule 2: this module does not know how a kernel is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import Node
from aioflow.concurrency.stopping import OffloadToThread
from aioflow.errors import InternalError, InvalidArgumentError, OpError
from aioflow.graph.traits import Role
from aioflow.memory.values import Array, Value
from aioflow.runtime.flow_program import EMPTY, After, FlowNode, FlowProgram, Frame, Port


class _Dead:
    """The absence of a value."""

    def __repr__(self) -> str:
        return "DEAD"


DEAD: Final = _Dead()

# A node's count: the low bits are the number of outstanding inputs, the other bits the number of dead inputs so far.
_DEAD_ONE: Final = 1 << 24
_WAITING: Final = _DEAD_ONE - 1
_HAS_RUN: Final = -1 << 60  # a Merge that has run ignores further inputs


def dead_fetch(fetch: Node) -> InvalidArgumentError:
    """Return the error for a fetch that has no value."""
    name = f"{fetch.inputs[0].node}:{fetch.inputs[0].port}"
    error = InvalidArgumentError(
        f"the fetched tensor {name!r} does not have a value: it is on a branch that was not taken",
        expected="a live tensor",
        actual="dead",
    )
    error.at(fetch.name, fetch.op, fetch.source)
    return error


def wrong_predicate(switch: Node, predicate: Array) -> OpError:
    """Return the error for a predicate that is not a single value."""
    return InvalidArgumentError(
        "the predicate of a Switch must be a scalar", expected="shape ()", actual=predicate.shape
    ).at(switch.name, switch.op, switch.source)


Execute: TypeAlias = Callable[["Propagator", FlowNode, Sequence[Value]], Sequence[Value] | None]


class ReadyNode:
    """A node that may run: all its inputs have arrived, in one iteration of one frame."""

    __slots__ = ("inputs", "iteration", "node")

    def __init__(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value]) -> None:
        self.node = node
        self.iteration = iteration
        self.inputs = inputs


class _Iteration:
    """One iteration of a running frame: the values that have arrived, and the work in progress.

    Attributes:
        frame: The running frame.
        number: The number of the iteration.
        outstanding: Number of activations that are queued, running or returned to the caller.
        children: The frames that were opened in this iteration, by number.
        pending: The counts of the nodes, by `local`.
        arrived: By the `local` of a node: for a pair the value that has arrived, for others the list of their inputs.
    """

    __slots__ = ("_tag", "arrived", "children", "frame", "number", "outstanding", "pending")

    def __init__(self, frame: _RunningFrame, number: int) -> None:
        self.frame = frame
        self.number = number
        self.outstanding = 0
        self.children: dict[int, _RunningFrame] = {}
        self.pending = frame.program.pending[:]
        self.arrived = frame.prefilled[:]
        # Made on demand: only Sends and Recvs need the tag.
        self._tag: str | None = None

    @property
    def tag(self) -> str:
        """The names and iteration numbers of the frames around it: the same in all partitions of a loop."""
        if self._tag is None:
            parent = self.frame.parent
            self._tag = "" if parent is None else f"{parent.tag};{self.frame.program.name}:{self.number}"
        return self._tag


class _RunningFrame:
    """A running frame, with its iterations in progress.

    Attributes:
        program: The static frame.
        parent: The surrounding iteration.
        entering: Number of Enter nodes that have not run yet.
        newest: Number of the newest iteration.
        prefilled: Loop invariants that have arrived when an iteration begins.
        constants: The other loop invariants, which are sent to each new iteration.
        iterations: The iterations in progress, oldest first.
        parked: NextIterations that wait for a free iteration.
        dead_exits: The Exits that were dead in the newest iteration.
    """

    __slots__ = (
        "constants",
        "dead_exits",
        "entering",
        "iterations",
        "newest",
        "parent",
        "parked",
        "prefilled",
        "program",
    )

    def __init__(self, program: Frame, parent: _Iteration | None) -> None:
        self.program = program
        self.parent = parent
        self.entering = program.enters
        self.newest = 0
        # Before `iterations`: every iteration copies this list when it begins.
        self.prefilled = [EMPTY] * len(program.pending)
        self.constants: list[tuple[Port, Value]] = []
        self.iterations: dict[int, _Iteration] = {0: _Iteration(self, 0)}
        self.parked: list[tuple[FlowNode, Value]] = []
        self.dead_exits: list[FlowNode] = []


class Propagator:
    """One step of a program.

    Attributes:
        outstanding: Number of activations that were returned and have not been finished.
        execute: Receives this core, a node and its inputs, and returns the outputs. If it returns None, the node is
            returned as an activation. A Send receives its value, which may be DEAD, and the tag of the value; a Recv
            becomes an activation with its tag.
    """

    def __init__(self, program: FlowProgram) -> None:
        self.outstanding = 0
        self.execute: Execute = _hand_out
        self._program = program
        self._root = _RunningFrame(program.root, None)
        self._ready: list[ReadyNode] = []
        # Inputs None: the node is dead.
        self._queue: deque[tuple[FlowNode, _Iteration, Sequence[Value] | None]] = deque()
        # Looked up once. The queue is never replaced by another object.
        self._push = self._queue.append
        self._paused = False
        self._fetches: dict[int, Value] = {}

    def start(self, feeds: Sequence[Value]) -> list[ReadyNode]:
        """Begin the step and return the activations that may run."""
        first = self._root.iterations[0]
        for node in self._program.sources:
            if node.kind is Role.FEED:
                self._deliver(node, first, (feeds[node.index],))
            else:
                first.outstanding += 1
                self._push((node, first, ()))
        return self.resume()

    def finish(self, activation: ReadyNode, outputs: Sequence[Value]) -> list[ReadyNode]:
        """Deliver the outputs of an activation and return the activations that may run now.

        The output of a Recv may be DEAD.
        """
        self.outstanding -= 1
        iteration = activation.iteration
        if activation.node.kind is Role.RECV and outputs[0] is DEAD:
            self._deliver_dead(activation.node, iteration)
        else:
            self._deliver(activation.node, iteration, outputs)
        # Only after the delivery has counted the followers: otherwise the iteration could retire before they run.
        self._leave(iteration)
        return self.resume()

    def resume(self) -> list[ReadyNode]:
        """Run until `pause` or until only activations for the caller are left, and return those."""
        queue, rules = self._queue, self._RULES
        self._paused = False
        while queue and not self._paused:
            node, iteration, inputs = queue.popleft()
            try:
                rules[node.rule](self, node, iteration, inputs)
            except OffloadToThread:  # raised by the kernel: nothing has been delivered
                queue.appendleft((node, iteration, inputs))
                break
            # This is `_leave` written in place, because the loop runs once per node. The rule has counted the followers
            # before.
            left = iteration.outstanding = iteration.outstanding - 1
            if not left and not iteration.children:
                self._retire(iteration.frame)
        ready, self._ready = self._ready, []
        self.outstanding += len(ready)
        return ready

    def pause(self) -> None:
        """Return from `resume` after the running node."""
        self._paused = True

    @property
    def unfinished(self) -> bool:
        """True if `resume` has work to do."""
        return bool(self._queue)

    def fetches(self) -> list[Value]:
        """Return the fetched values in order.

        Raises:
            InvalidArgumentError: a fetched tensor is dead: it is on a branch that was not taken.
        """
        found: list[Value] = []
        for node in self._program.fetches:
            value = self._fetches.get(node.index, DEAD)
            if value is DEAD:
                raise dead_fetch(node.origin)
            found.append(value)
        return found

    # -- delivering --------------------------------------------------------------------------------------------------

    def _deliver(self, node: FlowNode, iteration: _Iteration, outputs: Sequence[Value]) -> None:
        """Deliver the outputs of a node to their readers in an iteration."""
        for number, port in node.ports:
            self._send(port, iteration, outputs[number])
        if node.is_followed:
            self._follow(node.after, iteration, False)

    def _deliver_dead(self, node: FlowNode, iteration: _Iteration) -> None:
        for _, port in node.ports:
            self._send_dead(port, iteration)
        if node.is_followed:
            self._follow(node.after, iteration, True)

    def _send(self, port: Port, iteration: _Iteration, value: Value) -> None:
        for node in port.singles:
            iteration.outstanding += 1
            self._push((node, iteration, (value,)))
        for local, slot, node in port.pairs:
            other = iteration.arrived[local]
            if other is EMPTY:
                iteration.arrived[local] = value
            else:
                iteration.arrived[local] = EMPTY  # hold a value no longer than its reader needs it
                iteration.outstanding += 1
                self._push((node, iteration, None if other is DEAD else (other, value) if slot else (value, other)))
        if port.more:
            for slot, node in port.counted:
                self._arrive(node, iteration, slot, value)
            self._follow(port.after, iteration, False)

    def _send_dead(self, port: Port, iteration: _Iteration) -> None:
        for node in port.singles:
            if node.kind is Role.EXIT:
                self._run_exit(node, iteration, None)  # dead in every iteration but the last, so bypass the queue
            else:
                iteration.outstanding += 1
                self._push((node, iteration, None))
        for local, _, node in port.pairs:
            if iteration.arrived[local] is EMPTY:
                iteration.arrived[local] = DEAD
            else:
                iteration.arrived[local] = EMPTY
                iteration.outstanding += 1
                self._push((node, iteration, None))
        if port.more:
            for slot, node in port.counted:
                self._arrive(node, iteration, slot, DEAD)
            self._follow(port.after, iteration, True)

    def _send_any(self, port: Port, iteration: _Iteration, value: Value) -> None:
        if value is DEAD:
            self._send_dead(port, iteration)
        else:
            self._send(port, iteration, value)

    def _follow(self, after: After, iteration: _Iteration, dead: bool) -> None:
        """Notify the followers of a finished node; the followers and constants of a dead node are dead."""
        for node in after.signals:
            if node.kind is Role.MERGE:  # a dead control input does not make a Merge dead, it only counts
                # Control inputs are counted above the low bit; see `_check_merge`.
                iteration.pending[node.local] -= 2
                self._check_merge(node, iteration)
            else:
                self._count(node, iteration, dead)
        for port, value in after.constants:
            self._send_any(port, iteration, DEAD if dead else value)

    def _arrive(self, node: FlowNode, iteration: _Iteration, slot: int, value: Value) -> None:
        if node.kind is Role.MERGE:
            self._arrive_at_merge(node, iteration, slot, value)
            return
        inputs = iteration.arrived[node.local]
        if inputs is EMPTY:
            inputs = iteration.arrived[node.local] = [None] * node.arity
        # DEAD is stored like a value. It is never read, since `_count` passes on no inputs for a dead node.
        inputs[slot] = value
        self._count(node, iteration, value is DEAD)

    def _count(self, node: FlowNode, iteration: _Iteration, dead: bool) -> None:
        """Count one more arrival at a node, and queue the node after the last one."""
        local = node.local
        count = iteration.pending[local] - 1
        if dead:
            count += _DEAD_ONE
        iteration.pending[local] = count
        # All inputs have arrived. What is left in `count` is the number of dead ones, in its upper bits.
        if not count & _WAITING:
            inputs = iteration.arrived[local]
            iteration.arrived[local] = EMPTY
            iteration.outstanding += 1
            self._push((node, iteration, None if count else () if inputs is EMPTY else inputs))

    def _arrive_at_merge(self, node: FlowNode, iteration: _Iteration, slot: int, value: Value) -> None:
        count = iteration.pending[node.local]
        if value is DEAD:
            iteration.pending[node.local] = count + _DEAD_ONE
        elif count & 1:  # the first live input wins
            iteration.pending[node.local] = count - 1
            iteration.arrived[node.local] = (value, slot)
        self._check_merge(node, iteration)

    def _check_merge(self, node: FlowNode, iteration: _Iteration) -> None:
        """Queue a Merge if its control inputs are in and a live value has come, or all its inputs are dead.

        The low bit of its count is set until a live value has come; each control input counts two above it. That is
        TensorFlow's count, except that a loop's Merge expects its Enters in the first iteration and its NextIterations
        in the others, so that a dead Enter needs no special rule.
        """
        local = node.local
        count = iteration.pending[local]
        if count < 0:
            return  # it has already run
        expected = node.first_inputs if iteration.number == 0 else node.later_inputs
        live = not count & _WAITING
        # The second condition: all data inputs are dead, all control inputs have arrived, and the low bit is still set.
        if live or count == expected * _DEAD_ONE + 1:
            inputs = iteration.arrived[local] if live else None
            iteration.pending[local] = _HAS_RUN
            iteration.arrived[local] = EMPTY
            iteration.outstanding += 1
            self._push((node, iteration, inputs))

    # -- rules of the node kinds; without inputs the node is dead ----------------------------------------------------

    def _run_kernel(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
            return
        outputs = self.execute(self, node, inputs)
        if outputs is None:
            iteration.outstanding += 1
            self._ready.append(ReadyNode(node, iteration, inputs))
        else:
            self._deliver(node, iteration, outputs)

    def _run_pass(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
        else:
            self._deliver(node, iteration, inputs)

    def _run_trigger(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        self._deliver(node, iteration, ())  # never dead: it ends deadness

    def _run_constant(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
        else:
            self._deliver(node, iteration, (node.value,))

    def _run_switch(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
            return
        data, predicate = inputs
        # A predicate of the usual type is known to be a scalar without a call of `np.ndim`.
        if type(predicate) is not np.bool_ and np.ndim(predicate):
            raise wrong_predicate(node.origin, predicate)
        # TensorFlow's ports of a Switch: output 0 is alive if the predicate is false, output 1 if it is true.
        taken = 1 if predicate else 0
        for side, port in node.ports:
            if side == taken:
                self._send(port, iteration, data)
            else:
                self._send_dead(port, iteration)
        if node.is_followed:
            self._follow(node.after, iteration, False)

    def _run_merge(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
        else:
            self._deliver(node, iteration, (inputs[0], self._program.index_type(inputs[1])))

    def _run_fetch(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        self._fetches[node.index] = DEAD if inputs is None else inputs[0]

    def _run_enter(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        program = node.child
        if program is None:
            raise InternalError(f"Enter {node.origin.name!r} has no frame")
        frame = iteration.children.get(program.number)
        if frame is None:
            frame = iteration.children[program.number] = _RunningFrame(program, iteration)
        # The Enters of a frame arrive one by one. Iterations may have begun before a loop invariant arrives, so each
        # gets it.
        for inner in list(frame.iterations.values()) if node.is_constant else (frame.iterations[0],):
            self._run_pass(node, inner, inputs)
        if node.is_constant:
            value = DEAD if inputs is None else inputs[0]
            for local in node.prefilled:
                frame.prefilled[local] = value
            if node.again:
                frame.constants.append((node.again, value))
        frame.entering -= 1
        self._retire(frame)

    def _run_exit(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        frame = iteration.frame
        if frame.parent is None:
            raise InternalError(f"Exit {node.origin.name!r} is in no frame")
        if inputs is not None:
            self._deliver(node, frame.parent, inputs)
        # A later iteration may still have a live value for an Exit that is dead here.
        elif iteration.number == frame.newest:
            frame.dead_exits.append(node)

    def _run_next(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        if inputs is None:
            return
        frame = iteration.frame
        if iteration.number == frame.newest:
            # `_retire_iterations` continues with parked values when an iteration has ended.
            if len(frame.iterations) >= frame.program.parallel_iterations:
                frame.parked.append((node, inputs[0]))
                return
            # The first live NextIteration of the newest iteration opens the next one; the others find it open.
            self._begin_iteration(frame)
        self._deliver(node, frame.iterations[iteration.number + 1], inputs)

    def _run_send(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        value = DEAD if inputs is None else inputs[0]  # the receiver must learn that the value is dead
        self.execute(self, node, (value, iteration.tag))
        if node.is_followed:
            self._follow(node.after, iteration, inputs is None)

    def _run_recv(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Value] | None) -> None:
        iteration.outstanding += 1  # even if the Recv is dead: a value or DEAD will arrive
        self._ready.append(ReadyNode(node, iteration, (iteration.tag,)))

    # -- lifetime of iterations and frames ---------------------------------------------------------------------------

    def _begin_iteration(self, frame: _RunningFrame) -> None:
        frame.newest += 1
        # Only an Exit that is dead in the last iteration is dead for the surrounding frame.
        frame.dead_exits.clear()
        iteration = frame.iterations[frame.newest] = _Iteration(frame, frame.newest)
        for port, value in frame.constants:
            self._send_any(port, iteration, value)

    def _leave(self, iteration: _Iteration) -> None:
        """Count an activation of the iteration as ended, and retire the iteration after the last one."""
        iteration.outstanding -= 1
        if iteration.outstanding == 0 and not iteration.children:
            self._retire(iteration.frame)

    def _retire(self, frame: _RunningFrame) -> None:
        """Drop the finished iterations, oldest first, then the frame, then finished outer frames."""
        # The root frame ends with the step. A frame that an Enter has not reached yet may still get work.
        while frame.parent is not None and frame.entering == 0:
            self._retire_iterations(frame)
            if frame.iterations:
                return
            parent = frame.parent
            del parent.children[frame.program.number]
            # Only now is it certain that no later iteration has a live value for these Exits.
            for node in frame.dead_exits:
                self._deliver_dead(node, parent)
            if parent.outstanding or parent.children:
                return
            frame = parent.frame

    def _retire_iterations(self, frame: _RunningFrame) -> None:
        while frame.iterations:
            # A younger iteration may seem finished while an older one can still send it values, so only the oldest one
            # may go.
            oldest = next(iter(frame.iterations.values()))
            if oldest.outstanding or oldest.children:
                return
            del frame.iterations[oldest.number]
            if frame.parked:
                parked, frame.parked = frame.parked, []
                self._begin_iteration(frame)
                for node, value in parked:
                    self._deliver(node, frame.iterations[frame.newest], (value,))

    # In the order of `Role`. A feed needs no rule: its value is present from the start.
    _RULES: ClassVar = (
        _run_kernel,
        _run_switch,
        _run_merge,
        _run_enter,
        _run_exit,
        _run_next,
        _run_pass,
        _run_trigger,
        _run_constant,
        _run_fetch,
        _run_send,
        _run_recv,
    )


def _hand_out(core: Propagator, node: FlowNode, inputs: Sequence[Value]) -> None:
    """Return None for every kernel, so that each becomes an activation: the default `execute`."""

"""Tagged dataflow: which node runs next in a graph with loops and branches. Sans-IO: it waits for nothing.

The semantics are TensorFlow's (whitepaper, 4.4), after the MIT tagged-token machine. A value carries a tag: a frame
and an iteration of it. `Enter` opens a frame, `NextIteration` passes a value to the next iteration, `Exit` hands one
back to the frame around. A value may be *dead*: `Switch` makes it so on the side not taken, every node but `Merge`
passes it on, and nothing dead is computed.

    core = Propagator(program)
    ready = core.start(feeds)            # activations whose kernels may run now, in any order
    ready = core.finish(activation, outputs)
    core.fetches()                       # once `core.outstanding` is 0

A kernel that need not be waited for costs less if it is run on the way: `core.execute` is asked before a kernel is
handed out. `core.pause()` makes the core return early, as does a kernel that wants to be run elsewhere, and
`core.resume()` goes on.

Rule 1: everything that decides what is ready is here. Rule 2: this file does not know how a kernel is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import Node
from aioflow.errors import InternalError, InvalidArgumentError, OpError
from aioflow.graph.traits import Role
from aioflow.runtime.flow_program import EMPTY, After, FlowNode, Frame, Port, Program
from aioflow.work.stopping import Elsewhere

__all__ = ["DEAD", "Activation", "Execute", "Propagator", "dead_fetch", "wrong_predicate"]


class _Dead:
    """The absence of a value."""

    def __repr__(self) -> str:
        return "DEAD"


DEAD: Final = _Dead()

# A node's count: what it waits for in the low bits, and in the others how much of what has come was dead.
_DEAD_ONE: Final = 1 << 24
_WAITING: Final = _DEAD_ONE - 1
_HAS_RUN: Final = -1 << 60  # a Merge that has run heeds nothing more


def dead_fetch(fetch: Node) -> InvalidArgumentError:
    """The error for a fetch that has no value."""
    name = f"{fetch.inputs[0].node}:{fetch.inputs[0].port}"
    error = InvalidArgumentError(
        f"the fetched tensor {name!r} does not have a value: it is on a branch that was not taken",
        expected="a live tensor",
        actual="dead",
    )
    error.at(fetch.name, fetch.op, fetch.source)
    return error


def wrong_predicate(switch: Node, predicate: Any) -> OpError:
    """The error for a predicate that is not one value."""
    return InvalidArgumentError(
        "the predicate of a Switch must be a scalar", expected="shape ()", actual=predicate.shape
    ).at(switch.name, switch.op, switch.source)


Execute: TypeAlias = Callable[["Propagator", FlowNode, Sequence[Any]], Sequence[Any] | None]


class Activation:
    """A node that may run: its inputs have all arrived, in one iteration of one frame."""

    __slots__ = ("inputs", "iteration", "node")

    def __init__(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any]) -> None:
        self.node = node
        self.iteration = iteration
        self.inputs = inputs


class _Iteration:
    """One iteration of a running frame: what has arrived, and what is still under way.

    Attributes:
        arrived: By the `local` of a node: of a pair the value that is there, of others the list of their inputs.
        outstanding: Activations that are queued, running or handed out.
    """

    __slots__ = ("_tag", "arrived", "children", "frame", "number", "outstanding", "pending")

    def __init__(self, frame: _RunningFrame, number: int) -> None:
        self.frame = frame
        self.number = number
        self.outstanding = 0
        self.children: dict[int, _RunningFrame] = {}
        self.pending = frame.program.pending[:]
        self.arrived = frame.prefilled[:]
        self._tag: str | None = None

    @property
    def tag(self) -> str:
        """The names of the frames around and the numbers of their iterations: the same in all partitions of a loop."""
        if self._tag is None:
            parent = self.frame.parent
            self._tag = "" if parent is None else f"{parent.tag};{self.frame.program.name}:{self.number}"
        return self._tag


class _RunningFrame:
    """A frame that is running, with the iterations that are under way.

    Attributes:
        prefilled: What has arrived when an iteration begins: loop invariants. constants: The others, to be sent.
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
        self.prefilled = [EMPTY] * len(program.pending)
        self.constants: list[tuple[Port, Any]] = []
        self.iterations: dict[int, _Iteration] = {0: _Iteration(self, 0)}
        self.parked: list[tuple[FlowNode, Any]] = []
        self.dead_exits: list[FlowNode] = []


class Propagator:
    """One step over a program.

    Attributes:
        outstanding: Activations that were handed out and have not been finished.
        execute: Takes this core, a node and its inputs, and gives the outputs, or None: then the node is handed out.
            A Send is given its value, which may be DEAD, and the tag of that; a Recv is handed out with its tag.
    """

    def __init__(self, program: Program) -> None:
        self.outstanding = 0
        self.execute: Execute = _hand_out
        self._program = program
        self._root = _RunningFrame(program.root, None)
        self._ready: list[Activation] = []
        self._queue: deque[tuple[FlowNode, _Iteration, Sequence[Any] | None]] = deque()  # no inputs: it is dead
        self._push = self._queue.append
        self._paused = False
        self._fetches: dict[int, Any] = {}

    def start(self, feeds: Sequence[Any]) -> list[Activation]:
        """Begin the step; returns what may run."""
        first = self._root.iterations[0]
        for node in self._program.sources:
            if node.kind is Role.FEED:
                self._deliver(node, first, (feeds[node.index],))
            else:
                first.outstanding += 1
                self._push((node, first, ()))
        return self.resume()

    def finish(self, activation: Activation, outputs: Sequence[Any]) -> list[Activation]:
        """An activation has run, with these outputs; returns what may run now. What is received may be DEAD."""
        self.outstanding -= 1
        iteration = activation.iteration
        if activation.node.kind is Role.RECV and outputs[0] is DEAD:
            self._deliver_dead(activation.node, iteration)
        else:
            self._deliver(activation.node, iteration, outputs)
        self._leave(iteration)
        return self.resume()

    def resume(self) -> list[Activation]:
        """Go on until nothing is left that can be run on the way, or until `pause`; returns what was handed out."""
        queue = self._queue
        self._paused = False
        while queue and not self._paused:
            node, iteration, inputs = queue.popleft()
            try:
                _RULES[node.rule](self, node, iteration, inputs)
            except Elsewhere:  # of its kernel: nothing has been delivered
                queue.appendleft((node, iteration, inputs))
                break
            left = iteration.outstanding = iteration.outstanding - 1
            if not left and not iteration.children:
                self._retire(iteration.frame)
        ready, self._ready = self._ready, []
        self.outstanding += len(ready)
        return ready

    def pause(self) -> None:
        """Return after the node that is running."""
        self._paused = True

    @property
    def unfinished(self) -> bool:
        """Whether there is something to `resume`."""
        return bool(self._queue)

    def fetches(self) -> list[Any]:
        """The fetched values in order.

        Raises:
            InvalidArgumentError: a fetched tensor is dead: it is on a branch that was not taken.
        """
        found: list[Any] = []
        for node in self._program.fetches:
            value = self._fetches.get(node.index, DEAD)
            if value is DEAD:
                raise dead_fetch(node.origin)
            found.append(value)
        return found

    # -- delivering
    # -----------------------------------------------------------------------------------------------------

    def _deliver(self, node: FlowNode, iteration: _Iteration, outputs: Sequence[Any]) -> None:
        """Hand the outputs of a node to their readers in an iteration."""
        for number, port in node.ports:
            self._send(port, iteration, outputs[number])
        if node.is_followed:
            self._follow(node.after, iteration, False)

    def _deliver_dead(self, node: FlowNode, iteration: _Iteration) -> None:
        for _, port in node.ports:
            self._send_dead(port, iteration)
        if node.is_followed:
            self._follow(node.after, iteration, True)

    def _send(self, port: Port, iteration: _Iteration, value: Any) -> None:
        for node in port.singles:
            iteration.outstanding += 1
            self._push((node, iteration, (value,)))
        for local, slot, node in port.pairs:
            other = iteration.arrived[local]
            if other is EMPTY:
                iteration.arrived[local] = value
            else:
                iteration.arrived[local] = EMPTY  # a value lives no longer than who reads it
                iteration.outstanding += 1
                self._push((node, iteration, None if other is DEAD else (other, value) if slot else (value, other)))
        if port.more:
            for slot, node in port.counted:
                self._arrive(node, iteration, slot, value)
            self._follow(port.after, iteration, False)

    def _send_dead(self, port: Port, iteration: _Iteration) -> None:
        for node in port.singles:
            if node.kind is Role.EXIT:
                self._run_exit(node, iteration, None)  # in every iteration but the last: not worth the queue
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

    def _send_any(self, port: Port, iteration: _Iteration, value: Any) -> None:
        if value is DEAD:
            self._send_dead(port, iteration)
        else:
            self._send(port, iteration, value)

    def _follow(self, after: After, iteration: _Iteration, dead: bool) -> None:
        """A node has finished; if it is dead, so are those that wait for it, and its constants."""
        for node in after.signals:
            if node.kind is Role.MERGE:  # a dead control input does not deaden a Merge: it is only counted
                iteration.pending[node.local] -= 2
                self._check_merge(node, iteration)
            else:
                self._count(node, iteration, dead)
        for port, value in after.constants:
            self._send_any(port, iteration, DEAD if dead else value)

    def _arrive(self, node: FlowNode, iteration: _Iteration, slot: int, value: Any) -> None:
        if node.kind is Role.MERGE:
            self._arrive_at_merge(node, iteration, slot, value)
            return
        inputs = iteration.arrived[node.local]
        if inputs is EMPTY:
            inputs = iteration.arrived[node.local] = [None] * node.arity
        inputs[slot] = value
        self._count(node, iteration, value is DEAD)

    def _count(self, node: FlowNode, iteration: _Iteration, dead: bool) -> None:
        """One thing more has come that a node waited for."""
        local = node.local
        count = iteration.pending[local] - 1
        if dead:
            count += _DEAD_ONE
        iteration.pending[local] = count
        if not count & _WAITING:
            inputs = iteration.arrived[local]
            iteration.arrived[local] = EMPTY
            iteration.outstanding += 1
            self._push((node, iteration, None if count else () if inputs is EMPTY else inputs))

    def _arrive_at_merge(self, node: FlowNode, iteration: _Iteration, slot: int, value: Any) -> None:
        count = iteration.pending[node.local]
        if value is DEAD:
            iteration.pending[node.local] = count + _DEAD_ONE
        elif count & 1:  # the first live input wins
            iteration.pending[node.local] = count - 1
            iteration.arrived[node.local] = (value, slot)
        self._check_merge(node, iteration)

    def _check_merge(self, node: FlowNode, iteration: _Iteration) -> None:
        """A Merge runs when its control inputs are in and a live value has come, or all that can come are dead.

        The low bit of its count says that no live value has come yet; each control input counts two above it. That is
        TensorFlow's count, except that a loop's Merge expects its Enters in the first iteration and its NextIterations
        in the others, so that a dead Enter needs no rule of its own.
        """
        local = node.local
        count = iteration.pending[local]
        if count < 0:
            return  # it has run already
        expected = node.first_inputs if iteration.number == 0 else node.later_inputs
        live = not count & _WAITING
        if live or count == expected * _DEAD_ONE + 1:
            inputs = iteration.arrived[local] if live else None
            iteration.pending[local] = _HAS_RUN
            iteration.arrived[local] = EMPTY
            iteration.outstanding += 1
            self._push((node, iteration, inputs))

    # -- what each kind of node does; without inputs it is dead
    # ---------------------------------------------------------

    def _run_kernel(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
            return
        outputs = self.execute(self, node, inputs)
        if outputs is None:
            iteration.outstanding += 1
            self._ready.append(Activation(node, iteration, inputs))
        else:
            self._deliver(node, iteration, outputs)

    def _run_pass(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
        else:
            self._deliver(node, iteration, inputs)

    def _run_trigger(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        self._deliver(node, iteration, ())  # never dead: it ends deadness

    def _run_constant(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
        else:
            self._deliver(node, iteration, (node.value,))

    def _run_switch(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        if inputs is None:
            self._deliver_dead(node, iteration)
            return
        data, predicate = inputs
        if type(predicate) is not np.bool_ and np.ndim(predicate):
            raise wrong_predicate(node.origin, predicate)
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

    def _run_fetch(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        self._fetches[node.index] = DEAD if inputs is None else inputs[0]

    def _run_enter(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        program = node.child
        if program is None:
            raise InternalError(f"Enter {node.origin.name!r} has no frame")
        frame = iteration.children.get(program.number)
        if frame is None:
            frame = iteration.children[program.number] = _RunningFrame(program, iteration)
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

    def _run_exit(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        frame = iteration.frame
        if frame.parent is None:
            raise InternalError(f"Exit {node.origin.name!r} is in no frame")
        if inputs is not None:
            self._deliver(node, frame.parent, inputs)
        elif iteration.number == frame.newest:
            frame.dead_exits.append(node)

    def _run_next(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        if inputs is None:
            return
        frame = iteration.frame
        if iteration.number == frame.newest:
            if len(frame.iterations) >= frame.program.parallel_iterations:
                frame.parked.append((node, inputs[0]))
                return
            self._begin_iteration(frame)
        self._deliver(node, frame.iterations[iteration.number + 1], inputs)

    def _run_send(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        value = DEAD if inputs is None else inputs[0]  # whoever receives it must learn that it is dead
        self.execute(self, node, (value, iteration.tag))
        if node.is_followed:
            self._follow(node.after, iteration, inputs is None)

    def _run_recv(self, node: FlowNode, iteration: _Iteration, inputs: Sequence[Any] | None) -> None:
        iteration.outstanding += 1  # even if what it waits for is dead: a value or its absence will come
        self._ready.append(Activation(node, iteration, (iteration.tag,)))

    # -- the lives of iterations and frames
    # -----------------------------------------------------------------------------

    def _begin_iteration(self, frame: _RunningFrame) -> None:
        frame.newest += 1
        frame.dead_exits.clear()
        iteration = frame.iterations[frame.newest] = _Iteration(frame, frame.newest)
        for port, value in frame.constants:
            self._send_any(port, iteration, value)

    def _leave(self, iteration: _Iteration) -> None:
        """Something of the iteration has ended."""
        iteration.outstanding -= 1
        if iteration.outstanding == 0 and not iteration.children:
            self._retire(iteration.frame)

    def _retire(self, frame: _RunningFrame) -> None:
        """Drop the iterations that are over, oldest first, then the frame, and so on outwards."""
        while frame.parent is not None and frame.entering == 0:
            self._retire_iterations(frame)
            if frame.iterations:
                return
            parent = frame.parent
            del parent.children[frame.program.number]
            for node in frame.dead_exits:
                self._deliver_dead(node, parent)
            if parent.outstanding or parent.children:
                return
            frame = parent.frame

    def _retire_iterations(self, frame: _RunningFrame) -> None:
        while frame.iterations:
            oldest = next(iter(frame.iterations.values()))
            if oldest.outstanding or oldest.children:
                return
            del frame.iterations[oldest.number]
            if frame.parked:
                parked, frame.parked = frame.parked, []
                self._begin_iteration(frame)
                for node, value in parked:
                    self._deliver(node, frame.iterations[frame.newest], (value,))


def _hand_out(core: Propagator, node: FlowNode, inputs: Sequence[Any]) -> None:
    """The `execute` of a core that hands out every kernel."""


# In the order of `Role`; a feed has no rule, since it is there from the start.
_RULES: Final = (
    Propagator._run_kernel,
    Propagator._run_switch,
    Propagator._run_merge,
    Propagator._run_enter,
    Propagator._run_exit,
    Propagator._run_next,
    Propagator._run_pass,
    Propagator._run_trigger,
    Propagator._run_constant,
    Propagator._run_fetch,
    Propagator._run_send,
    Propagator._run_recv,
)

"""Tagged dataflow: which node runs next in a graph with loops and branches. Sans-IO: it runs nothing and waits for
nothing.

The semantics are TensorFlow's (whitepaper, 4.4), after the MIT tagged-token machine. A value carries a tag: a frame
and an iteration of it. `Enter` opens a frame, `NextIteration` passes a value to the next iteration, `Exit` hands one
back to the frame around. A value may be *dead*: `Switch` makes it so on the side not taken, every node but `Merge`
passes it on, and nothing dead is computed.

    core = Propagator(program)
    ready = core.start(feeds)            # activations whose kernels may run now, in any order
    ready = core.finish(activation, outputs)
    core.fetches()                       # once `core.outstanding` is 0

Rule 1: everything that decides what is ready is here. Rule 2: this file does not know how a kernel is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from aioflow.compiler.ir import Node
from aioflow.errors import InternalError, InvalidArgumentError
from aioflow.runtime.flow_program import FlowNode, Frame, Kind, Program

__all__ = ["DEAD", "Activation", "Propagator", "dead_fetch"]


class _Dead:
    """The absence of a value."""

    def __repr__(self) -> str:
        return "DEAD"


DEAD: Final = _Dead()
_FINISHED: Final = object()  # what travels along a control edge from a live node


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


class Activation:
    """A node that may run: its inputs have all arrived, in one iteration of one frame."""

    __slots__ = ("inputs", "iteration", "node")

    def __init__(self, node: FlowNode, iteration: _Iteration, inputs: list[Any]) -> None:
        self.node = node
        self.iteration = iteration
        self.inputs = inputs


class _Iteration:
    """One iteration of a running frame: what has arrived, and what is still under way."""

    __slots__ = ("children", "dead", "frame", "inputs", "number", "outstanding", "pending")

    def __init__(self, frame: _RunningFrame, number: int) -> None:
        self.frame = frame
        self.number = number
        self.outstanding = 0
        self.children: dict[int, _RunningFrame] = {}
        self.pending = frame.program.first_pending[:] if number == 0 else frame.program.later_pending[:]
        self.dead = [0] * len(self.pending)
        self.inputs: list[list[Any] | None] = [None] * len(self.pending)


class _RunningFrame:
    """A frame that is running, with the iterations that are under way."""

    __slots__ = ("constants", "dead_exits", "entering", "iterations", "newest", "parent", "parked", "program")

    def __init__(self, program: Frame, parent: _Iteration | None) -> None:
        self.program = program
        self.parent = parent
        self.entering = program.enters
        self.newest = 0
        self.iterations: dict[int, _Iteration] = {0: _Iteration(self, 0)}
        self.constants: list[tuple[FlowNode, Any]] = []
        self.parked: list[tuple[FlowNode, Any]] = []
        self.dead_exits: list[FlowNode] = []


class Propagator:
    """One step over a program.

    Attributes:
        outstanding: Activations that were handed out and have not been finished.
    """

    def __init__(self, program: Program) -> None:
        self.outstanding = 0
        self._program = program
        self._root = _RunningFrame(program.root, None)
        self._ready: list[Activation] = []
        self._internal: deque[tuple[FlowNode, _Iteration, list[Any], bool]] = deque()
        self._fetches: dict[int, Any] = {}

    def start(self, feeds: Sequence[Any]) -> list[Activation]:
        """Begin the step; returns what may run."""
        first = self._root.iterations[0]
        for node in self._program.sources:
            if node.kind is Kind.FEED:
                self._deliver(node, first, (feeds[node.index],))
            else:
                self._activate(node, first, [], False)
        return self._settle()

    def finish(self, activation: Activation, outputs: Sequence[Any]) -> list[Activation]:
        """An activation has run, with these outputs; returns what may run now."""
        self.outstanding -= 1
        iteration = activation.iteration
        self._deliver(activation.node, iteration, outputs)
        self._leave(iteration)
        return self._settle()

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

    def _settle(self) -> list[Activation]:
        """Run what needs no kernel until nothing of the kind is left; returns the activations that do need one."""
        internal = self._internal
        while internal:
            node, iteration, inputs, dead = internal.popleft()
            _RULES[node.kind](self, node, iteration, inputs, dead)
            self._leave(iteration)
        ready, self._ready = self._ready, []
        self.outstanding += len(ready)
        return ready

    def _deliver(self, node: FlowNode, iteration: _Iteration, outputs: Sequence[Any]) -> None:
        """Hand the outputs of a node to their consumers in the same iteration."""
        for port, slot, consumer in node.data_edges:
            self._arrive(consumer, iteration, slot, outputs[port])
        if node.control_edges:
            for consumer in node.control_edges:
                self._arrive_control(consumer, iteration, _FINISHED)

    def _deliver_dead(self, node: FlowNode, iteration: _Iteration) -> None:
        for _, slot, consumer in node.data_edges:
            self._arrive(consumer, iteration, slot, DEAD)
        for consumer in node.control_edges:
            self._arrive_control(consumer, iteration, DEAD)

    def _arrive(self, node: FlowNode, iteration: _Iteration, slot: int, value: Any) -> None:
        local = node.local
        inputs = iteration.inputs[local]
        if inputs is None:
            inputs = iteration.inputs[local] = [None] * node.arity
        if node.is_merge:
            self._arrive_at_merge(node, iteration, slot, value, inputs)
            return
        inputs[slot] = value
        if value is DEAD:
            iteration.dead[local] += 1
        left = iteration.pending[local] - 1
        iteration.pending[local] = left
        if left == 0:
            self._activate(node, iteration, inputs, iteration.dead[local] > 0)

    def _arrive_control(self, node: FlowNode, iteration: _Iteration, value: Any) -> None:
        local = node.local
        if node.is_merge:
            iteration.pending[local] -= 2  # a dead control input does not deaden a Merge: it is only counted
            self._check_merge(node, iteration)
            return
        if value is DEAD and node.kind is not Kind.TRIGGER:
            iteration.dead[local] += 1
        iteration.pending[local] -= 1
        if iteration.pending[local] == 0:
            inputs = iteration.inputs[local] or [None] * node.arity
            self._activate(node, iteration, inputs, iteration.dead[local] > 0)

    def _arrive_at_merge(self, node: FlowNode, iteration: _Iteration, slot: int, value: Any, inputs: list[Any]) -> None:
        local = node.local
        if value is DEAD:
            iteration.dead[local] += 1
        elif iteration.pending[local] & 1:  # the first live input wins
            iteration.pending[local] -= 1
            inputs[0], inputs[1] = value, slot
        self._check_merge(node, iteration)

    def _check_merge(self, node: FlowNode, iteration: _Iteration) -> None:
        """A Merge runs when its control inputs are in and a live value has come, or all that can come are dead.

        The low bit of `pending` says that no live value has come yet; each control input counts two above it. That is
        TensorFlow's count, except that a loop's Merge expects its Enters in the first iteration and its NextIterations
        in the others, so that a dead Enter needs no rule of its own.
        """
        local = node.local
        pending = iteration.pending[local]
        if pending < 0:
            return  # it has run already
        expected = node.first_inputs if iteration.number == 0 else node.later_inputs
        dead = pending == 1 and iteration.dead[local] == expected
        if pending == 0 or dead:
            iteration.pending[local] = -1 << 30
            self._activate(node, iteration, iteration.inputs[local] or [DEAD, 0], dead)

    def _activate(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        iteration.outstanding += 1
        iteration.inputs[node.local] = None  # a value lives no longer than who reads it
        if node.computes and not dead:
            self._ready.append(Activation(node, iteration, inputs))
        else:
            self._internal.append((node, iteration, inputs, dead))

    # -- nodes that need no kernel
    # --------------------------------------------------------------------------------------

    def _run_dead_kernel(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        self._deliver_dead(node, iteration)

    def _run_loop_condition(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        if dead:
            self._deliver_dead(node, iteration)
        else:
            self._deliver(node, iteration, inputs[:1])

    def _run_trigger(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        self._deliver(node, iteration, ())  # never dead: it ends deadness

    def _run_switch(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        if dead:
            self._deliver_dead(node, iteration)
            return
        data, predicate = inputs
        if getattr(predicate, "ndim", 0) != 0:
            raise InvalidArgumentError(
                "the predicate of a Switch must be a scalar", expected="shape ()", actual=predicate.shape
            ).at(node.origin.name, node.origin.op, node.origin.source)
        self._deliver(node, iteration, (DEAD, data) if predicate else (data, DEAD))

    def _run_merge(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        if dead:
            self._deliver_dead(node, iteration)
        else:
            self._deliver(node, iteration, (inputs[0], self._program.index_type(inputs[1])))

    def _run_fetch(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        self._fetches[node.index] = DEAD if dead else inputs[0]

    def _run_enter(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        program = node.child
        if program is None:
            raise InternalError(f"Enter {node.origin.name!r} has no frame")
        frame = iteration.children.get(program.number)
        if frame is None:
            frame = iteration.children[program.number] = _RunningFrame(program, iteration)
        value = DEAD if dead else inputs[0]
        if node.is_constant:
            frame.constants.append((node, value))
            for inner in list(frame.iterations.values()):
                self._deliver_value(node, inner, value)
        else:
            self._deliver_value(node, frame.iterations[0], value)
        frame.entering -= 1
        self._retire(frame)

    def _run_exit(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        frame = iteration.frame
        if frame.parent is None:
            raise InternalError(f"Exit {node.origin.name!r} is in no frame")
        if not dead:
            self._deliver(node, frame.parent, inputs[:1])
        elif iteration.number == frame.newest:
            frame.dead_exits.append(node)

    def _run_next(self, node: FlowNode, iteration: _Iteration, inputs: list[Any], dead: bool) -> None:
        if dead:
            return
        frame = iteration.frame
        if iteration.number == frame.newest:
            if len(frame.iterations) >= frame.program.parallel_iterations:
                frame.parked.append((node, inputs[0]))
                return
            self._begin_iteration(frame)
        self._deliver(node, frame.iterations[iteration.number + 1], inputs[:1])

    def _deliver_value(self, node: FlowNode, iteration: _Iteration, value: Any) -> None:
        if value is DEAD:
            self._deliver_dead(node, iteration)
        else:
            self._deliver(node, iteration, (value,))

    # -- the lives of iterations and frames
    # -----------------------------------------------------------------------------

    def _begin_iteration(self, frame: _RunningFrame) -> None:
        frame.newest += 1
        frame.dead_exits.clear()
        iteration = frame.iterations[frame.newest] = _Iteration(frame, frame.newest)
        for node, value in frame.constants:
            self._deliver_value(node, iteration, value)

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


# In the order of `Kind`; a feed has no rule, since it is there from the start.
_RULES: Final = (
    Propagator._run_dead_kernel,
    Propagator._run_switch,
    Propagator._run_merge,
    Propagator._run_enter,
    Propagator._run_exit,
    Propagator._run_next,
    Propagator._run_loop_condition,
    Propagator._run_trigger,
    Propagator._run_fetch,
)

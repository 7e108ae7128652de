"""Copies of the body of a function, where it is called.

Branches and loops in the body are copied with what is known about them, and the gradients of single nodes with the
tensors that they refer to, so that a copy can be differentiated like nodes that were made in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import CellType, FunctionType
from typing import Any

from aioflow.errors import InvalidArgumentError, OpError
from aioflow.graph import scopes
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.scopes import Body
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.ops.apply import output_specs
from aioflow.ops.control_flow_contexts import ControlFlowContext, current_context
from aioflow.ops.core import identity
from aioflow.ops.function_body import Function
from aioflow.ops.function_effects import made_in
from aioflow.ops.importer import by_name

__all__ = ["inline"]

_OF_LOOPS = ("Enter", "Exit", "NextIteration", "LoopCond")


def inline(function: Function, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Operation]]:
    """Copy the body to where nodes are being made.

    Returns:
        The results, which wait for all effects; and the nodes that have run when the call has.
    """
    graph = function.graph
    copy = _Copy(graph, function, inputs)
    for op in list(function.body.nodes.values()):
        copy.add(op)
    copy.complete()
    results = [copy.tensor(t) for t in function.outputs]
    effects = [copy.operation(op) for op in function.effects]
    if effects:
        with graph.control_dependencies(effects):
            results = [identity(t, name="result") for t in results]
    return results, [*(t.op for t in results), *effects]


class _Copy:
    """One copy in the making: what stands in it for the tensors, nodes and contexts of the body."""

    def __init__(self, graph: Graph, function: Function, inputs: Sequence[Tensor]) -> None:
        self._graph = graph
        self._function = function
        self._fits = all(_both(a.dims, t.dims) == t.dims for a, t in zip(function.inputs, inputs, strict=True))
        self._tensors = dict(zip(function.inputs, inputs, strict=True))
        self._operations = {t.op: self._tensors[t].op for t in self._tensors}
        self._unused = {t.op for t in (*function.arguments, *function.body.captures.values())}
        self._scope = scopes.current_scope(graph)
        self._contexts: dict[Any, Any] = {function.body: current_context(graph)}
        self._objects: dict[int, Any] = {}
        self._made: list[tuple[Operation, Operation]] = []
        self._later: list[tuple[Operation, Operation]] = []

    def tensor(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor of the body."""
        return self._tensors[tensor]

    def operation(self, op: Operation) -> Operation:
        """What stands for a node of the body."""
        return self._operations[op]

    def add(self, op: Operation) -> None:
        """Copy one node, whose inputs are there, but for that of a Merge which comes from the end of the loop."""
        if op in self._unused:
            return
        inputs = [self._tensors.get(t) for t in op.inputs]
        present = [t if t is not None else self._tensors[op.inputs[0]] for t in inputs]
        context = self._context(op.control_flow_context)
        scope = self._scope_of(op, context)
        with scopes.enter_scope(self._graph, lambda _: scope):
            made = self._graph.create_op(
                op.type,
                present,
                self._attrs(op),
                self._specs(op, present),
                name=op.name,
                control_inputs=[self._operations[c] for c in op.waits_for if c in self._operations],
                device=op.device,
                source=op.source,
                expand=False,
            )
        made.control_flow_context = context
        self._operations[op] = made
        self._tensors.update(zip(op.outputs, made.outputs, strict=True))
        self._made.append((op, made))
        self._later += [(made, control) for control in op.waits_for if control not in self._operations]

    def _scope_of(self, op: Operation, context: ControlFlowContext | None) -> scopes.Scope:
        """Where the copy is made: what brings a value into a branch or loop is made outside of it."""
        call = self._scope.call if op.call is None else self._operations[op.call]
        where = made_in(op)
        if isinstance(where, Body):
            return self._scope._replace(call=call)
        placed = self._context(where)
        return self._scope._replace(
            call=call, context=placed, controllers=(), colocation=(), colocated_device="", devices=()
        )

    def _context(self, context: Any) -> Any:
        """The copy of a branch or loop of the body. What it knows is filled in at the end, by `complete`."""
        if context is not None and context not in self._contexts:
            outer = self._context(context.outer)
            made = self._contexts[context] = object.__new__(type(context))
            made.__dict__.update(context.__dict__)
            made.outer = outer
            made.pivot = self._operations.get(context.pivot)
            for key, value in context.__dict__.items():
                if isinstance(value, ControlFlowContext) and key != "outer":
                    made.__dict__[key] = self._context(value)
        return self._contexts.get(context)

    def _attrs(self, op: Operation) -> dict[str, Any]:
        attrs = dict(op.attrs)
        if "frame_name" in attrs:  # each copy of a loop is a loop of its own
            attrs["frame_name"] = f"{self._scope.name}/{attrs['frame_name']}"
        if "_class" in attrs:
            attrs["_class"] = tuple(self._group(group) for group in attrs["_class"])
        return attrs

    def _group(self, group: str) -> str:
        source = self._function.body.nodes.get(group.removeprefix("loc:@"))
        copied = None if source is None else self._operations.get(source)
        return group if copied is None else f"loc:@{copied.name}"

    def _specs(self, op: Operation, inputs: Sequence[Tensor]) -> list[Any]:
        """Dtypes and static shapes: what the inputs of the call tell besides what the body knew.

        A loop keeps the shapes that hold in all its iterations. Of what was made for arguments of which more was known,
        nothing of that is sure.
        """
        known = [(t.dtype, t.dims if self._fits else None) for t in op.outputs]
        context = op.control_flow_context
        while context is not None and not context.is_loop:
            context = context.outer
        if context is not None or op.type in _OF_LOOPS or op.expansion is not None:
            return known
        try:
            inferred = output_specs(op.op_def, by_name(op.op_def, inputs, op.attrs), op.attrs)
        except OpError as error:
            raise error.at(f"{self._scope.name}/{op.name}", op.type, op.source) from error.__cause__
        return [(dtype, _both(dims, more)) for (dtype, dims), (_, more) in zip(known, inferred, strict=True)]

    def complete(self) -> None:
        """Close the loops, and tell contexts, calls and gradient functions of the copies."""
        for made, control in self._later:
            made.add_control_input(self._operations[control])
        for op, made in self._made:
            for i, tensor in enumerate(op.inputs):
                if op.type == "Merge" and tensor.op.type == "NextIteration":
                    made.update_input(i, self._tensors[tensor])
            if op.expansion is not None:
                made.expansion = tuple(self._tensors[t] for t in op.expansion)
                made.finish = tuple(self._operations[f] for f in op.finish)
            if op.gradient_function is not None:
                made.gradient_function = self._mapped(op.gradient_function)
        for context, made_context in self._contexts.items():
            if not isinstance(context, Body):
                self._fill_in(context, made_context)

    def _fill_in(self, context: Any, made: Any) -> None:
        for key, value in context.__dict__.items():
            if key not in ("graph", "outer"):
                made.__dict__[key] = self._mapped(value)
        if context.is_loop:
            made.name = f"{self._scope.name}/{context.name}"

    def _mapped(self, value: Any) -> Any:
        """A value with what stands in the copy for each tensor, node and context in it."""
        if isinstance(value, Tensor):
            return self._tensors.get(value, value)
        if isinstance(value, Operation):
            return self._operations.get(value, value)
        if isinstance(value, ControlFlowContext):
            return self._contexts.get(value, value)
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(self._mapped(item) for item in value)
        if isinstance(value, dict):
            return {self._mapped(key): self._mapped(item) for key, item in value.items()}
        if isinstance(value, FunctionType):
            return self._rebound(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._fields(value)
        return value

    def _fields(self, value: Any) -> Any:
        if id(value) not in self._objects:
            made = self._objects[id(value)] = object.__new__(type(value))
            for part in dataclasses.fields(value):
                if hasattr(value, part.name):
                    object.__setattr__(made, part.name, self._mapped(getattr(value, part.name)))
        return self._objects[id(value)]

    def _rebound(self, function: FunctionType) -> FunctionType:
        """A gradient function is a closure over tensors of the body: the copy's is one over the copy's tensors."""
        if id(function) in self._objects:
            return self._objects[id(function)]  # type: ignore[no-any-return]  # made here
        cells = tuple(CellType() for _ in function.__closure__ or ())
        made = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
        self._objects[id(function)] = made
        made.__kwdefaults__ = self._mapped(function.__kwdefaults__)
        made.__defaults__ = self._mapped(function.__defaults__)
        for cell, old in zip(cells, function.__closure__ or (), strict=True):
            try:
                cell.cell_contents = self._mapped(old.cell_contents)
            except ValueError:  # nothing is bound to the name yet
                continue
        return made


def _both(dims: Dims, more: Dims) -> Dims:
    try:
        return merge_dims(dims, more)
    except InvalidArgumentError:
        return dims

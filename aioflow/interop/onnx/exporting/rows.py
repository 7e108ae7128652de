"""Arrays of tensors that a loop fills: in ONNX a loop gives the stack of what its iterations made.

That is the same if the first iteration writes the first row, the next one the next, or all from the last to the first.
Where all of them write the only row, it is the last of the stack.
"""

from __future__ import annotations

from dataclasses import replace

from aioflow.compiler.ir import Edge
from aioflow.graph.arrays import Array
from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.scope import Scope
from aioflow.interop.onnx.exporting.structure import Loop, Structure, Variable
from aioflow.interop.onnx.exporting.values import Value

__all__ = ["adds_rows", "awaited", "stacked"]


def awaited(array: Value) -> Value:
    """An array into which nothing was written, in the body of the loop that does so."""
    return array if array.rows is None else replace(array, rows=replace(array.rows, is_awaited=True))


def adds_rows(structure: Structure, loop: Loop, variable: Variable, following: Value) -> bool:
    """Whether every iteration adds the next row to an array, and no other; or the only one, each time anew."""
    if following.rows is None or not following.rows.is_next:
        return False
    index = _index(structure, variable)
    if index is None or _counts(structure, loop, index) or _counts_down(structure, loop, index):
        return True
    return _is(structure.constant(index), 0) and _is(following.rows.size.constant, 1)


def stacked(structure: Structure, loop: Loop, variable: Variable, row: Value, scope: Scope) -> Value:
    """The array after the loop, from the stack of what the iterations made; `row` has the static shape of one."""
    dims = None if row.dims is None else (None, *row.dims)
    index = _index(structure, variable)
    node = Node(structure.node(variable.merge), scope)
    if index is not None and structure.constant(index) is not None:
        return node.sliced(row, -1, 2**62).of(dims)
    if index is not None and _counts_down(structure, loop, index):
        return node.sliced(row, -1, -(2**62), step=-1).of(dims)
    return row.of(dims)


def _index(structure: Structure, variable: Variable) -> Edge | None:
    """Where the body writes; None where it appends."""
    node = structure.node(structure.past(variable.following))
    if node.op == "TensorListPushBack":
        return None
    return structure.past(node.inputs[1])


def _counts(structure: Structure, loop: Loop, index: Edge) -> bool:
    """Whether it is a variable that goes 0, 1, 2…"""
    for variable in loop.variables:
        if variable.merge == index:
            node = structure.node(structure.past(variable.following))
            if node.op not in ("Add", "AddV2"):
                return False
            inputs = [structure.past(edge) for edge in node.inputs]
            others = [edge for edge in inputs if edge != index]
            steps = [structure.constant(edge) for edge in others]
            start = structure.constant(structure.past(variable.start))
            return len(others) == 1 and _is(steps[0], 1) and _is(start, 0)
    return False


def _counts_down(structure: Structure, loop: Loop, index: Edge) -> bool:
    """Whether it is something that stays, less such a variable."""
    if structure.is_variable(index):
        return False
    node = structure.node(index)
    return node.op == "Sub" and _counts(structure, loop, structure.past(node.inputs[1]))


def _is(value: Array | None, number: int) -> bool:
    return value is not None and value.size == 1 and bool(value.reshape(-1)[0] == number)

"""Tensor arrays filled by a loop. A loop in ONNX returns the stack of its iterations' results.

That stack is the array if the iterations write its rows in order, from the first to the last or in reverse. If every
iteration writes the only row of an array, the array is the last row of the stack.
"""

from __future__ import annotations

from dataclasses import replace

from aioflow.compiler.ir import Edge
from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.scope import Scope
from aioflow.interop.onnx.exporting.structure import Loop, Structure, Variable
from aioflow.interop.onnx.exporting.values import Value
from aioflow.memory.values import Array


def awaited(array: Value) -> Value:
    """Return an unwritten array marked as such, for use in the body of the loop that fills it."""
    return array if array.rows is None else replace(array, rows=replace(array.rows, is_awaited=True))


def adds_rows(structure: Structure, loop: Loop, variable: Variable, following: Value) -> bool:
    """Return whether each iteration writes exactly the next row of an array, or each writes its only row."""
    if following.rows is None or not following.rows.is_next:
        return False
    index = _index(structure, variable)
    if index is None or _counts(structure, loop, index) or _counts_down(structure, loop, index):
        return True
    return _is(structure.constant(index), 0) and _is(following.rows.size.constant, 1)


def stacked(structure: Structure, loop: Loop, variable: Variable, row: Value, scope: Scope) -> Value:
    """Return the array after the loop, given the stack of its iterations' results.

    Args:
        structure: Structure of the graph.
        loop: The loop.
        variable: Loop variable that holds the array.
        row: The stack, with the static shape of one row.
        scope: Scope in which nodes of the model are made.
    """
    dims = None if row.dims is None else (None, *row.dims)
    index = _index(structure, variable)
    node = Node(structure.node(variable.merge), scope)
    if index is not None and structure.constant(index) is not None:
        return node.sliced(row, -1, 2**62).of(dims)
    if index is not None and _counts_down(structure, loop, index):
        return node.sliced(row, -1, -(2**62), step=-1).of(dims)
    return row.of(dims)


def _index(structure: Structure, variable: Variable) -> Edge | None:
    """Return the index that the body writes to, or None if it appends."""
    node = structure.node(structure.past(variable.following))
    if node.op == "TensorListPushBack":
        return None
    return structure.past(node.inputs[1])


def _counts(structure: Structure, loop: Loop, index: Edge) -> bool:
    """Return whether the index is a loop variable that counts up from 0 by 1."""
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
    """Return whether the index is a loop-invariant value minus a variable that counts up from 0 by 1."""
    if structure.is_variable(index):
        return False
    node = structure.node(index)
    return node.op == "Sub" and _counts(structure, loop, structure.past(node.inputs[1]))


def _is(value: Array | None, number: int) -> bool:
    return value is not None and value.size == 1 and bool(value.reshape(-1)[0] == number)

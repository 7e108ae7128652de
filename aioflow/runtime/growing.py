"""Reservation of memory for elementwise nodes whose result may be larger than their inputs.

Static shapes determine which nodes these are (`compiler/growth.py`), so all others, especially scalars, have no cost.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aioflow.compiler.ir import Node
from aioflow.concurrency.stopping import reserve
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KernelBody, KernelDef
from aioflow.memory.values import Array, Value

# The operators of kernel expressions; on scalars they are several times faster than ufuncs.
_OPERATORS: Final[Mapping[str, KernelBody]] = {
    f"{{0}} {sign} {{1}}": function
    for sign, function in {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": operator.truediv,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "&": operator.and_,
        "|": operator.or_,
        "^": operator.xor,
    }.items()
}


def claiming(call: KernelBody, kernel: KernelDef, node: Node) -> KernelBody:
    """Return a callable that reserves memory for a result that is larger than the inputs, then calls `call`."""
    size = node.outputs[0].dtype.size
    if len(node.inputs) != 2 or any(arg.is_sequence for arg in OPS.get(node.op).inputs):

        def of_any(*inputs: Array | tuple[Array, ...], **named: object) -> Value:
            _claim(_flat(inputs), size)
            return call(*inputs, **named)

        return of_any
    at_once = _OPERATORS.get(kernel.expression or "", call)

    def of_two(x: Array, y: Array, **named: object) -> Value:
        # Operands of equal shapes have a result of the same size, so they need no reservation.
        if x.shape != y.shape:
            _claim((x, y), size)
        return call(x, y, **named) if named else at_once(x, y)

    return of_two


def _flat(inputs: Iterable[Array | tuple[Array, ...]]) -> list[Array]:
    return [value for each in inputs for value in (each if isinstance(each, tuple) else (each,))]


def _claim(values: Sequence[Array], size: int) -> None:
    shapes = {value.shape for value in values}
    rank = max(map(len, shapes))
    count = 1
    for axis in range(1, rank + 1):
        sizes = {shape[-axis] for shape in shapes if len(shape) >= axis} - {1}
        if len(sizes) > 1:
            return  # the shapes are incompatible, which the kernel reports
        count *= sizes.pop() if sizes else 1
    if count > max(value.size for value in values):
        reserve(count * size)

"""Elementwise nodes that may make more than they read claim the size of it before.

Which they are follows from static shapes (`compiler/growth.py`), so that all others, scalars first of all, pay nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from aioflow.compiler.ir import Node
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import Body, KernelDef
from aioflow.work.stopping import claim

__all__ = ["claiming"]

# What the expressions of kernels stand for: on scalars, several times faster than a function of NumPy.
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
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


def claiming(call: Body, kernel: KernelDef, node: Node) -> Body:
    """The callable of such a node."""
    size = node.outputs[0].dtype.size
    if len(node.inputs) != 2 or any(arg.is_sequence for arg in OPS.get(node.op).inputs):

        def of_any(*inputs: Any, **named: Any) -> Any:
            _claim(_flat(inputs), size)
            return call(*inputs, **named)

        return of_any
    at_once = _OPERATORS.get(kernel.expression or "", call)

    def of_two(x: Any, y: Any, **named: Any) -> Any:
        if x.shape != y.shape:
            _claim((x, y), size)
        return call(x, y, **named) if named else at_once(x, y)

    return of_two


def _flat(inputs: Iterable[Any]) -> list[Any]:
    return [value for each in inputs for value in (each if isinstance(each, tuple) else (each,))]


def _claim(values: Sequence[Any], size: int) -> None:
    shapes = {value.shape for value in values}
    rank = max(map(len, shapes))
    count = 1
    for axis in range(1, rank + 1):
        sizes = {shape[-axis] for shape in shapes if len(shape) >= axis} - {1}
        if len(sizes) > 1:
            return  # they do not fit, and the kernel says so
        count *= sizes.pop() if sizes else 1
    if count > max(value.size for value in values):
        claim(count * size)

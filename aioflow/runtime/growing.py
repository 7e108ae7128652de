"""Elementwise nodes that may make more than they read, as [n, 1] + [1, n] does: they claim the size of it before; and
those whose inputs must have one shape: they look whether it is so.

Which they are follows from static shapes, so that all others, scalars first of all, pay nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import Dims
from aioflow.kernels.registry import Body, KernelDef
from aioflow.ops.math.broadcasting import broadcast
from aioflow.work.stopping import claim

__all__ = ["claiming", "grows", "may_grow"]

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


def grows(node: Node, kernel: KernelDef, graph: ClientGraph) -> bool:
    """Whether the result may be larger than all that the node reads, because that is broadcast."""
    if len(node.inputs) < 2 or len(node.outputs) != 1:
        return False
    if kernel.host or not (kernel.takes_out or OPS.get(node.op).shape_fn is broadcast):
        return False
    specs = [graph.spec(edge) for edge in dict.fromkeys(node.inputs)]
    return not any(spec.dtype.np_dtype.hasobject for spec in specs) and may_grow([spec.dims for spec in specs])


def may_grow(shapes: Sequence[Dims]) -> bool:
    """Whether values of these shapes may broadcast to more elements than any of them has.

    They do where each is stretched, and not all along the same dimension.
    """
    several = [dims for dims in shapes if dims != ()]
    known = [dims for dims in several if dims is not None]
    if len(several) < 2 or len(known) < len(several):
        return len(several) > 1
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(dims)) + dims for dims in known]
    stretched = [_stretched(number, padded) for number in range(len(padded))]
    return all(stretched) and len(frozenset[int]().union(*stretched)) > 1


def _stretched(number: int, shapes: Sequence[tuple[int | None, ...]]) -> frozenset[int]:
    """The dimensions along which one of the shapes may be stretched to fit the others."""
    others = [shape for i, shape in enumerate(shapes) if i != number]
    sizes = enumerate(shapes[number])
    return frozenset(axis for axis, n in sizes if n in (1, None) and any(other[axis] != 1 for other in others))


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

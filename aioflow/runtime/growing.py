"""Reservation of memory for elementwise nodes whose result may be larger than their inputs.

Static shapes determine which nodes these are, so all others, especially scalars, have no cost.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.concurrency.stopping import reserve
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import Dims
from aioflow.kernels.registry import KernelBody, KernelDef
from aioflow.memory.values import Array, Value
from aioflow.ops.math.broadcasting import broadcast

# ── static-shape tests ────────────────────────────────────────────────────────────────────────────────────────────────


def grows(node: Node, kernel: KernelDef, graph: ClientGraph) -> bool:
    """Return whether broadcasting may make the result larger than each input."""
    if len(node.inputs) < 2 or len(node.outputs) != 1:
        return False
    if kernel.host or not (kernel.takes_out or OPS.get(node.op).shape_fn is broadcast):
        return False
    specs = [graph.spec(edge) for edge in dict.fromkeys(node.inputs)]
    return not any(spec.dtype.np_dtype.hasobject for spec in specs) and may_grow([spec.dims for spec in specs])


def may_grow(shapes: Sequence[Dims]) -> bool:
    """Return whether values of these shapes may broadcast to more elements than each of them has.

    They do if each is stretched, and not all along the same dimension.
    """
    several = [dims for dims in shapes if dims != ()]
    known = [dims for dims in several if dims is not None]
    # A value of unknown rank may stretch any other one that is not a scalar.
    if len(several) < 2 or len(known) < len(several):
        return len(several) > 1
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(dims)) + dims for dims in known]
    stretched = [_stretched(number, padded) for number in range(len(padded))]
    return all(stretched) and len(frozenset[int]().union(*stretched)) > 1


def _stretched(number: int, shapes: Sequence[tuple[int | None, ...]]) -> frozenset[int]:
    """Return the dimensions along which one of the shapes may be stretched to fit the others."""
    others = [shape for i, shape in enumerate(shapes) if i != number]
    sizes = enumerate(shapes[number])
    return frozenset(axis for axis, n in sizes if n in (1, None) and any(other[axis] != 1 for other in others))


# ── reservations ──────────────────────────────────────────────────────────────────────────────────────────────────────


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

"""Static-shape tests for elementwise nodes whose result may be larger than their inputs, as [n, 1] + [1, n] is."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import Dims
from aioflow.kernels.registry import KernelDef
from aioflow.ops.math.broadcasting import broadcast


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

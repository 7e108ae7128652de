"""Run-time check of ops whose two inputs must have the same shape, for shapes unknown until then."""

from __future__ import annotations

from collections.abc import Iterable

from aioflow.errors import InvalidArgumentError
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import Dims, num_elements
from aioflow.kernels.registry import KernelBody
from aioflow.memory.values import Array, Value


def may_differ(op: str, shapes: Iterable[Dims]) -> bool:
    """Return whether inputs of these static shapes may violate the op's requirement of one common shape."""
    return OPS.get(op).is_of_one_shape and any(num_elements(dims) is None for dims in shapes)


def of_one_shape(call: KernelBody) -> KernelBody:
    """Return the callable of such a node, with a check of the shapes.

    Without the check, the kernel would broadcast to a shape that the graph does not expect.
    """

    def checked(x: Array, y: Array, **named: object) -> Value:
        if x.shape != y.shape:
            raise InvalidArgumentError("the inputs must have one shape", expected=x.shape, actual=y.shape)
        return call(x, y, **named)

    return checked

"""Which gradient function a node has: its own, or that of its op."""

from __future__ import annotations

from aioflow.errors import NoGradientError
from aioflow.graph.opdef import GRADIENTS, OPS, TAKES_SLICES, GradientFn
from aioflow.graph.operation import Operation

__all__ = ["lookup_gradient", "takes_slices"]


def lookup_gradient(op: Operation) -> GradientFn | None:
    """The gradient function for a node, None where it is declared not differentiable.

    Raises:
        NoGradientError: nobody registered one; the error names the node and how to add it.
    """
    if op.gradient_function is not None:
        return op.gradient_function
    name = _gradient_name(op)
    if name not in GRADIENTS:
        OPS.find(name)  # it may be that of another op, which nobody has imported
    if name not in GRADIENTS:
        raise NoGradientError(
            f"no gradient is registered for op {name!r}; add one with @aioflow.RegisterGradient({name!r})"
        ).at(op.name, op.type, op.source)
    return GRADIENTS[name]


def takes_slices(op: Operation) -> bool:
    """Whether the gradient function of a node takes IndexedSlices: one of the user's own for this very node does."""
    return op.gradient_function is not None or _gradient_name(op) in TAKES_SLICES


def _gradient_name(op: Operation) -> str:
    name: str = op.attrs.get("_gradient_op_type", op.type)
    return name

"""Lookup of a node's gradient function: its own, or that of its op."""

from __future__ import annotations

from aioflow.errors import NoGradientError
from aioflow.graph.gradient_registry import GRADIENTS, TAKES_SLICES, GradientFn
from aioflow.graph.graph import Operation
from aioflow.graph.opdef import OPS


def lookup_gradient(op: Operation) -> GradientFn | None:
    """Return the gradient function of a node; None if it is declared not differentiable.

    Raises:
        NoGradientError: no gradient function is registered. The error names the node and how to register one.
    """
    if op.gradient_function is not None:
        return op.gradient_function
    name = _gradient_name(op)
    if name not in GRADIENTS:
        OPS.find(name)  # imports the module of the op, which may register the gradient
    if name not in GRADIENTS:
        raise NoGradientError(
            f"no gradient is registered for op {name!r}; add one with @aioflow.RegisterGradient({name!r})"
        ).at(op.name, op.type, op.source)
    return GRADIENTS[name]


def takes_slices(op: Operation) -> bool:
    """Return True if the node's gradient function accepts IndexedSlices. A user's function for a node always does."""
    return op.gradient_function is not None or _gradient_name(op) in TAKES_SLICES


def _gradient_name(op: Operation) -> str:
    name: str = op.attrs.get("_gradient_op_type", op.type)
    return name

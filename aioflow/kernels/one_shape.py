"""Ops whose two inputs have one shape, where that is known only when they come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import Dims, num_elements
from aioflow.kernels.registry import Body

__all__ = ["may_differ", "of_one_shape"]


def may_differ(op: str, shapes: Iterable[Dims]) -> bool:
    """Whether inputs of these static shapes may turn out not to have the one shape that the op asks for."""
    return OPS.get(op).is_of_one_shape and any(num_elements(dims) is None for dims in shapes)


def of_one_shape(call: Body) -> Body:
    """The callable of such a node. The kernel itself would broadcast, to what the graph does not expect."""

    def checked(x: Any, y: Any, **named: Any) -> Any:
        if x.shape != y.shape:
            raise InvalidArgumentError("the inputs must have one shape", expected=x.shape, actual=y.shape)
        return call(x, y, **named)

    return checked

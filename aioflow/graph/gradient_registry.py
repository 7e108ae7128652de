"""Gradient functions by op: `gradient` attaches them, `autodiff` calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from aioflow.errors import AlreadyRegisteredError, InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import OPS
from aioflow.loading.importing import Globals, gives_way, importing

GradientFn: TypeAlias = Callable[..., Tensor | IndexedSlices | Sequence[Tensor | Any | None] | None]
_Rule = TypeVar("_Rule", bound=GradientFn)

GRADIENTS: Final[dict[str, GradientFn | None]] = {}
# The module that registered each gradient.
_GRADIENT_ORIGINS: Final[dict[str, Globals]] = {}
# Ops whose gradient functions accept IndexedSlices without conversion to a dense tensor.
TAKES_SLICES: Final[set[str]] = set()


def gradient(*op_types: str, takes_slices: bool = False) -> Callable[[_Rule], _Rule]:
    """Return a decorator that attaches a gradient function to ops.

    The function gets the `Operation` and one gradient per output (a Tensor, or None if no gradient flows back) and
    returns one gradient per input: a Tensor, an IndexedSlices, or None. With a single input it may return it bare.

    Args:
        *op_types: The ops.
        takes_slices: Whether the function accepts an IndexedSlices as a gradient. Otherwise it gets a dense tensor.

    Raises:
        AlreadyRegisteredError: the op already has a gradient.
        InvalidArgumentError: no op is given, or one is not a name.
    """

    if not op_types or not all(isinstance(op_type, str) for op_type in op_types):
        raise InvalidArgumentError(
            "a gradient needs the names of its ops", expected='names of ops: `@gradient("Tanh")`', actual=op_types
        )

    def attach(fn: _Rule) -> _Rule:
        for op_type in op_types:
            _register_gradient(op_type, fn)
            if takes_slices:
                TAKES_SLICES.add(op_type)
        return fn

    return attach


def not_differentiable(*op_types: str) -> None:
    """Declare that no gradient flows back through these ops: their inputs get None.

    Raises:
        AlreadyRegisteredError: an op already has a gradient.
    """
    for op_type in op_types:
        _register_gradient(op_type, None)


def _register_gradient(op_type: str, fn: GradientFn | None) -> None:
    origin = importing()
    if not origin.get("__name__", "").startswith("aioflow.ops."):
        # An op of aioflow has its gradient in the same module: import that first, so that a second gradient is noticed.
        OPS.find(op_type)
    if op_type in GRADIENTS and not gives_way(_GRADIENT_ORIGINS.get(op_type, {}), origin):
        raise AlreadyRegisteredError(f"op {op_type!r} already has a gradient", op_type=op_type)
    _GRADIENT_ORIGINS[op_type] = origin
    GRADIENTS[op_type] = fn

"""The layout of images. ONNX has the channels before the spatial axes; aioflow's kernels are fastest with them last.

Ops on images therefore transpose to channels last and back. Ops in between keep the channels last if their inputs came
that way: adjacent transposes then cancel out, and the compiler removes them. Elementwise nodes need no such care, since
the compiler moves transposes past them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import traits_of
from aioflow.graph.static_value import constant_value
from aioflow.ops import public as ops

_FAR: Final = 16  # longest chain of elementwise nodes to look through


def channels_last(x: Tensor, rank: int) -> Tensor:
    """Return [batch, channels, spatial …] as [batch, spatial …, channels]."""
    return ops.transpose(x, [0, *range(2, rank), 1])


def channels_first(x: Tensor, rank: int) -> Tensor:
    """Return [batch, spatial …, channels] as [batch, channels, spatial …]."""
    return ops.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def keeps_last(x: Tensor) -> bool:
    """Return whether a value is the result of `channels_first`, or an elementwise function of it."""
    rank = len(x.dims or ())
    for _ in range(_FAR if rank > 2 else 0):
        op = x.op
        if op.type == "Transpose":
            order = constant_value(op.inputs[1])
            return order is not None and order.tolist() == [0, rank - 1, *range(1, rank - 1)]
        # Operands of lower rank broadcast, and the compiler folds the transpose of a constant: neither decides the
        # layout.
        alike = [each for each in op.inputs if len(each.dims or ()) == rank and each.op.type != "Const"]
        if traits_of(op.type).kind != "elementwise" or not alike:
            return False
        x = alike[0]
    return False


def in_last(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to the images with channels last, and return the result with channels first."""
    rank = len(x.dims or ())
    return channels_first(function(channels_last(x, rank)), rank)


def joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate the tensors along an axis."""
    if not all(map(keeps_last, tensors)):
        return ops.concat(list(tensors), axis)
    rank = len(tensors[0].dims or ())
    return channels_first(ops.concat([channels_last(x, rank) for x in tensors], _axis(axis, rank)), rank)


def padded(x: Tensor, pairs: Sequence[Sequence[int | Tensor]], fill: Tensor) -> Tensor:
    """Pad the tensor with `fill`, (before, after) for each axis."""
    if not keeps_last(x):
        return ops.pad(x, list(pairs), constant_values=fill)
    # The channels' padding moves to the end with the channels.
    around = [pairs[0], *pairs[2:], pairs[1]]
    return in_last(x, lambda image: ops.pad(image, around, constant_values=fill))


def _axis(axis: int, rank: int) -> int:
    """Return the position of an axis when the channels are last."""
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1

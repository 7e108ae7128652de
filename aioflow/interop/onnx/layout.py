"""The layout of images: ONNX has the channels before the axes of space, our kernels are at their best with them last.

So what computes images puts the channels last and back. What is between leaves them last too where the image came so:
the transposes around it then meet, and the compiler leaves none. Elementwise nodes need no care: the compiler moves
transposes behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from aioflow.graph.opdef import traits_of
from aioflow.graph.static_value import constant_value
from aioflow.graph.tensor import Tensor
from aioflow.ops import public as ops

__all__ = ["channels_first", "channels_last", "in_last", "joined", "keeps_last", "padded"]

_FAR: Final = 16  # elementwise nodes that are looked through


def channels_last(x: Tensor, rank: int) -> Tensor:
    """[batch, channels, spatial …] with the channels at the end."""
    return ops.transpose(x, [0, *range(2, rank), 1])


def channels_first(x: Tensor, rank: int) -> Tensor:
    """[batch, spatial …, channels] with the channels after the batch."""
    return ops.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def keeps_last(x: Tensor) -> bool:
    """Whether a value is `channels_first` of something, or an elementwise function of that."""
    rank = len(x.dims or ())
    for _ in range(_FAR if rank > 2 else 0):
        op = x.op
        if op.type == "Transpose":
            order = constant_value(op.inputs[1])
            return order is not None and order.tolist() == [0, rank - 1, *range(1, rank - 1)]
        alike = [each for each in op.inputs if len(each.dims or ()) == rank and each.op.type != "Const"]
        if traits_of(op.type).kind != "elementwise" or not alike:
            return False
        x = alike[0]
    return False


def in_last(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """What a function of images with channels last makes, with the channels back."""
    rank = len(x.dims or ())
    return channels_first(function(channels_last(x, rank)), rank)


def joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """The tensors one after the other along an axis."""
    if not all(map(keeps_last, tensors)):
        return ops.concat(list(tensors), axis)
    rank = len(tensors[0].dims or ())
    return channels_first(ops.concat([channels_last(x, rank) for x in tensors], _axis(axis, rank)), rank)


def padded(x: Tensor, pairs: Sequence[Any], fill: Tensor) -> Tensor:
    """The tensor with `fill` around it, (before, after) for each axis."""
    if not keeps_last(x):
        return ops.pad(x, list(pairs), constant_values=fill)
    around = [pairs[0], *pairs[2:], pairs[1]]
    return in_last(x, lambda image: ops.pad(image, around, constant_values=fill))


def _axis(axis: int, rank: int) -> int:
    """Where an axis is when the channels are last."""
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1

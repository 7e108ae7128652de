"""`tensordot`: an einsum if the ranks are known, otherwise a matrix product whose shapes are computed at run time.

An einsum has at most 52 labels: with more axes, a product of matrices takes its place, too.
"""

from __future__ import annotations

from collections.abc import Sized
from string import ascii_letters
from typing import Any

import numpy as np

from aioflow.arguments import check_kind, whole_numbers
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import check_axis
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.array.static_shapes import int_constant
from aioflow.ops.linalg.einsum import Equation
from aioflow.ops.linalg.products import matmul
from aioflow.ops.scoping import name_scope

__all__ = ["tensordot"]


def tensordot(a: TensorLike, b: TensorLike, axes: TensorLike, name: str | None = None) -> Tensor:
    """Return the sum of products over `axes`.

    `axes` is an int n (the last n axes of `a` with the first n of `b`), or two lists of axes.

    Raises:
        InvalidArgumentError: the axes are out of range, or differ in number.
        DTypeError: `axes` is neither an int nor two lists.
    """
    x = convert_to_tensor(a)
    y = convert_to_tensor(b, dtype_hint=x.dtype)
    if isinstance(axes, Tensor):
        known = constant_value(axes)
        axes = axes if known is None else known
    axes = axes.tolist() if isinstance(axes, np.ndarray) else axes
    with name_scope(name, "Tensordot", [x, y]):
        if x.dims is None or y.dims is None or isinstance(axes, Tensor):
            return _of_matrices(x, y, *_axes_at_run_time(x, axes))
        left, right = _contracted(axes, len(x.dims), len(y.dims))
        # An einsum has 52 letters for its labels.
        if len(x.dims) + len(y.dims) - len(right) > len(ascii_letters):
            return _of_matrices(x, y, int_constant(left), int_constant(right))
        return _by_einsum(x, y, left, right)


def _by_einsum(x: Tensor, y: Tensor, left: list[int], right: list[int]) -> Tensor:
    letters = iter(ascii_letters)
    x_term = tuple(next(letters) for _ in x.dims or ())
    y_term = tuple(x_term[left[right.index(i)]] if i in right else next(letters) for i in range(len(y.dims or ())))
    output = (
        *(label for i, label in enumerate(x_term) if i not in left),
        *(label for i, label in enumerate(y_term) if i not in right),
    )
    return make("Einsum", [x, y], equation=str(Equation((x_term, y_term), output)))


def _contracted(axes: Any, x_rank: int, y_rank: int) -> tuple[list[int], list[int]]:
    """Return the contracted axes of both operands, counted from the front."""
    if isinstance(axes, int | np.integer):
        if not 0 <= axes <= min(x_rank, y_rank):
            raise InvalidArgumentError("axes out of range", expected=f"0..{min(x_rank, y_rank)}", actual=axes)
        return list(range(x_rank - int(axes), x_rank)), list(range(int(axes)))
    check_kind(axes, Sized, "axes", "an int, or two lists")
    if len(axes) != 2:
        raise DTypeError("axes must be given for both operands", expected="an int, or two lists", actual=axes)
    found = []
    for given, rank in zip(axes, (x_rank, y_rank), strict=True):
        listed = whole_numbers(np.reshape(given, -1), "axes")
        found.append([check_axis(i, rank) for i in listed])
    if len(found[0]) != len(found[1]):
        raise InvalidArgumentError(
            "the operands must have equally many axes", expected=f"{len(found[0])} for both", actual=axes
        )
    return found[0], found[1]


def _axes_at_run_time(x: Tensor, axes: Any) -> tuple[Tensor, Tensor]:
    """Return the contracted axes of both operands as vectors; negative axes count from the end."""
    if isinstance(axes, int | np.integer):
        if axes < 0:
            raise InvalidArgumentError("axes out of range", expected=">= 0", actual=axes)
        order = make("Rank", x)
        return make("Range", make("Sub", order, int_constant(axes)), order, 1), int_constant(list(range(axes)))
    pair = list(axes) if not isinstance(axes, Tensor) else [make("GatherV2", axes, int_constant(i), 0) for i in (0, 1)]
    if len(pair) != 2:
        raise DTypeError("axes must be given for both operands", expected="an int, or two lists", actual=axes)
    left, right = (make("Reshape", convert_to_tensor(p, "int32"), int_constant([-1])) for p in pair)
    return left, right


def _of_matrices(x: Tensor, y: Tensor, left: Tensor, right: Tensor) -> Tensor:
    rows, kept = _as_matrix(x, left, free_first=True)
    columns, other = _as_matrix(y, right, free_first=False)
    return make("Reshape", matmul(rows, columns), make("ConcatV2", [kept, other], 0))


def _as_matrix(tensor: Tensor, axes: Tensor, free_first: bool) -> tuple[Tensor, Tensor]:
    """Reshape the tensor to a matrix of free and contracted dimensions. Return it and the sizes of the free ones."""
    order, shape = make("Rank", tensor), make("Shape", tensor)
    contracted = make("FloorMod", axes, order)
    free, _ = make_list("ListDiff", make("Range", 0, order, 1), contracted)
    pair = [free, contracted] if free_first else [contracted, free]
    counts = [make("Prod", make("GatherV2", shape, part, 0), int_constant([0]), keep_dims=False) for part in pair]
    moved = make("Transpose", tensor, make("ConcatV2", pair, 0))
    return make("Reshape", moved, make("Pack", counts)), make("GatherV2", shape, free, 0)

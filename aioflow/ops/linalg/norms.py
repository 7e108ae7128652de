"""Norms of vectors and matrices, traces and identity matrices, composed of other ops and so differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioflow.arguments import whole_number, whole_numbers
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.linalg.decompositions import svd
from aioflow.ops.math.reduction import reduce_by
from aioflow.ops.scoping import name_scope

# normalize is public as aioflow.linalg.normalize only.
__all__ = ["eye", "norm", "trace"]


def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the sum of the main diagonal of each matrix [..., m, n]."""
    tensor = convert_to_tensor(x)
    with name_scope(name, "Trace", [tensor]):
        return reduce_by("Sum", make("MatrixDiagPart", tensor), -1, False, None)


def _sizes(*values: object) -> list[int]:
    sizes = [whole_number(value, "a size of a matrix") for value in values]
    if min(sizes) < 0:
        raise InvalidArgumentError("a size cannot be negative", expected="sizes >= 0", actual=sizes)
    return sizes


def eye(
    num_rows: TensorLike,
    num_columns: TensorLike | None = None,
    batch_shape: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Return identity matrices [*batch_shape, num_rows, num_columns]; square unless `num_columns` is given.

    Raises:
        InvalidArgumentError: a size is negative.
    """
    kind = as_dtype(dtype)
    with name_scope(name, "eye", [num_rows, num_columns, batch_shape]):
        rows = convert_to_tensor(num_rows, dtype_hint=dtypes.int32)
        columns = rows if num_columns is None else convert_to_tensor(num_columns, dtype_hint=dtypes.int32)
        known_rows, known_columns = constant_value(rows), constant_value(columns)
        result: Tensor
        if known_rows is not None and known_columns is not None:
            result = constant(np.eye(*_sizes(known_rows, known_columns), dtype=kind.np_dtype), dtype=kind)
        else:
            # An element is 1 where the numbers of its row and of its column are equal.
            down, across = make("Range", 0, rows, 1), make("Range", 0, columns, 1)
            result = make("Cast", make("Equal", make("ExpandDims", down, -1), across), DstT=kind)
        if batch_shape is not None:
            batch = convert_to_tensor(batch_shape, dtype_hint=dtypes.int32)
            size = make("Shape", result, out_type=batch.dtype)
            result = make("BroadcastTo", result, make("ConcatV2", [batch, size], 0))
    return result


def norm(
    tensor: TensorLike,
    ord: str | float = "euclidean",
    axis: int | Sequence[int] | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the norm of vectors or of matrices.

    Vectors are taken along one axis, or all elements form one vector; matrices are taken along two axes.

    Args:
        tensor: The values.
        ord: "euclidean" (for matrices the same as "fro"), 1, 2, any positive number (vectors only) or infinity.
        axis: None, an int, or a pair of ints for matrix norms.
        keepdims: Whether to keep each reduced axis with size 1.
        name: Name scope of the nodes.
        keep_dims: Old name of `keepdims`.

    Raises:
        InvalidArgumentError: `ord` is unknown, `axis` has more than two axes, or a matrix's 2-norm is requested for an
            unknown rank.
    """
    x = convert_to_tensor(tensor)
    keep = bool(keepdims if keep_dims is None else keep_dims)
    axes = axis if isinstance(axis, list | tuple) else None
    whole_numbers(axes or [0], "axis")
    if axes is not None and len(axes) not in (1, 2):
        raise InvalidArgumentError("a norm takes one axis or two", expected="an int, or a pair of ints", actual=axis)
    pair = axes is not None and len(axes) == 2
    _check_norm(ord, pair)
    with name_scope(name, "norm", [x]):
        if axes is not None and pair:
            return _matrix_norm(x, ord, (int(axes[0]), int(axes[1])), keep)
        return _vector_norm(x, ord, axis if axes is None else axes[0], keep)


def _check_norm(ord: str | float, pair: bool) -> None:
    named = ("euclidean", "fro") if pair else ("euclidean",)
    if isinstance(ord, str):
        fits = ord in named
    else:
        fits = ord in (1, 2, np.inf) if pair else ord > 0
    if not fits:
        wanted = f"one of {named}, 1, 2 or inf" if pair else "'euclidean' or a positive number"
        raise InvalidArgumentError("unknown norm", expected=wanted, actual=ord)


def _euclidean(x: Tensor, axis: TensorLike | None, keep: bool) -> Tensor:
    # |z|² = z · conj z.
    squares = x * make("Conj", x) if x.dtype.is_complex else x * x
    return make("Sqrt", reduce_by("Sum", squares, axis, keep, None))


def _absolute(x: Tensor) -> Tensor:
    return make("ComplexAbs", x, Tout=x.dtype.real_dtype) if x.dtype.is_complex else make("Abs", x)


def _vector_norm(x: Tensor, ord: Any, axis: TensorLike | None, keep: bool) -> Tensor:
    if ord in ("euclidean", 2):
        return _euclidean(x, axis, keep)
    size = _absolute(x)
    if ord == 1:
        return reduce_by("Sum", size, axis, keep, None)
    if ord == np.inf:
        return reduce_by("Max", size, axis, keep, None)
    # (Σ |x|ᵖ)^(1/p).
    total = reduce_by("Sum", make("Pow", size, constant(ord, dtype=size.dtype)), axis, keep, None)
    return make("Pow", total, constant(1.0 / ord, dtype=size.dtype))


def _matrix_norm(x: Tensor, ord: str | float, axes: tuple[int, int], keep: bool) -> Tensor:
    if isinstance(ord, str):
        return _euclidean(x, axes, keep)
    if ord == 2:
        return _spectral(x, axes, keep)
    # The 1-norm is the greatest sum of a column, the ∞-norm that of a row.
    summed, compared = axes if ord == 1 else axes[::-1]
    # The first reduction keeps its axis, so that the second axis keeps its number.
    inner = reduce_by("Max", reduce_by("Sum", _absolute(x), summed, True, None), compared, True, None)
    return inner if keep else make("Squeeze", inner, squeeze_dims=list(axes))


def _spectral(x: Tensor, axes: tuple[int, int], keep: bool) -> Tensor:
    """Return the greatest singular value."""
    if x.dims is None:
        raise InvalidArgumentError("the spectral norm needs a known rank", expected="a known rank", actual="?")
    rank = len(x.dims)
    last = [a % rank for a in axes]
    order = [*(i for i in range(rank) if i not in last), *last]
    matrices = make("Transpose", x, order) if order != list(range(rank)) else x
    top = reduce_by("Max", _absolute(svd(matrices, compute_uv=False)), -1, False, None)
    # In ascending order, so that each axis gets its own number again.
    for axis in sorted(last) if keep else ():
        top = make("ExpandDims", top, axis)
    return top


def normalize(
    tensor: TensorLike, ord: str | float = "euclidean", axis: int | Sequence[int] | None = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the tensor divided by its norm along `axis`, and that norm with kept dimensions.

    See `norm`.
    """
    x = convert_to_tensor(tensor)
    with name_scope(name, "normalize", [x]):
        size = norm(x, ord, axis, keepdims=True)
        divisor = make("Cast", size, DstT=x.dtype) if size.dtype is not x.dtype else size
        return x / divisor, size

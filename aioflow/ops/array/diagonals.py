"""Diagonals and bands of matrices: Diag, DiagPart, MatrixDiag, MatrixDiagPart, MatrixSetDiag, MatrixBandPart."""

from __future__ import annotations

from typing import Literal, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, is_compatible, merge_dims
from aioflow.graph.traits import opaque
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, make
from aioflow.ops.array.static_shapes import zeros_of

Alignment: TypeAlias = Literal["LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT"]

__all__ = ["diag", "diag_part", "matrix_band_part", "matrix_diag", "matrix_diag_part", "matrix_set_diag"]

_DIAG_TYPES = "T: {floats, int32, int64, complexes}"


def _diag_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.require_rank("diagonal", 1, -1)
    return None if dims is None else dims + dims


def _diag_part_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.dims("input")
    if dims is None:
        return None
    half = len(dims) // 2
    if len(dims) % 2 or not dims:
        raise InvalidArgumentError(
            "the rank must be even and positive", expected="rank 2, 4, …", actual=format_dims(dims)
        )
    return merge_dims(dims[:half], dims[half:])


define_op("Diag", "diagonal: T", "output: T", [_DIAG_TYPES], shape=_diag_shape, rows=rows.mixed, traits=opaque())
define_op("DiagPart", "input: T", "diagonal: T", [_DIAG_TYPES], shape=_diag_part_shape, traits=opaque())


@gradient("Diag")
def _diag_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("DiagPart", grad)


@gradient("DiagPart")
def _diag_part_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("Diag", grad)


def diag(diagonal: TensorLike, name: str | None = None) -> Tensor:
    """Return a tensor of twice the rank with `diagonal` where both halves of the index agree, and zeros elsewhere."""
    return make("Diag", diagonal, name=name)


def diag_part(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the elements where both halves of the index agree. Raise InvalidArgumentError if the halves differ."""
    return make("DiagPart", input, name=name)


def _matrix_diag_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.require_rank("diagonal", 1, -1)
    return None if dims is None else (*dims, dims[-1])


def _shorter(dims: tuple[int | None, ...]) -> int | None:
    rows, columns = dims[-2:]
    if 0 in (rows, columns):
        return 0
    return None if rows is None or columns is None else min(rows, columns)


def _matrix_diag_part_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.require_rank("input", 2, -1)
    return None if dims is None else (*dims[:-2], _shorter(dims))


def _matrix_set_diag_shape(ctx: ShapeContext) -> Dims:
    dims, diagonal = ctx.require_rank("input", 2, -1), ctx.require_rank("diagonal", 1, -1)
    if dims is not None and diagonal is not None and not is_compatible((*dims[:-2], _shorter(dims)), diagonal):
        wanted = format_dims((*dims[:-2], _shorter(dims)))
        raise InvalidArgumentError(
            "the diagonal does not fit the matrix", expected=wanted, actual=format_dims(diagonal)
        )
    if diagonal is None:
        return dims
    return merge_dims(dims, (*diagonal[:-1], None, None))


define_op(
    "MatrixDiag",
    "diagonal: T",
    "output: T",
    ["T: type"],
    shape=_matrix_diag_shape,
    rows=rows.last_axes(1),
    traits=opaque(),
)
define_op(
    "MatrixDiagPart",
    "input: T",
    "diagonal: T",
    ["T: type"],
    shape=_matrix_diag_part_shape,
    rows=rows.last_axes(2),
    traits=opaque(),
)
define_op(
    "MatrixSetDiag", "input: T, diagonal: T", "output: T", ["T: type"], shape=_matrix_set_diag_shape, traits=opaque()
)


@gradient("MatrixDiag")
def _matrix_diag_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("MatrixDiagPart", grad)


@gradient("MatrixDiagPart")
def _matrix_diag_part_grad(op: Operation, grad: Tensor) -> Tensor:
    dims = op.inputs[0].dims
    # MatrixDiag makes only square matrices.
    if dims is not None and dims[-1] is not None and dims[-1] == dims[-2]:
        return make("MatrixDiag", grad)
    return make("MatrixSetDiag", zeros_of(op.inputs[0]), grad)


@gradient("MatrixSetDiag")
def _matrix_set_diag_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    # Elements that were overwritten get no gradient.
    return [make("MatrixSetDiag", grad, zeros_of(op.inputs[1])), make("MatrixDiagPart", grad)]


def _main_diagonal_only(**given: object) -> None:
    wanted = {"k": 0, "num_rows": -1, "num_cols": -1, "padding_value": 0}
    for name, value in given.items():
        if isinstance(value, Tensor) or value != wanted[name]:
            raise InvalidArgumentError(
                "only the main diagonal is supported", expected=f"{name}={wanted[name]}", actual=value
            )


def matrix_diag(
    diagonal: TensorLike,
    name: str = "diag",
    k: int = 0,
    num_rows: int = -1,
    num_cols: int = -1,
    padding_value: TensorLike = 0,
    align: Alignment = "RIGHT_LEFT",
) -> Tensor:
    """Return square matrices [..., n, n] with vectors [..., n] on their main diagonals and zeros elsewhere.

    Raises:
        InvalidArgumentError: a diagonal, size or padding other than the default is requested.
    """
    _main_diagonal_only(k=k, num_rows=num_rows, num_cols=num_cols, padding_value=padding_value)
    return make("MatrixDiag", diagonal, name=name)


def matrix_diag_part(
    input: TensorLike,
    name: str = "diag_part",
    k: int = 0,
    padding_value: TensorLike = 0,
    align: Alignment = "RIGHT_LEFT",
) -> Tensor:
    """Return the main diagonals [..., min(m, n)] of matrices [..., m, n].

    Raises:
        InvalidArgumentError: another diagonal or padding is requested.
    """
    _main_diagonal_only(k=k, padding_value=padding_value)
    return make("MatrixDiagPart", input, name=name)


def matrix_set_diag(
    input: TensorLike,
    diagonal: TensorLike,
    name: str = "set_diag",
    k: int = 0,
    align: Alignment = "RIGHT_LEFT",
) -> Tensor:
    """Return matrices with replaced main diagonals.

    Raises:
        InvalidArgumentError: `diagonal` does not fit, or another diagonal is requested.
    """
    _main_diagonal_only(k=k)
    return make("MatrixSetDiag", input, diagonal, name=name)


def _band_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("num_lower", 0)
    ctx.require_rank("num_upper", 0)
    return ctx.require_rank("input", 2, -1)


define_op(
    "MatrixBandPart",
    "input: T, num_lower: Tindex, num_upper: Tindex",
    "band: T",
    ["T: type", "Tindex: {int32, int64} = int64"],
    shape=_band_shape,
    rows=rows.last_axes(2),
    traits=opaque(),
)


@gradient("MatrixBandPart")
def _band_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("MatrixBandPart", grad, op.inputs[1], op.inputs[2]), None, None]


def matrix_band_part(
    input: TensorLike, num_lower: TensorLike, num_upper: TensorLike, name: str | None = None
) -> Tensor:
    """Return matrices with zeros outside of a band around the main diagonal.

    The band has `num_lower` diagonals below the main one and `num_upper` above it; -1 keeps all.

    Raises:
        InvalidArgumentError: the matrices have fewer diagonals than that.
    """
    return make("MatrixBandPart", input, num_lower, num_upper, name=name)

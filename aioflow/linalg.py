"""The public namespace of linear algebra, with short names: `aioflow.linalg.inv`, `.det`, `.solve`, …."""

from __future__ import annotations

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.array.diagonals import diag as tensor_diag
from aioflow.ops.array.diagonals import diag_part as tensor_diag_part
from aioflow.ops.array.diagonals import matrix_band_part as band_part
from aioflow.ops.array.diagonals import matrix_diag as diag
from aioflow.ops.array.diagonals import matrix_diag_part as diag_part
from aioflow.ops.array.diagonals import matrix_set_diag as set_diag
from aioflow.ops.array.shape import matrix_transpose
from aioflow.ops.linalg.decompositions import (
    adjoint,
    cholesky,
    cholesky_solve,
    logdet,
    qr,
    slogdet,
    svd,
)
from aioflow.ops.linalg.decompositions import matrix_determinant as det
from aioflow.ops.linalg.decompositions import matrix_inverse as inv
from aioflow.ops.linalg.decompositions import matrix_solve as solve
from aioflow.ops.linalg.decompositions import matrix_triangular_solve as triangular_solve
from aioflow.ops.linalg.decompositions import self_adjoint_eig as eigh
from aioflow.ops.linalg.decompositions import self_adjoint_eigvals as eigvalsh
from aioflow.ops.linalg.norms import eye, norm, normalize, trace
from aioflow.ops.linalg.products import cross, einsum, matmul, matvec
from aioflow.ops.linalg.tensordot import tensordot
from aioflow.ops.math.clip import global_norm
from aioflow.ops.nn.normalization import l2_normalize

transpose = matrix_transpose

__all__ = [
    "adjoint",
    "band_part",
    "cholesky",
    "cholesky_solve",
    "cross",
    "det",
    "diag",
    "diag_part",
    "eigh",
    "eigvalsh",
    "einsum",
    "eye",
    "global_norm",
    "inv",
    "l2_normalize",
    "logdet",
    "matmul",
    "matrix_transpose",
    "matvec",
    "norm",
    "normalize",
    "qr",
    "set_diag",
    "slogdet",
    "solve",
    "svd",
    "tensor_diag",
    "tensor_diag_part",
    "tensordot",
    "trace",
    "transpose",
    "triangular_solve",
]

_load_later(__name__)

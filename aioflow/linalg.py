"""The public namespace of linear algebra: `aioflow.linalg.inv`, `.det`, `.solve`, … under their short names."""

from __future__ import annotations

from aioflow.ops.array_diag import diag as tensor_diag
from aioflow.ops.array_diag import diag_part as tensor_diag_part
from aioflow.ops.array_diag import matrix_band_part as band_part
from aioflow.ops.array_diag import matrix_diag as diag
from aioflow.ops.array_diag import matrix_diag_part as diag_part
from aioflow.ops.array_diag import matrix_set_diag as set_diag
from aioflow.ops.array_shape import matrix_transpose
from aioflow.ops.clip import global_norm
from aioflow.ops.linalg_norm import eye, norm, normalize, trace
from aioflow.ops.linalg_ops import (
    adjoint,
    cholesky,
    cholesky_solve,
    logdet,
    qr,
    slogdet,
    svd,
)
from aioflow.ops.linalg_ops import matrix_determinant as det
from aioflow.ops.linalg_ops import matrix_inverse as inv
from aioflow.ops.linalg_ops import matrix_solve as solve
from aioflow.ops.linalg_ops import matrix_triangular_solve as triangular_solve
from aioflow.ops.linalg_ops import self_adjoint_eig as eigh
from aioflow.ops.linalg_ops import self_adjoint_eigvals as eigvalsh
from aioflow.ops.matrix import cross, einsum, matmul, matvec
from aioflow.ops.nn_norm import l2_normalize
from aioflow.ops.tensordot import tensordot

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

"""The array namespace of kernels on the CPU: NumPy's, with the functions that call the BLAS replaced (`products`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from aioflow_numpy import products

# Other functions that call the BLAS, found by calling all of NumPy 2.0 and 2.4 with large operands. Kernels use none.
OTHERS: Final = (
    *("convolve", "corrcoef", "correlate", "cov", "inner", "poly", "polyfit", "roots", "tensordot", "vdot", "vecdot"),
    *("matvec", "vecmat"),  # since NumPy 2.2
)


class NumpyNamespace:
    """`numpy` as an object, whose names are instance attributes, so that a lookup costs as much as in a module."""

    def __init__(self) -> None:
        names = vars(self)
        names.update({name: value for name, value in vars(np).items() if not name.startswith("_")})
        names.update({name: products.in_one_thread(getattr(np, name)) for name in OTHERS if hasattr(np, name)})
        names.update(dot=products.dot, einsum=products.einsum, matmul=products.matmul)
        names["linalg"] = SimpleNamespace(**{name: _guarded(getattr(np.linalg, name)) for name in np.linalg.__all__})

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)  # modules that NumPy imports on first access, such as `fft`


def _guarded(found: Any) -> Any:
    return found if isinstance(found, type) else products.in_one_thread(found)

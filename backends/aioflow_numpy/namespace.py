"""The array namespace that kernels get on the CPU: NumPy's, but what calls the BLAS is that of `products`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from aioflow_numpy import products

__all__ = ["OTHERS", "Namespace"]

# What calls the BLAS besides: found by calling everything in NumPy 2.0 and 2.4 with large operands. No kernel needs it.
OTHERS: Final = (
    *("convolve", "corrcoef", "correlate", "cov", "inner", "poly", "polyfit", "roots", "tensordot", "vdot", "vecdot"),
    *("matvec", "vecmat"),  # since NumPy 2.2
)


class Namespace:
    """`numpy` as an object. Its names are attributes of the object: a lookup costs what it costs in a module."""

    def __init__(self) -> None:
        names = vars(self)
        names.update({name: value for name, value in vars(np).items() if not name.startswith("_")})
        names.update({name: products.in_one_thread(getattr(np, name)) for name in OTHERS if hasattr(np, name)})
        names.update(dot=products.dot, einsum=products.einsum, matmul=products.matmul)
        names["linalg"] = SimpleNamespace(**{name: _guarded(getattr(np.linalg, name)) for name in np.linalg.__all__})

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)  # a module that NumPy imports when it is first asked for, such as `fft`


def _guarded(found: Any) -> Any:
    return found if isinstance(found, type) else products.in_one_thread(found)

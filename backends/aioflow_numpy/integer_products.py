"""Products of 8-bit integers on the CPU, as products of floats: the factors are converted in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aioflow.kernels.fused import integer_product_alone
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, NpDType, Value
from aioflow_numpy.threads import for_each

_BLOCK: Final = 2**19  # elements of a block


@binder("_IntegerMatMul", device="CPU", fresh=True)
@binder("_IntegerBatchMatMulV2", device="CPU", fresh=True)
def integer_product(binding: Binding) -> KernelBody:
    product, dtype = integer_product_alone(binding), binding.attrs["T"].np_dtype

    def body(a: Array, b: Array, zeros: Sequence[Array]) -> Value:
        return product(_converted(a, dtype, zeros), b if b.dtype == dtype else _converted(b, dtype, ()))

    return body


def _converted(array: Array, dtype: NpDType, zeros: Sequence[Array]) -> Array:
    """Return the array in another dtype, less the zero points."""
    if array.size <= _BLOCK:
        small = array.astype(dtype, order="C")
        for zero in zeros:
            small -= zero
        return small
    given, made = np.ascontiguousarray(array).reshape(-1), np.empty(array.shape, dtype)
    flat = made.reshape(-1)

    def convert(start: int) -> None:
        part = slice(start, start + _BLOCK)
        flat[part] = given[part]
        for zero in zeros:
            flat[part] -= zero

    for_each(convert, range(0, given.size, _BLOCK))
    return made

"""Kernels that count values in bins."""

from __future__ import annotations

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import BLOCK, claim_array, is_large
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array


@binder("DenseBincount", host={"size": as_int}, fresh=True, elastic=True, synchronises=True)
def bind_dense_bincount(binding: Binding) -> KernelBody:
    xp, own, binary = binding.xp, binding.output_dtypes[0].np_dtype, binding.attrs["binary_output"]

    def count(values: Array, size: int, weights: Array) -> Array:
        _check(values, size, weights)
        rows = values.shape[0] if values.ndim == 2 else 1
        claim_array((rows, size), own)
        result = xp.zeros(rows * size, dtype=own)
        flat = values.reshape(-1)
        width = max(1, flat.size // max(1, rows))
        for part in blocks(flat.size, BLOCK if is_large(flat) else max(1, flat.size)):
            ids = flat[part]
            kept = ids < size
            # Element n is in row n // width, whose bins begin at row * size.
            places = (xp.arange(part.start, part.stop) // width * size + ids)[kept]
            if binary:
                result[places] = 1
            else:
                xp.add.at(result, places, weights.reshape(-1)[part][kept] if weights.size else own.type(1))
        return result.reshape((rows, size) if values.ndim == 2 else (size,))

    return count


def _check(values: Array, size: int, weights: Array) -> None:
    if size < 0:
        raise InvalidArgumentError("size must be non-negative", expected=">= 0", actual=size)
    if values.ndim > 2:
        raise InvalidArgumentError("values of too high a rank", expected="at most 2", actual=values.ndim)
    if weights.size and weights.shape != values.shape:
        raise InvalidArgumentError(
            "the weights do not have the shape of the values",
            expected=f"{values.shape} or empty",
            actual=weights.shape,
        )
    if values.size and int(values.min()) < 0:
        raise InvalidArgumentError("Input arr must be non-negative!", expected=">= 0", actual=int(values.min()))


@binder("Bucketize", fresh=True)
def bind_bucketize(binding: Binding) -> KernelBody:
    xp = binding.xp
    bounds = np.asarray(binding.attrs["boundaries"], np.float32)
    if (bounds[1:] < bounds[:-1]).any():
        raise InvalidArgumentError("the boundaries are not in order", expected="ascending", actual=bounds.tolist())
    on_device = xp.asarray(bounds)

    def bucketize(values: Array) -> Array:
        compared = values if values.dtype.kind == "f" else values.astype(np.float32)
        return xp.searchsorted(on_device, compared, side="right").astype(np.int32)

    return bucketize

"""Max pooling that also returns the position of each maximum, and its gradient.

The gradient never reads an index on the host, so the host does not wait. Gradients of positions outside of the image
are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aioflow.kernels.nn.windows import Pool, expect_shape
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array, NpDType
from aioflow_cupy.pooling import lowest
from aioflow_cupy.taps import ArrayWindows, picked, pooled


@binder("MaxPoolWithArgmax", device="GPU", fresh=True)
def max_pool_with_argmax(binding: Binding) -> Callable[[Array], tuple[Array, Array]]:
    xp, shared, whole = binding.xp, Pool(binding, ArrayWindows), binding.attrs["include_batch_in_index"]
    dtype = binding.output_dtypes[1].np_dtype

    def body(image: Array) -> tuple[Array, Array]:
        taps, _ = shared.of(image.shape)
        y = pooled(xp, image, taps, xp.maximum, lowest(image.dtype))
        # One image's numbers serve for all images, unless they count through the batch.
        numbered = image.shape if whole else (1, *image.shape[1:])
        places = xp.arange(math.prod(numbered), dtype=np.int64).reshape(numbered)
        return y, picked(xp, image, y, xp.broadcast_to(places, image.shape), taps).astype(dtype, copy=False)

    return body


@binder("MaxPoolGradWithArgmax", device="GPU", fresh=True)
def max_pool_grad_with_argmax(binding: Binding) -> Callable[[Array, Array, Array], Array]:
    xp, whole = binding.xp, binding.attrs["include_batch_in_index"]

    def body(image: Array, grad: Array, argmax: Array) -> Array:
        expect_shape("argmax", argmax.shape, grad.shape)
        limit = math.prod(image.shape if whole else image.shape[1:])
        made = xp.zeros(image.size, _summed(grad.dtype))
        if not grad.size or not image.size:
            return made.reshape(image.shape).astype(grad.dtype, copy=False)
        inside = (argmax >= 0) & (argmax < limit)
        # Element 0 gets the dropped gradients, which are replaced by zeros below.
        places = xp.where(inside, argmax.astype(np.int64, copy=False), 0)
        if not whole:
            expect_shape("grad", grad.shape[:1], image.shape[:1])
            places += xp.arange(len(grad)).reshape(-1, *(1,) * (grad.ndim - 1)) * limit
        flowing = xp.where(inside, grad.astype(made.dtype, copy=False), made.dtype.type(0))
        xp.add.at(made, places.reshape(-1), flowing.reshape(-1))
        return made.reshape(image.shape).astype(grad.dtype, copy=False)

    return body


def _summed(dtype: NpDType) -> NpDType:
    """Return the dtype for sums of `dtype`, one that the GPU adds atomically. Integers wrap around in any case."""
    if dtype.kind in "iu":
        # Addition modulo 2**64 agrees with that of every narrower integer, signed or not, in the bits that are kept.
        return np.dtype(np.uint64)
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype

"""Layer normalization on the CPU, whose elementwise parts run in blocks of rows.

It takes as long as the single nodes. `fuse_layer_norm` makes it only where another package has a faster kernel, which
leaves small arrays to this one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.kernels.fused import layer_norm as whole
from aioflow.kernels.fused import mean_of_rows
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Value
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.threads import for_each

_BLOCK: Final = 2**17  # numbers of a block
_SMALL: Final = 2**15  # numbers: for fewer, the functions over whole arrays take less time


@binder("_LayerNorm", device="CPU", fresh=True)
def layer_norm(binding: Binding) -> KernelBody:
    epsilon, mean, plain = np.float32(binding.attrs["epsilon"]), mean_of_rows(binding), whole(binding)

    def body(x: Array, scale: Array, offset: Array) -> Value:
        if x.size < _SMALL or not x.flags.c_contiguous:
            return plain(x, scale, offset)
        columns, means, made = x.shape[-1], mean(x).reshape(-1, 1), np.empty_like(x)
        squares = scratch("squares", x.shape, x.dtype)
        rows, out, squared = (each.reshape(-1, columns) for each in (x, made, squares))
        step = max(1, _BLOCK // columns)
        starts = range(0, len(rows), step)

        def center(start: int) -> None:
            part = slice(start, start + step)
            np.subtract(rows[part], means[part], out=out[part])
            np.square(out[part], out=squared[part])

        def normalize(start: int) -> None:
            part = slice(start, start + step)
            out[part] *= inverse[part]
            out[part] *= scale
            out[part] += offset

        for_each(center, starts)
        # The sums of all rows are one product with ones, whose bits might differ for a block.
        inverse = np.reciprocal(np.sqrt(mean(squares) + epsilon)).reshape(-1, 1)
        for_each(normalize, starts)
        return made

    return body

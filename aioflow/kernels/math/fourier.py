"""Kernels of Fourier transforms, by the functions of the array library."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.convert import as_sizes
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array

Sizes = tuple[int, ...]


def _axes(op: str) -> Sizes:
    rank = int(op[-2]) if op.endswith("D") else 1
    return tuple(range(-rank, 0))


def _check_rank(x: Array, axes: Sizes) -> None:
    if np.ndim(x) < len(axes):
        raise InvalidArgumentError("the input has too few axes", expected=f"rank >= {len(axes)}", actual=np.shape(x))


def _whole(binding: Binding) -> Callable[[Array], Array]:
    xp, axes, dtype = binding.xp, _axes(binding.op_type), binding.output_dtypes[0].np_dtype
    transform = xp.fft.ifftn if binding.op_type.startswith("I") else xp.fft.fftn

    def body(x: Array) -> Array:
        _check_rank(x, axes)
        if not x.size:
            return xp.zeros(x.shape, dtype)
        return transform(x, axes=axes).astype(dtype, copy=False)

    return body


def _of_reals(binding: Binding) -> Callable[[Array, Sizes], Array]:
    xp, axes, dtype = binding.xp, _axes(binding.op_type), binding.output_dtypes[0].np_dtype
    inverse = binding.op_type.startswith("I")

    def body(x: Array, lengths: Sizes) -> Array:
        _check_rank(x, axes)
        if len(lengths) != len(axes):
            raise InvalidArgumentError("fft_length has a size for each axis", expected=len(axes), actual=list(lengths))
        # The transform of n real numbers has n // 2 + 1 independent values; the others are their conjugates.
        last = lengths[-1] if inverse or not lengths[-1] else lengths[-1] // 2 + 1
        made = (*x.shape[: x.ndim - len(axes)], *lengths[:-1], last)
        claim_array(made, dtype, 100.0)
        if not x.size or 0 in made:
            return xp.zeros(made, dtype)
        transform = xp.fft.irfftn if inverse else xp.fft.rfftn
        return transform(x, s=lengths, axes=axes).astype(dtype, copy=False)

    return body


for _suffix in ("", "2D", "3D"):
    for _name in (f"FFT{_suffix}", f"IFFT{_suffix}"):
        binder(_name, fresh=True)(_whole)
    for _name in (f"RFFT{_suffix}", f"IRFFT{_suffix}"):
        binder(_name, host={"fft_length": as_sizes}, fresh=True, elastic=True)(_of_reals)

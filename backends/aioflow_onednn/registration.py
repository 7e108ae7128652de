"""Registration of oneDNN's kernels above the kernels that they fall back on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from aioflow.kernels.registry import HOST, KERNELS, Binding, Converter, KernelBody, binder

Maker: TypeAlias = Callable[[Binding, KernelBody], KernelBody]

_PRIORITY: Final = 1


def faster(op: str, host: Mapping[str, Converter] | None = None, dtype: str = "float32") -> Callable[[Maker], Maker]:
    """Register a function that makes the body of a node of this dtype, given the body of the kernel below."""

    def register(make: Maker) -> Maker:
        @binder(op, device=HOST, dtypes={"T": dtype}, host=host, fresh=True, priority=_PRIORITY)
        def bind(binding: Binding) -> KernelBody:
            plain = KERNELS.get(op, HOST, binding.attrs, below=_PRIORITY).bind(binding)
            # oneDNN rounds differently from NumPy.
            return plain if binding.reproducible else make(binding, plain)

        return make

    return register

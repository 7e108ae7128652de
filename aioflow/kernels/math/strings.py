"""Addition of strings, which concatenates them."""

from __future__ import annotations

from aioflow.kernels.convert import broadcast_shape
from aioflow.kernels.registry import kernel
from aioflow.kernels.text import as_strings, side_by_side, string_values
from aioflow.memory.values import Array, Value


@kernel("Add", device="CPU", dtypes={"T": ("string",)}, fresh=True)
def add_strings(x: Value, y: Value) -> Array:
    a, b = string_values(x), string_values(y)
    shape = broadcast_shape(a.shape, b.shape)
    rows = side_by_side([a, b], shape)
    return as_strings([first + second for first, second in rows], shape)

"""Addition of strings, which concatenates them."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioflow.kernels.convert import broadcast_shape
from aioflow.kernels.registry import kernel
from aioflow.kernels.text.strings import as_strings, side_by_side, string_values


@kernel("Add", device="CPU", dtypes={"T": ("string",)}, fresh=True)
def add_strings(x: Any, y: Any) -> Any:
    shape = broadcast_shape(np.shape(x), np.shape(y))
    rows = side_by_side([string_values(x), string_values(y)], shape)
    return as_strings([first + second for first, second in rows], shape)

"""Kernels on vectors of handles, for example of the queues among which a step chooses."""

from __future__ import annotations

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import kernel
from aioflow.memory.values import Array, Value


@kernel("Pack", device="CPU", dtypes={"T": ["resource"]}, priority=1)
def pack_handles(values: tuple[Value, ...], *, axis: int) -> Array:
    """Stack handles to an object vector."""
    # np.array(values) would iterate over handles that have a length.
    packed = np.empty(len(values), object)
    packed[:] = values
    return packed


@kernel(
    "GatherV2", device="CPU", dtypes={"Tparams": ["resource"]}, host={"indices": as_int, "axis": as_int}, priority=1
)
def pick_handle(params: Array, indices: int, axis: int) -> Value:
    if not 0 <= indices < len(params):
        raise InvalidArgumentError("there is no such handle", expected=f"0 to {len(params) - 1}", actual=indices)
    return params[indices]

"""What is known about a tensor's value while the graph is being built: enough for shapes, never a kernel call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aioflow.graph.arrays import Array
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import num_elements

__all__ = ["constant_value"]

_LIMIT: Final = 4096  # elements: shapes, axes and permutations are small; larger values are data


def constant_value(tensor: Tensor) -> Array | None:
    """The tensor's value, if it follows from constants and static shapes alone; otherwise None. Do not modify it."""
    rule = _RULES.get(tensor.op.type)
    return None if rule is None else rule(tensor)


def _const(tensor: Tensor) -> Array | None:
    value: Array = tensor.op.attrs["value"]
    return value


def _shape(tensor: Tensor) -> Array | None:
    dims = tensor.op.inputs[0].dims
    if dims is None or None in dims:
        return None
    return np.array(dims, dtype=tensor.dtype.np_dtype)


def _rank(tensor: Tensor) -> Array | None:
    dims = tensor.op.inputs[0].dims
    return None if dims is None else np.array(len(dims), dtype=np.int32)


def _size(tensor: Tensor) -> Array | None:
    count = num_elements(tensor.op.inputs[0].dims)
    return None if count is None else np.array(count, dtype=tensor.dtype.np_dtype)


def _identity(tensor: Tensor) -> Array | None:
    return constant_value(tensor.op.inputs[0])


def _cast(tensor: Tensor) -> Array | None:
    value = constant_value(tensor.op.inputs[0])
    if value is None or value.dtype.kind == "O":
        return None
    return value.astype(tensor.dtype.np_dtype)


def _pack(tensor: Tensor) -> Array | None:
    parts = _all_known(tensor.op.inputs)
    return None if parts is None else np.stack(parts, axis=tensor.op.attrs["axis"])


def _concat(tensor: Tensor) -> Array | None:
    parts = _all_known(tensor.op.inputs)
    return None if parts is None else np.concatenate(parts[:-1], axis=int(parts[-1]))


def _strided_slice(tensor: Tensor) -> Array | None:
    op = tensor.op
    source = op.inputs[0]
    bounds = _all_known(op.inputs[1:])
    if bounds is None or len(bounds[0]) != 1 or any(op.attrs[m] for m in ("ellipsis_mask", "new_axis_mask")):
        return None
    begin, end, stride = (int(b[0]) for b in bounds)
    shrink = bool(op.attrs["shrink_axis_mask"])
    if shrink and source.op.type == "Shape":  # one size may be known although the whole shape is not
        dims = source.op.inputs[0].dims
        size = dims[begin] if dims is not None and -len(dims) <= begin < len(dims) else None
        return None if size is None else np.array(size, dtype=tensor.dtype.np_dtype)
    value = constant_value(source)
    if value is None or value.ndim != 1:
        return None
    if shrink:
        return np.asarray(value[begin]) if -len(value) <= begin < len(value) else None
    first = None if op.attrs["begin_mask"] & 1 else begin
    last = None if op.attrs["end_mask"] & 1 else end
    return value[first:last:stride]


def _range(tensor: Tensor) -> Array | None:
    parts = _all_known(tensor.op.inputs)
    if parts is None or int(parts[2]) == 0:
        return None
    value = np.arange(*(p.item() for p in parts), dtype=tensor.dtype.np_dtype)
    return value if value.size <= _LIMIT else None


def _prod(tensor: Tensor) -> Array | None:
    parts = _all_known(tensor.op.inputs)
    if parts is None or parts[0].ndim != 1:
        return None
    return np.asarray(np.prod(parts[0], dtype=tensor.dtype.np_dtype, keepdims=tensor.op.attrs["keep_dims"]))


def _arithmetic(ufunc: Callable[[Array, Array], Array]) -> Callable[[Tensor], Array | None]:
    def rule(tensor: Tensor) -> Array | None:
        if not tensor.dtype.is_integer:
            return None
        parts = _all_known(tensor.op.inputs)
        return None if parts is None else np.asarray(ufunc(parts[0], parts[1]))

    return rule


def _all_known(tensors: tuple[Tensor, ...]) -> list[Array] | None:
    found: list[Array] = []
    for tensor in tensors:
        value = constant_value(tensor)
        if value is None or value.size > _LIMIT:
            return None
        found.append(value)
    return found


_RULES: Final[dict[str, Callable[[Tensor], Array | None]]] = {
    "Const": _const,
    "Shape": _shape,
    "Rank": _rank,
    "Size": _size,
    "Identity": _identity,
    "StopGradient": _identity,
    "Cast": _cast,
    "Pack": _pack,
    "ConcatV2": _concat,
    "StridedSlice": _strided_slice,
    "Range": _range,
    "Prod": _prod,
    "AddV2": _arithmetic(np.add),
    "Sub": _arithmetic(np.subtract),
    "Mul": _arithmetic(np.multiply),
    "Maximum": _arithmetic(np.maximum),
}

"""What is known about a tensor's value while the graph is being built: enough for shapes, never a kernel call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from aioflow.graph.arrays import Array
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import num_elements

__all__ = ["constant_value"]

_LIMIT: Final = 4096  # elements: shapes, axes and permutations are small; larger values are data
_DEPTH: Final = 100  # nodes between a value and the constants it follows from; each takes a few Python frames


def constant_value(tensor: Tensor) -> Array | None:
    """The tensor's value, if it follows from constants and static shapes alone; otherwise None. Do not modify it."""
    if tensor.op.type == "Const":  # nearly always: no search is needed
        return _const(tensor, _Known())
    return _Known().value(tensor)


class _Known:
    """One search: the values found so far, since a node that is read many times must be worked out once."""

    __slots__ = ("_depth", "_found")

    def __init__(self) -> None:
        self._found: dict[Tensor, Array | None] = {}
        self._depth = 0

    def value(self, tensor: Tensor) -> Array | None:
        rule = _RULES.get(tensor.op.type)
        if rule is None or self._depth >= _DEPTH:
            return None
        if tensor not in self._found:
            self._depth += 1
            self._found[tensor] = rule(tensor, self)
            self._depth -= 1
        return self._found[tensor]

    def all(self, tensors: Sequence[Tensor]) -> list[Array] | None:
        """The values of all of them, if they are known and small."""
        found: list[Array] = []
        for tensor in tensors:
            value = self.value(tensor)
            if value is None or value.size > _LIMIT:
                return None
            found.append(value)
        return found


Rule: TypeAlias = Callable[[Tensor, _Known], "Array | None"]


def _const(tensor: Tensor, known: _Known) -> Array | None:
    value: Array = tensor.op.attrs["value"]
    return value


def _shape(tensor: Tensor, known: _Known) -> Array | None:
    dims = tensor.op.inputs[0].dims
    if dims is None or None in dims:
        return None
    return np.array(dims, dtype=tensor.dtype.np_dtype)


def _rank(tensor: Tensor, known: _Known) -> Array | None:
    dims = tensor.op.inputs[0].dims
    return None if dims is None else np.array(len(dims), dtype=np.int32)


def _size(tensor: Tensor, known: _Known) -> Array | None:
    count = num_elements(tensor.op.inputs[0].dims)
    return None if count is None else np.array(count, dtype=tensor.dtype.np_dtype)


def _identity(tensor: Tensor, known: _Known) -> Array | None:
    return known.value(tensor.op.inputs[0])


def _cast(tensor: Tensor, known: _Known) -> Array | None:
    value = known.value(tensor.op.inputs[0])
    if value is None or value.dtype.kind == "O":
        return None
    with np.errstate(all="ignore"):
        return value.astype(tensor.dtype.np_dtype)


def _pack(tensor: Tensor, known: _Known) -> Array | None:
    parts = known.all(tensor.op.inputs)
    return None if parts is None else np.stack(parts, axis=tensor.op.attrs["axis"])


def _concat(tensor: Tensor, known: _Known) -> Array | None:
    parts = known.all(tensor.op.inputs)
    return None if parts is None else np.concatenate(parts[:-1], axis=int(parts[-1]))


def _strided_slice(tensor: Tensor, known: _Known) -> Array | None:
    op = tensor.op
    source = op.inputs[0]
    bounds = known.all(op.inputs[1:])
    if bounds is None or len(bounds[0]) != 1 or any(op.attrs[m] for m in ("ellipsis_mask", "new_axis_mask")):
        return None
    begin, end, stride = (int(b[0]) for b in bounds)
    shrink = bool(op.attrs["shrink_axis_mask"])
    if shrink and source.op.type == "Shape":  # one size may be known although the whole shape is not
        dims = source.op.inputs[0].dims
        size = dims[begin] if dims is not None and -len(dims) <= begin < len(dims) else None
        return None if size is None else np.array(size, dtype=tensor.dtype.np_dtype)
    value = known.value(source)
    if value is None or value.ndim != 1:
        return None
    if shrink:
        return np.asarray(value[begin]) if -len(value) <= begin < len(value) else None
    first = None if op.attrs["begin_mask"] & 1 else begin
    last = None if op.attrs["end_mask"] & 1 else end
    return value[first:last:stride]


def _range(tensor: Tensor, known: _Known) -> Array | None:
    parts = known.all(tensor.op.inputs)
    if parts is None:
        return None
    start, limit, delta = (p.item() for p in parts)
    if not delta or not math.isfinite(limit - start) or (limit - start) / delta > _LIMIT:
        return None
    return np.arange(start, limit, delta, dtype=tensor.dtype.np_dtype)


def _prod(tensor: Tensor, known: _Known) -> Array | None:
    parts = known.all(tensor.op.inputs)
    if parts is None or parts[0].ndim != 1:
        return None
    return np.asarray(np.prod(parts[0], dtype=tensor.dtype.np_dtype, keepdims=tensor.op.attrs["keep_dims"]))


def _arithmetic(ufunc: Callable[[Array, Array], Array]) -> Rule:
    def rule(tensor: Tensor, known: _Known) -> Array | None:
        if not tensor.dtype.is_integer:
            return None
        parts = known.all(tensor.op.inputs)
        return None if parts is None else np.asarray(ufunc(parts[0], parts[1]))

    return rule


_RULES: Final[dict[str, Rule]] = {
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

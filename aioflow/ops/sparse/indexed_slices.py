"""Sparse gradients as values: conversion of `IndexedSlices` to tensors, and sums of sparse and dense gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.scoping import name_scope

__all__ = ["sparse_mask"]

Gradient: TypeAlias = Tensor | IndexedSlices


def convert_to_tensor_or_indexed_slices(
    value: TensorLike, dtype: DTypeLike | None = None, name: str | None = None
) -> Gradient:
    """Return `IndexedSlices` unchanged, and any other value as a tensor.

    Raises:
        DTypeError: the value's dtype differs from `dtype`.
    """
    if isinstance(value, IndexedSlices):
        _check_dtype(value, None if dtype is None else as_dtype(dtype))
        return value
    return convert_to_tensor(value, dtype, name=name)


def convert_n_to_tensor_or_indexed_slices(values: Iterable[TensorLike | None]) -> list[Gradient | None]:
    """Apply `convert_to_tensor_or_indexed_slices` to each value; None stays None."""
    return [None if value is None else convert_to_tensor_or_indexed_slices(value) for value in values]


def _dense_sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum, computed per device first, so that only one tensor per device is transferred."""
    # Do not colocate the sum of parts without requested devices: colocated nodes are not fused.
    if not any(part.device or "_class" in part.op.attrs for part in parts):
        return make("AddN", parts, name="AddN")
    on_device: dict[str, list[Tensor]] = {}
    for part in parts:
        on_device.setdefault(part.device, []).append(part)
    sums = []
    for device in sorted(on_device):
        first, *others = on_device[device]
        with first.graph.colocate_with(first.op, ignore_existing=True):
            sums.append(make("AddN", [first, *others], name="AddN") if others else first)
    return make("AddN", sums, name="AddN") if len(sums) > 1 else sums[0]


def sum_gradients(parts: Sequence[Gradient]) -> Gradient:
    """Return the sum of the gradients from several consumers.

    Slices are concatenated; slices mixed with tensors become one dense tensor.
    """
    if len(parts) == 1:
        return parts[0]
    slices = [p for p in parts if isinstance(p, IndexedSlices)]
    if len(slices) < len(parts):
        return _dense_sum([convert_to_tensor(p) for p in parts])
    # ConcatV2 needs one dtype, and int32 indices fit into int64.
    widest = "int64" if any(s.indices.dtype.name == "int64" for s in slices) else "int32"
    indices = [s.indices if s.indices.dtype.name == widest else make("Cast", s.indices, DstT=widest) for s in slices]
    return IndexedSlices(
        make("ConcatV2", [s.values for s in slices], 0),
        make("ConcatV2", indices, 0),
        # All are gradients of one tensor, so they have one dense shape.
        slices[0].dense_shape,
    )


def sparse_mask(a: IndexedSlices, mask_indices: TensorLike, name: str | None = None) -> IndexedSlices:
    """Return the slices of `a` whose indices are not among `mask_indices`."""
    with name_scope(name, "sparse_mask"):
        masked = convert_to_tensor(mask_indices, a.indices.dtype)
        kept, rows = make_list("ListDiff", a.indices, masked, out_idx="int32")
        return IndexedSlices(make("GatherV2", a.values, rows, 0), kept, a.dense_shape)


def to_dense(value: IndexedSlices, dtype: DType | None = None, name: str | None = None, as_ref: bool = False) -> Tensor:
    """Return the dense tensor of the slices: rows with the same index are summed, missing rows are zero."""
    _check_dtype(value, dtype)
    if value.dense_shape is None:
        raise InvalidArgumentError(
            "IndexedSlices without a dense shape cannot become a tensor", expected="dense_shape", actual=repr(value)
        ).at(value.op.name, value.op.type, value.op.source)
    known = constant_value(value.dense_shape)
    rows = value.dense_shape[0] if known is None else known.reshape(-1)[0]
    dense = make("UnsortedSegmentSum", value.values, value.indices, rows, name=name or "UnsortedSegmentSum")
    if known is not None:
        dense.set_shape([int(size) for size in known.reshape(-1)])
    return dense


def _check_dtype(value: IndexedSlices, dtype: DType | None) -> None:
    if dtype is not None and value.dtype is not dtype:
        raise DTypeError("the slices have the wrong dtype", expected=dtype.name, actual=repr(value)).at(
            value.op.name, value.op.type, value.op.source
        )

"""Sequences and optionals."""

from __future__ import annotations

import numpy as np
from onnx import TypeProto

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sequences import (
    Optional,
    Sequence,
    TensorKind,
    ValueKind,
    kind_of,
    kind_of_type,
    stored,
    stored_dtype,
    widened,
)
from aioflow.interop.onnx.sizes import axis_of, count_of, int64, integers, rank_of, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, OnnxValue, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make
from aioflow.ops.array.tensor_list import joined, push


def _common(node: OnnxNode, one: ValueKind, other: ValueKind) -> ValueKind:
    found = widened(one, other)
    if found is None:
        raise node.wrong("the elements", f"all of one type, {one}", other)
    return found


@translation("SequenceEmpty")
def sequence_empty(node: OnnxNode) -> Sequence:
    return Sequence(TensorKind(node.dtype("dtype", dtypes.float32), None), items=())


@translation("SequenceConstruct")
def sequence_construct(node: OnnxNode, *tensors: Tensor) -> Sequence:
    kind = kind_of(tensors[0])
    for tensor in tensors[1:]:
        kind = _common(node, kind, kind_of(tensor))
    return Sequence(kind, items=tensors)


def _position(node: OnnxNode, position: Tensor, length: int) -> int | None:
    """Return a position counted from the front, or None if it is not known."""
    known = integers(node, position, "positions") if node.constant(position) is not None else None
    if known is None:
        return None
    [at] = known
    # Insertion may also be at the end, at `length`; other ops notice that themselves.
    if not -length <= at <= length:
        raise node.wrong("the position", f"one in [{-length}, {length}]", at)
    return at + length if at < 0 else at


def _from_front(sequence: Sequence, position: Tensor) -> Tensor:
    at = count_of(position)
    return ops.where_v2(at < 0, at + make("TensorListLength", sequence.handle), at)


@translation("SequenceInsert")
def sequence_insert(node: OnnxNode, sequence: Sequence, item: OnnxValue, position: Tensor | None = None) -> Sequence:
    kind = _common(node, sequence.element, kind_of(item))
    if sequence.items is not None:
        at = len(sequence.items) if position is None else _position(node, position, len(sequence.items))
        if at is not None:
            return Sequence(kind, items=[*sequence.items[:at], item, *sequence.items[at:]])
    if position is None:
        return Sequence(kind, push(sequence.handle, stored(item)))
    return Sequence(kind, make("_TensorListInsert", sequence.handle, _from_front(sequence, position), stored(item)))


@translation("SequenceErase")
def sequence_erase(node: OnnxNode, sequence: Sequence, position: Tensor | None = None) -> Sequence:
    place = constant(-1) if position is None else position
    if sequence.items is not None:
        at = _position(node, place, len(sequence.items))
        if at is not None and at < len(sequence.items):
            return Sequence(sequence.element, items=[*sequence.items[:at], *sequence.items[at + 1 :]])
    dtype = stored_dtype(sequence.element)
    at_run = _from_front(sequence, place)
    return Sequence(sequence.element, make("_TensorListErase", sequence.handle, at_run, element_dtype=dtype))


@translation("SequenceAt")
def sequence_at(node: OnnxNode, sequence: Sequence, position: Tensor) -> OnnxValue:
    at = None if sequence.items is None else _position(node, position, len(sequence.items))
    return sequence.at(_from_front(sequence, position) if at is None else at)


@translation("SequenceLength")
def sequence_length(node: OnnxNode, sequence: Sequence) -> Tensor:
    if sequence.items is not None:
        return int64(len(sequence.items))
    return int64(make("TensorListLength", sequence.handle))


@translation("SplitToSequence")
def split_to_sequence(node: OnnxNode, x: Tensor, split: Tensor | None = None) -> Sequence:
    axis = axis_of(node, x, node.attr("axis", 0))
    kind = TensorKind(
        x.dtype, None if x.dims is None else tuple(None if i == axis else d for i, d in enumerate(x.dims))
    )
    whole = (x.dims or ())[axis]
    known = None if split is None else node.constant(split)
    if whole is None or (split is not None and known is None):
        return _split_by_the_step(node, x, split, axis, kind)
    if known is None or not known.shape:
        each = 1 if known is None else int(known)
        # The last part is smaller if the size is no multiple.
        sizes = [each] * (whole // each) + ([whole % each] if whole % each else [])
    else:
        sizes = [int(size) for size in known]
    parts = ops.split(x, int64(sizes), axis) if len(sizes) > 1 else [x] * len(sizes)
    if split is None and not node.attr("keepdims", 1):
        parts = [ops.squeeze(part, [axis]) for part in parts]
        kind = TensorKind(x.dtype, tuple(d for i, d in enumerate(kind.dims or ()) if i != axis))
    return Sequence(kind, items=parts)


def _split_by_the_step(node: OnnxNode, x: Tensor, split: Tensor | None, axis: int, kind: TensorKind) -> Sequence:
    """Return the parts if their number is known only in the step."""
    size = int64(sizes_of(x)[axis])
    each = int64(1) if split is None else int64(split)
    ends = each
    if split is None or split.dims == ():
        # ⌈size / each⌉.
        count = ops.floordiv(size + each - 1, each)
        ends = ops.minimum(ops.range(int64(1), count + 1, int64(1)) * each, size)
    elif split.dims is not None:
        ends = ops.cumsum(each)
    else:
        return node.refuse("sizes of unknown rank")
    begins = ops.concat([int64([0]), ends[:-1]], 0)
    squeezed = split is None and not node.attr("keepdims", 1)

    def body(i: Tensor, parts: Tensor) -> list[Tensor]:
        places = ops.range(begins[i], ends[i], int64(1))
        part = ops.gather(x, places, axis=axis)
        return [i + 1, push(parts, ops.squeeze(part, [axis]) if squeezed else part)]

    start = Sequence(kind, items=()).handle
    _, parts = ops.while_loop(lambda i, _: i < ops.size(ends), body, [constant(0), start])
    if squeezed:
        kind = TensorKind(x.dtype, tuple(d for i, d in enumerate(kind.dims or ()) if i != axis))
    return Sequence(kind, parts)


@translation("ConcatFromSequence")
def concat_from_sequence(node: OnnxNode, sequence: Sequence) -> Tensor:
    axis, new = node.required("axis"), bool(node.attr("new_axis", 0))
    items = sequence.items
    if items:
        if new:
            return ops.stack(items, axis=axis_of(node, items[0], axis, extra=1))
        return items[0] if len(items) == 1 else ops.concat(items, axis_of(node, items[0], axis))
    kind = sequence.element
    if not isinstance(kind, TensorKind):
        raise node.wrong("the elements", "tensors", kind)
    if new:
        return _stacked(node, sequence.handle, kind, axis)
    if axis == 0:
        return joined(sequence.handle, kind.dtype, kind.dims)
    return _joined_along(node, sequence, axis)


def _stacked(node: OnnxNode, handle: Tensor, kind: TensorKind, axis: int) -> Tensor:
    rows = stacked(handle, kind)
    if not axis:
        return rows
    rank = rank_of(node, rows)
    axis %= rank
    return ops.transpose(rows, [*range(1, axis + 1), 0, *range(axis + 1, rank)])


def stacked(handle: Tensor, kind: TensorKind) -> Tensor:
    """Return the elements of a list stacked along a new first axis. For an empty list, unknown sizes become 0."""
    rows = make("TensorListStack", handle, _least_shape(handle, kind), element_dtype=kind.dtype)
    rows.set_shape(None if kind.dims is None else (None, *kind.dims))
    return rows


def _least_shape(handle: Tensor, kind: TensorKind) -> Tensor:
    """Return the shape of an element, with unknown sizes as -1, or as 0 if the list is empty."""
    if kind.dims is None:
        return constant(-1)
    if None not in kind.dims:
        return constant(np.array(kind.dims, np.int32))
    # This is computed in the step, so that shape inference does not take the 0 for a known size.
    unknown = ops.negative(ops.minimum(make("TensorListLength", handle), constant(1)))
    return ops.stack([unknown if size is None else constant(size) for size in kind.dims])


def _joined_along(node: OnnxNode, sequence: Sequence, axis: int) -> Tensor:
    first = sequence.at(0)
    place = axis_of(node, first, axis)
    dims = tuple(None if i == place else d for i, d in enumerate(first.dims))

    def body(i: Tensor, made: Tensor) -> list[Tensor]:
        return [i + 1, ops.concat([made, sequence.at(i)], place)]

    count = make("TensorListLength", sequence.handle)
    found: list[Tensor] = ops.while_loop(
        lambda i, _: i < count, body, [constant(1), first], shape_invariants=[(), dims]
    )
    return found[1]


@translation("Optional")
def optional(node: OnnxNode, value: OnnxValue | None = None) -> Optional:
    if value is not None:
        return Optional(kind_of(value), items=[value])
    proto = node.attr("type")
    kind = kind_of_type(proto) if isinstance(proto, TypeProto) else None
    return node.refuse("an optional of unknown type") if kind is None else Optional(kind, items=[])


@translation("OptionalHasElement")
def optional_has_element(node: OnnxNode, value: OnnxValue | None = None) -> Tensor:
    if not isinstance(value, Optional):
        return constant(value is not None)
    if value.items is not None:
        return constant(bool(value.items))
    return ops.equal(make("TensorListLength", value.handle), 1)


@translation("OptionalGetElement")
def optional_get_element(node: OnnxNode, value: OnnxValue) -> OnnxValue:
    return value.at(0) if isinstance(value, Optional) else value

"""The semantics of strided slices, as plain data: begin, end, strides and masks to an index tuple and static sizes.

The shape function and the kernels of StridedSlice share this module, so they cannot disagree. Python's own slices clamp
and wrap bounds exactly as the op requires. So an index item is a Python object: a `slice`, an int (removes the
dimension), None (a new dimension of size one) or Ellipsis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, Final, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import Dims, format_dims

IndexItem: TypeAlias = slice | int | EllipsisType | None

MASKS: Final = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
MASK_ATTRS: Final = [f"{mask}: int = 0" for mask in MASKS]


def strided_index(
    begin: Sequence[int], end: Sequence[int], strides: Sequence[int], masks: Mapping[str, Any]
) -> tuple[IndexItem, ...]:
    """Return the index tuple, one item for each element of `begin`.

    Args:
        begin: The `begin` operand.
        end: The `end` operand.
        strides: The `strides` operand.
        masks: The op's attributes `begin_mask`, `end_mask`, `ellipsis_mask`, `new_axis_mask` and `shrink_axis_mask`.

    Raises:
        InvalidArgumentError: the lengths differ, a stride is zero (or negative for a single index), or there are two
            ellipses.
    """
    if not len(begin) == len(end) == len(strides):
        raise InvalidArgumentError(
            "begin, end and strides of a strided slice differ in length",
            expected=f"{len(begin)} elements each",
            actual=f"{len(begin)}, {len(end)} and {len(strides)}",
        )
    if bin(masks["ellipsis_mask"]).count("1") > 1:
        raise InvalidArgumentError(
            "a strided slice has several ellipses", expected="one at most", actual=bin(masks["ellipsis_mask"])
        )
    # Bit i of each mask belongs to item i.
    return tuple(_item(1 << i, b, e, s, masks) for i, (b, e, s) in enumerate(zip(begin, end, strides, strict=True)))


def _item(bit: int, begin: int, end: int, stride: int, masks: Mapping[str, Any]) -> IndexItem:
    # The precedence of the masks is TensorFlow's: ellipsis, new axis, shrink, then begin and end.
    if masks["ellipsis_mask"] & bit:
        return Ellipsis
    if masks["new_axis_mask"] & bit:
        return None
    if stride == 0 or (masks["shrink_axis_mask"] & bit and stride < 0):
        wanted = "a positive stride for a single index" if stride else "a stride other than 0"
        raise InvalidArgumentError("a strided slice has an impossible stride", expected=wanted, actual=stride)
    if masks["shrink_axis_mask"] & bit:
        return begin
    return slice(None if masks["begin_mask"] & bit else begin, None if masks["end_mask"] & bit else end, stride)


def strided_dims(
    dims: Dims,
    begin: Sequence[int] | None,
    end: Sequence[int] | None,
    strides: Sequence[int] | None,
    masks: Mapping[str, Any],
) -> Dims:
    """Return the static shape of a strided slice of a tensor of shape `dims`. Unknown bounds are None.

    Raises:
        InvalidArgumentError: an index is out of bounds, there are more items than dimensions, or `strided_index`
            rejects the bounds.
    """
    # The number of items is the length of `strides`, so without them not even the rank is known.
    if dims is None or strides is None:
        return None
    known = begin is not None and end is not None
    # Zeros stand for unknown bounds, so that the masks can be applied; `known` keeps their values out of the result.
    anywhere = [0] * len(strides)
    items = strided_index(
        begin if begin is not None else anywhere, end if end is not None else anywhere, strides, masks
    )
    result: list[int | None] = []
    position = 0
    for item in spelled_out(items, len(dims), dims):
        if item is None:
            result.append(1)
            continue
        size = dims[position]
        if isinstance(item, slice):
            result.append(_length(item, size, known))
        elif known and size is not None and not -size <= item < size:
            raise InvalidArgumentError(
                f"slice index {item} of dimension {position} is out of bounds",
                expected=f"an index in [{-size}, {size})",
                actual=item,
            )
        position += 1
    return tuple(result)


def _length(item: slice, size: int | None, known: bool) -> int | None:
    if size is None or not (known or (item.start is None and item.stop is None)):
        return None
    # `slice.indices` clamps the bounds as Python does, and `range` counts the elements for either sign of the stride.
    return len(range(*item.indices(size)))


def spelled_out(items: Sequence[IndexItem], rank: int, dims: Dims) -> list[slice | int | None]:
    """Return the items with the ellipsis replaced by full slices. Without one, an ellipsis at the end is implied.

    Raises:
        InvalidArgumentError: there are more items than dimensions; the error shows `dims`.
    """
    # New axes take no dimension of the input.
    missing = rank - sum(item is not None and item is not Ellipsis for item in items)
    if missing < 0:
        raise InvalidArgumentError(
            "a strided slice has more items than its input has dimensions",
            expected=f"at most {rank} items",
            actual=format_dims(dims),
        )
    result: list[slice | int | None] = []
    # As in NumPy, the dimensions after the last item are kept whole.
    for item in items if any(item is Ellipsis for item in items) else (*items, Ellipsis):
        if isinstance(item, EllipsisType):
            result.extend([slice(None)] * missing)
        else:
            result.append(item)
    return result

"""Tensors that are saved in parts, and parts of tensors that are restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aioflow.errors import InvalidArgumentError
from aioflow.formats.tensor_slice import TensorSlice, check_cover, parse_slice
from aioflow.kernels.blockwise import claim_array
from aioflow.memory.copying import copied, copy_into
from aioflow.memory.values import Array, NpDType


class JoinedRows:
    """Consecutive parts along the first axis as one array, read a few rows at a time.

    The parts are joined only when they are read. A part is an array, or an object with the same methods as this class.

    Args:
        shape: Shape of the whole.
        dtype: Dtype of the whole.
        parts: The parts in order; their rows add up to the shape.
    """

    def __init__(self, shape: tuple[int, ...], dtype: NpDType, parts: Sequence[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        begins = np.cumsum([0, *(part.shape[0] for part in parts)]).tolist()
        self._parts = list(zip(begins, parts, strict=False))

    def rows(self, start: int, stop: int) -> Array:
        """Return the rows from `start` to `stop` as one contiguous array. Do not modify it."""
        found = []
        for begin, part in self._parts:
            first, last = max(start - begin, 0), min(stop - begin, part.shape[0])
            if first < last:
                # A snapshot puts saved rows back only into the part that is read.
                found.append(part.rows(first, last) if hasattr(part, "rows") else part[first:last])
        # Rows of a single part are copied only if they have gaps.
        joined: Array = np.ascontiguousarray(found[0]) if len(found) == 1 else np.concatenate(found)
        return joined

    def release(self, stop: int) -> None:
        """Free the rows before `stop`, which are not read again."""
        for begin, part in self._parts:
            if stop > begin and hasattr(part, "release"):
                part.release(min(stop - begin, part.shape[0]))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        claim_array(self.shape, self.dtype)
        whole = np.empty(self.shape, self.dtype)
        for begin, part in self._parts:
            copy_into(whole[begin : begin + part.shape[0]], np.asarray(part))
        return whole if dtype is None else whole.astype(dtype, copy=False)


def whole_tensors(
    names: Sequence[str], shape_and_slices: Sequence[str], tensors: Sequence[Any]
) -> dict[str, Array | JoinedRows]:
    """Return the tensors by name, each assembled from its parts.

    Raises:
        InvalidArgumentError: a name occurs twice, or slices overlap, leave a gap, or do not fit their tensors.
    """
    groups: dict[str, list[tuple[TensorSlice | None, Array]]] = {}
    for name, text, tensor in zip(names, shape_and_slices, tensors, strict=True):
        groups.setdefault(name, []).append((parse_slice(text), tensor))
    return {name: _whole(name, given) for name, given in groups.items()}


def _whole(name: str, given: Sequence[tuple[TensorSlice | None, Array]]) -> Array | JoinedRows:
    if len(given) == 1 and given[0][0] is None:
        return given[0][1]
    parts = [(part, tensor) for part, tensor in given if part is not None]
    if len(parts) < len(given):
        raise InvalidArgumentError(
            "a tensor name occurs twice", expected="distinct names, or slices of one tensor", actual=name
        )
    parts.sort(key=lambda pair: pair[0].offset)
    check_cover(name, [part for part, _ in parts])
    full, dtype = parts[0][0].full_shape, parts[0][1].dtype
    for part, tensor in parts:
        if tuple(tensor.shape) != part.shape or tensor.dtype != dtype:
            raise InvalidArgumentError(
                f"a slice of {name} does not fit",
                expected=f"{dtype}{part.shape}",
                actual=f"{tensor.dtype}{tuple(tensor.shape)}",
            )
    # Parts of whole rows can be written one after another, without an array of the whole.
    if all(part.shape[1:] == full[1:] for part, _ in parts) and not dtype.hasobject:
        return JoinedRows(full, dtype, [tensor for _, tensor in parts])
    claim_array(full, dtype)
    whole = np.empty(full, dtype)
    for part, tensor in parts:
        copy_into(whole[part.index], np.asarray(tensor))
    return whole


def part_of(whole: Array, part: TensorSlice | None) -> Array:
    """Return a copy of a part of a tensor, or the tensor itself if the part is all of it."""
    if part is None or part.shape == whole.shape:
        return whole
    own: Array = copied(whole[part.index])
    return own

"""Kernels that join, split and repeat. Splitting returns views; joining and repeating create new arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.shapes import check_axis
from aioflow.kernels.blockwise import claim_array, is_large
from aioflow.kernels.convert import as_int, as_ints, as_sizes
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.copying import copied, copy_into, put
from aioflow.memory.values import Array, Namespace

_Cuts: TypeAlias = tuple[tuple[slice, ...], ...]

# The most parts of a split whose slices are cached: a loop splits in the same way in each iteration.
_FEW: Final = 64


def _joined(xp: Namespace, values: Sequence[Array], axis: int) -> Array:
    try:
        if any(map(is_large, values)):
            return _joined_in_blocks(values, axis)
        return xp.concatenate(values, axis)
    except ValueError as error:
        # NumPy compares the shapes anyway, so they are described only after it has refused them.
        shapes = " and ".join(str(list(v.shape)) for v in values)
        raise InvalidArgumentError(
            f"cannot concatenate the tensors along axis {axis}",
            expected="equal shapes except along that axis",
            actual=shapes,
        ) from error


def _joined_in_blocks(values: Sequence[Array], axis: int) -> Array:
    shape = list(values[0].shape)
    position = axis % max(1, len(shape))
    others = {(*value.shape[:position], *value.shape[position + 1 :]) for value in values}
    if len(others) > 1 or any(value.ndim != len(shape) for value in values) or not -len(shape) <= axis < len(shape):
        return np.concatenate(values, axis)  # raises the error
    shape[position] = sum(value.shape[position] for value in values)
    result = np.empty(shape, values[0].dtype)
    start = 0
    for value in values:
        size = value.shape[position]
        copy_into(result[_part(position, start, start + size)], value)
        start += size
    return result


@kernel("ConcatV2", host={"axis": as_int}, fresh=True)
def concat_v2(xp: Namespace, values: Sequence[Array], axis: int) -> Array:
    return _joined(xp, values, axis)


@kernel("Concat", host={"concat_dim": as_int}, fresh=True)
def concat(xp: Namespace, concat_dim: int, values: Sequence[Array]) -> Array:
    return _joined(xp, values, concat_dim)


def _part(position: int, start: int, stop: int) -> tuple[slice, ...]:
    return (slice(None),) * position + (slice(start, stop),)


@lru_cache(maxsize=1024)
def _even_cuts(position: int, whole: int, count: int) -> _Cuts:
    size, rest = divmod(whole, count)
    if rest:
        raise InvalidArgumentError(
            "the size is not a multiple of the number of parts", expected=f"a multiple of {count}", actual=whole
        )
    return _cuts(position, (size,) * count)


@lru_cache(maxsize=1024)
def _given_cuts(position: int, whole: int, count: int, sizes: tuple[int, ...]) -> _Cuts:
    return _cuts(position, _resolved(sizes, whole, count))


def _cuts(position: int, sizes: tuple[int, ...]) -> _Cuts:
    return tuple(_part(position, end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True))


@binder("Split", host={"split_dim": as_int})
def split(binding: Binding) -> KernelBody:
    count = binding.attrs["num_split"]
    # A long split bypasses the cache, which would hold up to 1024 tuples of that many slices.
    places = _even_cuts if count <= _FEW else _even_cuts.__wrapped__

    def parts(split_dim: int, value: Array) -> tuple[Array, ...]:
        position = check_axis(split_dim, value.ndim, "split_dim")
        cuts = places(position, value.shape[position], count)
        return tuple([value[cut] for cut in cuts])

    return parts


@binder("SplitV", host={"size_splits": as_ints, "split_dim": as_int})
def split_v(binding: Binding) -> KernelBody:
    count = binding.attrs["num_split"]
    places = _given_cuts if count <= _FEW else _given_cuts.__wrapped__

    def parts(value: Array, size_splits: tuple[int, ...], split_dim: int) -> tuple[Array, ...]:
        position = check_axis(split_dim, value.ndim, "split_dim")
        cuts = places(position, value.shape[position], count, size_splits)
        return tuple([value[cut] for cut in cuts])

    return parts


def _resolved(sizes: tuple[int, ...], whole: int, count: int) -> tuple[int, ...]:
    if len(sizes) != count:
        raise InvalidArgumentError("one size per part is needed", expected=f"{count} sizes", actual=list(sizes))
    resolved = sizes
    if -1 in sizes:
        # The sum contains one -1, hence + 1; several are refused below.
        rest = whole - (sum(sizes) + 1)
        resolved = tuple(rest if s == -1 else s for s in sizes)
    if sizes.count(-1) > 1 or min(resolved) < 0 or sum(resolved) != whole:
        raise InvalidArgumentError(
            "the sizes of the parts do not add up",
            expected=f"a sum of {whole}, with at most one -1",
            actual=list(sizes),
        )
    return resolved


@binder("Pack", fresh=True)
def pack(binding: Binding) -> Callable[[Sequence[Array]], Array]:
    xp, dtype, axis = binding.xp, binding.output_dtypes[0].np_dtype, binding.attrs["axis"]

    def stack(values: Sequence[Array]) -> Array:
        shape = values[0].shape
        for value in values:
            if value.shape != shape:
                shapes = " and ".join(str(list(v.shape)) for v in values)
                raise InvalidArgumentError(
                    "tensors of different shapes cannot be stacked", expected="equal shapes", actual=shapes
                )
        position = check_axis(axis, len(shape) + 1)
        result = xp.empty((*shape[:position], len(values), *shape[position:]), dtype)
        before: tuple[Any, ...] = (slice(None),) * position
        for i, value in enumerate(values):
            put(result[(*before, i, ...)], value)
        return result

    return stack


@binder("Unpack")
def unpack(binding: Binding) -> Callable[[Array], tuple[Array, ...]]:
    count, axis = binding.attrs["num"], binding.attrs["axis"]
    # Indexing an object vector returns plain bytes; an ellipsis keeps the elements arrays.
    after: tuple[Any, ...] = (...,) if binding.input_dtypes[0] is dtypes.string else ()

    def slices(value: Array) -> tuple[Array, ...]:
        position = check_axis(axis, value.ndim)
        if value.shape[position] != count:
            raise InvalidArgumentError(
                "the dimension does not have the size to unpack", expected=count, actual=list(value.shape)
            )
        before: tuple[Any, ...] = (slice(None),) * position
        return tuple(value[(*before, i, *after)] for i in range(count))

    return slices


@kernel("Tile", host={"multiples": as_sizes}, fresh=True, elastic=True)
def tile(xp: Namespace, value: Array, multiples: tuple[int, ...]) -> Array:
    if len(multiples) != value.ndim:
        raise InvalidArgumentError(
            "tile needs one multiple per dimension", expected=f"{value.ndim} multiples", actual=list(multiples)
        )
    # Dimension d is seen as (1, d), broadcast to (m, d), and merged to m * d.
    pairs = [size for pair in zip(multiples, value.shape, strict=True) for size in pair]
    shape = tuple(m * d for m, d in zip(multiples, value.shape, strict=True))
    claim_array(shape, value.dtype)
    wide = value.reshape([size for d in value.shape for size in (1, d)])
    # Copied before the reshape, which could otherwise return a view of the input.
    found: Array = copied(xp.broadcast_to(wide, pairs)).reshape(shape)
    return found

"""Kernels that pad, mirror, and move blocks between dimensions."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import claim_array, full
from aioflow.kernels.convert import as_array, as_ints, check_rank
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.copying import copied, put
from aioflow.memory.values import Array, Namespace, NpDType

Pairs: TypeAlias = tuple[tuple[int, int], ...]


def _as_pairs(value: Array) -> Pairs:
    """Return paddings or crops as one pair per dimension. Raise InvalidArgumentError for a negative one."""
    array = as_array(value)
    if array.ndim != 2 or array.shape[1] != 2 or (array < 0).any():
        raise InvalidArgumentError(
            "paddings must be pairs of sizes", expected="shape (rank, 2), all >= 0", actual=array.tolist()
        )
    return tuple((int(a), int(b)) for a, b in array)


def _check_rank(value: Array, pairs: Pairs) -> None:
    if value.ndim != len(pairs):
        raise InvalidArgumentError(
            "one pair of paddings per dimension is needed", expected=f"{value.ndim} pairs", actual=f"{len(pairs)}"
        )


def _padded(xp: Namespace, value: Array, pairs: Pairs, outside: Array | bytes | None, dtype: NpDType) -> Array:
    _check_rank(value, pairs)
    shape = tuple(d + a + b for d, (a, b) in zip(value.shape, pairs, strict=True))
    claim_array(shape, dtype)
    result = xp.zeros(shape, dtype) if outside is None else full(xp, shape, outside, dtype)
    # The ellipsis makes a view even of a result of rank 0, which can then be assigned.
    inside: tuple[Any, ...] = (*(slice(a, a + d) for d, (a, _) in zip(value.shape, pairs, strict=True)), ...)
    put(result[inside], value)
    return result


@binder("Pad", host={"paddings": _as_pairs}, fresh=True, elastic=True)
def pad(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    outside = b"" if dtype.kind == "O" else None
    return lambda value, paddings: _padded(xp, value, paddings, outside, dtype)


@binder("PadV2", host={"paddings": _as_pairs}, fresh=True, elastic=True)
def pad_v2(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype

    def padded(value: Array, paddings: Pairs, outside: Array) -> Array:
        check_rank("constant_values", outside, 0)
        return _padded(xp, value, paddings, outside, dtype)

    return padded


@kernel("MirrorPad", host={"paddings": _as_pairs}, fresh=True, elastic=True)
def mirror_pad(xp: Namespace, value: Array, paddings: Pairs, *, mode: str) -> Array:
    _check_rank(value, paddings)
    # REFLECT omits the edge element from the mirror image, SYMMETRIC repeats it.
    skip = int(mode == "REFLECT")
    result = value
    for axis, (before, after) in enumerate(paddings):
        if not before and not after:
            continue
        size = value.shape[axis]
        if max(before, after) > size - skip:
            raise InvalidArgumentError(
                f"dimension {axis} is too small to mirror ({mode})",
                expected=f"paddings of at most {size - skip}",
                actual=(before, after),
            )
        # One axis after the other: a corner mirrors what the axes before have added.
        result = _mirrored(xp, result, axis, before, after, skip)
    # The kernel is `fresh`: its result must not share memory with the input.
    return copied(value) if result is value else result


def _mirrored(xp: Namespace, value: Array, axis: int, before: int, after: int, skip: int) -> Array:
    size = value.shape[axis]
    shape = (*value.shape[:axis], before + size + after, *value.shape[axis + 1 :])
    claim_array(shape, value.dtype)
    result = xp.empty(shape, value.dtype)
    lead = (slice(None),) * axis
    put(result[(*lead, slice(before, before + size))], value)
    put(result[(*lead, slice(0, before))], xp.flip(value[(*lead, slice(skip, skip + before))], axis))
    rest = slice(size - skip - after, size - skip)
    put(result[(*lead, slice(before + size, None))], xp.flip(value[(*lead, rest)], axis))
    return result


@kernel("MirrorPadGrad", host={"paddings": _as_pairs}, fresh=True)
def mirror_pad_grad(xp: Namespace, value: Array, paddings: Pairs, *, mode: str) -> Array:
    _check_rank(value, paddings)
    skip = int(mode == "REFLECT")
    result = value.copy()
    for axis, (before, after) in enumerate(paddings):
        size = result.shape[axis] - before - after
        if max(before, after) > size - skip:
            raise InvalidArgumentError(
                f"dimension {axis} is too small to fold back ({mode})",
                expected=f"paddings of at most {size - skip}",
                actual=(before, after),
            )
        lead = (slice(None),) * axis
        # The gradient of each mirrored element is added to that of its original.
        center = result[(*lead, slice(before, before + size))].copy()
        if before:
            center[(*lead, slice(skip, skip + before))] += xp.flip(result[(*lead, slice(0, before))], axis)
        if after:
            center[(*lead, slice(size - skip - after, size - skip))] += xp.flip(
                result[(*lead, slice(before + size, None))], axis
            )
        result = center
    return result


# ── blocks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _copied(value: Array, shape: tuple[int, ...]) -> Array:
    """Return a contiguous copy of the transposed view, in `shape`."""
    found: Array = copied(value).reshape(shape)
    return found


def _four(value: Array, data_format: str) -> tuple[int, int, int, int]:
    if value.ndim != 4:
        raise InvalidArgumentError("the input has the wrong rank", expected="rank 4", actual=list(value.shape))
    order = (0, 1, 2, 3) if data_format == "NHWC" else (0, 2, 3, 1)
    batch, height, width, depth = (value.shape[i] for i in order)
    return batch, height, width, depth


def _quotient(size: int, divisor: int, what: str) -> int:
    if size % divisor:
        raise InvalidArgumentError(f"the {what} is not divisible", expected=f"a multiple of {divisor}", actual=size)
    return size // divisor


@kernel("SpaceToDepth", fresh=True)
def space_to_depth(value: Array, *, block_size: int, data_format: str) -> Array:
    batch, height, width, depth = _four(value, data_format)
    # Both sides are split into blocks, and the positions inside a block move next to the channels.
    rows, columns = _quotient(height, block_size, "height"), _quotient(width, block_size, "width")
    deep = depth * block_size * block_size
    if data_format == "NHWC":
        blocks = value.reshape((batch, rows, block_size, columns, block_size, depth))
        return _copied(blocks.transpose((0, 1, 3, 2, 4, 5)), (batch, rows, columns, deep))
    blocks = value.reshape((batch, depth, rows, block_size, columns, block_size))
    return _copied(blocks.transpose((0, 3, 5, 1, 2, 4)), (batch, deep, rows, columns))


@kernel("DepthToSpace", fresh=True)
def depth_to_space(value: Array, *, block_size: int, data_format: str) -> Array:
    batch, rows, columns, depth = _four(value, data_format)
    shallow = _quotient(depth, block_size * block_size, "depth")
    height, width = rows * block_size, columns * block_size
    if data_format == "NHWC":
        blocks = value.reshape((batch, rows, columns, block_size, block_size, shallow))
        return _copied(blocks.transpose((0, 1, 3, 2, 4, 5)), (batch, height, width, shallow))
    blocks = value.reshape((batch, block_size, block_size, shallow, rows, columns))
    return _copied(blocks.transpose((0, 3, 4, 1, 5, 2)), (batch, shallow, height, width))


def _as_block(value: Array) -> tuple[int, ...]:
    block = as_ints(value)
    if block and min(block) < 1:
        raise InvalidArgumentError("block sizes must be positive", expected=">= 1", actual=list(block))
    return block


def _check_block(value: Array, block: tuple[int, ...], pairs: Pairs) -> int:
    if len(pairs) != len(block) or value.ndim < len(block) + 1:
        raise InvalidArgumentError(
            "the block and its edges do not fit the input",
            expected=f"at most {value.ndim - 1} dimensions, and a pair for each",
            actual=f"{len(block)} dimensions and {len(pairs)} pairs",
        )
    return len(block)


@binder("SpaceToBatchND", host={"block_shape": _as_block, "paddings": _as_pairs}, fresh=True, elastic=True)
def space_to_batch(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype

    def move(value: Array, block: tuple[int, ...], paddings: Pairs) -> Array:
        count = _check_block(value, block, paddings)
        inner = value.shape[count + 1 :]
        padded = _padded(xp, value, ((0, 0), *paddings, *[(0, 0)] * len(inner)), None, dtype)
        rows = [_quotient(d, b, "padded size") for d, b in zip(padded.shape[1 : count + 1], block, strict=True)]
        pairs = [size for pair in zip(rows, block, strict=True) for size in pair]
        blocks = padded.reshape((value.shape[0], *pairs, *inner))
        # From [batch, r0, b0, r1, b1, …, inner] to [b0, b1, …, batch, r0, r1, …, inner], for r blocks of size b.
        order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), *range(2 * count + 1, blocks.ndim)]
        return _copied(blocks.transpose(order), (value.shape[0] * math.prod(block), *rows, *inner))

    return move


@kernel("BatchToSpaceND", host={"block_shape": _as_block, "crops": _as_pairs}, fresh=True)
def batch_to_space(value: Array, block: tuple[int, ...], crops: Pairs) -> Array:
    count = _check_block(value, block, crops)
    inner, rows = value.shape[count + 1 :], value.shape[1 : count + 1]
    batch = _quotient(value.shape[0], math.prod(block), "batch")
    blocks = value.reshape((*block, batch, *rows, *inner))
    # From [b0, b1, …, batch, r0, r1, …, inner] to [batch, r0, b0, r1, b1, …, inner].
    order = [count, *(i for axis in range(count) for i in (count + 1 + axis, axis)), *range(2 * count + 1, blocks.ndim)]
    sizes = [d * b for d, b in zip(rows, block, strict=True)]
    whole = _copied(blocks.transpose(order), (batch, *sizes, *inner))
    for size, pair in zip(sizes, crops, strict=True):
        if sum(pair) > size:
            raise InvalidArgumentError("the crops exceed the size", expected=f"at most {size}", actual=pair)
    inside: tuple[Any, ...] = (
        slice(None),
        *(slice(a, size - b) for size, (a, b) in zip(sizes, crops, strict=True)),
        ...,
    )
    found: Array = whole[inside]
    return found

"""Kernels that save tensors to files and restore them. Disk accesses run in threads, never on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aioflow.concurrency.threads import in_thread
from aioflow.errors import AbortedError, DTypeError, InvalidArgumentError
from aioflow.formats.allowed_folders import AllowedFolders
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.tensor_bundle_writer import write_bundle
from aioflow.formats.tensor_slice import TensorSlice, check_cover, parse_slice
from aioflow.graph.dtypes import DType
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.convert import as_bytes, as_int, as_text
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.resources import resource_finder
from aioflow.kernels.text import as_strings
from aioflow.memory.copying import copied, copy_into
from aioflow.memory.values import Array, NpDType

# ── tensors that are saved in parts, and parts of tensors that are restored ───────────────────────────────────────────


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


# ── the kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────


_MOST_HELD: Final = 2  # snapshots for one saver: of two sessions, or of one that reconnected
_ATTEMPTS: Final = 3  # tries to read a checkpoint that is being replaced


def _texts(value: Array) -> list[str]:
    return [item.decode() for item in value.reshape(-1)]


def _check_count(names: list[str], count: int) -> None:
    if len(names) != count:
        raise InvalidArgumentError("one name per tensor is needed", expected=count, actual=len(names))


async def _write(
    write: Callable[[dict[str, Array | JoinedRows]], None],
    tensor_names: Array,
    shape_and_slices: Array,
    tensors: Sequence[Array],
) -> None:
    names, parts = _texts(tensor_names), _texts(shape_and_slices)
    _check_count(names, len(tensors))
    _check_count(names, len(parts))
    # In a thread of low priority, because a save takes long.
    await in_thread(lambda: write(whole_tensors(names, parts, tensors)), quiet=True)


@kernel("SaveV2", device="CPU", host={"prefix": as_text}, retains=True)
async def save(
    prefix: str, tensor_names: Array, shape_and_slices: Array, tensors: Sequence[Array], *, folders: AllowedFolders
) -> None:
    await _write(lambda whole: write_checkpoint(prefix, whole, None, folders), tensor_names, shape_and_slices, tensors)


@kernel("_SaveBundle", device="CPU", host={"prefix": as_text}, retains=True)
async def save_bundle(
    prefix: str, tensor_names: Array, shape_and_slices: Array, tensors: Sequence[Array], *, folders: AllowedFolders
) -> None:
    await _write(lambda whole: write_bundle(prefix, whole, folders), tensor_names, shape_and_slices, tensors)


@kernel("_SaveBlocks", device="CPU", host={"prefix": as_text, "base": as_text}, retains=True)
async def save_blocks(
    prefix: str,
    base: str,
    tensor_names: Array,
    shape_and_slices: Array,
    tensors: Sequence[Array],
    *,
    folders: AllowedFolders,
) -> None:
    await _write(lambda whole: write_checkpoint(prefix, whole, base, folders), tensor_names, shape_and_slices, tensors)


class _Holder:
    """Snapshots that wait to be written, by key.

    Only the last `_MOST_HELD` are kept, because a client that disconnects before it writes its snapshot never removes
    it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tensors: dict[str, tuple[Array, ...]] = {}

    def put(self, key: str, tensors: tuple[Array, ...]) -> None:
        with self._lock:
            self._tensors[key] = tensors
            while len(self._tensors) > _MOST_HELD:
                # A dict iterates in the order of insertion, so the first key is the oldest.
                del self._tensors[next(iter(self._tensors))]

    def take(self, key: str) -> tuple[Array, ...]:
        with self._lock:
            found = self._tensors.pop(key, None)
        if found is None:
            raise AbortedError("the snapshot is not there any more", expected=f"snapshot {key}", actual="none")
        return found


@binder("_SnapshotHolder", device="CPU", makes=_Holder)
def holder(binding: Binding) -> Callable[[], _Holder]:
    return resource_finder(_Holder, binding, lambda name: _Holder())


@kernel("_HoldTensors", device="CPU", host={"key": as_text}, takes=_Holder, retains=True)
def hold(resource: _Holder, key: str, tensors: Sequence[Array]) -> None:
    resource.put(key, tuple(tensors))


# `fresh`: the tensors never share memory with the input `key`.
@kernel("_HeldTensors", device="CPU", host={"key": as_text}, takes=_Holder, fresh=True)
def held(resource: _Holder, key: str) -> tuple[Array, ...]:
    return resource.take(key)


@binder("RestoreV2", device="CPU", host={"prefix": as_text}, is_async=True, fresh=True, opens_files=True)
def restore(binding: Binding) -> Callable[..., Awaitable[list[Array]]]:
    dtypes, xp, folders = binding.output_dtypes, binding.xp, binding.folders

    async def run(prefix: str, tensor_names: Array, shape_and_slices: Array) -> list[Array]:
        names, parts = _texts(tensor_names), [parse_slice(text) for text in _texts(shape_and_slices)]
        _check_count(names, len(dtypes))
        _check_count(names, len(parts))
        arrays = await in_thread(_read, prefix, folders, names, parts, dtypes, effects=False)
        # Strings exist only in host memory.
        return [array if array.dtype == object else xp.asarray(array) for array in arrays]

    return run


def _read(prefix: str, *wanted: Any) -> list[Array]:
    # A checkpoint that is replaced while it is read raises AbortedError. The last attempt passes it on.
    for _ in range(_ATTEMPTS - 1):
        with suppress(AbortedError):
            return _read_once(prefix, *wanted)
    return _read_once(prefix, *wanted)


def _read_once(
    prefix: str, folders: AllowedFolders, names: list[str], parts: list[TensorSlice | None], dtypes: tuple[DType, ...]
) -> list[Array]:
    reader = CheckpointReader(prefix, folders)
    # All is checked before the first tensor is read.
    for name, part, dtype in zip(names, parts, dtypes, strict=True):
        if reader.dtype(name) is not dtype:
            raise DTypeError(
                f"tensor {name!r} of checkpoint {prefix} has a different dtype",
                expected=dtype.name,
                actual=reader.dtype(name).name,
            )
        if part is not None and part.full_shape != reader.shape(name):
            raise InvalidArgumentError(
                f"tensor {name!r} of checkpoint {prefix} has a different shape",
                expected=part.full_shape,
                actual=reader.shape(name),
            )
    found: dict[int, Array] = {}
    for name in dict.fromkeys(names):  # each tensor is read once, even for several of its parts
        places = [i for i, other in enumerate(names) if other == name]
        whole = reader.read(name)
        found.update((i, part_of(whole, parts[i])) for i in places)
    return [found[i] for i in range(len(names))]


@kernel("ShardedFilename", device="CPU", fresh=True, host={"basename": as_bytes, "shard": as_int, "num_shards": as_int})
def sharded_filename(basename: bytes, shard: int, num_shards: int) -> Array:
    return as_strings([b"%b-%05d-of-%05d" % (basename, shard, num_shards)], ())


@kernel("ShardedFilespec", device="CPU", fresh=True, host={"basename": as_bytes, "num_shards": as_int})
def sharded_filespec(basename: bytes, num_shards: int) -> Array:
    return as_strings([b"%b-?????-of-%05d" % (basename, num_shards)], ())

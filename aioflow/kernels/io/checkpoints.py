"""Kernels that save tensors to files and restore them. Disk accesses run in threads, never on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from aioflow.concurrency.threads import in_thread
from aioflow.errors import AbortedError, DTypeError, InvalidArgumentError
from aioflow.formats.allowed_folders import AllowedFolders
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.tensor_bundle_writer import write_bundle
from aioflow.formats.tensor_slice import TensorSlice, parse_slice
from aioflow.graph.dtypes import DType
from aioflow.kernels.convert import as_bytes, as_int, as_text
from aioflow.kernels.io.tensor_parts import JoinedRows, part_of, whole_tensors
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.resources import resource_finder
from aioflow.kernels.text.strings import as_strings
from aioflow.memory.values import Array

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

"""Kernels that save tensors to files and restore them: the disk is waited for in a thread, never on the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from aioflow.errors import AbortedError, DTypeError, InvalidArgumentError
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.tensor_slice import TensorSlice, check_cover, parse_slice
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.convert import as_bytes, as_int, as_text
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.text.strings import as_strings
from aioflow.work.copying import copied, copy_into
from aioflow.work.threads import in_thread

__all__: list[str] = []

_ATTEMPTS: Final = 3  # to read a checkpoint that is being replaced


def _texts(value: Any) -> list[str]:
    return [item.decode() for item in value.reshape(-1)]


def _check_count(names: list[str], count: int) -> None:
    if len(names) != count:
        raise InvalidArgumentError("one name per tensor is needed", expected=count, actual=len(names))


@kernel("SaveV2", device="CPU", host={"prefix": as_text}, retains=True)
async def save(prefix: str, tensor_names: Any, shape_and_slices: Any, tensors: Any) -> None:
    names, parts = _texts(tensor_names), [parse_slice(text) for text in _texts(shape_and_slices)]
    _check_count(names, len(tensors))
    _check_count(names, len(parts))
    await in_thread(_write, prefix, names, parts, tensors)


def _write(prefix: str, names: list[str], parts: list[TensorSlice | None], tensors: Sequence[Any]) -> None:
    groups: dict[str, list[tuple[TensorSlice | None, Any]]] = {}
    for name, part, tensor in zip(names, parts, tensors, strict=True):
        groups.setdefault(name, []).append((part, tensor))
    write_checkpoint(prefix, {name: _joined(name, given) for name, given in groups.items()})


def _joined(name: str, given: Sequence[tuple[TensorSlice | None, Any]]) -> Any:
    """The tensor that the parts make up."""
    slices = [part for part, _ in given if part is not None]
    if not slices and len(given) == 1:
        return given[0][1]
    if len(slices) < len(given):
        raise InvalidArgumentError(
            "a tensor name occurs twice", expected="distinct names, or slices of one tensor", actual=name
        )
    check_cover(name, slices)
    first = np.asarray(given[0][1])
    claim_array(slices[0].full_shape, first.dtype)
    whole = np.empty(slices[0].full_shape, first.dtype)
    for part, (_, tensor) in zip(slices, given, strict=True):
        piece = np.asarray(tensor)
        if piece.shape != part.shape or piece.dtype != first.dtype:
            raise InvalidArgumentError(
                f"a slice of {name} does not fit",
                expected=f"{first.dtype}{part.shape}",
                actual=f"{piece.dtype}{piece.shape}",
            )
        copy_into(whole[part.index], piece)
    return whole


@binder("RestoreV2", device="CPU", host={"prefix": as_text}, is_async=True, fresh=True)
def restore(binding: Binding) -> Callable[..., Awaitable[list[Any]]]:
    dtypes, xp = binding.output_dtypes, binding.xp

    async def run(prefix: str, tensor_names: Any, shape_and_slices: Any) -> list[Any]:
        names, parts = _texts(tensor_names), [parse_slice(text) for text in _texts(shape_and_slices)]
        _check_count(names, len(dtypes))
        _check_count(names, len(parts))
        arrays = await in_thread(_read, prefix, names, parts, dtypes, effects=False)
        return [array if array.dtype == object else xp.asarray(array) for array in arrays]

    return run


def _read(prefix: str, *wanted: Any) -> list[Array]:
    for _ in range(_ATTEMPTS - 1):
        with suppress(AbortedError):
            return _read_once(prefix, *wanted)
    return _read_once(prefix, *wanted)


def _read_once(
    prefix: str, names: list[str], parts: list[TensorSlice | None], dtypes: tuple[DType, ...]
) -> list[Array]:
    reader = CheckpointReader(prefix)
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
    for name in dict.fromkeys(names):  # each is read once, however many parts of it are wanted
        places = [i for i, other in enumerate(names) if other == name]
        whole = reader.read(name)
        found.update((i, _part(whole, parts[i])) for i in places)
    return [found[i] for i in range(len(names))]


def _part(whole: Array, part: TensorSlice | None) -> Array:
    if part is None or part.shape == whole.shape:
        return whole
    own: Array = copied(whole[part.index])
    return own


@kernel("ShardedFilename", device="CPU", fresh=True, host={"basename": as_bytes, "shard": as_int, "num_shards": as_int})
def sharded_filename(basename: bytes, shard: int, num_shards: int) -> Any:
    return as_strings([b"%b-%05d-of-%05d" % (basename, shard, num_shards)], ())


@kernel("ShardedFilespec", device="CPU", fresh=True, host={"basename": as_bytes, "num_shards": as_int})
def sharded_filespec(basename: bytes, num_shards: int) -> Any:
    return as_strings([b"%b-?????-of-%05d" % (basename, num_shards)], ())

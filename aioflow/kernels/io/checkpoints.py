"""Kernels that save tensors to files and restore them: the disk is waited for in a thread, never on the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from aioflow.errors import AbortedError, DTypeError, InvalidArgumentError
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.tensor_slice import TensorSlice, parse_slice
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType
from aioflow.kernels.convert import as_bytes, as_int, as_text
from aioflow.kernels.io.tensor_parts import part_of, whole_tensors
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.text.strings import as_strings
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
    names, parts = _texts(tensor_names), _texts(shape_and_slices)
    _check_count(names, len(tensors))
    _check_count(names, len(parts))
    await in_thread(lambda: write_checkpoint(prefix, whole_tensors(names, parts, tensors)))


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
        found.update((i, part_of(whole, parts[i])) for i in places)
    return [found[i] for i in range(len(names))]


@kernel("ShardedFilename", device="CPU", fresh=True, host={"basename": as_bytes, "shard": as_int, "num_shards": as_int})
def sharded_filename(basename: bytes, shard: int, num_shards: int) -> Any:
    return as_strings([b"%b-%05d-of-%05d" % (basename, shard, num_shards)], ())


@kernel("ShardedFilespec", device="CPU", fresh=True, host={"basename": as_bytes, "num_shards": as_int})
def sharded_filespec(basename: bytes, num_shards: int) -> Any:
    return as_strings([b"%b-?????-of-%05d" % (basename, num_shards)], ())

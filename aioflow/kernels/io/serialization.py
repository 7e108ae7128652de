"""Kernels that serialize tensors, dense and sparse, to strings and parse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import blocks, reserve
from aioflow.errors import InvalidArgumentError
from aioflow.formats.tensor_proto import decode_tensor, encode_tensor
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.kernels.blockwise import taken
from aioflow.kernels.math.large_sorts import order_of
from aioflow.kernels.registry import Binding, binder
from aioflow.kernels.sparse.entries import check_bounds, check_entries
from aioflow.kernels.text import LEAST_STRING, as_strings, string_values
from aioflow.memory.values import Array

_SLICES: Final = 1024  # slices that are serialized between two checkpoints


@binder("SerializeTensor", device="CPU", fresh=True)
def serialize_tensor(binding: Binding) -> Callable[[Array], Array]:
    dtype = binding.input_dtypes[0]
    return lambda tensor: as_strings([encode_tensor(tensor, dtype)], ())


@binder("ParseTensor", device="CPU", fresh=True)
def parse_tensor(binding: Binding) -> Callable[[Array], Array]:
    dtype = binding.output_dtypes[0]

    def parse(serialized: Array) -> Array:
        strings = string_values(serialized)
        if strings.ndim:
            raise InvalidArgumentError("one serialized tensor is expected", expected="a scalar", actual=strings.shape)
        found = decode_tensor(strings.item(), dtype)
        # On the CPU a number of rank 0 is a NumPy scalar, while a string stays an array.
        result: Array = found[()] if found.ndim == 0 and dtype.is_numeric else found
        return result

    return parse


# ── sparse ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _encoded(indices: Array, values: Array, shape: Array, dtype: DType) -> list[bytes]:
    return [
        encode_tensor(indices, dtypes.int64),
        encode_tensor(values, dtype),
        encode_tensor(shape, dtypes.int64),
    ]


@binder("SerializeSparse", device="CPU", fresh=True)
def serialize_sparse(binding: Binding) -> Callable[[Array, Array, Array], Array]:
    dtype = binding.input_dtypes[1]

    def serialize(indices: Array, values: Array, shape: Array) -> Array:
        check_entries(indices, values, shape)
        return as_strings(_encoded(indices, values, shape, dtype))

    return serialize


@binder("SerializeManySparse", device="CPU", fresh=True)
def serialize_many_sparse(binding: Binding) -> Callable[[Array, Array, Array], Array]:
    dtype = binding.input_dtypes[1]

    def serialize(indices: Array, values: Array, shape: Array) -> Array:
        check_entries(indices, values, shape)
        check_bounds(indices, shape)
        if len(shape) < 2:
            raise InvalidArgumentError("there are no slices to serialize", expected="rank >= 2", actual=len(shape))
        count = int(shape[0])
        reserve(3 * count * LEAST_STRING)
        # Entries may come in any order. The stable sort keeps it inside each slice.
        order = order_of(indices[:, 0])
        numbers = taken(indices[:, 0], order)
        made: list[bytes] = []
        start = 0
        for some in blocks(count, _SLICES):
            for end in np.searchsorted(numbers, np.arange(some.start, some.stop), side="right").tolist():
                rows, start = order[start:end], end
                made += _encoded(indices[rows, 1:], values[rows], shape[1:], dtype)
        return as_strings(made, (count, 3))

    return serialize


def _decoded(row: list[bytes], dtype: DType) -> tuple[Array, Array, Array]:
    indices, shape = decode_tensor(row[0], dtypes.int64), decode_tensor(row[2], dtypes.int64)
    values = decode_tensor(row[1], dtype)
    check_entries(indices, values, shape)
    check_bounds(indices, shape)
    return indices, values, shape


def _together(rows: list[list[bytes]], dtype: DType) -> tuple[Array, Array, Array]:
    """Stack the sparse tensors along a new first dimension; each other size is the largest one."""
    found = [_decoded(row, dtype) for row in rows]
    ranks = {len(shape) for _, _, shape in found}
    if len(ranks) != 1:
        raise InvalidArgumentError("the sparse tensors differ in rank", expected="equal ranks", actual=sorted(ranks))
    numbers = np.repeat(np.arange(len(found)), [len(values) for _, values, _ in found])
    indices = np.concatenate([numbers[:, None], np.concatenate([part for part, _, _ in found])], axis=1)
    shape = np.concatenate([[len(found)], np.max([size for _, _, size in found], axis=0)]).astype(np.int64)
    return indices, np.concatenate([values for _, values, _ in found]), shape


@binder("DeserializeManySparse", device="CPU", fresh=True)
def deserialize_many_sparse(binding: Binding) -> Callable[[Array], tuple[Array, Array, Array]]:
    dtype = binding.attrs["dtype"]

    def deserialize(serialized: Array) -> tuple[Array, Array, Array]:
        strings = string_values(serialized)
        if strings.ndim != 2 or strings.shape[1] != 3 or not len(strings):
            raise InvalidArgumentError("not serialized sparse tensors", expected="[n >= 1, 3]", actual=strings.shape)
        return _together(strings.tolist(), dtype)

    return deserialize


@binder("DeserializeSparse", device="CPU", fresh=True)
def deserialize_sparse(binding: Binding) -> Callable[[Array], tuple[Array, Array, Array]]:
    dtype = binding.attrs["dtype"]

    def deserialize(serialized: Array) -> tuple[Array, Array, Array]:
        strings = string_values(serialized)
        if not strings.ndim or strings.shape[-1] != 3 or not strings.size:
            raise InvalidArgumentError("not serialized sparse tensors", expected="[..., 3]", actual=strings.shape)
        indices, values, shape = _together(strings.reshape(-1, 3).tolist(), dtype)
        outer = strings.shape[:-1]
        places = np.stack(np.unravel_index(indices[:, 0], outer), axis=1) if outer else indices[:, :0]
        return (
            np.concatenate([places.astype(np.int64), indices[:, 1:]], axis=1),
            values,
            np.concatenate([np.array(outer, np.int64), shape[1:]]),
        )

    return deserialize

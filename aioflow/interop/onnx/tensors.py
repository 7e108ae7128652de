"""Conversion of `TensorProto` to arrays, with checks before unpacking."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from onnx import TensorProto, numpy_helper

from aioflow.errors import DataLossError, InvalidArgumentError, UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.interop.onnx.external import ExternalFiles
from aioflow.interop.onnx.types import dtype_of, element_type_name
from aioflow.memory.values import Array

_MAX_RANK: Final = 64
_MOST_EMPTY: Final = 2**63 // 16  # number of elements of the largest dtype


def array_of(proto: TensorProto, files: ExternalFiles | None = None) -> Array:
    """Return the read-only value of a tensor. Strings become an object array of bytes.

    Args:
        proto: The tensor.
        files: Files that the tensor may refer to.

    Raises:
        DataLossError: the data does not fill the shape.
        InvalidArgumentError: the shape or the reference to a file is malformed.
        NotFoundError: the file does not exist.
        UnimplementedError: aioflow has no such element type.
    """
    dims = _checked_dims(proto)
    dtype = dtype_of(proto.data_type)
    if dtype is None:
        raise UnimplementedError(
            f"tensor {proto.name!r} has an element type that aioflow does not have",
            actual=element_type_name(proto.data_type),
        )
    if proto.data_location == TensorProto.EXTERNAL:
        array = _external(proto, dims, dtype, files or ExternalFiles(None))
    else:
        array = _unpacked(proto, dims, dtype)
    # Constants of a graph are shared by all its sessions.
    array.flags.writeable = False
    return array


def _checked_dims(proto: TensorProto) -> tuple[int, ...]:
    dims = tuple(proto.dims)
    # NumPy limits the product of the nonzero sizes, even if one size is 0 and there are no elements.
    if len(dims) > _MAX_RANK or any(d < 0 for d in dims) or (0 in dims and math.prod(filter(None, dims)) > _MOST_EMPTY):
        raise InvalidArgumentError(
            f"tensor {proto.name!r} has an invalid shape",
            expected=f"at most {_MAX_RANK} sizes, none negative, with a product that NumPy supports",
            actual=str(dims[: _MAX_RANK + 1]),
        )
    return dims


def _unpacked(proto: TensorProto, dims: tuple[int, ...], dtype: DType) -> Array:
    count = math.prod(dims)
    np_dtype = dtype.np_dtype
    if dtype is dtypes.string:
        _check_count(proto, count, len(proto.string_data))
        strings = np.empty(count, dtype=object)
        # An assignment, because `np.array` of bytes makes a fixed-width dtype that drops trailing null bytes.
        strings[:] = list(proto.string_data)
        return strings.reshape(dims)
    if proto.HasField("raw_data") and _is_whole_bytes(proto):
        data = proto.raw_data
        _check_count(proto, count * np_dtype.itemsize, len(data))
        return np.frombuffer(data, np_dtype.newbyteorder("<")).astype(np_dtype, copy=False).reshape(dims)
    if not _is_whole_bytes(proto):
        per_byte = 8 // _PACKED[proto.data_type]
        packed = len(proto.raw_data) if proto.HasField("raw_data") else len(proto.int32_data)
        # ⌈count / per_byte⌉ bytes.
        _check_count(proto, -(-count // per_byte), packed)
    try:
        return np.array(numpy_helper.to_array(proto)).view(np_dtype).reshape(dims)
    except (ValueError, TypeError) as error:
        raise DataLossError(f"the values of tensor {proto.name!r} do not fill its shape", expected=dims) from error


def _external(proto: TensorProto, dims: tuple[int, ...], dtype: DType, files: ExternalFiles) -> Array:
    if dtype is dtypes.string or not _is_whole_bytes(proto):
        raise UnimplementedError(
            f"tensor {proto.name!r} cannot be external data", actual=element_type_name(proto.data_type)
        )
    np_dtype = dtype.np_dtype
    data = files.bytes_of(proto, math.prod(dims) * np_dtype.itemsize)
    # Files may have any offset, and kernels expect aligned arrays.
    if data.ctypes.data % np_dtype.alignment:
        data = data.copy()
    # External and raw data are little-endian on every machine.
    return data.view(np_dtype.newbyteorder("<")).astype(np_dtype, copy=False).reshape(dims)


def _is_whole_bytes(proto: TensorProto) -> bool:
    return proto.data_type not in _PACKED


# Bits per element, for types of which several elements share a byte.
_BITS: Final = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
_PACKED: Final = {number: _BITS[name] for name, number in TensorProto.DataType.items() if name in _BITS}


def _check_count(proto: TensorProto, expected: int, actual: int) -> None:
    if expected != actual:
        raise DataLossError(
            f"the values of tensor {proto.name!r} do not fill its shape", expected=expected, actual=actual
        )

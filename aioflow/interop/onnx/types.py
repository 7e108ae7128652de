"""Conversion between ONNX's and aioflow's element types and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import ml_dtypes
import numpy as np
from onnx import TensorProto, TypeProto, helper

from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.shapes import Dims


def _dtypes() -> Mapping[int, DType]:
    found: dict[int, DType] = {TensorProto.STRING: dtypes.string, TensorProto.BFLOAT16: dtypes.bfloat16}
    for name, number in TensorProto.DataType.items():
        if number in found or number == TensorProto.UNDEFINED:
            continue
        # Older releases of onnx have their own NumPy dtypes for small types, with the names that ml_dtypes uses.
        small = getattr(ml_dtypes, name.lower().replace("float8e", "float8_e").replace("float4e", "float4_e"), None)
        try:
            found[number] = as_dtype(np.dtype(small) if small else helper.tensor_dtype_to_np_dtype(number))
        except (DTypeError, KeyError):
            continue  # a type that aioflow does not have
    return found


_DTYPES: Final = _dtypes()
_NUMBERS: Final = {dtype: number for number, dtype in _DTYPES.items()}


def dtype_of(element_type: int) -> DType | None:
    """Return the dtype for an element type of ONNX, or None if aioflow has no such dtype."""
    return _DTYPES.get(element_type)


def element_type_of(dtype: DType) -> int | None:
    """Return the element type of ONNX for a dtype, or None if ONNX has no such type."""
    return _NUMBERS.get(dtype)


def element_type_name(element_type: int) -> str:
    """Return the name of an element type of ONNX, or its number."""
    known: dict[int, str] = {number: name for name, number in TensorProto.DataType.items()}
    return known.get(element_type, str(element_type))


def dims_of_type(proto: TypeProto.Tensor) -> Dims:
    """Return the shape of a tensor's type, with None for a size that is unknown or symbolic."""
    if not proto.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in proto.shape.dim)


def tensor_type(dtype: DType, dims: Dims) -> TypeProto:
    """Return the type of a tensor, from which onnx can derive a function's body."""
    proto = TypeProto()
    proto.tensor_type.elem_type = element_type_of(dtype) or 0
    if dims is not None:
        shape = proto.tensor_type.shape
        for size in dims:
            each = shape.dim.add()
            if size is not None:
                each.dim_value = size
    return proto

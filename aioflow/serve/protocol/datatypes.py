"""The protocol's names of tensor dtypes. BF16 is not in its original table, but servers and clients support it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioflow.errors import UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType

DATATYPES: Final[Mapping[str, DType]] = {
    "BOOL": dtypes.bool_,
    "UINT8": dtypes.uint8,
    "UINT16": dtypes.uint16,
    "UINT32": dtypes.uint32,
    "UINT64": dtypes.uint64,
    "INT8": dtypes.int8,
    "INT16": dtypes.int16,
    "INT32": dtypes.int32,
    "INT64": dtypes.int64,
    "FP16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "FP32": dtypes.float32,
    "FP64": dtypes.float64,
    "BYTES": dtypes.string,
}
_NAMES: Final[Mapping[DType, str]] = {dtype: name for name, dtype in DATATYPES.items()}


def spelled(dtype: DType) -> str:
    """Return the name of a dtype for messages to clients: the protocol's name, or our own if the protocol has none."""
    return _NAMES.get(dtype, dtype.name)


def datatype_of(dtype: DType, what: str) -> str:
    """Return the protocol's name of a dtype. Raise UnimplementedError, about `what`, if the protocol has none."""
    found = _NAMES.get(dtype)
    if found is None:
        raise UnimplementedError(
            f"{what} has a dtype that the Open Inference Protocol does not support",
            expected=f"one of {', '.join(each.name for each in DATATYPES.values())}",
            actual=dtype.name,
        )
    return found

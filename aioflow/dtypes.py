"""The dtypes: the public namespace `aioflow.dtypes`, after `tf.dtypes` of the TensorFlow 1 API."""

from aioflow.graph.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    resource,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)
from aioflow.graph.dtypes import bool_ as bool
from aioflow.graph.dtypes import float16 as half
from aioflow.graph.dtypes import float64 as double
from aioflow.loading.later import load_later as _load_later

__all__ = [
    "DType",
    "as_dtype",
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "double",
    "float16",
    "float32",
    "float64",
    "half",
    "int8",
    "int16",
    "int32",
    "int64",
    "resource",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

_load_later(__name__)

"""Dtypes, arrays and shapes as ONNX writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType
from aioflow.interop.onnx.exporting.values import Value
from aioflow.work.copying import native

__all__ = [
    "dtype_of_text",
    "is_exportable",
    "mention_proto",
    "schema_text",
    "tensor_proto",
    "tensor_type",
    "value_info",
]

_NO_FORM: Final = (dtypes.complex64, dtypes.complex128)  # which the standard has, and onnxruntime does not run
_TEXT: Final = {"float": dtypes.float32, "double": dtypes.float64, "bool": dtypes.bool_}


def is_exportable(dtype: DType) -> bool:
    """Whether tensors of that dtype have a form that runtimes take."""
    return dtype.is_numpy_compatible and not dtype.is_quantized and dtype not in _NO_FORM


def tensor_type(dtype: DType) -> int:
    """ONNX's number of a dtype. Raises DTypeError for those that no runtime takes."""
    if not is_exportable(dtype):
        raise DTypeError("not a dtype of ONNX models", expected="numbers, bool or string", actual=dtype.name)
    if dtype is dtypes.string:
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(dtype.np_dtype))


def schema_text(dtype: DType) -> str:
    """A dtype as schemas write it: "tensor(int64)"."""
    return f"tensor({TensorProto.DataType.Name(tensor_type(dtype)).lower()})"


def dtype_of_text(text: str) -> DType:
    """The dtype that a schema writes as "tensor(int64)"."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return _TEXT.get(name) or dtypes.as_dtype(name)


def tensor_proto(array: Array, name: str = "") -> TensorProto:
    """A constant."""
    if array.dtype == object:
        return helper.make_tensor(name, TensorProto.STRING, array.shape, array.reshape(-1).tolist())
    return numpy_helper.from_array(np.ascontiguousarray(native(array)).reshape(array.shape), name)


def mention_proto(array: Array, name: str) -> TensorProto:
    """A constant whose value is outside of the model, for a runtime that is given it by name."""
    made = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
    made.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    made.external_data.add(key="location", value="given")
    return made


def value_info(value: Value, sizes: Sequence[Any] | None = None) -> ValueInfoProto:
    """Name, dtype and shape of an input or output; unknown sizes have names of their own."""
    if sizes is None and value.dims is not None:
        sizes = [f"{value.name}_dim_{i}" if size is None else size for i, size in enumerate(value.dims)]
    return helper.make_tensor_value_info(value.name, tensor_type(value.dtype), sizes)

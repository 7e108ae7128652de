"""Conversion of dtypes, arrays and shapes to ONNX's representation."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.memory.copying import native
from aioflow.memory.values import Array

_NO_FORM: Final = (dtypes.complex64, dtypes.complex128)  # in the standard, but onnxruntime does not run them
_TEXT: Final = {"float": dtypes.float32, "double": dtypes.float64, "bool": dtypes.bool_}


def is_exportable(dtype: DType) -> bool:
    """Return whether runtimes accept tensors of that dtype."""
    return dtype.is_numpy_compatible and not dtype.is_quantized and dtype not in _NO_FORM


def no_form(dtype: DType) -> DTypeError:
    """Return the error for a dtype that no runtime accepts."""
    return DTypeError("not a dtype of ONNX models", expected="numbers, bool or string", actual=dtype.name)


def tensor_type(dtype: DType) -> int:
    """Return ONNX's number of a dtype. Raise DTypeError if no runtime accepts it."""
    if not is_exportable(dtype):
        raise no_form(dtype)
    if dtype is dtypes.string:
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(dtype.np_dtype))


def schema_text(dtype: DType) -> str:
    """Return a dtype in the notation of schemas: "tensor(int64)"."""
    return f"tensor({TensorProto.DataType.Name(tensor_type(dtype)).lower()})"


def dtype_of_text(text: str) -> DType:
    """Return the dtype that a schema writes as "tensor(int64)"."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return _TEXT.get(name) or dtypes.as_dtype(name)


def tensor_proto(array: Array, name: str = "") -> TensorProto:
    """Return a constant as a `TensorProto`."""
    if array.dtype == object:
        return helper.make_tensor(name, TensorProto.STRING, array.shape, array.reshape(-1).tolist())
    # `ascontiguousarray` turns a scalar into a vector, so the shape is restored.
    return numpy_helper.from_array(np.ascontiguousarray(native(array)).reshape(array.shape), name)


def mention_proto(array: Array, name: str) -> TensorProto:
    """Return a constant without its value, which the runtime receives separately by name."""
    made = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
    made.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    made.external_data.add(key="location", value="given")
    return made


def value_info(value: ModelValue) -> ValueInfoProto:
    """Return name, dtype and shape of an input or output. Each unknown size has a name of its own."""
    sizes: list[int | str] | None = None
    if value.dims is not None:
        sizes = [f"{value.name}_dim_{i}" if size is None else size for i, size in enumerate(value.dims)]
    return helper.make_tensor_value_info(value.name, tensor_type(value.dtype), sizes)

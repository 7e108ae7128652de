"""Conversion of dtypes, arrays and shapes to ONNX's representation, and the dtypes of onnxruntime's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
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


# ── dtypes that onnxruntime's CPU kernels accept, where they are fewer than the standard allows ───────────────────────
#
# A node of another dtype is computed in one that holds its values, between two casts. float16 needs no casts:
# onnxruntime widens it itself. Integers wrap around when they are cast back, as they would in their own dtype.


_FLOAT: Final = "float32"
_FLOATS: Final = "float32 float64"
_ARITHMETIC: Final = f"{_FLOATS} int32 int64"
_NUMBERS: Final = f"{_ARITHMETIC} int8 uint8 int16 uint16 uint32 uint64"

# By ONNX's op. Ops that are not listed accept every dtype.
KERNELS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Det", "Erf", "Sinh", "Tan"), _FLOAT),
    **dict.fromkeys(("AveragePool", "Conv", "ConvTranspose", "Elu", "LRN", "LeakyRelu", "Selu"), _FLOAT),
    **dict.fromkeys(("Gelu", "Softplus", "Softsign"), _FLOAT),
    **dict.fromkeys(("Ceil", "Cos", "Exp", "Floor", "Gemm", "Log", "LogSoftmax", "Reciprocal", "Round"), _FLOATS),
    **dict.fromkeys(("BatchNormalization", "LayerNormalization", "Sigmoid", "Sin", "Softmax", "Sqrt", "Sum"), _FLOATS),
    **dict.fromkeys(("Tanh",), _FLOATS),
    **dict.fromkeys(("Add", "Mul", "Pow", "Sub", "CumSum", "Einsum"), _ARITHMETIC),
    **dict.fromkeys(("ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare"), _ARITHMETIC),
    "CumProd": f"{_ARITHMETIC} uint32 uint64",
    "Abs": f"{_ARITHMETIC} int8 uint8 int16 uint16 uint32 uint64",
    "ArgMax": f"{_ARITHMETIC} int8 uint8",
    "ArgMin": f"{_ARITHMETIC} int8 uint8",
    "Clip": f"{_ARITHMETIC} int8 uint8 uint32 uint64",
    "DepthToSpace": _FLOATS,
    "Div": f"{_ARITHMETIC} uint64",
    "Equal": f"{_NUMBERS} bool string",
    "Expand": f"{_NUMBERS} bool string",
    "IsInf": _FLOATS,
    "IsNaN": _FLOATS,
    "MatMul": f"{_ARITHMETIC} uint32 uint64",
    "Max": f"{_ARITHMETIC} int8 uint8 uint32 uint64",
    "MaxPool": f"{_FLOATS} int8 uint8",
    "Min": f"{_ARITHMETIC} int8 uint8 uint32 uint64",
    "Mod": _NUMBERS,
    "Neg": f"{_ARITHMETIC} int8",
    "NonZero": f"{_ARITHMETIC} bool uint8",
    "Pad": f"{_ARITHMETIC} bool int8 uint8 uint32 uint64",
    "Range": f"{_ARITHMETIC} int16",
    "ReduceMax": f"{_ARITHMETIC} bool int8 uint8",
    "ReduceMin": f"{_ARITHMETIC} bool int8 uint8",
    "Relu": f"{_FLOATS} int32",
    "Resize": f"{_FLOAT} int32 int8 uint8",
    "SpaceToDepth": _FLOATS,
    "Tile": f"{_NUMBERS} bool string",
    "TopK": _ARITHMETIC,
    "Trilu": f"{_ARITHMETIC} bool",
    "Unique": f"{_FLOATS} int8 int64 string",
    "Where": f"{_ARITHMETIC} string uint8",
}

_WIDER: Final[Mapping[DType, tuple[DType, ...]]] = {
    dtypes.bool_: (dtypes.uint8, dtypes.int32),
    dtypes.int8: (dtypes.int32, dtypes.int64, dtypes.float32),
    dtypes.uint8: (dtypes.int32, dtypes.int64, dtypes.float32),
    dtypes.int16: (dtypes.int32, dtypes.int64, dtypes.float32),
    dtypes.uint16: (dtypes.int32, dtypes.int64, dtypes.float32),
    dtypes.int32: (dtypes.int64, dtypes.float64),
    dtypes.uint32: (dtypes.int64, dtypes.float64),
    # Values above 2⁶³ wrap around, and wrap back in the cast of the result.
    dtypes.uint64: (dtypes.int64,),
    dtypes.bfloat16: (dtypes.float32,),
}


def computed_in(op: str, dtype: DType) -> DType | None:
    """Return the dtype in which onnxruntime runs an op on values of `dtype`, or None without a suitable kernel."""
    known = KERNELS.get(op)
    if known is None or dtype is dtypes.float16:
        return dtype
    taken = [as_dtype(name) for name in known.split()]
    return next((each for each in (dtype, *_WIDER.get(dtype, ())) if each in taken), None)

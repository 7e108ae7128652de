"""`TensorProto` messages of values, and the arrays of such messages: `make_tensor_proto` and `make_ndarray`."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.formats.tensor_fields import STRINGS, field_of
from aioflow.formats.tensor_proto import decode_tensor
from aioflow.graph import dtypes
from aioflow.graph.arrays import to_array
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.shapes import ShapeLike, dims_of, format_dims
from aioflow.memory.copying import native
from aioflow.memory.values import Array
from aioflow.protos import Message, message

__all__ = ["make_ndarray", "make_tensor_proto"]

# The dtypes whose elements TensorFlow writes in their memory layout; it lists those of all others.
_PACKED: Final = frozenset(
    {
        *(dtypes.bfloat16, dtypes.float16, dtypes.float32, dtypes.float64),
        *(dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64),
    }
)


def make_tensor_proto(
    values: Any,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    verify_shape: bool = False,
    allow_broadcast: bool = False,
) -> Message:
    """Return a `TensorProto` of a value.

    Args:
        values: A number, bool, string, array, or nested list. A `TensorProto` is returned unchanged.
        dtype: Element type; inferred by default, as by `constant`.
        shape: Shape of the tensor; by default that of the value. The last element stands for all that are missing.
        verify_shape: Whether the value must have the given shape.
        allow_broadcast: Whether a value of another shape must be a single element, which is repeated.

    Raises:
        DTypeError: the value is None or of another kind, or it does not have the given shape.
        InvalidArgumentError: the value has more elements than the shape, or both flags are True.
    """
    if verify_shape and allow_broadcast:
        raise InvalidArgumentError("verify_shape and allow_broadcast exclude each other", expected="one", actual="both")
    if isinstance(values, message("TensorProto")):
        return values
    wanted = None if dtype is None else as_dtype(dtype)
    array = to_array(values, wanted)
    kind = wanted or as_dtype(array.dtype)
    sizes = array.shape if shape is None else _sizes(array, shape, verify_shape, allow_broadcast)
    made = message("TensorProto")(dtype=kind.as_datatype_enum)
    made.tensor_shape.SetInParent()
    for size in sizes:
        made.tensor_shape.dim.add(size=size)
    count = math.prod(sizes)
    if kind in _PACKED and array.size == count > 1:
        made.tensor_content = native(array).tobytes()
    else:
        _list_elements(made, array, kind)
    return made


def _sizes(array: Array, shape: ShapeLike, verify: bool, broadcast: bool) -> tuple[int, ...]:
    dims = dims_of(shape)
    if dims is None or None in dims:
        raise DTypeError("the shape is not fully known", expected="known sizes", actual=format_dims(dims))
    sizes = tuple(size for size in dims if size is not None)
    count = math.prod(sizes)
    is_wrong = array.shape not in ((), (1,)) and array.size != count if broadcast else verify and array.shape != sizes
    if is_wrong:
        raise DTypeError("the value does not have the given shape", expected=sizes, actual=array.shape)
    if not broadcast and array.size > count:
        raise InvalidArgumentError("too many elements", expected=f"at most {count}", actual=array.size)
    return sizes


def _list_elements(made: Message, array: Array, dtype: DType) -> None:
    """Fill the field that has one entry per element."""
    field, flat = field_of(dtype), array.reshape(-1)
    if field is not STRINGS:
        if dtype.is_complex or field.stored == np.uint8:
            flat = flat.view(field.stored)
        elif dtype.np_dtype.itemsize == 2 and dtype.is_floating:
            flat = flat.view(np.uint16)
        else:
            flat = flat.astype(field.stored)
    if field.stored == np.uint8:
        made.float8_val = flat.tobytes()
    else:
        getattr(made, field.name).extend(flat.tolist())


def make_ndarray(tensor: Message) -> Array:
    """Return the array of a `TensorProto`, ours or TensorFlow's; strings are bytes objects.

    Raises:
        DTypeError: the argument is not a TensorProto, or its dtype has no elements.
        InvalidArgumentError: the elements do not fit the shape.
    """
    if type(tensor).__name__ != "TensorProto":
        raise DTypeError("not a tensor message", expected="a TensorProto", actual=type(tensor).__name__)
    dtype = as_dtype(tensor.dtype)
    field_of(dtype)
    return decode_tensor(tensor.SerializeToString(), dtype)

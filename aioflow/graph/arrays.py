"""From Python values to arrays: the one place that decides the dtype of a constant or feed and refuses lossy casts."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, can_cast_feed

__all__ = ["Array", "string_array", "to_array"]

Array: TypeAlias = np.ndarray[Any, Any]


def to_array(value: Any, dtype: DType | None = None) -> Array:
    """An array of `dtype`, or of the dtype that the value suggests: Python ints are int32 (int64 where they need it),
    Python floats float32, NumPy values keep theirs.

    Raises:
        DTypeError: the value is of another kind (a float for an int, text for a number).
        InvalidArgumentError: the nesting is ragged, or an integer does not fit the dtype.
    """
    if dtype is dtypes.string:
        return string_array(value)
    array = _as_numpy(value, dtype)
    if array.dtype.kind in "SU":
        if dtype is not None:
            raise _wrong_dtype(value, dtype)
        return string_array(value)
    if array.dtype.kind == "O":
        return _from_objects(value, array, dtype)
    if dtype is None:
        return array if isinstance(value, np.ndarray | np.generic) else _narrow(array)
    return _cast(array, dtype, isinstance(value, np.ndarray | np.generic))


def _as_numpy(value: Any, dtype: DType | None) -> Array:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        wanted = "a rectangular nesting" if dtype is None else f"a rectangular nesting of {dtype}"
        raise InvalidArgumentError(
            "cannot make an array of the value", expected=wanted, actual=_brief(value)
        ) from error


def _narrow(array: Array) -> Array:
    """Python's float64 and int64 become the engine's defaults, float32 and int32, where nothing is lost."""
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64 and (array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)):
        return array.astype(np.int32)
    return array


def _cast(array: Array, dtype: DType, typed: bool) -> Array:
    wanted = dtype.np_dtype
    if array.dtype == wanted:
        return array
    if array.size == 0 and not typed:
        return array.astype(wanted)
    if not can_cast_feed(dtypes.as_dtype(array.dtype), dtype):
        raise _wrong_dtype(array, dtype)
    with np.errstate(all="ignore"):
        result = array.astype(wanted)
    if dtype.is_integer and not np.array_equal(result, array):
        raise InvalidArgumentError(
            f"a value does not fit {dtype}",
            expected=f"{dtype.min}..{dtype.max}",
            actual=f"{array.min()}..{array.max()}",
        )
    return result


def _from_objects(value: Any, array: Array, dtype: DType | None) -> Array:
    flat = array.reshape(-1)
    if dtype is None and all(isinstance(v, str | bytes) for v in flat):
        return string_array(value)
    if dtype in (dtypes.resource, dtypes.variant):
        return array
    if flat.size and all(isinstance(v, int) for v in flat):
        raise InvalidArgumentError(
            f"a value does not fit {dtype or 'any integer dtype'}",
            expected="at most 64 bits" if dtype is None else f"{dtype}",
            actual=_brief(value),
        )
    raise _wrong_dtype(value, dtype)


def string_array(value: Any) -> Array:
    """An object array of `bytes`; text is encoded as UTF-8.

    Raises:
        DTypeError: an element is neither text nor bytes.
        InvalidArgumentError: a text has no UTF-8 form (a lone surrogate).
    """
    # dtype=object keeps trailing NUL bytes, which NumPy's own "S" dtype would drop
    array = np.asarray(value, dtype=object)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        array = value.astype(object)
    result = np.empty(array.shape, dtype=object)
    for index, item in np.ndenumerate(array):
        if isinstance(item, str):
            item = _encoded(item)
        if not isinstance(item, bytes):
            raise DTypeError("not a string", expected="str or bytes", actual=_brief(item))
        result[index] = bytes(item)  # not a subclass, such as NumPy's
    return result


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("not valid text", expected="text with a UTF-8 form", actual=_brief(text)) from error


def _wrong_dtype(value: Any, dtype: DType | None) -> DTypeError:
    kind = getattr(value, "dtype", None) or type(value).__name__
    return DTypeError(
        "the value has the wrong dtype",
        expected="numbers, bools or strings" if dtype is None else dtype.name,
        actual=f"{_brief(value)} ({kind})",
    )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

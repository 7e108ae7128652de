"""Conversion of Python values to arrays: the single place that selects dtypes and rejects lossy casts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from aioflow.arguments import brief
from aioflow.concurrency.stopping import batches, blocks
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, can_cast_feed
from aioflow.memory.copying import copy_into, native, row_blocks
from aioflow.memory.values import Array

_MANY: Final = 1 << 12  # Python values that take some hundred microseconds to convert
_LARGE: Final = 1 << 18  # bytes of an array that take as long to cast
_DEEPEST: Final = 64  # most dimensions of a NumPy array


def blank(dims: Sequence[int], dtype: Any) -> Array:
    """Return zeros of a NumPy dtype, or empty strings. Large arrays of zeros take no time until they are written."""
    kind = np.dtype(dtype)
    return np.full(dims, b"", kind) if kind.hasobject else np.zeros(dims, kind)


def to_array(value: Any, dtype: DType | None = None) -> Array:
    """Return the value as an array of `dtype`, or of the dtype that the value suggests.

    Python ints suggest int32 (int64 if they need it), Python floats float32; NumPy values keep their dtype. Numbers are
    in native byte order. The result may be the value itself, or share its memory.

    Raises:
        DTypeError: the value is of a different kind (a float for an int, text for a number), the nesting is ragged or
            too deep, an integer does not fit the dtype, or elements are masked.
        InvalidArgumentError: text has no UTF-8 form (a lone surrogate).
    """
    # First, because every conversion below would silently return the data under the mask.
    _check_unmasked(value)
    # Without a dtype the whole list must be seen at once: one late float decides the dtype of all.
    if isinstance(value, list | tuple) and _leaves(value) > _MANY and dtype is not None:
        return _from_long_list(value, dtype)
    if dtype is dtypes.string:
        return string_array(value)
    array = _as_numpy(value, dtype)
    # NumPy turns a list that mixes numbers and text into text. For a numeric dtype that is an error.
    if array.dtype.kind in "SU":
        if dtype is not None:
            raise _wrong_dtype(value, dtype)
        return string_array(value)
    if array.dtype.kind == "O":
        return _from_objects(value, array, dtype)
    if dtype is None:
        # A NumPy value states its dtype on purpose. A Python number has NumPy's default, which is narrowed.
        return native(array) if isinstance(value, np.ndarray | np.generic) else _narrow(array)
    return _cast(array, dtype, isinstance(value, np.ndarray | np.generic))


def _check_unmasked(value: Any) -> None:
    """Raise DTypeError if elements are masked: the data below a mask is meaningless."""
    items = value if isinstance(value, list | tuple) else (value,)
    # NumPy imports numpy.ma, in 10 ms, on the first access to `np.ma`. If it is not imported yet, no array has a mask.
    if type(value) is np.ndarray or "numpy.ma" not in sys.modules:
        return
    # Only a list of arrays is searched: one of a million numbers would take tens of milliseconds on the event loop.
    if not items or not isinstance(items[0], np.ndarray):
        return
    masked = sum(int(np.sum(np.ma.getmaskarray(item))) for item in items if isinstance(item, np.ma.MaskedArray))
    if masked:
        raise DTypeError(
            "the value has masked elements, and a tensor has none",
            expected="an array without a mask, such as value.filled(0)",
            actual=f"{masked} masked elements",
        )


def takes_long(value: Any, dtype: DType) -> bool:
    """Return whether `to_array` takes longer than a round trip to a thread."""
    if isinstance(value, list | tuple):
        return _leaves(value) > _MANY
    size = getattr(value, "nbytes", 0)
    many = _LARGE if dtype is not dtypes.string else 8 * _MANY
    return isinstance(size, int) and size > many


def _leaves(value: Any) -> int:
    """Return the number of elements of a nesting, assuming that it is regular. Raises DTypeError if it is too deep."""
    count, depth = 1, 0
    while isinstance(value, list | tuple) and value:
        depth += 1
        check_depth(depth)
        count *= len(value)
        # Only the first element of each level is followed: a ragged nesting fails in the conversion itself.
        value = value[0]
    # Arrays inside a list count with all their elements.
    return count * int(getattr(value, "size", 1)) if isinstance(value, np.ndarray) else count


def check_depth(depth: int) -> None:
    """Raise DTypeError if lists are nested deeper than any array can be, such as a list that contains itself."""
    if depth > _DEEPEST:
        raise DTypeError("the value is nested too deeply", expected=f"at most {_DEEPEST} levels", actual="more")


def _from_long_list(value: list[Any] | tuple[Any, ...], dtype: DType) -> Array:
    """Convert a long list piece by piece: NumPy holds the GIL while it reads Python values."""
    each = _leaves(value) // len(value)
    try:
        # Long inner lists are converted one by one, short ones in groups: each piece takes about the same time.
        if each > _MANY:
            return np.stack([to_array(item, dtype) for item in batches(value, 1)])
        return np.concatenate([to_array(value[part], dtype) for part in blocks(len(value), _MANY // each)])
    except ValueError as error:
        # `InvalidArgumentError` is a ValueError too, and already states its reason.
        if isinstance(error, InvalidArgumentError):
            raise
        raise _not_rectangular(value, dtype) from error


def _not_rectangular(value: Any, dtype: DType | None) -> DTypeError:
    wanted = "a rectangular nesting" if dtype is None else f"a rectangular nesting of {dtype}"
    return DTypeError("cannot make an array of the value", expected=wanted, actual=brief(value))


def _as_numpy(value: Any, dtype: DType | None) -> Array:
    try:
        return np.asarray(value)
    except InvalidArgumentError:
        raise  # from an element's own conversion, which gives the reason
    except (ValueError, TypeError) as error:
        raise _not_rectangular(value, dtype) from error


def _narrow(array: Array) -> Array:
    """Convert Python's float64 and int64 to the defaults, float32 and int32, if integers fit."""
    if array.dtype == np.float64:
        return array.astype(np.float32)
    # An empty int64 array has no minimum, so its size is tested first.
    if array.dtype == np.int64 and (array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)):
        return array.astype(np.int32)
    return array


def _cast(array: Array, dtype: DType, typed: bool) -> Array:
    wanted = dtype.np_dtype
    if array.dtype == wanted:
        return array
    # An empty list has NumPy's default dtype float64, which says nothing about the intended one.
    if array.size == 0 and not typed:
        return array.astype(wanted)
    if not can_cast_feed(dtypes.as_dtype(array.dtype), dtype):
        raise _wrong_dtype(array, dtype)
    # `empty_like` keeps the memory order of the operand, so the copy runs over both in the order of memory.
    result = np.empty_like(array, wanted, subok=False)
    # An overflow is found below, with the values in its message, so NumPy's warning is not needed.
    with np.errstate(all="ignore"):
        copy_into(result, array)
    # Comparing afterwards finds overflows in any combination of integer types.
    if dtype.is_integer and not _equal(result, array):
        raise DTypeError(
            f"a value does not fit {dtype}",
            expected=f"{dtype.min}..{dtype.max}",
            actual=f"{array.min()}..{array.max()}",
        )
    return result


def _equal(one: Array, other: Array) -> bool:
    # An array of shape () has no rows to compare in blocks.
    if one.ndim == 0:
        return bool(one == other)
    return all(np.array_equal(one[part], other[part]) for part in row_blocks(one))


def _from_objects(value: Any, array: Array, dtype: DType | None) -> Array:
    flat = array.reshape(-1)
    if dtype is None and all(isinstance(v, str | bytes) for v in flat):
        return string_array(value)
    if dtype in (dtypes.resource, dtypes.variant):
        return array
    # An object array may come from a table's column and hold numbers only.
    plain = _plain_numbers(array)
    if plain is not None:
        return to_array(plain, dtype)
    if flat.size and all(isinstance(v, int) for v in flat):
        if dtype is not None and (dtype.is_floating or dtype.is_complex):
            # NumPy stores ints of more than 64 bits as objects, but a float may still hold them.
            with suppress(OverflowError):  # raised by an int that is larger than any float
                return _cast(np.array([float(v) for v in flat]).reshape(array.shape), dtype, typed=False)
        raise DTypeError(
            f"a value does not fit {dtype or 'any integer dtype'}",
            expected="at most 64 bits" if dtype is None else f"{dtype}",
            actual=brief(value),
        )
    raise _wrong_dtype(value, dtype)


def _plain_numbers(array: Array) -> Any:
    """Return the numbers in an object array as a nested list, or None if it holds anything else."""
    if not array.size:
        # Elements that don't exist contradict no dtype.
        return np.empty(array.shape, np.bool_)  # can be cast to any dtype
    # `reshape(-1)` rather than `flat`, which supports at most 32 dimensions.
    if not all(isinstance(item, int | float | complex | np.number | np.bool_) for item in array.reshape(-1)):
        return None
    items = array.tolist()
    return None if np.asarray(items).dtype.hasobject else items  # an integer of more than 64 bits


def holds_bytes(array: Array) -> bool:
    """Return whether all elements of an object array are `bytes`, as in the engine's string tensors."""
    # `flat` supports at most 32 dimensions.
    flat = array.reshape(-1)
    if flat.size <= _MANY:
        # `set(map(type, …))` runs in C. A generator would execute Python code for each element.
        return set(map(type, flat)) <= {bytes}
    return all(set(map(type, flat[part])) <= {bytes} for part in blocks(flat.size, _MANY))


def string_array(value: Any) -> Array:
    """Return an object array of `bytes`; text is encoded as UTF-8.

    Raises:
        DTypeError: an element is neither text nor bytes.
        InvalidArgumentError: text has no UTF-8 form (a lone surrogate).
    """
    # dtype=object keeps trailing NUL bytes, which NumPy's "S" dtype would drop.
    is_text = isinstance(value, np.ndarray) and value.dtype.kind in "SU"
    array = np.asarray(value).astype(object) if is_text else np.asarray(value, dtype=object)
    result = np.empty(array.size, dtype=object)
    for index, item in enumerate(batches(array.reshape(-1))):
        result[index] = _as_bytes(item)
    return result.reshape(array.shape)


def _as_bytes(item: Any) -> bytes:
    if isinstance(item, str):
        item = _encoded(item)
    if not isinstance(item, bytes):
        raise DTypeError("not a string", expected="str or bytes", actual=brief(item))
    return bytes(item)  # converts subclasses, such as NumPy's


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("not valid text", expected="text with a UTF-8 form", actual=brief(text)) from error


def _wrong_dtype(value: Any, dtype: DType | None) -> DTypeError:
    kind = getattr(value, "dtype", None) or type(value).__name__
    how = ""
    if dtype is not None and (dtype.is_integer or dtype.is_bool) and getattr(kind, "kind", "O") in "biuf":
        how = f"; `np.asarray(value, {dtype.name!r})` converts it"
    return DTypeError(
        f"the value has the wrong dtype{how}",
        expected="numbers, bools or strings" if dtype is None else dtype.name,
        actual=f"{brief(value)} ({kind})",
    )

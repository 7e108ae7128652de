"""From Python values to arrays: the one place that decides the dtype of a constant or feed and refuses lossy casts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.checks.brief import brief
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, can_cast_feed
from aioflow.work.copying import copy_into, native, row_blocks
from aioflow.work.stopping import batches, blocks

__all__ = ["Array", "blank", "check_depth", "holds_bytes", "string_array", "takes_long", "to_array"]

_MANY: Final = 1 << 12  # Python values, which become an array in some hundred microseconds
_LARGE: Final = 1 << 18  # bytes of an array, which are cast in that time
_DEEPEST: Final = 64  # dimensions that an array of NumPy may have

Array: TypeAlias = np.ndarray[Any, Any]


def blank(dims: Sequence[int], dtype: Any) -> Array:
    """Zeros of a NumPy dtype; of strings, empty ones. Many zeros take no time before they are touched."""
    kind = np.dtype(dtype)
    return np.full(dims, b"", kind) if kind.hasobject else np.zeros(dims, kind)


def to_array(value: Any, dtype: DType | None = None) -> Array:
    """An array of `dtype`, or of the dtype that the value suggests: Python ints are int32 (int64 where they need it),
    Python floats float32, NumPy values keep theirs. Numbers are in the byte order of the processor.

    Raises:
        DTypeError: the value is of a different kind (a float for an int, text for a number), the nesting is ragged, an
            integer does not fit the dtype, or elements are masked.
    """
    _check_unmasked(value)
    if isinstance(value, list | tuple) and _leaves(value) > _MANY and dtype is not None:
        return _from_long_list(value, dtype)
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
        return native(array) if isinstance(value, np.ndarray | np.generic) else _narrow(array)
    return _cast(array, dtype, isinstance(value, np.ndarray | np.generic))


def _check_unmasked(value: Any) -> None:
    """Raise DTypeError where elements are masked: what lies under the mask is there still, and means nothing."""
    items = value if isinstance(value, list | tuple) else (value,)
    # NumPy imports numpy.ma, in 10 ms, for whoever asks for `np.ma`; where nobody has yet, no array has a mask.
    if not items or type(items[0]) is np.ndarray or "numpy.ma" not in sys.modules:
        return
    if not isinstance(items[0], np.ma.MaskedArray):
        return
    masked = sum(int(np.sum(np.ma.getmaskarray(item))) for item in items if isinstance(item, np.ma.MaskedArray))
    if masked:
        raise DTypeError(
            "the value has masked elements, and a tensor has none",
            expected="an array without a mask, such as value.filled(0)",
            actual=f"{masked} masked elements",
        )


def takes_long(value: Any, dtype: DType) -> bool:
    """Whether `to_array` takes longer than a thread takes to answer."""
    if isinstance(value, list | tuple):
        return _leaves(value) > _MANY
    size = getattr(value, "nbytes", 0)
    many = _LARGE if dtype is not dtypes.string else 8 * _MANY
    return isinstance(size, int) and size > many


def _leaves(value: Any) -> int:
    """How many elements a nesting has, if it is as regular as it begins. Raises DTypeError where it does not end."""
    count, depth = 1, 0
    while isinstance(value, list | tuple) and value:
        depth += 1
        check_depth(depth)
        count *= len(value)
        value = value[0]
    return count * int(getattr(value, "size", 1)) if isinstance(value, np.ndarray) else count


def check_depth(depth: int) -> None:
    """Raise DTypeError where lists are nested deeper than any array, as one is that contains itself."""
    if depth > _DEEPEST:
        raise DTypeError("the value is nested too deeply", expected=f"at most {_DEEPEST} levels", actual="more")


def _from_long_list(value: list[Any] | tuple[Any, ...], dtype: DType) -> Array:
    """Piece by piece, since nothing else can run while NumPy looks at Python's values."""
    each = _leaves(value) // len(value)
    try:
        if each > _MANY:
            return np.stack([to_array(item, dtype) for item in batches(value, 1)])
        return np.concatenate([to_array(value[part], dtype) for part in blocks(len(value), _MANY // each)])
    except ValueError as error:
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
        raise  # of an element that has no array, and says why
    except (ValueError, TypeError) as error:
        raise _not_rectangular(value, dtype) from error


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
    result = np.empty_like(array, wanted, subok=False)
    with np.errstate(all="ignore"):
        copy_into(result, array)
    if dtype.is_integer and not _equal(result, array):
        raise DTypeError(
            f"a value does not fit {dtype}",
            expected=f"{dtype.min}..{dtype.max}",
            actual=f"{array.min()}..{array.max()}",
        )
    return result


def _equal(one: Array, other: Array) -> bool:
    if one.ndim == 0:
        return bool(one == other)
    return all(np.array_equal(one[part], other[part]) for part in row_blocks(one))


def _from_objects(value: Any, array: Array, dtype: DType | None) -> Array:
    flat = array.reshape(-1)
    if dtype is None and all(isinstance(v, str | bytes) for v in flat):
        return string_array(value)
    if dtype in (dtypes.resource, dtypes.variant):
        return array
    plain = _plain_numbers(array)
    if plain is not None:
        return to_array(plain, dtype)
    if flat.size and all(isinstance(v, int) for v in flat):
        if dtype is not None and (dtype.is_floating or dtype.is_complex):
            with suppress(OverflowError):  # of an int that no float is as large as
                return _cast(np.array([float(v) for v in flat]).reshape(array.shape), dtype, typed=False)
        raise DTypeError(
            f"a value does not fit {dtype or 'any integer dtype'}",
            expected="at most 64 bits" if dtype is None else f"{dtype}",
            actual=brief(value),
        )
    raise _wrong_dtype(value, dtype)


def _plain_numbers(array: Array) -> Any:
    """What an object array of numbers means: the nested list of them, or None where it holds anything else."""
    if not array.size:
        return np.empty(array.shape, np.bool_)  # which becomes any dtype
    if not all(
        isinstance(item, int | float | complex | np.number | np.bool_) for item in array.reshape(-1)
    ):  # `flat` has 32 dimensions at most
        return None
    items = array.tolist()
    return None if np.asarray(items).dtype.hasobject else items  # an integer of more than 64 bits


def holds_bytes(array: Array) -> bool:
    """Whether an object array is one of strings as the engine has them: of nothing but `bytes`."""
    flat = array.reshape(-1)  # `flat` has 32 dimensions at most
    if flat.size <= _MANY:
        return set(map(type, flat)) <= {bytes}
    return all(set(map(type, flat[part])) <= {bytes} for part in blocks(flat.size, _MANY))


def string_array(value: Any) -> Array:
    """An object array of `bytes`; text is encoded as UTF-8.

    Raises:
        DTypeError: an element is neither text nor bytes.
        InvalidArgumentError: text has no UTF-8 form (a lone surrogate).
    """
    # dtype=object keeps trailing NUL bytes, which NumPy's own "S" dtype would drop
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
    return bytes(item)  # not a subclass, such as NumPy's


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

"""Converters of kernel inputs: from small arrays of axes, shapes and sizes to Python values, and checks of handles.

They receive values in host memory. Values on a device with its own memory are fetched first, except for the converters
in `OF_ONE_ELEMENT` (`runtime/bind.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from aioflow.errors import DTypeError, InvalidArgumentError, ResourceExhaustedError
from aioflow.graph.shapes import Dims, broadcast_dims, format_dims, is_compatible
from aioflow.memory.values import Array

T = TypeVar("T")
_ADDRESSES: Final = 2**47  # bytes that a process can address, so no array has more elements


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which these broadcast, of any rank. Raise InvalidArgumentError if they do not."""
    return tuple(size for size in broadcast_dims(shapes) or () if size is not None)


def check_rank(what: str, value: npt.ArrayLike, rank: int) -> None:
    """Raise InvalidArgumentError unless the value has that rank."""
    if np.ndim(value) != rank:
        raise InvalidArgumentError(f"{what} has the wrong rank", expected=f"rank {rank}", actual=np.shape(value))


def check_shape(value: object, dims: Dims) -> None:
    """Raise InvalidArgumentError unless the value fits that shape."""
    shape = getattr(value, "shape", ())  # a string, a handle and a list of tensors have no shape
    if not is_compatible(dims, shape):
        raise InvalidArgumentError(
            "the tensor does not have the shape", expected=format_dims(dims), actual=format_dims(shape)
        )


def check_room(sizes: Iterable[int]) -> None:
    """Raise ResourceExhaustedError, before an allocation, if no memory can hold an array of that shape."""
    # Zeros are skipped because NumPy multiplies the other sizes even if the array is empty.
    shape = tuple(sizes)
    if math.prod(size for size in shape if size) > _ADDRESSES:
        raise ResourceExhaustedError("the array is too large", expected=f"at most {_ADDRESSES} elements", actual=shape)


class ResourceConverter:
    """A converter that passes resources of one kind and rejects others, since a handle may come from any node."""

    __slots__ = ("kind",)

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __call__(self, value: T) -> T:
        """Return `value`. Raise InvalidArgumentError if it is of a different kind."""
        if isinstance(value, self.kind):
            return value
        raise InvalidArgumentError(
            "the handle belongs to a different kind of resource",
            expected=self.kind.__name__,
            actual=type(value).__name__,
        )


def as_int(value: Any) -> int:
    """Return a scalar (or a one-element array) as int. Raise InvalidArgumentError for other shapes."""
    return int(value) if np.ndim(value) == 0 else int(_only(value))


def as_bool(value: Any) -> bool:
    """Return a scalar (or a one-element array) as bool. Raise InvalidArgumentError for other shapes."""
    return bool(value) if np.ndim(value) == 0 else bool(_only(value))


# Converters that call Python's `int` and `bool`, which accept arrays of every library, so that no fetch is needed.
OF_ONE_ELEMENT: Final = frozenset({as_int, as_bool})


def _only(array: Array) -> Any:
    if array.size != 1:
        raise InvalidArgumentError("an input must be a scalar", expected="shape ()", actual=array.shape)
    return array.reshape(-1)[0]


def as_ints(value: Any) -> tuple[int, ...]:
    """Return a vector, or a scalar, as a tuple of ints."""
    return tuple(np.asarray(value).reshape(-1).tolist())


def as_number(value: Any) -> int | float:
    """Return a scalar as an exact Python number. Raise InvalidArgumentError for other shapes."""
    # Not `item.item()`, which bfloat16 does not convert to a Python number.
    item = _only(as_array(value))
    return int(item) if item.dtype.kind in "iu" else float(item)


def as_sizes(value: Any) -> tuple[int, ...]:
    """Return a shape vector as a tuple of ints.

    Raises:
        InvalidArgumentError: a size is negative.
        ResourceExhaustedError: no memory can hold such an array.
    """
    sizes = as_ints(value)
    if sizes:
        if min(sizes) < 0:
            raise InvalidArgumentError("a size cannot be negative", expected="sizes >= 0", actual=list(sizes))
        check_room(sizes)
    return sizes


def as_bytes(value: Any) -> bytes:
    """Return a string scalar as bytes. Raise InvalidArgumentError for other shapes, DTypeError for other dtypes."""
    item = _only(value) if isinstance(value, np.ndarray) else value
    if not isinstance(item, bytes):
        raise DTypeError("an input must be a string", expected="bytes", actual=type(item).__name__)
    return item


def as_text(value: Any) -> str:
    """Return a string scalar as str. Raise InvalidArgumentError if it is not a scalar or not UTF-8."""
    item = as_bytes(value)
    try:
        return item.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("not valid text", expected="UTF-8", actual=item[:60]) from error


def as_array(value: Any) -> Array:
    """Return the value as a NumPy array."""
    return np.asarray(value)

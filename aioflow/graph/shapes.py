"""Partially known shapes.

Inside the engine a static shape is plain data, `Dims`: None for an unknown rank, otherwise a tuple with None for each
unknown size. `TensorShape` and `Dimension` wrap it for users, with their semantics in the TensorFlow 1 API.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from aioflow.errors import DTypeError, InvalidArgumentError

Dims: TypeAlias = tuple[int | None, ...] | None
MAX_RANK: Final = 64  # the maximum rank of a NumPy array


class Dimension:
    """One size of a shape, possibly unknown. Compares equal to the int (or None) in `value`.

    Arithmetic with an unknown size yields an unknown size; an order comparison with one yields None.

    Raises:
        DTypeError: the size, or an operand, is not an integer or None.
        InvalidArgumentError: the size, an operand or a result is negative.
    """

    __slots__ = ("value",)

    def __init__(self, value: int | Dimension | None) -> None:
        self.value: int | None = _known_or_none(value)

    def __int__(self) -> int:
        if self.value is None:
            raise DTypeError("the dimension is unknown", expected="a known size", actual="?")
        return self.value

    __index__ = __int__

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the size as an array, so that it may be an element of an operand, as in `zeros([x.shape[0], 3])`."""
        return np.asarray(int(self), dtype)

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Dimension) else other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Dimension({self.value})"

    def __str__(self) -> str:
        return "?" if self.value is None else str(self.value)

    def _apply(self, other: SizeLike, combine: Callable[[int, int], int]) -> Dimension:
        # A tensor has no `__index__`; its own operator then builds a node.
        if not isinstance(other, Dimension | SupportsIndex | None):
            return NotImplemented  # then the tensor's reflected operator runs
        return Dimension(_combined(self, other, combine))

    def __add__(self, other: SizeLike) -> Dimension:
        return self._apply(other, operator.add)

    def __sub__(self, other: SizeLike) -> Dimension:
        return self._apply(other, operator.sub)

    def __rsub__(self, other: SizeLike) -> Dimension:
        return Dimension(other)._apply(self, operator.sub)

    def __mul__(self, other: SizeLike) -> Dimension:
        return self._apply(other, operator.mul)

    def __floordiv__(self, other: SizeLike) -> Dimension:
        return self._apply(other, operator.floordiv)

    def __rfloordiv__(self, other: SizeLike) -> Dimension:
        return Dimension(other)._apply(self, operator.floordiv)

    def __mod__(self, other: SizeLike) -> Dimension:
        return self._apply(other, operator.mod)

    def __rmod__(self, other: SizeLike) -> Dimension:
        return Dimension(other)._apply(self, operator.mod)

    __radd__ = __add__
    __rmul__ = __mul__

    def __lt__(self, other: SizeLike) -> bool | None:
        return _combined(self, other, operator.lt)

    def __le__(self, other: SizeLike) -> bool | None:
        return _combined(self, other, operator.le)

    def __gt__(self, other: SizeLike) -> bool | None:
        return _combined(self, other, operator.gt)

    def __ge__(self, other: SizeLike) -> bool | None:
        return _combined(self, other, operator.ge)

    def is_compatible_with(self, other: int | Dimension | None) -> bool:
        """Return True if both could be the same size."""
        # The constructor checks the operand: a negative size is an error, not merely incompatible.
        right = Dimension(other).value
        return self.value is None or right is None or self.value == right

    def assert_is_compatible_with(self, other: int | Dimension | None) -> None:
        """Raise InvalidArgumentError unless `is_compatible_with(other)`."""
        if not self.is_compatible_with(other):
            raise InvalidArgumentError("dimensions are not compatible", expected=self, actual=Dimension(other))

    def merge_with(self, other: int | Dimension | None) -> Dimension:
        """Return the known size of either. Raise InvalidArgumentError if both are known and differ."""
        self.assert_is_compatible_with(other)
        # A new object in either case, so that the result shares no state with the operands.
        return Dimension(other) if self.value is None else Dimension(self.value)


SizeLike: TypeAlias = int | Dimension | None
_T = TypeVar("_T")


def _known_or_none(value: Any) -> int | None:
    if value is None or isinstance(value, Dimension):
        return None if value is None else value.value
    # `__index__`, not `int()`: a float or a text must not pass as a size.
    try:
        size = int(value.__index__())
    except (AttributeError, TypeError):
        raise DTypeError("not a size", expected="an integer or None", actual=repr(value)) from None
    if size < 0:
        raise InvalidArgumentError("a size cannot be negative", expected="an integer >= 0 or None", actual=size)
    return size


def _combined(left: Dimension, right: SizeLike, combine: Callable[[int, int], _T]) -> _T | None:
    other = Dimension(right).value
    return None if left.value is None or other is None else combine(left.value, other)


class TensorShape:
    """A shape whose rank or sizes may be unknown.

    Args:
        dims: None (unknown rank), an iterable of ints, None, -1 (unknown) and Dimensions, or another TensorShape.
    """

    __slots__ = ("_dims",)

    def __init__(self, dims: ShapeLike | None) -> None:
        self._dims: Dims = dims_of(dims)

    @property
    def raw(self) -> Dims:
        """The shape as plain data: a tuple of ints and None, or None."""
        return self._dims

    @property
    def dims(self) -> list[Dimension] | None:
        """The sizes as Dimensions, or None for an unknown rank."""
        return None if self._dims is None else [Dimension(d) for d in self._dims]

    @property
    def ndims(self) -> int | None:
        """The rank, or None."""
        return None if self._dims is None else len(self._dims)

    rank = ndims

    def as_list(self) -> list[int | None]:
        """Return the sizes as ints and None. Raises InvalidArgumentError if the rank is unknown."""
        return list(self._known())

    def num_elements(self) -> int | None:
        """Return the product of the sizes, or None if a size or the rank is unknown."""
        return num_elements(self._dims)

    def is_fully_defined(self) -> bool:
        """Return True if the rank and every size are known."""
        return self._dims is not None and None not in self._dims

    def is_compatible_with(self, other: ShapeLike | None) -> bool:
        """Return True if some fully known shape is compatible with both."""
        return is_compatible(self._dims, dims_of(other))

    def assert_is_compatible_with(self, other: ShapeLike | None) -> None:
        """Raise InvalidArgumentError unless `is_compatible_with(other)`."""
        if not self.is_compatible_with(other):
            raise InvalidArgumentError("shapes are not compatible", expected=self, actual=TensorShape(other))

    def merge_with(self, other: ShapeLike | None) -> TensorShape:
        """Combine the known sizes of both shapes. Raise InvalidArgumentError if they conflict."""
        return TensorShape(merge_dims(self._dims, dims_of(other)))

    def concatenate(self, other: ShapeLike | None) -> TensorShape:
        """Return the sizes of self followed by those of other."""
        right = dims_of(other)
        return TensorShape(None if self._dims is None or right is None else self._dims + right)

    def with_rank(self, rank: int) -> TensorShape:
        """Return self, restricted to `rank` dimensions. Raise InvalidArgumentError if the known rank differs."""
        # Merging with that many unknown sizes checks a known rank and sets an unknown one.
        return self.merge_with((None,) * operator.index(rank))

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """Return self if its rank can be `rank` or more. Raise InvalidArgumentError otherwise."""
        if self._dims is not None and len(self._dims) < rank:
            raise InvalidArgumentError("the shape has the wrong rank", expected=f"rank >= {rank}", actual=self)
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """Return self if its rank can be `rank` or less. Raise InvalidArgumentError otherwise."""
        if self._dims is not None and len(self._dims) > rank:
            raise InvalidArgumentError("the shape has the wrong rank", expected=f"rank <= {rank}", actual=self)
        return self

    def assert_has_rank(self, rank: int) -> None:
        """Raise InvalidArgumentError unless the rank is `rank`, or unknown."""
        self.with_rank(rank)

    def assert_same_rank(self, other: ShapeLike | None) -> None:
        """Raise InvalidArgumentError if both ranks are known and differ."""
        dims = dims_of(other)
        if dims is not None:
            self.with_rank(len(dims))

    def assert_is_fully_defined(self) -> None:
        """Raise InvalidArgumentError unless `is_fully_defined()`."""
        if not self.is_fully_defined():
            raise InvalidArgumentError("the shape is not fully defined", expected="known sizes", actual=self)

    def _known(self) -> tuple[int | None, ...]:
        if self._dims is None:
            raise InvalidArgumentError("the rank is unknown", expected="a known rank", actual="<unknown>")
        return self._dims

    def __len__(self) -> int:
        return len(self._known())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the sizes as an array. Raises DTypeError if one is unknown."""
        # The dtype is explicit because NumPy would make floats of a shape without dimensions.
        return np.array([int(size) for size in self], np.int64 if dtype is None else dtype)

    def __bool__(self) -> bool:
        return self._dims is not None

    def __iter__(self) -> Iterator[Dimension]:
        return (Dimension(d) for d in self._known())

    @overload
    def __getitem__(self, key: SupportsIndex) -> Dimension: ...

    @overload
    def __getitem__(self, key: slice) -> TensorShape: ...

    def __getitem__(self, key: SupportsIndex | slice) -> Dimension | TensorShape:
        if self._dims is None:
            # As in TensorFlow, one size of a shape of unknown rank is unknown rather than an error.
            return _slice_of_unknown(key) if isinstance(key, slice) else Dimension(None)
        return TensorShape(self._dims[key]) if isinstance(key, slice) else Dimension(self._dims[key])

    def __add__(self, other: ShapeLike | None) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: ShapeLike | None) -> TensorShape:
        return TensorShape(other).concatenate(self)

    def __eq__(self, other: object) -> bool:
        try:
            return self._dims == dims_of(other)  # type: ignore[arg-type]  # dims_of raises for a value that is not a shape
        except InvalidArgumentError:
            return False

    def __hash__(self) -> int:
        return hash(self._dims)

    def __repr__(self) -> str:
        return f"TensorShape({None if self._dims is None else list(self._dims)})"

    def __str__(self) -> str:
        return format_dims(self._dims)


# The types accepted as a shape. None, which means an unknown rank, is not included.
ShapeLike: TypeAlias = TensorShape | SupportsIndex | Iterable[SupportsIndex | None]


def _slice_of_unknown(key: slice) -> TensorShape:
    """Return the slice of a shape of unknown rank.

    `[1:3]` yields two unknown sizes; an open end, a negative bound or a step yields an unknown rank.
    """
    start, stop = key.start or 0, key.stop
    # The length of such a slice depends on the rank.
    if stop is None or start < 0 or stop < 0 or key.step not in (None, 1):
        return TensorShape(None)
    return TensorShape((None,) * max(0, stop - start))


def dims_of(value: ShapeLike | None) -> Dims:
    """Convert a user's shape to plain dims. -1 and None both mean unknown.

    Raises:
        DTypeError: a size is not an integer.
        InvalidArgumentError: a size is below -1.
    """
    if value is None:
        return None
    if isinstance(value, TensorShape):
        return value.raw
    # TensorFlow 1 reads a single integer as a vector's shape.
    if isinstance(value, int | Dimension):
        return (_size(value),)
    # A zero-dimensional array has `__iter__`, but iterating over it fails.
    if isinstance(value, Iterable) and getattr(value, "ndim", None) != 0:
        return tuple(_size(d) for d in value)
    if hasattr(value, "__index__"):
        return (_size(value),)
    raise DTypeError("not a shape", expected="None or a sequence of sizes", actual=repr(value))


def _size(value: Any) -> int | None:
    if isinstance(value, Dimension):
        return value.value
    if value is None:
        return None
    try:
        size = value.__index__()
    except (AttributeError, TypeError):
        raise DTypeError("not a size", expected="an integer, None or -1", actual=repr(value)) from None
    if size < -1:
        raise InvalidArgumentError("a size cannot be negative", expected="an integer >= 0, None or -1", actual=size)
    return None if size == -1 else int(size)


def format_dims(dims: Dims) -> str:
    """Format dims as `(2, ?)` or `<unknown>`."""
    if dims is None:
        return "<unknown>"
    inner = ", ".join("?" if d is None else str(d) for d in dims)
    return f"({inner},)" if len(dims) == 1 else f"({inner})"


def num_elements(dims: Dims) -> int | None:
    """Return the product of the sizes, or None if a size or the rank is unknown."""
    if dims is None:
        return None
    total = 1
    for size in dims:
        if size is None:
            return None
        total *= size
    return total


def check_axis(axis: int, rank: int, what: str = "axis") -> int:
    """Return `axis` counted from the front.

    Raises:
        InvalidArgumentError: a tensor of that rank does not have the axis.
    """
    if not -rank <= axis < rank:
        raise InvalidArgumentError(
            f"{what} {axis} is out of range", expected=f"{what} in [{-rank}, {rank})", actual=axis
        )
    return axis % rank


def check_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return `axes` counted from the front.

    Raises:
        InvalidArgumentError: a tensor of that rank does not have an axis, or an axis is given twice.
    """
    found = tuple([check_axis(axis, rank) for axis in axes])
    if len(set(found)) < len(found):
        raise InvalidArgumentError("an axis is given twice", expected="distinct axes", actual=list(axes))
    return found


def is_compatible(a: Dims, b: Dims) -> bool:
    """Return True if some fully known shape is compatible with both."""
    # Each unknown rank can become the other's.
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x is None or y is None or x == y for x, y in zip(a, b, strict=True))


def merge_dims(a: Dims, b: Dims) -> Dims:
    """Combine the known sizes of both. Raise InvalidArgumentError if they conflict."""
    if a is None:
        return b
    if b is None:
        return a
    if not is_compatible(a, b):
        raise InvalidArgumentError("shapes are not compatible", expected=format_dims(a), actual=format_dims(b))
    # The known sizes are equal by now, so either one fits.
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


def common_dims(a: Dims, b: Dims) -> Dims:
    """Return the most specific static shape that fits values of both."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def broadcast_dims(shapes: Sequence[Dims]) -> Dims:
    """Return the shape of the operands after NumPy's broadcasting, as far as it is known.

    Raises:
        InvalidArgumentError: two known sizes differ and neither is 1.
    """
    if any(s is None for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    rank = max((len(s) for s in known), default=0)
    # NumPy aligns shapes at the right and pads with ones on the left.
    padded = [(1,) * (rank - len(s)) + s for s in known]
    result: list[int | None] = []
    for column in zip(*padded, strict=True):
        # Ones adapt to any size, so they decide nothing.
        sizes = {d for d in column if d is not None and d != 1}
        if len(sizes) > 1:
            raise InvalidArgumentError(
                "shapes cannot be broadcast together",
                expected="sizes that are equal or 1",
                actual=" and ".join(format_dims(s) for s in shapes),
            )
        # An unknown size beside a known one other than 1 must be 1 or equal to it, so the result is known.
        result.append(sizes.pop() if sizes else (None if None in column else 1))
    return tuple(result)

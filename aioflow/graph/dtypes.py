"""Element types of tensors: one `DType` object each, with its NumPy equivalent and its public enum number.

Strings are byte strings in object arrays. bfloat16 and the narrow types come from `ml_dtypes`. Resource tensors hold
handles.

Narrow types are floats of at most 8 bits and integers of fewer than 8 bits. As in TensorFlow, their values are stored,
moved and cast, without arithmetic. In memory, on the wire and in files an element is one byte.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aioflow.errors import DTypeError

_FORMS: Final = (str, type, np.dtype, int)  # types of values that a DType is compared with
# Accepted by `as_dtype`, but TensorFlow has no dtype for them, so no DType equals them.
_UNEQUAL: Final = (int, complex, str, bytes)

# Upper case letters mark the narrow kinds.
_PLAIN: Final = "iufcbIUF"


class DType:
    """An element type. Instances are singletons.

    A DType equals each name, type, NumPy dtype and number that `as_dtype` converts to it: `x.dtype == np.float32`. Of
    Python's types, only `float`, `bool` and `object` compare equal. As in TensorFlow, the hash is that of the enum
    number, so a set or dictionary of NumPy types does not find a DType.

    Attributes:
        name: The name, such as "float32".
        as_datatype_enum: The public enum number.
        np_dtype: The NumPy dtype of arrays.
        as_numpy_dtype: The NumPy scalar type, or `object`.
    """

    __slots__ = ("_kind", "as_datatype_enum", "as_numpy_dtype", "name", "np_dtype")

    name: str
    as_datatype_enum: int
    np_dtype: np.dtype[Any]
    as_numpy_dtype: type
    _kind: str

    def __init__(self, name: str, enum: int, np_dtype: npt.DTypeLike, kind: str) -> None:
        self.name = name
        self.as_datatype_enum = enum
        self.np_dtype = np.dtype(np_dtype)
        self.as_numpy_dtype = object if self.np_dtype.hasobject else self.np_dtype.type
        self._kind = kind

    @property
    def is_floating(self) -> bool:
        """True for real floating-point types, including bfloat16 and the narrow ones."""
        return self._kind in "fF"

    @property
    def is_integer(self) -> bool:
        """True for plain (not quantized) integer types."""
        return self._kind in "iuIU"

    @property
    def is_unsigned(self) -> bool:
        """True for unsigned integer types."""
        return self._kind in "uU"

    @property
    def is_complex(self) -> bool:
        """True for complex64 and complex128."""
        return self._kind == "c"

    @property
    def is_bool(self) -> bool:
        """True for bool."""
        return self._kind == "b"

    @property
    def is_numeric(self) -> bool:
        """True if arithmetic is defined: integer, floating or complex, but not narrow."""
        return self._kind in "iufc"

    @property
    def is_narrow(self) -> bool:
        """True for floats and integers of few bits, whose values are stored, moved and cast, without arithmetic."""
        return self._kind in "IUF"

    @property
    def is_plain(self) -> bool:
        """True if elements are numbers or bools: bytes without references."""
        return self._kind in _PLAIN

    @property
    def is_quantized(self) -> bool:
        """True for quantized integers, which no kernel of the core accepts."""
        return self._kind == "q"

    @property
    def base_dtype(self) -> DType:
        """The type itself: aioflow has no reference types."""
        return self

    @property
    def real_dtype(self) -> DType:
        """float32 for complex64, float64 for complex128, otherwise the type itself."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    @property
    def size(self) -> int:
        """Bytes per element (of a pointer for strings and resources)."""
        return self.np_dtype.itemsize

    @property
    def min(self) -> Any:
        """The smallest finite value. Raises DTypeError unless the type is a (real) floating or integer type."""
        return self._limits().min

    @property
    def max(self) -> Any:
        """The largest finite value. Raises DTypeError unless the type is a (real) floating or integer type."""
        return self._limits().max

    def _limits(self) -> Any:
        if self.is_floating:
            # ml_dtypes has no type annotations for these two.
            return ml_dtypes.finfo(self.np_dtype)  # type: ignore[no-untyped-call]
        if self.is_integer:
            return ml_dtypes.iinfo(self.np_dtype)  # type: ignore[no-untyped-call]
        raise DTypeError(f"{self.name} has no limits", expected="an integer or floating dtype", actual=self.name)

    @property
    def limits(self) -> tuple[Any, Any]:
        """Black and white in images of this type: 0, and the greatest integer, 1 or True.

        Raises:
            DTypeError: the type is not an integer type, bool, float32 or float64.
        """
        if self.is_integer:
            return 0, self.max
        if self.is_bool or self.name in ("float32", "float64"):
            return 0, True if self.is_bool else 1
        raise DTypeError(f"{self.name} has no limits", expected="integers, bool, float32 or float64", actual=self.name)

    @property
    def is_numpy_compatible(self) -> bool:
        """True if NumPy arrays can hold the values; False for resources and variants."""
        return self._kind not in "rv"

    def is_compatible_with(self, other: Any) -> bool:
        """Return whether `other` denotes this type. Raises DTypeError if it is not a type."""
        return as_dtype(other) is self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        # bool is an int: without this check, True would equal float32, whose enum number is 1.
        if isinstance(other, DType | bool) or not isinstance(other, _FORMS):
            return False
        if isinstance(other, type) and other in _UNEQUAL:
            return False
        try:
            return as_dtype(other) is self
        except DTypeError:
            return False

    def __hash__(self) -> int:
        return self.as_datatype_enum

    def __repr__(self) -> str:
        return f"aioflow.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        # By name, so that unpickling returns the singleton.
        return as_dtype, (self.name,)


float32: Final = DType("float32", 1, np.float32, "f")
float64: Final = DType("float64", 2, np.float64, "f")
int32: Final = DType("int32", 3, np.int32, "i")
uint8: Final = DType("uint8", 4, np.uint8, "u")
int16: Final = DType("int16", 5, np.int16, "i")
int8: Final = DType("int8", 6, np.int8, "i")
string: Final = DType("string", 7, np.object_, "s")
complex64: Final = DType("complex64", 8, np.complex64, "c")
int64: Final = DType("int64", 9, np.int64, "i")
bool_: Final = DType("bool", 10, np.bool_, "b")
qint8: Final = DType("qint8", 11, np.int8, "q")
quint8: Final = DType("quint8", 12, np.uint8, "q")
qint32: Final = DType("qint32", 13, np.int32, "q")
bfloat16: Final = DType("bfloat16", 14, ml_dtypes.bfloat16, "f")
qint16: Final = DType("qint16", 15, np.int16, "q")
quint16: Final = DType("quint16", 16, np.uint16, "q")
uint16: Final = DType("uint16", 17, np.uint16, "u")
complex128: Final = DType("complex128", 18, np.complex128, "c")
float16: Final = DType("float16", 19, np.float16, "f")
resource: Final = DType("resource", 20, np.object_, "r")
variant: Final = DType("variant", 21, np.object_, "v")
uint32: Final = DType("uint32", 22, np.uint32, "u")
uint64: Final = DType("uint64", 23, np.uint64, "u")
float8_e5m2: Final = DType("float8_e5m2", 24, ml_dtypes.float8_e5m2, "F")
float8_e4m3fn: Final = DType("float8_e4m3fn", 25, ml_dtypes.float8_e4m3fn, "F")
float8_e4m3fnuz: Final = DType("float8_e4m3fnuz", 26, ml_dtypes.float8_e4m3fnuz, "F")
float8_e4m3b11fnuz: Final = DType("float8_e4m3b11fnuz", 27, ml_dtypes.float8_e4m3b11fnuz, "F")
float8_e5m2fnuz: Final = DType("float8_e5m2fnuz", 28, ml_dtypes.float8_e5m2fnuz, "F")
int4: Final = DType("int4", 29, ml_dtypes.int4, "I")
uint4: Final = DType("uint4", 30, ml_dtypes.uint4, "U")
int2: Final = DType("int2", 31, ml_dtypes.int2, "I")
uint2: Final = DType("uint2", 32, ml_dtypes.uint2, "U")
float4_e2m1fn: Final = DType("float4_e2m1fn", 33, ml_dtypes.float4_e2m1fn, "F")
# Block scales in models: powers of two. TensorFlow has no such type; the number is aioflow's own.
float8_e8m0fnu: Final = DType("float8_e8m0fnu", 90, ml_dtypes.float8_e8m0fnu, "F")

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, DType))

_BY_NAME: Final[dict[str, DType]] = {t.name: t for t in ALL} | {
    "half": float16,
    "float": float32,
    "double": float64,
    "str": string,
    "bytes": string,
}
_BY_ENUM: Final = {t.as_datatype_enum: t for t in ALL}
# Plain types only: quantized ones share their NumPy dtypes and would otherwise replace them.
_BY_NUMPY: Final = {t.np_dtype: t for t in ALL if t.is_plain}
_BY_PYTHON: Final[dict[type, DType]] = {
    float: float32,
    int: int32,
    bool: bool_,
    complex: complex128,
    str: string,
    bytes: string,
}


# All forms that `as_dtype` accepts.
DTypeLike: TypeAlias = DType | np.dtype[Any] | type | str | int


def as_dtype(type_value: DTypeLike) -> DType:
    """Return the DType for a name ("float32"), enum number, Python type or anything that NumPy accepts as dtype.

    Raises:
        DTypeError: no such dtype exists.
    """
    if isinstance(type_value, DType):
        return type_value
    found: DType | None = None
    if isinstance(type_value, str):
        found = _BY_NAME.get(type_value)
    elif isinstance(type_value, int) and not isinstance(type_value, bool):
        # True and False are ints, but never enum numbers.
        found = _BY_ENUM.get(type_value)
    elif isinstance(type_value, type):
        found = _BY_PYTHON.get(type_value)
    if found is None:
        # Last, because NumPy would read "float" as float64 and int as int64.
        found = _from_numpy(type_value)
    if found is None:
        raise DTypeError(
            f"cannot convert {type_value!r} to a dtype", expected=f"one of {sorted(_BY_NAME)}", actual=repr(type_value)
        )
    return found


def _from_numpy(value: Any) -> DType | None:
    # NumPy converts None to float64 and any class to an object dtype.
    if value is None or (isinstance(value, type) and not issubclass(value, np.generic) and value is not object):
        return None
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError, SyntaxError, DeprecationWarning):  # NumPy parses text such as "(2,3)f4"
        return None
    if dtype.kind in "SUO":
        return string
    # Both byte orders denote one dtype; values are converted to the native order.
    return _BY_NUMPY.get(dtype.newbyteorder("="))


def can_cast_feed(source: DType, target: DType) -> bool:
    """Return whether `source` can become `target` without a loss of kind: int to float yes, float to int no."""
    if source is target:
        return True
    rank, wanted = _rank(source), _rank(target)
    # Rank 0 is bool: a number never becomes a bool, since most numbers are neither 0 nor 1.
    if rank is None or wanted is None or wanted == 0:
        return False
    return rank <= wanted


def _rank(dtype: DType) -> int | None:
    """Return the rank of a kind of numbers, or None for other types. A narrow type has the rank of the wide ones."""
    kinds = (dtype.is_bool, dtype.is_integer, dtype.is_floating, dtype.is_complex)
    return kinds.index(True) if True in kinds else None

"""Python's operators on tensors: their methods, and the table of their implementations, which the op families fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, ForwardRef, Protocol, Self, SupportsIndex, TypeAlias

import numpy as np

from aioflow.concurrency.forking import not_forked
from aioflow.graph.dtypes import DType
from aioflow.graph.references import Referable
from aioflow.graph.shapes import Dimension, TensorShape
from aioflow.graph.views import TensorView

_OPERATOR_MODULES: Final = {"getitem": "aioflow.ops.array.slices", "matmul": "aioflow.ops.linalg.products"}


class _Operators(dict[str, Callable[..., Any]]):
    """Python operators on tensors, registered by the op families on first use.

    The graph package itself refers to no op by name.
    """

    def __missing__(self, name: str) -> Callable[..., Any]:
        # A child forked during the import would find Python's lock of the module locked forever.
        with not_forked():
            import_module(_OPERATOR_MODULES.get(name, "aioflow.ops.operators"))
        # A plain dict, whose lookup of an unknown operator raises KeyError instead of coming back here.
        return dict(self)[name]


OPERATORS: Final = _Operators()


class SupportsTensorView(Protocol):
    """An object that represents a tensor, such as a `Variable`; see `tensor_like.SupportsTensor`."""

    @property
    def dtype(self) -> DType:
        """The element type of the tensor."""

    def value(self) -> TensorView:
        """Return the tensor."""


class SupportsArray(Protocol):
    """An object that NumPy converts to an array, such as a column of a table or an array of another library."""

    def __array__(self) -> np.ndarray[Any, Any]:
        """Return the array."""


class Slices:
    """The base class of `IndexedSlices`, by which the operators accept them."""

    __slots__ = ()


class Operators(Referable):
    """Python's operators. `Tensor` is the only subclass."""

    __slots__ = ()
    # Makes NumPy defer `ndarray + tensor` to the tensor's operator.
    __array_priority__ = 100

    def _applied(self, name: str, *operands: Any) -> Self:
        result: Self = OPERATORS[name](*operands)
        return result

    def __add__(self, other: OperandLike) -> Self:
        return self._applied("add", self, other)

    def __radd__(self, other: OperandLike) -> Self:
        return self._applied("add", other, self)

    def __sub__(self, other: OperandLike) -> Self:
        return self._applied("sub", self, other)

    def __rsub__(self, other: OperandLike) -> Self:
        return self._applied("sub", other, self)

    def __mul__(self, other: OperandLike) -> Self:
        return self._applied("mul", self, other)

    def __rmul__(self, other: OperandLike) -> Self:
        return self._applied("mul", other, self)

    def __truediv__(self, other: OperandLike) -> Self:
        return self._applied("truediv", self, other)

    def __rtruediv__(self, other: OperandLike) -> Self:
        return self._applied("truediv", other, self)

    def __floordiv__(self, other: OperandLike) -> Self:
        return self._applied("floordiv", self, other)

    def __rfloordiv__(self, other: OperandLike) -> Self:
        return self._applied("floordiv", other, self)

    def __mod__(self, other: OperandLike) -> Self:
        return self._applied("mod", self, other)

    def __rmod__(self, other: OperandLike) -> Self:
        return self._applied("mod", other, self)

    def __pow__(self, other: OperandLike) -> Self:
        return self._applied("pow", self, other)

    def __rpow__(self, other: OperandLike) -> Self:
        return self._applied("pow", other, self)

    def __matmul__(self, other: OperandLike) -> Self:
        return self._applied("matmul", self, other)

    def __rmatmul__(self, other: OperandLike) -> Self:
        return self._applied("matmul", other, self)

    def __lt__(self, other: OperandLike) -> Self:
        return self._applied("lt", self, other)

    def __le__(self, other: OperandLike) -> Self:
        return self._applied("le", self, other)

    def __gt__(self, other: OperandLike) -> Self:
        return self._applied("gt", self, other)

    def __ge__(self, other: OperandLike) -> Self:
        return self._applied("ge", self, other)

    def __and__(self, other: OperandLike) -> Self:
        return self._applied("and", self, other)

    def __rand__(self, other: OperandLike) -> Self:
        return self._applied("and", other, self)

    def __or__(self, other: OperandLike) -> Self:
        return self._applied("or", self, other)

    def __ror__(self, other: OperandLike) -> Self:
        return self._applied("or", other, self)

    def __xor__(self, other: OperandLike) -> Self:
        return self._applied("xor", self, other)

    def __rxor__(self, other: OperandLike) -> Self:
        return self._applied("xor", other, self)

    def __neg__(self) -> Self:
        return self._applied("neg", self)

    def __abs__(self) -> Self:
        return self._applied("abs", self)

    def __invert__(self) -> Self:
        return self._applied("invert", self)

    def __getitem__(self, key: IndexKey) -> Self:
        return self._applied("getitem", self, key)


if TYPE_CHECKING:
    _Nested: TypeAlias = Sequence["OperandLike"]
else:
    # `module` makes the name resolve in this module, wherever an annotation is evaluated.
    _Nested = Sequence[ForwardRef("OperandLike", module=__name__)]

# The other operand: `tensor_like.TensorLike`, by the base classes of its members.
OperandLike: TypeAlias = (
    Operators
    | Slices
    | SupportsTensorView
    | np.ndarray[Any, Any]
    | np.generic
    | complex  # and with it int, float and bool
    | str
    | bytes
    | TensorShape
    | Dimension
    | SupportsArray
    | _Nested
)

_Entry: TypeAlias = SupportsIndex | Operators | np.ndarray[Any, Any] | slice | EllipsisType | None
IndexKey: TypeAlias = _Entry | Sequence[_Entry]

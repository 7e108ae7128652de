"""Python operators for objects that represent a tensor: they read the tensor, then apply the operator to it.

The methods are written out instead of attached in a loop, so that type checkers see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aioflow.errors import DTypeError
from aioflow.graph.graph import Tensor
from aioflow.graph.operators import OPERATORS
from aioflow.graph.tensor_like import IndexLike, TensorLike


class TensorOperators:
    """Operators on the tensor `value()`. Equality and hash remain those of the object."""

    __slots__ = ()
    __array_priority__ = 100  # so that `ndarray + variable` calls `variable.__radd__`

    def value(self) -> Tensor:
        """Return the tensor that the operators apply to."""
        raise NotImplementedError

    def _operate(self, name: str, *others: object) -> Tensor:
        result: Tensor = OPERATORS[name](self.value(), *others)
        return result

    def _reversed(self, name: str, left: TensorLike) -> Tensor:
        result: Tensor = OPERATORS[name](left, self.value())
        return result

    def __add__(self, other: TensorLike) -> Tensor:
        return self._operate("add", other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return self._reversed("add", other)

    def __sub__(self, other: TensorLike) -> Tensor:
        return self._operate("sub", other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return self._reversed("sub", other)

    def __mul__(self, other: TensorLike) -> Tensor:
        return self._operate("mul", other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return self._reversed("mul", other)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return self._operate("truediv", other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return self._reversed("truediv", other)

    def __floordiv__(self, other: TensorLike) -> Tensor:
        return self._operate("floordiv", other)

    def __rfloordiv__(self, other: TensorLike) -> Tensor:
        return self._reversed("floordiv", other)

    def __mod__(self, other: TensorLike) -> Tensor:
        return self._operate("mod", other)

    def __rmod__(self, other: TensorLike) -> Tensor:
        return self._reversed("mod", other)

    def __pow__(self, other: TensorLike) -> Tensor:
        return self._operate("pow", other)

    def __rpow__(self, other: TensorLike) -> Tensor:
        return self._reversed("pow", other)

    def __matmul__(self, other: TensorLike) -> Tensor:
        return self._operate("matmul", other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return self._reversed("matmul", other)

    def __and__(self, other: TensorLike) -> Tensor:
        return self._operate("and", other)

    def __rand__(self, other: TensorLike) -> Tensor:
        return self._reversed("and", other)

    def __or__(self, other: TensorLike) -> Tensor:
        return self._operate("or", other)

    def __ror__(self, other: TensorLike) -> Tensor:
        return self._reversed("or", other)

    def __xor__(self, other: TensorLike) -> Tensor:
        return self._operate("xor", other)

    def __rxor__(self, other: TensorLike) -> Tensor:
        return self._reversed("xor", other)

    def __lt__(self, other: TensorLike) -> Tensor:
        return self._operate("lt", other)

    def __le__(self, other: TensorLike) -> Tensor:
        return self._operate("le", other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return self._operate("gt", other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return self._operate("ge", other)

    def __neg__(self) -> Tensor:
        return self._operate("neg")

    def __abs__(self) -> Tensor:
        return self._operate("abs")

    def __invert__(self) -> Tensor:
        return self._operate("invert")

    def __getitem__(self, key: IndexLike) -> Tensor:
        return self._operate("getitem", key)

    def __iter__(self) -> Iterator[Tensor]:
        raise DTypeError(
            "a variable is not iterable", expected="a tensor with a known first dimension", actual=repr(self)
        )

    def __bool__(self) -> bool:
        return bool(self.value())

    def __contains__(self, item: object) -> bool:
        return item in self.value()

    def __format__(self, spec: str) -> str:
        return format(self.value(), spec) if spec else repr(self)

    # Hidden from type checkers, so that they report a variable where an array or a number is expected.
    if not TYPE_CHECKING:

        def __array__(self, *args, **kwargs):
            return self.value().__array__()

        def __float__(self):
            return float(self.value())

        __int__ = __complex__ = __float__

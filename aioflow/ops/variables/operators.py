"""Python operators for what stands for a tensor without being one: the tensor is read, then operated on.

They are written out rather than attached in a loop, so that type checkers see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aioflow.errors import DTypeError
from aioflow.graph.graph import OPERATORS, Tensor
from aioflow.graph.tensor_like import IndexLike, TensorLike

__all__ = ["TensorOperators"]


class TensorOperators:
    """Operators by way of `value()`. Equality and hash stay those of the object."""

    __slots__ = ()
    __array_priority__ = 100  # so that `ndarray + variable` asks the variable

    def value(self) -> Tensor:
        """The tensor that the operators work on."""
        raise NotImplementedError

    def _operate(self, name: str, *others: Any) -> Tensor:
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

    def __contains__(self, item: Any) -> bool:
        return item in self.value()

    def __format__(self, spec: str) -> str:
        return format(self.value(), spec) if spec else repr(self)

    if not TYPE_CHECKING:  # type checkers refuse a variable here as long as they know nothing of these

        def __array__(self, *args, **kwargs):
            return self.value().__array__()

        def __float__(self):
            return float(self.value())

        __int__ = __complex__ = __float__

"""`Tensor`: one output of a node, with Python's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

import aioflow
from aioflow.concurrency.forking import not_forked
from aioflow.errors import DTypeError, OpError
from aioflow.graph.default_session import session_for
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, format_dims, merge_dims

_OPERATOR_MODULES: Final = {"getitem": "aioflow.ops.array.slices", "matmul": "aioflow.ops.linalg.products"}


class _Operators(dict[str, Callable[..., Any]]):
    """Python operators on tensors, registered by the op families on first use.

    The graph package itself refers to no op by name.
    """

    def __missing__(self, name: str) -> Callable[..., Any]:
        with not_forked():
            import_module(_OPERATOR_MODULES.get(name, "aioflow.ops.operators"))
        # A plain dict, whose lookup of an unknown operator raises KeyError instead of coming back here.
        return dict(self)[name]


OPERATORS: Final = _Operators()


class Tensor:
    """One output of a node: a value that exists only while a step runs."""

    __slots__ = ("__weakref__", "_dims", "dtype", "op", "value_index")
    # Makes NumPy defer `ndarray + tensor` to the tensor's operator.
    __array_priority__ = 100

    if TYPE_CHECKING:
        _fetched: NDArray[Any]  # see Fetchable

    def __init__(self, op: aioflow.Operation, value_index: int, dtype: DType, dims: Dims) -> None:
        self.op = op
        self.value_index = value_index
        self.dtype = dtype
        self._dims = dims

    @property
    def name(self) -> str:
        """`node:index`."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> aioflow.Graph:
        """The graph that the tensor belongs to."""
        return self.op.graph

    @property
    def device(self) -> str:
        """The requested device of the node."""
        return self.op.device

    @property
    def dims(self) -> Dims:
        """The static shape as plain data."""
        return self._dims

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return TensorShape(self._dims)

    def get_shape(self) -> TensorShape:
        """Return the static shape."""
        return TensorShape(self._dims)

    def set_shape(self, shape: ShapeLike | None) -> None:
        """Merge `shape` into the static shape.

        Raises:
            InvalidArgumentError: `shape` contradicts the known shape.
        """
        self._dims = merge_dims(self._dims, TensorShape(shape).raw)

    def widen_shape(self, dims: Dims) -> None:
        """Replace the static shape by a more general one. The caller must update the shapes of dependent tensors."""
        self._dims = dims

    def consumers(self) -> list[aioflow.Operation]:
        """Return the nodes that read this tensor."""
        return [op for op in self.graph.get_operations() if any(t is self for t in op.inputs)]

    async def eval(
        self, feed_dict: Mapping[Any, Any] | None = None, session: aioflow.Session | None = None
    ) -> NDArray[Any]:
        """Run the nodes that this tensor depends on in `session`, or in the default session, and return its value.

        Raises:
            NoSessionError: `session` is None and there is no default session.
        """
        value: NDArray[Any] = await session_for(session, self.graph).run(self, feed_dict)
        return value

    def __repr__(self) -> str:
        return f"<aioflow.Tensor {self.name!r} shape={format_dims(self._dims)} dtype={self.dtype.name}>"

    def __bool__(self) -> bool:
        raise misused(self, "used as a Python bool", "use `aioflow.cond`, or")

    def __iter__(self) -> Iterator[Tensor]:
        if not self._dims or self._dims[0] is None:
            raise misused(self, "iterated over, which needs a known first dimension", "use `aioflow.map_fn`, or")
        return (self[i] for i in range(self._dims[0]))

    def __len__(self) -> int:
        raise misused(self, "passed to len()", "use `.shape` or `aioflow.shape`, or")

    def __contains__(self, item: Any) -> bool:
        raise misused(self, "used with `in`", "use `aioflow.reduce_any(aioflow.equal(tensor, item))`, or")

    def __format__(self, spec: str) -> str:
        if spec:
            raise misused(self, f"formatted as {spec!r}")
        return repr(self)

    # Hidden from type checkers, which then report a tensor where an array or a number is expected.
    if not TYPE_CHECKING:

        def __array__(self, *args, **kwargs):
            raise misused(self, "converted to an array")

        def __float__(self):
            raise misused(self, "converted to a Python number")

        __int__ = __complex__ = __float__

    def __add__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("add", self, other)

    def __radd__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("add", other, self)

    def __sub__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("sub", self, other)

    def __rsub__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("sub", other, self)

    def __mul__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("mul", self, other)

    def __rmul__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("mul", other, self)

    def __truediv__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("truediv", self, other)

    def __rtruediv__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("truediv", other, self)

    def __floordiv__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("floordiv", self, other)

    def __rfloordiv__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("floordiv", other, self)

    def __mod__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("mod", self, other)

    def __rmod__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("mod", other, self)

    def __pow__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("pow", self, other)

    def __rpow__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("pow", other, self)

    def __matmul__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("matmul", self, other)

    def __rmatmul__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("matmul", other, self)

    def __lt__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("lt", self, other)

    def __le__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("le", self, other)

    def __gt__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("gt", self, other)

    def __ge__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("ge", self, other)

    def __and__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("and", self, other)

    def __rand__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("and", other, self)

    def __or__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("or", self, other)

    def __ror__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("or", other, self)

    def __xor__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("xor", self, other)

    def __rxor__(self, other: aioflow.typing.TensorLike) -> Tensor:
        return _operator("xor", other, self)

    def __neg__(self) -> Tensor:
        return _operator("neg", self)

    def __abs__(self) -> Tensor:
        return _operator("abs", self)

    def __invert__(self) -> Tensor:
        return _operator("invert", self)

    def __getitem__(self, key: aioflow.typing.IndexLike) -> Tensor:
        return _operator("getitem", self, key)


def misused(tensor: Tensor, what: str, instead: str = "") -> OpError:
    """Return the error for a tensor used where Python or NumPy needs a value; `instead` states an alternative."""
    advice = f"{instead} `await session.run` it first".lstrip()
    error = DTypeError(
        f"a symbolic tensor was {what}; {advice}",
        expected="a value, which a tensor has only during a step",
        actual=repr(tensor),
    )
    return error.at(tensor.op.name, tensor.op.type, tensor.op.source)


def _operator(name: str, *operands: Any) -> Tensor:
    result: Tensor = OPERATORS[name](*operands)
    return result

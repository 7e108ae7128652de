"""`SparseTensor`: a tensor that stores only some elements, in three tensors: indices, values and dense shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.composite import CompositeTensor
from aioflow.graph.default_graph import graph_of
from aioflow.graph.default_session import StepRunner, session_for
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, dims_of, format_dims, is_compatible, merge_dims
from aioflow.graph.static_value import partial_shape
from aioflow.graph.tensor_like import SupportsTensor, TensorLike
from aioflow.ops.apply import convert_to_tensor, make
from aioflow.ops.core import placeholder, placeholder_with_default
from aioflow.ops.scoping import name_scope

__all__ = [
    "SparseTensor",
    "SparseTensorValue",
    "convert_to_tensor_or_sparse_tensor",
    "sparse_placeholder",
]


def first_size(dims: Dims) -> int | None:
    """Return the first size of a shape, or None if it is unknown."""
    return None if dims is None else dims[0]


class SparseTensorValue(NamedTuple):
    """The value of a `SparseTensor`, as fed to a run or returned by it.

    Attributes:
        indices: [n, rank] int64 array.
        values: [n] array.
        dense_shape: [rank] int64 array.
    """

    indices: Any
    values: Any
    dense_shape: Any


class SparseTensor(CompositeTensor):
    """A tensor of shape `dense_shape` with the elements `values[i]` at `indices[i]`; all others are zero, or missing.

    Most ops require indices in row-major order (`sparse_reorder`) and without repetition.

    Args:
        indices: [n, rank] int64.
        values: [n], any dtype.
        dense_shape: [rank] int64.

    Raises:
        InvalidArgumentError: the shapes do not fit one another.
    """

    __slots__ = ("_dims", "dense_shape", "indices")

    if TYPE_CHECKING:
        _fetched: SparseTensorValue  # see Fetchable

    def __init__(self, indices: TensorLike, values: TensorLike, dense_shape: TensorLike) -> None:
        with graph_of((indices, values, dense_shape)).as_default():
            self.indices: Tensor = convert_to_tensor(indices, dtypes.int64, name="indices")
            self.values: Tensor = convert_to_tensor(values, name="values")
            self.dense_shape: Tensor = convert_to_tensor(dense_shape, dtypes.int64, name="dense_shape")
        # The three tensors share two sizes, the number of entries and the rank: any of them may know these.
        entries = _ranked(self.indices, 2, "indices")
        merge_dims(entries[:1], _ranked(self.values, 1, "values"))
        rank = merge_dims(entries[1:], _ranked(self.dense_shape, 1, "dense_shape"))
        known = partial_shape(self.dense_shape)
        # If only the rank is known, every size is open.
        self._dims: Dims = (None,) * rank[0] if known is None and rank and rank[0] is not None else known

    @classmethod
    def from_value(cls, sparse_tensor_value: SparseTensor | SparseTensorValue) -> SparseTensor:
        """Return a `SparseTensor` unchanged, and a `SparseTensorValue` as a constant.

        Raises:
            DTypeError: the value is neither.
        """
        if isinstance(sparse_tensor_value, SparseTensor):
            return sparse_tensor_value
        if isinstance(sparse_tensor_value, SparseTensorValue):
            return cls(*sparse_tensor_value)
        raise DTypeError(
            "not a sparse tensor", expected="a SparseTensor or SparseTensorValue", actual=repr(sparse_tensor_value)
        )

    @property
    def components(self) -> tuple[Tensor, ...]:
        """Indices, values and dense shape."""
        return self.indices, self.values, self.dense_shape

    def with_components(self, components: Sequence[Any]) -> SparseTensor:
        """Return a sparse tensor made of these components."""
        return SparseTensor(*components)

    def component_dims(self, dims: Dims) -> list[Dims]:
        """Return the static shapes of the components, given `dims`, the shape of the dense shape: (rank,)."""
        if dims is not None and len(dims) != 1:
            raise InvalidArgumentError(
                "the shape of a sparse loop variable is that of its dense_shape",
                expected="a shape of one dimension, [rank]",
                actual=format_dims(dims),
            )
        rank = first_size(dims)
        return [(None, rank), (None,), (rank,)]

    def kept_dims(self) -> list[Dims]:
        """Return the component shapes that a loop keeps: the number of entries may change, the rank may not."""
        rank = None if self._dims is None else len(self._dims)
        return [(None, rank), (None,), (rank,)]

    @property
    def shape(self) -> TensorShape:
        """Static shape of the dense tensor."""
        return TensorShape(self._dims)

    def get_shape(self) -> TensorShape:
        """Return `shape`."""
        return self.shape

    def set_shape(self, shape: ShapeLike | None) -> None:
        """Merge a shape into the static shape of the dense tensor.

        Raises:
            InvalidArgumentError: the shape contradicts the known one.
        """
        dims = dims_of(shape)
        if not is_compatible(dims, self._dims):
            raise InvalidArgumentError(
                "the shape contradicts the known shape", expected=format_dims(self._dims), actual=format_dims(dims)
            )
        self._dims = merge_dims(self._dims, dims)

    def with_values(self, new_values: TensorLike) -> SparseTensor:
        """Return a tensor with other values at the same positions."""
        made = SparseTensor(self.indices, new_values, self.dense_shape)
        made._dims = self._dims
        return made

    def consumers(self) -> list[Operation]:
        """Return the nodes that read any of the three tensors."""
        found = [op for part in (self.indices, self.values, self.dense_shape) for op in part.consumers()]
        return list(dict.fromkeys(found))

    async def eval(
        self, feed_dict: Mapping[Any, Any] | None = None, session: StepRunner | None = None
    ) -> SparseTensorValue:
        """Run the nodes that the tensor depends on in `session`, or in the default session, and return its value.

        Raises:
            NoSessionError: `session` is None and there is no default session.
        """
        value: SparseTensorValue = await session_for(session, self.graph).run(self, feed_dict)
        return value

    def __mul__(self, other: TensorLike) -> SparseTensor:
        """Return the product with a dense tensor that broadcasts to this one, at the existing entries."""
        return self._with("SparseDenseCwiseMul", other)

    def __rmul__(self, other: Tensor | SupportsTensor) -> SparseTensor:
        """Return the product as `__mul__` does. As in TensorFlow, only a tensor or variable may be on the left."""
        return self * other if hasattr(other, "graph") else NotImplemented

    def __truediv__(self, other: TensorLike) -> SparseTensor:
        """Return the quotient by a dense tensor that broadcasts to this one, at the existing entries."""
        return self._with("SparseDenseCwiseDiv", other)

    if not TYPE_CHECKING:

        def __array__(self, *args, **kwargs):
            raise DTypeError(
                "a SparseTensor is not a dense tensor; convert it by `aioflow.sparse.to_dense`",
                expected="a dense tensor",
                actual=repr(self),
            )

    def _with(self, op_type: str, other: TensorLike) -> SparseTensor:
        dense = convert_to_tensor(other, self.dtype)
        return self.with_values(make(op_type, self.indices, self.values, self.dense_shape, dense))

    def __repr__(self) -> str:
        return f"<aioflow.SparseTensor shape={format_dims(self._dims)} dtype={self.dtype.name} values={self.values!r}>"


def _ranked(tensor: Tensor, rank: int, what: str) -> tuple[int | None, ...]:
    dims = (None,) * rank if tensor.dims is None else tensor.dims
    if len(dims) != rank:
        raise InvalidArgumentError(
            f"the {what} of a sparse tensor have the wrong rank", expected=f"rank {rank}", actual=format_dims(dims)
        )
    return dims


def sparse_of(value: Any) -> SparseTensor:
    """Return the value as a SparseTensor, for builders that accept one."""
    return SparseTensor.from_value(value)


def int64_tensor(value: TensorLike) -> Tensor:
    """Return the value as an int64 tensor, converted if necessary."""
    tensor = convert_to_tensor(value)
    return tensor if tensor.dtype is dtypes.int64 else make("Cast", tensor, DstT=dtypes.int64)


@overload
def convert_to_tensor_or_sparse_tensor(
    value: SparseTensor | SparseTensorValue, dtype: DTypeLike | None = None, name: str | None = None
) -> SparseTensor: ...


@overload
def convert_to_tensor_or_sparse_tensor(
    value: TensorLike, dtype: DTypeLike | None = None, name: str | None = None
) -> Tensor: ...


def convert_to_tensor_or_sparse_tensor(value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> Any:
    """Return a `SparseTensor` or the value of one as a `SparseTensor`, and any other value as a `Tensor`.

    Raises:
        DTypeError: the value's dtype differs from `dtype`.
    """
    if not isinstance(value, SparseTensor | SparseTensorValue):
        return convert_to_tensor(value, dtype, name)
    found = sparse_of(value)
    if dtype is not None and found.dtype is not as_dtype(dtype):
        raise DTypeError("the sparse tensor has the wrong dtype", expected=as_dtype(dtype).name, actual=repr(found))
    return found


def sparse_placeholder(
    dtype: DTypeLike, shape: ShapeLike | Tensor | None = None, name: str | None = None
) -> SparseTensor:
    """Return a `SparseTensor` to be fed with a `SparseTensorValue` or a tuple of indices, values and dense shape.

    Args:
        dtype: Dtype of the values.
        shape: Shape of the dense tensor, if it or its rank is known; None or -1 for an unknown size.
        name: Name of the scope of the nodes.
    """
    with name_scope(name, "sparse_placeholder"):
        dims = None if isinstance(shape, Tensor) else dims_of(shape)
        rank = None if dims is None else len(dims)
        if isinstance(shape, Tensor):
            rank = shape.dims[0] if shape.dims else None
            dense_shape = placeholder_with_default(shape, shape.dims, name="shape")
        elif dims is None:
            dense_shape = placeholder(dtypes.int64, [None], name="shape")
        else:
            default = np.array([-1 if d is None else d for d in dims], dtype=np.int64)
            dense_shape = placeholder_with_default(default, [rank], name="shape")
        values = placeholder(dtype, [None], name="values")
        made = SparseTensor(placeholder(dtypes.int64, [None, rank], name="indices"), values, dense_shape)
        made.set_shape(dims if not isinstance(shape, Tensor) else partial_shape(shape))
        return made

"""Serialization of dense and sparse tensors to strings, for queues and record files."""

from __future__ import annotations

from aioflow.errors import UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import encoded
from aioflow.ops.apply import TensorLike, make, make_list
from aioflow.ops.sparse.tensor import SparseTensor, sparse_of

__all__ = [
    "deserialize_many_sparse",
    "parse_tensor",
    "serialize_many_sparse",
    "serialize_sparse",
    "serialize_tensor",
]

_SPARSE = "sparse_indices: int64, sparse_values: {}, sparse_shape: int64"

define_op("SerializeTensor", "tensor: T", "serialized: string", ["T: type"], shape=lambda ctx: (), traits=encoded())
define_op(
    "ParseTensor",
    "serialized: string",
    "output: out_type",
    ["out_type: type"],
    shape=lambda ctx: None,
    traits=encoded(),
)
define_op(
    "SerializeSparse",
    _SPARSE.format("T"),
    "serialized_sparse: string",
    ["T: type", "out_type: {string} = string"],
    shape=lambda ctx: (3,),
    traits=encoded(),
)
define_op(
    "SerializeManySparse",
    _SPARSE.format("T"),
    "serialized_sparse: string",
    ["T: type", "out_type: {string} = string"],
    shape=lambda ctx: (None, 3),
    traits=encoded(),
)
define_op(
    "DeserializeManySparse",
    "serialized_sparse: string",
    _SPARSE.format("dtype"),
    ["dtype: type"],
    shape=lambda ctx: [(None, None), (None,), (None,)],
    traits=encoded(),
)
define_op(
    "DeserializeSparse",
    "serialized_sparse: string",
    _SPARSE.format("dtype"),
    ["dtype: type", "Tserialized: {string} = string"],
    shape=lambda ctx: [(None, None), (None,), (None,)],
    traits=encoded(),
)

not_differentiable(
    "SerializeTensor",
    "ParseTensor",
    "SerializeSparse",
    "SerializeManySparse",
    "DeserializeManySparse",
    "DeserializeSparse",
)


def serialize_tensor(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Return the tensor as a scalar string that holds a `TensorProto` message."""
    return make("SerializeTensor", tensor, name=name)


def parse_tensor(serialized: TensorLike, out_type: DTypeLike, name: str | None = None) -> Tensor:
    """Return the tensor that a scalar string holds. The inverse of `serialize_tensor`.

    Raises:
        InvalidArgumentError: the string is not a `TensorProto`, or its dtype is not `out_type`.
    """
    return make("ParseTensor", serialized, out_type=out_type, name=name)


def _only_strings(out_type: DTypeLike) -> None:
    if as_dtype(out_type) is not dtypes.string:
        raise UnimplementedError("sparse tensors can only be serialized to strings", expected="string", actual=out_type)


def serialize_sparse(sp_input: SparseTensor, name: str | None = None, out_type: DTypeLike = dtypes.string) -> Tensor:
    """Return the sparse tensor as a vector of three strings.

    Raises:
        UnimplementedError: `out_type` is not string.
    """
    _only_strings(out_type)
    sparse = sparse_of(sp_input)
    return make("SerializeSparse", sparse.indices, sparse.values, sparse.dense_shape, name=name)


def serialize_many_sparse(
    sp_input: SparseTensor, name: str | None = None, out_type: DTypeLike = dtypes.string
) -> Tensor:
    """Return each slice along the first dimension as three strings: [n, 3].

    The entries of `sp_input` must be in row-major order.

    Raises:
        InvalidArgumentError: the rank is less than 2.
        UnimplementedError: `out_type` is not string.
    """
    _only_strings(out_type)
    sparse = sparse_of(sp_input)
    return make("SerializeManySparse", sparse.indices, sparse.values, sparse.dense_shape, name=name)


def deserialize_many_sparse(
    serialized_sparse: TensorLike, dtype: DTypeLike, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """Return the sparse tensors of [n, 3] strings, concatenated along a new first dimension.

    Args:
        serialized_sparse: [n, 3] strings from `serialize_sparse` or `serialize_many_sparse`.
        dtype: Dtype of the values.
        rank: Rank of the result, if it is known.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the strings are not serialized sparse tensors, or the tensors differ in rank or dtype.
    """
    indices, values, shape = make_list("DeserializeManySparse", serialized_sparse, dtype=dtype, name=name)
    indices.set_shape([None, rank])
    shape.set_shape([rank])
    return SparseTensor(indices, values, shape)

"""Feature crosses: for each row, every combination of one feature of each input, joined as text or hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import sparse
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.sparse.tensor import SparseTensor


def _crossed(ctx: ShapeContext) -> list[Dims]:
    for name, rank in (("indices", 2), ("values", 1), ("shapes", 1), ("dense_inputs", 2)):
        for dims in ctx.dims_list(name):
            if dims is not None and len(dims) != rank:
                raise InvalidArgumentError(
                    f"{name} have the wrong rank", expected=f"rank {rank}", actual=format_dims(dims)
                )
    return [(None, 2), (None,), (2,)]


_PARTS: Final = "indices: N*int64, values: list:sparse_types, shapes: N*int64, dense_inputs: list:dense_types"
_TYPES: Final = ["N: int >= 0", "sparse_types: list({int64, string}) >= 0", "dense_types: list({int64, string}) >= 0"]
_FOUND: Final = "output_indices: int64, output_values: {}, output_shape: int64"
define_op(
    "SparseCross",
    _PARTS,
    _FOUND.format("out_type"),
    [
        "hashed_output: bool",
        "num_buckets: int >= 0",
        "hash_key: int",
        "out_type: {int64, string}",
        "internal_type: {int64, string}",
        *_TYPES,
    ],
    shape=_crossed,
    traits=sparse(is_numeric=False),
)
define_op(
    "SparseCrossV2",
    f"{_PARTS}, sep: string",
    _FOUND.format("string"),
    _TYPES,
    shape=_crossed,
    traits=sparse(is_numeric=False),
)
define_op(
    "SparseCrossHashed",
    f"{_PARTS}, num_buckets: int64, strong_hash: bool, salt: int64",
    _FOUND.format("int64"),
    _TYPES,
    shape=_crossed,
    traits=sparse(is_numeric=False),
)
not_differentiable("SparseCross", "SparseCrossV2", "SparseCrossHashed")

_KEY: Final = 0xDECAFCAFFE  # TensorFlow's default hash key


def _features(value: Tensor) -> Tensor:
    if value.dtype is dtypes.string:
        return value
    if not value.dtype.is_integer:
        raise DTypeError("features are integers or strings", expected="integers or string", actual=value.dtype.name)
    return make("Cast", value, DstT=dtypes.int64)


def _parts(
    inputs: Sequence[SparseTensor | TensorLike],
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """Return the indices, values and shapes of the sparse inputs, then the dense inputs."""
    if not isinstance(inputs, list | tuple):
        raise DTypeError("inputs must be a list", expected="a list", actual=type(inputs).__name__)
    apart = [one for one in inputs if isinstance(one, SparseTensor)]
    dense = [_features(convert_to_tensor(one)) for one in inputs if not isinstance(one, SparseTensor)]
    values = [_features(one.values) for one in apart]
    return [one.indices for one in apart], values, [one.dense_shape for one in apart], dense


def _types(values: Sequence[Tensor], dense: Sequence[Tensor]) -> Attrs:
    return {
        "N": len(values),
        "sparse_types": [one.dtype for one in values],
        "dense_types": [one.dtype for one in dense],
    }


def cross(
    inputs: Sequence[SparseTensor | TensorLike], name: str | None = None, separator: TensorLike | None = None
) -> SparseTensor:
    """Return every combination of one feature of each input, row by row, as strings such as `a_X_b`.

    Args:
        inputs: Sparse or dense matrices of integers or strings, [batch, features] each. In the result, features of
            sparse inputs precede those of dense inputs.
        name: Name of the node.
        separator: Text between two features; "_X_" by default.

    Returns:
        A sparse matrix of strings, with one element per combination in each row.

    Raises:
        DTypeError: the features are neither integers nor strings, or `inputs` is not a list.
    """
    indices, values, shapes, dense = _parts(inputs)
    between = convert_to_tensor("_X_" if separator is None else separator, dtypes.string)
    found = make_list("SparseCrossV2", indices, values, shapes, dense, between, name=name, **_types(values, dense))
    return SparseTensor(*found)


def cross_hashed(
    inputs: Sequence[SparseTensor | TensorLike],
    num_buckets: int = 0,
    hash_key: int | None = None,
    name: str | None = None,
) -> SparseTensor:
    """Return the combinations of `cross` as 64-bit hashes of the features' fingerprints.

    Args:
        inputs: As for `cross`.
        num_buckets: The hashes are below this number; 0 stands for 2^63 - 1.
        hash_key: Key that is mixed into the fingerprints.
        name: Name of the node.

    Returns:
        A sparse matrix of int64.

    Raises:
        DTypeError: as for `cross`.
    """
    indices, values, shapes, dense = _parts(inputs)
    text = all(one.dtype is dtypes.string for one in (*values, *dense))
    found = make_list(
        "SparseCross",
        indices,
        values,
        shapes,
        dense,
        hashed_output=True,
        num_buckets=num_buckets,
        hash_key=hash_key or _KEY,
        out_type=dtypes.int64,
        internal_type=dtypes.string if text else dtypes.int64,
        name=name,
        **_types(values, dense),
    )
    return SparseTensor(*found)

"""Embedding lookups: rows of a table by number, where the table may be partitioned over several devices.

Lookups in a partitioned table move rows between devices, never tables:

1. DynamicPartition splits the ids by part.
2. The rows of each part are gathered on the device that holds it.
3. ParallelDynamicStitch restores the order on the device of the lookup.

All three ops have gradients, so the gradient of a part has only the rows that were looked up. After OSDI 2016,
section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.shapes import Dims, merge_dims, num_elements
from aioflow.graph.traits import Effect, passes_on
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.core import unchanged
from aioflow.ops.math.segment import segment_sum
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.forms import sparse_fill_empty_rows, sparse_reshape, sparse_retain
from aioflow.ops.sparse.tensor import SparseTensor
from aioflow.ops.variables.partitioned import PartitionedVariable

Partition: TypeAlias = Literal["mod", "div"]

Combiner: TypeAlias = Literal["mean", "sqrtn", "sum"]

_COMBINERS: Final = get_args(Combiner)

# Checks ids before they are split by part. A part numbers its rows differently, so its error could not name the id.
define_op(
    "AioflowCheckedIds",
    "ids: Tids",
    "checked: Tids",
    ["Tids: {int32, int64}", "table: string", "rows: int >= 1"],
    shape=unchanged,
    traits=passes_on(effect=Effect.FAILS),
)
not_differentiable("AioflowCheckedIds")


def embedding_lookup(
    params: TensorLike,
    ids: TensorLike,
    partition_strategy: Partition = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Tensor:
    """Return the rows of `params` at `ids`: a tensor of shape ids.shape + row shape, whose gradient is sparse.

    Args:
        params: A tensor or variable; or a list of them, or a PartitionedVariable, that together hold the rows. Rows are
            gathered on the device of their table.
        ids: int32 or int64 row numbers.
        partition_strategy: Distribution of the rows over a list of n tables. "mod" puts row i into table i % n, "div"
            keeps neighboring rows together. Use "div" for the parts of a PartitionedVariable.
        name: Name scope of the nodes.
        validate_indices: Ignored; accepted for compatibility.
        max_norm: Maximum L2 norm of a row; longer rows are scaled down.

    Raises:
        InvalidArgumentError: no params, or an unknown strategy; at run time, an id is out of range.
    """
    tables = _tables(params)
    with name_scope(name, "embedding_lookup", [*tables, ids]) as scope:
        numbers = convert_to_tensor(ids, name="ids")
        if len(tables) == 1:
            # The caller's name belongs to the node whose output is returned.
            return _clipped(_rows(tables[0], numbers, scope if max_norm is None else None), numbers, max_norm)
        return _clipped(_partitioned_rows(tables, numbers, partition_strategy), numbers, max_norm)


def _tables(params: Any) -> list[Any]:
    tables = list(params) if isinstance(params, list | tuple | PartitionedVariable) else [params]
    if not tables:
        raise InvalidArgumentError("embedding_lookup needs params", expected="at least one table", actual="none")
    return tables


def _rows(table: Any, ids: Tensor, name: str | None = None) -> Tensor:
    result: Tensor
    if hasattr(table, "sparse_read"):
        result = table.sparse_read(ids, name=name)
    elif isinstance(table, Tensor):
        with table.graph.colocate_with(table.op):
            result = make("GatherV2", table, ids, 0, name=name)
    else:
        result = make("GatherV2", table, ids, 0, name=name)
    return result


def _partitioned_rows(tables: Sequence[TensorLike], ids: Tensor, strategy: Partition) -> Tensor:
    count = len(tables)
    is_vector = ids.dims is not None and len(ids.dims) == 1
    numbers = _checked(tables, ids)
    flat = numbers if is_vector else make("Reshape", numbers, [-1])
    if strategy == "mod":
        part, row = make("FloorMod", flat, count), make("FloorDiv", flat, count)
    elif strategy == "div":
        part, row = _divided(tables, flat)
    else:
        raise InvalidArgumentError("unknown partition_strategy", expected="'mod' or 'div'", actual=strategy)
    # DynamicPartition takes the numbers of the parts as int32.
    if part.dtype.name != "int32":
        part = make("Cast", part, DstT="int32")
    # The places travel like the rows, so that the stitch can restore the order.
    places = make("Range", 0, make("Size", flat), 1)
    rows = make_list("DynamicPartition", row, part, num_partitions=count)
    where = make_list("DynamicPartition", places, part, num_partitions=count)
    found = [_rows(table, part_rows) for table, part_rows in zip(tables, rows, strict=True)]
    result = make("ParallelDynamicStitch", where, found)
    row_dims: Dims = None
    for part_rows in found:
        row_dims = merge_dims(row_dims, None if part_rows.dims is None else part_rows.dims[1:])
    if not is_vector:
        result = make("Reshape", result, make("ConcatV2", [make("Shape", ids), _row_shape(found[0], row_dims)], 0))
    result.set_shape(None if ids.dims is None or row_dims is None else ids.dims + row_dims)
    return result


def _checked(tables: Sequence[TensorLike], ids: Tensor) -> Tensor:
    """Check that each id has a row, if the number of rows is known and the tables are as even as possible.

    Return the checked ids.
    """
    sizes = [_first_size(table) for table in tables]
    rows = sum(size for size in sizes if size is not None)
    each, extra = divmod(rows, len(tables))
    even = [each + 1] * extra + [each] * (len(tables) - extra)
    # In uneven tables, an id below the total may still have no row.
    if sizes != even or rows == 0 or ids.dtype not in (dtypes.int32, dtypes.int64):
        return ids
    result: Tensor = make("AioflowCheckedIds", ids, table=_name_of(tables), rows=rows)
    return result


def _name_of(tables: Sequence[Any]) -> str:
    """Return the name of the partitioned variable; for separate tables, all their names."""
    parts = [t.save_slice_info if hasattr(t, "sparse_read") else None for t in tables]
    names = [getattr(t, "name", "") if part is None else part.full_name for t, part in zip(tables, parts, strict=True)]
    return ", ".join(dict.fromkeys(name.removesuffix(":0") for name in names if name))


def _row_shape(rows: Tensor, dims: Dims) -> Tensor:
    """Return the shape of a row: a constant if the sizes are known."""
    if num_elements(dims) is not None:
        return constant([size for size in dims or () if size is not None], dtypes.int32)
    return make("StridedSlice", make("Shape", rows), [1], [0], [1], end_mask=1)


def _divided(tables: Sequence[TensorLike], flat: Tensor) -> tuple[Tensor, Tensor]:
    """Return (table, row in it) of each id. The first `extra` tables have one row more than the others."""
    each, extra = _rows_for_each(tables, flat.dtype)
    if isinstance(extra, int) and extra == 0:
        return make("FloorDiv", flat, each), make("FloorMod", flat, each)
    # For ids in the longer tables the first quotient is at least the second, and vice versa.
    part = make("Maximum", make("FloorDiv", flat, each + 1), make("FloorDiv", flat - extra, each))
    long_row, short_row = make("FloorMod", flat, each + 1), make("FloorMod", flat - extra, each)
    return part, make("SelectV2", part < extra, long_row, short_row)


def _rows_for_each(tables: Sequence[TensorLike], dtype: DType) -> tuple[int | Tensor, int | Tensor]:
    """Return the rows per table, and the number of tables that have one more.

    Ints if all sizes are known, otherwise tensors.
    """
    known = [_first_size(t) for t in tables]
    if None in known:
        sizes = [make("GatherV2", make("Shape", t, out_type=dtype), 0, 0) for t in map(convert_to_tensor, tables)]
        total = make("AddN", sizes)
        return make("FloorDiv", total, len(tables)), make("FloorMod", total, len(tables))
    each, extra = divmod(sum(k for k in known if k is not None), len(tables))
    if each == 0:
        raise InvalidArgumentError(
            "there are fewer rows than tables", expected=f"at least {len(tables)} rows", actual=extra
        )
    return each, extra


def _first_size(table: Any) -> int | None:
    dims: Dims = table.dims if hasattr(table, "sparse_read") else convert_to_tensor(table).dims
    return None if dims is None else dims[0]


def _clipped(rows: Tensor, ids: Tensor, max_norm: float | None) -> Tensor:
    if max_norm is None:
        return rows
    axes: TensorLike
    if rows.dims is None or ids.dims is None:
        axes = make("Range", make("Rank", ids), make("Rank", rows), 1)
    else:
        axes = list(range(len(ids.dims), len(rows.dims)))
    norm = make("Sqrt", make("Sum", make("Square", rows), axes, keep_dims=True))
    # rows * max_norm / max(norm, max_norm) never divides by zero, and leaves rows with a small norm unchanged.
    result: Tensor = rows * max_norm / make("Maximum", norm, max_norm)
    return result


# ── several ids for each row of the result ────────────────────────────────────────────────────────────────────────────


def embedding_lookup_sparse(
    params: TensorLike,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    partition_strategy: Partition = "mod",
    name: str | None = None,
    combiner: Combiner | None = None,
    max_norm: float | None = None,
    allow_fast_lookup: bool = False,
) -> Tensor:
    """For each row of `sp_ids`, look up the rows of `params` at its ids and combine them.

    Each distinct id is looked up once.

    Args:
        params: As for `embedding_lookup`.
        sp_ids: [n, m] int32 or int64 in row-major order. Each row up to the last non-empty one has at least one id.
        sp_weights: A weight for each id; None counts each once.
        partition_strategy: As for `embedding_lookup`.
        name: Name scope of the nodes.
        combiner: "sum" is the weighted sum. "mean" (the default) divides it by the sum of the weights, "sqrtn" by the
            square root of the sum of their squares.
        max_norm: As for `embedding_lookup`.
        allow_fast_lookup: Ignored; accepted for compatibility. The gradient stays sparse.

    Returns:
        [n, …row shape].

    Raises:
        InvalidArgumentError: no params, an unknown combiner or strategy; at run time, an id is out of range.
        DTypeError: the ids or weights are not a SparseTensor.
    """
    combiner = _checked_combiner(combiner or "mean")
    tables = _tables(params)
    _check_sparse(sp_ids, "ids")
    if sp_weights is not None:
        _check_sparse(sp_weights, "weights")
    with name_scope(name, "embedding_lookup_sparse", [*tables, sp_ids.values]) as scope:
        # The first column of the indices: the row to which each id belongs.
        segments = make(
            "StridedSlice", sp_ids.indices, [0, 0], [0, 1], [1, 1], begin_mask=1, end_mask=1, shrink_axis_mask=2
        )
        unique, places = make_list("Unique", sp_ids.values)
        distinct = embedding_lookup(tables, unique, partition_strategy, max_norm=max_norm)
        rows = make("GatherV2", distinct, places, 0)
        original = rows.dtype
        if original in (dtypes.float16, dtypes.bfloat16):
            # Half precision loses digits in sums of many rows.
            rows = make("Cast", rows, DstT="float32")
        if sp_weights is None:
            weights = make("Fill", make("Shape", places), constant(1, rows.dtype))
        else:
            weights = sp_weights.values
            weights = weights if weights.dtype is rows.dtype else make("Cast", weights, DstT=rows.dtype)
            rows = rows * _column(weights, rows)
        combined = _combined(rows, weights, segments, combiner)
        return make("Cast", combined, DstT=original, name=scope) if combined.dtype is not original else combined


def _check_sparse(value: object, what: str) -> None:
    if not isinstance(value, SparseTensor):
        raise DTypeError(f"the {what} of an embedding must be sparse", expected="a SparseTensor", actual=repr(value))


def _checked_combiner(combiner: Combiner) -> Combiner:
    if combiner not in _COMBINERS:
        raise InvalidArgumentError("unknown combiner", expected=f"one of {list(_COMBINERS)}", actual=combiner)
    return combiner


def _column(vector: Tensor, like: Tensor) -> Tensor:
    """Append axes of size 1 to the vector, so that it scales the rows of `like`."""
    if like.dims is not None:
        return make("Reshape", vector, [-1] + [1] * (len(like.dims) - 1))
    ones = make("Fill", make("ExpandDims", make("Rank", like) - 1, 0), constant(1))
    return make("Reshape", vector, make("ConcatV2", [constant([-1]), ones], 0))


def _combined(rows: Tensor, weights: Tensor, segments: Tensor, combiner: Combiner) -> Tensor:
    total = segment_sum(rows, segments)
    if combiner == "sum":
        return total
    if combiner == "mean":
        size = segment_sum(weights, segments)
    else:
        size = make("Sqrt", segment_sum(make("Square", weights), segments))
    # A row whose weights add up to 0 yields 0.
    return make("DivNoNan", total, _column(size, total))


def safe_embedding_lookup_sparse(
    embedding_weights: TensorLike,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: Combiner = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: Partition = "div",
    max_norm: float | None = None,
    allow_fast_lookup: bool = False,
) -> Tensor:
    """Like `embedding_lookup_sparse`, for ids of any rank, some of which may be missing or invalid.

    Negative ids are ignored and, unless the combiner is "sum", ids whose weight is not positive.

    Args:
        embedding_weights: As `params` of `embedding_lookup`.
        sparse_ids: [d0, …, dn] ids; those along the last axis are combined.
        sparse_weights: As `sp_weights` of `embedding_lookup_sparse`.
        combiner: As for `embedding_lookup_sparse`.
        default_id: The id to look up for an entry without ids; None yields zeros.
        name: Name scope of the nodes.
        partition_strategy: As for `embedding_lookup`.
        max_norm: As for `embedding_lookup`.
        allow_fast_lookup: Ignored; accepted for compatibility.

    Returns:
        [d0, …, dn-1, …row shape].

    Raises:
        InvalidArgumentError, …: as for `embedding_lookup_sparse`.
    """
    _checked_combiner(combiner)
    tables = _tables(embedding_weights)
    _check_sparse(sparse_ids, "ids")
    with name_scope(name, "embedding_lookup", [*tables, sparse_ids.values]):
        # All sizes but the last, which is that of the ids to combine.
        lead = make(
            "Slice", sparse_ids.dense_shape, [0], make("ExpandDims", make("Size", sparse_ids.dense_shape) - 1, 0)
        )
        ids, weights = _valid(_as_matrix(sparse_ids, lead), sparse_weights, combiner)
        # Every row needs an id for the lookup; the rows that were empty become 0 below.
        ids, was_empty = sparse_fill_empty_rows(ids, default_id or 0)
        if weights is not None:
            # An id that was filled in has the weight 1.
            weights, _ = sparse_fill_empty_rows(weights, 1.0)
        found = embedding_lookup_sparse(tables, ids, weights, partition_strategy, None, combiner, max_norm)
        if default_id is None:
            found = make("SelectV2", _column(was_empty, found), make("ZerosLike", found), found)
        inner = None if found.dims is None else found.dims[1:]
        shape = make("ConcatV2", [make("Cast", lead, DstT="int32"), _row_shape(found, inner)], 0)
        result = make("Reshape", found, shape)
        outer = sparse_ids.shape.raw
        result.set_shape(None if outer is None or inner is None else (None,) * (len(outer) - 1) + inner)
        return result


def _as_matrix(ids: SparseTensor, lead: Tensor) -> SparseTensor:
    """Reshape the ids to a matrix; the ids of a row are combined."""
    columns = make("Slice", ids.dense_shape, make("ExpandDims", make("Size", ids.dense_shape) - 1, 0), [1])
    rows = make("Prod", lead, constant([0]), keep_dims=True)
    return sparse_reshape(ids, make("ConcatV2", [rows, columns], 0))


def _valid(
    ids: SparseTensor, given: SparseTensor | None, combiner: Combiner
) -> tuple[SparseTensor, SparseTensor | None]:
    """Remove negative ids and their weights.

    Unless the combiner is "sum", also remove ids whose weight is not positive: the sum of the weights is a divisor
    then.
    """
    keep = ids.values >= constant(0, ids.dtype)
    if given is None:
        return sparse_retain(ids, keep), None
    weights = SparseTensor(ids.indices, given.values, ids.dense_shape)
    if combiner != "sum":
        keep = make("LogicalAnd", keep, weights.values > constant(0, weights.dtype))
    return sparse_retain(ids, keep), sparse_retain(weights, keep)

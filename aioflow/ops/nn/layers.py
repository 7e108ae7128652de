"""Small layers put together from ops: dropout, embeddings, and products with a bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.argument_kinds import check_kind
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, ShapeLike, format_dims, merge_dims
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.core import identity, stop_gradient
from aioflow.ops.math.random import random_uniform
from aioflow.ops.nn.activations import bias_add, relu
from aioflow.ops.scoping import name_scope

__all__ = ["dropout", "embedding_lookup", "relu_layer", "xw_plus_b", "zero_fraction"]


def dropout(
    x: TensorLike,
    keep_prob: TensorLike | None = None,
    noise_shape: ShapeLike | Tensor | None = None,
    seed: int | None = None,
    name: str | None = None,
    rate: TensorLike | None = None,
) -> Tensor:
    """x with a fraction `rate` of its elements set to 0 and the others divided by 1 - rate, anew in each step.

    Args:
        x: A floating tensor.
        keep_prob: 1 - rate: the older way of giving it.
        noise_shape: Where it is 1 (and x is not), elements along that axis are kept or dropped together; None is x's
            size.
        rate: A number or a scalar tensor in [0, 1).

    Raises:
        InvalidArgumentError: the rate is missing, given twice, or out of range.
    """
    dropped = _rate(keep_prob, rate)
    with name_scope(name, "dropout", [x, dropped]) as scope:
        tensor = convert_to_tensor(x, name="x")
        if not tensor.dtype.is_floating:
            raise InvalidArgumentError(
                "dropout scales x, so x must be floating", expected="a floating dtype", actual=tensor.dtype
            )
        if isinstance(dropped, int | float) and dropped == 0:
            return identity(tensor, name=scope)
        sample = random_uniform(_noise_shape(tensor, noise_shape), dtype=tensor.dtype, seed=seed)
        if isinstance(dropped, int | float):
            kept = make("GreaterEqual", sample, dropped)
            scale: Any = 1 / (1 - dropped)
        else:
            share = convert_to_tensor(dropped, tensor.dtype, name="rate")
            kept, scale = make("GreaterEqual", sample, share), make("Reciprocal", 1 - share)
        # What x is multiplied by carries no gradient, so x's own gradient is one multiplication.
        factor = stop_gradient(make("Mul", make("Cast", kept, DstT=tensor.dtype), scale))
        result = make("Mul", tensor, factor, name=scope)
        result.set_shape(tensor.dims)
        return result


def _rate(keep_prob: Any, rate: Any) -> Any:
    if (keep_prob is None) == (rate is None):
        raise InvalidArgumentError(
            "give one of rate and keep_prob", expected="one of them", actual="both" if rate is not None else "none"
        )
    given = keep_prob if rate is None else rate
    check_kind(given, (int, float, np.number, np.ndarray, Tensor), "rate or keep_prob", "a number")
    if rate is None:
        rate = 1 - keep_prob
    known = rate
    if isinstance(rate, Tensor):
        value = constant_value(rate)
        known = None if value is None else value.item()
        rate = rate if known is None else known
    if known is not None and not 0 <= known < 1:
        raise InvalidArgumentError("rate is out of range", expected="0 <= rate < 1", actual=known)
    return rate if isinstance(rate, Tensor) else float(rate)


def _noise_shape(tensor: Tensor, noise_shape: Any) -> Any:
    if noise_shape is None:
        return shape_of(tensor)
    if isinstance(noise_shape, Tensor):
        return noise_shape
    wanted = [None if s is None else int(s) for s in noise_shape]
    own: Dims = tensor.dims
    if None not in wanted:
        return wanted
    if own is None or len(own) != len(wanted):
        raise InvalidArgumentError("noise_shape needs one size per axis", expected=format_dims(own), actual=wanted)
    if all(w is not None or o is not None for w, o in zip(wanted, own, strict=True)):
        return [o if w is None else w for w, o in zip(wanted, own, strict=True)]
    sizes = make_list("Unpack", shape_of(tensor), num=len(own))
    return make("Pack", [s if w is None else constant(w, "int32") for w, s in zip(wanted, sizes, strict=True)])


def xw_plus_b(x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None) -> Tensor:
    """x @ weights + biases, for x [batch, in], weights [in, out], biases [out]."""
    with name_scope(name, "xw_plus_b", [x, weights, biases]) as scope:
        return bias_add(make("MatMul", x, weights), biases, name=scope)


def relu_layer(x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None) -> Tensor:
    """relu(x @ weights + biases). Arguments as `xw_plus_b`."""
    with name_scope(name, "relu_layer", [x, weights, biases]) as scope:
        return relu(xw_plus_b(x, weights, biases), name=scope)


def zero_fraction(value: TensorLike, name: str | None = None) -> Tensor:
    """The fraction of the elements that are 0, a float32 scalar; NaN for an empty tensor."""
    with name_scope(name, "zero_fraction", [value]) as scope:
        tensor = convert_to_tensor(value, name="value")
        zeros = make("Equal", tensor, constant(0, tensor.dtype))
        flat = make("Reshape", make("Cast", zeros, DstT="float32"), [-1])
        return make("Mean", flat, 0, name=scope)


# -- embeddings ------------------------------------------------------------------------------------


def embedding_lookup(
    params: TensorLike,
    ids: TensorLike,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Tensor:
    """The rows of `params` at `ids`: a tensor of shape ids.shape + row shape, whose gradient is sparse.

    Args:
        params: A tensor or variable, or a list of them that together hold the rows.
        ids: int32 or int64 row numbers.
        partition_strategy: How rows lie in a list of n: row i in table i % n for "mod", neighbours together for "div".
        max_norm: Scale each row down to this L2 norm where it is longer.

    Raises:
        InvalidArgumentError: no params, or an unknown strategy; at run time, an id is out of range.
    """
    given: Any = params
    tables = list(given) if isinstance(params, list | tuple) or hasattr(params, "_get_variable_list") else [given]
    if not tables:
        raise InvalidArgumentError("embedding_lookup needs params", expected="at least one table", actual="none")
    with name_scope(name, "embedding_lookup", [*tables, ids]) as scope:
        numbers = convert_to_tensor(ids, name="ids")
        if len(tables) == 1:
            return _clipped(_rows(tables[0], numbers, scope if max_norm is None else None), numbers, max_norm)
        return _clipped(_partitioned_rows(tables, numbers, partition_strategy), numbers, max_norm)


def _rows(table: Any, ids: Tensor, name: str | None = None) -> Tensor:
    result: Tensor
    if hasattr(table, "sparse_read"):
        result = table.sparse_read(ids, name=name)
    else:
        result = make("GatherV2", table, ids, 0, name=name)
    return result


def _partitioned_rows(tables: list[Any], ids: Tensor, strategy: str) -> Tensor:
    count = len(tables)
    flat = make("Reshape", ids, [-1])
    if strategy == "mod":
        part, row = make("FloorMod", flat, count), make("FloorDiv", flat, count)
    elif strategy == "div":
        part, row = _divided(tables, flat)
    else:
        raise InvalidArgumentError("unknown partition_strategy", expected="'mod' or 'div'", actual=strategy)
    if part.dtype.name != "int32":
        part = make("Cast", part, DstT="int32")
    places = make("Range", 0, make("Size", flat), 1)
    rows = make_list("DynamicPartition", row, part, num_partitions=count)
    where = make_list("DynamicPartition", places, part, num_partitions=count)
    found = [_rows(table, part_rows) for table, part_rows in zip(tables, rows, strict=True)]
    joined = make("ParallelDynamicStitch", where, found)
    inner = make("Shape", found[0])
    shape = make("ConcatV2", [make("Shape", ids), make("StridedSlice", inner, [1], [0], [1], end_mask=1)], 0)
    result = make("Reshape", joined, shape)
    row_dims: Dims = None
    for part_rows in found:
        row_dims = merge_dims(row_dims, None if part_rows.dims is None else part_rows.dims[1:])
    result.set_shape(None if ids.dims is None or row_dims is None else ids.dims + row_dims)
    return result


def _divided(tables: list[Any], flat: Tensor) -> tuple[Tensor, Tensor]:
    """(table, row in it) of each id: the first `extra` tables have one row more than the others."""
    each, extra = _rows_for_each(tables, flat.dtype)
    part = make("Maximum", make("FloorDiv", flat, each + 1), make("FloorDiv", flat - extra, each))
    long_row, short_row = make("FloorMod", flat, each + 1), make("FloorMod", flat - extra, each)
    return part, make("SelectV2", part < extra, long_row, short_row)


def _rows_for_each(tables: list[Any], dtype: DType) -> tuple[Any, Any]:
    """How many rows each table has, and how many of them have one more; ints, where all sizes are known."""
    given = [convert_to_tensor(t) for t in tables]
    known = [None if t.dims is None else t.dims[0] for t in given]
    if None in known:
        sizes = [make("GatherV2", make("Shape", t, out_type=dtype), 0, 0) for t in given]
        total = make("AddN", sizes)
        return make("FloorDiv", total, len(tables)), make("FloorMod", total, len(tables))
    each, extra = divmod(sum(k for k in known if k is not None), len(tables))
    if each == 0:
        raise InvalidArgumentError(
            "there are fewer rows than tables", expected=f"at least {len(tables)} rows", actual=extra
        )
    return each, extra


def _clipped(rows: Tensor, ids: Tensor, max_norm: float | None) -> Tensor:
    if max_norm is None:
        return rows
    axes: Any
    if rows.dims is None or ids.dims is None:
        axes = make("Range", make("Rank", ids), make("Rank", rows), 1)
    else:
        axes = list(range(len(ids.dims), len(rows.dims)))
    norm = make("Sqrt", make("Sum", make("Square", rows), axes, keep_dims=True))
    # rows * max_norm / max(norm, max_norm): no division by zero, and nothing changes where the norm is small enough
    result: Tensor = rows * max_norm / make("Maximum", norm, max_norm)
    return result

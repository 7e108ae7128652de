"""Ops that turn records into tensors: raw bytes, comma-separated text, and `tf.train.Example` messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import graph_of
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.traits import encoded
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_n_to_tensor, convert_to_tensor, make, make_list, make_tuple
from aioflow.ops.io.example_features import (
    FeatureSpecs,
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
)
from aioflow.ops.sparse.tensor import SparseTensor

__all__ = ["decode_csv", "decode_raw", "parse_example", "parse_single_example", "parse_single_sequence_example"]

_EXAMPLE_TYPES = "{float32, int64, string}"
_SEQUENCE_PARTS = ("context_sparse", "context_dense", "feature_list_sparse", "feature_list_dense")


def _raw_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.dims("bytes")
    return None if dims is None else (*dims, None)


def _csv_shape(ctx: ShapeContext) -> list[Dims]:
    defaults = ctx.dims_list("record_defaults")
    for dims in defaults:
        if dims is not None and (len(dims) > 1 or (len(dims) == 1 and dims[0] is not None and dims[0] > 1)):
            raise InvalidArgumentError(
                "a default has the wrong shape",
                expected="a scalar, or a vector of at most one",
                actual=format_dims(dims),
            )
    columns = ctx.attrs["select_cols"]
    if columns and len(columns) != len(defaults):
        raise InvalidArgumentError(
            "select_cols and record_defaults differ in length", expected=len(defaults), actual=len(columns)
        )
    if any(b <= a for a, b in pairwise(columns)) or any(c < 0 for c in columns):
        raise InvalidArgumentError("select_cols must increase strictly", expected=">= 0", actual=list(columns))
    return [ctx.dims("records")] * len(defaults)


def _examples_shape(ctx: ShapeContext) -> list[Dims]:
    serialized = ctx.require_rank("serialized", 1)
    ctx.require_rank("names", 1)
    return _outputs(ctx, serialized or (None,), ctx.attrs["Nsparse"], 2)


def _example_shape(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("serialized", 0)
    return _outputs(ctx, (), ctx.attrs["num_sparse"], 1)


def _outputs(ctx: ShapeContext, batch: tuple[int | None, ...], sparse: int, rank: int) -> list[Dims]:
    shapes = ctx.attrs["dense_shapes"]
    if len(shapes) != len(ctx.attrs["Tdense"]):
        raise InvalidArgumentError(
            "each dense feature needs a shape", expected=len(ctx.attrs["Tdense"]), actual=len(shapes)
        )
    for dims in shapes:
        if dims is None or None in dims[1:]:
            raise InvalidArgumentError(
                "only the first size of a dense feature may be unknown",
                expected="known sizes",
                actual=format_dims(dims),
            )
    # The indices of all sparse features come first, then all values, then all shapes.
    found: list[Dims] = [(None, rank)] * sparse + [(None,)] * sparse + [(rank,)] * sparse
    return found + [(*batch, *dims) for dims in shapes]


define_op(
    "DecodeRaw",
    "bytes: string",
    "output: out_type",
    [
        "out_type: {float16, float32, float64, int32, uint16, uint8, int16, int8, int64, complex64, complex128, bool, "
        "bfloat16}",
        "little_endian: bool = True",
    ],
    shape=_raw_shape,
    rows=rows.first_axis,
    traits=encoded(),
)
define_op(
    "DecodeCSV",
    "records: string, record_defaults: list:OUT_TYPE",
    "output: list:OUT_TYPE",
    [
        "OUT_TYPE: list({float32, float64, int32, int64, string}) >= 1",
        "field_delim: string = ','",
        "use_quote_delim: bool = True",
        "na_value: string = ''",
        "select_cols: list(int) = []",
    ],
    shape=_csv_shape,
    traits=encoded(),
)
define_op(
    "ParseExample",
    "serialized: string, names: string, sparse_keys: Nsparse*string, dense_keys: Ndense*string, "
    "dense_defaults: list:Tdense",
    "sparse_indices: Nsparse*int64, sparse_values: list:sparse_types, sparse_shapes: Nsparse*int64, "
    "dense_values: list:Tdense",
    [
        "Nsparse: int >= 0",
        "Ndense: int >= 0",
        f"sparse_types: list({_EXAMPLE_TYPES}) >= 0",
        f"Tdense: list({_EXAMPLE_TYPES}) >= 0",
        "dense_shapes: list(shape) >= 0",
    ],
    shape=_examples_shape,
    rows=rows.examples,
    traits=encoded(),
)
define_op(
    "ParseSingleExample",
    "serialized: string, dense_defaults: list:Tdense",
    "sparse_indices: num_sparse*int64, sparse_values: list:sparse_types, sparse_shapes: num_sparse*int64, "
    "dense_values: list:Tdense",
    [
        "num_sparse: int >= 0",
        "sparse_keys: list(string) >= 0",
        "dense_keys: list(string) >= 0",
        f"sparse_types: list({_EXAMPLE_TYPES}) >= 0",
        f"Tdense: list({_EXAMPLE_TYPES}) >= 0",
        "dense_shapes: list(shape) >= 0",
    ],
    shape=_example_shape,
    traits=encoded(),
)


def _sequence_shape(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("serialized", 0)
    attrs = ctx.attrs
    context, lists = attrs["Ncontext_sparse"], attrs["Nfeature_list_sparse"]
    return [
        *[(None, 1)] * context,
        *[(None,)] * context,
        *[(1,)] * context,
        *attrs["context_dense_shapes"],
        *[(None, 2)] * lists,
        *[(None,)] * lists,
        *[(2,)] * lists,
        *[None if dims is None else (None, *dims) for dims in attrs["feature_list_dense_shapes"]],
    ]


_CONTEXT_SPARSE = "context_sparse_{}: Ncontext_sparse*int64"
_LIST_SPARSE = "feature_list_sparse_{}: Nfeature_list_sparse*int64"

define_op(
    "ParseSingleSequenceExample",
    "serialized: string, feature_list_dense_missing_assumed_empty: string, "
    "context_sparse_keys: Ncontext_sparse*string, context_dense_keys: Ncontext_dense*string, "
    "feature_list_sparse_keys: Nfeature_list_sparse*string, feature_list_dense_keys: Nfeature_list_dense*string, "
    "context_dense_defaults: list:Tcontext_dense, debug_name: string",
    f"{_CONTEXT_SPARSE.format('indices')}, context_sparse_values: list:context_sparse_types, "
    f"{_CONTEXT_SPARSE.format('shapes')}, context_dense_values: list:Tcontext_dense, "
    f"{_LIST_SPARSE.format('indices')}, feature_list_sparse_values: list:feature_list_sparse_types, "
    f"{_LIST_SPARSE.format('shapes')}, feature_list_dense_values: list:feature_list_dense_types",
    [
        *(f"N{name}: int >= 0 = 0" for name in _SEQUENCE_PARTS),
        f"context_sparse_types: list({_EXAMPLE_TYPES}) >= 0 = []",
        f"Tcontext_dense: list({_EXAMPLE_TYPES}) >= 0 = []",
        f"feature_list_dense_types: list({_EXAMPLE_TYPES}) >= 0 = []",
        "context_dense_shapes: list(shape) >= 0 = []",
        f"feature_list_sparse_types: list({_EXAMPLE_TYPES}) >= 0 = []",
        "feature_list_dense_shapes: list(shape) >= 0 = []",
    ],
    shape=_sequence_shape,
    traits=encoded(),
)

not_differentiable("DecodeRaw", "DecodeCSV", "ParseExample", "ParseSingleExample", "ParseSingleSequenceExample")


def decode_raw(
    input_bytes: TensorLike | None = None,
    out_type: DTypeLike | None = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: TensorLike | None = None,
) -> Tensor:
    """Return the bytes of each string as numbers, in a new last dimension.

    Args:
        input_bytes: The strings.
        out_type: The dtype of the numbers.
        little_endian: Whether the numbers are little-endian.
        name: Name of the node.
        bytes: Another name for `input_bytes`.

    Raises:
        InvalidArgumentError: the strings differ in length, their length is not a multiple of the dtype's size, or the
            strings or the dtype are not given.
    """
    given = input_bytes if input_bytes is not None else bytes
    if given is None or out_type is None:
        raise InvalidArgumentError("decode_raw needs strings and a dtype", expected="both", actual="None")
    return make("DecodeRaw", given, out_type=out_type, little_endian=little_endian, name=name)


def decode_csv(
    records: TensorLike,
    record_defaults: Sequence[TensorLike],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """Return the columns of comma-separated records, each a tensor of the records' shape.

    Args:
        records: Strings, one record each, without the line end.
        record_defaults: For each column the value of an empty field, which determines the column's dtype; an empty
            vector if the field is required.
        field_delim: The character between fields.
        use_quote_delim: Whether a field in double quotes may hold delimiters; otherwise quotes are characters.
        name: Name of the node.
        na_value: Text that counts as empty, too.
        select_cols: Indices of the columns to return, increasing; without it, each record must have exactly as many
            fields as `record_defaults`.

    Raises:
        InvalidArgumentError: a record has a different number of fields, or a field is not of its column's dtype.
    """
    with graph_of([records]).as_default():
        defaults = convert_n_to_tensor(record_defaults)
    return make_list(
        "DecodeCSV",
        records,
        defaults,
        field_delim=field_delim,
        use_quote_delim=use_quote_delim,
        na_value=na_value,
        select_cols=list(select_cols or ()),
        name=name,
    )


ExampleFeatures: TypeAlias = Mapping[str, FixedLenFeature | FixedLenSequenceFeature | VarLenFeature | SparseFeature]
_OF_EXAMPLES: Final = (FixedLenFeature, FixedLenSequenceFeature, VarLenFeature, SparseFeature)


def _specs(features: ExampleFeatures) -> FeatureSpecs:
    if not features:
        raise InvalidArgumentError("no features are requested", expected="a dict of features", actual="none")
    return FeatureSpecs(features, _OF_EXAMPLES)


class _Features(NamedTuple):
    """The outputs of the ops that parse an `Example`."""

    sparse_indices: list[Tensor]
    sparse_values: list[Tensor]
    sparse_shapes: list[Tensor]
    dense_values: list[Tensor]


class _SequenceFeatures(NamedTuple):
    """The outputs of the op that parses a `SequenceExample`."""

    context_sparse_indices: list[Tensor]
    context_sparse_values: list[Tensor]
    context_sparse_shapes: list[Tensor]
    context_dense_values: list[Tensor]
    feature_list_sparse_indices: list[Tensor]
    feature_list_sparse_values: list[Tensor]
    feature_list_sparse_shapes: list[Tensor]
    feature_list_dense_values: list[Tensor]


def _sparse(indices: Sequence[Tensor], values: Sequence[Tensor], shapes: Sequence[Tensor]) -> list[SparseTensor]:
    return [SparseTensor(*parts) for parts in zip(indices, values, shapes, strict=True)]


def parse_example(
    serialized: TensorLike, features: ExampleFeatures, name: str | None = None, example_names: TensorLike | None = None
) -> dict[str, Any]:
    """Return the features of a batch of serialized `Example` messages, by name.

    The first size of each is that of the batch.

    Args:
        serialized: A vector of strings.
        features: The features to read, by name; other features of the examples are ignored.
        name: Name of the node.
        example_names: Names of the examples, for error messages.

    Returns:
        A tensor for each feature of fixed length, a `SparseTensor` for each other one.

    Raises:
        InvalidArgumentError: a string is not an Example, a required feature is missing, or one has the wrong dtype or
            number of values.
    """
    specs = _specs(features)
    found = make_tuple(
        _Features,
        "ParseExample",
        convert_to_tensor(serialized, dtypes.string),
        constant([], dtypes.string) if example_names is None else convert_to_tensor(example_names, dtypes.string),
        list(specs.sparse),
        list(specs.dense),
        [default for _, _, default in specs.dense.values()],
        sparse_types=list(specs.sparse.values()),
        dense_shapes=[dims for _, dims, _ in specs.dense.values()],
        name=name or "ParseExample",
    )
    sparse = _sparse(found.sparse_indices, found.sparse_values, found.sparse_shapes)
    return specs.assembled(sparse, found.dense_values)


def parse_single_example(
    serialized: TensorLike, features: ExampleFeatures, name: str | None = None, example_names: TensorLike | None = None
) -> dict[str, Any]:
    """Return the features of one serialized `Example`, by name: `parse_example` of a scalar, without the batch.

    `example_names` is ignored.
    """
    specs = _specs(features)
    found = make_tuple(
        _Features,
        "ParseSingleExample",
        convert_to_tensor(serialized, dtypes.string),
        [default for _, _, default in specs.dense.values()],
        num_sparse=len(specs.sparse),
        sparse_keys=list(specs.sparse),
        dense_keys=list(specs.dense),
        sparse_types=list(specs.sparse.values()),
        dense_shapes=[dims for _, dims, _ in specs.dense.values()],
        name=name or "ParseSingleExample",
    )
    sparse = _sparse(found.sparse_indices, found.sparse_values, found.sparse_shapes)
    return specs.assembled(sparse, found.dense_values)


def parse_single_sequence_example(
    serialized: TensorLike,
    context_features: Mapping[str, FixedLenFeature | VarLenFeature] | None = None,
    sequence_features: Mapping[str, FixedLenSequenceFeature | VarLenFeature] | None = None,
    example_name: TensorLike | None = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the features of one serialized `SequenceExample`: those of its context, and its lists, by name.

    Args:
        serialized: A scalar string.
        context_features: The features of the context to read.
        sequence_features: The lists to read. A list of fixed length is returned as a tensor [steps, *shape], one of any
            length as a sparse matrix of one row per step.
        example_name: Name for error messages.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the string is not a SequenceExample, a required item is missing, or a feature has the
            wrong dtype or number of values.
    """
    if not context_features and not sequence_features:
        raise InvalidArgumentError("no features are requested", expected="a dict of features", actual="none")
    context = FeatureSpecs(context_features, (FixedLenFeature, VarLenFeature))
    lists = FeatureSpecs(sequence_features, (FixedLenSequenceFeature, VarLenFeature), in_steps=True)
    found = make_tuple(
        _SequenceFeatures,
        "ParseSingleSequenceExample",
        convert_to_tensor(serialized, dtypes.string),
        constant(lists.missing_allowed, dtypes.string),
        list(context.sparse),
        list(context.dense),
        list(lists.sparse),
        list(lists.dense),
        [default for _, _, default in context.dense.values()],
        convert_to_tensor("" if example_name is None else example_name, dtypes.string),
        context_sparse_types=list(context.sparse.values()),
        context_dense_shapes=[dims for _, dims, _ in context.dense.values()],
        feature_list_sparse_types=list(lists.sparse.values()),
        feature_list_dense_types=[dtype for dtype, _, _ in lists.dense.values()],
        feature_list_dense_shapes=[dims for _, dims, _ in lists.dense.values()],
        name=name or "ParseSingleSequenceExample",
    )
    return (
        context.assembled(_sparse(*found[:3]), found.context_dense_values),
        lists.assembled(_sparse(*found[4:7]), found.feature_list_dense_values),
    )

"""Ops that turn records into tensors: raw bytes, comma-separated text, and `tf.train.Example` messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op, not_differentiable
from aioflow.graph.shapes import Dims, dims_of, format_dims, num_elements
from aioflow.ops.apply import TensorLike, apply_op, constant, convert_to_tensor

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "decode_csv",
    "decode_raw",
    "parse_example",
    "parse_single_example",
]

_EXAMPLE_TYPES = "{float32, int64, string}"


def _raw_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.dims("bytes")
    return None if dims is None else (*dims, None)


def _csv_shape(ctx: ShapeContext) -> list[Dims]:
    defaults = ctx.dims_list("record_defaults")
    for dims in defaults:
        if dims is not None and (len(dims) > 1 or (len(dims) == 1 and dims[0] is not None and dims[0] > 1)):
            raise InvalidArgumentError(
                "a default has a wrong shape", expected="a scalar, or a vector of at most one", actual=format_dims(dims)
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
                "only the first size of a dense feature may be open", expected="known sizes", actual=format_dims(dims)
            )
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
)

not_differentiable("DecodeRaw", "DecodeCSV", "ParseExample", "ParseSingleExample")


def decode_raw(
    input_bytes: TensorLike = None,
    out_type: Any = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: TensorLike = None,
) -> Tensor:
    """The bytes of each string as numbers, in a new last dimension.

    Args:
        out_type: The dtype that the bytes are of.
        bytes: Another name for `input_bytes`.

    Raises:
        InvalidArgumentError: the strings differ in length, or it is no multiple of the dtype's size.
    """
    given = input_bytes if input_bytes is not None else bytes
    if given is None or out_type is None:
        raise InvalidArgumentError("decode_raw needs strings and a dtype", expected="both", actual="None")
    result: Tensor = apply_op("DecodeRaw", given, out_type=out_type, little_endian=little_endian, name=name)
    return result


def decode_csv(
    records: TensorLike,
    record_defaults: Sequence[TensorLike],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """The columns of comma-separated records, a tensor of the records' shape each.

    Args:
        records: Strings, one record each, without the line end.
        record_defaults: For each column the value where a field is empty, which gives the column's dtype; an empty
            vector where a field is required.
        field_delim: The character between fields.
        use_quote_delim: Whether a field in double quotes may hold delimiters; otherwise quotes are characters.
        na_value: What else counts as empty.
        select_cols: The columns wanted, increasing; without it, each record must have just `record_defaults` fields.

    Raises:
        InvalidArgumentError: a record has another number of fields, or a field is not of its column's dtype.
    """
    result: list[Tensor] = apply_op(
        "DecodeCSV",
        records,
        list(record_defaults),
        field_delim=field_delim,
        use_quote_delim=use_quote_delim,
        na_value=na_value,
        select_cols=list(select_cols or ()),
        name=name,
    )
    return result


class FixedLenFeature(NamedTuple):
    """How to read a feature that has as many values in each example.

    Attributes:
        shape: Of the values of one example.
        dtype: float32, int64 or string.
        default_value: For an example without the feature; without it, that is an error.
    """

    shape: Any
    dtype: Any
    default_value: Any = None

    def _spec(self, key: str) -> tuple[DType, Dims, Tensor]:
        dtype, dims = as_dtype(self.dtype), dims_of(self.shape)
        if dims is None or num_elements(dims) is None:
            raise InvalidArgumentError(
                f"feature {key!r} needs a known shape", expected="known sizes", actual=format_dims(dims)
            )
        if self.default_value is None:
            return dtype, dims, constant([], dtype)
        return dtype, dims, constant(self.default_value, dtype, shape=dims, verify_shape=True)


class FixedLenSequenceFeature(NamedTuple):
    """How to read a feature with any number of entries; shorter ones are padded to the longest of the batch.

    Attributes:
        shape: Of one entry.
        dtype: float32, int64 or string.
        allow_missing: Must be True: an example without the feature has no entries.
        default_value: What is padded with, a scalar; 0 or "" without it.
    """

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None

    def _spec(self, key: str) -> tuple[DType, Dims, Tensor]:
        dtype, dims = as_dtype(self.dtype), dims_of(self.shape)
        if dims is None or num_elements(dims) is None:
            raise InvalidArgumentError(
                f"feature {key!r} needs a known shape", expected="known sizes", actual=format_dims(dims)
            )
        if not self.allow_missing:
            raise InvalidArgumentError(f"feature {key!r}: allow_missing must be True", expected=True, actual=False)
        padding = self.default_value
        if padding is None:
            padding = "" if dtype is dtypes.string else 0
        return dtype, (None, *dims), constant(padding, dtype, shape=(1,))


def _specs(features: Mapping[str, Any]) -> tuple[list[str], list[tuple[DType, Dims, Tensor]]]:
    if not features:
        raise InvalidArgumentError("no features are asked for", expected="a dict of features", actual="none")
    keys = sorted(features)
    for key in keys:
        if not isinstance(features[key], FixedLenFeature | FixedLenSequenceFeature):
            raise InvalidArgumentError(
                f"feature {key!r} is of a kind that cannot be parsed",
                expected="FixedLenFeature or FixedLenSequenceFeature",
                actual=repr(features[key]),
            )
    return keys, [features[key]._spec(key) for key in keys]


def parse_example(
    serialized: TensorLike,
    features: Mapping[str, FixedLenFeature | FixedLenSequenceFeature],
    name: str | None = None,
    example_names: TensorLike = None,
) -> dict[str, Tensor]:
    """The features of a batch of serialized `Example` messages, by name; the first size of each is the batch's.

    Args:
        serialized: A vector of strings.
        features: What to read, by name; what else the examples have is left out.
        example_names: Names of the examples, for error messages.

    Raises:
        InvalidArgumentError: a string is no Example, a required feature is missing, or one has another dtype or number
            of values than it should.
    """
    keys, specs = _specs(features)
    found = apply_op(
        "ParseExample",
        convert_to_tensor(serialized, dtypes.string),
        constant([], dtypes.string) if example_names is None else convert_to_tensor(example_names, dtypes.string),
        [],
        keys,
        [default for _, _, default in specs],
        sparse_types=[],
        dense_shapes=[dims for _, dims, _ in specs],
        name=name or "ParseExample",
    )
    return dict(zip(keys, found.dense_values, strict=True))


def parse_single_example(
    serialized: TensorLike,
    features: Mapping[str, FixedLenFeature | FixedLenSequenceFeature],
    name: str | None = None,
    example_names: TensorLike = None,
) -> dict[str, Tensor]:
    """The features of one serialized `Example` message, by name: `parse_example` of a scalar, without the batch."""
    keys, specs = _specs(features)
    found = apply_op(
        "ParseSingleExample",
        convert_to_tensor(serialized, dtypes.string),
        [default for _, _, default in specs],
        num_sparse=0,
        sparse_keys=[],
        dense_keys=keys,
        sparse_types=[],
        dense_shapes=[dims for _, dims, _ in specs],
        name=name or "ParseSingleExample",
    )
    return dict(zip(keys, found.dense_values, strict=True))

"""Strings in other forms: split, stripped, in other case, matched and replaced by patterns, hashed, in base64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op, not_differentiable
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import text
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.core import unchanged
from aioflow.ops.sparse.tensor import SparseTensor

__all__ = [
    "decode_base64",
    "encode_base64",
    "reduce_join",
    "regex_replace",
    "string_split",
    "string_strip",
    "string_to_hash_bucket",
    "string_to_hash_bucket_fast",
    "string_to_hash_bucket_strong",
]


def _split(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("input", 1)
    return [(None, 2), (None,), (2,)]


def _like_input(ctx: ShapeContext) -> Dims:
    for arg in ctx.op_def.inputs[1:]:
        ctx.require_rank(arg.name, 0)
    return ctx.dims("input")


def _reduced(ctx: ShapeContext) -> Dims:
    dims, axes = ctx.dims("inputs"), ctx.value("reduction_indices")
    if dims is None or axes is None:
        return (None,) * len(dims) if dims is not None and ctx.attrs["keep_dims"] else None
    rank = len(dims)
    chosen = {int(axis) + rank if axis < 0 else int(axis) for axis in axes.reshape(-1)}
    if any(not 0 <= axis < rank for axis in chosen):
        raise InvalidArgumentError("no such dimension", expected=f"-{rank}..{rank - 1}", actual=axes.tolist())
    if ctx.attrs["keep_dims"]:
        return tuple(1 if axis in chosen else size for axis, size in enumerate(dims))
    return tuple(size for axis, size in enumerate(dims) if axis not in chosen)


_PARTS = "indices: int64, values: string, shape: int64"

define_op(
    "StringSplit",
    "input: string, delimiter: string",
    _PARTS,
    ["skip_empty: bool = True"],
    shape=_split,
    rows=rows.by_values,
    traits=text(),
)
define_op(
    "StringSplitV2",
    "input: string, sep: string",
    _PARTS,
    ["maxsplit: int = -1"],
    shape=_split,
    rows=rows.by_values,
    traits=text(),
)
define_op("StringStrip", "input: string", "output: string", shape=unchanged, rows=rows.each_element, traits=text())
define_op(
    "StringLower",
    "input: string",
    "output: string",
    ["encoding: string = ''"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "StringUpper",
    "input: string",
    "output: string",
    ["encoding: string = ''"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "RegexReplace",
    "input: string, pattern: string, rewrite: string",
    "output: string",
    ["replace_global: bool = True"],
    shape=_like_input,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "RegexFullMatch",
    "input: string, pattern: string",
    "output: bool",
    shape=_like_input,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "StaticRegexReplace",
    "input: string",
    "output: string",
    ["pattern: string", "rewrite: string", "replace_global: bool = True"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "StaticRegexFullMatch",
    "input: string",
    "output: bool",
    ["pattern: string"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "StringToHashBucket",
    "string_tensor: string",
    "output: int64",
    ["num_buckets: int >= 1"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "StringToHashBucketFast",
    "input: string",
    "output: int64",
    ["num_buckets: int >= 1"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "StringToHashBucketStrong",
    "input: string",
    "output: int64",
    ["num_buckets: int >= 1", "key: list(int)"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op(
    "EncodeBase64",
    "input: string",
    "output: string",
    ["pad: bool = False"],
    shape=unchanged,
    rows=rows.each_element,
    traits=text(),
)
define_op("DecodeBase64", "input: string", "output: string", shape=unchanged, rows=rows.each_element, traits=text())
define_op(
    "ReduceJoin",
    "inputs: string, reduction_indices: int32",
    "output: string",
    ["keep_dims: bool = False", "separator: string = ''"],
    shape=_reduced,
    rows=rows.reduced(),
    traits=text(),
)

not_differentiable(
    "StringSplit",
    "StringSplitV2",
    "StringStrip",
    "StringLower",
    "StringUpper",
    "RegexReplace",
    "RegexFullMatch",
    "StaticRegexReplace",
    "StaticRegexFullMatch",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "EncodeBase64",
    "DecodeBase64",
    "ReduceJoin",
)

# ── parts and wholes ─────────────────────────────────────────────────────────────────────────────────────────────────


def _only_sparse(result_type: str) -> None:
    if result_type != "SparseTensor":
        raise InvalidArgumentError("unknown result type", expected="'SparseTensor'", actual=repr(result_type))


def string_split(
    source: TensorLike,
    sep: TensorLike | None = None,
    skip_empty: bool = True,
    delimiter: TensorLike | None = None,
    result_type: str = "SparseTensor",
    name: str | None = None,
) -> SparseTensor:
    """The pieces of each string of a vector, as the rows of a sparse matrix.

    Args:
        sep: Characters each of which separates pieces, " " by default; with "", each byte is a piece.
        skip_empty: Leave out empty pieces.
        delimiter: A former name of `sep`.
        result_type: "SparseTensor": there are no ragged tensors.
    """
    _only_sparse(result_type)
    given = delimiter if delimiter is not None else " " if sep is None else sep
    made = make_list(
        "StringSplit",
        convert_to_tensor(source, dtypes.string),
        convert_to_tensor(given, dtypes.string),
        skip_empty=skip_empty,
        name=name,
    )
    return SparseTensor(*made)


def string_split_v2(
    input: TensorLike | None = None,
    sep: TensorLike | None = None,
    maxsplit: int = -1,
    result_type: str = "SparseTensor",
    source: TensorLike | None = None,
    name: str | None = None,
) -> SparseTensor:
    """The pieces of each string of a vector, as Python's `str.split` gives them: the rows of a sparse matrix.

    Args:
        sep: One separator of any length; without it, or with "", any run of white space.
        maxsplit: The largest number of splits of a string; -1 for any.
        result_type: "SparseTensor": there are no ragged tensors.
        source: Another name for `input`.
    """
    _only_sparse(result_type)
    given: Any = input if input is not None else source
    strings = convert_to_tensor(given, dtypes.string)
    if strings.dims == ():
        strings = make("Reshape", strings, [1])
    made = make_list("StringSplitV2", strings, constant("") if sep is None else sep, maxsplit=maxsplit, name=name)
    return SparseTensor(*made)


def reduce_join(
    inputs: TensorLike,
    axis: TensorLike | None = None,
    keep_dims: bool | None = None,
    separator: str = "",
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The strings along `axis` (one, several of which the first varies fastest, or by default all) joined.

    Args:
        keepdims: Keep the joined dimensions, with size 1.
        reduction_indices, keep_dims: Former names of `axis`, `keepdims`.

    Raises:
        InvalidArgumentError: an axis does not exist or is given twice.
    """
    strings = convert_to_tensor(inputs, dtypes.string)
    axes = axis if axis is not None else reduction_indices
    if axes is None:
        dims = strings.dims
        axes = make("Range", make("Rank", strings) - 1, -1, -1) if dims is None else list(range(len(dims)))[::-1]
    keep = keepdims if keepdims is not None else bool(keep_dims)
    return make(
        "ReduceJoin", strings, convert_to_tensor(axes, dtypes.int32), keep_dims=keep, separator=separator, name=name
    )


# ── other forms ──────────────────────────────────────────────────────────────────────────────────────────────────────


def string_strip(input: TensorLike, name: str | None = None) -> Tensor:
    """The strings without white space at both ends."""
    return make("StringStrip", input, name=name)


def string_lower(input: TensorLike, encoding: str = "", name: str | None = None) -> Tensor:
    """The strings in lower case: of ASCII letters, or with `encoding` "utf-8" of all."""
    return make("StringLower", input, encoding=encoding, name=name)


def string_upper(input: TensorLike, encoding: str = "", name: str | None = None) -> Tensor:
    """The strings in upper case: of ASCII letters, or with `encoding` "utf-8" of all."""
    return make("StringUpper", input, encoding=encoding, name=name)


def encode_base64(input: TensorLike, pad: bool = False, name: str | None = None) -> Tensor:
    """The strings in URL-safe base64, with "=" at the end if `pad`."""
    return make("EncodeBase64", input, pad=pad, name=name)


def decode_base64(input: TensorLike, name: str | None = None) -> Tensor:
    """What strings in base64 stand for: see `encode_base64`. Padding may be there or not.

    Raises:
        InvalidArgumentError: a string is not base64.
    """
    return make("DecodeBase64", input, name=name)


# ── patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def regex_replace(
    input: TensorLike, pattern: TensorLike, rewrite: TensorLike, replace_global: bool = True, name: str | None = None
) -> Tensor:
    r"""The strings with what matches `pattern` replaced by `rewrite`.

    The pattern has the syntax of RE2, except for Unicode classes. It is matched by Python's engine, which backtracks:
    a pattern from elsewhere can take exponential time.

    Args:
        pattern: A pattern, or a scalar tensor of one.
        rewrite: What is put in, with `\0` for the match and `\1` to `\9` for its groups.
        replace_global: Replace all matches, not only the first.

    Raises:
        InvalidArgumentError: the pattern or `rewrite` is not valid.
    """
    if isinstance(pattern, str) and isinstance(rewrite, str):
        return make(
            "StaticRegexReplace", input, pattern=pattern, rewrite=rewrite, replace_global=replace_global, name=name
        )
    return make("RegexReplace", input, pattern, rewrite, replace_global=replace_global, name=name)


def regex_full_match(input: TensorLike, pattern: TensorLike, name: str | None = None) -> Tensor:
    """Whether the whole of each string matches `pattern`, bool. For the syntax see `regex_replace`."""
    if isinstance(pattern, str):
        return make("StaticRegexFullMatch", input, pattern=pattern, name=name)
    return make("RegexFullMatch", input, pattern, name=name)


# ── hashes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def string_to_hash_bucket(
    string_tensor: TensorLike | None = None,
    num_buckets: int | None = None,
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """A number below `num_buckets` for each string, int64, the same in every process: its hash.

    Args:
        input: Another name for `string_tensor`.
    """
    given = string_tensor if string_tensor is not None else input
    if given is None or num_buckets is None:
        raise DTypeError("there is nothing to hash", expected="strings and num_buckets", actual="None")
    return make("StringToHashBucket", given, num_buckets=num_buckets, name=name)


def string_to_hash_bucket_fast(input: TensorLike, num_buckets: int, name: str | None = None) -> Tensor:
    """As `string_to_hash_bucket`, by another hash (FarmHash's Fingerprint64): the one that Keras's layers hash by."""
    return make("StringToHashBucketFast", input, num_buckets=num_buckets, name=name)


def string_to_hash_bucket_strong(
    input: TensorLike, num_buckets: int, key: Sequence[int], name: str | None = None
) -> Tensor:
    """As `string_to_hash_bucket`, by a hash with a key (SipHash), for strings that somebody else chooses.

    Args:
        key: Two integers.
    """
    return make("StringToHashBucketStrong", input, num_buckets=num_buckets, key=list(key), name=name)

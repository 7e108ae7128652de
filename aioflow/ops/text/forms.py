"""Ops that transform strings: split, strip, change of case, regular expressions, hashes and base64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, check_axis
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
    chosen = {check_axis(int(axis), rank) for axis in axes.reshape(-1)}
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

# ── splitting and joining ─────────────────────────────────────────────────────────────────────────────────────────────


def _only_sparse(result_type: str) -> None:
    if result_type != "SparseTensor":
        raise InvalidArgumentError("unknown result type", expected="'SparseTensor'", actual=repr(result_type))


def string_split(
    source: TensorLike,
    sep: TensorLike | None = None,
    skip_empty: bool = True,
    delimiter: TensorLike | None = None,
    result_type: Literal["SparseTensor"] = "SparseTensor",
    name: str | None = None,
) -> SparseTensor:
    """Split each string of a vector; the pieces are the rows of a sparse matrix.

    Args:
        source: A vector of strings.
        sep: Characters each of which separates pieces, " " by default. With "", each byte is a piece.
        skip_empty: Whether to drop empty pieces.
        delimiter: Former name of `sep`.
        result_type: Only "SparseTensor"; ragged tensors are not supported.
        name: Name of the node.
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
    result_type: Literal["SparseTensor"] = "SparseTensor",
    source: TensorLike | None = None,
    name: str | None = None,
) -> SparseTensor:
    """Split each string of a vector like Python's `str.split`; the pieces are the rows of a sparse matrix.

    Args:
        input: A vector of strings, or one string.
        sep: A separator of any length. Without one, or with "", any run of white space separates.
        maxsplit: Maximum number of splits per string; -1 for no limit.
        result_type: Only "SparseTensor"; ragged tensors are not supported.
        source: Another name for `input`.
        name: Name of the node.
    """
    _only_sparse(result_type)
    given: Any = input if input is not None else source
    strings = convert_to_tensor(given, dtypes.string)
    if strings.dims == ():
        # The op takes a vector.
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
    """Join the strings along `axis`.

    Args:
        inputs: Strings.
        axis: One axis, several, or by default all. Of several axes, the first varies fastest.
        keep_dims: Former name of `keepdims`.
        separator: Text between two strings.
        name: Name of the node.
        reduction_indices: Former name of `axis`.
        keepdims: Whether to keep the joined dimensions, with size 1.

    Raises:
        InvalidArgumentError: an axis does not exist or is given twice.
    """
    strings = convert_to_tensor(inputs, dtypes.string)
    axes = axis if axis is not None else reduction_indices
    if axes is None:
        dims = strings.dims
        # Reversed, so that the last axis varies fastest: the strings are joined in row-major order.
        axes = make("Range", make("Rank", strings) - 1, -1, -1) if dims is None else list(range(len(dims)))[::-1]
    keep = keepdims if keepdims is not None else bool(keep_dims)
    return make(
        "ReduceJoin", strings, convert_to_tensor(axes, dtypes.int32), keep_dims=keep, separator=separator, name=name
    )


# ── other forms ───────────────────────────────────────────────────────────────────────────────────────────────────────


def string_strip(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the strings without white space at both ends."""
    return make("StringStrip", input, name=name)


def string_lower(input: TensorLike, encoding: Literal["", "utf-8"] = "", name: str | None = None) -> Tensor:
    """Return the strings in lower case: only ASCII letters change, or all letters with `encoding` "utf-8"."""
    return make("StringLower", input, encoding=encoding, name=name)


def string_upper(input: TensorLike, encoding: Literal["", "utf-8"] = "", name: str | None = None) -> Tensor:
    """Return the strings in upper case: only ASCII letters change, or all letters with `encoding` "utf-8"."""
    return make("StringUpper", input, encoding=encoding, name=name)


def encode_base64(input: TensorLike, pad: bool = False, name: str | None = None) -> Tensor:
    """Return the strings in URL-safe base64, padded with "=" if `pad`."""
    return make("EncodeBase64", input, pad=pad, name=name)


def decode_base64(input: TensorLike, name: str | None = None) -> Tensor:
    """Decode strings from URL-safe base64, with or without padding: see `encode_base64`.

    Raises:
        InvalidArgumentError: a string is not base64.
    """
    return make("DecodeBase64", input, name=name)


# ── patterns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def regex_replace(
    input: TensorLike, pattern: TensorLike, rewrite: TensorLike, replace_global: bool = True, name: str | None = None
) -> Tensor:
    r"""Return the strings with matches of `pattern` replaced by `rewrite`.

    The pattern has the syntax of RE2, except for Unicode classes. Python's engine matches it, and it backtracks: a
    pattern from an untrusted source can take exponential time.

    Args:
        input: The strings.
        pattern: A pattern, or a scalar tensor of one.
        rewrite: The replacement, with `\0` for the match and `\1` to `\9` for its groups.
        replace_global: Whether to replace all matches instead of only the first.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the pattern or `rewrite` is invalid.
    """
    if isinstance(pattern, str) and isinstance(rewrite, str):
        return make(
            "StaticRegexReplace", input, pattern=pattern, rewrite=rewrite, replace_global=replace_global, name=name
        )
    return make("RegexReplace", input, pattern, rewrite, replace_global=replace_global, name=name)


def regex_full_match(input: TensorLike, pattern: TensorLike, name: str | None = None) -> Tensor:
    """Return whether each whole string matches `pattern`, bool. For the syntax see `regex_replace`."""
    if isinstance(pattern, str):
        return make("StaticRegexFullMatch", input, pattern=pattern, name=name)
    return make("RegexFullMatch", input, pattern, name=name)


# ── hashes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def string_to_hash_bucket(
    string_tensor: TensorLike | None = None,
    num_buckets: int | None = None,
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """Return the hash of each string, an int64 below `num_buckets` that is the same in every process.

    `input` is another name for `string_tensor`.
    """
    given = string_tensor if string_tensor is not None else input
    if given is None or num_buckets is None:
        raise DTypeError("there is nothing to hash", expected="strings and num_buckets", actual="None")
    return make("StringToHashBucket", given, num_buckets=num_buckets, name=name)


def string_to_hash_bucket_fast(input: TensorLike, num_buckets: int, name: str | None = None) -> Tensor:
    """Return a hash like `string_to_hash_bucket`, with FarmHash's Fingerprint64, which Keras's layers use."""
    return make("StringToHashBucketFast", input, num_buckets=num_buckets, name=name)


def string_to_hash_bucket_strong(
    input: TensorLike, num_buckets: int, key: Sequence[int], name: str | None = None
) -> Tensor:
    """Return a hash like `string_to_hash_bucket`, with SipHash and a key, for strings from untrusted sources.

    `key` is a sequence of two integers.
    """
    return make("StringToHashBucketStrong", input, num_buckets=num_buckets, key=list(key), name=name)

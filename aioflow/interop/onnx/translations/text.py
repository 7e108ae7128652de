"""String ops on UTF-8 text, and counts of n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import rank_of, shape_of, size_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.interop.onnx.translations.lookup import LookupKey, index_in
from aioflow.ops.apply import constant, make, make_list
from aioflow.ops.array.selection import boolean_mask

_MOST_SKIPPED: Final = 100  # most tokens to skip within n-grams; each number of them has its own nodes
_MOST_COLUMNS: Final = 1 << 26  # most columns of the result; the largest index sets their number


@translation("StringConcat")
def concat(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    return make("Add", x, y)


@translation("RegexFullMatch")
def regex_full_match(node: OnnxNode, x: Tensor) -> Tensor:
    return make("StaticRegexFullMatch", x, pattern=node.required("pattern"))


@translation("StringNormalizer")
def normalizer(node: OnnxNode, x: Tensor) -> Tensor:
    """Remove stop words and change the case. If no string remains, the result is one empty string."""
    lower = not node.attr("is_case_sensitive", 0)
    words = [word.encode() for word in node.attr("stopwords") or []]
    kept = make("Reshape", x, [-1])
    if words:
        # Words are compared in lower case, but keep their own until the change of case.
        compared = _in_case("LOWER", kept) if lower else kept
        stops = sorted({word.decode().lower().encode() if lower else word for word in words})
        kept = boolean_mask(kept, make("Less", index_in(stops, compared), 0))
    kept = _in_case(node.attr("case_change_action", "NONE"), kept)
    # 1 if nothing is left, which is then the number of empty strings appended.
    missing = make("Cast", make("Equal", make("Size", kept), 0), DstT=dtypes.int32)
    filler = make("Fill", make("Reshape", missing, [1]), constant(np.array(b"", object)))
    result = make("ConcatV2", [kept, filler], 0)
    return make("ExpandDims", result, 0) if rank_of(node, x) == 2 else result


def _in_case(action: str, x: Tensor) -> Tensor:
    ops = {"LOWER": "StringLower", "UPPER": "StringUpper"}
    return make(ops[action], x, encoding="utf-8") if action in ops else x


@translation("StringSplit")
def split(node: OnnxNode, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pieces along a new last dimension, padded with "", and their number for each string."""
    delimiter, most = node.attr("delimiter", ""), node.attr("maxsplit", -1)
    flat = make("Reshape", x, [-1])
    indices, pieces, _ = make_list("StringSplitV2", flat, delimiter.encode(), maxsplit=most)
    if not delimiter and most > 0:  # StringSplitV2 also returns an empty rest after the last split
        there = make("NotEqual", pieces, constant(np.array(b"", object)))
        indices, pieces = boolean_mask(indices, there), boolean_mask(pieces, there)
    rows = make("GatherV2", indices, 0, 1)
    counts = make("UnsortedSegmentSum", make("OnesLike", rows), rows, make("Size", x))
    width = make("Max", make("ConcatV2", [counts, constant(np.zeros(1, np.int64))], 0), [0], keep_dims=True)
    shape = make("ConcatV2", [make("Shape", flat, out_type=dtypes.int64), width], 0)
    dense = make("SparseToDense", indices, shape, pieces, constant(np.array(b"", object)))
    outer = make("Shape", x, out_type=dtypes.int64)
    return make("Reshape", dense, make("ConcatV2", [outer, width], 0)), make("Reshape", counts, outer)


# ── n-grams ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@translation("TfIdfVectorizer")
def tf_idf(node: OnnxNode, x: Tensor) -> Tensor:
    """Return the count or presence of each n-gram of the pool in each row, possibly weighted."""
    if rank_of(node, x) == 1:
        return make("Squeeze", _counts(node, make("ExpandDims", x, 0)), squeeze_dims=[0])
    return _counts(node, x)


def _counts(node: OnnxNode, x: Tensor) -> Tensor:
    pools, columns = _pools(node), node.required("ngram_indexes")
    width = max(columns) + 1
    # -1 for a token that no n-gram has.
    tokens = index_in(_vocabulary(node), x)
    rows = make("ExpandDims", make("Range", 0, size_of(x, 0), 1), 1)
    total = make("Fill", shape_of([size_of(x, 0), width]), constant(np.float32(0)))
    for length, pool, wanted in pools:
        for skip in range(_skips(node, length)):
            found = _windows(tokens, length, skip, pool)
            # `_windows` gives the index `len(wanted)` where no n-gram starts.
            column = make("GatherV2", constant(np.array([*wanted, -1], np.int32)), found, 0)
            # UnsortedSegmentSum ignores negative segments, here positions without an n-gram of the pool.
            place = make("SelectV2", make("Less", column, 0), -1, rows * width + column)
            ones = make("Cast", make("OnesLike", place), DstT=dtypes.float32)
            flat = make("UnsortedSegmentSum", ones, place, make("Size", total))
            total = total + make("Reshape", flat, make("Shape", total))
    return _weighted(node, total, columns, width)


def _skips(node: OnnxNode, length: int) -> int:
    """Return the number of distances between tokens to consider. Single tokens have only one."""
    most = int(node.required("max_skip_count"))
    if not 0 <= most <= _MOST_SKIPPED:
        raise node.wrong("attribute 'max_skip_count'", f"at most {_MOST_SKIPPED}", most)
    return 1 if length == 1 else most + 1


def _pool(node: OnnxNode) -> list[LookupKey]:
    strings = node.attr("pool_strings")
    return [text.encode() for text in strings] if strings else node.required("pool_int64s")


def _vocabulary(node: OnnxNode) -> list[LookupKey]:
    return sorted(set(_pool(node)))


def _pools(node: OnnxNode) -> list[tuple[int, list[tuple[int, ...]], list[int]]]:
    """Return for each length between the limits: n-grams as indices into the vocabulary, and their columns."""
    number = {token: i for i, token in enumerate(_vocabulary(node))}
    pool = [number[token] for token in _pool(node)]
    starts, columns = node.required("ngram_counts"), node.required("ngram_indexes")
    if starts != sorted(starts) or starts[0] < 0 or starts[-1] > len(pool):
        raise node.wrong("attribute 'ngram_counts'", f"places in the pool of {len(pool)}, in order", starts)
    if not all(0 <= column <= _MOST_COLUMNS for column in columns):
        raise node.wrong(
            "attribute 'ngram_indexes'", f"columns from 0 to {_MOST_COLUMNS}", [min(columns), max(columns)]
        )
    found, before = [], 0
    for length, start in enumerate(starts, 1):
        end = starts[length] if length < len(starts) else len(pool)
        grams = [tuple(pool[i : i + length]) for i in range(start, end, length)]
        wanted = columns[before : before + len(grams)]
        before += len(grams)
        if grams and node.required("min_gram_length") <= length <= node.required("max_gram_length"):
            found.append((length, grams, wanted))
    return found


def _windows(tokens: Tensor, length: int, skip: int, pool: Sequence[tuple[int, ...]]) -> Tensor:
    """Return for each position in a row the index of the n-gram that starts there, or `len(pool)`.

    The tokens are matched one by one. Until the last one, the intermediate result is the index of a prefix.
    """
    # Distance from the first to the last token.
    reach = (length - 1) * (skip + 1)
    size = size_of(tokens, 1)
    width = max(size - reach, 0) if isinstance(size, int) else make("Maximum", size - reach, 0)
    prefixes: list[tuple[int, ...]] = [()]
    found = None
    for i in range(length):
        begin = i * (skip + 1)  # unlike Slice, a strided slice may start beyond the end
        end = shape_of([0, begin + width])
        here = make("StridedSlice", tokens, [0, begin], end, [1, 1], begin_mask=1, end_mask=1)
        longer = pool if i == length - 1 else sorted({gram[: i + 1] for gram in pool})
        number = {prefix: n for n, prefix in enumerate(prefixes)}
        tokens_known = max(gram[i] for gram in pool) + 1
        # A pair (prefix, token) as one number: prefix · tokens_known + token.
        keys = [number[gram[:i]] * tokens_known + gram[i] for gram in longer]
        code = here if found is None else found * tokens_known + here
        # A token outside of this range would give the number of another pair.
        known = make("LogicalAnd", make("GreaterEqual", here, 0), make("Less", here, tokens_known))
        if found is not None:
            known = make("LogicalAnd", known, make("GreaterEqual", found, 0))
        found = index_in(keys, make("SelectV2", known, code, -1))
        prefixes = list(longer)
    return make("SelectV2", make("Less", found, 0), len(pool), found)


def _weighted(node: OnnxNode, counts: Tensor, columns: list[int], width: int) -> Tensor:
    mode, given = node.required("mode"), node.attr("weights")
    if mode == "IDF":
        counts = make("Minimum", counts, 1)
    if mode == "TF" or given is None:
        return counts
    weights = np.ones(width, np.float32)
    weights[columns] = given
    return counts * constant(weights)

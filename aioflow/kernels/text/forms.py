"""Kernels that split, strip, match, replace, hash and encode strings, element by element on the host."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import batches, blocks, checkpoint
from aioflow.errors import InvalidArgumentError
from aioflow.formats.farm_hash import fingerprint
from aioflow.formats.regex import compiled_pattern, compiled_rewrite, replaced
from aioflow.formats.string_hash import murmur_hash, sip_hash
from aioflow.graph.shapes import check_axes
from aioflow.kernels.convert import as_ints
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.text.strings import as_strings, each, string_values
from aioflow.memory.copying import copied
from aioflow.memory.values import Array, Value


def _each(convert: Callable[[bytes], bytes], value: Value) -> Array:
    return each(convert, string_values(value))


def _scalar(value: Value, what: str) -> bytes:
    array = string_values(value)
    if array.size != 1:
        raise InvalidArgumentError(f"the {what} must be a scalar", expected=(), actual=array.shape)
    found: bytes = array.reshape(-1)[0]
    return found


_STRINGS: Final = 4096  # strings that are joined between two checkpoints
_LONG: Final = 1 << 18  # bytes of a text that are split at once; nothing else runs meanwhile


# ── split and join ───────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(rows: list[list[bytes]]) -> tuple[Array, Array, Array]:
    """Return the pieces as a sparse matrix."""
    lengths = np.fromiter((len(row) for row in batches(rows)), np.int64, len(rows))
    number = np.repeat(np.arange(len(rows), dtype=np.int64), lengths)
    column = np.arange(len(number), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    shape = np.array([len(rows), lengths.max(initial=0)], dtype=np.int64)
    return np.stack([number, column], axis=1), as_strings([piece for row in batches(rows) for piece in row]), shape


def _vector(value: Value) -> list[bytes]:
    strings = string_values(value)
    if strings.ndim != 1:
        raise InvalidArgumentError("the strings to split must be a vector", expected="rank 1", actual=strings.shape)
    found: list[bytes] = strings.tolist()
    return found


def _split(text: bytes, separator: bytes | None, most: int) -> list[bytes]:
    """Return `text.split(separator, most)`."""
    if len(text) <= _LONG or 0 <= most < len(text):
        return text.split(separator, most)
    if separator is not None:
        return _pieces(text, lambda part: part.split(separator))
    # A part that ends in whitespace ends a piece, so its remainder is empty.
    found = _pieces(text, lambda part: [*part.split(), *[b""] * part[-1:].isspace()])
    return found[:-1] if found and not found[-1] else found


def _pieces(text: bytes, split: Callable[[bytes], list[bytes]]) -> list[bytes]:
    """Return `split(text)`, computed from one part of the text at a time.

    The last piece of a part may continue in the next one, so the next part begins with it.
    """
    found: list[bytes] = []
    start, size = 0, _LONG
    # A part without a separator is split again with twice the size, so that the total time stays linear.
    while start + size < len(text):
        *whole, last = split(text[start : start + size])
        found += whole
        start, size = (start + size - len(last), _LONG) if whole else (start, 2 * size)
        checkpoint()
    return found + split(text[start:])


@kernel("StringSplit", device="CPU", fresh=True)
def string_split(value: Value, delimiter: Value, *, skip_empty: bool) -> tuple[Array, Array, Array]:
    characters = _scalar(delimiter, "delimiter")
    # As in TensorFlow, each character of the delimiter separates, and an empty one splits into bytes.
    between = re.compile(b"[" + re.escape(characters) + b"]") if characters else None
    rows: list[list[bytes]] = []
    for text in batches(_vector(value)):
        if between is None or not text:
            pieces = [text[i : i + 1] for i in batches(range(len(text)))]
        else:
            pieces = _pieces(text, between.split)
        rows.append([piece for piece in pieces if piece] if skip_empty else pieces)
    return _rows(rows)


@kernel("StringSplitV2", device="CPU", fresh=True)
def string_split_v2(value: Value, sep: Value, *, maxsplit: int) -> tuple[Array, Array, Array]:
    separator = _scalar(sep, "separator") or None
    # TensorFlow returns the text unchanged; Python strips it.
    if maxsplit == 0:
        return _rows([[text] for text in batches(_vector(value))])
    rows = [_split(text, separator, maxsplit) for text in batches(_vector(value))]
    for row in batches(rows):
        if separator is None and len(row) == maxsplit:
            # TensorFlow returns the remainder after the last split even if it is empty.
            row.append(b"")
    return _rows(rows)


@binder("ReduceJoin", device="CPU", fresh=True, host={"reduction_indices": as_ints})
def reduce_join(binding: Binding) -> Callable[[Array, tuple[int, ...]], Array]:
    between, keep = binding.attrs["separator"].encode(), binding.attrs["keep_dims"]

    def join(value: Value, axes: tuple[int, ...]) -> Array:
        strings = string_values(value)
        rank = strings.ndim
        chosen = check_axes(axes, rank)
        if not chosen:
            return strings.copy()
        others = [axis for axis in range(rank) if axis not in chosen]
        # The first axis is joined first, so it varies fastest.
        ordered = strings.transpose([*others, *reversed(chosen)])
        shape = ordered.shape[: len(others)]
        count = math.prod(shape)
        size = ordered.size // count if count else 0
        rows = (ordered if ordered.flags.c_contiguous else copied(ordered)).reshape(count, size)
        made = np.empty(count, object)
        for some in blocks(count, max(1, _STRINGS // max(1, size))):
            made[some] = [between.join(row) for row in rows[some].tolist()]
        kept = tuple(1 if axis in chosen else size for axis, size in enumerate(strings.shape))
        return made.reshape(kept if keep else shape)

    return join


# ── other forms ──────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("StringStrip", device="CPU", fresh=True)
def string_strip(value: Value) -> Array:
    return _each(bytes.strip, value)


def _case(method: str, binding: Binding) -> Callable[[Value], Array]:
    encoding = binding.attrs["encoding"].lower()
    if encoding not in ("", "utf-8"):
        raise InvalidArgumentError("unknown encoding", expected="'' or 'utf-8'", actual=binding.attrs["encoding"])
    if not encoding:
        return partial(_each, getattr(bytes, method))
    convert = getattr(str, method)
    return partial(_each, lambda text: convert(text.decode(errors="replace")).encode())


binder("StringLower", device="CPU", fresh=True)(partial(_case, "lower"))
binder("StringUpper", device="CPU", fresh=True)(partial(_case, "upper"))


@kernel("EncodeBase64", device="CPU", fresh=True)
def encode_base64(value: Value, *, pad: bool) -> Array:
    def encode(text: bytes) -> bytes:
        made = base64.urlsafe_b64encode(text)
        return made if pad else made.rstrip(b"=")

    return _each(encode, value)


def _decoded(text: bytes) -> bytes:
    # Padding counts only in a text of full length; elsewhere "=" is an error.
    bare = text.rstrip(b"=") if len(text) % 4 == 0 else text
    if len(text) - len(bare) > 2 or any(character in bare for character in b"+/="):
        raise InvalidArgumentError("not URL-safe base64", expected="A-Z, a-z, 0-9, -, _", actual=text)
    try:
        return base64.b64decode(bare + b"=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise InvalidArgumentError("not base64", expected="A-Z, a-z, 0-9, -, _", actual=text) from error


@kernel("DecodeBase64", device="CPU", fresh=True)
def decode_base64(value: Value) -> Array:
    return _each(_decoded, value)


# ── patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _replaced(value: Value, pattern: bytes, rewrite: bytes, everywhere: bool) -> Array:
    matcher = compiled_pattern(pattern)
    replacement = compiled_rewrite(rewrite, matcher.groups)
    return _each(lambda text: replaced(text, matcher, replacement, everywhere), value)


def _matched(value: Value, pattern: bytes) -> Array:
    matcher = compiled_pattern(pattern)
    return each(lambda text: matcher.fullmatch(text) is not None, string_values(value), bool)


@kernel("RegexReplace", device="CPU", fresh=True)
def regex_replace(value: Value, pattern: Value, rewrite: Value, *, replace_global: bool) -> Array:
    return _replaced(value, _scalar(pattern, "pattern"), _scalar(rewrite, "rewrite"), replace_global)


@kernel("StaticRegexReplace", device="CPU", fresh=True)
def static_regex_replace(value: Value, *, pattern: str, rewrite: str, replace_global: bool) -> Array:
    return _replaced(value, pattern.encode(), rewrite.encode(), replace_global)


@kernel("RegexFullMatch", device="CPU", fresh=True)
def regex_full_match(value: Value, pattern: Value) -> Array:
    return _matched(value, _scalar(pattern, "pattern"))


@kernel("StaticRegexFullMatch", device="CPU", fresh=True)
def static_regex_full_match(value: Value, *, pattern: str) -> Array:
    return _matched(value, pattern.encode())


# ── hashes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bucket(hash_of: Callable[[bytes], int], value: Value, buckets: int) -> Array:
    return each(lambda text: hash_of(text) % buckets, string_values(value), np.int64)


@kernel("StringToHashBucket", device="CPU", fresh=True)
def string_to_hash_bucket(value: Value, *, num_buckets: int) -> Array:
    return _bucket(murmur_hash, value, num_buckets)


@kernel("StringToHashBucketFast", device="CPU", fresh=True)
def string_to_hash_bucket_fast(value: Value, *, num_buckets: int) -> Array:
    return _bucket(fingerprint, value, num_buckets)


@kernel("StringToHashBucketStrong", device="CPU", fresh=True)
def string_to_hash_bucket_strong(value: Value, *, num_buckets: int, key: tuple[int, ...]) -> Array:
    if len(key) != 2:
        raise InvalidArgumentError("the key of a hash must have two elements", expected="2 integers", actual=key)
    return _bucket(partial(sip_hash, key=(key[0], key[1])), value, num_buckets)

"""Kernels on strings, which are object arrays of bytes. They run on the host, element by element."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aioflow.concurrency.stopping import batches, blocks, checkpoint, reserve
from aioflow.errors import InvalidArgumentError
from aioflow.formats.farm_hash import fingerprint
from aioflow.formats.number_text import number_parser
from aioflow.formats.regex import compiled_pattern, compiled_rewrite, replaced
from aioflow.formats.string_hash import murmur_hash, sip_hash
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import check_axes
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.convert import as_ints, broadcast_shape
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.copying import copied
from aioflow.memory.values import Array, Value

# ── strings as arrays, numbers and keys ───────────────────────────────────────────────────────────────────────────────


_BATCH: Final = 256  # strings between two checkpoints
_OBJECTS: Final = 1 << 16  # objects that are stored while nothing else can run
LEAST_STRING: Final = 64  # bytes that a short string takes, with its reference


def string_values(value: Value) -> Array:
    """Return the value as an object array, also if it is a bare scalar."""
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)


def as_strings(items: list[bytes], shape: tuple[int, ...] = (-1,)) -> Array:
    """Return an object array of that shape, by default a vector."""
    if not shape:
        # Takes a quarter of the time of the assignment to an empty array.
        return np.array(items[0], dtype=object)
    made = np.empty(len(items), dtype=object)
    if len(items) <= _OBJECTS:
        made[:] = items
    else:
        for part in blocks(len(items), _OBJECTS):
            made[part] = items[part]
    return made.reshape(shape)


def each(convert: Callable[[Any], object], array: Array, dtype: npt.DTypeLike = object) -> Array:
    """Return an array of `convert(item)` for each element, with checkpoints."""
    flat = array.reshape(-1)
    made = np.empty(flat.shape, dtype)
    for part in blocks(flat.size, _BATCH):
        made[part] = [convert(item) for item in flat[part].tolist()]
    return made.reshape(array.shape)


@binder("StringToNumber", device="CPU", fresh=True)
def string_to_number(binding: Binding) -> Callable[[Value], Array]:
    dtype = binding.output_dtypes[0]
    parse = number_parser(dtype)

    def number(text: bytes) -> object:
        found = parse(text)
        if found is None:
            raise InvalidArgumentError("not a number", expected=dtype.name, actual=text)
        return found

    def convert(strings: Value) -> Array:
        return each(number, string_values(strings), dtype.np_dtype)

    return convert


@kernel("StringJoin", device="CPU", fresh=True)
def string_join(inputs: tuple[Value, ...], *, separator: str) -> Array:
    arrays = [string_values(array) for array in inputs]
    shapes = {array.shape for array in arrays if array.shape}
    if len(shapes) > 1:
        raise InvalidArgumentError(
            "strings of different shapes cannot be joined", expected="one shape, and scalars", actual=sorted(shapes)
        )
    shape = shapes.pop() if shapes else ()
    if not arrays:
        return as_strings([b""], shape)
    between = separator.encode()
    return as_strings([between.join(row) for row in side_by_side(arrays, shape)], shape)


def side_by_side(arrays: Sequence[Array], shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the corresponding elements of arrays that are broadcast to a shape."""
    columns = [np.broadcast_to(array, shape).reshape(-1) for array in arrays]
    for part in blocks(columns[0].size, _BATCH):
        yield from zip(*(column[part].tolist() for column in columns), strict=True)


@kernel("StringLength", device="CPU", fresh=True)
def string_length(value: Value, *, unit: str) -> Array:
    strings = string_values(value)
    measure: Callable[[bytes], int] = len if unit == "BYTE" else _characters
    return each(measure, strings, np.int32)


def _begins(text: bytes) -> Array:
    """Return for each byte whether a UTF-8 character begins there, which holds for all but continuation bytes."""
    leads: Array = np.frombuffer(text, np.uint8) & 0xC0 != 0x80
    return leads


def _characters(text: bytes) -> int:
    return int(np.count_nonzero(_begins(text)))


@kernel("Substr", device="CPU", fresh=True)
def substr(value: Value, pos: Array, length: Array, *, unit: str) -> Array:
    strings = string_values(value)
    if np.shape(pos) != np.shape(length):
        raise InvalidArgumentError(
            "pos and len must have the same shape", expected=np.shape(pos), actual=np.shape(length)
        )
    shape = broadcast_shape(strings.shape, np.shape(pos))
    cut = _cut if unit == "BYTE" else _cut_characters
    return as_strings([cut(*row) for row in side_by_side((strings, pos, length), shape)], shape)


def _span(size: int, pos: int, length: int) -> slice:
    if not -size <= pos <= size:
        raise InvalidArgumentError("the position is outside the string", expected=f"-{size}..{size}", actual=pos)
    start = pos if pos >= 0 else pos + size
    # As in TensorFlow, a negative length means no limit.
    return slice(start, size if length < 0 else start + length)


def _cut(text: bytes, pos: int, length: int) -> bytes:
    return text[_span(len(text), pos, length)]


def _cut_characters(text: bytes, pos: int, length: int) -> bytes:
    starts = np.append(np.flatnonzero(_begins(text)), len(text))
    # In TensorFlow a negative length selects no characters, but all bytes.
    chosen = _span(len(starts) - 1, pos, max(0, length))
    return text[starts[chosen.start] : starts[min(chosen.stop, len(starts) - 1)]]


_LONGEST_NUMBER: Final = 2**31 - 1  # characters, as in C
_FILLS: Final = ("", " ", "0", "-", "+")


@binder("AsString", device="CPU", fresh=True)
def as_string(binding: Binding) -> Callable[[Value], Array]:
    attrs, dtype = binding.attrs, binding.input_dtypes[0]
    precise = attrs["precision"] >= 0 or attrs["scientific"] or attrs["shortest"]
    if attrs["scientific"] and attrs["shortest"]:
        raise InvalidArgumentError(
            "scientific and shortest cannot both be set", expected="scientific or shortest", actual="both"
        )
    if precise and not (dtype.is_floating or dtype.is_complex):
        raise InvalidArgumentError(
            "precision, scientific and shortest are only for floats", expected="a floating dtype", actual=dtype.name
        )
    if attrs["fill"] not in _FILLS:
        raise InvalidArgumentError("unknown fill", expected=f"one of {_FILLS}", actual=attrs["fill"])
    longest = max(attrs["width"], attrs["precision"])
    if longest > _LONGEST_NUMBER:
        raise InvalidArgumentError("the text is too long", expected=f"<= {_LONGEST_NUMBER} characters", actual=longest)
    write = _writer(dtype, attrs)

    def convert(value: Value) -> Array:
        array = np.asarray(value)
        reserve(array.size * max(LEAST_STRING, longest))
        return each(write, array)

    return (lambda value: string_values(value).copy()) if dtype.name == "string" else convert


def _writer(dtype: DType, attrs: Attrs) -> Callable[[Any], bytes]:
    size = str(attrs["width"]) if attrs["width"] >= 0 else ""
    digits = f".{attrs['precision']}" if attrs["precision"] >= 0 else ""
    kind = "e" if attrs["scientific"] else "g" if attrs["shortest"] else "f"
    fill = attrs["fill"]
    if dtype.name == "bool":
        return lambda item: b"true" if item else b"false"
    if dtype.is_integer:
        # In C, the flags " " and "+" apply to signed numbers only.
        form = f"%{'' if dtype.is_unsigned and fill in ' +' else fill}{size}d"
        return lambda item: (form % item).encode()
    form = f"%{fill}{size}{digits}{kind}"
    # C does not pad inf and nan with zeros.
    without_zeros = f"%{'' if fill == '0' else fill}{size}{digits}{kind}"

    def write(item: float) -> str:
        return (form if math.isfinite(item) else without_zeros) % item

    if dtype.is_complex:
        return lambda item: f"({write(item.real)},{write(item.imag)})".encode()
    return lambda item: write(item).encode()


# ── splitting, stripping, matching, replacing, hashing and encoding ───────────────────────────────────────────────────


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


# ── split and join ────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── other forms ───────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── patterns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── hashes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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

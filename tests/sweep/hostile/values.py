"""Material for hostile calls: sizes, shapes, arrays, attributes, and values of entirely other types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import ml_dtypes
import numpy as np

from aioflow.graph.dtypes import ALL, DType
from aioflow.graph.graphdef import FunctionRef
from aioflow.graph.signature.attributes import AttrDef

__all__ = [
    *("JUNK", "array", "attribute", "damaged", "dtype", "fitting", "other_attribute", "shape", "usual_shape"),
    "valid_attribute",
]

SIZES: Final = (0, 1, 2, -1, 2**31, 2**62)
_FLOATS: Final = (0.0, 1.0, -1.0, 0.5, 2.0, -0.0, 3.5, 1e30, 1e-40, float("nan"), float("inf"), float("-inf"))
_SHAPES: Final[tuple[tuple[int, ...], ...]] = (
    *((), (0,), (1,), (2,), (3,), (2, 0), (0, 2), (1, 1), (2, 2), (2, 3), (3, 2), (2, 2, 2), (1, 0, 2), (1, 4, 1)),
    *((1, 4, 4, 1), (1, 3, 3, 2), (2, 2, 2, 2), (0, 2, 2, 1), (1, 2, 2, 2, 1), (1, 1, 1, 1, 1, 1), (1,) * 33),
)
_TEXTS: Final = (
    *(b"", b"a", b"b", b"ab", b"a,b", b"0", b"-1", b"2147483648", b"4611686018427387904", b"1e400", b"nan", b"\x00"),
    *(b"\xff\xfe", b"(", b"[a", b"a{2,1}", b"%", b"%d %s", b"float32", b"{}", b"[[", b"\x08\x01\x12\x04\x08\x02"),
    *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a\x01\x00\x01\x00", b"BM", b"file", b"no/such/file", b"."),
    *(b"abcdefgh" * 4, b"\n", "ä€😀".encode(), b"GZIP", b"x" * 300, b"\x0a" + b"\xff" * 9 + b"\x01"),
)
_WORDS: Final = (
    "",
    "a",
    "b",
    "SAME",
    "VALID",
    "NHWC",
    "NCHW",
    "float32",
    "ä",
    "a b",
    "/",
    "ij,jk->ik",
    "i...->i",
    "x" * 99,
)
JUNK: Final[tuple[Any, ...]] = (
    *(None, "text", b"bytes", "\udcff", -1, 2**31, 2**62, 2**63, 2**70, -(2**70), 1.5, float("nan"), 1j, True, (), []),
    *([[1], [1, 2]], [1, "a"], [None], {}, {"a": 1}, {1}, object(), int, len, range(3), np.float16(1), np.int8(-1)),
    *(np.array("text"), np.array([1, None]), np.datetime64("2001-01-01"), np.zeros((2, 0)), np.array(b"x", "S3")),
)


def shape(rng: Random) -> tuple[int, ...]:
    """Return the shape of an array that is small enough to exist."""
    return rng.choice(_SHAPES)


def usual_shape(rng: Random, rank: int | None = None) -> tuple[int, ...]:
    """Return a shape such as users' arrays have."""
    rank = rng.choices((0, 1, 2, 3, 4, 5), (1, 4, 7, 3, 6, 1))[0] if rank is None else rank
    return tuple(rng.choice((1, 2, 2, 3, 4, 0 if rng.random() < 0.2 else 2)) for _ in range(rank))


def dtype(rng: Random, allowed: Sequence[DType] | None = None) -> DType:
    """Return one of the allowed dtypes, the common ones more often."""
    pool = list(allowed or ALL)
    usual = [t for t in pool if t.name in ("float32", "int32", "int64", "string", "bool", "float64")]
    return rng.choice(usual if usual and rng.random() < 0.75 else pool)


def array(rng: Random, kind: DType, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return an array of numbers or strings; most integers are small."""
    count = int(np.prod(dims))
    made = np.empty(count, object)
    made[:] = [_element(rng, kind) for _ in range(count)]
    with np.errstate(all="ignore"):
        return (made if kind.np_dtype.hasobject else made.astype(kind.np_dtype)).reshape(dims)


def _element(rng: Random, kind: DType) -> Any:
    if kind.np_dtype.hasobject:
        return rng.choice(_TEXTS)
    if kind.is_floating:
        return rng.choice(_FLOATS)
    if kind.is_complex:
        return complex(rng.choice(_FLOATS), rng.choice(_FLOATS))
    if kind.is_bool:
        return rng.random() < 0.5
    value = rng.choice(SIZES) if rng.random() < 0.3 else rng.choice((0, 1, 2, 0, 1, 2, 3, -1))
    limits: Any = ml_dtypes.iinfo(kind.np_dtype)  # type: ignore[no-untyped-call]  # ml_dtypes publishes no types
    return min(max(value, int(limits.min)), int(limits.max))


def fitting(
    rng: Random, kind: DType, base: tuple[int, ...], is_size: bool, rank: int | None = None
) -> np.ndarray[Any, Any]:
    """Return an array that may fit others of the base shape: axes, sizes or indices, or elements.

    Args:
        rng: Random generator that determines the array.
        kind: Dtype of the array.
        base: Shape from which most of the call's arrays derive theirs.
        is_size: Whether the input takes integers only, which may be axes, sizes or indices.
        rank: Required rank, if known.
    """
    if is_size and kind.is_integer:
        made = [np.array(_sizes(rng, base)) for _ in range(1 if rank is None else 20)]
        return next((each for each in made if each.ndim == rank), made[0]).astype(kind.np_dtype)
    if rank is not None:
        return _tame(rng, kind, base if len(base) == rank else usual_shape(rng, rank))
    dims = rng.choices(
        (base, (), (rng.choice((1, 2, *base)),), base[:-1], base[1:], usual_shape(rng)), (9, 4, 2, 1, 1, 2)
    )
    return _tame(rng, kind, dims[0])


def _sizes(rng: Random, base: tuple[int, ...]) -> Any:
    """Return integers that may be axes of the base shape, a shape, a permutation, paddings, or indices."""
    rank = len(base)
    length = rng.choice((1, 2, 3, 4, rank, *base))
    small = rng.choice((0, 0, 1, 2))
    makers: list[Callable[[], Any]] = [
        lambda: small,
        lambda: rng.randrange(rank) if rank else 0,
        lambda: base,
        lambda: rng.sample(range(rank), rank),
        lambda: [small] * rank,
        lambda: [rng.choice((0, 1, 2)) for _ in range(length)],
        lambda: sorted(rng.choice((0, 1, 2)) for _ in range(length)),
        lambda: [[rng.choice((0, 0, 1))] * 2 for _ in range(length)],
        lambda: [[i] + [0] * (max(rank, 1) - 1) for i in range(length)],
        lambda: np.full(base, small),
    ]
    return rng.choices(makers, (4, 2, 3, 1, 2, 3, 1, 1, 1, 2))[0]()


def _tame(rng: Random, kind: DType, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return an array of ordinary values."""
    if kind.np_dtype.hasobject or rng.random() < 0.1:
        return array(rng, kind, dims)
    pool = (0, 1) if kind.is_bool else (0, 1, 2, 3) if kind.is_integer else (0.0, 0.5, 1.0, 2.0, -1.0)
    return np.array([rng.choice(pool) for _ in range(int(np.prod(dims)))]).astype(kind.np_dtype).reshape(dims)


def damaged(rng: Random, kind: DType, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array with one wrong element, only wrong elements, no elements, or another rank or shape."""
    way = rng.random()
    if way < 0.45 and value.size:
        other = value.copy()
        other.reshape(-1)[slice(None) if rng.random() < 0.2 else rng.randrange(value.size)] = _wrong(rng, kind)
        return other
    if way < 0.65:
        dims = list(value.shape or (1,))
        dims[rng.randrange(len(dims))] = 0
        return np.zeros(dims, value.dtype)
    if way < 0.85:
        flat = value.reshape(-1)
        return rng.choice((value[None], value[..., None], flat, flat[:1], flat[:1].reshape(()) if flat.size else flat))
    return array(rng, kind, shape(rng))


def _wrong(rng: Random, kind: DType) -> Any:
    if kind.is_integer:
        return min(max(rng.choice(SIZES), int(kind.min)), int(kind.max))
    with np.errstate(all="ignore"):
        return array(rng, kind, ())[()]


def attribute(rng: Random, kind: str, allowed: Sequence[Any] | None) -> Any:
    """Return a value for an attribute of that kind: mostly an allowed one, sometimes a value of another kind."""
    if rng.random() < 0.04:
        return rng.choice(JUNK)
    if kind.startswith("list("):
        return [_attribute(rng, kind[5:-1], allowed) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 4, 5)))]
    return _attribute(rng, kind, allowed)


def _attribute(rng: Random, kind: str, allowed: Sequence[Any] | None) -> Any:
    if kind == "type":
        return dtype(rng, allowed if rng.random() < 0.95 else None)
    if allowed is not None and rng.random() < 0.95:
        return rng.choice(allowed)
    makers: dict[str, Callable[[], Any]] = {
        "int": lambda: rng.choice((0, 1, 1, 1, 2, 2, 3)) if rng.random() < 0.7 else rng.choice(SIZES),
        "float": lambda: rng.choice(_FLOATS),
        "bool": lambda: rng.random() < 0.5,
        "string": lambda: rng.choice(_WORDS),
        "shape": lambda: _partial_shape(rng),
        "tensor": lambda: array(rng, dtype(rng), shape(rng)),
        "func": lambda: FunctionRef(rng.choice(("f", "f", "f", "p", "p", "no_such_function"))),
    }
    return makers[kind]()


def _partial_shape(rng: Random) -> tuple[int | None, ...] | None:
    if rng.random() < 0.2:
        return None
    if rng.random() < 0.2:
        return tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 3))))
    return tuple(None if rng.random() < 0.3 else size for size in shape(rng))


def valid_attribute(rng: Random, attr: AttrDef, base: tuple[int, ...]) -> Any:
    """Return a value that the definition of the attribute allows."""
    if not attr.kind.startswith("list("):
        return _valid(rng, attr.kind, attr, base)
    kind, least = attr.kind[5:-1], attr.minimum or 0
    if kind == "int" and rng.random() < 0.6:
        return rng.choice(([1] * max(4, least), [1, 2, 2, 1], [1] * max(len(base), least)))
    return [_valid(rng, kind, attr, base) for _ in range(max(least, rng.choice((0, 1, 1, 2, len(base)))))]


def _valid(rng: Random, kind: str, attr: AttrDef, base: tuple[int, ...]) -> Any:
    if kind == "type":
        return dtype(rng, attr.allowed)
    if attr.allowed is not None:
        return rng.choice(attr.allowed)
    if kind == "int":
        return max(attr.minimum or 0, rng.choice((0, 1, 1, 2, 2, 3)))
    if kind == "float":
        return rng.choice((0.0, 0.5, 1.0, 2.0, 0.1))
    if kind == "shape":
        return rng.choice((base, base, None, tuple(None if rng.random() < 0.3 else size for size in base)))
    return _attribute(rng, kind, None)


def other_attribute(rng: Random, attr: AttrDef, value: Any) -> Any:
    """Return a value that is probably wrong for the attribute; in a list, replace or drop one item."""
    if attr.kind.startswith("list(") and isinstance(value, list | tuple) and value and rng.random() < 0.7:
        other = list(value)
        hit = rng.randrange(len(other))
        other[hit : hit + 1] = [] if rng.random() < 0.3 else [_other_value(rng, attr.kind[5:-1])]
        return other
    return _other_value(rng, attr.kind) if rng.random() < 0.7 else attribute(rng, attr.kind, attr.allowed)


def _other_value(rng: Random, kind: str) -> Any:
    if rng.random() < 0.1:
        return rng.choice(JUNK)
    return rng.choice(SIZES) if kind == "int" else attribute(rng, kind, None)

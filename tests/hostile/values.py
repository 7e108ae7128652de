"""What the hostile calls are made of: sizes, shapes, arrays, attributes and things that are none of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import numpy as np

from aioflow.graph.dtypes import ALL, DType
from aioflow.graph.graphdef import FunctionRef

__all__ = ["JUNK", "array", "attribute", "dtype", "shape"]

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
    """A shape of an array that is small enough to exist."""
    return rng.choice(_SHAPES)


def dtype(rng: Random, allowed: Sequence[DType] | None = None) -> DType:
    """One of the allowed dtypes; the usual ones more often."""
    pool = list(allowed or ALL)
    usual = [t for t in pool if t.name in ("float32", "int32", "int64", "string", "bool", "float64")]
    return rng.choice(usual if usual and rng.random() < 0.75 else pool)


def array(rng: Random, kind: DType, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of numbers or strings; most integers are small."""
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
    limits = np.iinfo(kind.np_dtype)
    return min(max(value, int(limits.min)), int(limits.max))


def attribute(rng: Random, kind: str, allowed: Sequence[Any] | None) -> Any:
    """A value for an attribute of that kind, one of the allowed ones most often; now and then something else."""
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
        "func": lambda: FunctionRef(rng.choice(("f", "no_such_function"))),
    }
    return makers[kind]()


def _partial_shape(rng: Random) -> tuple[int | None, ...] | None:
    if rng.random() < 0.2:
        return None
    if rng.random() < 0.2:
        return tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 3))))
    return tuple(None if rng.random() < 0.3 else size for size in shape(rng))

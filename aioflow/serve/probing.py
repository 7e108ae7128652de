"""An experiment that tests whether rows depend on one another, by steps with random rows, together and alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from aioflow.errors import OpError
from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.model import Signature
from aioflow.memory.values import Array, Value
from aioflow.session.session import Session

_LOG: Final = logging.getLogger("aioflow.serve")
_ROWS: Final = 3
_SIZES: Final = (5, 1)  # values for unknown sizes other than the first; 1 if a model rejects the other
_WORDS: Final = (True, False)  # texts with a different number of words per row; numbers only if a model rejects that
_ROUNDING: Final = 1e-3  # relative to the largest value in a column: matrix products round differently for other sizes
_COARSE: Final = 3e-2  # for 16-bit dtypes
_NOISE: Final = 1e-3  # relative to that, for the largest value of all: a column may be a difference of large numbers


async def keeps_rows_apart(session: Session, signature: Signature) -> bool:
    """Return True if steps of two and three rows yield the same as steps of single rows. False if the steps fail."""
    inputs = list(signature.inputs.values())
    step = session.make_callable(list(signature.outputs.values()), inputs)
    failure: OpError | None = None
    for size, words in product(_SIZES, _WORDS if any(each.dtype is dtypes.string for each in inputs) else (False,)):
        # A fixed seed: the verdict must not change between two starts of the same service.
        rng = np.random.default_rng(0)
        fed = [_random_rows(tensor, size, words, rng) for tensor in inputs]
        try:
            alone = [await step(*(each[row : row + 1] for each in fed)) for row in range(_ROWS)]
            together = [await step(*(each[:rows] for each in fed)) for rows in range(2, _ROWS + 1)]
        except OpError as error:
            failure = error
            continue
        apart = all(_agree(values, alone[:rows]) for rows, values in enumerate(together, 2))
        if not apart:
            _LOG.info("requests share no steps: rows that are computed together give something else than alone")
        return apart
    _LOG.info("requests share no steps, since those with random rows failed: %s", failure)
    return False


def _random_rows(tensor: Tensor, size: int, words: bool, rng: np.random.Generator) -> Array:
    """Return three random rows without zeros.

    Floats: one row of positive values, one of negative ones, one of both. Integers: small ones. Texts: rows of one, two
    and three numbers if `words`, else of one number each.
    """
    dims = tensor.dims or (None,)
    shape = (_ROWS, *(size if each is None else each for each in dims[1:]))
    dtype = tensor.dtype
    if dtype is dtypes.string:
        texts = rng.choice(np.array([b"1", b"2", b"3"], object), shape)
        for row in range(words, words * _ROWS):
            texts[row] += b" 12" * row
        return texts
    if dtype.is_bool:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        return rng.integers(1, 3, shape).astype(dtype.np_dtype)
    # Away from zero, where many functions are flat and a dependence between rows would not show.
    made = rng.uniform(0.1, 1.0, shape)
    made[1] *= -1
    made[2] *= rng.choice([-1, 1], shape[1:])
    return made.astype(dtype.np_dtype)


def _agree(together: Sequence[Value], alone: Sequence[Sequence[Value]]) -> bool:
    """Return True if each output of a step is the concatenation of its rows' outputs along axis 0."""
    parts = zip(*alone, strict=True)
    return all(_is_joined(np.asarray(v), list(map(np.asarray, each))) for v, each in zip(together, parts, strict=True))


def _is_joined(value: Array, parts: Sequence[Array]) -> bool:
    if any(not part.shape or part.shape != (1, *value.shape[1:]) for part in parts) or len(value) != len(parts):
        return False
    wanted = np.concatenate(parts)
    # "V" is the kind of ml_dtypes' bfloat16.
    if value.dtype.kind not in "fcV":
        return bool(np.array_equal(value, wanted))
    rounding = _ROUNDING if value.dtype.itemsize > 2 else _COARSE
    kind = np.complex128 if value.dtype.kind == "c" else np.float64
    value, wanted = value.astype(kind), wanted.astype(kind)
    # NaN and infinities are compared as such, and must not blow up the scale of the others.
    sizes = np.where(np.isfinite(wanted), np.abs(wanted), 0.0)
    # The tolerance is per column of the last axis, because columns may have different units.
    largest = np.max(sizes, axis=tuple(range(max(1, sizes.ndim - 1))), initial=0.0)
    scale = np.maximum(largest, _NOISE * np.max(largest, initial=0.0))
    return bool(np.all(np.isclose(value, wanted, rtol=rounding, atol=rounding * scale, equal_nan=True)))

"""Tests of strictness: a step's errors and exact numbers are the same when parts of it are delegated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import aioflow as af
from aioflow_onnxruntime.kernels import Delegated
from tests.backends.onnxruntime.steps import BY_ONNXRUNTIME

Build = Callable[..., af.Tensor]

_WIDE = np.array([1700000000123456789, 1], np.int64)
_LOW = np.array([-(2**31)], np.int32)
_TENTHS = np.full(1_000_000, 0.1, np.float32)
_SHORT = np.arange(3, dtype=np.float32)


def _lstm(x: af.Tensor, state: af.Tensor) -> af.Tensor:
    """Return three steps of an LSTM of five units."""
    made: af.Tensor = af.raw_ops.BlockLSTMV2(
        seq_len_max=af.constant(3, af.int64),
        x=x,
        cs_prev=state,
        h_prev=state,
        w=af.constant(np.ones((9, 20), np.float32)),
        **{name: af.constant(np.zeros(5, np.float32)) for name in ("wci", "wcf", "wco")},
        b=af.constant(np.zeros(20, np.float32)),
        cell_clip=0.0,
    ).h
    return made


EXACT: dict[str, tuple[Build, list[NDArray[Any]]]] = {
    "a quotient that is out of range": (lambda x: x // -1, [_LOW]),
    "a sum of many": (af.reduce_sum, [_TENTHS]),
    "a mean of many": (af.reduce_mean, [_TENTHS]),
    "a mean of many in rows": (lambda x: af.reduce_mean(x, axis=-1), [_TENTHS.reshape(1, -1)]),
    "a sum of wide whole numbers": (af.reduce_sum, [_WIDE]),
    "a product of whole numbers": (af.reduce_prod, [np.array([2**31 - 1, 3], np.int32)]),
    "a power of whole numbers": (lambda x: x**22, [np.array([7], np.int64)]),
    "the largest unsigned number": (af.reduce_max, [np.array([2**64 - 1, 5], np.uint64)]),
    "where the largest is": (lambda x: af.argmax(x, axis=0), [np.array([2**64 - 1, 5], np.uint64)]),
    "unique numbers with NaN": (lambda x: af.unique(x)[0], [np.array([np.nan, 1, 2, np.nan], np.float32)]),
    "a cast that is out of range": (lambda x: af.cast(x, "int8"), [np.array([-7.5, 100.2], np.float32)]),
    "a cast between bounds": (
        lambda x: af.cast(af.maximum(af.minimum(af.round(x), 127.0), -128.0), "int8"),
        [np.array([-1e9, -0.5, 0.5, 1.5, 126.5, 1e9], np.float32)],
    ),
    "integers as shorter ones": (lambda x: af.cast(x, "int8"), [np.array([300, -129, 5], np.int64)]),
    "the largest of none": (lambda x: af.reduce_max(x, axis=0), [np.zeros((0, 3), np.float32)]),
    "rows at known places": (lambda x: af.gather(x, [2, 0]), [_SHORT]),
    "bytes as other bytes": (
        lambda x: af.cast(af.cast(x, "uint8"), "float32") * 0.5,
        [np.array([-128, -1, 5], np.int8)],
    ),
    "a product of no columns": (af.matmul, [np.zeros((3, 0), np.float32), np.zeros((0, 64), np.float32)]),
    "images of no rows": (
        lambda x: af.nn.max_pool(x, 2, 2, "SAME"),
        [np.zeros((1, 0, 4, 3), np.float32)],
    ),
    "an LSTM of no sequences": (
        _lstm,
        [np.zeros((3, 0, 4), np.float32), np.zeros((0, 5), np.float32)],
    ),
    "groups of channels that are not known": (
        lambda x, w: af.nn.conv2d(x, w, 1, "VALID"),
        [np.ones((1, 2, 2, 4), np.float32), np.ones((1, 1, 2, 4), np.float32)],
    ),
    "a large window": (
        lambda x: af.nn.avg_pool(x, 112, 1, "VALID"),
        [np.full((1, 112, 112, 2), 0.1, np.float32)],
    ),
    "a shape of large shapes": (
        af.broadcast_dynamic_shape,
        [np.array([2_000_000, 2_000_000], np.int32), np.array([1], np.int32)],
    ),
    "whole numbers that wrap around": (lambda x: x + x, [np.array([2**31 - 1], np.int32)]),
}
REFUSED: dict[str, tuple[Build, list[NDArray[Any]]]] = {
    "a negative index": (af.gather, [_SHORT, np.array([-1], np.int32)]),
    "rows that are counted wrongly": (
        lambda x, n: af.reshape(x, af.stack([n, 32])),
        [np.zeros((6, 32), np.float32), np.array(5, np.int32)],
    ),
    "a known place that is not there": (lambda x: af.gather(x, [3]), [_SHORT]),
    "shapes that do not broadcast": (
        lambda x, n: af.broadcast_to(x, af.broadcast_dynamic_shape(af.shape(x), n)),
        [_SHORT, np.array([2], np.int32)],
    ),
    "rows that are not as many": (lambda x: af.unstack(af.reshape(x, [-1]), 4)[0], [_SHORT]),
    "segments that are not in order": (af.segment_sum, [_SHORT, np.array([1, 0, 2], np.int32)]),
    "a slice beyond the end": (lambda x, n: af.slice(x, n, [2]), [_SHORT, np.array([2], np.int32)]),
    "a negative power of whole numbers": (lambda x, y: x**y, [np.array([2], np.int32), np.array([-1], np.int32)]),
    "a sum of other shapes": (lambda x, y: af.add_n([x, y]), [_SHORT, _SHORT[:1]]),
    "a bias of another size": (af.nn.bias_add, [_SHORT.reshape(1, 3), _SHORT[:1]]),
    "a split that does not divide": (lambda x: af.split(x, 2)[0], [_SHORT]),
}


async def run(build: Build, arrays: list[NDArray[Any]], parts: list[Delegated]) -> tuple[Any, Any, Any]:
    """Return three outcomes: of our kernels, and of a session with parts before and after these are ready."""
    given = [af.placeholder(af.as_dtype(array.dtype), [None] * array.ndim) for array in arrays]
    # These ensure that something is delegated in any case.
    kept = [af.identity(af.identity(each)) for each in given]
    fetches, feeds = build(*kept), dict(zip(given, arrays, strict=True))
    async with af.Session() as ours, af.Session(config=BY_ONNXRUNTIME) as theirs:
        outcomes: list[Any] = []
        for session in (ours, theirs, theirs):
            try:
                outcomes.append(await session.run(fetches, feeds))
            except af.errors.OpError as error:
                outcomes.append(error)
            await session.prepared()
    return outcomes[0], outcomes[1], outcomes[2]


@pytest.mark.parametrize("name", EXACT)
async def test_results_are_bit_identical(name: str, parts: list[Delegated]) -> None:
    wanted, first, second = await run(*EXACT[name], parts)
    np.testing.assert_array_equal(wanted, first)
    np.testing.assert_array_equal(wanted, second)


@pytest.mark.parametrize("name", REFUSED)
async def test_errors_stay_errors(name: str, parts: list[Delegated]) -> None:
    for outcome in await run(*REFUSED[name], parts):
        assert isinstance(outcome, af.errors.InvalidArgumentError)

"""Float32 values that go from device to device in 16 bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, 1e-45, -1e-40, 1.0, 65519.0, 1e-8], np.float32)
LOW_NAN = np.array([0x7F800001, 0xFF80FFFF], np.uint32).view(np.float32)  # all that makes them NaN is in the lower half
VALUES = np.concatenate([SPECIAL, np.random.default_rng(0).standard_normal(500).astype(np.float32)])


def bits(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return array.view(np.uint32)


async def sent(
    values: npt.NDArray[np.float32], compression: str | None, kind: str | None = None
) -> npt.NDArray[np.float32]:
    """What arrives on another device."""
    with af.Graph().as_default():
        with af.device("/cpu:0"):
            x = af.placeholder("float32", [None])
            with af.control_dependencies([af.no_op()]):  # what waits for nothing would be computed on both devices
                here = x - 0.0  # exact, also for -0.0
            if kind is not None:
                here = af.compressed(here, kind)
        with af.device("/cpu:1"):
            there = af.identity(here)
        config = af.SessionConfig(device_count={"CPU": 2}, compression=compression, optimizations=False)
        async with af.Session(config=config) as session:
            result: npt.NDArray[np.float32] = await session.run(there, {x: values})
            return result


async def test_nothing_is_lost_by_default() -> None:
    np.testing.assert_array_equal(bits(await sent(VALUES, None)), bits(VALUES))


@pytest.mark.parametrize("per_edge", [False, True])
async def test_truncation_zeroes_the_lower_half(per_edge: bool) -> None:
    arrived = await (sent(VALUES, None, "truncate") if per_edge else sent(VALUES, "truncate"))
    expected = bits(VALUES) & np.uint32(0xFFFF0000)
    number = ~np.isnan(VALUES)
    np.testing.assert_array_equal(bits(arrived)[number], expected[number])
    assert np.isnan(arrived[~number]).all()


async def test_no_nan_becomes_infinite() -> None:
    assert np.isnan(await sent(LOW_NAN, "truncate")).all()


@pytest.mark.parametrize(("kind", "dtype"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
async def test_rounding_is_to_the_nearest_value_of_the_type(kind: str, dtype: type) -> None:
    with np.errstate(over="ignore"):
        expected = VALUES.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(await sent(VALUES, kind), expected)


async def test_other_types_cross_as_they_are() -> None:
    value = np.array([1 + 2**-50, np.pi])
    with af.device("/cpu:0"):
        x = af.placeholder("float64", [None])
        with af.control_dependencies([af.no_op()]):
            here = x - 0.0
    with af.device("/cpu:1"):
        there = af.identity(here)
    async with af.Session(config=af.SessionConfig(device_count={"CPU": 2}, compression="truncate")) as session:
        np.testing.assert_array_equal(await session.run(there, {x: value}), value)


async def test_on_its_own_device_a_value_stays_as_it_is() -> None:
    x = af.placeholder("float32", [None])
    y = af.compressed(x - 0.0, "truncate") + 0.0
    async with af.Session() as session:
        np.testing.assert_array_equal(await session.run(y, {x: VALUES}), VALUES + 0.0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown compression"):
        af.compressed(1.0, "zip")
    with pytest.raises(InvalidArgumentError, match="unknown compression"):
        af.Session(config=af.SessionConfig(compression="zip"))

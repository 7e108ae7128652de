"""Float32 values that cross between devices in 16 bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, 1e-45, -1e-40, 1.0, 65519.0, 1e-8], np.float32)
LOW_NAN = np.array([0x7F800001, 0xFF80FFFF], np.uint32).view(np.float32)  # only bits of the lower half make them NaN
VALUES = np.concatenate([SPECIAL, np.random.default_rng(0).standard_normal(500).astype(np.float32)])


def bits(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return array.view(np.uint32)


async def sent(
    values: npt.NDArray[np.float32], compression: str | None, kind: str | None = None
) -> npt.NDArray[np.float32]:
    """Send values to another device and return what arrives."""
    with af.Graph().as_default():
        with af.device("/cpu:0"):
            x = af.placeholder("float32", [None])
            with af.control_dependencies([af.no_op()]):  # a node without dependencies would be computed on both devices
                here = x - 0.0  # exact, also for -0.0
            if kind is not None:
                here = af.compressed(here, kind)
        with af.device("/cpu:1"):
            there = af.identity(here)
        config = af.SessionConfig(device_count={"CPU": 2}, compression=compression, optimizations=False)
        async with af.Session(config=config) as session:
            result: npt.NDArray[np.float32] = await session.run(there, {x: values})
            return result


async def test_values_cross_unchanged_by_default() -> None:
    np.testing.assert_array_equal(bits(await sent(VALUES, None)), bits(VALUES))


@pytest.mark.parametrize("per_edge", [False, True])
async def test_truncation_zeroes_the_lower_half(per_edge: bool) -> None:
    arrived = await (sent(VALUES, None, "truncate") if per_edge else sent(VALUES, "truncate"))
    expected = bits(VALUES) & np.uint32(0xFFFF0000)
    number = ~np.isnan(VALUES)
    np.testing.assert_array_equal(bits(arrived)[number], expected[number])
    assert np.isnan(arrived[~number]).all()


async def test_nan_does_not_become_infinite() -> None:
    assert np.isnan(await sent(LOW_NAN, "truncate")).all()


@pytest.mark.parametrize(("kind", "dtype"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
async def test_values_are_rounded_to_the_nearest_of_the_type(kind: str, dtype: type) -> None:
    with np.errstate(over="ignore"):
        expected = VALUES.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(await sent(VALUES, kind), expected)


async def test_other_dtypes_cross_unchanged() -> None:
    value = np.array([1 + 2**-50, np.pi])
    with af.device("/cpu:0"):
        x = af.placeholder("float64", [None])
        with af.control_dependencies([af.no_op()]):
            here = x - 0.0
    with af.device("/cpu:1"):
        there = af.identity(here)
    async with af.Session(config=af.SessionConfig(device_count={"CPU": 2}, compression="truncate")) as session:
        np.testing.assert_array_equal(await session.run(there, {x: value}), value)


async def test_value_on_its_own_device_is_not_compressed() -> None:
    x = af.placeholder("float32", [None])
    y = af.compressed(x - 0.0, "truncate") + 0.0
    async with af.Session() as session:
        np.testing.assert_array_equal(await session.run(y, {x: VALUES}), VALUES + 0.0)


def test_unknown_compression_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown compression"):
        af.compressed(1.0, "zip")
    with pytest.raises(InvalidArgumentError, match="unknown compression"):
        af.Session(config=af.SessionConfig(compression="zip"))

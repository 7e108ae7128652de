"""The interpreter's thread switch interval: the first session lowers it for the process, until it is restored."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import aioflow as af

PYTHONS = 5e-3


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Reset the interval, as in a process that has not opened a session."""
    af.restore_switch_interval()
    before = sys.getswitchinterval()
    sys.setswitchinterval(PYTHONS)
    yield
    af.restore_switch_interval()
    sys.setswitchinterval(before)


async def opened(interval: float | None) -> float:
    """Return the interval after a session with this setting was opened and closed."""
    async with af.Session(config=af.SessionConfig(switch_interval=interval)) as session:
        await session.run(af.constant(1))
    return sys.getswitchinterval()


async def test_interval_stays_set_until_restored() -> None:
    assert await opened(1e-3) == pytest.approx(1e-3)
    af.restore_switch_interval()
    assert sys.getswitchinterval() == pytest.approx(PYTHONS)
    af.restore_switch_interval()
    assert sys.getswitchinterval() == pytest.approx(PYTHONS)
    assert await opened(None) == pytest.approx(PYTHONS)
    assert await opened(1e-3) == pytest.approx(1e-3), "a later session may ask again"


async def test_restore_returns_to_the_interval_before_the_first_session() -> None:
    assert [await opened(interval) for interval in (2e-3, 1e-3, 2e-3)] == pytest.approx([2e-3, 1e-3, 1e-3])
    af.restore_switch_interval()
    assert sys.getswitchinterval() == pytest.approx(PYTHONS)


@pytest.mark.parametrize("own", [4e-3, 1e-4])
async def test_interval_set_by_the_program_stays(own: float) -> None:
    await opened(1e-3)
    sys.setswitchinterval(own)
    assert await opened(1e-3) == pytest.approx(own)
    af.restore_switch_interval()
    assert sys.getswitchinterval() == pytest.approx(own)


async def test_session_never_raises_the_interval() -> None:
    assert await opened(1.0) == pytest.approx(PYTHONS)

"""What every test gets: a default graph of its own, and an event loop that fails the test when it is blocked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

import aioflow as af

_SLOW = 0.5  # seconds: far above what any step may take on the loop, far below what a blocking bug takes


@pytest.fixture(autouse=True)
def graph() -> Iterator[af.Graph]:
    """A new default graph."""
    with af.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def blocked_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if one callback held the loop for long."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = _SLOW
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        yield
    slow = [r.getMessage() for r in caplog.records if "took" in r.getMessage()]
    assert not slow, slow

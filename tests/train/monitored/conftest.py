"""What the tests of monitored training share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import aioflow as af


@pytest.fixture(autouse=True)
async def _own_writers() -> AsyncIterator[None]:
    """No test leaves an open writer to the next one."""
    yield
    await af.summary.FileWriterCache.clear()

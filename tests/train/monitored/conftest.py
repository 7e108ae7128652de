"""Fixtures of the tests of monitored training."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import aioflow as af


@pytest.fixture(autouse=True)
async def _own_writers() -> AsyncIterator[None]:
    """Close the cached summary writers after each test."""
    yield
    await af.summary.FileWriterCache.clear()

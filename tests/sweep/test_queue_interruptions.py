"""Tests that interrupt every operation of every kind of queue after any number of turns of the loop."""

from __future__ import annotations

import pytest

from tests.ops.test_queue_interruptions import KINDS, OPERATIONS, interrupted_at_any_point


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fifo"])
@pytest.mark.parametrize("what", OPERATIONS)
async def test_queue_operation_survives_interruption_at_any_point(kind: str, what: str) -> None:
    await interrupted_at_any_point(kind, what)

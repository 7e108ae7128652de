"""The service in aiohttp, as a process with real clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.web.load import (
    Api,
    Load,
    answered_although_it_ends,
    callers_share_steps,
    gone_before_they_are_computed,
)
from tests.examples.web.services import Oracle, serving

pytest.importorskip("aiohttp")

COMMAND = ("-m", "examples.web.with_aiohttp", "--port", "0")


async def test_the_service_answers_under_load(folder: Path, oracle: Oracle) -> None:
    async with serving(*COMMAND, MODEL=str(folder)) as service:
        load = Load(service, Api(oracle.agrees))
        await load.run()
        async with service.client() as client:
            found = (await client.get("/statistics")).json()
        assert (found["waiting_rows"], found["running_batches"]) == (0, 0)
        await callers_share_steps(service, Api(oracle.agrees))
        await answered_although_it_ends(service, Api(oracle.agrees), late_bodies=False)


async def test_rows_of_disconnected_clients_are_not_computed(folder: Path) -> None:
    """The handler needs no code for this, because aiohttp cancels it."""
    async with serving(*COMMAND, MODEL=str(folder)) as service:
        await gone_before_they_are_computed(service, Api(lambda rows, answer: True))

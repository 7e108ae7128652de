"""The supervisor of a service of several processes, with programs in their place that start in no time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="httptools is not installed")
pytest.importorskip("prometheus_client", reason="aioflow[serve] is not installed")
pytest.importorskip("uvicorn", reason="aioflow[serve] is not installed")

from aioflow.serve import Processes, ServerOptions  # what it needs may not be there
from aioflow.serve.processes import child, supervisor
from aioflow.serve.processes.child import Child
from tests.cancelling import LOOPS, cancel_at_each_turn, run_on
from tests.system import light_serving_process
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes hand sockets to one another")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The processes that supervisors start from now on; `tests.system.light_serving_process` is their program."""
    found: list[Child] = []
    start = Child.start

    async def noted(*arguments: Any) -> Child:
        found.append(await start(*arguments))
        return found[-1]

    monkeypatch.setattr(child, "__package__", light_serving_process.__name__)
    monkeypatch.setattr(Child, "start", noted)
    return found


def _service(**named: Any) -> Processes:
    return Processes({"m": "unused"}, None, ServerOptions(port=0, drain_seconds=5.0), processes=2, **named)


def _runs(process: Child) -> bool:
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_leaving_that_is_cancelled_in_any_turn_ends_every_process(
    loop: Callable[[], asyncio.AbstractEventLoop], started: list[Child]
) -> None:
    services: list[Processes] = []

    async def enter() -> None:
        services.append(await _service().__aenter__())
        await services[-1].ready()

    async def leave() -> None:
        await services.pop().__aexit__(None, None, None)

    async def ended() -> None:
        await eventually(lambda: not any(map(_runs, started)))

    run_on(loop, cancel_at_each_turn(leave, ended, before=enter))


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_service_that_is_cancelled_in_any_turn_of_its_start_ends_every_process(
    loop: Callable[[], asyncio.AbstractEventLoop], started: list[Child]
) -> None:

    async def serve() -> None:
        async with _service() as service:
            await service.ready()

    async def ended() -> None:
        await eventually(lambda: not any(map(_runs, started)))

    run_on(loop, cancel_at_each_turn(serve, ended))


async def test_process_that_is_stuck_while_it_starts_is_killed_and_replaced(
    started: list[Child], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIOFLOW_TEST_STUCK", str(tmp_path / "stuck"))
    monkeypatch.setattr(supervisor, "_START_SECONDS", 2.0)
    async with _service(stuck_seconds=2.0) as service:
        await service.ready()
        assert len(started) >= 3  # on a machine that is busy, one that is not stuck may start too slowly
        assert len(service.pids) == 2

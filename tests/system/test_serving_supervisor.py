"""The supervisor of a multi-process service, with lightweight processes that start at once."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="httptools is not installed")
pytest.importorskip("prometheus_client", reason="aioflow-engine[serve] is not installed")
pytest.importorskip("uvicorn", reason="aioflow-engine[serve] is not installed")

from aioflow.errors import ClosedSessionError, UnavailableError
from aioflow.serve import Processes, ServerOptions  # after importorskip: it needs these packages
from aioflow.serve.processes import child, serving, supervisor
from aioflow.serve.processes.child import Child
from tests.net.certificates import Authority
from tests.serve.folders import SECONDS
from tests.serve.test_process_parts import serving_process
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import LOOPS, run_on
from tests.support.waiting import eventually
from tests.system import light_serving_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes hand sockets to one another")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """Return the list of processes that supervisors start. Each runs `tests.system.light_serving_process`."""
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
def test_cancelled_exit_ends_every_process(loop: Callable[[], asyncio.AbstractEventLoop], started: list[Child]) -> None:
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
def test_cancelled_start_ends_every_process(
    loop: Callable[[], asyncio.AbstractEventLoop], started: list[Child]
) -> None:

    async def serve() -> None:
        async with _service() as service:
            await service.ready()

    async def ended() -> None:
        await eventually(lambda: not any(map(_runs, started)))

    run_on(loop, cancel_at_each_turn(serve, ended))


async def test_process_stuck_at_start_is_killed_and_replaced(
    started: list[Child], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIOFLOW_TEST_STUCK", str(tmp_path / "stuck"))
    monkeypatch.setattr(supervisor, "_START_SECONDS", 2.0)
    async with _service(stuck_seconds=2.0) as service:
        await service.ready()
        assert len(started) >= 3  # on a busy machine, a healthy process may also exceed the start timeout
        assert len(service.pids) == 2


class Start:
    """Control over process starts: delays them between `hold` and `release`, and makes them fail with `error`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        may_end = asyncio.Event()
        may_end.set()
        self.hold, self.release = may_end.clear, may_end.set
        self.error: UnavailableError | None = None
        started = Child.started

        async def held(process: Child) -> None:
            error = self.error
            await started(process)
            await may_end.wait()
            if error is not None:
                raise error

        monkeypatch.setattr(Child, "started", held)


async def test_process_killed_during_a_reload_has_one_successor(
    started: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(monkeypatch)
    async with _service() as service:
        await service.ready()
        start.hold()
        service.reload()
        await eventually(lambda: len(started) == 3 and started[2].is_ready)
        started[0].kill()
        await eventually(started[0].ended.is_set)
        start.release()
        await eventually(lambda: started[1].ended.is_set() and len(service.pids) == 2)
        await eventually(lambda: service.pids == [each.pid for each in started if _runs(each)])


async def test_reload_requested_during_a_failing_one_replaces_every_process(
    started: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(monkeypatch)
    async with _service() as service:
        await service.ready()
        start.hold()
        start.error = UnavailableError("the model is wrong")
        service.reload()
        await eventually(lambda: len(started) == 3 and started[2].is_ready)
        start.error = None
        service.reload()
        start.release()
        await eventually(lambda: started[0].ended.is_set() and started[1].ended.is_set())
        await eventually(lambda: len(service.pids) == 2)


async def test_processes_suspended_with_their_supervisor_are_not_killed(
    started: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _service(stuck_seconds=60.0) as service:
        await service.ready()
        looks: list[float] = []
        seconds_since_beat = service._board.seconds_since_beat

        def seconds(slot: int) -> float:
            looks.append(seconds_since_beat(slot) + (100.0 if len(looks) < 2 else 0.0))  # stale at the first check only
            return looks[-1]

        monkeypatch.setattr(service._board, "seconds_since_beat", seconds)
        await eventually(lambda: len(looks) >= 6)
        assert len(started) == 2
        assert all(map(_runs, started))


async def test_service_cannot_be_entered_twice(started: list[Child]) -> None:
    async with _service() as service:
        await service.ready()
        with pytest.raises(ClosedSessionError):
            await service.__aenter__()
    with pytest.raises(ClosedSessionError):
        await service.__aenter__()
    assert len(started) == 2


@pytest.mark.parametrize("replaced", [False, True])
async def test_draining_process_does_not_wait_for_unfinished_tls_handshakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    monkeypatch.setattr(serving, "_HANDSHAKE", 10 * SECONDS)
    certificate, key = Authority(tmp_path).tls("server").files[:2]
    where = ServerOptions(tls_cert=certificate, tls_key=key, drain_seconds=0.1)
    async with serving_process(where) as (running, channel, connections):
        channel.notify("leave", replaced=replaced)
        await running
        for reader, _ in connections:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""

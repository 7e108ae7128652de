"""The supervisor of a service of several processes, with programs in their place that start in no time."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="httptools is not installed")
pytest.importorskip("prometheus_client", reason="aioflow[serve] is not installed")
pytest.importorskip("uvicorn", reason="aioflow[serve] is not installed")

from aioflow.serve import Processes, ServerOptions  # what it needs may not be there
from aioflow.serve.processes import supervisor
from aioflow.serve.processes.accepting import Sockets
from aioflow.serve.processes.starting import Process
from tests.cancelling import LOOPS, cancel_at_each_turn, run_on
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes hand sockets to one another")

# Beats, reports that it is ready, and leaves when it is told to, as a process of the service does.
_PROGRAM = """
import os, select, signal, socket, struct, sys, time
board, own, line = map(int, sys.argv[-3:])
mark = {mark!r}
if mark and not os.path.exists(mark):
    open(mark, "w").close()
    signal.pause()
end = socket.socket(fileno=line)
end.sendall(b'{{"number": 0, "ask": "ready", "arguments": {{"index": []}}}}\\n')
heard = b""
while b'"ask": "leave"' not in heard:
    os.pwrite(board, struct.pack("d", time.monotonic()), own * 32)
    if select.select([end], [], [], 0.02)[0]:
        more = end.recv(1 << 16)
        if not more:
            break
        heard += more
"""


def _started_by(monkeypatch: pytest.MonkeyPatch, mark: Path | str = "") -> list[Process]:
    """Have the supervisor start `_PROGRAM`; returns the processes that it starts.

    Args:
        mark: The first process makes this file, and is stuck from then on.
    """
    started: list[Process] = []
    program = _PROGRAM.format(mark=str(mark))

    async def start(sockets: Sockets, board: int, own: int) -> tuple[Process, socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = ["-I", "-S", "-c", program, *map(str, (board, own, theirs.fileno()))]
            try:
                running = await asyncio.create_subprocess_exec(
                    sys.executable, *arguments, pass_fds=(board, theirs.fileno()), start_new_session=True
                )
            except BaseException:
                ours.close()
                raise
        started.append(Process(running, own))
        return started[-1], ours

    monkeypatch.setattr(supervisor, "start", start)
    return started


def _service(**named: Any) -> Processes:
    return Processes({"m": "unused"}, None, ServerOptions(port=0, drain_seconds=5.0), processes=2, **named)


def _runs(process: Process) -> bool:
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_leaving_that_is_cancelled_in_any_turn_ends_every_process(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _started_by(monkeypatch)
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
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _started_by(monkeypatch)

    async def serve() -> None:
        async with _service() as service:
            await service.ready()

    async def ended() -> None:
        await eventually(lambda: not any(map(_runs, started)))

    run_on(loop, cancel_at_each_turn(serve, ended))


async def test_process_that_is_stuck_while_it_starts_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = _started_by(monkeypatch, tmp_path / "stuck")
    async with _service(stuck_seconds=2.0) as service:
        await service.ready()
        assert len(started) == 3
        assert len(service.pids) == 2

"""The parts of a service of several processes, in one process: the board, the line, sums, and connections that move."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("httptools", reason="httptools is not installed")
pytest.importorskip("prometheus_client", reason="aioflow[serve] is not installed")
pytest.importorskip("uvicorn", reason="aioflow[serve] is not installed")

import uvicorn  # it may not be there

from aioflow.config import SessionConfig
from aioflow.errors import DeadlineExceededError, UnavailableError
from aioflow.serve import Limits, ModelOptions, ModelSource, ServerOptions
from aioflow.serve.processes.accepting import Sockets
from aioflow.serve.processes.board import Board, new_board
from aioflow.serve.processes.line import Handlers, Line, open_line
from aioflow.serve.processes.moving import MovingProtocol, hand_on, take
from aioflow.serve.processes.settings import Settings
from aioflow.serve.processes.starting import start
from aioflow.serve.processes.sums import Counters, statistics_of_all
from tests.cancelling import LOOPS, run_on
from tests.serve.folders import SECONDS
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes hand no sockets to one another there")


def test_settings_go_over_the_line_as_they_are() -> None:
    settings = Settings(
        {"m": ModelSource("a"), "n": ModelSource("b", (1, 2)), "o": ModelSource("c", None)},
        ModelOptions(max_batch_size=4, allowed_batch_sizes=(1, 4), pad={"x": 0}, config=SessionConfig(threads=2)),
        ServerOptions("localhost", 1, "token", ["a.example"], "cert", "key", 5.0),
        Limits(rank=3),
        1000,
        ("ops",),
        2,
        ("n",),
    )
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_a_board_says_who_is_ready_and_who_has_most() -> None:
    fd = new_board(3)
    boards = [Board(fd, 0), Board(fd, 1)]
    watcher = Board(fd)
    os.close(fd)
    assert watcher.ready() == 0
    boards[0].write(5, True)
    boards[1].write(2, False)  # it takes no connections yet
    assert (watcher.ready(), boards[0].ahead()) == (1, 0)
    boards[1].write(2, True)
    assert (watcher.ready(), boards[0].ahead(), boards[1].ahead(), watcher.ahead()) == (2, 3, 0, 0)
    assert 0 <= watcher.seconds_since_beat(1) < SECONDS
    watcher.begin(2)
    assert (watcher.ready(), 0 <= watcher.seconds_since_beat(2) < SECONDS) == (2, True)
    watcher.clear(1)
    assert (watcher.ready(), boards[0].ahead()) == (1, 0)


@asynccontextmanager
async def line(handlers: Handlers) -> AsyncIterator[tuple[Line, Line]]:
    """Both ends; the second has the handlers."""
    ends = socket.socketpair()
    one, other = await open_line(ends[0], {}), await open_line(ends[1], handlers)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        group.create_task(one.run())
        group.create_task(other.run())
        try:
            yield one, other
        finally:
            await one.finish()


async def test_a_line_answers_in_any_order_and_ends_for_both(caplog: pytest.LogCaptureFixture) -> None:
    first = asyncio.Event()

    async def wait() -> str:
        await first.wait()
        return "x" * 100_000

    async def go() -> None:
        first.set()

    async def fail(number: int) -> None:
        raise ValueError(f"{number} is wrong")

    async def never() -> None:
        await asyncio.Event().wait()

    async with line({"wait": wait, "go": go, "fail": fail, "never": never}) as (one, other):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(one.ask("wait"))
            await one.ask("go")
        assert waiting.result() == "x" * 100_000
        with pytest.raises(UnavailableError, match="3 is wrong"):
            await one.ask("fail", number=3)
        with pytest.raises(DeadlineExceededError):
            await one.ask("never", 0.0)
        async with asyncio.TaskGroup() as group:
            lost = group.create_task(_error(one.ask("never")))
            await one.ask("go")
            other.close()
        assert isinstance(lost.result(), UnavailableError)
        with pytest.raises(UnavailableError):
            await one.ask("go")


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("sent", [b'{"number": 0, "answ', b"[\n", b"\xff\n"], ids=["part", "not JSON", "not text"])
def test_line_ends_where_the_other_process_sends_no_message(
    loop: Callable[[], asyncio.AbstractEventLoop], sent: bytes
) -> None:
    """A part of one is what a process leaves that was killed while it wrote."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        line = await open_line(ours, {})
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            running = group.create_task(line.run())
            asking = group.create_task(_error(line.ask("anything")))
            theirs.sendall(sent)
            theirs.close()
            assert isinstance(await asking, UnavailableError)
            await running
            await line.finish()

    run_on(loop, main())


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_line_can_be_told_things_after_the_other_process_has_ended(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Whether or not it has been noticed: `run` notices, and is not running here."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        line = await open_line(ours, {})
        theirs.close()
        for _ in range(100):
            line.tell("leave", replaced=False)
            await asyncio.sleep(0)
        await line.finish()

    run_on(loop, main())


async def _error(asking: Any) -> Exception | None:
    try:
        await asking
    except Exception as error:
        return error
    return None


def text(ok: int, ready: int, waiting: int) -> str:
    return f"""# TYPE aioflow_requests_total counter
aioflow_requests_total{{model="m"}} {ok}
# TYPE aioflow_model_ready gauge
aioflow_model_ready{{model="m"}} {ready}
# TYPE aioflow_waiting_rows gauge
aioflow_waiting_rows{{model="m"}} {waiting}
# TYPE aioflow_batch_rows histogram
aioflow_batch_rows_bucket{{model="m",le="1"}} {ok}
aioflow_batch_rows_bucket{{model="m",le="+Inf"}} {2 * ok}
aioflow_batch_rows_count{{model="m"}} {2 * ok}
aioflow_batch_rows_sum{{model="m"}} {ok}
"""


def samples(counters: Counters) -> dict[str, float]:
    lines = [each.rpartition(" ") for each in counters.text().decode().splitlines() if not each.startswith("#")]
    return {name.replace('{model="m"}', ""): float(value) for name, _, value in lines}


def test_counters_are_summed_and_never_go_back() -> None:
    counters = Counters()
    counters.hear(1, text(10, 1, 3))
    counters.hear(2, text(5, 0, 4))
    assert samples(counters) == {
        "aioflow_requests_total": 15,
        "aioflow_model_ready": 0,
        "aioflow_waiting_rows": 7,
        'aioflow_batch_rows_bucket{le="1",model="m"}': 15,
        'aioflow_batch_rows_bucket{le="+Inf",model="m"}': 30,
        "aioflow_batch_rows_count": 30,
        "aioflow_batch_rows_sum": 15,
    }
    counters.end(1)
    counters.end(3)  # which has never said anything
    counters.hear(4, text(1, 1, 0))
    found = samples(counters)
    assert (found["aioflow_requests_total"], found["aioflow_waiting_rows"]) == (16, 4)


def test_statistics_are_summed_by_version_and_size() -> None:
    def of(version: str, count: int, **sizes: int) -> dict[str, Any]:
        return {
            "name": "m",
            "version": version,
            "inference_count": count,
            "inference_stats": {"success": {"count": count, "ns": 10 * count}},
            "batch_stats": [{"batch_size": int(size[1:]), "compute_infer": {"count": n}} for size, n in sizes.items()],
        }

    each = ([of("1", 3, _1=3), of("2", 1)], [of("1", 4, _1=2, _2=1)])
    bodies = [json.dumps({"model_stats": stats}).encode() for stats in each]
    assert json.loads(statistics_of_all(bodies)) == {"model_stats": [of("1", 7, _1=5, _2=1), of("2", 1)]}


class Process:
    """What a connection belongs to."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.answer.set()
        self.asked = 0
        config = uvicorn.Config(self.app, interface="asgi3", log_config=None, lifespan="off")
        config.load()
        self.web = uvicorn.Server(config)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        while (await receive()).get("more_body"):
            pass
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": scope["path"][1:3].encode()})

    async def open(self, connection: socket.socket) -> MovingProtocol:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        _, protocol = await loop.connect_accepted_socket(
            lambda: MovingProtocol(self.web.config, self.web.server_state, {}), connection
        )
        return protocol


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Process, MovingProtocol, asyncio.StreamReader, asyncio.StreamWriter]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        process = Process()
        try:
            yield process, await process.open(listener.accept()[0]), reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


def request(path: str) -> bytes:
    return f"POST /{path} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody".encode()


async def answered(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" not in head
        return await reader.readexactly(2)


@pytest.mark.parametrize("moment", ["idle", "answering", "half a head", "half a body", "two at once"])
async def test_a_connection_moves_when_no_request_is_in_it(moment: str) -> None:
    """Whenever that is, each request is answered once, by one of the two processes, over the same connection."""
    give, shared = socket.socketpair()
    with give, shared:
        async with connected() as (old, protocol, reader, writer):
            writer.write(request("a1"))
            assert await answered(reader) == b"a1"
            old.answer.clear()
            sent = {
                "idle": b"",
                "answering": request("b2"),
                "half a head": request("b2")[:20],
                "half a body": request("b2")[:-2],
                "two at once": request("b2") + request("c3"),
            }[moment]
            writer.write(sent)
            if moment != "idle":
                await eventually(lambda: protocol._is_amid or old.asked > 1)
            protocol.leave(lambda connection: hand_on(give, connection))
            assert moment == "idle" or take(shared) is None
            if moment.startswith("half"):
                writer.write(request("b2")[len(sent) :])
            old.answer.set()
            for wanted in {"idle": (), "two at once": (b"b2", b"c3")}.get(moment, (b"b2",)):
                assert await answered(reader) == wanted
            writer.write(request("d4"))  # before anybody has the connection
            new = Process()
            shared.setblocking(False)
            await eventually(lambda: select.select([shared], [], [], 0)[0])
            moved = take(shared)
            assert moved is not None
            await new.open(moved)
            assert await answered(reader) == b"d4"
            assert new.asked == 1
            writer.close()
            await eventually(lambda: not new.web.server_state.connections)


async def test_a_start_that_is_given_up_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = []
    made = socket.socketpair

    def noted() -> Any:
        pairs.append(made())
        return pairs[-1]

    async def never(*args: Any, **options: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(socket, "socketpair", noted)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
    with socket.socket() as listener, socket.socket() as give, socket.socket() as take, pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await start(Sockets(listener, give, take), 0, 0)
    assert [end.fileno() for pair in pairs for end in pair] == [-1, -1]

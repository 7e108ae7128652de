"""The parts of a multi-process service, within one process: settings, board, channel, sums, ending connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httptools", reason="httptools is not installed")
pytest.importorskip("prometheus_client", reason="aioflow-engine[serve] is not installed")
pytest.importorskip("uvicorn", reason="aioflow-engine[serve] is not installed")

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from aioflow import Padding
from aioflow.config import SessionConfig
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from aioflow.serve import Limits, ModelOptions, ModelSource, ServerOptions, embedded
from aioflow.serve.embedded import EmbeddedServer, EmbeddedSettings
from aioflow.serve.guard import RequestGuard
from aioflow.serve.processes import serving
from aioflow.serve.processes.board import Board, new_board
from aioflow.serve.processes.channel import Functions, ProcessChannel, open_channel
from aioflow.serve.processes.child import Child
from aioflow.serve.processes.serving import Acceptor, ServingProcess
from aioflow.serve.processes.settings import Settings
from aioflow.serve.processes.whole_service import (
    METRICS,
    ServiceRequests,
    SummedMetrics,
    WholeService,
    request_inside,
    sum_of_statistics,
)
from tests.serve.folders import SECONDS
from tests.support.loops import on_each_loop
from tests.support.waiting import clock_put_forward, eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes hand no sockets to one another there")


def _settings() -> Settings:
    return Settings(
        {"m": ModelSource("a"), "n": ModelSource("b", (1, 2)), "o": ModelSource("c", None)},
        {
            "m": ModelOptions(
                max_batch_size=4,
                allowed_batch_sizes=(1, 4),
                pad={"x": 0, "y": Padding(1, 8)},
                config=SessionConfig(threads=2),
            ),
            "n": ModelOptions(batch="never", memory_budget=1000),
            "o": ModelOptions(config=None),
        },
        ServerOptions("localhost", 1, "token", ["a.example"], "cert", "key", 5.0),
        Limits(rank=3),
        1000,
        ("ops",),
        2,
        ("n",),
    )


def test_settings_round_trip_through_json() -> None:
    settings = _settings()
    assert Settings.from_json(settings.to_json()) == settings
    shaped = replace(settings, models={"m": ModelSource("a", shapes={"x": (None, 3), "y": (), "z": None})})
    assert Settings.from_json(shaped.to_json()) == shaped
    # Other types that users may pass are converted to those of JSON.
    pad = {"x": np.float32(0), "y": b"none", "z": Padding(np.bytes_(b"none"))}
    options, where = ModelOptions(pad=pad), ServerOptions(hosts={"a"}, tls_cert=Path("a"), tls_key="b")
    passed = Settings.from_json(replace(settings, options={"m": options}, where=where).to_json())
    assert passed.options["m"].pad == {"x": 0.0, "y": "none", "z": Padding("none")}
    assert (passed.where.hosts, passed.where.tls_cert) == (["a"], "a")
    for value in (object(), b"\xff"):
        with pytest.raises(InvalidArgumentError, match="cannot be passed"):
            replace(settings, options={"m": ModelOptions(pad={"x": value})}).to_json()


def test_board_reports_ready_processes_and_the_most_connections() -> None:
    now = 100.0
    fd = new_board(3)
    boards = [Board(fd, slot, lambda: now) for slot in (0, 1)]
    supervisor = Board(fd, None, lambda: now)
    # Each board has mapped the memory, so the descriptor is no longer needed.
    os.close(fd)
    assert supervisor.ready() == 0
    boards[0].write(5, True)
    boards[1].write(2, False)  # not ready, so it accepts no connections
    assert (supervisor.ready(), boards[0].ahead()) == (1, 0)
    boards[1].write(2, False, is_accepting=True)  # one of its models has failed
    assert (supervisor.ready(), boards[0].ahead(), boards[1].ahead()) == (1, 3, 0)
    boards[1].write(2, True)
    assert (supervisor.ready(), boards[0].ahead(), boards[1].ahead(), supervisor.ahead()) == (2, 3, 0, 0)
    supervisor.begin(2)
    now += 3.0
    assert (supervisor.ready(), supervisor.seconds_since_beat(1), supervisor.seconds_since_beat(2)) == (2, 3.0, 3.0)
    assert boards[0].ahead() == 0  # the heartbeat of the other process is too old to wait for it
    boards[0].write(5, True)
    now += 3.0
    assert supervisor.ready() == 1
    supervisor.clear(0)
    assert supervisor.ready() == 0


@asynccontextmanager
async def channel(functions: Functions) -> AsyncIterator[tuple[ProcessChannel, ProcessChannel]]:
    """Yield both ends of a channel, the second of which serves the functions."""
    ends = socket.socketpair()
    one, other = await open_channel(ends[0], {}), await open_channel(ends[1], functions)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        group.create_task(one.run())
        group.create_task(other.run())
        try:
            yield one, other
        finally:
            await one.finish()


async def test_channel_answers_out_of_order_and_closes_at_both_ends(caplog: pytest.LogCaptureFixture) -> None:
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

    async with channel({"wait": wait, "go": go, "fail": fail, "never": never}) as (one, other):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(one.call("wait"))
            await one.call("go")
        assert waiting.result() == "x" * 100_000
        with pytest.raises(UnavailableError, match="3 is wrong"):
            await one.call("fail", number=3)
        with pytest.raises(DeadlineExceededError):
            await one.call("never", 0.0)
        async with asyncio.TaskGroup() as group:
            lost = group.create_task(_error(one.call("never")))
            await one.call("go")
            other.close()
        assert isinstance(lost.result(), UnavailableError)
        with pytest.raises(UnavailableError):
            await one.call("go")


@on_each_loop
@pytest.mark.parametrize("sent", [b'{"number": 0, "resu', b"[\n", b"\xff\n"], ids=["part", "not JSON", "not text"])
async def test_channel_ends_at_a_malformed_message(sent: bytes) -> None:
    """A process that is killed while it writes leaves a part of a message."""
    ours, theirs = socket.socketpair()
    channel = await open_channel(ours, {})
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        running = group.create_task(channel.run())
        asking = group.create_task(_error(channel.call("anything")))
        theirs.sendall(sent)
        theirs.close()
        assert isinstance(await asking, UnavailableError)
        await running
        await channel.finish()


@on_each_loop
async def test_channel_can_be_used_after_the_peer_has_ended() -> None:
    """`run` would notice the end of the peer, but is not running here."""
    ours, theirs = socket.socketpair()
    channel = await open_channel(ours, {})
    theirs.close()
    for _ in range(100):
        channel.notify("leave", replaced=False)
        await asyncio.sleep(0)
    await channel.finish()


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


def samples(counters: SummedMetrics) -> dict[str, float]:
    lines = [each.rpartition(" ") for each in counters.text().decode().splitlines() if not each.startswith("#")]
    return {name.replace('{model="m"}', ""): float(value) for name, _, value in lines}


def test_counters_are_summed_and_never_decrease() -> None:
    counters = SummedMetrics()
    counters.update(1, text(10, 1, 3))
    counters.update(2, text(5, 0, 4))
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
    counters.end(3)  # unknown process: it never sent counters
    counters.update(4, text(1, 1, 0))
    found = samples(counters)
    assert (found["aioflow_requests_total"], found["aioflow_waiting_rows"]) == (16, 4)


class Counting:
    """A replacement for a process of `ServiceRequests` that returns its counters once `may_answer` is set."""

    def __init__(self, pid: int, ok: int) -> None:
        self.pid, self.index, self.channel, self.last_metrics = pid, ["m"], self, text(ok, 1, 0)
        self.may_answer = asyncio.Event()

    async def call(self, *request: Any, **named: Any) -> dict[str, Any]:
        await self.may_answer.wait()
        return {"status": 200, "kind": "", "body": self.last_metrics}


async def test_counters_of_a_process_that_ends_during_a_request_are_counted_once() -> None:
    children: Any = [Counting(1, 10), Counting(2, 5)]
    running = set(children)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        requests = ServiceRequests(asyncio.Lock(), lambda: children, running, group)
        asking = group.create_task(requests.answer("GET", METRICS, ""))
        children[0].may_answer.set()
        for _ in range(10):
            await asyncio.sleep(0)
        running.discard(children[0])
        requests.remove(children[0])
        children[1].may_answer.set()
        assert 'aioflow_requests_total{model="m"} 15' in (await asking)["body"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_whole_service_is_ready_if_enough_processes_are(method: str) -> None:
    fd = new_board(2)
    board = Board(fd, 0)
    os.close(fd)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it was answered for this process alone")

    for quorum, status in ((1, 200), (2, 503)):
        board.write(0, is_ready=True)
        channel: Any = None
        guard = RequestGuard(None, None, frozenset())
        service = WholeService(app, guard, Limits(), channel, board, quorum)
        assert (await request_inside(service, method, "/v2/health/ready"))["status"] == status


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
    bodies = [json.dumps({"model_stats": stats}) for stats in each]
    assert json.loads(sum_of_statistics(bodies)) == {"model_stats": [of("1", 7, _1=5, _2=1), of("2", 1)]}


class Service:
    """A server within this process whose responses wait for `may_answer`."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = 0
        config = EmbeddedSettings(self._app, interface="asgi3", lifespan="off")
        config.load()
        self.web = EmbeddedServer(config)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        while (await receive()).get("more_body"):
            pass
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": scope["path"][1:3].encode()})

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Yield a client's connection to the server."""
        ours, theirs = socket.socketpair()
        protocol: Any = self.web.config.http_protocol_class
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: protocol(config=self.web.config, server_state=self.web.server_state, app_state={}), theirs
        )
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


def request(path: str) -> bytes:
    return f"POST /{path} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody".encode()


async def answered(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return the body of a response, and whether the response announces that the connection closes."""
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(2), b"connection: close" in head


@pytest.mark.parametrize("moment", ["idle", "answering", "half a head", "half a body"])
async def test_end_of_keep_alive_answers_every_request_and_announces_the_close(moment: str) -> None:
    service = Service()
    async with asyncio.timeout(SECONDS), service.connected() as (reader, writer), asyncio.TaskGroup() as group:
        writer.write(request("a1"))
        assert await answered(reader) == (b"a1", False)
        service.may_answer.clear()
        length = {"idle": 0, "half a head": 20, "half a body": -2}.get(moment)
        sent = request("b2")[:length]
        writer.write(sent)
        await eventually(lambda: service.asked == (2 if moment in ("answering", "half a body") else 1))
        ending = group.create_task(service.web.end_keep_alive(SECONDS))
        await eventually(lambda: service.web.server_state.is_leaving)
        writer.write(request("b2")[len(sent) :])
        service.may_answer.set()
        body, is_last = await answered(reader)
        assert body == b"b2"
        if not is_last:  # the request was read before the server began to end, so the next response is the last
            writer.write(request("c3"))
            assert await answered(reader) == (b"c3", True)
        assert await reader.read() == b""
        await ending


async def test_ending_server_answers_a_client_that_is_about_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_GRACE", SECONDS)
    service = Service()
    service.web.config.timeout_graceful_shutdown = int(SECONDS)
    async with asyncio.timeout(SECONDS), service.connected() as (reader, writer), asyncio.TaskGroup() as group:
        serving = group.create_task(service.web.serve(sockets=[]))
        writer.write(request("a1"))
        assert await answered(reader) == (b"a1", False)
        service.web.should_exit = True
        await eventually(lambda: service.web.server_state.is_leaving)
        writer.write(request("b2"))
        assert await answered(reader) == (b"b2", True)
        await serving


async def test_pipelined_requests_take_constant_time_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, count = 0, 1000

    def look(cycle: Any) -> Any:
        nonlocal looks
        looks += 1
        return vars(cycle)["is_complete"]

    complete = property(look, lambda cycle, value: vars(cycle).update(is_complete=value))
    monkeypatch.setattr(RequestResponseCycle, "response_complete", complete, raising=False)
    service = Service()
    service.may_answer.clear()
    async with asyncio.timeout(SECONDS), service.connected() as (reader, writer):
        writer.write(request("a1") * count)
        await eventually(lambda: service.asked == 1)
        service.may_answer.set()
        for _ in range(count):
            assert await answered(reader) == (b"a1", False)
    assert looks < 30 * count


@on_each_loop
@pytest.mark.parametrize("count", [1, 3])
async def test_server_answers_a_client_that_has_closed_its_sending_half(count: int) -> None:
    service = Service()
    service.may_answer.clear()
    async with asyncio.timeout(SECONDS), service.connected() as (reader, writer):
        writer.write(request("a1") * count)
        writer.write_eof()
        await eventually(lambda: service.asked == 1)
        service.may_answer.set()
        assert [await answered(reader) for _ in range(count)] == [(b"a1", i == count - 1) for i in range(count)]
        assert await reader.read() == b""


@on_each_loop
@pytest.mark.parametrize("is_there", [True, False])
async def test_server_probes_a_client_that_has_stopped_sending(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_PROBES", (0.0, 0.0))
    service = Service()
    service.may_answer.clear()
    async with asyncio.timeout(SECONDS), service.connected() as (reader, writer):
        writer.write(request("a1"))
        await eventually(lambda: service.asked == 1)
        if is_there:
            writer.write_eof()
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            service.may_answer.set()
            assert await answered(reader) == (b"a1", True)
        else:
            writer.close()
            await eventually(lambda: not service.web.server_state.connections)
            service.may_answer.set()


@pytest.mark.parametrize("sent", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"])
async def test_invalid_http_is_rejected_with_a_json_error(sent: bytes) -> None:
    async with asyncio.timeout(SECONDS), Service().connected() as (reader, writer):
        writer.write(sent)
        head, body = (await reader.read()).split(b"\r\n\r\n")
    assert (head[:13], b"content-type: application/json" in head) == (b"HTTP/1.1 400 ", True)
    assert json.loads(body) == {"error": "Invalid HTTP request received."}


class Flood(Service):
    """A server whose first response exceeds the buffers of a client that does not read.

    Attributes:
        pieces: Number of pieces of 4 MiB in the response.
    """

    pieces = 1

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        size = 1 << 22
        headers = [(b"content-length", b"%d" % (size * self.pieces))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for left in reversed(range(self.pieces)):
            await send({"type": "http.response.body", "body": bytes(size), "more_body": left > 0})


@pytest.mark.parametrize("pieces", [1, 2], ids=["in the next response", "in a response"])
async def test_ending_server_logs_no_traceback_for_clients_that_do_not_read(
    caplog: pytest.LogCaptureFixture, pieces: int
) -> None:
    service = Flood()
    service.pieces = pieces
    service.web.config.timeout_graceful_shutdown = 0
    async with asyncio.timeout(SECONDS), service.connected() as (_, writer), asyncio.TaskGroup() as group:
        serving = group.create_task(service.web.serve(sockets=[]))
        writer.write(request("a1") * 2)
        await eventually(lambda: service.asked == 3 - pieces)
        service.web.should_exit = True
        await serving
    assert not [record for record in caplog.records if record.exc_info]


async def test_acceptor_accepts_until_the_listening_socket_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_LINGER", SECONDS)
    service, fd = Service(), new_board(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            acceptor = Acceptor(listener, Board(fd, 0), service.web, lambda: True, group)
            running = group.create_task(acceptor.run())
            for path in ("a1", "b2"):  # before and after the acceptor is told to leave
                reader, writer = await asyncio.open_connection(*address)
                writer.write(request(path))
                assert await answered(reader) == (path.encode(), False)
                writer.close()
                await writer.wait_closed()
                if path == "a1":
                    running.cancel()
                    await asyncio.wait([running])
                    last = group.create_task(acceptor.accept_rest())
            listener.shutdown(socket.SHUT_RDWR)
            await last
    os.close(fd)


@pytest.mark.parametrize("sent", [b"", request("a1"), request("a1") + request("b2")[:20]], ids=["no", "one", "part"])
async def test_end_of_keep_alive_does_not_wait_long_for_an_idle_client(sent: bytes) -> None:
    service = Service()
    service.web.config.timeout_keep_alive = 0
    async with asyncio.timeout(SECONDS), service.connected() as (reader, writer):
        writer.write(sent)
        if sent:
            assert await answered(reader) == (b"a1", False)
        await service.web.end_keep_alive(SECONDS)
        assert await reader.read() == b""


@asynccontextmanager
async def serving_process(where: ServerOptions) -> AsyncIterator[tuple[asyncio.Task[None], ProcessChannel, Any]]:
    """Run a serving process without models within this process.

    Yield its task, the supervisor's end of the channel and two connections. The supervisor answers no request for the
    whole service.
    """
    is_ready, ends, fd = asyncio.Event(), socket.socketpair(), new_board(2)

    async def ready(index: Any) -> None:
        is_ready.set()

    async def left(metrics: str) -> None:
        pass

    async def request_all(**named: Any) -> None:
        await asyncio.Event().wait()

    settings = Settings({}, {}, where, Limits())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process, other = ServingProcess(settings, listener, Board(fd, 0)), Board(fd, 1)
        os.close(fd)
        channel = await open_channel(ends[0], {"ready": ready, "left": left, "request_all": request_all})
        async with asyncio.TaskGroup() as group:
            group.create_task(channel.run())
            running = group.create_task(process.run(ends[1]))
            await is_ready.wait()
            connections = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
            await eventually(lambda: other.ahead() == -2)
            yield running, channel, connections
            for _, writer in connections:
                writer.close()


async def test_replaced_process_aborts_its_requests_after_the_drain_timeout() -> None:
    async with serving_process(ServerOptions(hosts=["a"], drain_seconds=1e5)) as (running, channel, connections):
        for _, writer in connections:
            writer.write(request("v2/repository/models/m/load"))
        channel.notify("leave", replaced=True)
        await asyncio.sleep(0.1)
        with clock_put_forward():
            for reader, _ in connections:
                assert b" 503 " in await reader.read()
            await running


async def test_server_cancelled_in_the_turn_in_which_a_request_ends_also_ends() -> None:
    service = Service()
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        serving = group.create_task(service.web.serve(sockets=[]))
        await eventually(lambda: service.web.server_state.default_headers)  # the server's main loop is running
        tasks = service.web.server_state.tasks
        tasks.add(ending := group.create_task(asyncio.sleep(0)))
        ending.add_done_callback(tasks.discard)
        await asyncio.sleep(0)  # the request ends in the next turn, in which `serving` is cancelled
        serving.cancel()
        await asyncio.wait([serving])


async def test_aborted_start_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = []
    made = socket.socketpair

    def noted() -> Any:
        pairs.append(made())
        return pairs[-1]

    async def never(*args: Any, **options: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(socket, "socketpair", noted)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
    with socket.socket() as listener, pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await Child.start(_settings(), listener, 0, 0)
    assert [end.fileno() for pair in pairs for end in pair] == [-1, -1]

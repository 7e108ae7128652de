"""Request ids of responses and of error logs, and the access log, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.observe.logs import REQUEST_ID, AccessEntry
from tests.serve.folders import rows, save_model, scaled
from tests.serve.service import ServerOptions, asked, serving

from aioflow.serve.access import IdentifiedRequests  # isort: skip  # after the check that starlette is installed

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "GET",
    "path": "/a b",
    "raw_path": b"/a%20b",
    "headers": [(b"traceparent", PARENT.encode())],
    "client": ("10.0.0.1", 50000),
}


def entries(caplog: pytest.LogCaptureFixture) -> list[AccessEntry]:
    return [each.msg for each in caplog.records if each.name == "aioflow.access" and isinstance(each.msg, AccessEntry)]


async def answered(app: Any, is_logged: bool = True, **scope: Any) -> list[Any]:
    """Return the messages of the response to one request, at a clock that advances by a second at each look."""
    ticks = itertools.count()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    identified = IdentifiedRequests(app, is_logged, lambda: float(next(ticks)), lambda: 100.0)
    await identified({**SCOPE, **scope}, receive, send)
    return sent


def responding(status: int, *pieces: bytes) -> Callable[..., Any]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": piece is not pieces[-1]})

    return app


async def test_entry_has_all_fields_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aioflow.access")
    start, *_ = await answered(responding(200, b"12", b"345"))
    assert start["headers"] == [(b"a", b"b"), (b"x-request-id", TRACE.encode())]
    wanted = AccessEntry(100.0, "10.0.0.1", "GET", "/a%20b", "HTTP/1.1", 200, 5, 1.0, TRACE)
    assert entries(caplog) == [wanted]


async def test_head_has_no_bytes_and_a_local_socket_no_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aioflow.access")
    await answered(responding(404, b"12"), method="HEAD", client=None, headers=[])
    (entry,) = entries(caplog)
    assert (entry.client, entry.status, entry.size) == ("-", 404, 0)
    assert entry.request_id != TRACE


async def test_responses_have_ids_without_an_access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aioflow.access")
    start, *_ = await answered(responding(200, b""), is_logged=False)
    assert (b"x-request-id", TRACE.encode()) in start["headers"]
    assert not entries(caplog)


@pytest.mark.parametrize("value", [[], [PARENT, PARENT], ["x"]])
async def test_missing_or_ambiguous_traceparent_gets_a_new_id(value: list[str]) -> None:
    start, *_ = await answered(responding(200, b""), headers=[(b"traceparent", each.encode()) for each in value])
    number = dict(start["headers"])[b"x-request-id"].decode()
    assert len(number) == 32
    assert number != TRACE


@pytest.mark.parametrize(
    ("error", "begins", "status"),
    [(None, False, 499), (ValueError(), False, 500), (asyncio.CancelledError(), False, 500), (ValueError(), True, 200)],
)
async def test_unanswered_requests_are_logged(
    error: BaseException | None, begins: bool, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An application that returns without a response has lost its client."""
    caplog.set_level(logging.INFO, "aioflow.access")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begins:
            await responding(200, b"1")(scope, receive, send)
        if error is not None:
            raise error

    if error is None:
        await answered(app)
    else:
        with pytest.raises(type(error)):
            await answered(app)
    assert [each.status for each in entries(caplog)] == [status]


async def test_http_requests_and_their_errors_have_one_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aioflow.access")
    await save_model(tmp_path / "m", scaled(2))
    where = ServerOptions(port=0, access_log=True)
    async with serving({"m": tmp_path / "m"}, where=where) as (server, client):
        response = await client.post("/v2/models/m/infer", json=asked(rows()), headers={"traceparent": PARENT})
        assert response.headers["x-request-id"] == TRACE
        missing = await client.get("/v2/models/none?secret=1")

        async def failing(*_: object) -> None:
            raise ValueError(REQUEST_ID.get())

        server.repository.get("m").infer = failing  # type: ignore[method-assign, assignment]
        failed = await client.post("/v2/models/m/infer", json=asked(rows()))
        assert failed.status_code == 500
    found = [(each.method, each.path, each.status, each.size, each.request_id) for each in entries(caplog)]
    assert found == [
        ("POST", "/v2/models/m/infer", 200, len(response.content), TRACE),
        ("GET", "/v2/models/none", 404, len(missing.content), missing.headers["x-request-id"]),
        ("POST", "/v2/models/m/infer", 500, len(failed.content), failed.headers["x-request-id"]),
    ]
    assert {each.client for each in entries(caplog)} == {"127.0.0.1"}
    # The code that logs the error sees the id that the client got.
    errors = [str(each.exc_info[1]) for each in caplog.records if each.exc_info and each.exc_info[1]]
    assert set(errors) == {failed.headers["x-request-id"]}


async def test_grpc_calls_are_logged_like_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("grpc", reason="aioflow-engine[grpc] is not installed")
    import grpc

    from tests.serve.grpc_client import infer_request, over_grpc

    caplog.set_level(logging.INFO, "aioflow.access")
    await save_model(tmp_path / "m", scaled(2))
    async with over_grpc({"m": tmp_path / "m"}, where=ServerOptions(access_log=True)) as (_, client):
        call = client.call("ModelInfer")(
            infer_request({"x": np.ones([1, 3], np.float32)}), metadata=(("traceparent", PARENT),)
        )
        response = await call
        assert dict(await call.trailing_metadata())["x-request-id"] == TRACE
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client("ModelMetadata", name="none")
        number = dict(raised.value.trailing_metadata())["x-request-id"]
    found = [(each.path, each.protocol, each.status, each.size, each.request_id) for each in entries(caplog)]
    assert found == [
        ("/inference.GRPCInferenceService/ModelInfer", "gRPC", 200, response.ByteSize(), TRACE),
        ("/inference.GRPCInferenceService/ModelMetadata", "gRPC", 404, 0, number),
    ]
    assert {each.client for each in entries(caplog)} <= {"127.0.0.1", "::1"}

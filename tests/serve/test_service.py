"""The service over HTTP, with its own server on loopback and a real client."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from errno import EADDRINUSE
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.serve import Limits, ModelOptions, Repository, options
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.requests import header, read_body
from tests.serve.folders import SECONDS, rows, save_model, scaled, summed
from tests.serve.service import (
    Server,
    ServerOptions,
    asked,
    create_app,
    families,
    httpx,
    post,
    serving,
    values,
)
from tests.support.waiting import eventually


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return await save_model(tmp_path / "m", scaled(2))


# ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_health_and_metadata(folder: Path) -> None:
    async with serving({"m": folder}) as (_, client):
        for path, wanted in {
            "/v2/health/live": {"live": True},
            "/v2/health/ready": {"ready": True},
            "/v2/models/m/ready": {"name": "m", "ready": True},
            "/v2/models/m/versions/1/ready": {"name": "m", "ready": True},
        }.items():
            response = await client.get(path)
            assert (response.status_code, response.json()) == (200, wanted), path
        assert "binary_tensor_data" in (await client.get("/v2")).json()["extensions"]
        tensor = {"datatype": "FP32", "shape": [-1, 3]}
        assert (await client.get("/v2/models/m")).json() == {
            "name": "m",
            "versions": ["1"],
            "platform": "aioflow",
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor}],
        }
        for path in ("/v2/models/no", "/v2/models/m/versions/2", "/v2/models/no/ready", "/no", "/v2/models/m/else"):
            response = await client.get(path)
            assert response.status_code == 404, path
            assert set(response.json()) == {"error"}


async def test_inference_in_json_and_bytes(folder: Path) -> None:
    x = rows(3)
    async with serving({"m": folder}) as (_, client):
        response = await client.post("/v2/models/m/infer", json=asked(x, id="5"))
        np.testing.assert_allclose(values(response), x * 2, rtol=1e-6)
        assert {**response.json(), "outputs": 0} == {"model_name": "m", "model_version": "1", "id": "5", "outputs": 0}
        tensor = {"name": "x", "shape": [3, 3], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        response = await client.post(
            "/v2/models/m/versions/1/infer",
            content=head + x.tobytes(),
            headers={"Inference-Header-Content-Length": str(len(head))},
        )
        assert response.status_code == 200
        length = int(response.headers["Inference-Header-Content-Length"])
        assert response.headers["Content-Type"] == "application/octet-stream"
        np.testing.assert_allclose(np.frombuffer(response.content[length:], np.float32).reshape(3, 3), x * 2, rtol=1e-6)


async def test_server_does_not_change_the_logging_of_the_program(folder: Path) -> None:
    """Reconfiguring the logging would close the handlers of a program that serves beside other things."""
    closed = []

    class Kept(logging.Handler):
        def close(self) -> None:
            closed.append(self)
            super().close()

    kept, names = Kept(), ("", "uvicorn", "uvicorn.error", "uvicorn.access")
    before = [(logging.getLogger(name).level, list(logging.getLogger(name).handlers)) for name in names]
    async with serving({"m": folder}):
        pass
    assert [(logging.getLogger(name).level, list(logging.getLogger(name).handlers)) for name in names] == before
    assert not closed
    kept.close()


async def test_binary_data_may_be_unaligned(tmp_path: Path) -> None:
    """A tensor begins where the JSON ends, at an offset that need not be a multiple of its item size."""

    def convolved() -> Any:
        x = af.placeholder("float32", [None, 4, 4, 2], name="x")
        y = af.nn.conv2d(x, af.constant(np.ones([3, 3, 2, 2], np.float32)), strides=1, padding="SAME")
        flat = af.matmul(af.reshape(y, [-1, 32]), af.constant(np.eye(32, dtype=np.float32)))
        return {"x": x}, {"y": flat, "bits": af.reshape(af.bitcast(x, "int32"), [-1, 32])}

    await save_model(tmp_path / "m", convolved)
    x = np.arange(64, dtype=np.float32).reshape(2, 4, 4, 2)
    tensor = {"name": "x", "shape": [2, 4, 4, 2], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    wanted = sum(padded[:, i : i + 4, j : j + 4].sum(-1, keepdims=True) for i in range(3) for j in range(3))
    async with serving({"m": tmp_path / "m"}) as (_, client):
        for spaces in range(8):
            head = json.dumps({"inputs": [tensor]}).encode() + b" " * spaces
            headers = {"Inference-Header-Content-Length": str(len(head))}
            response = await client.post("/v2/models/m/infer", content=head + x.tobytes(), headers=headers)
            first, bits = (np.array(each["data"]) for each in response.json()["outputs"])
            np.testing.assert_allclose(first.reshape(2, 4, 4, 2), np.broadcast_to(wanted, (2, 4, 4, 2)), rtol=1e-5)
            np.testing.assert_array_equal(bits, x.view(np.int32).ravel())


async def test_rejections_state_their_reason(folder: Path) -> None:
    limits = Limits(body_bytes=2000)
    async with serving({"m": folder}, limits=limits) as (_, client):
        url = "/v2/models/m/infer"

        async def status(expected: int, says: str, **request: Any) -> None:
            response = await client.post(url, **request)
            assert (response.status_code, says in response.json()["error"]) == (expected, True), response.text

        await status(400, "not JSON", content=b"{")
        await status(400, "not JSON", content=b"")
        await status(400, "inputs", json={})
        await status(400, "other inputs", json={"inputs": []})
        await status(400, "invalid value", content=b"{}", headers={"Inference-Header-Content-Length": "x"})
        await status(400, "within the body", content=b"{}", headers={"Inference-Header-Content-Length": "9"})
        await status(400, "does not match its Content-Encoding", content=b"{}", headers={"Content-Encoding": "gzip"})
        await status(415, "unsupported Content-Encoding", content=b"{}", headers={"Content-Encoding": "br"})
        await status(413, "too large", content=b" " * 2001)
        await status(413, "too large", content=_pieces(b" " * 100, 21))
        await status(403, "another site", content=b"{}", headers={"Origin": "http://evil.example"})
        wrong = await client.get(url)
        assert (wrong.status_code, set(wrong.json()), wrong.headers["Allow"]) == (405, {"error"}, "POST")
        np.testing.assert_allclose(values(await client.post(url, json=asked(rows()))), rows() * 2, rtol=1e-6)


async def test_other_methods_are_405_at_every_path(folder: Path) -> None:
    names = {"{model}": "m", "{version}": "1", "{label}": "stable", "{signature}": "s"}
    async with serving({"m": folder}) as (_, client):
        for template, described in (await client.get("/openapi.json")).json()["paths"].items():
            path, methods = template, {method.upper() for method in described}
            for name, value in names.items():
                path = path.replace(name, value)
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - methods:
                response = await client.request(method, path)
                assert response.status_code == 405, (method, path)
                assert set(response.headers["Allow"].split(", ")) - {"HEAD"} == methods, (method, path)
                assert method in response.json()["error"]


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress), ("identity", bytes)],
)
async def test_compressed_requests_are_decoded(folder: Path, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    x = np.random.default_rng(0).random((4000, 3), np.float32)
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [4000, 3], "parameters": {"binary_data_size": x.nbytes}}
            ]
        }
    ).encode()
    async with serving({"m": folder}) as (_, client):
        for body, headers in (
            (json.dumps(asked(rows())).encode(), {}),
            (head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}),
        ):
            response = await client.post(
                "/v2/models/m/infer", content=compress(body), headers={"Content-Encoding": encoding, **headers}
            )
            assert response.status_code == 200, response.text
            np.testing.assert_allclose(values(response), (x if headers else rows()) * 2, rtol=1e-6)


async def test_decompression_bombs_are_rejected(folder: Path) -> None:
    """At most the limit is decompressed, also from truncated bodies and from bodies with trailing data."""
    bomb = gzip.compress(b" " * 100_000_000)
    async with serving({"m": folder}, limits=Limits(body_bytes=1_000_000)) as (_, client):
        for status, body in (
            (413, bomb),
            (400, gzip.compress(b"{}")[:-1]),
            (400, gzip.compress(b"{}") + b"more"),
            (400, gzip.compress(b"{}") + bytes(900_000)),
            (400, b""),
        ):
            response = await client.post("/v2/models/m/infer", content=body, headers={"Content-Encoding": "gzip"})
            assert response.status_code == status, response.text
        other = await client.post("/v2/models/m/infer", content=b"x", headers={"Content-Encoding": "zstd"})
        assert (other.status_code, other.headers["Accept-Encoding"]) == (415, "gzip, deflate")


@pytest.mark.parametrize("json_nan", ["error", "null"])
async def test_responses_are_strict_json(folder: Path, json_nan: Any) -> None:
    x = np.array([[np.inf, -np.inf, np.nan], [0, 1, 2]], np.float32)
    async with serving({"m": folder}, ModelOptions(json_nan=json_nan)) as (_, client):
        url = "/v2/models/m/infer"
        response = await client.post(url, content=json.dumps(asked(x)).encode())
        if json_nan == "error":
            assert response.status_code == 400
            assert "binary_data" in response.json()["error"]
            assert "'y'" in response.json()["error"]
        else:
            [output] = json.loads(response.text, parse_constant=pytest.fail)["outputs"]
            assert output["data"] == [None, None, None, 0.0, 2.0, 4.0]
        request = {**asked(x), "parameters": {"binary_data_output": True}}
        response = await client.post(url, content=json.dumps(request).encode())
        assert response.status_code == 200
        assert response.content.endswith((x * 2).tobytes())


@pytest.mark.parametrize("batch", ["auto", "never"])
async def test_config_has_the_fields_that_triton_clients_read(folder: Path, batch: Any) -> None:
    async with serving({"m": folder}, ModelOptions(batch=batch)) as (_, client):
        dims = [3] if batch == "auto" else [-1, 3]
        for path in ("/v2/models/m/config", "/v2/models/m/versions/1/config"):
            assert (await client.get(path)).json() == {
                "name": "m",
                "platform": "aioflow",
                "backend": "aioflow",
                "max_batch_size": 64 if batch == "auto" else 0,
                "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": dims}],
                "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": dims}],
            }
        assert (await client.get("/v2/models/other/config")).status_code == 404


async def test_errors_name_types_like_the_protocol(folder: Path) -> None:
    async with serving({"m": folder}) as (_, client):
        tensor = {"name": "x", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}
        response = await client.post("/v2/models/m/infer", json={"inputs": [tensor]})
        assert response.json()["error"].endswith("expected: FP32; actual: INT64")
        response = await client.post("/v2/models/m/infer", json={"inputs": [{**tensor, "data": [0.5, 1, 2]}]})
        assert "INT64: int" in response.json()["error"]


async def test_http_1_0_health_probes_need_no_host(folder: Path) -> None:
    async with serving({"m": folder}) as (server, _):
        address = urlsplit(server.url)
        for path, status in (("/v2/health/live", b"200"), ("/v2/health/ready", b"200"), ("/v2", b"403")):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            assert (await asyncio.wait_for(reader.readline(), SECONDS)).split()[1] == status, path
            writer.close()


async def test_middleware_of_the_user_sees_every_request(folder: Path) -> None:
    from starlette.middleware.base import BaseHTTPMiddleware

    seen = []

    async def look(request: Any, call_next: Any) -> Any:
        seen.append(request.url.path)
        return await call_next(request)

    async with Repository({"m": folder}) as repository:
        await repository.load_all()
        app = create_app(repository)
        app.add_middleware(BaseHTTPMiddleware, dispatch=look)
        async with _inside(app) as client:
            await client.get("/v2")
            assert (await client.post("/v2/models/m/infer", json=asked(rows()))).status_code == 200
    assert seen == ["/v2", "/v2/models/m/infer"]


async def _pieces(piece: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield piece


async def test_repository_api_over_http(tmp_path: Path) -> None:
    await save_model(tmp_path / "m" / "1", scaled(1))
    async with serving({"m": tmp_path / "m"}) as (_, client):
        entry = {"name": "m", "version": "1", "state": "READY", "reason": ""}
        assert (await client.post("/v2/repository/index", json={"ready": True})).json() == [entry]
        await save_model(tmp_path / "m" / "2", scaled(2))
        assert (await client.post("/v2/repository/models/m/load")).status_code == 200
        np.testing.assert_allclose(values(await client.post("/v2/models/m/infer", json=asked(rows()))), rows() * 2)
        assert (await client.post("/v2/models/m/versions/1/infer", json=asked(rows()))).status_code == 404
        assert (await client.post("/v2/repository/models/m/unload")).status_code == 200
        assert (await client.post("/v2/models/m/infer", json=asked(rows()))).status_code == 404
        (entry,) = (await client.post("/v2/repository/index")).json()
        assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
        assert (await client.post("/v2/repository/index", json={"ready": True})).json() == []
        assert (await client.post("/v2/repository/models/other/load")).status_code == 404


async def test_service_is_live_before_its_models_are_ready(folder: Path) -> None:
    async with (
        asyncio.timeout(SECONDS),
        Server({"m": folder}, where=ServerOptions(port=0)) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
    ):
        assert (await client.get("/v2/health/live")).status_code == 200
        assert (await client.get("/v2/health/ready")).status_code == 503
        response = await client.post("/v2/models/m/infer", json=asked(rows()))
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        assert (await client.get("/v2/models/m/ready")).status_code == 503
        await server.ready()
        assert (await client.get("/v2/health/ready")).status_code == 200


# ── access ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_token_is_required_except_for_health(folder: Path) -> None:
    async with serving({"m": folder}, where=ServerOptions(port=0, token="secret")) as (_, client):
        for given, says in (
            ({}, "a token is needed"),
            ({"Authorization": "Bearer wrong"}, "not the token"),
            ({"Authorization": "secret"}, "a token is needed"),
        ):
            for method, path in (("GET", "/v2"), ("GET", "/metrics"), ("POST", "/v2/models/m/infer")):
                response = await client.request(method, path, headers=given)
                assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert says in response.json()["error"]
        assert (await client.get("/v2/health/ready")).status_code == 200
        for right in ("Bearer secret", "bearer secret", "Bearer  secret"):
            assert (await client.get("/v2", headers={"Authorization": right})).status_code == 200


@pytest.mark.parametrize("token", ["secret", None])
async def test_admin_token_alone_may_change_the_models(folder: Path, token: str | None) -> None:
    where = ServerOptions(port=0, token=token, admin_token="root")
    async with serving({"m": folder}, where=where) as (_, client):
        change, call = "/v2/repository/models/m/load", "/v2/models/m/infer"
        for given, of_changes, of_calls in (
            (None, 401, 200 if token is None else 401),
            ("wrong", 401, 200 if token is None else 401),
            ("secret", 401 if token is None else 403, 200),
            ("root", 200, 200),
        ):
            headers = {} if given is None else {"Authorization": f"Bearer {given}"}
            assert (await client.post(change, headers=headers)).status_code == of_changes, given
            assert (await client.post(call, json=asked(rows()), headers=headers)).status_code == of_calls, given
        response = await client.post(change.replace("load", "unload"), headers={"Authorization": "Bearer secret"})
        assert ("may not load or unload" in response.json()["error"]) is (token is not None)
        document = (await client.get("/openapi.json", headers={"Authorization": "Bearer root"})).json()
        assert "security" in document["paths"]["/v2/repository/models/{model}/load"]["post"]
        assert ("security" in document["paths"]["/v2"]["get"]) is (token is not None)


def test_admin_token_differs_from_that_of_callers(folder: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="both tokens are the same"):
        ServerOptions(token="secret", admin_token="secret")
    with pytest.raises(errors.InvalidArgumentError, match="both tokens are the same"):
        create_app({"m": folder}, token="secret", admin_token="secret")
    with pytest.raises(errors.InvalidArgumentError, match="the token is empty"):
        create_app({"m": folder}, admin_token="")


async def test_line_break_at_the_end_of_a_path_is_part_of_it(folder: Path) -> None:
    """Otherwise, with several processes, an unload would be routed to a single process and change only that one."""
    async with serving({"m": folder}) as (_, client):
        for path in ("/v2/repository/models/m/unload", "/v2/models/m/infer"):
            assert (await client.post(f"{path}%0a", json=asked(rows()))).status_code == 404
        assert (await client.get("/v2/health/ready%0a")).status_code == 404
        assert (await client.get("/v2/health/ready")).status_code == 200


@pytest.mark.parametrize("seconds", [0, 0.2])
async def test_shutdown_waits_no_longer_than_drain_seconds(folder: Path, seconds: float) -> None:
    """The limit may be less than a second."""
    patient = Limits(body_seconds=1e6)
    options = ServerOptions(port=0, drain_seconds=seconds)
    async with asyncio.timeout(SECONDS), contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server({"m": folder}, None, options, limits=patient))
        await server.ready()
        _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(post(b"{", 100))  # the rest never arrives
        await eventually(lambda: server.app.state.admission.bytes)
        await stack.aclose()
        writer.close()


def test_space_around_a_header_value_is_removed() -> None:
    """HTTP servers differ in whether they remove it."""
    scope = {"headers": [(b"authorization", b"Bearer secret \t")]}
    assert header(scope, b"authorization") == b"Bearer secret"


def test_empty_token_is_rejected(folder: Path) -> None:
    """An unset variable of the environment yields an empty token, which every client would know."""
    with pytest.raises(errors.InvalidArgumentError, match="token"):
        create_app({"m": folder}, token="")


@pytest.mark.parametrize(
    ("host", "token", "is_warned"),
    [
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("192.0.2.7", None, True),
        ("models.example", None, True),
        ("0.0.0.0", "x", False),
        ("127.0.0.1", None, False),
        ("127.0.0.9", None, False),
        ("localhost", None, False),
        ("::1", None, False),
    ],
)
def test_server_options_warn_of_an_open_service(
    host: str, token: str | None, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ServerOptions(host=host, token=token).warn_if_open(8000)
    assert [record.getMessage().partition(" may ")[0] for record in caplog.records] == (
        [f"anyone who can reach {host} port 8000"] if is_warned else []
    )


async def test_server_warns_of_an_open_service(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loopback address stands for a public address here."""
    monkeypatch.setattr(options, "is_loopback", lambda host: False)
    monkeypatch.setattr(options, "_LOOPBACK", ())
    async with serving({"m": folder}) as (server, _):
        port = server.url.rpartition(":")[2]
        assert f"anyone who can reach 127.0.0.1 port {port} may use, load and unload the models" in caplog.text


async def test_unknown_host_names_are_rejected(folder: Path) -> None:
    """DNS rebinding makes the name of another site resolve to this machine."""
    async with serving({"m": folder}) as (server, client):
        port = server.url.rpartition(":")[2]
        for host, wanted in {
            "evil.example": 403,
            f"evil.example:{port}": 403,
            "": 403,
            "localhost": 200,
            f"LOCALHOST:{port}": 200,
            f"127.0.0.1:{port}": 200,
            f"[::1]:{port}": 200,
        }.items():
            assert (await client.get("/v2", headers={"Host": host})).status_code == wanted, host
        refused = (await client.get("/v2", headers={"Host": f"evil.example:{port}"})).json()["error"]
        assert "'evil.example'" in refused
        assert "--allow-host" in refused
        same = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
        assert (await client.get("/v2", headers=same)).status_code == 200
    async with serving({"m": folder}, where=ServerOptions(port=0, hosts=["models.example"])) as (_, client):
        assert (await client.get("/v2", headers={"Host": "models.example"})).status_code == 200
        assert (await client.get("/v2")).status_code == 403
    async with serving({"m": folder}, where=ServerOptions(port=0, token="x")) as (_, client):
        asked_by = {"Host": "models.example", "Authorization": "Bearer x"}
        assert (await client.get("/v2", headers=asked_by)).status_code == 200


async def test_invalid_certificate_is_rejected_at_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("no certificate")
    for cert in ("x.pem", "missing.pem"):
        with pytest.raises(errors.InvalidArgumentError, match="certificate"):
            async with Server(
                {"m": folder}, where=ServerOptions(port=0, tls_cert=tmp_path / cert, tls_key=tmp_path / cert)
            ):
                pass
    with pytest.raises(errors.InvalidArgumentError, match="needs its key"):
        ServerOptions(tls_cert="x.pem")


async def test_port_in_use_is_reported(folder: Path) -> None:
    async with Server({"m": folder}, where=ServerOptions(port=0)) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use") as raised:
            async with Server({"m": folder}, where=ServerOptions(port=port)):
                pass
        assert raised.value.errno == EADDRINUSE


# ── in another application ───────────────────────────────────────────────────────────────────────────────────────────


async def test_application_loads_and_closes_models_with_its_lifespan(folder: Path) -> None:
    app = create_app({"m": folder})
    async with asyncio.timeout(SECONDS):
        async with app.router.lifespan_context(app), _inside(app) as client:
            await eventually(lambda: app.state.repository.is_ready)
            assert (await client.get("/v2/health/ready")).status_code == 200
            np.testing.assert_allclose(values(await client.post("/v2/models/m/infer", json=asked(rows()))), rows() * 2)
            session = app.state.repository.get("m").session
        assert session.closed


async def test_application_serves_other_models_if_one_cannot_be_loaded(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app({"bad": tmp_path / "missing", "m": folder})
    async with asyncio.timeout(SECONDS), app.router.lifespan_context(app), _inside(app) as client:
        await eventually(lambda: len(app.state.repository.served()) == 1)
        assert (await client.get("/v2/health/ready")).status_code == 503
        assert (await client.post("/v2/models/m/infer", json=asked(rows()))).status_code == 200
        response = await client.get("/v2/models/bad")
        assert (response.status_code, str(tmp_path) in response.text) == (503, False)
        bad, good = (await client.post("/v2/repository/index")).json()
        assert (bad["name"], bad["state"], good["state"]) == ("bad", "UNAVAILABLE", "READY")
        assert "missing" in bad["reason"]
    assert "model bad cannot be loaded" in caplog.text


async def test_application_may_be_mounted_in_another(folder: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    async with asyncio.timeout(SECONDS), Repository({"m": folder}) as repository:
        await repository.load_all()
        app = Starlette(routes=[Mount("/models", create_app(repository, token="secret"))])
        async with _inside(app) as client:
            assert (await client.get("/models/v2/health/ready")).status_code == 200
            assert (await client.get("/models/v2")).status_code == 401
            token = {"Authorization": "Bearer secret"}
            for path in ("/models/v2/models/m/infer", "/models/v2/models/m/versions/1/infer"):
                found = values(await client.post(path, json=asked(rows()), headers=token))
                np.testing.assert_allclose(found, rows() * 2)


def _inside(app: Any) -> Any:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://inside")


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_metrics_count_requests_batches_and_models(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    await save_model(tmp_path / "s", summed)
    async with serving({"m": tmp_path / "m", "s": tmp_path / "s"}) as (_, client):
        for _ in range(3):
            await client.post("/v2/models/m/infer", json=asked(rows(3)))
        await client.post("/v2/models/m/infer", content=b"{")
        await client.post("/v2/models/s/infer", json=asked(np.ones(4, np.float32)))
        found = await families(client)
        requests = found["aioflow_requests_total"]
        assert (requests["m", "ok", "1"], requests["m", "refused", "1"], requests["s", "ok", "1"]) == (3, 1, 1)
        assert found["aioflow_request_seconds_count"] == {("m", "1"): 3, ("s", "1"): 1}
        assert found["aioflow_batch_rows_count"] == {("m", "1"): 3, ("s", "1"): 1}
        assert found["aioflow_batch_rows_sum"] == {("m", "1"): 9, ("s", "1"): 1}
        buckets = found["aioflow_batch_rows_bucket"]
        assert (buckets["2", "m", "1"], buckets["4", "m", "1"], buckets["+Inf", "m", "1"]) == (0, 3, 3)
        assert found["aioflow_compute_seconds_count"]["m", "1"] == 3
        assert found["aioflow_compute_seconds_sum"]["m", "1"] > 0
        assert found["aioflow_model_ready"] == {("m", "1"): 1, ("s", "1"): 1}
        assert "aioflow_loop_lag_seconds_bucket" in found
        stats = (await client.get("/v2/models/stats")).json()["model_stats"]
        assert {each["name"]: each["inference_count"] for each in stats} == {"m": 9, "s": 1}
        # Counters continue when a version is loaded again.
        await client.post("/v2/repository/models/m/load")
        await client.post("/v2/models/m/infer", json=asked(rows()))
        assert (await families(client))["aioflow_requests_total"]["m", "ok", "1"] == 4


async def test_read_body_takes_no_more_memory_than_the_body() -> None:
    """Joining the pieces at the end would take twice as much."""
    count, size = 256, 1 << 16

    async def receive() -> dict[str, Any]:
        nonlocal count
        count -= 1
        return {"type": "http.request", "body": bytes([count]) * size, "more_body": count > 0}

    tracemalloc.start()
    try:
        with RequestAdmission(1 << 30).holding() as held:
            body = await read_body({"headers": []}, receive, Limits(), held)
            assert tracemalloc.get_traced_memory()[1] < 1.3 * len(body)
    finally:
        tracemalloc.stop()
    assert (len(body), held.bytes) == (256 * size, 256 * size)
    assert body == b"".join(bytes([index]) * size for index in reversed(range(256)))
    with pytest.raises(TypeError):
        body[0] = 0  # type: ignore[index]  # read-only, like bytes

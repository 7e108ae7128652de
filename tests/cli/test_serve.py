"""`aioflow serve`: a separate process that receives requests over loopback and ends on signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from aioflow.cli import main
from tests.serve.folders import SECONDS, rows, save_model, scaled, slow
from tests.support import processes


@contextlib.asynccontextmanager
async def serving(*arguments: str, stderr: int | None = None) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start a service and yield its process and address once its models are ready."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="aioflow-engine[serve] is not installed")
    async with (
        asyncio.timeout(processes.SECONDS),
        processes.program_on_loop("-m", "aioflow", "serve", *arguments, "--port", "0", stderr=stderr) as process,
    ):
        first = await line(process)
        assert first.startswith("listening at http://127.0.0.1:"), first
        assert (await line(process)).endswith("is ready")
        yield process, first.rpartition(" ")[2]


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


def call(url: str, document: Any = None, **headers: str) -> Any:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, data, headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=SECONDS) as response:
        return json.loads(response.read())


def asked(x: Any) -> Any:
    return {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}]}


async def test_model_is_served_until_a_signal_arrives(tmp_path: Path) -> None:
    await save_model(tmp_path / "1", scaled(2))
    await save_model(tmp_path / "2", scaled(3))
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("secret\n")
    async with serving(f"m={tmp_path}:1", "--token-file", str(tmp_path / "token")) as (process, url):
        x = rows(2)
        answer = await asyncio.to_thread(call, f"{url}/v2/models/m/infer", asked(x), Authorization="Bearer secret")
        assert answer["model_version"] == "1"
        np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], (2, 3)), x * 2, rtol=1e-6)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(call, f"{url}/v2")
        process.terminate()
        assert await process.wait() == 0


async def test_error_output_logs_model_changes(tmp_path: Path) -> None:
    await save_model(tmp_path / "1", scaled(2))
    async with serving(f"m={tmp_path}", stderr=asyncio.subprocess.PIPE) as (process, url):
        await save_model(tmp_path / "2", scaled(3))
        for change in ("load", "unload"):
            await asyncio.to_thread(call, f"{url}/v2/repository/models/m/{change}", {})
        assert process.stderr is not None
        lines = [(await process.stderr.readline()).decode().rstrip() for _ in range(4)]
    said = [re.fullmatch(r"(\S+)Z INFO aioflow.serve\[\d+\] (.*?)( \(request [0-9a-f]{32}\))?", each) for each in lines]
    assert [each and each[2] for each in said] == [
        f"health checks are answered at {url}; loading m",
        "model m is ready: version 1",
        "model m is ready: version 2",
        "model m is unloaded",
    ]
    assert [bool(each and each[3]) for each in said] == [False, False, True, True]


@pytest.fixture
async def three(tmp_path: Path) -> Path:
    """Return the file of a service with three models, one of which is missing."""
    path = tmp_path / "serve.toml"
    text = "[serve]\nport = 0\nlog-format = 'json'\naccess-log = 'json'\n"
    for name in ("a", "bad", "z"):
        text += f"[models.{name}]\npath = '{(tmp_path / name).as_posix()}'\n"
        if name != "bad":
            await save_model(tmp_path / name, scaled(2))
    path.write_text(text)
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("more", [[], ["--processes", "2"]], ids=["one process", "two processes"])
async def test_one_bad_model_of_three_does_not_end_the_service(three: Path, more: list[str]) -> None:
    if more and sys.platform != "linux":
        pytest.skip("processes hand sockets to one another")
    command = ["-m", "aioflow", "serve", "--config", str(three), *more]
    async with (
        asyncio.timeout(processes.SECONDS),
        processes.program_on_loop(*command, stderr=asyncio.subprocess.PIPE) as process,
    ):
        url = (await line(process)).removeprefix("listening at ")
        states = [await line(process) for _ in range(3)]
        assert states[::2] == ["a version 1 is ready", "z version 1 is ready"]
        assert states[1].startswith("bad is unavailable: there is no model ")
        # The address is printed when the good models can be called.
        answer = await asyncio.to_thread(call, f"{url}/v2/models/z/infer", asked(rows(2)))
        assert answer["model_name"] == "z"
        assert (await asyncio.to_thread(call, f"{url}/v2/health/live"))["live"]
        for path in ("/v2/health/ready", "/v2/models/bad/ready"):
            with pytest.raises(urllib.error.HTTPError, match="503") as raised:
                await asyncio.to_thread(call, url + path)
            body = json.loads(raised.value.read())
            assert not body["ready"]
            assert ("there is no model" in body.get("reason", "")) == ("bad" in path)
        failed = f'aioflow_model_failed{{model="bad",reason="NotFoundError"}} {2.0 if more else 1.0}'
        while failed not in await asyncio.to_thread(text, url):
            pass  # a busy process is counted with its last report
        process.terminate()
        assert process.stderr is not None
        logged = [json.loads(each) for each in (await process.stderr.read()).splitlines()]
        assert await process.wait() == 0
    assert {each["time"][-1] for each in logged} == {"Z"}
    messages = [each.get("message", "") for each in logged]
    assert any(each.startswith("model bad cannot be loaded: there is no model ") for each in messages)
    assert "received SIGTERM" in messages
    assert sum(each.endswith("has ended with status 0") for each in messages) == (2 if more else 0)
    requests = [(each["path"], each["status"]) for each in logged if each.get("path", "/metrics") != "/metrics"]
    # Two processes may write in another order.
    assert sorted(requests) == [
        ("/v2/health/live", 200),
        ("/v2/health/ready", 503),
        ("/v2/models/bad/ready", 503),
        ("/v2/models/z/infer", 200),
    ]


def test_strict_service_ends_at_a_bad_model(three: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(three), "--strict", "--log-level", "error"]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("aioflow: model 'bad': there is no model ")
    assert printed.err.count("\n") == 1


def test_check_reports_every_missing_model(three: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(three), "also=missing", "--check"]) == 2
    printed = capfd.readouterr()
    assert [each.partition(":")[0] for each in printed.out.splitlines()] == ["a version 1", "z version 1"]
    assert [each.partition(": there")[0] for each in printed.err.splitlines()] == [
        "aioflow: model 'bad'",
        "aioflow: model 'also'",
    ]
    assert main(["serve", f"a={three.parent / 'a'}", "--check"]) == 0
    assert main(["serve", f"a={three.parent / 'a'}", "--check", "--processes", "2", "--quorum", "3"]) == 2
    (three.parent / "pem").touch(0o600)
    pem = str(three.parent / "pem")
    assert main(["serve", f"a={three.parent / 'a'}", "--check", "--tls-cert", pem, "--tls-key", pem]) == 2
    assert "certificate" in capfd.readouterr().err


def test_check_warns_as_the_start_does_if_there_is_no_token(three: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = ["serve", f"a={three.parent / 'a'}", "--check", "--host", "0.0.0.0", "--port", "8123"]
    assert main(given) == 0
    warning = capfd.readouterr().err
    assert warning.startswith("aioflow: anyone who can reach 0.0.0.0 port 8123 may use, load and unload the models")
    (three.parent / "token").write_text("secret")
    (three.parent / "token").chmod(0o600)
    assert main([*given, "--token-file", str(three.parent / "token")]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_pending_request_is_answered_after_the_signal(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    await save_model(tmp_path / "m", slow(100_000))
    async with serving(f"m={tmp_path / 'm'}", "--no-warmup") as (process, url):
        async with asyncio.TaskGroup() as group:
            ask = partial(call, f"{url}/v2/models/m/infer", asked(np.ones([1, 1], np.float32)))
            asking = group.create_task(asyncio.to_thread(ask))
            while 'aioflow_pending_requests{model="m",version="1"} 1.0' not in await asyncio.to_thread(text, url):
                if asking.done():  # the request ended before its metric was read
                    asking = group.create_task(asyncio.to_thread(ask))
            process.send_signal(number)
        assert asking.result()["outputs"][0]["data"] == [1.0]
        assert await process.wait() == status


@pytest.mark.skipif(sys.platform != "linux", reason="processes hand sockets to one another")
async def test_several_processes_restart_and_end_gracefully(tmp_path: Path) -> None:
    """SIGHUP replaces all of them, and after SIGTERM each answers its pending requests."""
    await save_model(tmp_path / "m", slow(1_000_000))
    async with serving(f"m={tmp_path / 'm'}", "--no-warmup", "--processes", "2") as (process, url):
        supervisor = psutil.Process(process.pid)
        before = set(supervisor.children())
        process.send_signal(signal.SIGHUP)
        await ended(before)
        assert len(supervisor.children()) == 2
        async with asyncio.TaskGroup() as group:
            x = np.ones([1, 1], np.float32)
            asking = [
                group.create_task(asyncio.to_thread(call, f"{url}/v2/models/m/infer", asked(x))) for _ in range(4)
            ]
            while 'aioflow_pending_requests{model="m",version="1"} 4.0' not in await asyncio.to_thread(text, url):
                pass
            process.terminate()
        assert [each.result()["outputs"][0]["data"] for each in asking] == [[1.0]] * 4
        assert await process.wait() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="processes hand sockets to one another")
async def test_stuck_process_is_killed_when_the_service_ends(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    arguments = f"m={tmp_path / 'm'}", "--processes", "2", "--drain-seconds", "0.1"
    async with serving(*arguments, stderr=asyncio.subprocess.PIPE) as (process, _):
        stuck, other = psutil.Process(process.pid).children()
        stuck.suspend()
        try:
            process.terminate()
            assert await process.wait() == 0
            await ended([stuck, other])
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                stuck.kill()
        assert process.stderr is not None
        assert b"did not end in time; killing it" in await process.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="processes hand sockets to one another")
async def test_processes_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    async with serving(f"m={tmp_path / 'm'}", "--processes", "2") as (process, _):
        others = psutil.Process(process.pid).children()
        assert len(others) == 2
        process.kill()
        await ended(others)


async def ended(others: Iterable[psutil.Process]) -> None:
    _, alive = await asyncio.to_thread(psutil.wait_procs, list(others), SECONDS)
    assert not alive


def text(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=SECONDS) as response:
        found: bytes = response.read()
    return found.decode()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required"),
        (["m"], "write NAME=m"),
        (["m=missing"], "missing"),
        (["m=x", "m=y"], "twice"),
        (["m=x", "--limit", "rank"], "NAME=NUMBER"),
        (["m=x", "--limit", "rank=0"], "rank"),
        (["m=x", "--limit", "ranks=1"], "body_bytes"),
        (["m=x", "--token-file", "missing"], "missing"),
        (["m=x", "--token-file", "open"], "chmod 600 open"),
        (["m=x", "--tls-cert", "x"], "needs its key"),
        (["m=x", "--max-batch-size", "0"], "at least 1"),
        (["m=x", "--processes", "0"], "at least 1"),
        (["m=missing", "--processes", "2"], "missing"),
        (["m=x", "--processes", "2", "--quorum", "3"], "quorum"),
        (["m=x", "--memory-budget", "2 pounds"], "2GiB"),
        (["m=x", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="aioflow-engine[serve] is not installed")
    monkeypatch.chdir(tmp_path)
    Path("open").write_text("secret")
    Path("open").chmod(0o644)
    try:
        status = main(["serve", *arguments, "--port", "0"])
    except SystemExit as ended:
        status = int(str(ended.code))
    printed = capfd.readouterr().err
    assert (status, says in printed, printed.count("\n")) == (2, True, 1), printed


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "prometheus_client"])
def test_missing_package_error_names_the_install_command(package: str) -> None:
    program = (
        "import sys; sys.modules[sys.argv[1]] = None; from aioflow.cli import main; sys.exit(main(['serve', 'm=x']))"
    )
    command = [sys.executable, "-c", program, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "pip install 'aioflow-engine[serve]'" in done.stderr
    assert done.stderr.count("\n") == 1

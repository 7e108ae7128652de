"""A model service of several processes: no request is lost when a process ends, hangs or is replaced under load."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError, UnavailableError
from aioflow.serve import ModelOptions, Processes, ServerOptions
from aioflow.serve.processes import supervisor
from tests.net.certificates import Authority
from tests.serve.folders import rows, save_model, scaled, slow
from tests.serve.service import asked, families, httpx, values
from tests.serve.several import LONG, each_process, loaded, several
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes hand sockets to one another"),
    pytest.mark.blocks_loop("a process is started by fork, which takes its time in a large one"),
]


_ANY = ServerOptions(port=0)


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    await save_model(tmp_path / "m" / "1", scaled(1))
    return tmp_path / "m"


async def killed(service: Processes, pid: int | None = None) -> None:
    """Kill a process of a service, and wait until the service has noticed and the process has ended.

    The process counts as a zombie once its first thread has ended, but its connections close only with its last thread.
    Until then, a client could still send a request over one of them.
    """
    victim = service.pids[0] if pid is None else pid
    process = psutil.Process(victim)
    os.kill(victim, signal.SIGKILL)
    await eventually(lambda: victim not in service.pids and not process.is_running())


def connections(pid: int) -> int:
    return sum(each.status == "ESTABLISHED" for each in psutil.Process(pid).net_connections("tcp"))


async def test_load_request_to_one_process_loads_in_all(folder: Path) -> None:
    async with several({"m": folder}) as (service, client), loaded(service.url, 16) as clients:
        await save_model(folder / "2", scaled(2))
        assert (await client.post("/v2/repository/models/m/load")).status_code == 200
        async for other in each_process(service):
            answer = await other.post("/v2/models/m/infer", json=asked(rows()))
            assert answer.json()["model_version"] == "2"
    assert sum(each.broken for each in clients) == 0


async def test_metrics_are_sums_and_survive_a_killed_process(folder: Path) -> None:
    async with several({"m": folder}) as (service, client):

        async def count() -> float:
            return (await families(client))["aioflow_requests_total"]["m", "ok", "1"]

        for number in range(1, 31):
            async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=LONG) as other:
                values(await other.post("/v2/models/m/infer", json=asked(rows())))
            if number % 10 == 0:  # for a process that is slow to answer, the sum uses its last reported count
                await eventually(partial(_is, count, number))
        stats = (await client.get("/v2/models/m/stats")).json()["model_stats"]
        assert [each["inference_stats"]["success"]["count"] for each in stats] == [30]
        await killed(service)
        assert await count() == 30
        service.reload()
        await eventually(lambda: len(service.pids) == 2)
        assert await count() == 30


async def _is(found: Callable[[], Awaitable[object]], expected: object) -> bool:
    return await found() == expected


async def is_ready(client: Any) -> bool:
    return bool((await client.get("/v2/health/ready")).status_code == 200)


async def test_routes_that_need_a_token(folder: Path) -> None:
    where = ServerOptions(port=0, token="secret")
    async with (
        asyncio.timeout(LONG),
        Processes({"m": folder}, None, where, processes=2) as service,
        httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=LONG) as client,
    ):
        await service.ready()
        for path in ("/", "/page/style.css"):
            assert (await client.get(path)).status_code == 200, path
        await eventually(partial(is_ready, client))
        for path in ("/status", "/openapi.json"):
            assert (await client.get(path)).status_code == 401, path
        client.headers["Authorization"] = "Bearer secret"
        found = (await client.get("/status")).json()
        assert found["server"]["process"] in service.pids
        assert [each["state"] for each in found["models"]] == ["READY"]
        assert "token" in (await client.get("/openapi.json")).json()["components"]["securitySchemes"]


async def test_every_process_lets_the_administrator_alone_change_models(folder: Path) -> None:
    where = {"token": "secret", "admin_token": "other"}
    async with several({"m": folder}, where=where) as (service, _):
        async for client in each_process(service, Authorization="Bearer secret"):
            values(await client.post("/v2/models/m/infer", json=asked(rows())))
            assert (await client.post("/v2/repository/models/m/unload")).status_code == 403
            changed = await client.post("/v2/repository/models/m/load", headers={"Authorization": "Bearer other"})
            assert changed.status_code == 200


async def test_no_process_answers_from_the_cache_of_a_replaced_version(folder: Path) -> None:
    request = asked(rows())
    async with several({"m": folder}, ModelOptions(response_cache=1 << 20)) as (service, client):
        for _ in range(2):
            async for other in each_process(service):
                np.testing.assert_array_equal(values(await other.post("/v2/models/m/infer", json=request)), rows())

        async def lookups() -> tuple[float, ...]:
            found = (await families(client))["aioflow_cache_lookups_total"]
            return found["m", "miss", "1"], found["m", "hit", "1"]

        await eventually(partial(_is, lookups, (2, 2)))  # each process has its own cache
        await save_model(folder / "2", scaled(2))
        assert (await client.post("/v2/repository/models/m/load")).status_code == 200
        async for other in each_process(service):
            np.testing.assert_array_equal(values(await other.post("/v2/models/m/infer", json=request)), 2 * rows())


async def test_unloaded_model_stays_unloaded_in_new_processes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with several({"m": folder}) as (service, client):
        assert (await client.post("/v2/repository/models/m/unload")).status_code == 200
        await killed(service)
        await eventually(lambda: "has ended by SIGKILL" in caplog.text)
        await eventually(lambda: len(service.pids) == 2)
        for _ in range(6):
            async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=LONG) as other:
                assert (await other.post("/v2/models/m/infer", json=asked(rows()))).status_code == 404
        assert (await client.post("/v2/repository/models/none/load")).status_code == 404
        assert (await client.post("/v2/repository/models/m/load")).status_code == 200
        values(await client.post("/v2/models/m/infer", json=asked(rows())))


async def test_a_killed_process_takes_only_its_own_requests(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with several({"m": folder}) as (service, client), loaded(service.url) as clients:
        before = service.pids
        (folder / "1").rename(folder / "hidden")  # prevents a replacement from starting for now
        victim = max(before, key=connections)
        held = connections(victim)
        await killed(service, victim)
        await eventually(partial(_is, partial(is_ready, client), False))
        assert (await client.get("/v2/health/live")).status_code == 200
        (folder / "hidden").rename(folder / "1")
        await eventually(lambda: len(service.pids) == 2)
        assert victim not in service.pids
        assert f"serving process {victim} has ended by SIGKILL" in caplog.text
        await eventually(partial(is_ready, client))
        assert all(each.broken <= 1 for each in clients)  # at most its one request in flight
        assert held - 1 <= sum(each.broken for each in clients) <= held  # one connection may be that of `client`


async def test_suspended_process_is_replaced(folder: Path) -> None:
    async with several({"m": folder}, quorum=1, stuck_seconds=5.0) as (service, _):
        stopped = service.pids[0]
        os.kill(stopped, signal.SIGSTOP)
        for seed in range(8):  # the other process takes every connection
            async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=LONG) as other:
                x = rows(1, seed)
                np.testing.assert_allclose(values(await other.post("/v2/models/m/infer", json=asked(x))), x)
                await eventually(partial(is_ready, other))
        await eventually(lambda: stopped not in service.pids)
        await eventually(lambda: len(service.pids) == 2)


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
async def test_a_reload_under_load_loses_no_request(folder: Path, tmp_path: Path, has_tls: bool) -> None:
    tls = dict(zip(("tls_cert", "tls_key"), Authority(tmp_path).tls("server").files, strict=False)) if has_tls else {}
    async with several({"m": folder}, where=tls) as (service, _), loaded(service.url) as clients:
        before = set(service.pids)
        await save_model(folder / "2", scaled(2))
        service.reload()
        await eventually(lambda: len(service.pids) == 2 and not before & set(service.pids))
        await eventually(lambda: not any(map(psutil.pid_exists, before)))
    assert sum(each.broken for each in clients) == 0


async def test_terminated_process_answers_its_request_in_flight(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", slow(100_000))
    async with several({"m": tmp_path / "m"}, ModelOptions(warmup=False), processes=1) as (service, client):
        x = np.ones([1, 1], np.float32)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.post("/v2/models/m/infer", json=asked(x)))

            async def has_begun() -> bool:
                async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=LONG) as other:
                    return (await families(other))["aioflow_pending_requests"].get(("m", "1")) == 1.0

            await eventually(has_begun)
            old = service.pids
            os.kill(old[0], signal.SIGTERM)  # as an operator would who overlooks the supervisor
            await eventually(lambda: service.pids and service.pids != old)
        np.testing.assert_array_equal(values(asking.result()), x)


async def test_load_request_during_a_reload_succeeds(folder: Path) -> None:
    """Check for a deadlock: the load waits for the reload, so the reload must not wait for the load's connection."""
    async with several({"m": folder}, processes=1, drain_seconds=3.0) as (service, client):
        await eventually(partial(is_ready, client))  # over a keep-alive connection
        before = set(service.pids)
        service.reload()
        response = await client.post("/v2/repository/models/m/load")
        assert response.status_code == 200, response.text
        assert not before & set(service.pids)


async def test_a_reload_that_fails_changes_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with several({"m": folder}) as (service, client):
        before = service.pids
        (folder / "1").rename(folder / "hidden")
        service.reload()
        await eventually(lambda: "are not replaced" in caplog.text)
        assert service.pids == before
        values(await client.post("/v2/models/m/infer", json=asked(rows())))


async def test_missing_model_ends_the_service(tmp_path: Path) -> None:
    async with asyncio.timeout(LONG), Processes({"m": tmp_path / "none"}, None, _ANY, processes=2) as service:
        with pytest.raises(UnavailableError, match="none"):
            await service.ready()
        with pytest.raises(UnavailableError, match="none"):
            await service.stopped()


async def test_service_fails_after_repeated_crashes_at_start(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying_at_import.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(supervisor, "_MAX_FAILURES", 2)
    async with asyncio.timeout(LONG):
        async with Processes({"m": folder}, None, _ANY, processes=1, imports=("dying_at_import",)) as service:
            with pytest.raises(UnavailableError, match="status 3"):
                await service.ready()


async def test_loads_and_requests_over_the_memory_budget_are_rejected(tmp_path: Path) -> None:
    def filled() -> Any:
        n = af.placeholder("int32", [], name="n")
        parts = [af.fill([n], float(i)) for i in range(8)]
        return {"n": n}, {"total": af.reduce_sum(af.stack(parts))}

    def large() -> Any:
        x = af.placeholder("float32", [None, 3], name="x")
        return {"x": x}, {"y": x * af.reduce_sum(af.Variable(np.ones([40 << 20], np.float32)))}

    await save_model(tmp_path / "m", filled)
    await save_model(tmp_path / "large" / "1", scaled(1))
    models = {"m": tmp_path / "m", "large": tmp_path / "large"}
    async with several(models, processes=1, memory_budget=128 << 20) as (service, client):
        (pid,) = service.pids
        await save_model(tmp_path / "large" / "2", large)
        refused = await client.post("/v2/repository/models/large/load")
        assert (refused.status_code, "no memory" in refused.text) == (507, True)

        def wanted(count: int) -> Any:
            return {"inputs": [{"name": "n", "shape": [], "datatype": "INT32", "data": [count]}]}

        assert (await client.post("/v2/models/m/infer", json=wanted(1000))).status_code == 200
        found = [(await client.post("/v2/models/m/infer", json=wanted(1 << power))).status_code for power in (24, 28)]
        # The first exceeds RLIMIT_DATA, which the budget sets; the second exceeds the engine's limit on a value.
        assert found == [507, 413]
        assert (await client.post("/v2/models/m/infer", json=wanted(1000))).status_code == 200
        assert service.pids == [pid]


async def test_processes_share_the_memory_of_weights(tmp_path: Path) -> None:
    size = 64 << 20

    def weights() -> Any:
        x = af.placeholder("float32", [None, 4096], name="x")
        return {"x": x}, {"y": af.matmul(x, af.Variable(np.ones([4096, size // 4 // 4096], np.float32)))}

    await save_model(tmp_path / "m", weights)
    async with several({"m": tmp_path / "m"}, processes=2) as (service, _):
        shared = private = 0
        for pid in service.pids:
            for each in psutil.Process(pid).memory_maps():
                if str(tmp_path) in each.path:
                    shared += each.pss
                    private += each.private_dirty
        assert private == 0
        assert size <= shared * 1.01 <= 1.1 * size


@pytest.mark.parametrize("named", [{"processes": 0}, {"processes": 2, "quorum": 3}, {"processes": 2, "quorum": 0}])
def test_invalid_process_counts_are_rejected(named: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Processes({"m": "m"}, **named)

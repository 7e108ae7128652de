"""Minutes of load on a separate process, with reloads and hostile clients: no growth, no wrong response."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest

from tests.serve.folders import rows, save_model, scaled
from tests.serve.service import asked, families, httpx, post, values
from tests.support import processes

GROWTH: Final = 16 << 20  # bytes


@pytest.mark.soak
@pytest.mark.timeout(0)  # `--soak-minutes` decides
async def test_memory_and_descriptors_do_not_grow_under_load(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    minutes = pytestconfig.getoption("--soak-minutes")
    await save_model(tmp_path / "m", scaled(2))
    async with processes.program_on_loop("-m", "aioflow", "serve", f"m={tmp_path / 'm'}", "--port", "0") as process:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[-1]
        assert b"ready" in await process.stdout.readline()
        server = psutil.Process(process.pid)
        sizes: list[tuple[int, int]] = []
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            async with asyncio.timeout(minutes * 60 + 300), asyncio.TaskGroup() as group:
                end = asyncio.get_running_loop().time() + minutes * 60
                for seed in range(8):
                    group.create_task(_right(client, seed, end))
                group.create_task(_hostile(int(url.rpartition(":")[2]), end))
                while asyncio.get_running_loop().time() < end:
                    assert (await client.post("/v2/repository/models/m/load")).status_code == 200
                    await asyncio.sleep(minutes)
                    sizes.append((server.memory_info().rss, server.num_fds()))
            warm = sizes[len(sizes) // 5 :]
            assert warm[-1][0] < warm[0][0] + GROWTH, sizes
            outcomes = (await families(client))["aioflow_requests_total"]
            assert outcomes["m", "failed", "1"] == 0
        process.terminate()
        assert await process.wait() == 0


async def _right(client: Any, seed: int, end: float) -> None:
    number = 0
    while asyncio.get_running_loop().time() < end:
        number += 1
        x = rows(1 + number % 5, 1000 * seed + number)
        response = await client.post("/v2/models/m/infer", json=asked(x, id=f"{seed}/{number}"))
        np.testing.assert_allclose(values(response), x * 2, rtol=1e-5)
        assert response.json()["id"] == f"{seed}/{number}"


async def _hostile(port: int, end: float) -> None:
    rng = np.random.default_rng(0)
    while asyncio.get_running_loop().time() < end:
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            garbage = rng.bytes(50)
            match rng.integers(3):
                case 0:
                    writer.write(garbage)
                case 1:
                    writer.write(post(garbage, 1000))
                case _:
                    writer.write(post(garbage))
                    await reader.read(100)
            await asyncio.sleep(0.005)
            writer.close()

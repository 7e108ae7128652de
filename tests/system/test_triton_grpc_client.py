"""NVIDIA's gRPC client against `aioflow serve` in another process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from tests.serve.folders import SECONDS, rows, save_model, scaled, slow
from tests.serve.triton_grpc import triton_grpc
from tests.support import processes

triton = triton_grpc()
asynchronous = triton_grpc(".aio")
utils = pytest.importorskip("tritonclient.utils")

DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
]


@contextlib.asynccontextmanager
async def served(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """Yield the process and its gRPC and HTTP addresses, once its models are ready."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="aioflow-engine[serve] is not installed")
    command = ("-m", "aioflow", "serve", *arguments, "--port", "0", "--grpc-port", "0")
    async with asyncio.timeout(processes.SECONDS), processes.program_on_loop(*command) as process:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip().rpartition(" ")[2]
        said = (await process.stdout.readline()).decode().strip()
        assert said.startswith("listening for gRPC at 127.0.0.1:"), said
        for _ in range(sum("=" in each for each in arguments)):
            assert (await process.stdout.readline()).decode().strip().endswith("is ready")
        yield process, said.rpartition(" ")[2], url


async def in_thread(work: Callable[[Any], Any], address: str) -> Any:
    """Return the result of `work` with a blocking client, in a thread."""

    def run() -> Any:
        with triton.InferenceServerClient(address, channel_args=[("grpc.enable_http_proxy", 0)]) as client:
            return work(client)

    return await asyncio.to_thread(run)


def metrics(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=SECONDS) as response:
        found: bytes = response.read()
    return found.decode()


def given(x: Any, name: str = "x") -> Any:
    tensor = triton.InferInput(name, list(x.shape), utils.np_to_triton_dtype(x.dtype))
    tensor.set_data_from_numpy(x)
    return tensor


async def test_blocking_client_methods(tmp_path: Path) -> None:
    await save_model(tmp_path / "m" / "1", scaled(2))

    def ask(client: Any) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("m")
        assert not client.is_model_ready("m", "9")
        assert client.get_server_metadata().name == "aioflow"
        metadata = client.get_model_metadata("m", as_json=True)
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "3"]}]
        assert [each.state for each in client.get_model_repository_index().models] == ["READY"]
        x = rows(5)
        result = client.infer("m", [given(x)], request_id="n7", priority=2, timeout=60_000_000, client_timeout=SECONDS)
        np.testing.assert_allclose(result.as_numpy("y"), x * 2, rtol=1e-6)
        assert result.get_response().id == "n7"
        assert client.get_inference_statistics("m").model_stats[0].inference_stats.success.count == 1
        for code, name, inputs in (
            ("NOT_FOUND", "other", [given(x)]),
            ("INVALID_ARGUMENT", "m", [given(x.astype(np.float64))]),
        ):
            with pytest.raises(utils.InferenceServerException) as raised:
                client.infer(name, inputs)
            assert raised.value.status() == f"StatusCode.{code}"
        client.unload_model("m")
        assert not client.is_model_ready("m")
        client.load_model("m")
        np.testing.assert_allclose(client.infer("m", [given(x)]).as_numpy("y"), x * 2, rtol=1e-6)

    async with served(f"m={tmp_path / 'm'}") as (process, address, _):
        await in_thread(ask, address)
        process.terminate()
        assert await process.wait() == 0


async def test_every_dtype_makes_a_round_trip(tmp_path: Path) -> None:
    def echo() -> Any:
        inputs = {name: af.placeholder(name, [None, 2], name=f"in_{name}") for name in [*DTYPES, "bfloat16", "string"]}
        return inputs, {f"{name}_out": af.identity(tensor) for name, tensor in inputs.items()}

    await save_model(tmp_path / "echo", echo)

    def ask(client: Any) -> None:
        arrays: dict[str, Any] = {name: np.array([[0, 1], [1, 1]]).astype(name) for name in DTYPES}
        arrays["string"] = np.array([[b"\xff", "grüße".encode()], [b"", b"x" * 300]], object)
        half = triton.InferInput("bfloat16", [2, 2], "BF16")
        half.set_data_from_numpy(np.array([[0.5, 1.5], [-2, 3]], ml_dtypes.bfloat16))
        result = client.infer("echo", [*(given(array, name) for name, array in arrays.items()), half])
        for name, array in arrays.items():
            found = result.as_numpy(f"{name}_out")
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)
        np.testing.assert_array_equal(result.as_numpy("bfloat16_out"), [[0.5, 1.5], [-2, 3]])

    async with served(f"echo={tmp_path / 'echo'}") as (_, address, _):
        await in_thread(ask, address)


async def test_concurrent_requests_with_expired_deadlines(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(3))
    await save_model(tmp_path / "slow", slow(1_000_000))
    async with (
        served(f"m={tmp_path / 'm'}", f"slow={tmp_path / 'slow'}", "--no-warmup") as (_, address, _),
        asynchronous.InferenceServerClient(address, channel_args=[("grpc.enable_http_proxy", 0)]) as client,
    ):

        async def ask(seed: int) -> None:
            for number in range(20):
                if number == seed:
                    with pytest.raises(utils.InferenceServerException, match=r"(?i)deadline"):
                        await client.infer("slow", [given(np.ones([1, 1], np.float32))], client_timeout=0.05)
                x = rows(1 + seed % 3, 100 * seed + number)
                result = await client.infer("m", [given(x)], request_id=f"{seed}.{number}")
                assert result.get_response().id == f"{seed}.{number}"
                np.testing.assert_allclose(result.as_numpy("y"), x * 3, rtol=1e-6)

        async with asyncio.TaskGroup() as group:
            for seed in range(16):
                group.create_task(ask(seed))
        found = (await client.get_inference_statistics("m")).model_stats[0]
        assert found.inference_stats.success.count == 320
        assert found.execution_count < 320


async def test_request_in_flight_is_answered_after_sigterm(tmp_path: Path) -> None:
    await save_model(tmp_path / "slow", slow(100_000))
    async with (
        served(f"slow={tmp_path / 'slow'}", "--no-warmup") as (process, address, url),
        asynchronous.InferenceServerClient(address, channel_args=[("grpc.enable_http_proxy", 0)]) as client,
        asyncio.TaskGroup() as group,
    ):
        asked = group.create_task(client.infer("slow", [given(np.ones([1, 1], np.float32))]))
        while 'aioflow_pending_requests{model="slow",version="1"} 1.0' not in await asyncio.to_thread(metrics, url):
            pass
        process.send_signal(signal.SIGTERM)
        assert (await asked).as_numpy("y").tolist() == [[1.0]]
        assert await process.wait() == 0

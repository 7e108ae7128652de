"""The service with NVIDIA's independent client: all of its calls, blocking and asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from aioflow.serve import ModelSource

blocking = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed: tox -e serving")
asynchronous = pytest.importorskip(
    "tritonclient.http.aio", reason="tritonclient[http] is not installed: tox -e serving"
)
utils = pytest.importorskip("tritonclient.utils")

from tests.serve.folders import SECONDS, rows, save_model, scaled  # noqa: E402  # after importorskip
from tests.serve.service import serving  # noqa: E402

DTYPES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the address of a service with several models."""

    def echo() -> Any:
        inputs = {name: af.placeholder(name, [None, 2], name=f"in_{name}") for name in [*DTYPES, "bfloat16", "string"]}
        return inputs, {f"{name}_out": af.identity(tensor) for name, tensor in inputs.items()}

    await save_model(tmp_path / "scaled" / "1", scaled(2))
    await save_model(tmp_path / "scaled" / "2", scaled(3))
    await save_model(tmp_path / "echo", echo)
    models = {"scaled": ModelSource(str(tmp_path / "scaled"), None), "echo": tmp_path / "echo"}
    async with serving(models) as (server, _):
        yield server.url.removeprefix("http://")


async def in_thread(work: Callable[[Any], Any], url: str) -> Any:
    """Return the result of a blocking client in a thread.

    The client uses greenlets, so it must be created, used and closed in one thread.
    """

    def run() -> Any:
        with blocking.InferenceServerClient(url, connection_timeout=SECONDS, network_timeout=SECONDS) as client:
            return work(client)

    return await asyncio.to_thread(run)


def given(x: Any, binary: bool = True, name: str = "x") -> Any:
    tensor = blocking.InferInput(name, list(x.shape), utils.np_to_triton_dtype(x.dtype))
    tensor.set_data_from_numpy(x, binary_data=binary)
    return tensor


async def test_health_and_metadata(server: str) -> None:
    def look(client: Any) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("scaled")
        assert client.is_model_ready("scaled", "1")
        assert not client.is_model_ready("scaled", "9")
        assert client.get_server_metadata()["name"] == "aioflow"
        metadata = client.get_model_metadata("scaled")
        assert metadata["versions"] == ["1", "2"]
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
        names = {(each["name"], each["version"], each["state"]) for each in client.get_model_repository_index()}
        assert names == {("echo", "1", "READY"), ("scaled", "1", "READY"), ("scaled", "2", "READY")}

    await in_thread(look, server)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
async def test_inference(server: str, binary_in: bool, binary_out: bool | None) -> None:
    def ask(client: Any) -> None:
        for version, by in (("1", 2), ("2", 3), ("", 3)):
            x = rows(5, by)
            outputs = None if binary_out is None else [blocking.InferRequestedOutput("y", binary_data=binary_out)]
            result = client.infer(
                "scaled", [given(x, binary_in)], version, outputs, request_id="n7", priority=2, timeout=60_000_000
            )
            np.testing.assert_allclose(result.as_numpy("y"), x * by, rtol=1e-6)
            assert result.get_response()["id"] == "n7"

    await in_thread(ask, server)


@pytest.mark.parametrize("binary", [True, False])
async def test_outputs_as_classes(server: str, binary: bool) -> None:
    x = np.array([[1, 3, 2], [0, -1, 5]], np.float32)

    def work(client: Any) -> Any:
        output = blocking.InferRequestedOutput("y", binary_data=binary, class_count=2)
        return client.infer("scaled", [given(x, True)], "1", [output]).as_numpy("y")

    found = (await in_thread(work, server)).astype(str).tolist()
    assert [[text.split(":")[1] for text in row] for row in found] == [["1", "2"], ["2", "0"]]
    assert float(found[0][0].split(":")[0]) == 6.0


async def test_every_datatype_round_trips(server: str) -> None:
    def ask(client: Any) -> None:
        arrays = {name: np.array([[0, 1], [1, 1]]).astype(name) for name in DTYPES}
        arrays["string"] = np.array([[b"\xff", "grüße".encode()], [b"", b"x" * 300]], object)
        tensors = [given(array, name=name) for name, array in arrays.items()]
        half = blocking.InferInput("bfloat16", [2, 2], "BF16")
        half.set_data_from_numpy(np.array([[0.5, 1.5], [-2, 3]], ml_dtypes.bfloat16))
        result = client.infer("echo", [*tensors, half])
        for name, array in arrays.items():
            found = result.as_numpy(f"{name}_out")
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)
        np.testing.assert_array_equal(result.as_numpy("bfloat16_out"), [[0.5, 1.5], [-2, 3]])

    await in_thread(ask, server)


async def test_strings_and_bfloat16_may_be_mixed_in_json(server: str) -> None:
    """Inputs that the client sends as JSON are returned as JSON."""

    def ask(client: Any) -> None:
        arrays = {name: np.array([[0, 1], [1, 1]]).astype(name) for name in DTYPES if name != "float16"}
        tensors = [given(array, False, name) for name, array in arrays.items()]
        texts = blocking.InferInput("string", [2, 2], "BYTES")
        texts.set_data_from_numpy(np.array([["a", "ü"], ["", "\n"]], object), binary_data=False)
        halves = [blocking.InferInput("bfloat16", [2, 2], "BF16"), given(np.ones([2, 2], np.float16), name="float16")]
        halves[0].set_data_from_numpy(np.ones([2, 2], ml_dtypes.bfloat16))
        outputs = [blocking.InferRequestedOutput(f"{name}_out", binary_data=False) for name in [*arrays, "string"]]
        result = client.infer("echo", [*tensors, *halves, texts], outputs=outputs)
        for name, array in arrays.items():
            np.testing.assert_array_equal(result.as_numpy(f"{name}_out"), array)
        assert result.as_numpy("string_out").tolist() == [["a", "ü"], ["", "\n"]]

    await in_thread(ask, server)


async def test_errors_have_a_status_and_a_reason(server: str) -> None:
    def ask(client: Any) -> None:
        x = rows()
        wrong = {
            "404": ("nothing", [given(x)]),
            "400": ("scaled", [given(x.astype(np.float64))]),
        }
        for status, (name, inputs) in wrong.items():
            with pytest.raises(utils.InferenceServerException) as raised:
                client.infer(name, inputs)
            assert raised.value.status() == status
            assert raised.value.message()
        with pytest.raises(utils.InferenceServerException, match="output"):
            client.infer("scaled", [given(x)], outputs=[blocking.InferRequestedOutput("z")])

    await in_thread(ask, server)


async def test_models_are_unloaded_and_loaded(server: str) -> None:
    def ask(client: Any) -> None:
        client.unload_model("scaled")
        assert not client.is_model_ready("scaled")
        assert client.is_server_ready()  # an unloaded model does not count
        with pytest.raises(utils.InferenceServerException):
            client.infer("scaled", [given(rows())])
        client.load_model("scaled")
        np.testing.assert_allclose(client.infer("scaled", [given(rows())]).as_numpy("y"), rows() * 3, rtol=1e-6)
        found = client.get_inference_statistics("scaled", "2")["model_stats"]
        assert [each["inference_stats"]["success"]["count"] for each in found] == [1]
        with pytest.raises(utils.InferenceServerException):
            client.load_model("nothing")

    await in_thread(ask, server)


async def test_concurrent_clients_share_steps(server: str) -> None:
    async with asynchronous.InferenceServerClient(server) as client:

        async def ask(seed: int) -> None:
            for number in range(20):
                x = rows(1 + seed % 3, 100 * seed + number)
                result = await client.infer("scaled", [given(x)], request_id=f"{seed}.{number}")
                np.testing.assert_allclose(result.as_numpy("y"), x * 3, rtol=1e-6)

        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for seed in range(16):
                group.create_task(ask(seed))
        (stats,) = (await client.get_inference_statistics("scaled", "2"))["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == 320
        assert stats["execution_count"] < 320
        assert sum(each["compute_infer"]["count"] for each in stats["batch_stats"]) == stats["execution_count"]


def test_wire_layout_matches_the_client() -> None:
    """Decode a request that the client builds without a server, and let the client parse a response."""
    from aioflow.serve.protocol import InferResponse, decode_request, encode_response

    x, flags = rows(2), np.array([True, False])
    body, length = blocking.InferenceServerClient.generate_request_body(
        [given(x), given(flags, name="flags"), given(np.array([b"ab", b""], object), name="s")], request_id="1"
    )
    request = decode_request(body, length)
    np.testing.assert_array_equal(request.inputs["x"], x)
    np.testing.assert_array_equal(request.inputs["flags"], flags)
    assert request.inputs["s"].tolist() == [b"ab", b""]
    assert request.binary
    outputs = {"y": x, "b": x.astype(ml_dtypes.bfloat16), "s": np.array([b"\0", b"x"], object)}
    encoded = encode_response(InferResponse("m", "1", outputs), ["y", "b", "s"])
    result = blocking.InferenceServerClient.parse_response_body(encoded.body, header_length=encoded.json_length)
    np.testing.assert_array_equal(result.as_numpy("y"), x)
    np.testing.assert_array_equal(result.as_numpy("b"), x.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert result.as_numpy("s").tolist() == [b"\0", b"x"]

"""`ModelStreamInfer`: streams of tokens and plain answers over one call, also with Triton's own client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow.serve.grpc.infer_streams
from aioflow.serve import Limits, ServerOptions
from aioflow.serve.grpc.messages import message
from aioflow.serve.tokens.streams import read_generate
from tests.serve.folders import SECONDS, rows, save_model, scaled
from tests.serve.grpc_client import Client, client_of, grpc, infer_request, over_grpc, raw_values
from tests.serve.service import serving
from tests.serve.token_models import alone, counted_alone, saved, saved_counting
from tests.serve.triton_grpc import triton_grpc
from tests.support.waiting import eventually


def prompt(tokens: list[int], **parameters: int) -> Any:
    """Return a request for a stream, whose id is its number of tokens."""
    request = infer_request({}, model="gpt2", id=str(len(tokens)))
    request.inputs.add(name="tokens", datatype="INT64", shape=[len(tokens)])
    request.raw_input_contents.append(np.array(tokens, np.int64).tobytes())
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    return request


def open_call(client: Client) -> Any:
    """Return a new call of the method."""
    return client.channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=message("ModelStreamInferResponse").FromString,
    )()


async def finished(call: Any) -> list[Any]:
    """Close the requests of a call, and return its responses."""
    await call.done_writing()
    return [response async for response in call]


def tokens_of(responses: list[Any], number: str) -> list[int]:
    """Return the tokens of a stream, after checking that only its last response is final."""
    own = [each.infer_response for each in responses if each.infer_response.id == number]
    finals = [each.parameters["triton_final_response"].bool_param for each in own]
    assert finals == [*[False] * (len(own) - 1), True]
    assert own[-1].parameters["finish_reason"].string_param == "length"
    return [int(token) for each in own for token in np.frombuffer(each.raw_output_contents[0], np.int32)]


async def test_streams_and_plain_answers_share_a_call(tmp_path: Path) -> None:
    weights = await saved(tmp_path / "gpt2")
    await save_model(tmp_path / "m", scaled(2))
    x = rows(2)
    async with over_grpc({"gpt2": tmp_path / "gpt2", "m": tmp_path / "m"}) as (_, client):
        call = open_call(client)
        for request in (
            prompt([1, 2], max_tokens=20),
            infer_request({"x": x}, id="x"),
            prompt([3, 4, 5], max_tokens=12),
            prompt([999], max_tokens=12),
            infer_request({}, model="unknown", id="u"),
        ):
            await call.write(request)
        responses = await finished(call)
    assert tokens_of(responses, "2") == alone(weights, [1, 2], 20)
    assert tokens_of(responses, "3") == alone(weights, [3, 4, 5], 12)
    errors = {each.infer_response.id: each.error_message for each in responses if each.error_message}
    assert errors.keys() == {"1", "u"}
    assert "does not fit the model" in errors["1"]
    (plain,) = (each.infer_response for each in responses if each.infer_response.id == "x")
    np.testing.assert_allclose(raw_values(plain), x * 2)


async def test_a_cancelled_call_frees_its_slots(tmp_path: Path) -> None:
    weights = await saved(tmp_path / "gpt2")
    async with over_grpc({"gpt2": tmp_path / "gpt2"}) as (repository, client):
        call = open_call(client)
        await call.write(prompt([1], max_tokens=40))
        await call.read()
        call.cancel()
        await eventually(lambda: not repository.get("gpt2").users)
        streams = repository.get("gpt2").streams
        assert streams is not None
        assert streams.statistics().writing == 0
        call = open_call(client)
        await call.write(prompt([1, 2], max_tokens=9))
        assert tokens_of(await finished(call), "2") == alone(weights, [1, 2], 9)


async def test_a_large_prompt_is_decoded_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def read(document: Any) -> Any:
        begun.set()
        assert ended.wait(SECONDS), "the event loop waits for the decoding"
        return read_generate(document)

    monkeypatch.setattr(aioflow.serve.grpc.infer_streams, "read_generate", read)
    await saved_counting(tmp_path / "gpt2")
    async with over_grpc({"gpt2": tmp_path / "gpt2"}) as (_, client):
        call = open_call(client)
        await call.write(prompt([1] * 40_000, max_tokens=1))
        await eventually(begun.is_set)
        ended.set()
        assert tokens_of(await finished(call), "40000") == counted_alone([1] * 40_000, 1)


async def test_a_reader_that_reads_nothing_is_cut_off(tmp_path: Path) -> None:
    await saved_counting(tmp_path / "gpt2")
    limits = Limits(body_seconds=0.2)
    # Without the probe, the client's window stays at 64 KiB.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.enable_http_proxy", 0)]
    async with (
        over_grpc({"gpt2": tmp_path / "gpt2"}, limits=limits) as (repository, client),
        grpc.aio.insecure_channel(client.address, options) as channel,
    ):
        call = open_call(Client(channel))
        await call.write(prompt([1], max_tokens=20_000))
        await call.read()
        await eventually(lambda: not repository.get("gpt2").users)
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        call = open_call(client)
        await call.write(prompt([1, 2], max_tokens=3))
        assert tokens_of(await finished(call), "2") == counted_alone([1, 2], 3)


async def test_tritons_client_streams_text(tmp_path: Path) -> None:
    triton = triton_grpc(".aio")
    base = triton_grpc()
    weights = await saved(tmp_path / "gpt2")
    async with over_grpc({"gpt2": tmp_path / "gpt2"}, None) as (_, client):
        address = client.address
        asked = base.InferInput("text_input", [1], "BYTES")
        asked.set_data_from_numpy(np.array([b"Hello"], np.object_))

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "gpt2", "inputs": [asked], "request_id": "5", "parameters": {"max_tokens": 20}}

        responses, last = [], False
        async with triton.InferenceServerClient(address) as other:
            async for result, error in other.stream_infer(requests()):
                assert error is None
                responses.append(result)
                last = result.get_response().parameters["triton_final_response"].bool_param
        assert last
    expected = alone(weights, b"Hello", 20)
    assert np.concatenate([each.as_numpy("tokens") for each in responses]).tolist() == expected
    text = b"".join(each.as_numpy("text_output")[0] for each in responses)
    assert text.decode() == bytes(expected).decode(errors="replace")


def wrong(change: Any) -> Any:
    request = prompt([1])
    change(request)
    return request


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda request: request.parameters["max_tokens"].MergeFrom(parameter(int64_param=0)), "'max_tokens'"),
        (lambda request: request.parameters["temperature"].MergeFrom(parameter(string_param="1")), "'temperature'"),
        (lambda request: request.parameters["seed"].MergeFrom(parameter(double_param=float("nan"))), "'seed'"),
        (lambda request: request.parameters["temperature"].MergeFrom(parameter(double_param=1e300)), "'temperature'"),
        (lambda request: setattr(request.inputs[0], "name", "other"), "input 'other' is wrong"),
        (lambda request: setattr(request.inputs[0], "name", "text_input"), "input 'text_input' is wrong"),
        (lambda request: setattr(request.inputs[0], "datatype", "FP64"), "input 'tokens' is wrong"),
        (lambda request: request.ClearField("raw_input_contents"), "number of elements"),
        (lambda request: (request.ClearField("inputs"), request.ClearField("raw_input_contents")), "no prompt"),
        (lambda request: text(request, b"\xff"), "not UTF-8"),
        (lambda request: text(request, b""), "at least one token"),
    ],
)
async def test_an_invalid_request_does_not_end_the_call(quick_model: Path, change: Any, said: str) -> None:
    async with over_grpc({"gpt2": quick_model}) as (_, client):
        call = open_call(client)
        await call.write(wrong(change))
        await call.write(prompt([1, 2], max_tokens=3))
        responses = await finished(call)
    assert [said in each.error_message for each in responses if each.error_message] == [True]
    assert len(tokens_of(responses, "2")) == 3


def parameter(**value: Any) -> Any:
    return message("InferParameter")(**value)


def text(request: Any, value: bytes) -> None:
    request.inputs[0].MergeFrom(message("ModelInferRequest.InferInputTensor")(name="text_input", datatype="BYTES"))
    request.inputs[0].shape[:] = [1]
    request.raw_input_contents[0] = len(value).to_bytes(4, "little") + value


@pytest.fixture(scope="module")
def quick_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams") / "m"
    asyncio.run(saved(folder))
    return folder


async def test_a_service_that_ends_answers_the_streams_that_have_begun(tmp_path: Path) -> None:
    folder = await saved_counting(tmp_path / "m")
    where = ServerOptions(port=0, grpc_port=0, drain_seconds=2.0)
    async with serving({"gpt2": folder}, where=where) as (server, _), client_of(server.grpc_address) as client:
        call = open_call(client)
        await call.write(prompt([3], max_tokens=1_000_000))
        await call.read()
        async with asyncio.TaskGroup() as group:
            group.create_task(server.__aexit__(None, None, None))
            responses = [await call.read()]
            while (response := await call.read()) is not grpc.aio.EOF:
                responses.append(response)
    assert responses[-1].error_message == "the service is shutting down"

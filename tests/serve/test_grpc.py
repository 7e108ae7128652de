"""The service over gRPC, on loopback, with grpcio's own client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pool

pytest.importorskip("grpc", reason="aioflow-engine[grpc] is not installed")

from aioflow import errors  # after importorskip
from aioflow.serve import GrpcServer, Limits, ModelOptions, ModelSource, Repository, ServerOptions
from aioflow.serve.grpc.messages import message, pool
from aioflow.serve.grpc.methods import Methods
from aioflow.serve.memory_limits import RequestAdmission
from tests.serve.folders import SECONDS, rows, save_model, scaled, slow
from tests.serve.grpc_client import Client, asking, client_of, grpc, infer_request, over_grpc, raw_values
from tests.support.waiting import eventually

Code = grpc.StatusCode
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"  # statuses of health.proto
NAMED = b"\x0a\x1einference.GRPCInferenceService"


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return await save_model(tmp_path / "m", scaled(2))


# ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_health_and_metadata(folder: Path) -> None:
    async with over_grpc({"m": folder}) as (_, ask):
        assert (await ask("ServerLive")).live
        assert (await ask("ServerReady")).ready
        assert (await ask("ModelReady", name="m")).ready
        assert (await ask("ModelReady", name="m", version="1")).ready
        assert not (await ask("ModelReady", name="m", version="2")).ready
        assert not (await ask("ModelReady", name="other")).ready
        assert (await ask("ServerMetadata")).name == "aioflow"
        tensor = {"datatype": "FP32", "shape": [-1, 3]}
        assert await ask("ModelMetadata", name="m") == message("ModelMetadataResponse")(
            name="m",
            versions=["1"],
            platform="aioflow",
            inputs=[{"name": "x", **tensor}],
            outputs=[{"name": "y", **tensor}],
        )
        async with asking(Code.NOT_FOUND):
            await ask("ModelMetadata", name="other")
        config = (await ask("ModelConfig", name="m")).config
        assert (config.name, config.max_batch_size) == ("m", 64)
        assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == [("x", 11, [3])]
        assert [(each.name, each.data_type, list(each.dims)) for each in config.output] == [("y", 11, [3])]
        async with asking(Code.UNIMPLEMENTED):
            await ask.channel.unary_unary("/inference.GRPCInferenceService/TraceSetting")(b"", timeout=SECONDS)


async def test_health_check_needs_no_token(tmp_path: Path, folder: Path) -> None:
    async with over_grpc({"m": folder}, where=ServerOptions(grpc_port=0, token="secret")) as (repository, ask):
        check = ask.channel.unary_unary("/grpc.health.v1.Health/Check")

        async def status(service: bytes = b"") -> bytes:
            request = bytes([0x0A, len(service)]) + service if service else b""
            answer: bytes = await check(request, timeout=SECONDS)
            return answer

        assert await status() == SERVING
        assert await status(b"inference.GRPCInferenceService") == SERVING
        for unknown in (b"m", b"x" * 100):
            async with asking(Code.NOT_FOUND):
                await status(unknown)
        repository.drain()
        assert await status() == NOT_SERVING


@pytest.mark.parametrize("raw", [True, False])
async def test_response_has_the_form_of_its_inputs(folder: Path, raw: bool) -> None:
    """The response has the form of the inputs, raw or typed."""
    async with over_grpc({"m": folder}) as (_, ask):
        x = rows(3)
        response = await ask("ModelInfer", infer_request({"x": x}, raw, id="n7"))
        assert (response.model_name, response.model_version, response.id) == ("m", "1", "n7")
        assert [(each.name, each.datatype, list(each.shape)) for each in response.outputs] == [("y", "FP32", [3, 3])]
        if raw:
            np.testing.assert_allclose(raw_values(response), x * 2, rtol=1e-6)
        else:
            assert not response.raw_output_contents
            np.testing.assert_allclose(response.outputs[0].contents.fp32_contents, (x * 2).ravel(), rtol=1e-6)


async def test_outputs_as_classes(folder: Path) -> None:
    x = np.array([[1, 3, 2], [0, -1, 5]], np.float32)
    outputs = [{"name": "y", "parameters": {"classification": {"int64_param": 1}}}]
    async with over_grpc({"m": folder}) as (_, ask):
        response = await ask("ModelInfer", infer_request({"x": x}, raw=False, outputs=outputs))
        (output,) = response.outputs
        assert (output.datatype, list(output.shape)) == ("BYTES", [2, 1])
        assert list(output.contents.bytes_contents) == [b"6.000000:1", b"10.000000:2"]


async def test_models_are_loaded_and_unloaded(tmp_path: Path) -> None:
    await save_model(tmp_path / "m" / "1", scaled(2))
    await save_model(tmp_path / "m" / "2", scaled(3))
    async with over_grpc({"m": ModelSource(str(tmp_path / "m"), None)}) as (_, ask):
        index = await ask("RepositoryIndex")
        assert [(each.name, each.version, each.state) for each in index.models] == [
            ("m", "1", "READY"),
            ("m", "2", "READY"),
        ]
        x = rows()
        for version, by in (("1", 2), ("2", 3), ("", 3)):
            response = await ask("ModelInfer", infer_request({"x": x}, model_version=version))
            np.testing.assert_allclose(raw_values(response), x * by, rtol=1e-6)
        stats = (await ask("ModelStatistics", name="m")).model_stats
        assert [(each.version, each.inference_stats.success.count) for each in stats] == [("1", 1), ("2", 2)]
        await ask("RepositoryModelUnload", model_name="m")
        assert not (await ask("ModelReady", name="m")).ready
        assert not (await ask("RepositoryIndex", ready=True)).models
        async with asking(Code.NOT_FOUND):
            await ask("ModelInfer", infer_request({"x": x}))
        await ask("RepositoryModelLoad", model_name="m")
        np.testing.assert_allclose(raw_values(await ask("ModelInfer", infer_request({"x": x}))), x * 3, rtol=1e-6)
        async with asking(Code.NOT_FOUND):
            await ask("RepositoryModelLoad", model_name="other")


# ── health streams ───────────────────────────────────────────────────────────────────────────────────────────────────


def watch(ask: Client, request: bytes = b"") -> Any:
    return ask.channel.unary_stream("/grpc.health.v1.Health/Watch")(request, timeout=SECONDS)


async def test_health_watch_reports_each_change(folder: Path, tmp_path: Path) -> None:
    where, admission = ServerOptions(token="secret"), RequestAdmission(1 << 20)
    async with (
        asyncio.timeout(SECONDS),
        Repository({"m": folder, "late": tmp_path / "late"}) as repository,
        GrpcServer(repository, where, admission=admission) as server,
        client_of(server.address) as ask,
    ):
        calls, unknown = [watch(ask), watch(ask, NAMED)], watch(ask, b"\x0a\x01m")
        assert [await each.read() for each in calls] == [NOT_SERVING] * 2
        assert await unknown.read() == SERVICE_UNKNOWN
        assert admission.bytes == 0
        await repository.load("m")
        await repository.unload("late")
        assert [await each.read() for each in calls] == [SERVING] * 2
        with pytest.raises(errors.NotFoundError):
            await repository.load("late")
        assert [await each.read() for each in calls] == [NOT_SERVING] * 2
        await save_model(tmp_path / "late", scaled(3))
        await repository.load("late")
        assert [await each.read() for each in calls] == [SERVING] * 2
        await repository.unload("m")  # was requested, so no status is sent
        repository.drain()
        assert [await each.read() for each in calls] == [NOT_SERVING] * 2
        assert not any(each.done() for each in (*calls, unknown))


async def test_streams_end_with_the_service(folder: Path) -> None:
    where = ServerOptions(drain_seconds=10 * SECONDS)
    async with asyncio.timeout(SECONDS), Repository({"m": folder}) as repository:
        await repository.load_all()
        async with GrpcServer(repository, where) as server, client_of(server.address) as ask:
            known, unknown, asked = watch(ask), watch(ask, b"\x0a\x01m"), reflection(ask)
            assert (await known.read(), await unknown.read()) == (SERVING, SERVICE_UNKNOWN)
            assert (await ask_about(asked, list_services="")).list_services_response.service
            await server.__aexit__(None, None, None)
            assert await known.read() == NOT_SERVING
            for each in (known, unknown, asked):
                assert await each.read() is grpc.aio.EOF
                assert await each.code() is Code.OK


async def test_end_of_the_service_interrupts_no_health_status(folder: Path) -> None:
    """The status that is being written is sent first, then the final one."""
    begun, taken, written = asyncio.Event(), asyncio.Event(), []

    class Watching:
        async def read(self, *, is_idle: bool = False) -> bytes:
            return b""

        async def write(self, data: bytes) -> None:
            begun.set()
            await taken.wait()
            written.append(data)

        def remaining(self) -> float | None:
            return None

    async with asyncio.timeout(SECONDS), Repository({"m": folder}) as repository, asyncio.TaskGroup() as group:
        await repository.load_all()
        methods = Methods(repository, Limits(), RequestAdmission(1))
        watching = group.create_task(methods.services["grpc.health.v1.Health"]["Watch"](Watching()))
        await begun.wait()
        methods.end()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not watching.done()
        taken.set()
    assert written == [SERVING, NOT_SERVING]


async def test_cancelled_watch_frees_its_place(folder: Path) -> None:
    async with over_grpc({"m": folder}) as (_, ask):
        assert (await ask("ServerReady")).ready
        tasks = len(asyncio.all_tasks())
        calls = [watch(ask) for _ in range(100)]
        assert {await each.read() for each in calls} == {SERVING}
        async with asking(Code.RESOURCE_EXHAUSTED) as raised:
            await watch(ask).read()
        assert "retry-after" in dict(raised.value.trailing_metadata())
        calls.pop().cancel()

        async def there_is_room() -> bool:
            calls.append(watch(ask))
            try:
                return bool(await calls[-1].read() == SERVING)
            except grpc.aio.AioRpcError:
                return False

        await eventually(there_is_room)
        for each in calls:
            each.cancel()
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)


# ── reflection ───────────────────────────────────────────────────────────────────────────────────────────────────────


V1, V1ALPHA = "grpc.reflection.v1", "grpc.reflection.v1alpha"


def reflection(ask: Client, package: str = V1, **more: Any) -> Any:
    method = ask.channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=lambda request: request if isinstance(request, bytes) else request.SerializeToString(),
        response_deserializer=message("ServerReflectionResponse", package).FromString,
    )
    return method(timeout=SECONDS, **more)


async def ask_about(call: Any, package: str = V1, **fields: Any) -> Any:
    await call.write(message("ServerReflectionRequest", package)(**fields))
    return await call.read()


@pytest.mark.parametrize("package", [V1, V1ALPHA])
async def test_reflection_describes_every_service(folder: Path, package: str) -> None:
    """Each listed service is declared by a file, with the methods that are served."""
    async with over_grpc({"m": folder}) as (repository, ask):
        call = reflection(ask, package)
        await call.write(b"\x3a\x00")  # list_services, see reflection.proto
        names = [each.name for each in (await call.read()).list_services_response.service]
        served = Methods(repository, Limits(), RequestAdmission(1)).services
        assert names == sorted(served)
        assert "inference.GRPCInferenceService" in names
        for name in names:
            response = await ask_about(call, package, file_containing_symbol=name, host="h")
            assert (response.valid_host, response.original_request.file_containing_symbol) == ("h", name)
            (data,) = response.file_descriptor_response.file_descriptor_proto
            theirs = descriptor_pool.DescriptorPool()
            theirs.AddSerializedFile(data)
            service = theirs.FindServiceByName(name)
            methods = service.methods_by_name
            assert set(methods) == set(served[name])
            for method in methods.values():
                for symbol in (method.full_name, method.input_type.full_name, method.output_type.full_name):
                    again = await ask_about(call, package, file_containing_symbol=symbol)
                    assert list(again.file_descriptor_response.file_descriptor_proto) == [data]
            again = await ask_about(call, package, file_by_filename=service.file.name)
            assert list(again.file_descriptor_response.file_descriptor_proto) == [data]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is Code.OK


async def test_streaming_methods_are_declared_as_streaming() -> None:
    services = {name: pool().FindServiceByName(name) for name in ("grpc.health.v1.Health", f"{V1}.ServerReflection")}
    found = {
        method.name: (method.client_streaming, method.server_streaming)
        for service in services.values()
        for method in service.methods
    }
    assert found == {"Check": (False, False), "Watch": (False, True), "ServerReflectionInfo": (True, True)}


async def test_reflection_rejects_unknown_and_malformed_requests(folder: Path) -> None:
    async with over_grpc({"m": folder}, limits=Limits(json_bytes=600)) as (_, ask):
        call = reflection(ask)
        extension = {"containing_type": "inference.ModelConfig", "extension_number": 1}
        for code, fields in (
            (Code.NOT_FOUND, {"file_containing_symbol": "inference.Other"}),
            (Code.NOT_FOUND, {"file_containing_symbol": "inference.GRPCInferenceService.Other"}),
            (Code.NOT_FOUND, {"file_containing_symbol": ""}),
            (Code.NOT_FOUND, {"file_by_filename": "google/protobuf/descriptor.proto"}),
            (Code.UNIMPLEMENTED, {"file_containing_extension": extension}),
            (Code.UNIMPLEMENTED, {"all_extension_numbers_of_type": "inference.ModelConfig"}),
            (Code.UNIMPLEMENTED, {}),
        ):
            response = await ask_about(call, **fields)
            assert response.error_response.error_code == code.value[0], fields
            assert response.error_response.error_message
        for code, request in (
            (Code.INVALID_ARGUMENT, b"\xff"),
            (Code.RESOURCE_EXHAUSTED, b"\x1a\xd8\x04" + b"x" * 600),
        ):
            call = reflection(ask)
            await call.write(request)
            async with asking(code):
                await call.read()


async def test_reflection_requires_the_token(folder: Path) -> None:
    async with over_grpc({"m": folder}, where=ServerOptions(token="secret")) as (_, ask):
        for package in (V1, V1ALPHA):
            async with asking(Code.UNAUTHENTICATED):
                await reflection(ask, package).read()
            call = reflection(ask, package, metadata=(("authorization", "Bearer secret"),))
            assert (await ask_about(call, package, list_services="")).list_services_response.service


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_errors_have_a_code_and_a_reason(folder: Path) -> None:
    async with over_grpc({"m": folder}) as (repository, ask):
        x = rows()
        wrong = [
            (Code.NOT_FOUND, "no model", infer_request({"x": x}, model="other")),
            (Code.NOT_FOUND, "version", infer_request({"x": x}, model_version="9")),
            (Code.INVALID_ARGUMENT, "other inputs", infer_request({"z": x})),
            (Code.INVALID_ARGUMENT, "another shape", infer_request({"x": rows()[:, :2]})),
            (Code.INVALID_ARGUMENT, "no output", infer_request({"x": x}, outputs=[{"name": "z"}])),
            (Code.INVALID_ARGUMENT, "protocol buffer", b"\xff" * 20),
            (Code.INVALID_ARGUMENT, "ModelInferRequest", b"\x0a\x02\xff\xff"),
        ]
        for code, says, request in wrong:
            async with asking(code) as raised:
                await ask("ModelInfer", request)
            assert says in raised.value.details()
        outcomes = repository.get("m").tally.outcomes
        assert (outcomes["refused"], outcomes["ok"]) == (3, 0)
        np.testing.assert_allclose(raw_values(await ask("ModelInfer", infer_request({"x": x}))), x * 2, rtol=1e-6)


async def test_message_over_its_limit_or_compressed_is_rejected(folder: Path) -> None:
    """The connection stays usable after a rejected message."""
    async with over_grpc({"m": folder}, limits=Limits(body_bytes=1000, json_bytes=600)) as (_, ask):
        for count, raw in ((200, True), (60, False)):
            async with asking(Code.RESOURCE_EXHAUSTED):
                await ask("ModelInfer", infer_request({"x": rows(count)}, raw))
        async with asking(Code.RESOURCE_EXHAUSTED):  # other messages have no tensors and a smaller limit
            await ask("ModelMetadata", name="m", version="1" * 700)
        async with asking(Code.UNIMPLEMENTED):
            await ask(
                "ModelInfer", infer_request({"x": np.zeros([50, 3], np.float32)}), compression=grpc.Compression.Gzip
            )
        assert raw_values(await ask("ModelInfer", infer_request({"x": rows(70)}))).shape == (70, 3)


async def test_message_that_does_not_arrive_times_out(folder: Path) -> None:
    async with over_grpc({"m": folder}, limits=Limits(body_seconds=0.01)) as (_, ask):
        call = ask.channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")(timeout=SECONDS)
        async with asking(Code.DEADLINE_EXCEEDED) as raised:
            await call
        assert "did not arrive in time" in raised.value.details()


async def test_admin_token_alone_may_change_the_models(folder: Path) -> None:
    where = ServerOptions(token="secret", admin_token="root")
    async with over_grpc({"m": folder}, where=where) as (_, ask):
        for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
            for metadata, code in (
                ((), Code.UNAUTHENTICATED),
                ((("authorization", "Bearer secret"),), Code.PERMISSION_DENIED),
            ):
                async with asking(code):
                    await ask(name, metadata=metadata, model_name="m")
            await ask(name, metadata=(("authorization", "Bearer root"),), model_name="m")
        for token in ("secret", "root"):
            await ask("RepositoryIndex", metadata=(("authorization", f"Bearer {token}"),))


async def test_token_is_checked_before_the_message_is_read(folder: Path) -> None:
    async with over_grpc({"m": folder}, where=ServerOptions(token="secret")) as (_, ask):
        assert (await ask("ServerLive")).live
        assert (await ask("ServerReady")).ready
        request = infer_request({"x": rows()})
        for metadata in ((), (("authorization", "Bearer other"),), (("authorization", "Bearer secret"),) * 2):
            async with asking(Code.UNAUTHENTICATED):
                await ask("ModelInfer", request, metadata=metadata)
        await ask("ModelInfer", request, metadata=(("authorization", "Bearer secret"),))
        call = ask.channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")(timeout=SECONDS)
        async with asking(Code.UNAUTHENTICATED):
            await call


async def test_address_in_use_is_reported(folder: Path) -> None:
    async with Repository({"m": folder}) as repository, GrpcServer(repository) as server:
        assert server.address.startswith("127.0.0.1:")
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(OSError, match=str(port)):
            async with GrpcServer(repository, ServerOptions(grpc_port=port)):
                pass


# ── deadlines, cancellation, load ────────────────────────────────────────────────────────────────────────────────────


async def test_deadline_stops_the_work(tmp_path: Path) -> None:
    folder = await save_model(tmp_path / "m", slow(1_000_000))
    async with over_grpc({"m": folder}, ModelOptions(warmup=False)) as (repository, ask):
        x = np.ones([1, 1], np.float32)
        request = infer_request({"x": x})
        async with asking(Code.DEADLINE_EXCEEDED):
            await ask("ModelInfer", request, timeout=0.05)
        request.parameters["timeout"].int64_param = 1000  # microseconds
        async with asking(Code.DEADLINE_EXCEEDED):
            await ask("ModelInfer", request)
        (call,) = repository.get("m").calls.values()
        await eventually(lambda: not repository.get("m").users)
        await eventually(lambda: not call.statistics().running_batches)
        assert repository.get("m").tally.outcomes["ok"] == 0


async def test_deadline_of_a_call_limits_its_request(tmp_path: Path) -> None:
    """The server must not rely on the client to cancel a call in time."""
    folder = await save_model(tmp_path / "m", slow(1_000_000))

    class Asking:
        async def read(self, *, is_idle: bool = False) -> bytes:
            data: bytes = infer_request({"x": np.ones([1, 1], np.float32)}).SerializeToString()
            return data

        async def write(self, data: bytes) -> None:
            raise AssertionError("there is nothing to answer")

        def remaining(self) -> float | None:
            return 0.01

    async with asyncio.timeout(SECONDS), Repository({"m": folder}, ModelOptions(warmup=False)) as repository:
        await repository.load_all()
        with pytest.raises(errors.DeadlineExceededError):
            await Methods(repository, Limits(), admission := RequestAdmission(1 << 20)).infer(Asking())
        assert (repository.get("m").tally.outcomes["late"], admission.bytes) == (1, 0)


async def test_cancelled_call_stops_the_work(tmp_path: Path) -> None:
    folder = await save_model(tmp_path / "m", slow(1_000_000))
    async with over_grpc({"m": folder}, ModelOptions(warmup=False)) as (repository, ask):
        model = repository.get("m")
        (call,) = model.calls.values()
        asked = ask.call("ModelInfer")(infer_request({"x": np.ones([1, 1], np.float32)}), timeout=SECONDS)
        await eventually(lambda: call.statistics().running_batches)
        asked.cancel()
        await eventually(lambda: not model.users and not call.statistics().running_batches)
        assert (model.tally.outcomes["gone"], model.tally.outcomes["ok"]) == (1, 0)


async def test_call_beyond_the_queue_is_rejected_with_retry_after(tmp_path: Path) -> None:
    folder = await save_model(tmp_path / "m", slow(1_000_000))
    options = ModelOptions(warmup=False, max_batch_size=1, max_enqueued_batches=1)
    async with over_grpc({"m": folder}, options) as (repository, ask):
        (call,) = repository.get("m").calls.values()
        request = infer_request({"x": np.ones([1, 1], np.float32)})
        calls = [ask.call("ModelInfer")(request, timeout=SECONDS)]
        await eventually(lambda: call.statistics().running_batches)
        calls.append(ask.call("ModelInfer")(request, timeout=SECONDS))
        await eventually(lambda: call.statistics().waiting_rows)
        async with asking(Code.RESOURCE_EXHAUSTED) as raised:
            await ask("ModelInfer", request)
        assert int(dict(raised.value.trailing_metadata())["retry-after"]) >= 1
        for each in calls:
            each.cancel()
        await eventually(lambda: not repository.get("m").users)


async def test_concurrent_calls_each_get_their_own_rows(folder: Path) -> None:
    """Among many concurrent calls, some are cancelled and some are invalid; each other call gets its own rows."""
    options = ModelOptions(batch_timeout=0.01)  # long enough for other requests to arrive, even on a busy machine
    async with over_grpc({"m": folder}, options) as (repository, ask):

        async def call(seed: int) -> None:
            for number in range(20):
                x = rows(1 + seed % 3, 100 * seed + number)
                request = infer_request({"x": x}, raw=bool(number % 2), id=f"{seed}.{number}")
                if (seed + number) % 7 == 0:
                    ask.call("ModelInfer")(request, timeout=SECONDS).cancel()
                    continue
                if (seed + number) % 7 == 1:
                    request.inputs[0].shape[0] += 1
                    async with asking(Code.INVALID_ARGUMENT):
                        await ask("ModelInfer", request)
                    continue
                response = await ask("ModelInfer", request)
                assert response.id == f"{seed}.{number}"
                contents = response.outputs[0].contents.fp32_contents
                found = raw_values(response) if number % 2 else np.reshape(contents, x.shape)
                np.testing.assert_allclose(found, x * 2, rtol=1e-6)

        async with asyncio.TaskGroup() as group:
            for seed in range(16):
                group.create_task(call(seed))
        model = repository.get("m")
        await eventually(lambda: not model.users)
        (batches,) = (each.statistics() for each in model.calls.values())
        assert model.tally.outcomes["failed"] == 0
        assert batches.batches < batches.answered


async def test_running_call_is_answered_when_the_server_ends(tmp_path: Path) -> None:
    folder = await save_model(tmp_path / "m", slow(20_000))
    async with asyncio.timeout(SECONDS), Repository({"m": folder}, ModelOptions(warmup=False)) as repository:
        await repository.load_all()
        async with GrpcServer(repository) as server, client_of(server.address) as ask:
            (call,) = repository.get("m").calls.values()
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(ask("ModelInfer", infer_request({"x": np.ones([1, 1], np.float32)})))
                await eventually(lambda: call.statistics().running_batches)
                await server.__aexit__(None, None, None)
            assert raw_values(asked.result()).tolist() == [[1.0]]
            async with asking(Code.UNAVAILABLE):
                await ask("ServerLive")


# ── both transports ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_both_transports_serve_the_same_models(folder: Path) -> None:
    service = pytest.importorskip("tests.serve.service", reason="aioflow-engine[serve] is not installed")
    async with (
        service.serving({"m": folder}, where=ServerOptions(port=0, grpc_port=0)) as (server, http),
        client_of(server.grpc_address) as ask,
    ):
        x = rows()
        np.testing.assert_allclose(raw_values(await ask("ModelInfer", infer_request({"x": x}))), x * 2, rtol=1e-6)
        np.testing.assert_allclose(
            service.values(await http.post("/v2/models/m/infer", json=service.asked(x))), x * 2, rtol=1e-6
        )
        counts = (await service.families(http))["aioflow_requests_total"]
        assert counts["m", "ok", "1"] == 2
        await ask("RepositoryModelUnload", model_name="m")
        assert (await http.get("/v2/models/m/ready")).status_code == 404


async def test_server_with_a_grpc_port_in_use_fails_at_once(folder: Path) -> None:
    service = pytest.importorskip("tests.serve.service", reason="aioflow-engine[serve] is not installed")
    async with asyncio.timeout(SECONDS), Repository({"m": folder}) as repository, GrpcServer(repository) as other:
        port = int(other.address.rpartition(":")[2])
        with pytest.raises(OSError, match=str(port)):
            async with service.Server({"m": folder}, where=ServerOptions(port=0, grpc_port=port)):
                pass


async def test_several_processes_do_not_support_grpc(folder: Path) -> None:
    pytest.importorskip("tests.serve.service", reason="aioflow-engine[serve] is not installed")
    from aioflow.serve import Processes

    with pytest.raises(errors.UnimplementedError, match="gRPC"):
        Processes({"m": folder}, where=ServerOptions(grpc_port=0), processes=2)


def test_missing_grpcio_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "aioflow.serve.grpc.server", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    import aioflow.serve.grpc

    for package in (aioflow.serve.grpc, aioflow.serve):
        monkeypatch.delitem(vars(package), "GrpcServer", raising=False)
        with pytest.raises(
            errors.UnimplementedError, match=r"GrpcServer needs .* pip install 'aioflow-engine\[grpc\]'"
        ):
            _ = package.GrpcServer

"""The methods of the gRPC services, answered from the models of a repository; encoding of responses, and reflection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from aioflow.errors import CancelledError, NotFoundError, OpError, UnimplementedError
from aioflow.protos.messages import Message
from aioflow.release import RELEASE
from aioflow.serve.counting import counted
from aioflow.serve.grpc.calls import Method, MethodCall, OpenStreams
from aioflow.serve.grpc.coding import (
    UndecodedRequest,
    check_rest,
    decode_split,
    encode_answer,
    split_request,
)
from aioflow.serve.grpc.infer_streams import InferStreams
from aioflow.serve.grpc.messages import HEALTH_PACKAGE, PACKAGE, REFLECTION_PACKAGES, Fields, message, parsed, pool
from aioflow.serve.memory_limits import HeldBytes, RequestAdmission
from aioflow.serve.metadata import EXTENSIONS, config_of, index_of, metadata_of, statistics_of
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import Limits, code_of, message_of
from aioflow.serve.repository import Repository
from aioflow.serve.running import beside

# ── server reflection: the services and their file descriptors ────────────────────────────────────────────────────────
#
# It serves clients without the messages, such as grpcurl. The package grpcio-reflection supports v1alpha only, and puts
# its messages into the default pool, which a client in this process also uses.


def reflected(request: Message, services: Iterable[str]) -> Fields:
    """Return the fields of the response to a ServerReflectionRequest. Errors are part of the response."""
    try:
        answer = _answer(request, services)
    except OpError as error:
        answer = {"error_response": {"error_code": code_of(error), "error_message": message_of(error)}}
    return {"valid_host": request.host, "original_request": request, **answer}


def _answer(request: Message, services: Iterable[str]) -> Fields:
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        return {"list_services_response": {"service": [{"name": each} for each in sorted(services)]}}
    if kind not in ("file_by_filename", "file_containing_symbol"):
        raise UnimplementedError("files and their symbols are all that is known", actual=str(kind))
    asked = getattr(request, kind)
    try:
        file = pool().FindFileByName(asked) if kind == "file_by_filename" else _containing(asked)
    except KeyError as error:
        raise NotFoundError("there is no such file or symbol", actual=asked[:80]) from error
    # One file suffices: the files import no others.
    return {"file_descriptor_response": {"file_descriptor_proto": [file.serialized_pb]}}


def _containing(symbol: str) -> Any:
    """Return the file that declares a symbol. Raises KeyError."""
    try:
        return pool().FindFileContainingSymbol(symbol)
    except KeyError:
        # The pool does not find methods as symbols.
        return pool().FindMethodByName(symbol).containing_service.file


# ── the methods ───────────────────────────────────────────────────────────────────────────────────────────────────────


_SERVICE: Final = "inference.GRPCInferenceService"
_HEALTH: Final = f"{HEALTH_PACKAGE}.Health"  # gRPC's own service, used by Kubernetes and load balancers
OPEN: Final = frozenset({"ServerLive", "ServerReady", "Check", "Watch"})  # probes have no token
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
CHANGES: Final = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})  # of the models
_STREAMS: Final = 100  # per kind of stream: clients need no token, and there are few load balancers


class Methods:
    """The methods of all services.

    Attributes:
        services: Methods by the name of their service, then by their own name.
    """

    def __init__(self, repository: Repository, limits: Limits, admission: RequestAdmission) -> None:
        self._repository = repository
        self._limits = limits
        self._admission = admission
        small: dict[str, Callable[[Message], Awaitable[Fields]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": self._model,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        self._watchers, self._reflections = OpenStreams(_STREAMS), OpenStreams(_STREAMS)
        self._infers = InferStreams(repository, limits, admission, OpenStreams(_STREAMS), self._answered)
        table: dict[str, Method] = {"ModelInfer": self.infer, "ModelStreamInfer": self._infers.call}
        table.update((name, self._small(name, answer)) for name, answer in small.items())
        check = self._small("HealthCheck", self._check, HEALTH_PACKAGE)
        self.services: dict[str, dict[str, Method]] = {
            _SERVICE: table,
            _HEALTH: {"Check": check, "Watch": self._watch},
        }
        for package in REFLECTION_PACKAGES:
            self.services[f"{package}.ServerReflection"] = {"ServerReflectionInfo": self._reflection(package)}

    def end(self) -> None:
        """End the streaming calls, because the service is about to end."""
        self._infers.end()
        self._watchers.end()
        self._reflections.end()

    def _small(self, name: str, answer: Callable[[Message], Awaitable[Fields]], package: str = PACKAGE) -> Method:
        """Return a method from small message to small message; `answer` returns the fields of the response."""

        async def method(exchange: MethodCall) -> None:
            with self._admission.holding() as held:
                request = await self._read_request(exchange, held, f"{name}Request", package)
            response: Message = message(f"{name}Response", package)(**await answer(request))
            await exchange.write(response.SerializeToString())

        return method

    async def _read_request(self, exchange: MethodCall, held: HeldBytes, name: str, package: str) -> Message:
        """Read the small message `name`."""
        data = await exchange.read()
        held.take(len(data))
        check_rest(len(data), self._limits)
        return await beside(len(data), parsed, name, data, package)

    # -- inference ----------------------------------------------------------------------------------------------------

    async def infer(self, exchange: MethodCall) -> None:
        """Answer an inference request.

        The version is in use only while the model computes: a client that sends or reads slowly does not block the
        unloading of the version.
        """
        with self._admission.holding() as held:
            data = await exchange.read()
            held.take(len(data))
            asked = await beside(len(data), split_request, data, self._limits)
            with self._repository.used(asked.model_name, asked.model_version) as model, counted(model):
                answer = await self._answered(model, asked, exchange)
            held.add(len(answer))
            await exchange.write(answer)

    async def _answered(self, model: ServedModel, asked: UndecodedRequest, exchange: MethodCall) -> bytes:
        request = await beside(len(asked.data), decode_split, asked, self._limits)
        response = await model.infer(request.within(exchange.remaining()))
        size = sum(array.nbytes for array in response.outputs.values())
        return await beside(size, encode_answer, response, request.binary)

    # -- health and metadata ------------------------------------------------------------------------------------------

    async def _live(self, request: Message) -> Fields:
        return {"live": True}

    async def _ready(self, request: Message) -> Fields:
        return {"ready": self._repository.is_ready}

    async def _check(self, request: Message) -> Fields:
        status = self._status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise NotFoundError("there is no such service", expected=f"'' or {_SERVICE!r}", actual=request.service[:80])
        return {"status": status}

    def _status(self, service: str) -> int:
        """Return the status of `service`. The whole service also has the name ""."""
        if service not in ("", _SERVICE):
            return _SERVICE_UNKNOWN
        return _SERVING if self._repository.is_ready else _NOT_SERVING

    async def _watch(self, exchange: MethodCall) -> None:
        """Send the status now and after each change, until the client or the service ends the call."""

        async def say(status: int) -> None:
            await exchange.write(message("HealthCheckResponse", HEALTH_PACKAGE)(status=status).SerializeToString())

        said: int | None = None
        with self._watchers.one():
            with suppress(CancelledError):
                with self._admission.holding() as held:
                    asked = self._read_request(exchange, held, "HealthCheckRequest", HEALTH_PACKAGE)
                    # Only waits are ended by the service; writes run to their end (see `OpenStreams.wait`).
                    request = await self._watchers.wait(asked)
                while True:
                    status = self._status(request.service)
                    if status == said:
                        await self._watchers.wait(self._repository.changed())
                    else:
                        await say(status)
                        said = status
            # The service is ending: report that before the stream ends.
            if said == _SERVING:
                await say(_NOT_SERVING)

    async def _model_ready(self, request: Message) -> Fields:
        try:
            self._repository.get(request.name, request.version or None)
        except OpError:
            return {"ready": False}
        return {"ready": True}

    async def _server(self, request: Message) -> Fields:
        return {"name": "aioflow", "version": RELEASE, "extensions": EXTENSIONS}

    async def _model(self, request: Message) -> Fields:
        served = self._repository.get(request.name, request.version or None)
        return metadata_of(served, self._repository.versions(request.name), parameters=False)

    async def _config(self, request: Message) -> Fields:
        return {"config": config_of(self._repository.get(request.name, request.version or None))}

    async def _statistics(self, request: Message) -> Fields:
        found = self._repository.chosen(request.name or None, request.version or None)
        return {"model_stats": [statistics_of(each) for each in found]}

    # -- the repository -----------------------------------------------------------------------------------------------

    async def _index(self, request: Message) -> Fields:
        return {"models": index_of(self._repository.index(), only_ready=request.ready)}

    async def _load(self, request: Message) -> Fields:
        await self._repository.load(request.model_name)
        return {}

    async def _unload(self, request: Message) -> Fields:
        await self._repository.unload(request.model_name)
        return {}

    # -- reflection ---------------------------------------------------------------------------------------------------

    def _reflection(self, package: str) -> Method:
        """Return the method that answers a stream of requests about the services."""

        async def method(exchange: MethodCall) -> None:
            # Suppressed: the service ends, or the client sends no more requests (`ClientDisconnectedError`).
            with self._reflections.one(), suppress(CancelledError):
                while True:
                    await reflect(exchange)

        async def reflect(exchange: MethodCall) -> None:
            with self._admission.holding() as held:
                asked = self._read_request(exchange, held, "ServerReflectionRequest", package)
                request = await self._reflections.wait(asked)
                response: Message = message("ServerReflectionResponse", package)(**reflected(request, self.services))
                answer = response.SerializeToString()
                held.add(len(answer))
                await exchange.write(answer)

        return method

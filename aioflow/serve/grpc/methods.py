"""The methods of the services over gRPC, answered from the models of a repository."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from aioflow.errors import CancelledError, NotFoundError, OpError
from aioflow.release import RELEASE
from aioflow.serve.admission import Admission, Held
from aioflow.serve.counting import counted
from aioflow.serve.grpc.messages import HEALTH_PACKAGE, PACKAGE, REFLECTION_PACKAGES, Message, message, parsed
from aioflow.serve.grpc.reflection import reflected
from aioflow.serve.grpc.request import Asked, check_rest, decode_asked, read_asked
from aioflow.serve.grpc.response import encode_answer
from aioflow.serve.grpc.streams import Streams
from aioflow.serve.metadata import EXTENSIONS, config_of, index_of, metadata_of, statistics_of
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import Limits
from aioflow.serve.repository import Repository
from aioflow.work.threads import in_thread

__all__ = ["OPEN", "Exchange", "Method", "Methods"]

_SERVICE: Final = "inference.GRPCInferenceService"
_HEALTH: Final = f"{HEALTH_PACKAGE}.Health"  # gRPC's own service, which Kubernetes and load balancers ask
OPEN: Final = frozenset({"ServerLive", "ServerReady", "Check", "Watch"})  # probes have no secrets
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
_STREAMS: Final = 100  # of a kind: those who watch need no token, and load balancers are few
_LARGE: Final = 1 << 18  # bytes of messages or arrays that are not worked on between two turns of the loop


T = TypeVar("T")


class Exchange(Protocol):
    """One call, as its method sees it."""

    async def read(self) -> bytes:
        """The message that was sent, or the next."""

    async def write(self, data: bytes) -> None:
        """Send an answer; returns when the client takes it."""

    def remaining(self) -> float | None:
        """Seconds until the call's deadline; None where there is none."""


Method = Callable[[Exchange], Coroutine[Any, Any, None]]


class Methods:
    """The methods of all services.

    Attributes:
        services: By the name of the service, and then by their own.
    """

    def __init__(self, repository: Repository, limits: Limits, admission: Admission) -> None:
        self._repository = repository
        self._limits = limits
        self._admission = admission
        small: dict[str, Callable[[Any], Awaitable[Mapping[str, Any]]]] = {
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
        self._watchers, self._reflections = Streams(_STREAMS), Streams(_STREAMS)
        table: dict[str, Method] = {"ModelInfer": self.infer}
        table.update((name, self._small(name, answer)) for name, answer in small.items())
        check = self._small("HealthCheck", self._check, HEALTH_PACKAGE)
        self.services: dict[str, dict[str, Method]] = {
            _SERVICE: table,
            _HEALTH: {"Check": check, "Watch": self._watch},
        }
        for package in REFLECTION_PACKAGES:
            self.services[f"{package}.ServerReflection"] = {"ServerReflectionInfo": self._reflection(package)}

    def end(self) -> None:
        """End the calls that would last: the service is about to end."""
        self._watchers.end()
        self._reflections.end()

    def _small(
        self, name: str, answer: Callable[[Any], Awaitable[Mapping[str, Any]]], package: str = PACKAGE
    ) -> Method:
        """Return a method of two small messages, from what gives the fields of one for the other."""

        async def method(exchange: Exchange) -> None:
            with self._admission.holding() as held:
                request = await self._asked(exchange, held, f"{name}Request", package)
            response: Message = message(f"{name}Response", package)(**await answer(request))
            await exchange.write(response.SerializeToString())

        return method

    async def _asked(self, exchange: Exchange, held: Held, name: str, package: str) -> Message:
        """Read a small message of that name."""
        data = await exchange.read()
        held.take(len(data))
        check_rest(len(data), self._limits)
        return await _beside(len(data), parsed, name, data, package)

    # -- inference ----------------------------------------------------------------------------------------------------

    async def infer(self, exchange: Exchange) -> None:
        """One call of a model. Neither a client who is slow to send nor one who is slow to read holds a version."""
        with self._admission.holding() as held:
            data = await exchange.read()
            held.take(len(data))
            asked = await _beside(len(data), read_asked, data, self._limits)
            with self._repository.used(asked.model_name, asked.model_version) as model, counted(model):
                answer = await self._answered(model, asked, exchange)
            held.add(len(answer))
            await exchange.write(answer)

    async def _answered(self, model: ServedModel, asked: Asked, exchange: Exchange) -> bytes:
        request = await _beside(len(asked.data), decode_asked, asked, self._limits)
        response = await model.infer(request.within(exchange.remaining()))
        size = sum(array.nbytes for array in response.outputs.values())
        return await _beside(size, encode_answer, response, request.binary)

    # -- health and metadata ------------------------------------------------------------------------------------------

    async def _live(self, request: Any) -> Mapping[str, Any]:
        return {"live": True}

    async def _ready(self, request: Any) -> Mapping[str, Any]:
        return {"ready": self._repository.is_ready}

    async def _check(self, request: Any) -> Mapping[str, Any]:
        status = self._status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise NotFoundError("there is no such service", expected=f"'' or {_SERVICE!r}", actual=request.service[:80])
        return {"status": status}

    def _status(self, service: str) -> int:
        """Return the status of the service as a whole, which has the name "", too."""
        if service not in ("", _SERVICE):
            return _SERVICE_UNKNOWN
        return _SERVING if self._repository.is_ready else _NOT_SERVING

    async def _watch(self, exchange: Exchange) -> None:
        """Say the status now and whenever it changes, for as long as the client listens."""

        async def say(status: int) -> None:
            await exchange.write(message("HealthCheckResponse", HEALTH_PACKAGE)(status=status).SerializeToString())

        said: int | None = None
        with self._watchers.one():
            with suppress(CancelledError):
                with self._admission.holding() as held:
                    asked = self._asked(exchange, held, "HealthCheckRequest", HEALTH_PACKAGE)
                    request = await self._watchers.wait(asked)
                while True:
                    status = self._status(request.service)
                    if status == said:
                        await self._watchers.wait(self._repository.changed())
                    else:
                        await say(status)
                        said = status
            if said == _SERVING:
                await say(_NOT_SERVING)

    async def _model_ready(self, request: Any) -> Mapping[str, Any]:
        try:
            self._repository.get(request.name, request.version or None)
        except OpError:
            return {"ready": False}
        return {"ready": True}

    async def _server(self, request: Any) -> Mapping[str, Any]:
        return {"name": "aioflow", "version": RELEASE, "extensions": EXTENSIONS}

    async def _model(self, request: Any) -> Mapping[str, Any]:
        served = self._repository.get(request.name, request.version or None)
        return metadata_of(served, self._repository.versions(request.name), parameters=False)

    async def _config(self, request: Any) -> Mapping[str, Any]:
        return {"config": config_of(self._repository.get(request.name, request.version or None))}

    async def _statistics(self, request: Any) -> Mapping[str, Any]:
        found = self._repository.chosen(request.name or None, request.version or None)
        return {"model_stats": [statistics_of(each) for each in found]}

    # -- the repository -----------------------------------------------------------------------------------------------

    async def _index(self, request: Any) -> Mapping[str, Any]:
        return {"models": index_of(self._repository.index(), only_ready=request.ready)}

    async def _load(self, request: Any) -> Mapping[str, Any]:
        await self._repository.load(request.model_name)
        return {}

    async def _unload(self, request: Any) -> Mapping[str, Any]:
        await self._repository.unload(request.model_name)
        return {}

    # -- reflection ---------------------------------------------------------------------------------------------------

    def _reflection(self, package: str) -> Method:
        """Return the method that answers one request after the other about the services."""

        async def method(exchange: Exchange) -> None:
            with self._reflections.one(), suppress(CancelledError):  # there is no more to answer, or the service ends
                while True:
                    await reflect(exchange)

        async def reflect(exchange: Exchange) -> None:
            with self._admission.holding() as held:
                asked = self._asked(exchange, held, "ServerReflectionRequest", package)
                request = await self._reflections.wait(asked)
                response: Message = message("ServerReflectionResponse", package)(**reflected(request, self.services))
                answer = response.SerializeToString()
                held.add(len(answer))
                await exchange.write(answer)

        return method


async def _beside(size: int, work: Callable[..., T], *args: Any) -> T:
    """What the work gives; in a thread, if it is about so many bytes that the loop would feel them."""
    if size > _LARGE:
        return await in_thread(work, *args, effects=False)
    return work(*args)

"""The endpoints of the HTTP service. Each is an ASGI application; one place turns errors into answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from aioflow.errors import ClientDisconnectedError, NotFoundError, OpError, UnavailableError
from aioflow.memory.values import Buffer
from aioflow.release import RELEASE
from aioflow.serve.counting import counted
from aioflow.serve.generating import Generating
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.metadata import EXTENSIONS, config_of, index_of, metadata_of, statistics_of
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import (
    EncodedResponse,
    InferRequest,
    InferResponse,
    Limits,
    decode_request,
    encode_response,
    status_of,
)
from aioflow.serve.protocol.json_data import Nan
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.protocol.rest import json_object
from aioflow.serve.protocol.schemas import FORMS
from aioflow.serve.protocol.tf_rest import (
    decode_examples,
    decode_predict,
    encode_classes,
    encode_predict,
    encode_scores,
)
from aioflow.serve.repository import Repository
from aioflow.serve.requests import answer, answer_error, answer_json, read_body, whole_header
from aioflow.serve.running import beside
from aioflow.serve.tf_metadata import check_label, signatures_of, version_status_of
from aioflow.web import until_disconnect

_LOG: Final = logging.getLogger("aioflow.serve")
_JSON_LENGTH: Final = b"inference-header-content-length"
_BYTES: Final = b"application/octet-stream"

AnswerFunction = Callable[[Scope, Receive, Send], Awaitable[None]]
Encode = Callable[[InferResponse], EncodedResponse]
Decode = Callable[[Buffer, ServedModel], tuple[InferRequest, Encode]]


class Endpoint:
    """An ASGI application that returns errors in the protocol's form."""

    def __init__(self, answer: AnswerFunction) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            # Set before the send: one that fails half way may have sent the status line.
            has_begun = True
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        except ClientDisconnectedError:
            return  # the client is gone
        except Exception as error:
            if not isinstance(error, OpError):
                _LOG.exception("%s %s failed", scope["method"], scope["path"])
            # A second status line cannot be sent; the server cuts the connection off instead.
            if has_begun:
                raise
            # A body that is too large is not read to its end, so the connection cannot take another request.
            await answer_error(send, error, close=status_of(error) == 413)


class Endpoints:
    """The endpoints for the models of a repository."""

    def __init__(self, repository: Repository, limits: Limits) -> None:
        self._repository = repository
        self._limits = limits
        self.admission = RequestAdmission(limits.pending_bytes)
        self.generating = Generating(repository, limits, self.admission)

    # -- inference ----------------------------------------------------------------------------------------------------

    async def infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an inference request."""
        length = whole_header(scope, _JSON_LENGTH)

        def decode(body: Buffer, model: ServedModel) -> tuple[InferRequest, Encode]:
            request = decode_request(body, length, self._limits)
            return request, partial(_encoded, request, model.options.json_nan)

        await self._call(scope, receive, send, decode, length)

    async def predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a `:predict` request of TensorFlow Serving's API."""
        check_label(scope["path_params"])

        def decode(body: Buffer, model: ServedModel) -> tuple[InferRequest, Encode]:
            found = decode_predict(body, model.signature_of, self._limits)
            return found.request, lambda response: EncodedResponse(encode_predict(response, found.is_row), None)

        await self._call(scope, receive, send, decode)

    async def classify(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a `:classify` request of TensorFlow Serving's API."""
        await self._call_with_examples(scope, receive, send, "classify", encode_classes)

    async def regress(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a `:regress` request of TensorFlow Serving's API."""
        await self._call_with_examples(scope, receive, send, "regress", encode_scores)

    async def _call_with_examples(
        self, scope: Scope, receive: Receive, send: Send, method: str, encode: Callable[[InferResponse], bytes]
    ) -> None:
        check_label(scope["path_params"])

        def decode(body: Buffer, model: ServedModel) -> tuple[InferRequest, Encode]:
            request = decode_examples(body, model.signature_of, method, self._limits)
            return request, lambda response: EncodedResponse(encode(response), None)

        await self._call(scope, receive, send, decode)

    async def _call(
        self, scope: Scope, receive: Receive, send: Send, decode: Decode, json_length: int | None = None
    ) -> None:
        """Answer a call of a model, whatever its protocol.

        The version is in use only while the model computes: a client that sends or reads slowly does not block the
        unloading of the version.
        """
        name, version = scope["path_params"]["model"], scope["path_params"].get("version")
        with self.admission.holding() as held:
            # An unknown model is refused before its body is read.
            with counted(self._repository.get(name, version), only_failures=True):
                body = await read_body(scope, receive, self._limits, held)
            with self._repository.used(name, version) as model, counted(model):
                # Only the JSON takes time to decode; binary tensors become views of the body.
                length = len(body) if json_length is None else min(json_length, len(body))
                request, encode = await beside(length, decode, body, model)
                response = await until_disconnect(receive, model.infer(request))
                encoded = await beside(sum(array.nbytes for array in response.outputs.values()), encode, response)
            # Counted without a check: the work is done, and refusing the answer now would only make the client repeat
            # it.
            held.add(len(encoded.body))
            if encoded.json_length is None:
                await answer(send, 200, encoded.body)
            else:
                headers = [(_JSON_LENGTH, b"%d" % encoded.json_length)]
                await answer(send, 200, encoded.body, _BYTES, headers)

    # -- health and metadata ------------------------------------------------------------------------------------------

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the liveness probe: the event loop runs."""
        await answer_json(send, {"live": True})

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the readiness probe: ready if every wanted model is loaded."""
        is_ready = self._repository.is_ready
        await answer_json(send, {"ready": is_ready}, 200 if is_ready else 503)

    async def model_ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer whether a version of a model is ready, with status 503 if it is not."""
        path = scope["path_params"]
        try:
            self._repository.get(path["model"], path.get("version"))
        except UnavailableError:
            failed = {"reason": reason} if (reason := self._repository.failure(path["model"])) else {}
            await answer_json(send, {"name": path["model"], "ready": False, **failed}, 503)
        else:
            await answer_json(send, {"name": path["model"], "ready": True})

    async def server(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the name, version and extensions of the server."""
        await answer_json(send, {"name": "aioflow", "version": RELEASE, "extensions": list(EXTENSIONS)})

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the metadata of a model: its inputs and outputs."""
        name = scope["path_params"]["model"]
        served = self._repository.get(name, scope["path_params"].get("version"))
        await answer_json(send, metadata_of(served, self._repository.versions(name)))

    async def config(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the configuration of a model."""
        path = scope["path_params"]
        await answer_json(send, config_of(self._repository.get(path["model"], path.get("version"))))

    async def statistics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the statistics of one version, of all versions of a model, or of all models."""
        path = scope["path_params"]
        found = self._repository.chosen(path.get("model"), path.get("version"))
        await answer_json(send, {"model_stats": [statistics_of(each) for each in found]})

    # -- TensorFlow Serving's API -------------------------------------------------------------------------------------

    async def versions(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the states of the versions of a model, or of one of them."""
        path = scope["path_params"]
        check_label(path)
        await answer_json(send, version_status_of(self._repository.states(path["model"], path.get("version"))))

    async def signatures(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the signatures of a model."""
        path = scope["path_params"]
        check_label(path)
        await answer_json(send, signatures_of(self._repository.get(path["model"], path.get("version"))))

    # -- the repository -----------------------------------------------------------------------------------------------

    async def index(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the models and versions with their states; with {"ready": true}, only those that are ready."""
        only = await self._parameters(scope, receive)
        FORMS["IndexRequest"].check(only, "the request")
        await answer_json(send, index_of(self._repository.index(), only_ready=only.get("ready", False)))

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Load or reload a model."""
        await self._parameters(scope, receive)
        await self._repository.load(scope["path_params"]["model"])
        await answer_json(send, {})

    async def unload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Unload a model."""
        await self._parameters(scope, receive)
        await self._repository.unload(scope["path_params"]["model"])
        await answer_json(send, {})

    async def _parameters(self, scope: Scope, receive: Receive) -> JsonObject:
        with self.admission.holding() as held:
            body = await read_body(scope, receive, self._limits, held)
            return json_object(body, self._limits) if body else {}

    async def nothing(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise NotFoundError, for all unknown paths."""
        path = scope["path"][:80]
        raise NotFoundError("there is nothing at this address", expected="an endpoint that /docs lists", actual=path)


def _encoded(request: InferRequest, nan: Nan, response: InferResponse) -> EncodedResponse:
    if request.outputs is None:
        binary = tuple(response.outputs) if request.binary else ()
    else:
        binary = tuple(each.name for each in request.outputs if each.binary)
    return encode_response(response, binary, nan)

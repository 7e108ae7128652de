"""`ModelStreamInfer`: many requests and responses over one call, of which streams of tokens have many each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from aioflow.errors import CancelledError, ClientDisconnectedError, DeadlineExceededError, OpError
from aioflow.memory.values import Array
from aioflow.serve.counting import counted
from aioflow.serve.grpc.calls import MethodCall, OpenStreams
from aioflow.serve.grpc.coding import UndecodedRequest, decode_split, encode_answer, field_head, split_request
from aioflow.serve.grpc.messages import message
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import InferRequest, InferResponse, Limits, MalformedRequestError, message_of
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.repository import Repository
from aioflow.serve.running import beside
from aioflow.serve.tokens.streams import GenerateRequest, TokenEvent, TokenStreams, read_generate

_LOG: Final = logging.getLogger("aioflow.serve")
_REQUESTS: Final = 128  # of one call that are answered at once; no more are read meanwhile
_RESPONSE: Final = 2  # infer_response of ModelStreamInferResponse
_FINAL: Final = "triton_final_response"

Answered = Callable[[ServedModel, UndecodedRequest, MethodCall], Awaitable[bytes]]


class _UnreadError(DeadlineExceededError):
    """A response of a stream that the client has not read in time. The call cannot go on without it."""


class InferStreams:
    """The calls of `ModelStreamInfer`.

    Args:
        repository: The models.
        limits: Limits for a single request.
        admission: The limit on the memory of all requests.
        streams: The limit on the number of calls.
        answered: Returns the response of a model that generates no tokens.
    """

    def __init__(
        self,
        repository: Repository,
        limits: Limits,
        admission: RequestAdmission,
        streams: OpenStreams,
        answered: Answered,
    ) -> None:
        self._repository = repository
        self._limits = limits
        self._admission = admission
        self._streams = streams
        self._answered = answered

    def end(self) -> None:
        """Read no more requests: the service is about to end. Pending ones are answered."""
        self._streams.end()

    async def call(self, exchange: MethodCall) -> None:
        """Answer requests concurrently until the client has no more. Their responses may interleave."""
        room, turn = asyncio.Semaphore(_REQUESTS), asyncio.Lock()

        async def write(data: bytes, seconds: float | None = None) -> None:
            # grpcio allows one write at a time.
            async with turn:
                try:
                    async with asyncio.timeout(seconds):
                        await exchange.write(data)
                except TimeoutError as error:
                    raise _UnreadError(
                        "the client does not read its stream", expected=f"a read within {seconds} s"
                    ) from error
                except Exception as error:  # an internal class of grpcio
                    raise ClientDisconnectedError("the client has ended the call") from error

        async def answer(data: bytes) -> None:
            try:
                await self._answer(data, exchange, write)
            finally:
                room.release()

        with self._streams.one():
            try:
                async with asyncio.TaskGroup() as group:
                    # Suppressed: the service ends, or the client sends no more requests.
                    with suppress(CancelledError, ClientDisconnectedError):
                        while True:
                            await room.acquire()
                            # A call may be idle between two requests.
                            data = await self._streams.wait(exchange.read(is_idle=True))
                            group.create_task(answer(data))
            except ExceptionGroup as ended:  # the tasks raise nothing but `_UnreadError`
                raise ended.exceptions[0] from None

    async def _answer(self, data: bytes, exchange: MethodCall, write: Callable[..., Awaitable[None]]) -> None:
        """Answer one request. An error is a response, so it does not end the other requests of the call.

        Raises:
            _UnreadError: the client does not read a stream of tokens, so the call ends.
        """
        number = ""
        try:
            with self._admission.holding() as held:
                held.take(len(data))
                asked = await beside(len(data), split_request, data, self._limits)
                number = asked.head.id
                with self._repository.used(asked.model_name, asked.model_version) as model, counted(model):
                    if model.streams is None:
                        await write(_wrapped(await self._answered(model, asked, exchange)))
                    else:
                        request, prompt = await beside(len(data), self._read, asked, exchange.remaining())
                        # A stream goes on while its reader pauses; the call must not stay open for ever.
                        send = partial(write, seconds=self._limits.body_seconds)
                        await _generate(model, model.streams, request, prompt, send)
        except ClientDisconnectedError:
            return
        except _UnreadError:
            raise
        except Exception as error:
            if not isinstance(error, OpError):
                _LOG.exception("ModelStreamInfer failed")
            response = message("ModelInferResponse")(id=number)
            found = message("ModelStreamInferResponse")(error_message=message_of(error), infer_response=response)
            with suppress(ClientDisconnectedError):
                await write(found.SerializeToString())

    def _read(self, asked: UndecodedRequest, seconds: float | None) -> tuple[InferRequest, GenerateRequest]:
        request = decode_split(asked, self._limits).within(seconds)
        return request, generate_request(request)


async def _generate(
    model: ServedModel,
    streams: TokenStreams,
    request: InferRequest,
    prompt: GenerateRequest,
    write: Callable[[bytes], Awaitable[None]],
) -> None:
    """Send each token as a response. The last response has the reason for the end."""
    with streams.begin(prompt) as tokens:
        async with aclosing(streams.events(tokens)) as events:
            async for event in events:
                parameters: JsonObject = {_FINAL: event.reason is not None}
                if event.reason is not None:
                    parameters["finish_reason"] = event.reason
                response = InferResponse(model.name, str(model.version), _outputs(event), request.id)
                await write(_wrapped(encode_answer(response, request.binary, parameters)))


def generate_request(request: InferRequest) -> GenerateRequest:
    """Return the request for a stream, whose input is `text_input` or `tokens`. Raises MalformedRequestError."""
    document: JsonObject = {"parameters": {**request.parameters}, "id": request.id}
    for name, array in request.inputs.items():
        kind = array.dtype.kind
        if name == "text_input" and kind == "O" and array.size == 1:
            try:
                document[name] = bytes(array.reshape(-1)[0]).decode()
            except UnicodeDecodeError as error:
                raise MalformedRequestError("input 'text_input' is not UTF-8", expected="a text") from error
        elif name == "tokens" and kind in "iu":
            document[name] = array.reshape(-1).tolist()
        else:
            raise MalformedRequestError(
                f"input {name!r} is wrong",
                expected="a text 'text_input', or integers 'tokens'",
                actual=array.dtype.name,
            )
    found = read_generate(document)
    # The deadline of the call is included.
    return found if request.timeout is None else replace(found, timeout=request.timeout)


def _outputs(event: TokenEvent) -> dict[str, Array]:
    found: dict[str, Array] = {"tokens": np.array(event.tokens, np.int32)}
    if event.text is not None:
        found["text_output"] = np.array([event.text.encode()], np.object_)
    return found


def _wrapped(response: bytes) -> bytes:
    """Return the stream's message with a response."""
    return field_head(_RESPONSE, len(response)) + response

"""The streams of one version of a model: decoded requests to streams, and tokens to text."""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from aioflow.errors import OpError, UnavailableError
from aioflow.interop.model import Model, TokenLoop
from aioflow.interop.token_loop import UTF8
from aioflow.serve.options import ModelOptions
from aioflow.serve.protocol.errors import MalformedRequestError
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.protocol.messages import scheduling
from aioflow.serve.protocol.schemas import FORMS, GENERATION
from aioflow.serve.tokens.engine import Reason, Sampling, TokenEngine, Tokens
from aioflow.serve.tokens.slots import Slots, SlotsStatistics
from aioflow.serve.tokens.steps import TokenSteps
from aioflow.session.session import Session
from aioflow.sync.background import Background

_LOG: Final = logging.getLogger("aioflow.serve")
_TOKENS: Final = 16  # of a request without `max_tokens`
_BYTES: Final = 256
_DRAINED: Final = 0.9  # of the drain time, when streams are ended
_REQUEST: Final = FORMS["GenerateRequest"]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request for a stream. `text` and `tokens` are the prompt; one of them is None.

    Attributes:
        most: Maximum number of tokens to generate.
        sampling: Sampling settings.
        timeout: Time limit in seconds; None for no limit of its own.
        id: Returned in the responses unchanged; "" for none.
    """

    text: str | None
    tokens: tuple[int, ...] | None
    most: int = _TOKENS
    sampling: Sampling = field(default_factory=Sampling)
    timeout: float | None = None
    id: str = ""


def read_generate(document: JsonObject) -> GenerateRequest:
    """Return the request in a JSON object. Raises MalformedRequestError."""
    _REQUEST.check(document, "the request")
    parameters = document.get("parameters") or {}
    GENERATION.check(parameters, "the request")
    text, tokens = document.get("text_input"), document.get("tokens")
    if (text is None) == (tokens is None):
        raise MalformedRequestError("the request has no prompt, or two", expected="either 'text_input' or 'tokens'")
    sampling = Sampling(
        float(parameters.get("temperature", 0.0)), parameters.get("top_k", Sampling.top_k), parameters.get("seed", 0)
    )
    return GenerateRequest(
        text,
        None if tokens is None else tuple(tokens),
        parameters.get("max_tokens", _TOKENS),
        sampling,
        # Not all parameters: streams have no priority, so its form is unchecked, as that of any unknown parameter.
        scheduling({"timeout": parameters.get("timeout", 0)})[0],
        document.get("id", ""),
    )


class TokenEvent(NamedTuple):
    """An event of a stream.

    Attributes:
        tokens: New tokens.
        text: Their text; None if the model has no text.
        reason: Why the stream has ended, in its last event.
    """

    tokens: tuple[int, ...]
    text: str | None
    reason: Reason | None = None


class TokenStreams:
    """The streams of a version. `start` runs its steps until `close`."""

    def __init__(self, session: Session, model: Model, loop: TokenLoop, options: ModelOptions) -> None:
        slots = options.max_batch_size
        steps = TokenSteps(session, model, loop, slots)
        self._engine = TokenEngine(steps, Slots(slots, steps.piece, slots * options.max_enqueued_batches))
        self._options = options
        self._warmed = 0  # tokens that no client requested
        self._background = Background()
        self._timer: asyncio.TimerHandle | None = None
        self.has_text = loop.encoding == UTF8

    @classmethod
    def of(cls, session: Session, model: Model, options: ModelOptions) -> TokenStreams | None:
        """Return the streams of a model, or None if it declares no loop over tokens."""
        return None if model.token_loop is None else cls(session, model, model.token_loop, options)

    async def start(self) -> None:
        """Start to run the steps of streams. With `ModelOptions.warmup`, run those of two short ones."""
        await self._background.start(self._run())
        if self._options.warmup:
            async with asyncio.TaskGroup() as group:
                for most in (2, 4):
                    group.create_task(self._warm(most))
            self._warmed = self._engine.statistics().made

    async def _warm(self, most: int) -> None:
        try:
            with self._engine.begin([0], most) as tokens:
                async for _ in tokens:
                    pass
        except OpError as error:
            _LOG.warning("the generation of tokens is not warmed up: %s", error)

    async def close(self) -> None:
        """End all streams with an UnavailableError."""
        if self._timer is not None:
            self._timer.cancel()
        self._engine.end(UnavailableError("the model is being unloaded"))
        await self._background.close()

    def finish(self, seconds: float) -> None:
        """End the remaining streams shortly before `seconds` have passed, while their errors can still be sent."""
        if self._timer is None:
            error = UnavailableError("the service is shutting down")
            self._timer = asyncio.get_running_loop().call_later(_DRAINED * seconds, self._engine.end, error)

    def statistics(self) -> SlotsStatistics:
        """Return the current numbers of streams, and that of the tokens made for clients."""
        found = self._engine.statistics()
        return replace(found, made=found.made - self._warmed)

    @property
    def steps(self) -> int:
        """The number of steps that have generated tokens."""
        return self._engine.steps

    async def _run(self) -> None:
        try:
            await self._engine.run()
        except Exception:
            _LOG.exception("the generation of tokens has failed")

    def begin(self, request: GenerateRequest, client: str = "") -> Tokens:
        """Begin a stream. Leave the block of the result, which ends it.

        Raises:
            MalformedRequestError: the prompt is a text, and the model has none.
            InvalidArgumentError, ResourceExhaustedError, ClosedSessionError: as for `TokenEngine.begin`.
        """
        if request.text is not None and not self.has_text:
            raise MalformedRequestError("the model has no encoding of text", expected="'tokens'", actual="'text_input'")
        prompt = list(request.text.encode("utf-8", "replace")) if request.text is not None else request.tokens or ()
        return self._engine.begin(
            prompt,
            request.most,
            sampling=request.sampling,
            timeout=self._options.limited(request.timeout),
            client=client,
        )

    async def events(self, tokens: Tokens) -> AsyncGenerator[TokenEvent, None]:
        """Yield an event for each token, and a last one with the reason for the end."""
        text = _Text()
        async for token in tokens:
            yield TokenEvent((token,), text.add(token) if self.has_text else None)
        yield TokenEvent((), text.end() if self.has_text else None, tokens.reason)


class _Text:
    """The text of a stream, decoded piece by piece, since a token may be a part of a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Return the text that a token completes. Tokens that are no bytes have no text."""
        return self._decoder.decode(bytes([token])) if token < _BYTES else ""

    def end(self) -> str:
        """Return the rest."""
        return self._decoder.decode(b"", True)


def streams_of(streams: TokenStreams | None, name: str) -> TokenStreams:
    """Return the streams of a model. Raise MalformedRequestError if it has none."""
    if streams is None:
        raise MalformedRequestError(
            f"model {name!r} generates no tokens", expected="a model saved with token_loop=", actual="none"
        )
    return streams

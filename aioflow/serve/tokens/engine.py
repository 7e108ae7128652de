"""Many token streams from one model: the task that runs its steps, and the reader's handle of a stream."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np

from aioflow.errors import (
    ClosedSessionError,
    DataLossError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    OpError,
)
from aioflow.memory.values import Array
from aioflow.serve.tokens.slots import Slots, SlotsStatistics, TokenStream

_LOG: Final = logging.getLogger("aioflow.serve")
Reason: TypeAlias = Literal["length", "stop"]


class TokenModel(Protocol):
    """The model interface that an engine uses. Calls are never concurrent.

    Attributes:
        positions: Maximum number of tokens of a stream.
        vocabulary: Number of tokens in the vocabulary.
        end_token: The token that ends a stream, if any.
    """

    positions: int
    vocabulary: int
    end_token: int | None

    def clear(self, slot: int) -> None:
        """Clear a slot for a new stream."""

    async def read(self, slot: int, tokens: Sequence[int]) -> Array:
        """Read the next tokens of a prompt in a slot; return the logits [V] of the following token."""

    async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Array]:
        """Read one token in each of some slots, in one step; return the logits [V] of the following token for each."""


@dataclass(frozen=True)
class Sampling:
    """The sampling settings of a stream.

    Attributes:
        temperature: Above 1 for more variety, below for less; 0 always selects the likeliest token.
        top_k: Number of likeliest tokens to sample from.
        seed: Equal seeds yield equal streams, independent of other streams.
    """

    temperature: float = 0.0
    top_k: int = 40
    seed: int = 0

    def __call__(self, logits: Array, number: int) -> int:
        """Return the stream's token of that number, from the logits [V]."""
        if not self.temperature:
            return int(logits.argmax())
        best = np.argpartition(-logits, min(self.top_k, len(logits)) - 1)[: self.top_k]
        noise = np.random.default_rng([self.seed, number]).gumbel(
            size=len(logits)
        )  # for the whole vocabulary, since the order of `best` is unspecified
        # Differences to the highest, in float64: a tiny temperature cannot overflow them to equal infinities.
        scores = np.asarray(logits[best], np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return int(best[((scores - scores.max()) / self.temperature + noise[best]).argmax()])


class Tokens:
    """The reader's handle of a stream: an async iterator. `TokenEngine.begin` creates it; leaving its block ends it.

        with engine.begin(prompt, 100) as tokens:
            async for token in tokens: ...

    Tokens are generated even if they are not read, so a slow reader delays no other stream. The maximum number of
    tokens of a stream limits the memory.

    Attributes:
        reason: Why the stream ended: "length" for its maximum number of tokens, "stop" for its end token; None before
            the end, and after an error.

    Raises:
        DeadlineExceededError: when iterated, after its time limit has passed.
        ClosedSessionError: when iterated, after the engine has ended.
        OpError: when iterated, after a step of the stream has failed.
    """

    def __init__(self, slots: Slots, stream: TokenStream, sampling: Sampling, end_token: int | None = None) -> None:
        self.stream = stream
        self.sampling = sampling
        self.last = 0
        self.reason: Reason | None = None
        self._end_token = end_token
        self._slots = slots
        self._made: asyncio.Queue[int | OpError | None] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def __aiter__(self) -> Tokens:
        return self

    async def __anext__(self) -> int:
        made = await self._made.get()
        if isinstance(made, int):
            return made
        self._made.put_nowait(made)  # for later calls
        if made is None:
            raise StopAsyncIteration
        raise made

    def __enter__(self) -> Tokens:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    # -- for the engine ------------------------------------------------------------------------------------------------

    def limit(self, seconds: float) -> None:
        """End the stream after `seconds` seconds."""
        error = DeadlineExceededError(
            "the stream has not ended in time", expected=f"at most {seconds} s", actual="still generating"
        )
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end, error)

    def give(self, logits: Array) -> None:
        """Select the next token from its logits [V], and add it unless it is the end token, which ends the stream."""
        if np.isnan(logits).any():
            self.end(DataLossError("the model has returned logits that are no numbers", actual="NaN"))
            return
        self.last = self.sampling(logits, self.stream.made)
        if self.last == self._end_token:
            self.reason = "stop"
            self.end()
            return
        self._made.put_nowait(self.last)
        self._slots.wrote(self.stream)
        if self.stream.has_left:
            self.reason = "length"
            self.end()

    def end(self, error: OpError | None = None, *, at_once: bool = False) -> None:
        """End the stream, with the error if there is one, and free its slot.

        With `at_once`, the error comes before the tokens that have not been read.
        """
        if self._is_over:
            return
        self._is_over = True
        self._slots.leave(self.stream)
        while at_once and not self._made.empty():
            self._made.get_nowait()
        self._made.put_nowait(copy.copy(error))  # copied, since several streams may share the error
        if self._timer is not None:
            self._timer.cancel()


class TokenEngine:
    """The generator of the tokens of all streams; created by `token_engine`."""

    def __init__(self, model: TokenModel, slots: Slots) -> None:
        self._model = model
        self._slots = slots
        self._tokens: dict[TokenStream, Tokens] = {}
        self._wake = asyncio.Event()
        self._is_closed = False
        self.steps = 0

    def begin(
        self,
        prompt: Sequence[int],
        most: int,
        *,
        sampling: Sampling = Sampling(),  # a shared default is safe, since the class is frozen
        timeout: float | None = None,
        client: str = "",
    ) -> Tokens:
        """Begin a new stream. It waits in the queue if no slot is free.

        Args:
            prompt: Tokens to continue.
            most: Maximum number of tokens to generate; fewer if the stream reaches the model's last position.
            sampling: Sampling settings.
            timeout: Time limit of the whole stream in seconds, including the wait.
            client: Client of the stream; waiting clients take turns.

        Raises:
            InvalidArgumentError: the prompt does not fit.
            ResourceExhaustedError: the queue is full.
            ClosedSessionError: the engine has ended.
        """
        if self._is_closed:
            raise ClosedSessionError("the engine is closed", expected="a running engine", actual="closed")
        positions, vocabulary = self._model.positions, self._model.vocabulary
        if len(prompt) > positions or not all(0 <= token < vocabulary for token in prompt):
            raise InvalidArgumentError(
                "the prompt does not fit the model",
                expected=f"at most {positions} tokens below {vocabulary}",
                actual=f"{len(prompt)} tokens, the largest {max(prompt)}",
            )
        stream = TokenStream(prompt, min(most, positions - len(prompt) + 1), client)
        self._slots.join(stream)
        tokens = self._tokens[stream] = Tokens(self._slots, stream, sampling, self._model.end_token)
        if timeout is not None:
            tokens.limit(timeout)
        self._wake.set()
        return tokens

    def statistics(self) -> SlotsStatistics:
        """Return the numbers of streams."""
        return self._slots.statistics()

    def end(self, error: OpError) -> None:
        """Refuse new streams, and end all others with the error."""
        self._is_closed = True
        for stream in self._slots.streams():
            # A reader that is behind must get the error before its connection is closed.
            self._tokens[stream].end(error, at_once=True)

    async def run(self) -> None:
        """Run steps until cancelled."""
        try:
            while True:
                await asyncio.sleep(0)  # short steps never suspend, so let other tasks run
                self._forget()
                for stream in self._slots.place():
                    if stream.slot is not None:
                        self._model.clear(stream.slot)
                if not await self._read() | await self._write():
                    self._wake.clear()  # no stream can have arrived since: no other task has run
                    await self._wake.wait()
        finally:
            self.end(ClosedSessionError("the engine has ended", actual="an unfinished stream"))

    def _forget(self) -> None:
        for stream in [stream for stream in self._tokens if stream.has_left]:
            del self._tokens[stream]

    async def _read(self) -> bool:
        """Read a piece of a prompt and return True if there was one. The last piece of a prompt yields a token."""
        piece = self._slots.next_piece()
        if piece is None:
            return False
        stream, slot, begin, end = piece
        try:
            logits = await self._model.read(slot, stream.prompt[begin:end])
            if self._slots.was_read(piece):
                self._tokens[stream].give(logits)
        except Exception as error:  # of the model: other streams go on
            self._tokens[stream].end(_typed(error))
        return True

    async def _write(self) -> bool:
        """Generate a token of each stream whose prompt has been read. Return True if there was one."""
        writing = self._slots.writing()
        if not writing:
            return False
        self.steps += 1
        tokens = {slot: self._tokens[stream] for slot, stream in writing.items()}
        try:
            logits = await self._model.write({slot: each.last for slot, each in tokens.items()})
            for slot, each in tokens.items():
                if not each.stream.has_left:
                    each.give(logits[slot])
        except Exception as error:  # of the model: streams that wait or read their prompts go on
            for each in tokens.values():
                each.end(_typed(error))
        return True


def _typed(error: Exception) -> OpError:
    """Return an error for the readers of a stream. An error of another class is logged, since it is a fault."""
    if isinstance(error, OpError):
        return error
    _LOG.error("a step of token streams has failed", exc_info=error)
    return InternalError(f"the step has failed: {type(error).__name__}: {error}")


@asynccontextmanager
async def token_engine(
    model: TokenModel, slots: int, *, piece: int = 32, most_waiting: int = 64
) -> AsyncIterator[TokenEngine]:
    """Run an engine during the block. At its end, the remaining streams are ended.

    Args:
        model: The model.
        slots: Number of streams that are generated at once.
        piece: Number of prompt tokens that are read between two steps.
        most_waiting: Maximum number of streams in the queue.
    """
    engine = TokenEngine(model, Slots(slots, piece, most_waiting))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(engine.run())
        try:
            yield engine
        finally:
            task.cancel()

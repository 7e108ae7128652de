"""Many streams of tokens from one model: the task that runs its steps, and what a stream's reader holds."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from aioflow.errors import (
    ClosedSessionError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
)
from examples.web.tokens.computing import Computing
from examples.web.tokens.slots import Slots, SlotsStatistics, Stream

__all__ = ["Choice", "Engine", "Tokens", "running"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Choice:
    """How a token is chosen.

    Attributes:
        temperature: Above 1 for more variety, below for less; 0 for the likeliest token, always.
        top_k: How many of the likeliest tokens to draw from.
        seed: Equal seeds give equal streams, whatever the others do.
    """

    temperature: float = 0.0
    top_k: int = 40
    seed: int = 0

    def __call__(self, logits: Array, number: int) -> int:
        """The stream's token of that number, by the logits [V]."""
        if not self.temperature:
            return int(logits.argmax())
        best = np.argpartition(-logits, min(self.top_k, len(logits)) - 1)[: self.top_k]
        noise = np.random.default_rng([self.seed, number]).gumbel(size=len(logits))  # one a token, in whatever order
        return int(best[(logits[best] / self.temperature + noise[best]).argmax()])


class Tokens:
    """A stream, for who reads it: an async iterator. `Engine.begin` makes it, and leaving its block ends the stream.

        with engine.begin(prompt, 100) as tokens:
            async for token in tokens: ...

    It is made whether or not it is read: whoever reads slowly holds up nobody.

    Raises, as an iterator:
        DeadlineExceededError: its time limit has passed.
        ClosedSessionError: the engine has ended.
        OpError: a step of it failed.
    """

    def __init__(self, slots: Slots, stream: Stream, choice: Choice) -> None:
        self.stream = stream
        self.choice = choice
        self.last = 0
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
        self._made.put_nowait(made)  # for who asks again
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
        """End the stream when so many have passed."""
        error = DeadlineExceededError(
            "the stream was not at its end in time", expected=f"at most {seconds} s", actual="still being made"
        )
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end, error)

    def give(self, logits: Array) -> None:
        """The next token, by its logits [V]."""
        self.last = self.choice(logits, self.stream.made)
        self._made.put_nowait(self.last)
        self._slots.wrote(self.stream)
        if self.stream.has_left:
            self.end()

    def end(self, error: OpError | None = None) -> None:
        """Nothing more comes, on account of that error if there is one. Its slot is free."""
        if self._is_over:
            return
        self._is_over = True
        self._slots.leave(self.stream)
        self._made.put_nowait(copy.copy(error))  # which may be that of many
        if self._timer is not None:
            self._timer.cancel()


class Engine:
    """Makes the tokens of all streams. `running` makes it."""

    def __init__(self, computing: Computing, slots: Slots) -> None:
        self._computing = computing
        self._slots = slots
        self._tokens: dict[Stream, Tokens] = {}
        self._wake = asyncio.Event()
        self._is_closed = False
        self.steps = 0

    def begin(
        self,
        prompt: Sequence[int],
        most: int,
        *,
        choice: Choice = Choice(),  # it is frozen
        timeout: float | None = None,
        client: str = "",
    ) -> Tokens:
        """A new stream. It waits in line if there is no slot free.

        Args:
            prompt: The tokens that it goes on from.
            most: How many to make; fewer if the stream comes to the model's last position.
            choice: How they are chosen.
            timeout: Seconds that the whole stream may take, in line and after.
            client: Whose it is: clients take turns in the line.

        Raises:
            InvalidArgumentError: the prompt does not fit.
            ResourceExhaustedError: the line is full.
            ClosedSessionError: the engine has ended.
        """
        if self._is_closed:
            raise ClosedSessionError("the engine is closed", expected="streams before", actual="closed")
        positions, vocabulary = self._computing.positions, self._computing.vocabulary
        if len(prompt) > positions or not all(0 <= token < vocabulary for token in prompt):
            raise InvalidArgumentError(
                "the prompt does not fit the model",
                expected=f"at most {positions} tokens below {vocabulary}",
                actual=f"{len(prompt)} tokens, the largest {max(prompt)}",
            )
        stream = Stream(prompt, min(most, positions - len(prompt) + 1), client)
        self._slots.join(stream)
        tokens = self._tokens[stream] = Tokens(self._slots, stream, choice)
        if timeout is not None:
            tokens.limit(timeout)
        self._wake.set()
        return tokens

    def statistics(self) -> SlotsStatistics:
        """How many streams there are."""
        return self._slots.statistics()

    async def run(self) -> None:
        """Step after step, until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(0)  # steps that take microseconds need not wait for anything
                self._forget()
                for stream in self._slots.place():
                    if stream.slot is not None:
                        self._computing.clear(stream.slot)
                if not await self._read() | await self._write():
                    self._wake.clear()  # nothing has come since: there was no other's turn in between
                    await self._wake.wait()
        finally:
            self._is_closed = True
            for stream in self._slots.everybody():
                self._tokens[stream].end(ClosedSessionError("the engine has ended", actual="a stream that had not"))

    def _forget(self) -> None:
        for stream in [stream for stream in self._tokens if stream.has_left]:
            del self._tokens[stream]

    async def _read(self) -> bool:
        """Read a piece of a prompt; whether there was one. The last piece of it gives a first token."""
        piece = self._slots.next_piece()
        if piece is None:
            return False
        stream, slot, begin, end = piece
        try:
            logits = await self._computing.read(slot, stream.prompt[begin:end])
        except OpError as error:
            self._tokens[stream].end(error)
        else:
            if self._slots.was_read(piece):
                self._tokens[stream].give(logits)
        return True

    async def _write(self) -> bool:
        """Make a token of each stream that has been read; whether there was one."""
        writing = self._slots.writing()
        if not writing:
            return False
        self.steps += 1
        tokens = {slot: self._tokens[stream] for slot, stream in writing.items()}
        try:
            logits = await self._computing.write({slot: each.last for slot, each in tokens.items()})
        except OpError as error:
            for each in tokens.values():
                each.end(error)
        else:
            for slot, each in tokens.items():
                if not each.stream.has_left:
                    each.give(logits[slot])
        return True


@asynccontextmanager
async def running(
    computing: Computing, slots: int, *, piece: int = 32, most_waiting: int = 64
) -> AsyncIterator[Engine]:
    """An engine that runs in the block. At its end streams that have not ended are ended.

    Args:
        slots: How many streams are made at once.
        piece: How many tokens of a prompt are read between two steps.
        most_waiting: How many streams may wait in line.
    """
    engine = Engine(computing, Slots(slots, piece, most_waiting))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(engine.run())
        try:
            yield engine
        finally:
            task.cancel()

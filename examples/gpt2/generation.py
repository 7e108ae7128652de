"""Streams of tokens, as async generators: the cache of a stream is an array of its own, which its steps are fed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

import aioflow as af
from examples.gpt2.model import Config, Model, Step

__all__ = ["Cache", "generate", "generate_many"]

Array = np.ndarray[Any, Any]


class Cache:
    """The keys and values of some streams.

    Each step is fed a view of it and gives back the rows of its new tokens, so nothing of the past is copied, and what
    a cancelled step would have added is not there.

    Attributes:
        lengths: How many tokens each stream has.
    """

    def __init__(self, config: Config, rows: int) -> None:
        self.lengths = np.zeros(rows, np.int32)
        # Pages that nothing has been written to take no memory.
        self._rows = np.zeros(
            (config.n_layer, 2, rows, config.n_head, config.n_positions, config.head_size), np.float32
        )

    def past(self, rows: slice = slice(None), length: int | None = None) -> Array:
        """What the next step of these streams is fed: [L, 2, B, H, T, D], T as given or that of the longest of them."""
        return self._rows[:, :, rows, :, : self.lengths[rows].max() if length is None else length, :]

    def add(self, new: Array, row: int | None = None) -> None:
        """Keys and values of new tokens [L, 2, B, H, N, D], of all streams or of one."""
        for i in range(len(self.lengths)) if row is None else [row]:
            self.add_row(new[:, :, i if row is None else 0], i)

    def add_row(self, new: Array, row: int) -> None:
        """Keys and values of new tokens of a stream: [L, 2, H, N, D]."""
        end = self.lengths[row] + new.shape[-2]
        self._rows[:, :, row, :, self.lengths[row] : end] = new
        self.lengths[row] = end

    def clear(self, row: int) -> None:
        """Another stream begins in this row. Of the one before nothing is left, not even what would only be multiplied
        by 0: that may be infinite.
        """
        self._rows[:, :, row, :, : self.lengths[row]] = 0
        self.lengths[row] = 0


@dataclass(frozen=True)
class _Drawing:
    """How tokens are drawn."""

    temperature: float
    top_k: int
    seed: int

    def feeds(self, step: Step, number: tuple[int, int]) -> dict[af.Tensor, Any]:
        """What a step is fed; each has other random numbers, by its own number."""
        seed = np.array([self.seed, number[0] * 65_537 + number[1]], np.int32)
        return {step.temperature: np.float32(self.temperature), step.top_k: np.int32(self.top_k), step.seed: seed}


async def generate_many(
    session: af.Session,
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    most: int = 100,
    temperature: float = 1.0,
    top_k: int = 40,
    seed: int = 0,
) -> AsyncGenerator[list[int], None]:
    """One more token of each stream, again and again, by one step for all of them.

    Args:
        session: Of the model's graph, with values in the variables. Others may use it at the same time.
        prompts: The tokens of each stream so far, one at least.
        most: How many tokens to make; fewer if a stream comes to the model's last position.
        temperature: Above 1 for more variety, below for less; 0 for the likeliest token, always.
        top_k: How many of the likeliest tokens to draw from.
        seed: Equal seeds give equal streams.
    """
    config = model.config
    cache = Cache(config, len(prompts))
    draw = _Drawing(temperature, min(top_k, config.vocab_size), seed)
    tokens: list[int] = []
    for row, prompt in enumerate(prompts):
        alone = Cache(config, 1)
        new, drawn = await _run(session, model.prompt, alone, [[*prompt]], draw, (0, row))
        cache.add(new, row)
        tokens += drawn
    step = model.one if len(prompts) == 1 else model.many
    for count in range(1, most + 1):
        yield tokens
        if count == most or cache.lengths.max() == config.n_positions:
            return
        new, tokens = await _run(session, step, cache, [[t] for t in tokens], draw, (count, 0))
        cache.add(new)


async def _run(
    session: af.Session, step: Step, cache: Cache, tokens: list[list[int]], draw: _Drawing, number: tuple[int, int]
) -> tuple[Array, list[int]]:
    """Read tokens, and draw the next ones: the cache's new rows, and these."""
    feeds = {step.tokens: np.array(tokens, np.int32), step.lengths: cache.lengths, step.past: cache.past()}
    if draw.temperature > 0:
        feeds |= draw.feeds(step, number)
    new, drawn = await session.run([step.new, step.next_tokens if draw.temperature > 0 else step.likeliest], feeds)
    return new, drawn.tolist()


async def generate(
    session: af.Session, model: Model, prompt: Sequence[int], **options: Any
) -> AsyncGenerator[int, None]:
    """The tokens that come after `prompt`, one by one. Options as of `generate_many`."""
    async with aclosing(generate_many(session, model, [prompt], **options)) as streams:
        async for (token,) in streams:
            yield token

"""Streams of tokens as async generators. The cache of a stream is a separate array, which is fed to its steps."""

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

    Each step is fed a view of the cache and returns the rows of its new tokens. The past is therefore never copied, and
    a cancelled step leaves no trace.

    Attributes:
        lengths: Number of tokens of each stream.
    """

    def __init__(self, config: Config, rows: int) -> None:
        self.lengths = np.zeros(rows, np.int32)
        # Pages that have not been written use no memory.
        self._rows = np.zeros(
            (config.n_layer, 2, rows, config.n_head, config.n_positions, config.head_size), np.float32
        )

    def past(self, rows: slice = slice(None), length: int | None = None) -> Array:
        """Return the feed of the next step of these streams: [L, 2, B, H, T, D].

        T is `length`, by default that of the longest of these streams.
        """
        return self._rows[:, :, rows, :, : self.lengths[rows].max() if length is None else length, :]

    def add(self, new: Array, row: int | None = None) -> None:
        """Add keys and values of new tokens [L, 2, B, H, N, D], of all streams or of one."""
        for i in range(len(self.lengths)) if row is None else [row]:
            self.add_row(new[:, :, i if row is None else 0], i)

    def add_row(self, new: Array, row: int) -> None:
        """Add keys and values of new tokens of one stream: [L, 2, H, N, D]."""
        end = self.lengths[row] + new.shape[-2]
        self._rows[:, :, row, :, self.lengths[row] : end] = new
        self.lengths[row] = end

    def clear(self, row: int) -> None:
        """Clear a row for a new stream."""
        # Masked values are multiplied by 0, which does not remove infinities, so overwrite them.
        self._rows[:, :, row, :, : self.lengths[row]] = 0
        self.lengths[row] = 0


@dataclass(frozen=True)
class _Drawing:
    """The sampling settings."""

    temperature: float
    top_k: int
    seed: int

    def feeds(self, step: Step, number: tuple[int, int]) -> dict[af.Tensor, Any]:
        """Return the sampling feeds of a step; its number selects its random numbers."""
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
    """Yield the next token of each stream, repeatedly, with one step for all streams.

    Args:
        session: Session of the model's graph, with initialized variables. It may be used concurrently.
        model: The model.
        prompts: Tokens of each stream so far, at least one.
        most: Maximum number of tokens to generate; fewer if a stream reaches the model's last position.
        temperature: Above 1 for more variety, below for less; 0 always selects the likeliest token.
        top_k: Number of likeliest tokens to sample from.
        seed: Equal seeds yield equal streams.
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
    """Read tokens and select the next ones. Return the new rows of the cache and the selected tokens."""
    feeds = {step.tokens: np.array(tokens, np.int32), step.lengths: cache.lengths, step.past: cache.past()}
    if draw.temperature > 0:
        feeds |= draw.feeds(step, number)
    new, drawn = await session.run([step.new, step.next_tokens if draw.temperature > 0 else step.likeliest], feeds)
    return new, drawn.tolist()


async def generate(
    session: af.Session, model: Model, prompt: Sequence[int], **options: Any
) -> AsyncGenerator[int, None]:
    """Yield the tokens that follow `prompt`, one by one. `options` are those of `generate_many`."""
    async with aclosing(generate_many(session, model, [prompt], **options)) as streams:
        async for (token,) in streams:
            yield token

"""The model and its caches: a row of one cache for each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import aioflow as af
from examples.gpt2.generation import Cache
from examples.gpt2.model import Model

__all__ = ["Computing", "Gpt2"]

Array = np.ndarray[Any, Any]


class Computing(Protocol):
    """What an engine runs. One call of it is in progress at a time.

    Attributes:
        positions: How many tokens a stream may have.
        vocabulary: How many tokens there are.
    """

    positions: int
    vocabulary: int

    def clear(self, slot: int) -> None:
        """Another stream begins there."""

    async def read(self, slot: int, tokens: Sequence[int]) -> Array:
        """Read tokens of a prompt behind what has been read in that slot: [V], logits of the next one."""

    async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Array]:
        """Read one token in each of some slots, in one step: for each of them [V], logits of the next one."""


class Gpt2:
    """The transformer of `examples/gpt2`.

    Args:
        session: Of the model's graph, with values in the variables.
        slots: How many streams there may be.
    """

    def __init__(self, session: af.Session, model: Model, slots: int) -> None:
        self.positions = model.config.n_positions
        self.vocabulary = model.config.vocab_size
        self._session = session
        self._model = model
        self._cache = Cache(model.config, slots)

    def clear(self, slot: int) -> None:
        """Another stream begins there."""
        self._cache.clear(slot)

    async def read(self, slot: int, tokens: Sequence[int]) -> Array:
        """Read tokens of a prompt behind what has been read in that slot: [V], logits of the next one."""
        step, cache, here = self._model.prompt, self._cache, slice(slot, slot + 1)
        feeds = {step.tokens: [tokens], step.lengths: cache.lengths[here], step.past: cache.past(here)}
        new, logits = await self._session.run([step.new, step.last_logits], feeds)
        cache.add_row(new[:, :, 0], slot)
        row: Array = logits[0]
        return row

    async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Array]:
        """Read one token in each of some slots, in one step: for each of them [V], logits of the next one.

        The step has all slots up to the last of these, since rows that lie together are fed without a copy. To it the
        others are empty, and what it computes for them is looked at by nobody.
        """
        count, slots = max(tokens) + 1, list(tokens)
        step = self._model.one if count == 1 else self._model.many
        lengths = np.zeros(count, np.int32)
        lengths[slots] = self._cache.lengths[slots]
        feeds = {
            step.tokens: [[tokens.get(slot, 0)] for slot in range(count)],
            step.lengths: lengths,
            step.past: self._cache.past(slice(count), lengths.max()),
        }
        new, logits = await self._session.run([step.new, step.last_logits], feeds)
        for slot in tokens:
            self._cache.add_row(new[:, :, slot], slot)
        return {slot: logits[slot] for slot in tokens}

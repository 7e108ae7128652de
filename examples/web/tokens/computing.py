"""The model and its caches: one cache with a row for each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import aioflow as af
from examples.gpt2.generation import Cache
from examples.gpt2.model import Model

__all__ = ["Gpt2"]

Array = np.ndarray[Any, Any]


class Gpt2:
    """The transformer of `examples/gpt2`.

    Args:
        session: Session of the model's graph, with initialized variables.
        model: The model.
        slots: Maximum number of streams.
    """

    def __init__(self, session: af.Session, model: Model, slots: int) -> None:
        self.positions = model.config.n_positions
        self.vocabulary = model.config.vocab_size
        self.end_token: int | None = None
        self._session = session
        self._model = model
        self._cache = Cache(model.config, slots)

    def clear(self, slot: int) -> None:
        """Clear a slot for a new stream."""
        self._cache.clear(slot)

    async def read(self, slot: int, tokens: Sequence[int]) -> Array:
        """Read the next tokens of a prompt in a slot; return the logits [V] of the following token."""
        step, cache, here = self._model.prompt, self._cache, slice(slot, slot + 1)
        feeds = {step.tokens: [tokens], step.lengths: cache.lengths[here], step.past: cache.past(here)}
        new, logits = await self._session.run([step.new, step.last_logits], feeds)
        cache.add_row(new[:, :, 0], slot)
        row: Array = logits[0]
        return row

    async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Array]:
        """Read one token in each of some slots, in one step; return the logits [V] of the following token for each.

        The step includes all slots up to the last one used, since contiguous rows are fed without a copy. It treats the
        other slots as empty, and their results are ignored.
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

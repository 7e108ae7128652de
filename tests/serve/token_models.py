"""The GPT-2 example as a saved model that generates tokens, and the same model in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import aioflow as af
from benchmarks.plain_gpt2 import PlainModel
from examples.gpt2.model import Config, Model
from examples.gpt2.saving import save

__all__ = ["CONFIG", "alone", "counted_alone", "saved", "saved_counting"]

CONFIG = Config(n_layer=2, n_head=3, n_embd=24, n_positions=40, vocab_size=256)


async def saved(folder: Path, seed: int = 1) -> dict[str, Any]:
    """Save a model with large random weights, and return them. They make the likeliest token win by far."""
    model, rng, weights = Model(CONFIG), np.random.default_rng(seed), {}
    async with af.Session(graph=model.graph) as session:
        for variable in session.graph.get_collection(af.GraphKeys.GLOBAL_VARIABLES):
            value = weights[variable.op.name.replace("/", ".")] = rng.normal(size=variable.shape).astype("f") / 2
            await variable.load(value, session)
        await save(session, model, folder, is_text=True)
    return weights


def alone(weights: dict[str, Any], prompt: Sequence[int], most: int) -> list[int]:
    """Return the tokens of a stream by the model in NumPy."""
    plain, text, found = PlainModel(CONFIG, weights), np.array([[*prompt]]), []
    for _ in range(min(most, CONFIG.n_positions - len(prompt) + 1)):
        text = plain.logits(text)[:, -1:].argmax(-1)
        found.append(text.item())
    return found


def next_token(text: Sequence[int]) -> int:
    """Return the token that the model of `saved_counting` finds likeliest."""
    return sum(text) * 7 % 11


async def saved_counting(folder: Path, end_token: int | None = None) -> Path:
    """Save a model without text whose state, the sum of the tokens, has no length. Its streams may be very long."""
    with af.Graph().as_default() as graph:
        tokens = af.placeholder("int32", [None, None], name="tokens")
        total = af.placeholder("int64", [None, 1], name="total")
        new = total + af.cast(af.reduce_sum(tokens, axis=1, keepdims=True), "int64")
        likeliest = af.cast(af.floormod(new[:, 0] * 7, 11), "int32")
        signature = af.saved.Signature(
            {"tokens": tokens, "total": total}, {"logits": af.one_hot(likeliest, 11), "new": new}
        )
    loop = af.saved.TokenLoop(
        "tokens", "logits", 1_000_000, (af.saved.TokenState("total", "new"),), end_token=end_token
    )
    async with af.Session(graph=graph) as session:
        await af.saved.save(session, folder, signature, token_loop=loop)
    return folder


def counted_alone(prompt: Sequence[int], most: int) -> list[int]:
    """Return the tokens of a stream of the model of `saved_counting`."""
    text = [*prompt]
    for _ in range(most):
        text.append(next_token(text))
    return text[len(prompt) :]

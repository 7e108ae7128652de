"""Two small models of digits, saved by `aioflow.saved`: the initial models of `two_models.py`."""

from __future__ import annotations

from pathlib import Path

import aioflow as af
from aioflow.demo.digits import load_digits

__all__ = ["make_models"]


async def make_models(folder: Path) -> None:
    """Train and save `digits`, versions 1 and 2, and `strokes`, version 1.

    `digits` maps pixels [n, 64] to probabilities [n, 10], `strokes` maps pixels [n, 64] to distances [n].
    """
    for number, units in enumerate((8, 32), 1):
        await _make_digits(folder / "digits" / str(number), units)
    await _make_strokes(folder / "strokes" / "1")


async def _make_digits(folder: Path, units: int) -> None:
    digits = load_digits()
    with af.Graph().as_default() as graph:
        af.set_random_seed(units)
        pixels, labels = af.placeholder(af.float32, [None, 64]), af.placeholder(af.int32, [None])
        hidden = af.nn.relu(af.matmul(pixels, af.get_variable("hidden", [64, units])))
        logits = af.matmul(hidden, af.get_variable("output", [units, 10]))
        probabilities = af.nn.softmax(logits)
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        train = af.train.AdamOptimizer(0.02).minimize(loss)
        initialize = af.global_variables_initializer()
    async with af.Session(graph=graph) as session:
        await session.run(initialize)
        for _ in range(100):
            await session.run(train, {pixels: digits.images, labels: digits.labels})
        await af.saved.save(session, folder, af.saved.Signature({"pixels": pixels}, {"probabilities": probabilities}))


async def _make_strokes(folder: Path) -> None:
    """Train and save an autoencoder; an image with a large reconstruction error is not a digit."""
    digits = load_digits()
    with af.Graph().as_default() as graph:
        af.set_random_seed(1)
        pixels = af.placeholder(af.float32, [None, 64])
        code = af.tanh(af.matmul(pixels, af.get_variable("encoder", [64, 16])))
        given_back = af.matmul(code, af.get_variable("decoder", [16, 64]))
        distances = af.reduce_mean(af.square(given_back - pixels), 1)
        train = af.train.AdamOptimizer(0.02).minimize(af.reduce_mean(distances))
        initialize = af.global_variables_initializer()
    async with af.Session(graph=graph) as session:
        await session.run(initialize)
        for _ in range(100):
            await session.run(train, {pixels: digits.images})
        await af.saved.save(session, folder, af.saved.Signature({"pixels": pixels}, {"distances": distances}))

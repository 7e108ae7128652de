"""A character model: an LSTM in a `while_loop`, trained by its gradient: `python examples/char_model.py --text FILE`.

The text is split into as many streams as the batch has rows; the state of the LSTM continues from batch to batch. The
last tenth of the text is held out. At the end the model generates text, again in a `while_loop`: each iteration draws a
character and feeds it back.

On a megabyte of Shakespeare the loss falls below 2 nats per character within a minute on two cores. With `--precision
bfloat16` the products are computed in 16 bits, and the losses agree to two digits.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aioflow as af

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Corpus:
    """A text as numbers: indices into `alphabet`, int32."""

    alphabet: str
    train: Array
    held_out: Array

    @classmethod
    def of(cls, text: str) -> Corpus:
        """Return the corpus of a text, with its last tenth held out."""
        alphabet = "".join(sorted(set(text)))
        position = {c: i for i, c in enumerate(alphabet)}
        codes = np.array([position[c] for c in text], np.int32)
        end = len(codes) * 9 // 10
        return cls(alphabet, codes[:end], codes[end:])


class LSTM:
    """One LSTM layer over characters (Hochreiter & Schmidhuber 1997, with a forget gate).

    Args:
        characters: Size of the alphabet.
        units: Size of the state.
    """

    def __init__(self, characters: int, units: int) -> None:
        self.units = units
        with af.variable_scope("lstm"):
            self._inputs = af.get_variable("inputs", [characters, 4 * units])
            self._recurrent = af.get_variable("recurrent", [units, 4 * units])
            self._bias = af.get_variable("bias", [4 * units], initializer=af.zeros_initializer())
            self._logits = af.get_variable("logits", [units, characters])

    def cell(self, projected: af.Tensor, h: af.Tensor, c: af.Tensor) -> tuple[af.Tensor, af.Tensor]:
        """Return the next output and state, [batch, units] each, from the input's projection [batch, 4 · units]."""
        gates = af.nn.bias_add(projected + af.matmul(h, self._recurrent), self._bias)
        keep, write, show, new = af.split(gates, 4, axis=1)
        c = af.sigmoid(keep + 1.0) * c + af.sigmoid(write) * af.tanh(new)
        return af.sigmoid(show) * af.tanh(c), c

    def project(self, characters: af.Tensor) -> af.Tensor:
        """Return the contribution of a character to the gates."""
        return af.gather(self._inputs, characters)

    def logits(self, h: af.Tensor) -> af.Tensor:
        """Return the logits of the next character."""
        return af.matmul(h, self._logits)

    def run(self, characters: af.Tensor, h: af.Tensor, c: af.Tensor) -> tuple[af.Tensor, af.Tensor, af.Tensor]:
        """Run over characters [time, batch]; return outputs [time, batch, units], and the last output and state."""
        steps = af.shape(characters)[0]
        inputs = af.TensorArray(af.float32, size=steps).unstack(self.project(characters))
        outputs = af.TensorArray(af.float32, size=steps)

        def step(t: af.Tensor, h: af.Tensor, c: af.Tensor, outputs: af.TensorArray) -> Any:
            h, c = self.cell(inputs.read(t), h, c)
            return t + 1, h, c, outputs.write(t, h)

        _, h, c, outputs = af.while_loop(lambda t, *_: t < steps, step, (0, h, c, outputs))
        return outputs.stack(), h, c

    def write(self, first: af.Tensor, length: int) -> af.Tensor:
        """Generate `length` characters after `first`, each sampled from the model's prediction."""
        written = af.TensorArray(af.int32, size=length)
        zeros = af.zeros([1, self.units])

        def step(t: af.Tensor, last: af.Tensor, h: af.Tensor, c: af.Tensor, written: af.TensorArray) -> Any:
            h, c = self.cell(self.project(last), h, c)
            drawn = af.reshape(af.multinomial(self.logits(h), 1, output_dtype=af.int32), [1])
            return t + 1, drawn, h, c, written.write(t, drawn[0])

        *_, written = af.while_loop(lambda t, *_: t < length, step, (0, first, zeros, zeros, written))
        text: af.Tensor = written.stack()
        return text


def batches(codes: Array, rows: int, steps: int) -> Iterator[tuple[Array, Array, bool]]:
    """Yield characters [steps, rows], the characters that follow, and True where the streams restart; the text once."""
    length = (len(codes) - 1) // rows
    streams = np.stack([codes[i * length : (i + 1) * length + 1] for i in range(rows)], axis=1)
    for start in range(0, length - steps + 1, steps):
        yield streams[start : start + steps], streams[start + 1 : start + steps + 1], start == 0


class Model:
    """The graph of training, evaluation and generation."""

    def __init__(self, characters: int, units: int, precision: str = "float32") -> None:
        self.lstm = LSTM(characters, units)
        self.inputs = af.placeholder(af.int32, [None, None])
        self.targets = af.placeholder(af.int32, [None, None])
        self.state = [af.placeholder(af.float32, [None, units]) for _ in range(2)]
        outputs, *self.last_state = self.lstm.run(self.inputs, *self.state)
        logits = self.lstm.logits(af.reshape(outputs, [-1, units]))
        self.loss = af.reduce_mean(
            af.nn.sparse_softmax_cross_entropy_with_logits(labels=af.reshape(self.targets, [-1]), logits=logits)
        )
        optimizer: af.train.Optimizer = af.train.AdamOptimizer(3e-3)
        if precision != "float32":  # of the products; the range of float16 is so small that the loss needs scaling
            enable = af.train.experimental.enable_mixed_precision_graph_rewrite
            optimizer = enable(optimizer, "dynamic" if precision == "float16" else 1, precision)
        gradients, variables = zip(*optimizer.compute_gradients(self.loss), strict=True)
        clipped, _ = af.clip_by_global_norm(list(gradients), 1.0)
        self.minimize = optimizer.apply_gradients(zip(clipped, variables, strict=True))

    async def losses(
        self, session: af.Session, codes: Array, rows: int, steps: int, fetch: af.Operation | None = None
    ) -> Any:
        """Yield the loss of each batch, running `fetch` in the same step if given."""
        state = [np.zeros([rows, self.lstm.units], np.float32)] * 2
        for inputs, targets, anew in batches(codes, rows, steps):
            carried = [np.zeros_like(s) for s in state] if anew else state
            feeds = {self.inputs: inputs, self.targets: targets, **dict(zip(self.state, carried, strict=True))}
            fetches = [self.loss, self.last_state, *([] if fetch is None else [fetch])]
            loss, state, *_ = await session.run(fetches, feeds)
            yield float(loss)


async def train(
    corpus: Corpus,
    units: int,
    rows: int,
    steps: int,
    seconds: float,
    most: float = np.inf,
    precision: str = "float32",
) -> float:
    """Train for `seconds`, or on `most` batches. Return nats per character on the held-out text."""
    model = Model(len(corpus.alphabet), units, precision)
    text = model.lstm.write(af.constant([0]), 300)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        started, done = time.perf_counter(), 0
        recent: list[float] = []
        while done < most and time.perf_counter() - started < seconds:
            async for loss in model.losses(session, corpus.train, rows, steps, model.minimize):
                done, recent = done + 1, [*recent[-99:], loss]
                passed = time.perf_counter() - started
                if done % 100 == 0:
                    print(f"step {done}: {np.mean(recent):.3f} nats a character, {passed:.0f} s", flush=True)
                if done >= most or passed > seconds:
                    break
        held_out = [loss async for loss in model.losses(session, corpus.held_out, rows, steps)]
        nats = float(np.mean(held_out))
        print(f"{done} steps; on text it has not seen: {nats:.3f} nats a character. It writes:\n")
        print("".join(corpus.alphabet[i] for i in await session.run(text)))
    return nats


def main(arguments: list[str] | None = None) -> float:
    """Parse the command line, train, and return nats per character on the held-out text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="a text file")
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="streams read side by side")
    parser.add_argument("--steps", type=int, default=50, help="characters until the gradient is cut")
    parser.add_argument("--seconds", type=float, default=180, help="train no longer than that")
    parser.add_argument("--batches", type=int, default=np.inf, help="and on no more than so many")
    parser.add_argument("--precision", choices=["float32", "bfloat16", "float16"], default="float32")
    found = parser.parse_args(arguments)
    corpus = Corpus.of(found.text.read_text(encoding="utf-8"))
    with af.Graph().as_default():
        af.set_random_seed(1)
        return asyncio.run(
            train(corpus, found.units, found.batch, found.steps, found.seconds, found.batches, found.precision)
        )


if __name__ == "__main__":
    main()

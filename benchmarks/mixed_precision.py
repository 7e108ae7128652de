"""`python -m benchmarks.mixed_precision`: training in less memory, compared with the float32 curve of the same seeds.

A residual net of the digits and the character model of the examples are trained in float32, in 16 bits, with gradient
accumulation, with recomputed activations, and with all of these together. An update with accumulation uses the examples
of one update without, in `parts` steps. The columns:

- the score: accuracy on the test digits, or nats per character on held-out text;
- the largest relative deviation of the smoothed loss curve from float32's;
- the bytes of all variables, those of optimizers included;
- the peak allocation of a step beyond that, as `tracemalloc` counts it. One thread and NumPy's kernels make it
  repeatable;
- the median processor time of an update, which other load of the machine changes least.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

import aioflow as af
from aioflow.demo.digits import load_digits
from benchmarks.tables import Cell, Printer, Quantity, Row, seconds
from examples.char_model import LSTM, Corpus, batches

Array = np.ndarray[Any, Any]

_WORDS: Final = ("the", "loop", "runs", "backwards", "over", "stacks", "that", "its", "body", "keeps")
_SMOOTHED: Final = 10  # updates per point of a smoothed curve


class Variant(NamedTuple):
    """One way of training.

    Attributes:
        precision: Dtype of products: "float32", "bfloat16", or "float16" with a dynamic loss scale.
        parts: Number of steps per update.
        recompute: Whether activations are recomputed.
    """

    precision: str = "float32"
    parts: int = 1
    recompute: bool = False


VARIANTS: Final = {
    "float32": Variant(),
    "bfloat16": Variant("bfloat16"),
    "float16, dynamic loss scale": Variant("float16"),
    "4 accumulated steps": Variant(parts=4),
    "`recompute_grad`": Variant(recompute=True),
    "bfloat16 with both": Variant("bfloat16", 4, recompute=True),
    "float16 with both": Variant("float16", 4, recompute=True),
}


class Run(NamedTuple):
    """The figures of one training.

    Attributes:
        losses: The loss of each update, before it.
        score: The score on examples that were not trained on.
        variables: Bytes of all variables.
        peak: Bytes allocated at once during an update, beyond the variables.
        seconds: Median processor time of an update.
    """

    losses: Array
    score: float
    variables: int
    peak: int
    seconds: float


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Task(ABC):
    """A model in the default graph, and its examples.

    Args:
        variant: How to train it.

    Attributes:
        loss: Scalar.
        train: Node that trains on the examples of a step.
        unit: What the score measures.
    """

    unit: str

    def __init__(self, variant: Variant) -> None:
        self.parts = variant.parts
        self.loss = self.build(variant.recompute)
        optimizer = af.train.GradientAccumulationOptimizer(self.optimizer(), self.parts, change=_clipped)
        if variant.precision == "float32":
            self.train = optimizer.minimize(self.loss)
            return
        # Sums are accumulated in float32 and unscaled, so the scale may change between the steps of an update.
        scale = "dynamic" if variant.precision == "float16" else 1
        scaled = af.train.experimental.enable_mixed_precision_graph_rewrite(optimizer, scale, variant.precision)
        self.train = scaled.minimize(self.loss)

    @abstractmethod
    def build(self, recompute: bool) -> af.Tensor:
        """Make the nodes of the model, and return the loss."""

    @abstractmethod
    def optimizer(self) -> af.train.Optimizer:
        """Return the optimizer that applies the gradients."""

    @abstractmethod
    async def update(self, session: af.Session) -> float:
        """Run the steps of the next update, and return the mean of their losses."""

    @abstractmethod
    async def score(self, session: af.Session) -> float:
        """Return the score."""


def _clipped(pairs: Any) -> Any:
    gradients, variables = zip(*pairs, strict=True)
    return list(zip(af.clip_by_global_norm(list(gradients), 1.0)[0], variables, strict=True))


class Digits(Task):
    """A residual net of dense blocks: x + W₂ · swish(W₁ · x).

    Args:
        variant: How to train it.
        blocks: Number of blocks.
        units: Width of the net.
        batch: Examples per update.
    """

    unit = "accuracy"

    def __init__(self, variant: Variant, blocks: int = 8, units: int = 64, batch: int = 1024) -> None:
        self.blocks, self.units, self.batch = blocks, units, batch
        self._digits, self._test = load_digits().split()
        self._rng = np.random.default_rng(0)
        super().__init__(variant)

    def optimizer(self) -> af.train.Optimizer:
        """Return Adam."""
        return af.train.AdamOptimizer(2e-3)

    def build(self, recompute: bool) -> af.Tensor:
        """Make the net. Initial values do not depend on the variant."""
        self.images, self.labels = af.placeholder(af.float32, [None, 64]), af.placeholder(af.int32, [None])
        block = af.recompute_grad(self._block) if recompute else self._block
        h = self._dense(self.images, self.units, "first")
        for number in range(self.blocks):
            with af.variable_scope(f"block_{number}"):
                h = block(h)
        logits = self._dense(h, 10, "logits")
        right = af.equal(af.argmax(logits, 1, output_type=af.int32), self.labels)
        self.accuracy = af.reduce_mean(af.cast(right, af.float32))
        return af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=logits))

    def _block(self, h: af.Tensor) -> af.Tensor:
        inner = self._dense(h, self.units, "inner")
        return h + self._dense(inner * af.sigmoid(inner), self.units, "outer")

    def _dense(self, x: af.Tensor, units: int, name: str) -> af.Tensor:
        with af.variable_scope(name):
            shape = [x.shape.as_list()[1], units]
            # By explicit seeds: those of ops depend on the number of nodes before.
            seed = len(af.global_variables())
            weights = af.get_variable("weights", shape, initializer=af.glorot_uniform_initializer(seed))
            bias = af.get_variable("bias", [units], initializer=af.zeros_initializer())
            return af.nn.bias_add(af.matmul(x, weights), bias)

    def rows(self) -> Array:
        """Return the positions of the next update's examples."""
        return self._rng.choice(len(self._digits), self.batch, replace=False)

    async def update(self, session: af.Session) -> float:
        """Train on `batch` random digits."""
        losses = []
        for rows in np.split(self.rows(), self.parts):
            feeds = {self.images: self._digits.images[rows], self.labels: self._digits.labels[rows]}
            loss, _ = await session.run([self.loss, self.train], feeds)
            losses.append(float(loss))
        return float(np.mean(losses))

    async def score(self, session: af.Session) -> float:
        """Return the accuracy on the test digits."""
        feeds = {self.images: self._test.images, self.labels: self._test.labels}
        return float(await session.run(self.accuracy, feeds))


class _RecomputingLSTM(LSTM):
    """Keeps the arguments of a cell only."""

    def cell(self, projected: af.Tensor, h: af.Tensor, c: af.Tensor) -> tuple[af.Tensor, af.Tensor]:
        return af.recompute_grad(super().cell)(projected, h, c)


class Characters(Task):
    """The LSTM of `examples/char_model.py`. The steps of an update divide its rows.

    Args:
        variant: How to train it.
        units: Size of the state.
        rows: Streams per update.
        steps: Characters until the gradient is cut.
    """

    unit = "nats per character"

    def __init__(self, variant: Variant, units: int = 64, rows: int = 64, steps: int = 40) -> None:
        self.units, self._rows = units, rows
        self._corpus = Corpus.of(" ".join(np.random.default_rng(0).choice(_WORDS, 24_000)))
        self._batches = cycle(list(batches(self._corpus.train, rows, steps)))
        self._held_out = batches(self._corpus.held_out, rows, steps)
        self._states = self._zeros()
        super().__init__(variant)

    def optimizer(self) -> af.train.Optimizer:
        """Return Adam."""
        return af.train.AdamOptimizer(1e-2)

    def build(self, recompute: bool) -> af.Tensor:
        """Make the model."""
        af.set_random_seed(1)
        lstm = (_RecomputingLSTM if recompute else LSTM)(len(self._corpus.alphabet), self.units)
        self.inputs, self.targets = af.placeholder(af.int32, [None, None]), af.placeholder(af.int32, [None, None])
        self.state = [af.placeholder(af.float32, [None, self.units]) for _ in range(2)]
        outputs, *self.last_state = lstm.run(self.inputs, *self.state)
        return af.reduce_mean(
            af.nn.sparse_softmax_cross_entropy_with_logits(
                labels=af.reshape(self.targets, [-1]), logits=lstm.logits(af.reshape(outputs, [-1, self.units]))
            )
        )

    def _zeros(self) -> list[Array]:
        return [np.zeros([self._rows, self.units], np.float32)] * 2

    async def update(self, session: af.Session) -> float:
        """Train on the next `steps` characters of all streams."""
        inputs, targets, anew = next(self._batches)
        states = self._zeros() if anew else self._states
        losses, found = [], []
        for part in np.split(np.arange(self._rows), self.parts):
            feeds = {self.inputs: inputs[:, part], self.targets: targets[:, part]}
            feeds |= {placeholder: state[part] for placeholder, state in zip(self.state, states, strict=True)}
            loss, state, _ = await session.run([self.loss, self.last_state, self.train], feeds)
            losses.append(float(loss))
            found.append(state)
        self._states = [np.concatenate(each) for each in zip(*found, strict=True)]
        return float(np.mean(losses))

    async def score(self, session: af.Session) -> float:
        """Return the mean loss on the held-out text."""
        states, losses = self._zeros(), []
        for inputs, targets, _ in self._held_out:
            feeds = {self.inputs: inputs, self.targets: targets, **dict(zip(self.state, states, strict=True))}
            loss, states = await session.run([self.loss, self.last_state], feeds)
            losses.append(float(loss))
        return float(np.mean(losses))


# ── measurement ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def measure(task: type[Task], variant: Variant, updates: int, **sizes: int) -> Run:
    """Train a model of these sizes in a graph of its own. The memory is that of the next update."""
    with af.Graph().as_default():
        model = task(variant, **sizes)
        config = af.SessionConfig(threads=1, reproducible=True)
        async with af.Session(config=config) as session:
            await session.run(af.global_variables_initializer())
            variables = sum(value.nbytes for value in await session.run(af.global_variables()))
            losses, times = [], []
            for _ in range(updates):
                started = time.process_time()
                losses.append(await model.update(session))
                times.append(time.process_time() - started)
            score = await model.score(session)
            peak = await _peak(model, session)
    return Run(np.array(losses), score, variables, peak, median(times))


async def _peak(model: Task, session: af.Session) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await model.update(session)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def deviation(losses: Array, expected: Array, width: int = _SMOOTHED) -> float:
    """Return the largest relative difference of two curves, each the mean of `width` updates."""
    smooth, plain = (np.convolve(each, np.full(width, 1 / width), "valid") for each in (losses, expected))
    return float(np.max(np.abs(smooth / plain - 1)))


def row(case: str, task: type[Task], variant: Variant, plain: Run, updates: int) -> Row:
    """Measure a variant of a task, and return its row beside the plain run."""
    run = plain if variant == Variant() else asyncio.run(measure(task, variant, updates))
    cells: dict[str, Cell] = {
        "loss": Quantity(float(np.mean(run.losses[-_SMOOTHED:]))),
        "score": Quantity(run.score, task.unit),
        "deviation of the curve": f"{deviation(run.losses, plain.losses):.1e}",
        "variables": Quantity(run.variables / 2**20, "MiB"),
        "peak of a step": Quantity(run.peak / 2**20, "MiB", f"{run.peak / plain.peak:.2f}"),
        "time of an update": seconds(run.seconds, f"{run.seconds / plain.seconds:.2f}"),
    }
    return Row(case, cells)


def _measures(updates: int) -> Iterator[Callable[[], Row]]:
    for name, task in {"digits": Digits, "characters": Characters}.items():
        plain = asyncio.run(measure(task, Variant(), updates))
        for case, variant in VARIANTS.items():
            yield partial(row, f"{name}, {case}", task, variant, plain, updates)


def main() -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60)
    Printer.add_options(parser)
    options = parser.parse_args()
    return Printer(options).rows(_measures(options.updates))


if __name__ == "__main__":
    sys.exit(main())

"""Slowdown of training steps while 500 MB of variables are written concurrently.

`python -m benchmarks.checkpointing [dense] [sparse]` prints every round. A round measures steps without a write, and
then the steps from the snapshot to the complete checkpoint. TensorFlow's `Saver.save` runs in a thread beside its
steps.

The result is the longest step during a write, divided by the median of the steps before it; the median of all rounds
counts. On a shared machine a step may be long for other reasons, so two more figures are printed: the longest step
without a write, and the ratio without the time that a step waited for a processor. The latter exists only on Linux and
for aioflow, whose steps run in one thread here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import aioflow as af
from benchmarks.tables import BASELINE, Printer, Quantity, Row, Target, beside

__all__ = ["CHECKPOINT_ROWS"]

_ROUNDS = 5
_QUIET_SECONDS = 3.0
_TARGET = 2.0


@dataclass(frozen=True)
class Round:
    """The step times of one round and the duration of its write, in seconds.

    `quiet_running` and `beside_running` are the step times without the time spent waiting for a processor.
    """

    quiet: list[float]
    beside: list[float]
    wall: float
    quiet_running: list[float]
    beside_running: list[float]

    @property
    def usual(self) -> float:
        """Median step time without a write."""
        return median(self.quiet)

    @property
    def ratio(self) -> float:
        """Longest step during the write, divided by the median without one."""
        return max(self.beside) / self.usual

    def text(self) -> str:
        """Return a one-line description."""
        running = (
            f"; without waiting for a processor: {_longest(self.quiet_running, self.quiet_running):.2f}× before, "
            f"{_longest(self.beside_running, self.quiet_running):.2f}× beside"
        )
        beside = np.array(self.beside) * 1e3
        return (
            f"without: median {self.usual * 1e3:.1f} ms, longest {max(self.quiet) / self.usual:.2f}×; "
            f"beside ({len(beside)} steps in {self.wall:.1f} s): median {np.median(beside):.1f} ms, "
            f"p99 {np.quantile(beside, 0.99):.1f} ms, longest {max(beside):.1f} ms = {self.ratio:.2f}×"
            f"{running if self.quiet_running else ''}"
        )


def _longest(steps: list[float], usual: list[float]) -> float:
    return max(steps) / median(usual) if steps else float("nan")


def _waited() -> float:
    """Return the seconds that this thread has been runnable but not running; 0 if the system does not report them."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return int(path.read_text().split()[1]) / 1e9 if path.exists() else 0.0


def dense(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build ten matrices with momentum, 524 MB in all, each updated completely in every step."""
    x = m.placeholder(m.float32, [32, 1024])
    weights = [m.get_variable(f"w{i}", [1024, 6400], initializer=m.zeros_initializer()) for i in range(10)]
    loss = sum(m.reduce_mean(m.square(m.matmul(x, w) - 1.0)) for w in weights)
    train = m.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return train, {x: np.random.default_rng(0).standard_normal((32, 1024), np.float32) * 0.03}


def sparse(m: Any) -> tuple[Any, dict[Any, Any]]:
    """Build a 512 MB embedding under a small network; each step looks up and updates 20,480 rows."""
    random = np.random.default_rng(0)
    ids, y = m.placeholder(m.int64, [1024, 20]), m.placeholder(m.float32, [1024, 1])
    table = m.get_variable("table", [2_000_000, 64], initializer=m.zeros_initializer())
    hidden = m.get_variable("hidden", [1280, 256], initializer=m.random_normal_initializer(stddev=0.02))
    last = m.get_variable("last", [256, 1], initializer=m.random_normal_initializer(stddev=0.02))
    rows = m.reshape(m.nn.embedding_lookup(table, ids), [1024, 1280])
    loss = m.reduce_mean(m.square(m.matmul(m.nn.relu(m.matmul(rows, hidden)), last) - y))
    train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
    feeds = {ids: random.integers(0, 2_000_000, (1024, 20)), y: random.standard_normal((1024, 1)).astype(np.float32)}
    return train, feeds


async def ours(build: Callable[[Any], Any], rounds: int, folder: str, incremental: bool = False) -> list[Round]:
    """Run rounds in aioflow, after a first checkpoint as at the start of a training."""
    with af.Graph().as_default():
        train, feeds = build(af)
        saver = af.train.Saver(max_to_keep=1, incremental=incremental)
        config = af.SessionConfig(inline_budget=100.0)  # steps run in this thread, whose waiting time can be read
        async with af.Session(config=config) as session, af.train.BackgroundSaver(saver) as beside:
            await session.run(af.global_variables_initializer())

            async def step(before: tuple[float, float] | None = None) -> tuple[float, float]:
                started, waited = before or (time.perf_counter(), _waited())
                await session.run(train, feeds)
                wall = time.perf_counter() - started
                return wall, wall - (_waited() - waited)

            found = []
            for number in range(rounds + 1):
                quiet, until = [], time.perf_counter() + _QUIET_SECONDS
                while len(quiet) < 5 or time.perf_counter() < until:
                    quiet.append(await step())
                begun = time.perf_counter(), _waited()
                await beside.save(session, f"{folder}/ours", number)
                steps = [await step(begun)]  # the step time includes the snapshot
                while beside.is_writing:
                    steps.append(await step())
                wall = time.perf_counter() - begun[0]
                walls = [[each[i] for each in group] for i in (0, 1) for group in (quiet, steps)]
                found.append(Round(walls[0], walls[1], wall, walls[2], walls[3]))
            return found[1:]


def theirs(build: Callable[[Any], Any], rounds: int, folder: str) -> list[Round]:
    """Run rounds in TensorFlow."""
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    with tf.Graph().as_default():
        tf.get_variable_scope().set_use_resource(True)
        train, feeds = build(tf)
        saver = tf.train.Saver(max_to_keep=1)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            call = session.make_callable(train, list(feeds))
            values = list(feeds.values())

            def step() -> float:
                started = time.perf_counter()
                call(*values)
                return time.perf_counter() - started

            found = []
            for number in range(rounds + 1):
                quiet, until = [], time.perf_counter() + _QUIET_SECONDS
                while len(quiet) < 5 or time.perf_counter() < until:
                    quiet.append(step())
                started = time.perf_counter()
                save = partial(saver.save, session, f"{folder}/theirs", number, write_meta_graph=False)
                thread = threading.Thread(target=save)
                thread.start()
                steps = [step()]
                while thread.is_alive():
                    steps.append(step())
                found.append(Round(quiet, steps, time.perf_counter() - started, [], []))
                thread.join()
            return found[1:]


def measure(
    name: str, incremental: bool = False, rounds: int = _ROUNDS, say: Callable[[str], None] | None = None
) -> Row:
    """Return a row of the table."""
    build = {"dense": dense, "sparse": sparse}[name]
    with tempfile.TemporaryDirectory() as folder:
        our_rounds = asyncio.run(ours(build, rounds, folder, incremental))
        their_rounds = theirs(build, rounds, folder)
    for who, found in (("aioflow", our_rounds), ("TensorFlow", their_rounds)):
        for each in found:
            if say is not None:
                say(f"{name} {who}: {each.text()}")
    here, there = (median(each.ratio for each in found) for found in (our_rounds, their_rounds))
    alone = median(max(each.quiet) / each.usual for each in our_rounds)
    what = {
        "dense": "524 MB of dense updates",
        "sparse": "512 MB of an embedding with sparse updates" + (", incrementally" if incremental else ""),
    }[name]
    running = median(_longest(each.beside_running, each.quiet_running) for each in our_rounds)
    longest = Quantity(here, note=f"alone {alone:.2f}; {running:.2f} if waiting for a processor is left out")
    case = f"longest step while a checkpoint of {what} is written, over the median without"
    return beside(case, longest, Quantity(there), Target(_TARGET, column="aioflow"), other=BASELINE)


CHECKPOINT_ROWS: tuple[Callable[[], Row], ...] = (
    partial(measure, "dense"),
    partial(measure, "sparse"),
    partial(measure, "sparse", True),
)


def main() -> None:
    """Print the rounds of the chosen models."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpointing", description=__doc__)
    parser.add_argument("models", nargs="*", help="dense, sparse, or both")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--incremental", action="store_true")
    Printer.add_options(parser)
    arguments = parser.parse_args()
    printer = Printer(arguments)
    for name in arguments.models or ["dense", "sparse"]:
        printer.row(measure(name, arguments.incremental, arguments.rounds, printer.note))


if __name__ == "__main__":
    main()

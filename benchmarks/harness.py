"""The measurement of every case: both systems in one process, alternating rounds, medians.

A round repeats the step for a fixed time. The result is a ratio, since machines differ and are shared.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.kernels import have_onednn
from benchmarks.primitive_form import primitive_form
from benchmarks.roofline import Peak, share, step_flops
from benchmarks.tables import Quantity, Row, Target, beside

__all__ = ["Case", "Measured", "alternating", "measure"]


@dataclass(frozen=True)
class Case:
    """One row: a program built by the same function in both systems.

    Attributes:
        name: Name of the row.
        build: Function of the module (`tensorflow.compat.v1` or `aioflow`) that returns (fetches, feeds).
        target: Target for the ratio aioflow / TensorFlow.
        per: Divisor of the printed time, such as the number of nodes.
        rewrite: Whether TensorFlow's graph rewriter is on.
        raised: Whether aioflow raises branches and loops.
        optimizations: The setting of `SessionConfig`.
        alone: Target with NumPy's kernels alone; None if it is the same.
        delegate: The setting of `SessionConfig`.
    """

    name: str
    build: Callable[[Any], tuple[Any, dict[Any, Any]]]
    target: float
    per: int = 1
    rewrite: bool = True
    raised: bool = True
    optimizations: bool | dict[str, bool] = True
    alone: float | None = None
    delegate: str | None = None


@dataclass(frozen=True)
class Measured:
    """The result of a case.

    Attributes:
        case: The case.
        ours: Seconds of a step in aioflow.
        theirs: Seconds of a step in TensorFlow.
        flops: Floating-point operations of the products and convolutions of a step.
        target: Target for the ratio with the kernels of this process.
    """

    case: Case
    ours: float
    theirs: float
    flops: float
    target: float

    @property
    def ratio(self) -> float:
        """The ratio aioflow / TensorFlow."""
        return self.ours / self.theirs

    def row(self, peak: Peak) -> Row:
        """Return a row of the table."""
        unit = "s each" if self.case.per > 1 else "s"
        ours, theirs = (Quantity(t / self.case.per, unit) for t in (self.ours, self.theirs))
        row = beside(self.case.name, ours, theirs, Target(self.target))
        return replace(row, cells={**row.cells, "of the peak": share(self.flops, self.ours, peak)})


async def measure(case: Case, tf: Any, aioflow: Any, rounds: int = 11, seconds: float = 0.3) -> Measured:
    """Time a case in both systems."""
    with tf.Graph().as_default():
        fetches, feeds = case.build(tf)
        with tf.Session(config=_tf_config(tf, case.rewrite)) as theirs:
            theirs.run(tf.global_variables_initializer())
            call = theirs.make_callable(fetches, list(feeds))
            values = list(feeds.values())
            with aioflow.Graph().as_default() as graph:
                our_fetches, our_feeds = case.build(aioflow)
                flops = await step_flops(graph, our_fetches, our_feeds)
                config = aioflow.SessionConfig(optimizations=case.optimizations, delegate=case.delegate)
                form = nullcontext() if case.raised else primitive_form()
                async with aioflow.Session(config=config) as ours:
                    await ours.run(aioflow.global_variables_initializer())

                    async def step() -> Any:
                        return await ours.run(our_fetches, our_feeds)

                    with form:
                        await step()
                    await ours.prepared()
                    times = await _rounds(step, lambda: call(*values), rounds, seconds)
    is_alone = case.alone is not None and case.delegate is None and not have_onednn()
    return Measured(case, *times, flops, case.alone if is_alone and case.alone is not None else case.target)


def _tf_config(tf: Any, rewrite: bool) -> Any:
    config = tf.ConfigProto()
    if not rewrite:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    return config


async def _rounds(
    ours: Callable[[], Awaitable[Any]], theirs: Callable[[], Any], rounds: int, seconds: float
) -> tuple[float, float]:
    for _ in range(5):
        await ours()
        theirs()
    return await alternating(ours, theirs, rounds, seconds)


async def alternating(
    ours: Callable[[], Awaitable[Any]], theirs: Callable[[], Any], rounds: int = 11, seconds: float = 0.3
) -> tuple[float, float]:
    """Return the seconds of one call of each, as medians of alternating rounds."""
    our_count, their_count = await _repeats(ours, theirs, seconds)
    our_times, their_times = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(their_count):
            theirs()
        middle = time.perf_counter()
        for _ in range(our_count):
            await ours()
        ended = time.perf_counter()
        their_times.append((middle - started) / their_count)
        our_times.append((ended - middle) / our_count)
    return median(our_times), median(their_times)


async def _repeats(ours: Callable[[], Awaitable[Any]], theirs: Callable[[], Any], seconds: float) -> tuple[int, int]:
    started = time.perf_counter()
    await ours()
    middle = time.perf_counter()
    theirs()
    ended = time.perf_counter()
    return max(1, int(seconds / (middle - started))), max(1, int(seconds / (ended - middle)))

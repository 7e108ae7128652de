"""Efficiency of kernels relative to this machine: the work of a step, and the peaks of the processor and its memory.

The work is counted by the ops' cost estimates on the graph as it was built: two operations for a multiply-add of a
product or a convolution, regardless of the optimizers. The peaks are measured in the same run. They are products of
matrices that fit into the cache, by the fastest available library, and copies of arrays that do not fit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.costs import MULTIPLYING_RATES, Operand
from aioflow.graph.opdef import traits_of
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.stats import Report, TraceProbe
from aioflow_numpy.products import matmul_here
from aioflow_numpy.threads import thread_count
from aioflow_onednn.entry import describe
from benchmarks.kernels import have_onednn

__all__ = ["Peak", "Rates", "measured_peak", "share", "step_flops"]

_EDGE: Final = 384  # three matrices of 576 KiB fit into a core's cache, yet kernels dominate the time
_COPIED: Final = 1 << 26  # bytes: more than caches hold
_ROUNDS: Final = 9
_SECONDS: Final = 0.1  # duration of a round


class Rates(NamedTuple):
    """Rates with one thread and with all threads."""

    one: float
    all: float


class Peak(NamedTuple):
    """The measured peaks: floating-point operations per second (float32), and bytes per second, read and written."""

    flops: Rates
    bytes: Rates
    library: str

    def __str__(self) -> str:
        return (
            f"Peak of {thread_count()} threads (one thread): {self.flops.all / 1e9:.0f} ({self.flops.one / 1e9:.0f}) "
            f"GFLOP/s, a product of float32 matrices of {_EDGE}² by {self.library}; "
            f"{self.bytes.all / 1e9:.1f} ({self.bytes.one / 1e9:.1f}) GB/s, copies of {_COPIED >> 20} MiB."
        )


@cache
def measured_peak() -> Peak:
    """Return the peaks of this machine, measured once per process."""
    library, multiply = _product()

    def product() -> Callable[[], object]:
        a, b = (np.random.default_rng(0).random((_EDGE, _EDGE), np.float32) for _ in range(2))
        out = np.empty_like(a)
        return lambda: multiply(a, b, out)

    def copy() -> Callable[[], object]:
        source, target = np.ones(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)
        return lambda: np.copyto(target, source)

    return Peak(_rates(product, 2.0 * _EDGE**3), _rates(copy, 2.0 * _COPIED), library)


def _product() -> tuple[str, Callable[[Any, Any, Any], object]]:
    """Return the name of the fastest available library for float32 in one thread, and its product."""
    if not have_onednn():
        return "NumPy's BLAS", matmul_here
    from aioflow_onednn import products  # only if the library is available

    return f"oneDNN {describe()['oneDNN'].split(' (')[0]}", lambda a, b, _: products.matmul(a, b)


def _rates(make: Callable[[], Callable[[], object]], work: float) -> Rates:
    return Rates(*(work * _calls_per_second([make() for _ in range(count)]) for count in (1, thread_count())))


def _calls_per_second(calls: list[Callable[[], object]]) -> float:
    """Return the rate of all calls together, each in its own thread, in the best round."""
    # The best round, since other load only makes a round slower.
    best = 0.0
    for _ in range(_ROUNDS):
        begin, counts = threading.Barrier(len(calls)), [0] * len(calls)
        ends = time.perf_counter() + _SECONDS

        def repeat(number: int, begin: threading.Barrier, counts: list[int], ends: float) -> None:
            begin.wait()
            while time.perf_counter() < ends:
                calls[number]()
                counts[number] += 1

        threads = [threading.Thread(target=repeat, args=(i, begin, counts, ends)) for i in range(len(calls))]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, sum(counts) / (time.perf_counter() - started))
    return best


def share(flops: float, seconds: float, peak: Peak) -> str:
    """Return a table cell: the rate of a step, and its fraction of the peak of all threads."""
    if not flops:
        return "—"
    return f"{flops / seconds / 1e9:.1f} GFLOP/s, {flops / seconds / peak.flops.all:.0%}"


async def step_flops(graph: af.Graph, fetches: Any, feeds: Mapping[Any, Any]) -> float:
    """Return the operations of the products and convolutions of a step, counted each time that they run.

    The step runs in the plain executor, whose nodes are those of the graph.
    """
    probe = _Counting(_pruned(fetches, feeds), [_operand(np.asarray(value)) for value in feeds.values()])
    plain = af.SessionConfig(executor="reference", optimizations=False)
    async with af.Session(graph=graph, config=plain) as session:
        with graph.as_default():
            await session.run(af.global_variables_initializer())
        with patch("aioflow.session.running.TraceProbe", lambda: probe):
            options = af.RunOptions(trace_level=af.RunOptions.FULL_TRACE)
            await session.run(fetches, feeds, options=options, run_metadata=af.RunMetadata())
    return probe.flops


def _pruned(fetches: Any, feeds: Mapping[Any, Any]) -> ClientGraph:
    wanted = list(fetches) if isinstance(fetches, list | tuple) else [fetches]
    targets = tuple(each for each in wanted if isinstance(each, af.Operation))
    return prune(StepRequest(tuple(feeds), tuple(each for each in wanted if each not in targets), targets))


class _Counting(TraceProbe):
    """A probe that adds up the operations of the nodes that a step runs, by the shapes of their values.

    Args:
        step: The pruned graph of the step.
        feeds: Operands of its feeds, in its order.
    """

    def __init__(self, step: ClientGraph, feeds: Sequence[Operand]) -> None:
        super().__init__()
        self.flops = 0.0
        self._step = step
        self._made = {Edge(f"_arg_{i}", 0): operand for i, operand in enumerate(feeds)}

    def begin(self) -> Report:
        """Return the report function of `TraceProbe`, extended by the count."""
        inner = super().begin()

        def report(bound: BoundNode, outputs: Sequence[Any]) -> None:
            inner(bound, outputs)
            self._count(bound.node, [_operand(value) for value in outputs])

        return report

    def _count(self, node: Node, outputs: Sequence[Operand]) -> None:
        self._made.update({Edge(node.name, port): operand for port, operand in enumerate(outputs)})
        cost = traits_of(node.op).cost
        if cost.rate in MULTIPLYING_RATES:
            self.flops += 2.0 * cost.work(node.attrs, [self._read(edge) for edge in node.inputs], outputs)

    def _read(self, edge: Edge) -> Operand:
        """Return the operand that a node reads on an edge."""
        # The probe does not report nodes that only are control flow, so follow their input to the value. It does not
        # report constants outside of their loop either, which have no input.
        while edge not in self._made:
            node = self._step.nodes[edge.node]
            if not node.inputs:
                return CostModel().operand(node.outputs[edge.port])
            edge = node.inputs[0]
        return self._made[edge]


def _operand(value: Any) -> Operand:
    """Return the operand of an array. Other values have no elements."""
    return Operand(str(getattr(value, "dtype", "")), getattr(value, "shape", (0,)), getattr(value, "nbytes", 0))

"""`python -m benchmarks.scheduling`: savings from sending large values only on request.

One device holds the weights of a deep network as float16 and casts them to float32. Another device runs the network,
layer by layer. Without requests, all weights are cast and sent at once and wait for their layers. The peak is the
allocation of the process in a step (by tracemalloc). The time is that of a step without tracemalloc, in alternating
rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import tracemalloc
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Node, OutputSpec, Plan
from aioflow.compiler.pipeline import CompileOptions, compile_step
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.prune import StepRequest
from aioflow.compiler.timeline import NodeSeconds, TransferSeconds, forecast
from aioflow.runtime.step import Step
from benchmarks.tables import Printer, Quantity, Row

_TWO = af.SessionConfig(device_count={"CPU": 2})


def build(layers: int, size: int, batch: int) -> tuple[af.Tensor, af.Tensor]:
    """Build the network and return its input and output."""
    source = np.random.default_rng(0)
    x = af.placeholder("float32", [batch, size])
    y = x
    for i in range(layers):
        with af.device("/cpu:1"):
            value = (source.standard_normal((size, size)) / np.sqrt(size)).astype(np.float16)
            weight = af.cast(af.Variable(value, name=f"weight_{i}"), af.float32)
        with af.device("/cpu:0"):
            y = af.tanh(af.matmul(y, weight))
    return x, y


def times(graph: ClientGraph) -> tuple[NodeSeconds, TransferSeconds]:
    """Return functions for the expected seconds of the graph's nodes and of transfers, by the default calibration."""
    costs = CostModel()

    def seconds(node: Node) -> float:
        known = graph.nodes.get(node.name)
        if known is None:
            return 0.0
        inputs = [costs.operand(graph.spec(edge)) for edge in known.inputs]
        return costs.seconds(known, inputs, costs.operands(known), "CPU")

    def transfer_seconds(spec: OutputSpec, source: str, destination: str) -> float:
        return costs.transfer_seconds(costs.operand(spec).size, source, destination)

    return seconds, transfer_seconds


class Program:
    """A plan that is registered with the worker of a session."""

    def __init__(self, plan: Plan, session: af.Session) -> None:
        (part,) = plan.parts.values()
        self._worker = session.worker
        self._handle = self._worker.register_now(part, 1, _TWO)

    async def run(self, feeds: Sequence[Any]) -> Any:
        """Run one step and return its fetch."""
        step = Step()
        try:
            (value,) = await self._worker.run(self._handle, feeds, step)
            return value
        finally:
            step.finish()

    async def peak(self, feeds: Sequence[Any]) -> int:
        """Return the peak allocation of a step, in bytes."""
        tracemalloc.start()
        try:
            await self.run(feeds)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


async def compare(layers: int, size: int, batch: int, rounds: int, printer: Printer) -> None:
    """Print the table."""
    with af.Graph().as_default():
        x, y = build(layers, size, batch)
        costs: list[tuple[NodeSeconds, TransferSeconds]] = []

        def kept(graph: ClientGraph) -> tuple[NodeSeconds, TransferSeconds]:
            costs.append(times(graph))
            return costs[-1]

        async with af.Session(config=_TWO) as session:
            await session.run(af.global_variables_initializer())
            view = ClusterView(tuple(session.worker.devices), pins=session.worker.pins)
            request = StepRequest((x,), (y,))
            late = compile_step(request, view, CompileOptions(times=kept))
            plans = {"as soon as it is made": compile_step(request, view, CompileOptions()), "when asked for": late}
            feeds = [np.ones((batch, size), np.float32)]
            programs = {name: Program(plan, session) for name, plan in plans.items()}
            results = [(await program.run(feeds)).tobytes() for program in programs.values()]
            if len(set(results)) != 1:
                raise SystemExit("the two plans give different values")
            taken: dict[str, list[float]] = {name: [] for name in programs}
            for _ in range(rounds):
                for name, program in programs.items():
                    started = time.perf_counter()
                    await program.run(feeds)
                    taken[name].append(time.perf_counter() - started)
            peaks = {name: await program.peak(feeds) for name, program in programs.items()}
    printer.note(f"{layers} layers of {size} × {size}, {layers * size * size * 4 / 2**20:.0f} MiB of weights.")
    for name, plan in plans.items():
        found = forecast(plan, *costs[-1])
        cells = {
            "predicted peak": Quantity(sum(found.peak_bytes.values()) / 2**20, "MiB"),
            "measured peak": Quantity(peaks[name] / 2**20, "MiB"),
            "predicted step": Quantity(found.seconds, "s"),
            "measured step": Quantity(median(taken[name]), "s"),
        }
        printer.row(Row(f"a value is sent {name}", cells))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    Printer.add_options(parser)
    given = parser.parse_args()
    asyncio.run(compare(given.layers, given.size, given.batch, given.rounds, Printer(given)))


if __name__ == "__main__":
    main()

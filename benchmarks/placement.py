"""`python -m benchmarks.placement`: predictions of the placement strategies on seeded graphs, and their run times.

The graphs are random layers of products and elementwise nodes, like those of networks with many branches. The
prediction is the simulated step time, divided by the larger of two lower bounds that hold for any placement: the
longest path, and all work evenly over the devices.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from statistics import geometric_mean, median
from typing import NamedTuple

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.constraints import feasible_groups
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.place.problem import GroupLike, Problem, build_problem
from aioflow.compiler.place.simulate import makespan
from aioflow.compiler.place.strategies import STRATEGIES, choose, choose_for
from aioflow.graph.dtypes import float32
from benchmarks.tables import Printer, Quantity, Row, seconds

__all__ = ["critical_path", "layered_graph", "speed"]

_STRATEGIES = ("first", "random", "round_robin", "greedy", "heft", "auto")


class _Alone(NamedTuple):
    members: tuple[str, ...]
    devices: tuple[str, ...]


def cluster_of(count: int) -> ClusterView:
    """Return a cluster of `count` CPU devices in one process."""
    return ClusterView(tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(count)))


def layered_graph(seed: int, layers: int, width: int, sizes: Sequence[int] = (32, 64, 128, 256)) -> ClientGraph:
    """Build a feed and layers of nodes; each node reads one or two nodes of the two layers before."""
    source = random.Random(seed)
    nodes = {"feed": Node("feed", "_Arg", outputs=(OutputSpec(float32, (64, 64)),))}
    before = [["feed"], ["feed"]]
    for layer in range(layers):
        names = []
        for column in range(width):
            name = f"n{layer}_{column}"
            size = source.choice(sizes)
            inputs = tuple(Edge(source.choice(source.choice(before)), 0) for _ in range(2))
            op = source.choice(("MatMul", "MatMul", "Tanh", "Add"))
            inputs = inputs[:1] if op == "Tanh" else inputs
            nodes[name] = Node(name, op, inputs, (), {"T": float32}, (OutputSpec(float32, (size, size)),))
            names.append(name)
        before = [before[1], names]
    return ClientGraph(nodes, 1, 0, tuple(before[1]))


def critical_path(problem: Problem) -> float:
    """Return the seconds of the longest path without transfers, which is a lower bound for every placement."""
    lengths: list[float] = []
    for node, reads in enumerate(problem.reads):
        fastest = min(problem.seconds[device][node] for device in problem.feasible[problem.group[node]])
        lengths.append(fastest + max((lengths[problem.source[tensor]] for tensor in reads), default=0.0))
    return max(lengths)


def _alone(graph: ClientGraph, cluster: ClusterView) -> list[GroupLike]:
    return [_Alone((name,), cluster.devices) for name in graph.nodes]


def _compare(seeds: Sequence[int], layers: int, width: int, devices: int) -> list[float]:
    """Return, for each strategy, the geometric mean over the seeds of the predicted step over the lower bound."""
    shares: dict[str, list[float]] = {name: [] for name in _STRATEGIES}
    cluster = cluster_of(devices)
    for seed in seeds:
        graph = layered_graph(seed, layers, width)
        problem = build_problem(graph, _alone(graph, cluster), cluster.devices, CostModel())
        work = makespan(problem, STRATEGIES["first"](problem, 0))
        bound = max(critical_path(problem), work / devices)
        for name in _STRATEGIES:
            shares[name].append(choose_for(problem, name, seed)[1] / bound)
    return [geometric_mean(found) for found in shares.values()]


def speed(nodes: int, devices: int, rounds: int) -> list[tuple[str, float]]:
    """Return the median seconds of the constraints, and of each strategy."""
    width = 50
    graph = layered_graph(1, nodes // width, width)
    cluster = cluster_of(devices)
    costs = CostModel()
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        started = time.perf_counter()
        groups = feasible_groups(graph, cluster)
        times.setdefault("constraints", []).append(time.perf_counter() - started)
        for name in ("greedy", "heft", "auto"):
            started = time.perf_counter()
            choose(graph, groups, cluster, costs, name)
            times.setdefault(name, []).append(time.perf_counter() - started)
    return [(name, median(found)) for name, found in times.items()]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    Printer.add_options(parser)
    arguments = parser.parse_args()
    printer = Printer(arguments)
    printer.note(
        f"The predicted step over the lower bound, by strategy, for layers × width on devices: the geometric mean of "
        f"{arguments.seeds} graphs. Then the time to place 10,000 nodes on 8 devices."
    )
    for layers, width, devices in ((20, 2, 2), (20, 8, 2), (20, 8, 4), (20, 32, 8), (100, 4, 4), (5, 100, 8)):
        shares = _compare(range(arguments.seeds), layers, width, devices)
        cells = dict(zip(_STRATEGIES, map(Quantity, shares), strict=True))
        printer.row(Row(f"{layers} × {width} on {devices}", cells))
    for name, taken in speed(10_000, 8, arguments.rounds):
        printer.row(Row(name, {"10,000 nodes on 8 devices": seconds(taken)}))


if __name__ == "__main__":
    main()

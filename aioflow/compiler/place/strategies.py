"""The placement strategies by name, and the choice among them.

A strategy assigns a device to every node; all results are rated by the same simulator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.place.greedy import greedy
from aioflow.compiler.place.heft import heft
from aioflow.compiler.place.problem import GroupLike, Problem, build_problem
from aioflow.compiler.place.simulate import makespan
from aioflow.errors import InvalidArgumentError

# Seconds, measured on a machine of two cores with CPython 3.11: what HEFT takes per node and per node and device, and
# what the other stages from pruning to generated code take per node, for which the first step has to wait.
_HEFT_NODE: Final = 6e-6
_HEFT_NODE_AND_DEVICE: Final = 1.2e-6
_COMPILE_NODE: Final = 1.5e-4
_HEFT_SHARE: Final = 0.05
_WORTH_SPLITTING: Final = 0.05

PlacementStrategy: TypeAlias = Callable[[Problem, int], list[int]]


@dataclass(frozen=True, slots=True)
class Placement:
    """A device for every node.

    Attributes:
        devices: Full device name by node name.
        seconds: The predicted duration of a step.
        strategy: The name of the strategy that found the placement.
    """

    devices: Mapping[str, str]
    seconds: float
    strategy: str


def _first(problem: Problem, seed: int) -> list[int]:
    return [problem.feasible[group][0] for group in problem.group]


def _random(problem: Problem, seed: int) -> list[int]:
    source = random.Random(seed)
    chosen = [source.choice(feasible) for feasible in problem.feasible]
    return [chosen[group] for group in problem.group]


def _round_robin(problem: Problem, seed: int) -> list[int]:
    chosen = [feasible[(i + seed) % len(feasible)] for i, feasible in enumerate(problem.feasible)]
    return [chosen[group] for group in problem.group]


# By name. "random" and "round_robin" are baselines for comparison.
STRATEGIES: Final[Mapping[str, PlacementStrategy]] = {
    "first": _first,
    "greedy": lambda problem, _: greedy(problem),
    "heft": lambda problem, _: heft(problem),
    "random": _random,
    "round_robin": _round_robin,
}


def check_strategy(name: str) -> None:
    """Raise InvalidArgumentError if this is neither "auto" nor a name in `STRATEGIES`."""
    if name not in ("auto", *STRATEGIES):
        raise InvalidArgumentError(
            "unknown placement strategy", expected=f"one of {['auto', *STRATEGIES]}", actual=name
        )


def choose(
    graph: ClientGraph,
    groups: Sequence[GroupLike],
    cluster: ClusterView,
    costs: CostModel,
    strategy: str = "auto",
    seed: int = 0,
) -> Placement:
    """Return a device for every node of a graph.

    Args:
        graph: The graph.
        groups: Nodes that must share a device, with their feasible devices (`constraints.feasible_groups`).
        cluster: The devices that the plan may use.
        costs: The costs of nodes and transfers.
        strategy: A name in `STRATEGIES`, or "auto": see `choose_for`.
        seed: The seed for the strategies that use one.

    Raises:
        InvalidArgumentError: the strategy is unknown.
    """
    problem = build_problem(graph, groups, cluster.devices, costs)
    devices, seconds, winner = choose_for(problem, strategy, seed)
    names = [problem.devices[device] for device in devices]
    return Placement(dict(zip(graph.nodes, names, strict=True)), seconds, winner)


def choose_for(problem: Problem, strategy: str = "auto", seed: int = 0) -> tuple[list[int], float, str]:
    """Return the same as `choose`, in numbers: devices by node, predicted seconds, and the strategy.

    "auto" uses the better of greedy and HEFT; HEFT is tried only if `heft_is_affordable`. If the result gains less than
    5 % over the first feasible device for everything, that one is returned: predictions are not exact enough for a
    small gain to justify transfers.

    Raises:
        InvalidArgumentError: the strategy is unknown.
    """
    if strategy != "auto":
        check_strategy(strategy)
        devices = STRATEGIES[strategy](problem, seed)
        return devices, makespan(problem, devices), strategy
    unsplit = _first(problem, seed)
    alone = makespan(problem, unsplit)
    best, seconds, winner = choose_for(problem, "greedy")
    if heft_is_affordable(len(problem.nodes), len(problem.devices), seconds):
        other, other_seconds, _ = choose_for(problem, "heft")
        if other_seconds < seconds:
            best, seconds, winner = other, other_seconds, "heft"
    # A small predicted gain is within the error of the prediction.
    if seconds >= alone * (1.0 - _WORTH_SPLITTING):
        return unsplit, alone, "first"
    return best, seconds, winner


def heft_is_affordable(nodes: int, devices: int, step_seconds: float) -> bool:
    """Return whether HEFT costs less than 5 % of the first step.

    The first step is compiled and run: nodes x 150 µs + the predicted time of a step. HEFT takes about nodes x (6 µs +
    1.2 µs x devices). So it is tried if a step takes longer than nodes x 18 µs on two devices, nodes x 0.16 ms on
    eight. Only counts and predictions decide, not a clock, so the choice is reproducible.
    """
    cost = nodes * (_HEFT_NODE + _HEFT_NODE_AND_DEVICE * devices)
    return cost < _HEFT_SHARE * (nodes * _COMPILE_NODE + step_seconds)

"""THE list of stages from a user's graph to a plan, once and for every kind of session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aioflow.compiler.ir import ClientGraph, Plan
from aioflow.compiler.optimize.passes import Evaluate, chosen_passes
from aioflow.compiler.partition import Recompute, partition
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.placement import Chooser, first_feasible, place
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify

__all__ = ["CompileOptions", "compile_step"]


def _never(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a step is compiled.

    Attributes:
        verify: Check the graph after every stage.
        optimizations: As `SessionConfig.optimizations`.
        evaluate: Computes nodes for the passes that fold constants; by default nothing is folded.
        compression: How float32 values go between devices; "" for as they are.
        choose: Gives nodes that may be on several devices one of them.
        recompute: As of `partition`.
    """

    verify: bool = False
    optimizations: bool | Mapping[str, bool] = True
    evaluate: Evaluate = field(default=_never)
    compression: str = ""
    choose: Chooser = first_feasible
    recompute: Recompute | None = None


def compile_step(request: StepRequest, cluster: ClusterView, options: CompileOptions | None = None) -> Plan:
    """prune → optimize → place → partition.

    Raises:
        InvalidArgumentError: a device request cannot be met, or an optimization is switched that does not exist.
        UnimplementedError: no kernel for a node.
    """
    chosen = options or CompileOptions()
    check = verify if chosen.verify else _trust
    graph = check(prune(request))
    for optimization in chosen_passes(chosen.optimizations):
        graph = check(optimization.run(graph, chosen.evaluate))
    asked = frozenset(name for name, node in graph.nodes.items() if node.device)
    graph = check(place(_pinned(graph, cluster.pins), cluster, chosen.choose))
    plan = partition(graph, chosen.compression, chosen.recompute, asked)
    if chosen.verify:
        for part in plan.parts.values():
            for subgraph in part.subgraphs.values():
                verify(subgraph, whole=False)
    return plan


def _pinned(graph: ClientGraph, pins: Mapping[str, str]) -> ClientGraph:
    """The graph in which nodes that have been placed before ask for the device that they got."""
    moved = {name: replace(graph.nodes[name], device=pins[name]) for name in graph.nodes.keys() & pins.keys()}
    return replace(graph, nodes={name: moved.get(name, node) for name, node in graph.nodes.items()}) if moved else graph


def _trust(graph: ClientGraph) -> ClientGraph:
    return graph

"""THE list of stages from a user's graph to a plan, once and for every kind of session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aioflow.compiler.ir import ClientGraph, Plan
from aioflow.compiler.partition import partition
from aioflow.compiler.place import ClusterView, place
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify

__all__ = ["OPTIMIZATIONS", "CompileOptions", "compile_step"]

# Passes over the pruned graph, in order; each maps a ClientGraph to an equivalent one.
OPTIMIZATIONS: tuple[Callable[[ClientGraph], ClientGraph], ...] = ()


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a step is compiled. `verify` checks the graph after every stage."""

    verify: bool = False


def compile_step(request: StepRequest, cluster: ClusterView, options: CompileOptions | None = None) -> Plan:
    """prune → optimize → place → partition.

    Raises:
        InvalidArgumentError: a device request cannot be met.
        UnimplementedError: no kernel for a node.
    """
    check = verify if options is not None and options.verify else _trust
    graph = check(prune(request))
    for optimization in OPTIMIZATIONS:
        graph = check(optimization(graph))
    return partition(check(place(graph, cluster)))


def _trust(graph: ClientGraph) -> ClientGraph:
    return graph

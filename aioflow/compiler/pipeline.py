"""The stages from a user's graph to a plan, the same for every kind of session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from aioflow.compiler.ir import BODY, ClientGraph, Plan
from aioflow.compiler.optimize.order_memory import order_memory
from aioflow.compiler.optimize.passes import (
    ORDER_MEMORY,
    PACK_SENDS,
    RECOMPUTE,
    SCHEDULE_RECEIVES,
    Evaluate,
    Pass,
    around_delegation,
    chosen_passes,
    is_on,
)
from aioflow.compiler.pack import pack_sends
from aioflow.compiler.partition import Recompute, partition
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.placement import Chooser, first_feasible, place
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.schedule import schedule_receives
from aioflow.compiler.taking import mark_takes
from aioflow.compiler.timeline import NodeSeconds, TransferSeconds
from aioflow.compiler.verify import verify
from aioflow.memory.collector import let_go
from aioflow.ops.delegated import DELEGATED


def _never(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The settings of compilation.

    Attributes:
        verify: Whether to check the graph after every stage.
        optimizations: See `SessionConfig.optimizations`.
        evaluate: Computes nodes for the passes that fold constants; by default nothing is folded.
        compression: How float32 values cross between devices; "" for unchanged.
        choose: Chooses a device for each node that may be on several.
        recompute: See `partition`.
        meeting: Replaces feeds and fetches, before placement, by nodes that exchange values with the caller during the
            step.
        times: Returns for a placed graph the times that `pack_sends` and `schedule_receives` need; without it, each
            value is sent by itself as soon as it is computed.
        delegate: Replaces each part of a device's graph that another engine computes by one node; without it, nothing
            is delegated.
    """

    verify: bool = False
    optimizations: bool | Mapping[str, bool] = True
    evaluate: Evaluate = field(default=_never)
    compression: str = ""
    choose: Chooser = first_feasible
    recompute: Recompute | None = None
    meeting: Callable[[ClientGraph], ClientGraph] | None = None
    times: Callable[[ClientGraph], tuple[NodeSeconds, TransferSeconds]] | None = None
    delegate: Callable[[str, ClientGraph], ClientGraph] | None = None


def compile_step(request: StepRequest, cluster: ClusterView, options: CompileOptions | None = None) -> Plan:
    """Compile a step: prune → optimize → place → partition → pack → schedule → delegate → order.

    Args:
        request: The graph with its feeds, fetches and targets.
        cluster: The devices that the plan may use.
        options: The settings; None for the defaults.

    Raises:
        InvalidArgumentError: a device request cannot be met, or a switch does not name an optimization.
        UnimplementedError: a node has no kernel.
    """
    chosen = options or CompileOptions()
    check: Callable[..., ClientGraph] = verify if chosen.verify else _trust
    passes = chosen_passes(chosen.optimizations)
    # Fused nodes would hide their ops from other engines, so passes that fuse run after the delegation.
    first, later = (passes, ()) if chosen.delegate is None else around_delegation(passes)
    graph = _optimized(check(prune(request)), first, chosen.evaluate, check)
    if chosen.meeting is None:
        graph = mark_takes(graph)
    else:  # a partial run: feeds and fetches are exchanged during the step
        graph = check(chosen.meeting(graph))
    # Collected before `_pinned` adds requests: only nodes that the user placed must not be recomputed elsewhere.
    asked = frozenset(name for name, node in graph.nodes.items() if node.device)
    before = list(graph.nodes.values())
    graph = check(place(_pinned(graph, cluster.pins), cluster, chosen.choose))
    # The nodes that were replaced are freed one by one, so that other threads can run.
    let_go(before)
    again = chosen.recompute if is_on(RECOMPUTE, chosen.optimizations) else None
    plan = partition(graph, chosen.compression, again, asked)
    if chosen.times is not None and is_on(PACK_SENDS, chosen.optimizations):
        plan = pack_sends(plan, chosen.times(graph)[0])
    if chosen.times is not None and is_on(SCHEDULE_RECEIVES, chosen.optimizations):
        plan = schedule_receives(plan, *chosen.times(graph))
    if chosen.delegate is not None:
        # The graph of one device lacks the feeds and fetches of the others.
        delegate, check_part = chosen.delegate, partial(check, whole=False) if chosen.verify else check
        plan = plan.changed(lambda device, part: _optimized(delegate(device, part), later, chosen.evaluate, check_part))
    if is_on(ORDER_MEMORY, chosen.optimizations):
        plan = plan.changed(lambda _, subgraph: order_memory(subgraph, chosen.evaluate))
    return plan.changed(lambda _, subgraph: verify(subgraph, whole=False)) if chosen.verify else plan


def _optimized(
    graph: ClientGraph, passes: Sequence[Pass], evaluate: Evaluate, check: Callable[[ClientGraph], ClientGraph]
) -> ClientGraph:
    """Return the graph, with the bodies in it, after these passes."""
    for optimization in passes:
        before = list(graph.nodes.values())
        graph = check(optimization.run(graph, evaluate))
        let_go(before)
    # A delegated body must keep to ops that the engine computes.
    bodies = {
        name: _optimized(node.body, passes, evaluate, check)
        for name, node in graph.nodes.items()
        if node.body is not None and node.op != DELEGATED
    }
    if not bodies:
        return graph
    inside = {
        name: replace(graph.nodes[name], attrs={**graph.nodes[name].attrs, BODY: b}) for name, b in bodies.items()
    }
    return replace(graph, nodes={name: inside.get(name, node) for name, node in graph.nodes.items()})


def _pinned(graph: ClientGraph, pins: Mapping[str, str]) -> ClientGraph:
    """Return the graph in which nodes that were placed by an earlier step request the same device."""
    moved = {name: replace(graph.nodes[name], device=pins[name]) for name in graph.nodes.keys() & pins.keys()}
    return replace(graph, nodes={name: moved.get(name, node) for name, node in graph.nodes.items()}) if moved else graph


def _trust(graph: ClientGraph) -> ClientGraph:
    return graph

"""Stage 4: assign a device to every node.

With one device there is nothing to decide. Otherwise `constraints` determines groups of nodes and their feasible
devices, and a strategy chooses among these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.constraints import Group, Offers, feasible_groups
from aioflow.graph.traits import Role

Chooser: TypeAlias = Callable[[ClientGraph, Sequence[Group], ClusterView], Mapping[str, str]]


def first_feasible(graph: ClientGraph, groups: Sequence[Group], cluster: ClusterView) -> dict[str, str]:
    """Return the preferred device of each group: the simplest strategy."""
    return {name: group.devices[0] for group in groups for name in group.members}


def place(graph: ClientGraph, cluster: ClusterView, choose: Chooser = first_feasible) -> ClientGraph:
    """Return the same graph with a full device name on every node.

    Args:
        graph: The optimized graph.
        cluster: The devices that the plan may use.
        choose: Returns for each node one of the devices of its group, the same for all members.

    Raises:
        InvalidArgumentError: no device satisfies a node's request.
        UnimplementedError: no device has a kernel for a node.
    """
    if len(cluster.devices) == 1 and _fits_everywhere(graph, Offers(cluster)):
        (device,) = cluster.devices
        return replace(graph, nodes={name: _on(node, device) for name, node in graph.nodes.items()})
    groups = feasible_groups(graph, cluster)
    # Without a choice the strategy, which simulates the step, is skipped.
    decided = all(len(group.devices) == 1 for group in groups)
    chosen = dict(first_feasible(graph, groups, cluster) if decided else choose(graph, groups, cluster))
    chosen.update(_constants_beside_readers(graph, groups, chosen))
    return replace(graph, nodes={name: _on(node, chosen[name]) for name, node in graph.nodes.items()})


def _fits_everywhere(graph: ClientGraph, offers: Offers) -> bool:
    """Return whether every node runs on each device and matches each request.

    Otherwise the groups are needed, which also produce the error message.
    """
    return all(
        offers.kernels(node)[0] == offers.everywhere and (offers.request(node.device) == offers.everywhere)
        for node in graph.nodes.values()
    )


def _constants_beside_readers(graph: ClientGraph, groups: Sequence[Group], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the devices of ungrouped constants whose readers are all on one feasible device."""
    alone = (group for group in groups if len(group.members) == 1)
    free = {g.members[0]: g.devices for g in alone if graph.nodes[g.members[0]].role is Role.CONSTANT}
    readers: dict[str, set[str]] = {name: set() for name in free}
    for node in graph.nodes.values():
        for edge in node.inputs:
            if edge.node in free:
                readers[edge.node].add(chosen[node.name])
    moved = {name: next(iter(devices)) for name, devices in readers.items() if len(devices) == 1}
    return {name: device for name, device in moved.items() if device in free[name]}


def _on(node: Node, device: str) -> Node:
    return Node(node.name, node.op, node.inputs, node.control, node.attrs, node.outputs, device, node.source)

"""The frames of a graph in primitive form: which nodes are in which loop, and what closes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.place.colocation import is_everywhere
from aioflow.graph.boundary import RETVAL

__all__ = ["LoopFrame", "frames_behind", "settled"]


@dataclass(eq=False, slots=True)
class LoopFrame:
    """One loop.

    Attributes:
        name: The `frame_name` of its Enters.
        parent: The loop around it, or None.
        condition: The name of its LoopCond; "" where it has none.
    """

    name: str
    parent: LoopFrame | None
    parallel_iterations: int
    condition: str = ""


def frames_behind(graph: ClientGraph) -> dict[str, LoopFrame | None]:
    """For each node the loop in which its outputs are; None outside all loops."""
    known: dict[tuple[LoopFrame | None, str], LoopFrame] = {}
    behind: dict[str, LoopFrame | None] = {}
    for name, node in graph.nodes.items():
        inside = next((behind[s] for s in node.predecessors() if s in behind), None)
        if node.op == "Enter":
            key = (inside, node.attrs["frame_name"])
            if key not in known:
                known[key] = LoopFrame(key[1], inside, node.attrs["parallel_iterations"])
            inside = known[key]
        elif node.op == "Exit" and inside is not None:
            inside = inside.parent
        elif node.op == "LoopCond" and inside is not None:
            inside.condition = name
        behind[name] = inside
    return behind


def settled(graph: ClientGraph) -> ClientGraph:
    """The placed graph with the nodes of loops where the rules of loops need them.

    A loop variable's Enter, Merge and NextIteration are on one device, since a value crosses between devices once in
    every iteration or never. A Switch stands with the data that it steers and an Exit with its Switch, which saves
    sending what is dead.
    """
    devices = {name: node.device for name, node in graph.nodes.items()}
    for node in graph.nodes.values():
        if node.op == "Merge":
            _settle_variable(graph, node, devices)
        elif node.op in ("Switch", "Exit") and not is_everywhere(graph.nodes[node.inputs[0].node]):
            devices[node.name] = devices[node.inputs[0].node]
    for node in graph.nodes.values():
        if node.op == RETVAL:
            devices[node.name] = devices[node.inputs[0].node]
    moved = {
        n: node if node.device == devices[n] else replace(node, device=devices[n]) for n, node in graph.nodes.items()
    }
    return replace(graph, nodes=moved)


def _settle_variable(graph: ClientGraph, merge: Node, devices: dict[str, str]) -> None:
    sources = [graph.nodes[edge.node] for edge in merge.inputs]
    if any(source.op == "NextIteration" for source in sources):
        for source in sources:
            devices[source.name] = devices[merge.name]

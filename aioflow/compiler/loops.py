"""The frames of a graph in primitive form: the loop of each node, and the condition of each loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.place.colocation import is_everywhere
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.graph.boundary import RETVAL
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role


@dataclass(eq=False, slots=True)
class LoopFrame:
    """One loop.

    Attributes:
        name: The `frame_name` of its Enters.
        parent: The surrounding loop, or None.
        parallel_iterations: Number of iterations that may run at once.
        condition: The name of its LoopCond; "" if it has no LoopCond.
    """

    name: str
    parent: LoopFrame | None
    parallel_iterations: int
    condition: str = ""


def frames_behind(graph: ClientGraph) -> dict[str, LoopFrame | None]:
    """Return for each node the loop in which its outputs are; None outside all loops."""
    known: dict[tuple[LoopFrame | None, str], LoopFrame] = {}
    behind: dict[str, LoopFrame | None] = {}
    for name, node in graph.nodes.items():
        inside = next((behind[s] for s in node.predecessors() if s in behind), None)
        if node.op == "Enter":
            # Loops inside different loops may have the same frame name.
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


def check_frames(graph: ClientGraph) -> None:
    """Check that each value is read in the loop in which it is computed.

    The passes, the partition and the executors of loops rely on it.

    Raises:
        InvalidArgumentError: a node has inputs from different loops, an Exit is outside of loops, or a fetch is in one.
    """
    if not any(traits_of(node.op).role in (Role.ENTER, Role.EXIT) for node in graph.nodes.values()):
        return
    behind = frames_behind(graph)
    for node in graph.nodes.values():
        sources = list(node.predecessors())
        frames = [behind[source] for source in sources]
        for source, frame in zip(sources, frames, strict=True):
            if frame is not frames[0]:
                what = f"node {node.name!r} has inputs from different frames: {source!r} is elsewhere"
                raise _misplaced(node, what, _shown(frames[0]), _shown(frame))
        if traits_of(node.op).role is Role.EXIT and frames[0] is None:
            what = "invalid Exit op: cannot find a corresponding Enter op"
            raise _misplaced(node, what, "an Exit in a frame", "no frame")
        if node.op == RETVAL and frames[0] is not None:
            edge, fetched = node.inputs[0], graph.nodes[node.inputs[0].node]
            what = f"the tensor '{edge.node}:{edge.port}' cannot be fetched: it has a value in each iteration of a loop"
            raise _misplaced(fetched, what, "a tensor outside of loops", _shown(frames[0]))


def _misplaced(node: Node, what: str, expected: str, actual: str) -> OpError:
    return InvalidArgumentError(what, expected=expected, actual=actual).at(node.name, node.op, node.source)


def _shown(frame: LoopFrame | None) -> str:
    return "no frame" if frame is None else f"frame {frame.name!r}"


def with_loops_together(graph: ClientGraph) -> ClientGraph:
    """Return the placed graph with the control-flow nodes of loops moved to the devices where they must be.

    A loop variable's Enter, Merge and NextIteration are on one device, because an edge between devices carries a value
    either in every iteration or never. A Switch is on the device of its data and an Exit on that of its Switch, which
    avoids sending dead values.
    """
    devices = {name: node.device for name, node in graph.nodes.items()}
    for node in graph.nodes.values():
        if node.op == "Merge":
            _place_variable(graph, node, devices)
        elif node.op in ("Switch", "Exit") and not is_everywhere(graph.nodes[node.inputs[0].node]):
            devices[node.name] = devices[node.inputs[0].node]
    # A second pass, because the sources of fetches may just have been moved.
    for node in graph.nodes.values():
        if node.op == RETVAL:
            devices[node.name] = devices[node.inputs[0].node]
    moved = {
        n: node if node.device == devices[n] else replace(node, device=devices[n]) for n, node in graph.nodes.items()
    }
    return replace(graph, nodes=moved)


def _place_variable(graph: ClientGraph, merge: Node, devices: dict[str, str]) -> None:
    sources = [graph.nodes[edge.node] for edge in merge.inputs]
    if any(source.op == "NextIteration" for source in sources):
        for source in sources:
            devices[source.name] = devices[merge.name]

"""The content of a graph picture: nodes and collapsed scopes as boxes, and the edges between the boxes.

Nodes that depend on no input (weights, and values computed from them) have no box: the box that reads them counts them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect

_WORTH_READING: Final = 40  # boxes; limits the default depth of opened scopes


@dataclass(slots=True)
class Box:
    """One box.

    Attributes:
        name: Name of the node or scope.
        title: Main label: the op, or the last part of the scope's name.
        nodes: Number of nodes that the box represents; 1 for a single node.
        ops: Number of nodes of each op.
        weights: Number of hidden nodes that the box reads and that depend on no input.
        output: Dtype and shape of the first output that another box reads, or "".
        device: Device of its nodes; "" if they are on several devices or it is unknown.
        role: "input", "output", "scope" or "node".
    """

    name: str
    title: str
    nodes: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    weights: int = 0
    output: str = ""
    device: str = ""
    role: str = "node"


@dataclass(frozen=True, slots=True)
class Outline:
    """A graph picture before layout.

    Attributes:
        boxes: Boxes by name, in the order of the graph.
        edges: Tensors that each edge carries, by source and target box; empty for a pure control dependency.
        depth: Number of scope levels that are opened.
    """

    boxes: Mapping[str, Box]
    edges: Mapping[tuple[str, str], Sequence[Tensor]]
    depth: int


def outline(
    graph: Graph,
    inputs: Collection[Tensor] = (),
    fetches: Sequence[Tensor | Operation] = (),
    depth: int | None = None,
    devices: Mapping[str, str] | None = None,
    opened: Collection[str] = (),
) -> Outline:
    """Return the boxes and edges to draw for a graph.

    Args:
        graph: Graph to draw.
        inputs: Fed tensors. Each has its own box, and the nodes that would compute it are left out.
        fetches: Draw only the nodes that these need; the whole graph if there are no fetches.
        depth: Number of scope levels to open; by default, as many as keep the picture readable.
        devices: Devices of nodes, by name; by default, the devices that the nodes request.
        opened: Scopes to open at any depth.
    """
    fed = {tensor.op for tensor in inputs}
    kept = _needed(fetches, fed) if fetches else graph.get_operations()
    wanted = {fetch.op if isinstance(fetch, Tensor) else fetch for fetch in fetches}
    weights = _weights(kept, fed, wanted)
    shown = [op for op in kept if op not in weights]
    deepest = max((op.name.count("/") + 1 for op in shown), default=1)
    # From the deepest level up to the first whose number of boxes is readable.
    choices = range(deepest, 0, -1) if depth is None else [depth]
    level = next((d for d in choices if len({_home(op, d) for op in shown}) <= _WORTH_READING), 1)
    made = _Outlining(shown, weights, fed, wanted, level if depth is None else depth, devices, opened)
    return made.finish()


def _needed(fetches: Iterable[Tensor | Operation], fed: Collection[Operation]) -> list[Operation]:
    """Return the nodes that the fetches need, in order of creation."""
    waiting = [fetch.op if isinstance(fetch, Tensor) else fetch for fetch in fetches]
    found: set[Operation] = set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            # A fed node is an input: what would compute it does not run.
            if op not in fed:
                waiting += [tensor.op for tensor in op.inputs]
                waiting += op.control_inputs
    graph = next(iter(found)).graph
    return [op for op in graph.get_operations() if op in found]


def _weights(
    kept: Iterable[Operation], fed: Collection[Operation], wanted: Collection[Operation]
) -> dict[Operation, int]:
    """Return the nodes that depend on no input and are not fetched.

    The value of each is the number of nodes without inputs that it represents.
    """
    found: dict[Operation, int] = {}
    # In order of creation, so the inputs of a node have been judged before it.
    for op in kept:
        if op in fed or op in wanted or not _is_still(op):
            continue
        before = [tensor.op for tensor in op.inputs] + op.control_inputs
        if all(each in found for each in before):
            # A constant counts as one.
            found[op] = sum(found[each] for each in before) or 1
    return found


def _is_still(op: Operation) -> bool:
    """Return True if a node has the same value in each step until an assignment, as weights do."""
    effect = traits_of(op.type).effect
    return bool(op.outputs) and (effect in (Effect.NONE, Effect.READS) or traits_of(op.type).is_resident)


def _home(op: Operation, depth: int, opened: Collection[str] = ()) -> str:
    """Return the name of the box that contains a node."""
    parts = op.name.split("/")
    # An opened scope shows its children at the next level, which may be open as well.
    while 0 < depth < len(parts) and "/".join(parts[:depth]) in opened:
        depth += 1
    return op.name if len(parts) <= depth else "/".join(parts[:depth]) + "/" if depth else op.name


class _Outlining:
    def __init__(
        self,
        shown: Sequence[Operation],
        weights: Mapping[Operation, int],
        fed: Collection[Operation],
        wanted: Collection[Operation],
        depth: int,
        devices: Mapping[str, str] | None,
        opened: Collection[str],
    ) -> None:
        self._shown, self._weights, self._fed, self._wanted = shown, weights, fed, wanted
        self._depth = depth
        self._devices = devices
        self._opened = opened
        self._own = {*fed, *wanted}  # have their own boxes at any depth

    def _home(self, op: Operation) -> str:
        return op.name if op in self._own else _home(op, self._depth, self._opened)

    def finish(self) -> Outline:
        """Return the complete outline."""
        boxes: dict[str, Box] = {}
        placed: defaultdict[str, set[str]] = defaultdict(set)
        edges: dict[tuple[str, str], dict[Tensor, None]] = {}
        known = set(self._shown)
        for op in self._shown:
            name = self._home(op)
            box = boxes.setdefault(name, Box(name.rstrip("/"), name.rstrip("/").rpartition("/")[2], role="scope"))
            box.nodes += 1
            box.ops[op.type] += 1
            placed[name].add(op.device if self._devices is None else self._devices.get(op.name, ""))
            if op in self._fed:
                continue
            box.weights += sum(self._weights.get(tensor.op, 0) for tensor in op.inputs)
            for source, tensor in self._comes(op):
                # Edges inside a box are not drawn.
                if source in known and (home := self._home(source)) != name:
                    read = edges.setdefault((home, name), {})
                    if tensor is not None:
                        read[tensor] = None
        self._describe(boxes, placed, edges)
        return Outline(boxes, {key: list(tensors) for key, tensors in edges.items()}, self._depth)

    def _comes(self, op: Operation) -> Iterator[tuple[Operation, Tensor | None]]:
        for tensor in op.inputs:
            yield tensor.op, tensor
        for before in op.control_inputs:
            yield before, None

    def _describe(
        self,
        boxes: Mapping[str, Box],
        placed: Mapping[str, set[str]],
        edges: Mapping[tuple[str, str], Mapping[Tensor, None]],
    ) -> None:
        of_boxes = {self._home(op): op for op in self._shown}
        for name, box in boxes.items():
            known = placed[name] - {""}
            # Only if all nodes with a known device agree.
            (box.device,) = known if len(known) == 1 else ("",)
            if box.nodes == 1:
                op = of_boxes[name]
                box.name, box.title = op.name, op.type
                box.role = "input" if op in self._fed else "output" if op in self._wanted else "node"
                box.output = _kind(op.outputs[0]) if op.outputs else ""
        for (source, _), tensors in edges.items():
            if not boxes[source].output and tensors:
                boxes[source].output = _kind(next(iter(tensors)))


def _kind(tensor: Tensor) -> str:
    if tensor.dims is None:
        return tensor.dtype.name
    return f"{tensor.dtype.name} [{', '.join('?' if size is None else str(size) for size in tensor.dims)}]"

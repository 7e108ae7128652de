"""What a picture of a graph shows: nodes and collapsed scopes as boxes, what goes between them, and nothing else.

What follows from no input (weights, and what is worked out from them) has no box: it is counted in the box that reads
it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aioflow.graph.graph import Graph
from aioflow.graph.opdef import traits_of
from aioflow.graph.operation import Operation
from aioflow.graph.tensor import Tensor
from aioflow.graph.traits import Effect

__all__ = ["Box", "Outline", "outline"]

_WORTH_READING: Final = 40  # boxes: how deep scopes are opened where nobody says it


@dataclass(slots=True)
class Box:
    """One box.

    Attributes:
        name: Of the node, or of the scope.
        title: What stands largest in it: the op, or the last part of the scope's name.
        nodes: How many nodes it stands for; 1 for a node of its own.
        ops: How many of each op there are.
        weights: How many nodes that follow from no input are read, and not shown.
        output: The dtype and shape of its first output that somebody else reads, or "".
        device: That they are on; "" where they are on several, or it is not known.
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
    """A picture without places.

    Attributes:
        boxes: By name, in the order of the graph.
        edges: From box to box: the tensors that go there, none where one only waits for the other.
        depth: To which scopes are opened.
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
    """What to draw of a graph.

    Args:
        inputs: What is fed: it has boxes of its own, and what leads to it is left out.
        fetches: Only what they need is drawn; all of the graph where there are none.
        depth: How many levels of scopes are opened; by default as many as leave a picture that can be read.
        devices: The devices of nodes by name; by default those that the nodes ask for.
        opened: Scopes that are opened however deep they are.
    """
    fed = {tensor.op for tensor in inputs}
    kept = _needed(fetches, fed) if fetches else graph.get_operations()
    wanted = {fetch.op if isinstance(fetch, Tensor) else fetch for fetch in fetches}
    weights = _weights(kept, fed, wanted)
    shown = [op for op in kept if op not in weights]
    deepest = max((op.name.count("/") + 1 for op in shown), default=1)
    choices = range(deepest, 0, -1) if depth is None else [depth]
    level = next((d for d in choices if len({_home(op, d) for op in shown}) <= _WORTH_READING), 1)
    made = _Outlining(shown, weights, fed, wanted, level if depth is None else depth, devices, opened)
    return made.finish()


def _needed(fetches: Iterable[Tensor | Operation], fed: Collection[Operation]) -> list[Operation]:
    """The nodes that the fetches need, in the order in which they were made."""
    waiting = [fetch.op if isinstance(fetch, Tensor) else fetch for fetch in fetches]
    found: set[Operation] = set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            if op not in fed:
                waiting += [tensor.op for tensor in op.inputs]
                waiting += op.control_inputs
    graph = next(iter(found)).graph
    return [op for op in graph.get_operations() if op in found]


def _weights(
    kept: Iterable[Operation], fed: Collection[Operation], wanted: Collection[Operation]
) -> dict[Operation, int]:
    """What follows from no input, with how many nodes of no input each stands for; none of them is fetched."""
    found: dict[Operation, int] = {}
    for op in kept:
        if op in fed or op in wanted or not _is_still(op):
            continue
        before = [tensor.op for tensor in op.inputs] + op.control_inputs
        if all(each in found for each in before):
            found[op] = sum(found[each] for each in before) or 1
    return found


def _is_still(op: Operation) -> bool:
    """Whether a node gives the same each time, until somebody assigns something: a weight does."""
    effect = traits_of(op.type).effect
    return bool(op.outputs) and (effect in (Effect.NONE, Effect.READS) or traits_of(op.type).is_resident)


def _home(op: Operation, depth: int, opened: Collection[str] = ()) -> str:
    """The box that a node is in."""
    parts = op.name.split("/")
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
        self._own = {*fed, *wanted}  # have boxes of their own, however deep they are

    def _home(self, op: Operation) -> str:
        return op.name if op in self._own else _home(op, self._depth, self._opened)

    def finish(self) -> Outline:
        """All of it."""
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

"""The content of a graph picture: nodes and collapsed scopes as boxes, and the edges between the boxes.

Nodes that depend on no input (weights, and values computed from them) have no box: the box that reads them counts them.
Where the scopes leave too many boxes, repeated blocks are collapsed as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect
from aioflow.observe.picture.blocks import repeats

_WORTH_READING: Final = 40  # boxes; limits the default depth of opened scopes


class DrawnTensor(Protocol):
    """A value: a `Tensor`, or a value of a plan."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def op(self) -> DrawnNode:
        """The node that computes it."""

    @property
    def dtype(self) -> DType:
        """Its dtype."""

    @property
    def dims(self) -> Dims:
        """Its static shape."""


class DrawnNode(Protocol):
    """A node: an `Operation`, or a node of a plan."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def type(self) -> str:
        """The name of its op."""

    @property
    def device(self) -> str:
        """Its device, or the one that it requests."""

    @property
    def inputs(self) -> Sequence[DrawnTensor]:
        """The values that it reads."""

    @property
    def control_inputs(self) -> Sequence[DrawnNode]:
        """The nodes that it waits for."""

    @property
    def outputs(self) -> Sequence[DrawnTensor]:
        """Its results."""


class DrawnGraph(Protocol):
    """A `Graph`, or the nodes of a plan."""

    def get_operations(self) -> Sequence[DrawnNode]:
        """Return the nodes in order: each after its inputs, except for the back edges of loops."""


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
        outputs: Names of the model's outputs that its node computes.
        contents: Names of its nodes.
    """

    name: str
    title: str
    nodes: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    weights: int = 0
    output: str = ""
    device: str = ""
    role: str = "node"
    outputs: tuple[str, ...] = ()
    contents: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outline:
    """A graph picture before layout.

    Attributes:
        boxes: Boxes by name, in the order of the graph.
        edges: Tensors that each edge carries, by source and target box; empty for a pure control dependency.
        depth: Number of scope levels that are opened.
    """

    boxes: Mapping[str, Box]
    edges: Mapping[tuple[str, str], Sequence[DrawnTensor]]
    depth: int


def outline(
    graph: DrawnGraph,
    inputs: Collection[DrawnTensor] = (),
    fetches: Sequence[DrawnTensor | DrawnNode] = (),
    depth: int | None = None,
    devices: Mapping[str, str] | None = None,
    opened: Collection[str] = (),
    outputs: Iterable[tuple[DrawnTensor, str]] = (),
) -> Outline:
    """Return the boxes and edges to draw for a graph.

    Args:
        graph: DrawnGraph to draw.
        inputs: Fed tensors. Each has its own box, and the nodes that would compute it are left out.
        fetches: Draw only the nodes that these need; the whole graph if there are no fetches.
        depth: Number of scope levels to open; by default, as many as keep the picture readable, and repeated blocks
            are collapsed if it would not be.
        devices: Devices of nodes, by name; by default, the devices that the nodes request.
        opened: Scopes and blocks to open at any depth.
        outputs: The model's outputs, with their names. Those that are drawn have boxes of their own.
    """
    named: defaultdict[DrawnNode, list[str]] = defaultdict(list)
    for tensor, name in outputs:
        named[tensor.op].append(name)
    fed = {tensor.op for tensor in inputs}
    wanted = {_node(fetch) for fetch in fetches}
    kept = _needed(graph, wanted, fed) if fetches else graph.get_operations()
    wanted |= set(named)
    weights = _weights(kept, fed, wanted)
    shown = [op for op in kept if op not in weights]
    deepest = max((op.name.count("/") + 1 for op in shown), default=1)
    # From the deepest level up to the first whose number of boxes is readable.
    choices = range(deepest, 0, -1) if depth is None else [depth]
    homes = {} if depth is not None else {d: _homes(shown, d, {*fed, *wanted}) for d in choices}
    blocks: Mapping[str, _Block] = {}
    level = next((d for d in choices if depth is not None or len(homes[d]) <= _WORTH_READING), 0)
    if not level and depth is None:
        # Too few scopes: repeated blocks of boxes are collapsed, too.
        for level in choices:
            blocks = _blocks(homes[level])
            if len({blocks[home].run if home in blocks else home for home in homes[level]}) <= _WORTH_READING:
                break
    return _Outlining(shown, weights, fed, wanted, level, devices, opened, blocks, named).finish()


class _Block(NamedTuple):
    """The block of a box: its name, the name of its repetition, and their titles."""

    run: str
    name: str
    run_title: str
    title: str


def _homes(shown: Iterable[DrawnNode], depth: int, own: Collection[DrawnNode]) -> dict[str, Hashable]:
    """Return the boxes at a depth, in order, each with a key that is equal for boxes of the same ops."""
    ops: dict[str, Counter[str]] = {}
    for op in shown:
        name = op.name if op in own else _home(op, depth)
        # An input or output equals no other box.
        ops.setdefault(name, Counter())[name if op in own else op.type] += 1
    return {name: frozenset(counts.items()) for name, counts in ops.items()}


def _blocks(homes: Mapping[str, Hashable]) -> dict[str, _Block]:
    """Return the repeated block of each box that is in one."""
    found: dict[str, _Block] = {}
    names = list(homes)
    for start, period, count in repeats(list(homes.values())):
        of_run = names[start : start + period * count]
        for number in range(count):
            of_block = of_run[number * period : (number + 1) * period]
            title = f"block {number + 1} of {count}"
            block = _Block(_span(of_run), _span(of_block), f"{count} × block", title)
            found |= dict.fromkeys(of_block, block)
    return found


def _span(names: Sequence[str]) -> str:
    # A single box, as a block, must differ from itself.
    return f"{names[0].rstrip('/')} … {names[-1].rstrip('/')}"


def _node(fetch: DrawnTensor | DrawnNode) -> DrawnNode:
    # A type check against a protocol would compare attributes.
    return fetch.op if hasattr(fetch, "op") else fetch


def _needed(graph: DrawnGraph, wanted: Iterable[DrawnNode], fed: Collection[DrawnNode]) -> list[DrawnNode]:
    """Return the nodes that the fetches need, in order of creation."""
    waiting = list(wanted)
    found: set[DrawnNode] = set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            # A fed node is an input: what would compute it does not run.
            if op not in fed:
                waiting += [tensor.op for tensor in op.inputs]
                waiting += op.control_inputs
    return [op for op in graph.get_operations() if op in found]


def _weights(
    kept: Iterable[DrawnNode], fed: Collection[DrawnNode], wanted: Collection[DrawnNode]
) -> dict[DrawnNode, int]:
    """Return the nodes that depend on no input and are not fetched.

    The value of each is the number of nodes without inputs that it represents.
    """
    found: dict[DrawnNode, int] = {}
    # In order of creation, so the inputs of a node have been judged before it.
    for op in kept:
        if op in fed or op in wanted or not _is_still(op):
            continue
        before = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        if all(each in found for each in before):
            # A constant counts as one.
            found[op] = sum(found[each] for each in before) or 1
    return found


def _is_still(op: DrawnNode) -> bool:
    """Return True if a node has the same value in each step until an assignment, as weights do."""
    effect = traits_of(op.type).effect
    return bool(op.outputs) and (effect in (Effect.NONE, Effect.READS) or traits_of(op.type).is_resident)


def _home(op: DrawnNode, depth: int, opened: Collection[str] = ()) -> str:
    """Return the name of the box that contains a node."""
    parts = op.name.split("/")
    # An opened scope shows its children at the next level, which may be open as well.
    while 0 < depth < len(parts) and "/".join(parts[:depth]) in opened:
        depth += 1
    return op.name if len(parts) <= depth else "/".join(parts[:depth]) + "/" if depth else op.name


class _Outlining:
    def __init__(
        self,
        shown: Sequence[DrawnNode],
        weights: Mapping[DrawnNode, int],
        fed: Collection[DrawnNode],
        wanted: Collection[DrawnNode],
        depth: int,
        devices: Mapping[str, str] | None,
        opened: Collection[str],
        blocks: Mapping[str, _Block],
        named: Mapping[DrawnNode, Sequence[str]],
    ) -> None:
        self._shown, self._weights, self._fed, self._wanted = shown, weights, fed, wanted
        self._depth = depth
        self._devices = devices
        self._opened = opened
        self._blocks = blocks
        self._named = named
        self._titles = {block.run: block.run_title for block in blocks.values()}
        self._titles |= {block.name: block.title for block in blocks.values()}
        self._own = {*fed, *wanted}  # have their own boxes at any depth

    def _home(self, op: DrawnNode) -> str:
        if op in self._own:
            return op.name
        block = self._blocks.get(_home(op, self._depth))
        if block is not None and block.run not in self._opened:
            return block.run
        if block is not None and block.name not in self._opened:
            return block.name
        return _home(op, self._depth, self._opened)

    def finish(self) -> Outline:
        """Return the complete outline."""
        boxes: dict[str, Box] = {}
        placed: defaultdict[str, set[str]] = defaultdict(set)
        edges: dict[tuple[str, str], dict[DrawnTensor, None]] = {}
        known = set(self._shown)
        for op in self._shown:
            name = self._home(op)
            title = self._titles.get(name, name.rstrip("/").rpartition("/")[2])
            box = boxes.setdefault(name, Box(name.rstrip("/"), title, role="scope"))
            box.nodes += 1
            box.contents.append(op.name)
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

    def _comes(self, op: DrawnNode) -> Iterator[tuple[DrawnNode, DrawnTensor | None]]:
        for tensor in op.inputs:
            yield tensor.op, tensor
        for before in op.control_inputs:
            yield before, None

    def _describe(
        self,
        boxes: Mapping[str, Box],
        placed: Mapping[str, set[str]],
        edges: Mapping[tuple[str, str], Mapping[DrawnTensor, None]],
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
                box.outputs = tuple(self._named.get(op, ()))
                box.output = _kind(op.outputs[0]) if op.outputs else ""
        for (source, _), tensors in edges.items():
            if not boxes[source].output and tensors:
                boxes[source].output = _kind(next(iter(tensors)))


def _kind(tensor: DrawnTensor) -> str:
    if tensor.dims is None:
        return tensor.dtype.name
    return f"{tensor.dtype.name} [{', '.join('?' if size is None else str(size) for size in tensor.dims)}]"

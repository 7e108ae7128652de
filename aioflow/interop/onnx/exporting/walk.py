"""The walk: each item of a block in order, by its translation; what has none is noted, and the walk goes on."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.ir import Node as GraphNode
from aioflow.graph import dtypes
from aioflow.graph.boundary import ARG
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect
from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.rules import load_families, rule_for
from aioflow.interop.onnx.exporting.scope import Parts, RefusedError, Scope
from aioflow.interop.onnx.exporting.structure import Block, Branch, Irregular, Item, Loop, Structure
from aioflow.interop.onnx.exporting.types import is_exportable
from aioflow.interop.onnx.exporting.values import Value
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp

__all__ = ["walk"]

# Values by the outputs of our nodes that they stand for; what is made in a block is not seen outside.
Known = ChainMap[Edge, Value]


def walk(
    graph: ClientGraph,
    wanted: Sequence[Edge],
    inputs: Mapping[Edge, str],
    opset: int,
    reserved: Sequence[str] = (),
    impossible: Sequence[GraphNode] = (),
) -> tuple[Scope, list[Value]]:
    """The model's graph, and its values for the outputs that are wanted.

    Args:
        inputs: Names for the outputs of the nodes that stand for feeds.
        reserved: Names that the outputs of the model are to get.

        impossible: Nodes that are refused whether anything reads them or not.

    Raises:
        UnsupportedError: with every node that has no translation.
    """
    load_families()
    made = _Walk(graph, opset)
    for name in (*inputs.values(), *reserved):
        made.scope.parts.reserve(name)
    values = made.whole(wanted, inputs)
    for node in impossible:
        made.refused.setdefault(node.name, UnsupportedOp(node.op, node.name, _why(node)))
    if made.refused:
        raise UnsupportedError("the graph", made.refused.values(), "exported")
    return made.scope, values


class _Walk:
    """One walk.

    Attributes:
        scope: The model's graph.
        refused: What has no translation, by the names of the nodes.
    """

    def __init__(self, graph: ClientGraph, opset: int) -> None:
        self._graph = graph
        self._structure = Structure(graph)
        self.scope = Scope(Parts(opset), "graph")
        self.refused: dict[str, UnsupportedOp] = {}

    def whole(self, wanted: Sequence[Edge], inputs: Mapping[Edge, str]) -> list[Value]:
        """Make everything."""
        known = Known()
        for edge, name in inputs.items():
            dtype, dims = self._graph.spec(edge)
            known[edge] = Value(name, dtype, dims)
            self.scope.body.inputs.append(known[edge])
        block = self._structure.whole(wanted)
        self._block(block, self.scope, known)
        results = [(edge, self._get(edge, known)) for edge in block.results]
        return [_visible(self._graph, edge, value, self.scope) for edge, value in results]

    def _block(self, block: Block, scope: Scope, known: Known) -> None:
        for item in block.items:
            self._item(item, scope, known)

    def _item(self, item: Item, scope: Scope, known: Known) -> None:
        if isinstance(item, Branch):
            self._branch(item, scope, known)
        elif isinstance(item, Loop):
            self._loop(item, scope, known)
        elif isinstance(item, Irregular):
            self._refuse(item.node, item.why, known)
        elif item.op != ARG:
            self._node(item, scope, known)

    def _get(self, edge: Edge, known: Known) -> Value:
        found = known.get(edge)
        if found is None:  # something before it was refused
            dtype, dims = self._graph.spec(edge)
            return Value("", dtype, dims)
        return found

    # -- plain nodes ---------------------------------------------------------------------------------------------------

    def _node(self, node: GraphNode, scope: Scope, known: Known) -> None:
        given = [self._get(self._structure.value(edge), known) for edge in node.inputs]
        rule = rule_for(node.op)
        if rule is None:
            self._refuse(node, _why(node), known)
            return
        context = Node(node, scope)
        inputs = given if rule.any_layout else [context.rows(value) for value in given]
        try:
            _check(node)
            made = rule.make(context, *inputs)
        except RefusedError as refused:
            self._refuse(node, str(refused), known)
            return
        values = made if isinstance(made, tuple | list) else (made,)
        for port, (value, spec) in enumerate(zip(values, node.outputs, strict=False)):
            if value is not None:
                scope.parts.prefer(value.name, node.name, port)
                same = value if value.name == "" else scope.cast(value, spec.dtype, is_size=True)
                known[Edge(node.name, port)] = same.of(spec.dims if same.constant is None else same.dims)

    def _refuse(self, node: GraphNode, why: str, known: Known) -> None:
        self.refused.setdefault(node.name, UnsupportedOp(node.op, node.name, why))
        for port, spec in enumerate(node.outputs):
            known[Edge(node.name, port)] = Value("", spec.dtype, spec.dims)

    # -- branches and loops --------------------------------------------------------------------------------------------

    def _branch(self, branch: Branch, scope: Scope, known: Known) -> None:
        """An If. A predicate that is known chooses a side here."""
        name = branch.merges[0].name
        predicate = self._get(self._structure.value(branch.predicate), known)
        if predicate.constant is not None:
            side = branch.sides[bool(predicate.constant)]
            self._block(side, scope, known)
            chosen = [self._get(edge, known) for edge in side.results]
        else:
            kinds = [merge.outputs[0].dtype for merge in branch.merges]
            bodies = []
            for side, label in zip(branch.sides, ("else", "then"), strict=True):
                inner, inside = Scope(scope.parts, f"{name}/{label}", scope), known.new_child()
                self._block(side, inner, inside)
                _give(inner, [self._get(edge, inside) for edge in side.results])
                bodies.append(inner.body)
            attrs = {"else_branch": bodies[0], "then_branch": bodies[1]}
            chosen = list(scope.nest("If", name, [predicate], kinds, attrs))
        for merge, value in zip(branch.merges, chosen, strict=True):
            known[Edge(merge.name, 0)] = value.of(merge.outputs[0].dims) if value.constant is None else value

    def _loop(self, loop: Loop, scope: Scope, known: Known) -> None:
        """A Loop: its condition is computed before it, and at the end of every iteration."""
        parts = scope.parts
        kinds: list[DType] = [self._graph.spec(v.merge).dtype for v in loop.variables]
        context_node = self._graph.nodes[loop.variables[0].merge.node]
        starts = [Node(context_node, scope).rows(self._get(v.start, known)) for v in loop.variables]
        before = self._condition(loop, starts, scope, known)
        inner = Scope(parts, f"{loop.name}/body", scope)
        inner.input(f"{loop.name}/iteration", dtypes.int64, ())
        inner.input(f"{loop.name}/condition", dtypes.bool_, ())
        inside = known.new_child()
        for variable, kind in zip(loop.variables, kinds, strict=True):
            dims = self._graph.spec(variable.merge).dims
            inside[variable.merge] = inner.input(variable.merge.node, kind, dims)
        self._block(loop.body, inner, inside)
        within = Node(context_node, inner)
        following = [within.rows(self._get(edge, inside)) for edge in loop.body.results]
        after = self._condition(loop, following, inner, known)
        _give(inner, [after, *following])
        nothing = Value("", dtypes.int64)
        made = scope.nest("Loop", loop.name, [nothing, before, *starts], kinds, {"body": inner.body})
        by_merge = dict(zip((v.merge for v in loop.variables), made, strict=True))
        for node, variable in loop.exits:
            known[Edge(node.name, 0)] = by_merge[variable.merge].of(node.outputs[0].dims)

    def _condition(self, loop: Loop, values: Sequence[Value], scope: Scope, known: Known) -> Value:
        inside = known.new_child()
        for variable, value in zip(loop.variables, values, strict=True):
            inside[variable.merge] = value.of(self._graph.spec(variable.merge).dims)
        self._block(loop.condition, scope, inside)
        return self._get(loop.condition.results[0], inside)


def _give(scope: Scope, values: Sequence[Value]) -> None:
    """Make values the outputs of a graph in a node: each is made in it, and of a name of its own."""
    here = {name for node in scope.body.nodes for name in node.outputs}
    for value in values:
        plain = value
        if value.channels_first:
            made = GraphNode(value.name, "Identity")
            plain = Node(made, scope).rows(value)
            here |= {name for node in scope.body.nodes for name in node.outputs}
        if plain.name not in here:
            (plain,) = scope.nest("Identity", f"{plain.name}/result", [plain], [plain.dtype], {})
        here.discard(plain.name)
        scope.body.outputs.append(plain.of(value.dims))


def _visible(graph: ClientGraph, edge: Edge, value: Value, scope: Scope) -> Value:
    """The value as our graph has it."""
    return Node(graph.nodes[edge.node], scope).rows(value) if value.name else value


def _check(node: GraphNode) -> None:
    for spec in node.outputs:
        if not is_exportable(spec.dtype):
            raise RefusedError(f"no runtime takes {spec.dtype.name}")


def _why(node: GraphNode) -> str:
    """Why an op without a translation has none."""
    traits = traits_of(node.op)
    if traits.kind == "random":
        return "random numbers would be others"
    if traits.stays_home:
        return "Python functions stay here"
    if traits.effect in (Effect.CHANGES, Effect.READS, Effect.KEEPS):
        return "it has a state, or changes one"
    return "no translation"

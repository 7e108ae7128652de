"""The translation of all items of a graph, block by block, in order.

Nodes without translation are collected, so that one error lists all of them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.ir import Node as GraphNode
from aioflow.graph import dtypes
from aioflow.graph.boundary import ARG
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import load_families, rule_for
from aioflow.interop.onnx.exporting.scope import GraphBuilder, ModelState, RefusedError
from aioflow.interop.onnx.exporting.structure import (
    Block,
    BlockItem,
    Branch,
    ExportedVariable,
    Irregular,
    Loop,
    Structure,
)
from aioflow.interop.onnx.exporting.types import is_exportable
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.memory.values import Array

# ── tensor arrays filled by a loop ────────────────────────────────────────────────────────────────────────────────────
#
# A loop in ONNX returns the stack of its iterations' results. The stack equals the array if the iterations write its
# rows in order, from the first to the last or in reverse. If every iteration writes the only row of an array, the array
# is the last row of the stack.


def awaited(array: ModelValue) -> ModelValue:
    """Return an unwritten array marked as such, for use in the body of the loop that fills it."""
    return array if array.rows is None else replace(array, rows=replace(array.rows, is_awaited=True))


def adds_rows(structure: Structure, loop: Loop, variable: ExportedVariable, following: ModelValue) -> bool:
    """Return whether each iteration writes exactly the next row of an array, or each writes its only row."""
    if following.rows is None or not following.rows.is_next:
        return False
    index = _index(structure, variable)
    if index is None or _counts(structure, loop, index) or _counts_down(structure, loop, index):
        return True
    return _is(structure.constant(index), 0) and _is(following.rows.size.constant, 1)


def stacked(
    structure: Structure, loop: Loop, variable: ExportedVariable, row: ModelValue, scope: GraphBuilder
) -> ModelValue:
    """Return the array after the loop, given the stack of its iterations' results.

    Args:
        structure: Structure of the graph.
        loop: The loop.
        variable: Loop variable that holds the array.
        row: The stack, with the static shape of one row.
        scope: Scope in which nodes of the model are made.
    """
    dims = None if row.dims is None else (None, *row.dims)
    index = _index(structure, variable)
    node = ExportedNode(structure.node(variable.merge), scope)
    if index is not None and structure.constant(index) is not None:
        return node.sliced(row, -1, 2**62).of(dims)
    if index is not None and _counts_down(structure, loop, index):
        return node.sliced(row, -1, -(2**62), step=-1).of(dims)
    return row.of(dims)


def _index(structure: Structure, variable: ExportedVariable) -> Edge | None:
    """Return the index that the body writes to, or None if it appends."""
    node = structure.node(structure.past(variable.following))
    if node.op == "TensorListPushBack":
        return None
    return structure.past(node.inputs[1])


def _counts(structure: Structure, loop: Loop, index: Edge) -> bool:
    """Return whether the index is a loop variable that counts up from 0 by 1."""
    for variable in loop.variables:
        if variable.merge == index:
            node = structure.node(structure.past(variable.following))
            if node.op not in ("Add", "AddV2"):
                return False
            inputs = [structure.past(edge) for edge in node.inputs]
            others = [edge for edge in inputs if edge != index]
            steps = [structure.constant(edge) for edge in others]
            start = structure.constant(structure.past(variable.start))
            return len(others) == 1 and _is(steps[0], 1) and _is(start, 0)
    return False


def _counts_down(structure: Structure, loop: Loop, index: Edge) -> bool:
    """Return whether the index is a loop-invariant value minus a variable that counts up from 0 by 1."""
    if structure.is_variable(index):
        return False
    node = structure.node(index)
    return node.op == "Sub" and _counts(structure, loop, structure.past(node.inputs[1]))


def _is(value: Array | None, number: int) -> bool:
    return value is not None and value.size == 1 and bool(value.reshape(-1)[0] == number)


# ── the walk ──────────────────────────────────────────────────────────────────────────────────────────────────────────


# Values by the outputs of the graph's nodes that they translate. Values made in a block are not visible outside.
Known = ChainMap[Edge, ModelValue]


def walk(
    graph: ClientGraph,
    wanted: Sequence[Edge],
    inputs: Mapping[Edge, str],
    opset: int,
    reserved: Sequence[str] = (),
    impossible: Sequence[GraphNode] = (),
) -> tuple[GraphBuilder, list[ModelValue]]:
    """Return the model's main graph, and its values for the wanted outputs.

    Args:
        graph: The step.
        wanted: Outputs of the step that the model returns.
        inputs: Names of the model's inputs, by the outputs that stand for feeds.
        opset: Version of ONNX's operator set.
        reserved: Names that the model's outputs will have.
        impossible: Nodes to refuse even if they are not read.

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
    """The translation of one graph.

    Attributes:
        scope: The model's main graph.
        refused: Nodes without translation, by name.
    """

    def __init__(self, graph: ClientGraph, opset: int) -> None:
        self._graph = graph
        self._structure = Structure(graph)
        self.scope = GraphBuilder(ModelState(opset), "graph")
        self.refused: dict[str, UnsupportedOp] = {}

    def whole(self, wanted: Sequence[Edge], inputs: Mapping[Edge, str]) -> list[ModelValue]:
        """Translate the block of the wanted outputs, and return their values."""
        known = Known()
        for edge, name in inputs.items():
            dtype, dims = self._graph.spec(edge)
            known[edge] = ModelValue(name, dtype, dims)
            self.scope.body.inputs.append(known[edge])
        block = self._structure.whole(wanted)
        self._block(block, self.scope, known)
        results = [(edge, self._get(edge, known)) for edge in block.results]
        return [_visible(self._graph, edge, value, self.scope) for edge, value in results]

    def _block(self, block: Block, scope: GraphBuilder, known: Known) -> None:
        for item in block.items:
            self._item(item, scope, known)

    def _item(self, item: BlockItem, scope: GraphBuilder, known: Known) -> None:
        if isinstance(item, Branch):
            self._branch(item, scope, known)
        elif isinstance(item, Loop):
            self._loop(item, scope, known)
        elif isinstance(item, Irregular):
            self._refuse(item.node, item.why, known)
        elif item.op != ARG:
            self._node(item, scope, known)

    def _get(self, edge: Edge, known: Known) -> ModelValue:
        found = known.get(edge)
        if found is None:  # a node before it was refused
            dtype, dims = self._graph.spec(edge)
            return ModelValue("", dtype, dims)
        return found

    # -- plain nodes ---------------------------------------------------------------------------------------------------

    def _node(self, node: GraphNode, scope: GraphBuilder, known: Known) -> None:
        given = [self._get(self._structure.value(edge), known) for edge in node.inputs]
        rule = rule_for(node.op)
        if rule is None:
            self._refuse(node, _why(node), known)
            return
        context = ExportedNode(node, scope)
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
                # The spec is that of a handle or a flow, not of the rows.
                if value.rows is not None:
                    known[Edge(node.name, port)] = value
                    continue
                same = value if value.name == "" else scope.cast(value, spec.dtype, is_size=True)
                known[Edge(node.name, port)] = same.of(spec.dims if same.constant is None else same.dims)

    def _refuse(self, node: GraphNode, why: str, known: Known) -> None:
        self.refused.setdefault(node.name, UnsupportedOp(node.op, node.name, why))
        for port, spec in enumerate(node.outputs):
            known[Edge(node.name, port)] = ModelValue("", spec.dtype, spec.dims)

    # -- branches and loops --------------------------------------------------------------------------------------------

    def _branch(self, branch: Branch, scope: GraphBuilder, known: Known) -> None:
        """Translate a branch into an If. A constant predicate selects its side here."""
        name = branch.merges[0].name
        predicate = self._get(self._structure.value(branch.predicate), known)
        if predicate.constant is not None:
            # In the surrounding scope, without a graph of its own: the values are visible to later items.
            side = branch.sides[bool(predicate.constant)]
            self._block(side, scope, known)
            chosen = [self._get(edge, known) for edge in side.results]
        else:
            kinds = [merge.outputs[0].dtype for merge in branch.merges]
            bodies = []
            for side, label in zip(branch.sides, ("else", "then"), strict=True):
                inner, inside = GraphBuilder(scope.parts, f"{name}/{label}", scope), known.new_child()
                self._block(side, inner, inside)
                results = [self._get(edge, inside) for edge in side.results]
                _give(inner, results)
                bodies.append(inner.body)
            # An If returns tensors, and the sides may differ in whether an array has been written.
            if any(value.rows is not None for value in results):
                for merge in branch.merges:
                    self._refuse(merge, "an array of tensors in a branch", known)
                return
            attrs = {"else_branch": bodies[0], "then_branch": bodies[1]}
            chosen = list(scope.nest("If", name, [predicate], kinds, attrs))
        for merge, value in zip(branch.merges, chosen, strict=True):
            known[Edge(merge.name, 0)] = value.of(merge.outputs[0].dims) if value.constant is None else value

    def _loop(self, loop: Loop, scope: GraphBuilder, known: Known) -> None:
        """Translate a loop into a Loop.

        Its condition is computed once before the loop, and at the end of every iteration.
        """
        node = self._graph.nodes[loop.variables[0].merge.node]
        starts = {v.merge: ExportedNode(node, scope).rows(self._get(v.start, known)) for v in loop.variables}
        # An unwritten array of tensors has no value to carry: its rows are a scan output of the Loop instead.
        added = {merge for merge, start in starts.items() if start.rows is not None and not start.name}
        carried = [v for v in loop.variables if v.merge not in added]
        before = self._condition(loop, starts, scope, known)
        inner = GraphBuilder(scope.parts, f"{loop.name}/body", scope)
        # The first two inputs of a body are fixed by ONNX: the iteration number and the condition.
        inner.input(f"{loop.name}/iteration", dtypes.int64, ())
        inner.input(f"{loop.name}/condition", dtypes.bool_, ())
        inside = known.new_child()
        inside.update({merge: awaited(starts[merge]) for merge in added})
        for variable in carried:
            start = starts[variable.merge]
            # Not the start's shape, which the iterations may change; the Merge has the shape that holds in all of them.
            dims = self._graph.spec(variable.merge).dims if start.rows is None else _any_rows(start)
            held = inner.input(variable.merge.node, start.dtype, dims)
            inside[variable.merge] = replace(held, rows=start.rows)
        self._block(loop.body, inner, inside)
        following = {
            v.merge: ExportedNode(node, inner).rows(self._get(edge, inside))
            for v, edge in zip(loop.variables, loop.body.results, strict=True)
        }
        self._check_rows(loop, added, following, known)
        after = self._condition(loop, following, inner, known)
        # ONNX orders the outputs of a body: the condition, the carried values, the scan outputs.
        last = [v.merge for v in carried] + [v.merge for v in loop.variables if v.merge in added]
        _give(inner, [after, *(following[merge] for merge in last)])
        # The empty name omits the trip count, so that only the condition ends the loop.
        given = [ModelValue("", dtypes.int64), before, *(starts[v.merge] for v in carried)]
        kinds = [following[merge].dtype for merge in last]
        made = scope.nest("Loop", loop.name, given, kinds, {"body": inner.body})
        after_loop = dict(zip(last, made, strict=True))
        for exit_node, variable in loop.exits:
            value, start = after_loop[variable.merge], starts[variable.merge]
            if variable.merge in added:
                value = stacked(self._structure, loop, variable, value.of(following[variable.merge].dims), scope)
            dims = exit_node.outputs[0].dims if start.rows is None else value.dims
            known[Edge(exit_node.name, 0)] = replace(value, dims=dims, rows=start.rows)

    def _check_rows(self, loop: Loop, added: set[Edge], following: Mapping[Edge, ModelValue], known: Known) -> None:
        for variable in loop.variables:
            if variable.merge in added and not adds_rows(self._structure, loop, variable, following[variable.merge]):
                node = self._graph.nodes[variable.merge.node]
                self._refuse(node, "an array of tensors that is not written in the order of a loop", known)

    def _condition(
        self, loop: Loop, values: Mapping[Edge, ModelValue], scope: GraphBuilder, known: Known
    ) -> ModelValue:
        inside = known.new_child()
        for merge, value in values.items():
            inside[merge] = value.of(self._graph.spec(merge).dims) if value.rows is None else value
        self._block(loop.condition, scope, inside)
        return self._get(loop.condition.results[0], inside)


def _any_rows(value: ModelValue) -> Dims:
    return None if value.dims is None else (None, *value.dims[1:])


def _give(scope: GraphBuilder, values: Sequence[ModelValue]) -> None:
    """Make values the outputs of a graph in a node. ONNX requires outputs made in that graph, with distinct names."""
    here = {name for node in scope.body.nodes for name in node.outputs}
    for value in values:
        plain = value
        if value.channels_first:
            made = GraphNode(value.name, "Identity")
            plain = ExportedNode(made, scope).rows(value)
            here |= {name for node in scope.body.nodes for name in node.outputs}
        if plain.name not in here:
            (plain,) = scope.nest("Identity", f"{plain.name}/result", [plain], [plain.dtype], {})
        # The same value twice needs an Identity the second time.
        here.discard(plain.name)
        scope.body.outputs.append(plain.of(value.dims))


def _visible(graph: ClientGraph, edge: Edge, value: ModelValue, scope: GraphBuilder) -> ModelValue:
    """Return the value in the graph's own layout."""
    return ExportedNode(graph.nodes[edge.node], scope).rows(value) if value.name else value


def _check(node: GraphNode) -> None:
    for spec in node.outputs:
        if spec.dtype.is_numpy_compatible and not is_exportable(spec.dtype):
            raise RefusedError(f"no runtime takes {spec.dtype.name}")


def _why(node: GraphNode) -> str:
    """Return the reason why an op has no translation."""
    traits = traits_of(node.op)
    if traits.kind == "random":
        return "random numbers would be others"
    if traits.stays_home:
        return f"it {traits.stays_home}"
    if traits.effect in (Effect.CHANGES, Effect.READS, Effect.KEEPS):
        return "it has a state, or changes one"
    return "no translation"

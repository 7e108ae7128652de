"""Copies of the body of a function, where it is called.

Branches and loops in the body copy themselves, so a copy can be differentiated like nodes made in its place. A node of
the body may have a gradient function of its own: a closure that may refer to tensors of the body. The closure is not
inspected. For a copy of the node it is traced like any other function. The tensors of the body that it reads are
captured, become arguments, and are replaced by the copy's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from typing import Any, Final

from aioflow.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.graph import scopes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.scopes import NamedNodes
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.ops.apply import make, output_specs
from aioflow.ops.control.contexts import ControlFlowContext, LoopVariable, current_context
from aioflow.ops.core import identity
from aioflow.ops.function.body import BodyContext, Function
from aioflow.ops.function.effects import made_in, ordered_effects
from aioflow.ops.importer import by_name
from aioflow.ops.sparse.indexed_slices import Gradient, convert_to_tensor_or_indexed_slices

# In nodes. Functions that each call the next one twice expand to an exponential number of nodes.
_MOST_COPIED: Final = 1 << 18
_OF_LOOPS = ("Enter", "Exit", "NextIteration", "LoopCond")


def inline(
    function: Function, inputs: Sequence[Tensor], without: Collection[Operation] = ()
) -> tuple[list[Tensor], list[Operation]]:
    """Copy the body to the current place in the graph.

    Args:
        function: The function.
        inputs: Its inputs: the arguments and the captured tensors.
        without: Nodes of the body to leave out. Control edges from them are dropped, and `inputs` has their outputs.

    Returns:
        The results, which wait for all effects; and the nodes that have run when the call has.

    Raises:
        ResourceExhaustedError: all copies in the graph have too many nodes.
    """
    return _inline(function, inputs, None, without)


def _inline(
    function: Function, inputs: Sequence[Tensor], around: _Copy | None, without: Collection[Operation] = ()
) -> tuple[list[Tensor], list[Operation]]:
    graph = function.graph
    made = _Copy(graph, function, inputs, around, without)
    made.catch_up()
    results = [made.tensor(t) for t in function.outputs]
    effects = [made.operation(op) for op in function.effects]
    if effects:
        with graph.control_dependencies(effects):
            results = [identity(t, name="result") for t in results]
    return results, [*(t.op for t in results), *effects]


class _Copy:
    """One copy: the counterparts of the tensors, nodes and contexts of the body (`control.contexts.Copies`).

    Args:
        graph: The graph.
        function: The function whose body is copied.
        inputs: The inputs of the call.
        around: The copy of the body that this body reads from, if it is a gradient function's.
        without: Nodes of the body to leave out.
    """

    def __init__(
        self,
        graph: Graph,
        function: Function,
        inputs: Sequence[Tensor],
        around: _Copy | None,
        without: Collection[Operation],
    ) -> None:
        self._graph = graph
        self._function = function
        # True if the inputs are known at least as well as those that the body was made for.
        self._fits = all(_both(a.dims, t.dims) == t.dims for a, t in zip(function.inputs, inputs, strict=True))
        self._tensors = dict(zip(function.inputs, inputs, strict=True))
        self._operations = {t.op: self._tensors[t].op for t in self._tensors}
        self._unused = {*without, *(t.op for t in (*function.arguments, *function.body.captures.values()))}
        self._scope = scopes.current_scope(graph)
        # The top of the body corresponds to the place of the call.
        self._contexts: dict[ControlFlowContext, Any] = {function.body: current_context(graph)}
        self._variables: dict[LoopVariable, LoopVariable] = {}
        self._around = around
        self._made: list[tuple[Operation, Operation]] = []
        self._later: list[tuple[Operation, Operation]] = []

    def name(self, name: str) -> str:
        """Return the name in the copy."""
        return self._scope.under(name)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor."""
        found = self._tensors.get(tensor)
        if found is None:
            return tensor if self._around is None else self._around.tensor(tensor)
        return found

    def operation(self, op: Operation) -> Operation:
        """Return the copy of a node."""
        found = self._operations.get(op)
        if found is None:
            return op if self._around is None else self._around.operation(op)
        return found

    def context(self, context: Any) -> Any:
        """Return the copy of a branch or a loop. Its nodes are set by `_complete`, when all are copied."""
        if context is None or context in self._contexts:
            return self._contexts.get(context)
        if not self._is_inside(context):
            return context if self._around is None else self._around.context(context)
        # Registered first: the two branches of a cond refer to each other.
        made = self._contexts[context] = copy(context)
        context.begin_copy(made, self)
        return made

    def _is_inside(self, context: ControlFlowContext | None) -> bool:
        while context is not None and context is not self._function.body:
            context = context.outer
        return context is not None

    def variable(self, variable: LoopVariable) -> LoopVariable:
        """Return the copy of a loop variable."""
        if variable not in self._variables:
            self._variables[variable] = variable.copied(self)
        return self._variables[variable]

    def catch_up(self) -> None:
        """Copy the nodes of the body that this copy lacks: a loop gets more nodes when it is differentiated."""
        for op in list(self._function.body.nodes.values()):
            if op not in self._operations:
                self._add(op)
        self._complete()

    def _add(self, op: Operation) -> None:
        """Copy one node whose inputs are copied, except the input of a Merge that comes from the end of its loop."""
        if op in self._unused:
            return
        self._graph.copied += 1
        if self._graph.copied > _MOST_COPIED:
            raise ResourceExhaustedError(
                "the functions that are called are too large when they are all expanded",
                expected=f"at most {_MOST_COPIED} nodes",
                actual=f"more, in {self._function.name!r}",
            )
        # The end of the loop is not copied yet: until `_complete`, the Merge reads its first input twice.
        following = [t not in self._tensors and self._is_inside(t.op.control_flow_context) for t in op.inputs]
        present = [self.tensor(op.inputs[0] if late else t) for t, late in zip(op.inputs, following, strict=True)]
        context = self.context(op.control_flow_context)
        scope = self._scope_of(op, context)
        with scopes.enter_scope(self._graph, lambda _: scope):
            made = self._graph.create_op(
                op.type,
                present,
                self._attrs(op),
                self._specs(op, present),
                name=op.name,
                control_inputs=[self._operations[c] for c in op.waits_for if c in self._operations],
                device=op.device,
                source=op.source,
                # The expansion of a call in the body is copied node by node; `_complete` sets it.
                expand=False,
            )
        made.control_flow_context = context
        self._operations[op] = made
        self._tensors.update(zip(op.outputs, made.outputs, strict=True))
        self._made.append((op, made))
        # In a loop, a control edge may come from a node that is copied later.
        missing = [c for c in op.waits_for if c not in self._operations and c not in self._unused]
        self._later += [(made, control) for control in missing]

    def _scope_of(self, op: Operation, context: ControlFlowContext | None) -> scopes.Scope:
        """Return the scope to make the copy in. An Enter or Switch is made outside of the context that it enters."""
        call = self._scope.call if op.call is None else self._operations[op.call]
        where = made_in(op)
        if isinstance(where, NamedNodes):
            # No edge may lead into a frame except through an Enter, and the Enters wait already.
            leaves = op.type == "Exit"
            return self._scope._replace(call=call, controllers=() if leaves else self._scope.controllers)
        return self._scope.bare(self.context(where))._replace(call=call)

    def _attrs(self, op: Operation) -> Attrs:
        attrs = dict(op.attrs)
        # Each copy of a loop is a separate loop.
        if "frame_name" in attrs:
            attrs["frame_name"] = self._scope.under(attrs["frame_name"])
        # Nodes that are colocated in the body are so in the copy.
        if "_class" in attrs:
            attrs["_class"] = tuple(self._group(group) for group in attrs["_class"])
        return attrs

    def _group(self, group: str) -> str:
        source = self._function.body.nodes.get(group.removeprefix("loc:@"))
        copied = None if source is None else self._operations.get(source)
        return group if copied is None else f"loc:@{copied.name}"

    def _specs(self, op: Operation, inputs: Sequence[Tensor]) -> list[tuple[DType, Dims]]:
        """Return dtypes and static shapes: those of the body, refined by the inputs of the call.

        A loop keeps the shapes that hold in all its iterations. The body's shapes are not used if less is known of the
        inputs than of the arguments that the body was made for.
        """
        known = [(t.dtype, t.dims if self._fits else None) for t in op.outputs]
        context = op.control_flow_context
        while context is not None and not context.is_loop:
            context = context.outer
        if context is not None or op.type in _OF_LOOPS or op.expansion is not None:
            return known
        try:
            inferred = output_specs(op.op_def, by_name(op.op_def, inputs, op.attrs), op.attrs)
        except OpError as error:
            raise error.at(self._scope.under(op.name), op.type, op.source) from error.__cause__
        return [(dtype, _both(dims, more)) for (dtype, dims), (_, more) in zip(known, inferred, strict=True)]

    def _complete(self) -> None:
        """Close the loops, and set the contexts, expansions and gradient functions of the copies."""
        for made, control in self._later:
            made.add_control_input(self._operations[control])
        for op, made in self._made:
            for i, tensor in enumerate(op.inputs):
                if op.type == "Merge" and tensor.op.type == "NextIteration":
                    made.update_input(i, self._tensors[tensor])
            if op.expansion is not None:
                made.expansion = tuple(self._tensors[t] for t in op.expansion)
                made.finish = tuple(self._operations[f] for f in op.finish)
            if op.gradient_function is not None:
                made.gradient_function = _GradientOfCopy(op.gradient_function, self)
        self._made, self._later = [], []
        for context, made_context in self._contexts.items():
            if not isinstance(context, NamedNodes):
                context.end_copy(made_context, self)


class _GradientOfCopy:
    """The gradient function of a copied node, derived from that of the node in the body."""

    def __init__(self, gradient: Callable[..., Any], made: _Copy) -> None:
        self._gradient = gradient
        self._copy = made

    def __call__(self, op: Operation, *incoming: Gradient | None) -> list[Any]:
        """Return the gradients of the inputs, computed by a copy of the original gradient's nodes."""
        # The closure may refer to tensors of the body; the copy replaces them by their counterparts.
        function, outgoing = _traced(self._gradient, op, incoming)
        # Tracing the gradient may have enlarged a loop of the body, so the copy must grow as well.
        self._copy.catch_up()
        # A function takes tensors only, so slices are passed as their parts.
        given = [part for gradient in incoming for part in _parts(gradient)]
        captured = [self._copy.tensor(t) for t in function.captured]
        with function.graph.control_dependencies([self._copy.operation(op) for op in function.body.waits]):
            results, _ = _inline(function, [*given, *captured], self._copy)
        # The results are the parts of all gradients, one after another.
        made = iter(results)
        return [_rebuilt(gradient, made) for gradient in outgoing]


def _traced(
    gradient: Callable[..., Any], op: Operation, incoming: Sequence[Tensor | IndexedSlices | None]
) -> tuple[Function, list[Tensor | IndexedSlices | None]]:
    """Trace a gradient function into a body of its own. Return the function, and the gradients inside it."""
    body = BodyContext(op.graph, f"gradient of {op.name}")
    with op.graph.as_default(), body.opened():
        arguments = [
            make("Placeholder", dtype=part.dtype, shape=part.dims, name="incoming")
            for whole in incoming
            for part in _parts(whole)
        ]
        given = iter(arguments)
        result = gradient(op, *(_rebuilt(whole, given) for whole in incoming))
        listed = list(result) if isinstance(result, list | tuple) else [result]
        outgoing = [None if g is None else convert_to_tensor_or_indexed_slices(g) for g in listed]
        outputs = [body.capture(part) for whole in outgoing for part in _parts(whole)]
    return Function(body, body.name, arguments, outputs, ordered_effects(body)), outgoing


def _parts(gradient: Tensor | IndexedSlices | None) -> list[Tensor]:
    if gradient is None:
        return []
    if isinstance(gradient, IndexedSlices):
        parts = (gradient.values, gradient.indices, gradient.dense_shape)
        return [part for part in parts if part is not None]
    return [gradient]


def _rebuilt(gradient: Tensor | IndexedSlices | None, parts: Iterator[Tensor]) -> Tensor | IndexedSlices | None:
    """Return a gradient of the same form made of the next tensors."""
    if gradient is None:
        return None
    if isinstance(gradient, IndexedSlices):
        values, indices = next(parts), next(parts)
        return IndexedSlices(values, indices, None if gradient.dense_shape is None else next(parts))
    return next(parts)


def _both(dims: Dims, more: Dims) -> Dims:
    try:
        return merge_dims(dims, more)
    except InvalidArgumentError:
        return dims

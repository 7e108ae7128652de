"""`recompute_grad`: activations that are computed twice instead of kept.

After Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.

The function is traced once and its body is copied twice: at the call, and at its gradient. The second copy waits for
the incoming gradients, so that it is neither computed too early nor merged with the first one. It contains only
computations. Random numbers, reads of variables and changes happen once, in the first copy; their results are kept, so
that both copies use the same values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from aioflow.autodiff.gradients import gradients
from aioflow.autodiff.paths import is_trainable
from aioflow.errors import UnimplementedError
from aioflow.graph.default_graph import graph_of
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.traits import Effect
from aioflow.ops import nest
from aioflow.ops.apply import convert_to_tensor, make, make_list
from aioflow.ops.core import identity
from aioflow.ops.function.body import BodyContext, Function
from aioflow.ops.function.copying import inline
from aioflow.ops.function.effects import ordered_effects
from aioflow.ops.function.tracing import plain_name
from aioflow.ops.sparse.indexed_slices import Gradient

P = ParamSpec("P")
R = TypeVar("R")


def recompute_grad(f: Callable[P, R]) -> Callable[P, R]:
    """Decorate `f` so that its intermediate values are recomputed for the gradient instead of kept.

    A step then needs less memory, at the cost of a second computation. Of a chain of such functions only the arguments
    are kept, plus the intermediate values of one function at a time. Values and gradients are the same. `f` is called
    once for each call, and makes nodes. It depends on the tensors, arrays and variables among its arguments (also in
    lists, tuples and dicts), and may read others.

    Random numbers are drawn once. A sample is kept; or, as for `nn.dropout`, only the outcome of comparing it, one byte
    per element. Each variable is read once, and each change happens once.

    Raises, when a gradient is made:
        UnimplementedError: `f` draws random numbers or changes state in a branch or a loop of its own.
    """

    build: Callable[..., object] = f

    @functools.wraps(f)
    def recomputed(*args: object, **kwargs: object) -> Any:
        given = nest.flatten((args, kwargs))
        graph = graph_of([leaf for leaf in given if _is_tensor(leaf)])
        with graph.as_default():
            leaves = [convert_to_tensor(leaf) if _is_tensor(leaf) else leaf for leaf in given]
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            name = plain_name(getattr(f, "__name__", "function"))
            with graph.name_scope(name):
                body = _traced(graph, name, build, (args, kwargs), leaves)
                results = _called(body, tensors)
            return nest.pack(body.structure, results)

    return recomputed


def _is_tensor(leaf: object) -> bool:
    # A variable counts as an argument, so that both copies use the value that was read at the call.
    return isinstance(leaf, Tensor | np.ndarray | np.generic) or hasattr(leaf, "handle")


class _Body:
    """The traced function.

    Attributes:
        first: The whole function; its outputs are the results, followed by the kept tensors.
        again: The computations alone, given the arguments and the kept tensors.
        once: Nodes that only `first` contains.
        kept: Tensors that `first` returns for `again`.
        structure: Structure of the Python function's result.
    """

    def __init__(self, body: BodyContext, arguments: Sequence[Tensor], made: object) -> None:
        self.structure = made
        self.body = body
        outputs = [body.capture(convert_to_tensor(leaf)) for leaf in nest.flatten(made)]
        effects = ordered_effects(body)
        # Nodes in branches and loops cannot be taken out of them: `check` rejects those that may run only once.
        alone = [op for op in body.nodes.values() if op.control_flow_context is body and _happens_once(op)]
        self.once = dict.fromkeys(alone)
        self.kept = _narrowed([t for op in self.once for t in op.outputs], body)
        self.first = Function(body, body.name, arguments, [*outputs, *self.kept], effects)
        # Both functions have the same captured tensors, although the second may need fewer.
        self.again = Function(body, body.name, [*arguments, *self.kept], outputs, [], self.first.captured)

    def check(self) -> None:
        """Raise UnimplementedError if a random draw or a change of state would happen twice."""
        seen = {*self.once, *(t.op for t in self.again.inputs)}
        waiting = [t.op for t in self.again.outputs if t.op not in seen]
        seen.update(waiting)
        while waiting:
            op = waiting.pop()
            if op.op_def.traits.draws or op.op_def.traits.effect is Effect.CHANGES:
                raise UnimplementedError(
                    "recompute_grad cannot repeat random draws or state changes inside branches and loops",
                    expected="nodes without effects inside branches and loops",
                    actual=op.type,
                ).at(op.name, op.type, op.source)
            before = [op_ for op_ in (*(t.op for t in op.inputs), *op.waits_for) if op_ not in seen]
            seen.update(before)
            waiting += before


def _happens_once(op: Operation) -> bool:
    traits = op.op_def.traits
    # The nodes of a call's expansion are looked at one by one, so the call itself is not.
    return op.expansion is None and (traits.draws or traits.effect in (Effect.READS, Effect.CHANGES))


def _narrowed(kept: Sequence[Tensor], body: BodyContext) -> list[Tensor]:
    """Replace samples that are only compared with known values by the outcome, which is smaller."""
    readers: dict[Tensor, list[Operation]] = {}
    for op in body.nodes.values():
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(op)
    return [_outcome(t, readers.get(t, [])) for t in kept]


def _outcome(sample: Tensor, readers: Sequence[Operation]) -> Tensor:
    if len(readers) != 1 or not sample.op.op_def.traits.draws:
        return sample
    (reader,) = readers
    known = all(t is sample or t.op.op_def.traits.is_resident for t in reader.inputs)
    if not known or len(reader.outputs) != 1 or reader.op_def.traits.kind != "elementwise":
        return sample
    (outcome,) = reader.outputs
    return outcome if outcome.dtype.size < sample.dtype.size else sample


def _traced(
    graph: Graph, name: str, build: Callable[..., object], structure: object, leaves: Sequence[object]
) -> _Body:
    body = BodyContext(graph, name)
    with body.opened():
        inside = [
            make("Placeholder", dtype=leaf.dtype, shape=leaf.dims, name="argument")
            if isinstance(leaf, Tensor)
            else leaf
            for leaf in leaves
        ]
        args, kwargs = nest.pack(structure, inside)
        made = build(*args, **kwargs)
        return _Body(body, [leaf for leaf in inside if isinstance(leaf, Tensor)], made)


def _called(body: _Body, arguments: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of a call whose gradient recomputes the body."""
    with body.first.graph.control_dependencies(list(body.body.waits)):
        found, _ = inline(body.first, [*arguments, *body.first.captured])
    count = len(body.again.outputs)
    results, kept = found[:count], found[count:]
    # One node carries everything, so the reverse walk applies `_gradient` there and does not visit the first copy.
    outputs = make_list("IdentityN", [*results, *arguments, *kept, *body.first.captured])
    outputs[0].op.gradient_function = functools.partial(_gradient, body)
    return outputs[:count]


def _gradient(body: _Body, op: Operation, *incoming: Gradient | None) -> list[Gradient | None]:
    """Return gradients for the arguments, the kept tensors and the captured tensors; None for the results."""
    body.check()
    graph, count = op.graph, len(body.again.outputs)
    given = [(y, g) for y, g in enumerate(incoming[:count]) if g is not None]
    waiting = nest.flatten([g for _, g in given])
    # An explicit scope, since the body of a function has no name scope yet.
    with graph.name_scope("again"), graph.control_dependencies(waiting):
        # Copies, so that the gradients are taken with respect to the inputs of this copy alone.
        inputs = [identity(t) for t in op.inputs[count:]]
        results, _ = inline(body.again, inputs, body.once)
    wanted = [t for t in inputs if is_trainable(t.dtype)]
    found = gradients(
        [results[y] for y, _ in given], wanted, [g for _, g in given], name="again", stop_gradients=inputs
    )
    flows = dict(zip(wanted, found, strict=True))
    return [None] * count + [flows.get(t) for t in inputs]

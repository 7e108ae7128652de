"""Activations that are computed twice instead of kept: `recompute_grad` (Chen et al., "Training Deep Nets with
Sublinear Memory Cost", 2016).

The function is traced once, and its body is copied twice: where it is called, and where its gradient is made. The
second copy waits for the gradients that flow into it, so that it is not made too early, nor one with the first. It has
only what computes. What is drawn, read or changed in the body happens once: its results are kept, so that both copies
see the same.
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

__all__ = ["recompute_grad"]

P = ParamSpec("P")
R = TypeVar("R")


def recompute_grad(f: Callable[P, R]) -> Callable[P, R]:
    """Decorator: what `f` computes on the way to its results is not kept for the gradient, but computed again there.

    So a step needs less memory, for the time of a second computation: of a chain of such functions, their arguments are
    kept and, one function after the other, what is inside. Values and gradients are the same. `f` is called once for
    each call, and makes nodes; its tensors, arrays and variables among the arguments (also in lists, tuples and dicts)
    are what it depends on, and it may read others.

    What is random is drawn once. A drawn sample is kept, or what is made of it by comparing it, as `nn.dropout` does:
    a byte for an element. What reads a variable reads it once, and what changes one does so once.

    Raises, when a gradient is made:
        UnimplementedError: `f` draws numbers, or changes something, in a branch or a loop of its own.
    """

    build: Callable[..., Any] = f

    @functools.wraps(f)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
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


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | np.ndarray | np.generic) or hasattr(leaf, "handle")


class _Body:
    """The traced function.

    Attributes:
        first: All of it; its results, and then what is kept.
        again: What computes, given arguments and what is kept.
        once: The nodes that are in the first alone.
        structure: What the Python function returned.
    """

    def __init__(self, body: BodyContext, arguments: Sequence[Tensor], made: Any) -> None:
        self.structure = made
        self.body = body
        outputs = [body.capture(convert_to_tensor(leaf)) for leaf in nest.flatten(made)]
        effects = ordered_effects(body)
        alone = [op for op in body.nodes.values() if op.control_flow_context is body and _happens_once(op)]
        self.once = dict.fromkeys(alone)
        self.kept = _narrowed([t for op in self.once for t in op.outputs], body)
        self.first = Function(body, body.name, arguments, [*outputs, *self.kept], effects)
        self.again = Function(body, body.name, [*arguments, *self.kept], outputs, [], self.first.captured)

    def check(self) -> None:
        """Raise UnimplementedError if something would happen twice on the way to the results."""
        seen = {*self.once, *(t.op for t in self.again.inputs)}
        waiting = [t.op for t in self.again.outputs if t.op not in seen]
        seen.update(waiting)
        while waiting:
            op = waiting.pop()
            if op.op_def.traits.draws or op.op_def.traits.effect is Effect.CHANGES:
                raise UnimplementedError(
                    "what recompute_grad computes again may draw numbers or change something only outside of branches "
                    "and loops of its own",
                    expected="nodes without effects inside of branches and loops",
                    actual=op.type,
                ).at(op.name, op.type, op.source)
            before = [op_ for op_ in (*(t.op for t in op.inputs), *op.waits_for) if op_ not in seen]
            seen.update(before)
            waiting += before


def _happens_once(op: Operation) -> bool:
    traits = op.op_def.traits
    return op.expansion is None and (traits.draws or traits.effect in (Effect.READS, Effect.CHANGES))


def _narrowed(kept: Sequence[Tensor], body: BodyContext) -> list[Tensor]:
    """The same, and in the place of a sample that is only compared with something that is known, the outcome."""
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


def _traced(graph: Graph, name: str, build: Callable[..., Any], structure: Any, leaves: Sequence[Any]) -> _Body:
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
    """The results of a call, whose gradient computes the body again."""
    with body.first.graph.control_dependencies(list(body.body.waits)):
        found, _ = inline(body.first, [*arguments, *body.first.captured])
    count = len(body.again.outputs)
    results, kept = found[:count], found[count:]
    outputs = make_list("IdentityN", [*results, *arguments, *kept, *body.first.captured])
    outputs[0].op.gradient_function = functools.partial(_gradient, body)
    return outputs[:count]


def _gradient(body: _Body, op: Operation, *incoming: Any) -> list[Any]:
    """What flows to the arguments, to what is kept, and to what the function reads; nothing to the results."""
    body.check()
    graph, count = op.graph, len(body.again.outputs)
    given = [(y, g) for y, g in enumerate(incoming[:count]) if g is not None]
    waiting = nest.flatten([g for _, g in given])
    with graph.name_scope("again"), graph.control_dependencies(waiting):  # in a body of its own nothing has a scope yet
        inputs = [identity(t) for t in op.inputs[count:]]
        results, _ = inline(body.again, inputs, body.once)
    wanted = [t for t in inputs if is_trainable(t.dtype)]
    found = gradients(
        [results[y] for y, _ in given], wanted, [g for _, g in given], name="again", stop_gradients=inputs
    )
    flows = dict(zip(wanted, found, strict=True))
    return [None] * count + [flows.get(t) for t in inputs]

"""The ops that call functions, and their expansions: copies of bodies, in branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from aioflow.concurrency.forking import not_forked
from aioflow.errors import DTypeError, InvalidArgumentError, NoGradientError
from aioflow.graph import dtypes
from aioflow.graph.calls import expander
from aioflow.graph.gradient_registry import GRADIENTS
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import OPS, ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, opaque
from aioflow.ops.apply import constant, make, make_op
from aioflow.ops.control.branches_and_loops import cond, while_loop
from aioflow.ops.core import group, identity
from aioflow.ops.function.body import Function
from aioflow.ops.function.copying import inline
from aioflow.ops.function.library import called
from aioflow.ops.sparse.indexed_slices import Gradient


def _declared(ctx: ShapeContext) -> list[Dims]:
    """Return the shapes that the node declares; the expansion refines them when it is made."""
    types = ctx.attrs["Tout" if "Tout" in ctx.attrs else "T"]
    shapes = ctx.attrs.get("output_shapes", ())
    if shapes and len(shapes) != len(types):
        raise InvalidArgumentError("output_shapes does not fit", expected=f"{len(types)} shapes", actual=len(shapes))
    return list(shapes) or [None] * len(types)


_CALL = ["config: string = ''", "config_proto: string = ''", "executor_type: string = ''"]
_TYPES = ["Tin: list(type)", "Tout: list(type)"]
_SHAPES = "output_shapes: list(shape) = []"

for _effect, _name in ((Effect.NONE, "PartitionedCall"), (Effect.CHANGES, "StatefulPartitionedCall")):
    define_op(
        _name,
        "args: list:Tin",
        "output: list:Tout",
        [*_TYPES, "f: func", *_CALL],
        traits=opaque(effect=_effect),
        shape=_declared,
    )
for _effect, _prefix in ((Effect.CHANGES, ""), (Effect.NONE, "Stateless")):
    define_op(
        f"{_prefix}If",
        "cond: Tcond, input: list:Tin",
        "output: list:Tout",
        ["Tcond: type", *_TYPES, "then_branch: func", "else_branch: func", _SHAPES],
        traits=opaque(effect=_effect),
        shape=_declared,
    )
    define_op(
        f"{_prefix}Case",
        "branch_index: int32, input: list:Tin",
        "output: list:Tout",
        [*_TYPES, "branches: list(func) >= 1", _SHAPES],
        traits=opaque(effect=_effect),
        shape=_declared,
    )
    define_op(
        f"{_prefix}While",
        "input: list:T",
        "output: list:T",
        ["T: list(type)", "cond: func", "body: func", _SHAPES, "parallel_iterations: int = 10"],
        traits=opaque(effect=_effect),
        shape=_declared,
    )
define_op(
    "SymbolicGradient",
    "input: list:Tin",
    "output: list:Tout",
    ["Tin: list(type) >= 1", "Tout: list(type) >= 1", "f: func"],
    traits=opaque(),
)


def stand_for(op: Operation, results: Sequence[Tensor], finish: Sequence[Operation]) -> None:
    """Set the expansion of a call: its outputs stand for `results`, and nodes that wait for it wait for `finish`.

    Raises:
        InvalidArgumentError, DTypeError: the results do not match the call's declaration.
    """
    wanted, actual = ([t.dtype.name for t in ts] for ts in (op.outputs, results))
    if wanted != actual:
        error = DTypeError if len(wanted) == len(actual) else InvalidArgumentError
        raise error(
            "the function's results do not match the dtypes that the call declares", expected=wanted, actual=actual
        )
    for output, tensor in zip(op.outputs, results, strict=True):
        output.set_shape(tensor.dims)
    op.expansion = tuple(results)
    op.finish = tuple(dict.fromkeys(finish))


def operation_of(made: Operation | Sequence[Tensor]) -> Operation:
    """Return the node of a builder's result."""
    found: Operation = made if isinstance(made, Operation) else made[0].op
    return found


@expander("PartitionedCall", "StatefulPartitionedCall")
def _expand_call(op: Operation) -> None:
    function = called(op, "f", op.inputs)
    stand_for(op, *inline(function, op.inputs))
    if function.gradient is not None:
        op.gradient_function = partial(_given_gradient, function.gradient)
    elif "_gradient_op_type" in op.attrs:
        op.gradient_function = _registered_gradient


def _registered_gradient(op: Operation, *grads: Gradient | None) -> object:
    """Return gradients by the rule registered for the name in the node's attribute (`Graph.gradient_override_map`)."""
    name = op.attrs["_gradient_op_type"]
    # Finding the op imports its module, which registers the rule.
    OPS.find(name)
    rule = GRADIENTS.get(name)
    if rule is None:
        raise NoGradientError(
            f"no gradient is registered for {name!r}; add one with @aioflow.RegisterGradient({name!r})"
        )
    return rule(op, *grads)


def _given_gradient(gradient: Function | Callable[..., Any], op: Operation, *grads: Tensor | None) -> list[Any]:
    """Return gradients with respect to the arguments, computed by `gradient`. Captured tensors get None."""
    incoming = [
        make("ZerosLike", output) if grad is None else grad for output, grad in zip(op.outputs, grads, strict=True)
    ]
    if not isinstance(gradient, Function):
        made = gradient(op, *incoming)
        return list(made) if isinstance(made, list | tuple) else [made]
    # The gradient takes the arguments, without captured tensors, and one gradient for each output.
    arguments = op.inputs[: len(gradient.inputs) - len(incoming)]
    found = call(gradient, [*arguments, *incoming])
    outputs = found if isinstance(found, list) else []
    return [*outputs, *[None] * (len(op.inputs) - len(outputs))]


def call(function: Function, arguments: Sequence[Tensor], name: str | None = None) -> list[Tensor] | Operation:
    """Make a call of a traced function. Return its outputs, or the node if it has no outputs."""
    graph = function.graph
    op_type = "StatefulPartitionedCall" if function.stateful else "PartitionedCall"
    # Nodes in the body cannot wait for nodes outside, so the call does.
    with graph.as_default(), graph.control_dependencies(list(function.body.waits)):
        types = [t.dtype for t in function.outputs]
        op = make_op(op_type, [*arguments, *function.captured], Tout=types, f=function, name=name or function.name)
    return list(op.outputs) or op


@expander("If", "StatelessIf")
def _expand_if(op: Operation) -> None:
    pred, *inputs = op.inputs
    sides = [partial(_branch, called(op, attr, inputs), inputs, attr) for attr in ("then_branch", "else_branch")]
    # strict, because a list of one result must stay a list.
    _stand_for_branches(op, cond(_truth(pred), sides[0], sides[1], strict=True))


@expander("Case", "StatelessCase")
def _expand_case(op: Operation) -> None:
    index, *inputs = op.inputs
    names = [ref.name for ref in op.attrs["branches"]]
    sides = [partial(_branch, called(op, "branches", inputs, i), inputs, f"branch_{i}") for i in range(len(names))]
    # The last branch serves every index out of range.
    last: Callable[[], Any] = sides[-1]
    for i in reversed(range(len(sides) - 1)):
        last = partial(cond, make("Equal", index, constant(i)), sides[i], last, strict=True)
    _stand_for_branches(op, last())


def _branch(function: Function, inputs: Sequence[Tensor], name: str) -> list[Tensor | Operation]:
    """Copy the function into the branch under construction. Return its results, or a node after it if it has none."""
    with function.graph.name_scope(name):
        results, finish = inline(function, inputs)
        return list(results) or [group(*finish)]


def _stand_for_branches(op: Operation, made: Sequence[Any]) -> None:
    finish = [item if isinstance(item, Operation) else item.op for item in made]
    stand_for(op, made if op.outputs else (), finish)


def _truth(value: Tensor) -> Tensor:
    """Return whether TensorFlow counts `value` as true: a nonzero number, non-empty text, a tensor with elements."""
    if value.dims is not None and value.dims != ():
        return make("Greater", make("Size", value), constant(0))
    if value.dtype is dtypes.bool_:
        return value
    empty = constant(b"") if value.dtype is dtypes.string else constant(0, value.dtype)
    return make("NotEqual", value, empty)


@expander("SymbolicGradient")
def _expand_gradient(op: Operation) -> None:
    """Expand with the gradients of the function that `f` names."""
    # The walk is in a higher layer, so it is imported on first use.
    with not_forked():
        walk = import_module("aioflow.autodiff.symbolic")
    walk.expand_gradient(op)


@expander("While", "StatelessWhile")
def _expand_while(op: Operation) -> None:
    condition, body = (called(op, attr, op.inputs) for attr in ("cond", "body"))
    carried = _carried(body)
    shapes = [t.dims for t in op.outputs]

    def inputs(values: Sequence[Tensor]) -> list[Tensor]:
        # Values that do not change are read as they are, as invariants of the loop.
        found = list(op.inputs)
        for i, value in zip(carried, values, strict=True):
            found[i] = value
        return found

    def proceed(*values: Tensor) -> Tensor:
        with op.graph.name_scope("cond"):
            return _truth(inline(condition, inputs(values))[0][0])

    def iterate(*values: Tensor) -> list[Tensor]:
        with op.graph.name_scope("body"):
            results, _ = inline(body, inputs(values))
        return [_of_shape(results[i], shapes[i]) for i in carried]

    made = while_loop(
        proceed,
        iterate,
        [op.inputs[i] for i in carried],
        [shapes[i] for i in carried],
        parallel_iterations=op.attrs["parallel_iterations"],
        return_same_structure=True,
    )
    stand_for(op, inputs(made), [t.op for t in made])


def _carried(body: Function) -> list[int]:
    """Return the positions of the values that change.

    A value that the body returns as it is, such as a captured tensor, need not be carried.
    """
    changing = [i for i, (a, b) in enumerate(zip(body.inputs, body.outputs, strict=True)) if a is not b]
    # A loop needs at least one variable.
    return changing or [0]


def _of_shape(tensor: Tensor, dims: Dims) -> Tensor:
    """Return the tensor with the static shape that the loop variable has in all iterations."""
    made = identity(tensor)
    made.set_shape(dims)
    return made

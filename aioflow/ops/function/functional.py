"""`If`, `Case`, `While`, `For` and `PartitionedCall` of functions: branches and loops as single nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aioflow.arguments import check_callable
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import graph_of
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.shapes import Dims
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list, make_op
from aioflow.ops.function.body import Function
from aioflow.ops.function.calls import call
from aioflow.ops.function.library import check_call
from aioflow.ops.function.tracing import ConcreteFunction, PolymorphicFunction, TensorSpec, trace, unique_name

__all__ = ["Case", "For", "If", "PartitionedCall", "While"]


def If(
    cond: TensorLike,
    inputs: Sequence[TensorLike],
    then_branch: Callable[..., object],
    else_branch: Callable[..., object],
    name: str | None = None,
) -> Any:
    """Return the results of `then_branch` if `cond` holds, otherwise those of `else_branch`, as one node.

    Args:
        cond: A scalar: a number holds if it is not 0, text if it is not empty. Any other tensor holds if it has
            elements.
        inputs: The arguments of the branches.
        then_branch: A Python function of the inputs, or one made by `aioflow.function`.
        else_branch: Another one. The two may read different tensors from outside.
        name: Name of the node.

    Returns:
        A list of the outputs, or the node itself if it has no outputs.

    Raises:
        DTypeError, InvalidArgumentError: the branches do not accept the inputs, or return different dtypes.
    """
    pred, values = convert_to_tensor(cond, name="cond"), _tensors(inputs)
    graph = graph_of([pred, *values])
    sides = _alike(graph, [_traced(graph, f, values) for f in (then_branch, else_branch)])
    op_type = "If" if any(f.stateful for f in sides) else "StatelessIf"
    return _node(
        graph,
        sides,
        op_type,
        pred,
        [*values, *sides[0].captured],
        then_branch=sides[0],
        else_branch=sides[1],
        name=name,
    )


def Case(
    branch_index: TensorLike,
    inputs: Sequence[TensorLike],
    branches: Sequence[Callable[..., object]],
    name: str | None = None,
) -> Any:
    """Return the results of the branch of that index, as one node; the last branch serves every index out of range.

    Args:
        branch_index: An int32 scalar.
        inputs: The arguments of the branches.
        branches: Functions like those of `If`.
        name: Name of the node.

    Returns:
        A list of the outputs, or the node itself if it has no outputs.

    Raises:
        DTypeError, InvalidArgumentError: there are no branches, or an error of `If` occurs.
    """
    if not branches:
        raise InvalidArgumentError("Case needs branches", expected="at least one", actual="none")
    index, values = convert_to_tensor(branch_index, dtypes.int32, name="branch_index"), _tensors(inputs)
    graph = graph_of([index, *values])
    sides = _alike(graph, [_traced(graph, f, values) for f in branches])
    op_type = "Case" if any(f.stateful for f in sides) else "StatelessCase"
    return _node(graph, sides, op_type, index, [*values, *sides[0].captured], branches=sides, name=name)


def _node(
    graph: Graph, sides: Sequence[Function], op_type: str, *inputs: TensorLike, name: str | None, **attrs: object
) -> list[Tensor] | Operation:
    wanted = [t.dtype for t in sides[0].outputs]
    for side in sides[1:]:
        if [t.dtype for t in side.outputs] != wanted:
            raise DTypeError(
                "the branches return different dtypes",
                expected=[t.name for t in wanted],
                actual=[t.dtype.name for t in side.outputs],
            )
    waits = list(dict.fromkeys(op for side in sides for op in side.body.waits))
    with graph.as_default(), graph.control_dependencies(waits):
        op = make_op(op_type, *inputs, Tout=wanted, name=name, **attrs)
    return list(op.outputs) or op


def While(
    input_: Sequence[TensorLike],
    cond: Callable[..., object],
    body: Callable[..., object],
    name: str | None = None,
    hostmem: object = None,
) -> list[Tensor]:
    """Run `body` on its own results as long as `cond` holds for them, as one node.

    Args:
        input_: The values to start from.
        cond: A function that returns one scalar, like the `cond` of `If`.
        body: A function that returns as many tensors as it has arguments, of the same dtypes.
        name: Name of the node.
        hostmem: Accepted for published code.

    Returns:
        The values when `cond` no longer holds.

    Raises:
        DTypeError, InvalidArgumentError: the functions do not fit.
    """
    values = _tensors(input_)
    graph = graph_of(values)
    test, step = _alike(graph, [_traced(graph, f, values) for f in (cond, body)])
    if [t.dtype for t in step.outputs] != [t.dtype for t in values]:
        raise DTypeError(
            "body must return values of the same dtypes as its arguments",
            expected=[t.dtype.name for t in values],
            actual=[t.dtype.name for t in step.outputs],
        )
    if len(test.outputs) != 1:
        raise InvalidArgumentError("cond must return one scalar", expected="1 output", actual=len(test.outputs))
    count = len(values)
    # A While node passes all inputs to both functions, so the body must return the captured tensors, too.
    step = _variant(step, step.captured, [*step.outputs, *step.inputs[count:]])
    shapes = [_common_dims(value, result) for value, result in zip(values, step.outputs, strict=False)]
    shapes += [t.dims for t in step.captured]
    op_type = "While" if test.stateful or step.stateful else "StatelessWhile"
    waits = list(dict.fromkeys([*test.body.waits, *step.body.waits]))
    with graph.as_default(), graph.control_dependencies(waits):
        made = make_list(op_type, [*values, *step.captured], cond=test, body=step, output_shapes=shapes, name=name)
    return made[:count]


def For(
    start: TensorLike,
    limit: TensorLike,
    delta: TensorLike,
    inputs: Sequence[TensorLike],
    body: Callable[..., object],
    name: str | None = None,
    hostmem: object = None,
    rewrite_with_while: bool | None = None,
) -> list[Tensor]:
    """Run `body(i, *values)` for i = start, start + delta, … below `limit` (above it if `delta` is negative).

    Args:
        start: The first i, an int32 scalar.
        limit: The bound, excluded.
        delta: The step; if it is 0, the body does not run.
        inputs: The values to start from.
        body: A function that returns the new values.
        name: Name of the node.
        hostmem: Accepted for published code.
        rewrite_with_while: Accepted for published code.

    Returns:
        The values at the end.
    """
    first, last, stride = (convert_to_tensor(v, dtypes.int32) for v in (start, limit, delta))

    def going_on(i: Tensor, end: Tensor, by: Tensor, *values: Tensor) -> Tensor:
        # The sign of `delta` is known only in the step, so both directions are tested.
        up = make("LogicalAnd", make("Greater", by, 0), make("Less", i, end))
        down = make("LogicalAnd", make("Less", by, 0), make("Greater", i, end))
        return make("LogicalOr", up, down)

    def step(i: Tensor, end: Tensor, by: Tensor, *values: Tensor) -> list[object]:
        made = body(i, *values)
        made = [] if isinstance(made, Operation) or made is None else nest.flatten(made)
        # The bounds must be loop variables, because the condition reads nothing else.
        return [make("AddV2", i, by), end, by, *made]

    return While([first, last, stride, *inputs], going_on, step, name=name or "For")[3:]


def PartitionedCall(args: Sequence[TensorLike], f: Callable[..., object], name: str | None = None) -> Any:
    """Return the results of `f`, as one node: a list of outputs, or the node itself if it has no outputs.

    Raises:
        DTypeError, InvalidArgumentError: `f` does not accept these arguments.
    """
    values = _tensors(args)
    return call(_traced(graph_of(values), f, values), values, name)


def _tensors(values: Sequence[TensorLike]) -> list[Tensor]:
    if not isinstance(values, list | tuple):
        raise DTypeError("inputs must be a list", expected="a list of tensors", actual=repr(values))
    return [convert_to_tensor(v, name=f"input_{i}") for i, v in enumerate(values)]


def _traced(graph: Graph, given: Callable[..., object], inputs: Sequence[Tensor]) -> Function:
    """Return the function for these inputs; trace it if it is a Python function."""
    specs = [TensorSpec(t.dims, t.dtype) for t in inputs]
    if isinstance(given, PolymorphicFunction):
        with graph.as_default():
            given = given.get_concrete_function(*specs)
    elif not isinstance(given, ConcreteFunction):
        check_callable(given, "the function")
        # The name of a lambda is "<lambda>".
        name = getattr(given, "__name__", "branch").strip("<>")
        given = trace(graph, name, _returned(given), specs, [f"x_{i}" for i in range(len(specs))])
    made = given.function
    check_call(made, [*inputs, *made.captured])
    return made


def _returned(given: Callable[..., object]) -> Callable[[Sequence[object]], object]:
    return lambda values: given(*values)


def _alike(graph: Graph, functions: Sequence[Function]) -> list[Function]:
    """Return the functions, each with the captured inputs of all."""
    captured = list(dict.fromkeys(t for f in functions for t in f.captured))
    return [f if f.captured == captured else _variant(f, captured, f.outputs) for f in functions]


def _variant(function: Function, captured: Sequence[Tensor], outputs: Sequence[Tensor]) -> Function:
    """Return a function of the same body with these captured inputs and outputs, under another name if they differ."""
    for tensor in captured:
        function.body.capture(tensor)
    if list(captured) == function.captured and list(outputs) == function.outputs:
        return function
    graph = function.graph
    name = unique_name(graph, function.name)
    made = Function(function.body, name, function.arguments, outputs, function.effects, captured)
    graph.functions[name] = made
    return made


def _common_dims(value: Tensor, result: Tensor) -> Dims:
    """Return the static shape that holds both at the start and after an iteration."""
    first, second = value.dims, result.dims
    if first is None or second is None or len(first) != len(second):
        return None
    return tuple(a if a == b else None for a, b in zip(first, second, strict=True))

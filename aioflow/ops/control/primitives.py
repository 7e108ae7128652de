"""The ops of control flow, which the runtime interprets (Switch, Merge and the loop ops), and Assert, Print, Abort.

`Enter` brings a value into a loop's frame, `NextIteration` into the next iteration, and `Exit` back to the outer frame.
`Switch` passes a value to one output and makes the other output dead. `Merge` returns the input that is alive.
"""

from __future__ import annotations

import functools

from aioflow.errors import UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, common_dims
from aioflow.graph.traits import Effect, Memory, Role, bookkeeping, control_flow, opaque
from aioflow.ops.apply import TensorLike, convert_n_to_tensor, convert_to_tensor, make, make_list, make_op
from aioflow.ops.core import unchanged
from aioflow.ops.sparse.indexed_slices import Gradient

__all__ = ["Assert", "Print"]


def _switch(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("pred", 0)
    return [ctx.dims("data")] * 2


def _merge(ctx: ShapeContext) -> list[Dims]:
    # Any one of the inputs may be alive, so only what holds for all of them is known.
    return [functools.reduce(common_dims, ctx.dims_list("inputs")), ()]


def _loop_cond(ctx: ShapeContext) -> Dims:
    return ctx.require_rank("input", 0) or ()


define_op(
    "Switch",
    "data: T, pred: bool",
    "output_false: T, output_true: T",
    ["T: type"],
    shape=_switch,
    traits=control_flow(role=Role.SWITCH),
)
define_op(
    "Merge",
    "inputs: N*T",
    "output: T, value_index: int32",
    ["T: type", "N: int >= 1"],
    shape=_merge,
    traits=control_flow(role=Role.MERGE),
)
define_op(
    "Enter",
    "data: T",
    "output: T",
    ["T: type", "frame_name: string", "is_constant: bool = False", "parallel_iterations: int = 10"],
    shape=unchanged,
    traits=control_flow(role=Role.ENTER),
)
define_op("Exit", "data: T", "output: T", ["T: type"], shape=unchanged, traits=control_flow(role=Role.EXIT))
define_op("NextIteration", "data: T", "output: T", ["T: type"], shape=unchanged, traits=control_flow(role=Role.NEXT))
define_op("LoopCond", "input: bool", "output: bool", shape=_loop_cond, traits=control_flow(role=Role.LOOP_CONDITION))
define_op("ControlTrigger", traits=control_flow(role=Role.TRIGGER, memory=Memory.OWN))
define_op(
    "Abort", "", "", ["error_msg: string = ''", "exit_without_error: bool = False"], traits=opaque(effect=Effect.FAILS)
)
define_op(
    "Assert",
    "condition: bool, data: list:T",
    "",
    ["T: list(type) >= 1", "summarize: int = 3"],
    traits=bookkeeping(effect=Effect.CHANGES),
)
define_op(
    "Print",
    "input: T, data: list:U",
    "output: T",
    [
        "T: type",
        "U: list(type)",
        "message: string = ''",
        "first_n: int = -1",
        "summarize: int = 3",
    ],
    shape=unchanged,
    traits=bookkeeping(effect=Effect.CHANGES),
)
define_op(
    "PrintV2",
    "input: string",
    "",
    ["output_stream: string = 'stderr'", "end: string = '\\n'"],
    traits=bookkeeping(effect=Effect.CHANGES),
)

not_differentiable("LoopCond", "ControlTrigger", "Abort", "Assert", "PrintV2")


@gradient("Print", takes_slices=True)
def _print_grad(op: Operation, grad: Gradient) -> list[Gradient | None]:
    return [grad, *[None] * (len(op.inputs) - 1)]


@gradient("Switch")
def _switch_grad(op: Operation, grad_false: Tensor | None, grad_true: Tensor | None) -> list[Tensor | None]:
    """Merge the gradients of a Switch that was made by hand."""
    # Only the gradient of the branch that was taken is alive: the other one is dead, as its output was.
    sides = [
        make("ZerosLike", side) if grad is None else convert_to_tensor(grad)
        for side, grad in zip(op.outputs, (grad_false, grad_true), strict=True)
    ]
    return [make_list("Merge", sides)[0], None]


@gradient("Merge")
def _merge_grad(op: Operation, grad: Tensor, _: Tensor) -> list[Tensor]:
    """Pass the gradient to the input that was available. The gradients of the other inputs are dead."""
    if any(t.op.op_def.traits.role in (Role.ENTER, Role.NEXT) for t in op.inputs):
        raise UnimplementedError(
            "the Merge of a loop made by hand has no gradient", expected="a loop made by while_loop", actual=op.name
        ).at(op.name, op.type, op.source)
    index = op.outputs[1]
    return [make_list("Switch", grad, make("Equal", index, i))[1] for i in range(len(op.inputs))]


@gradient("Enter", "Exit", takes_slices=True)
def _unchanged_grad(op: Operation, grad: Tensor) -> Tensor:
    # The gradient of an Exit is that of the value that leaves; the loop before it is one step of the reverse walk.
    return grad


def Assert(
    condition: TensorLike, data: list[TensorLike], summarize: int | None = None, name: str | None = None
) -> Operation:
    """Return a node that fails the step unless `condition` holds.

    Args:
        condition: A bool scalar.
        data: Tensors that the error shows.
        summarize: Number of elements of each tensor to show; 3 if not given, -1 for all.
        name: Name of the node.

    Raises:
        InvalidArgumentError: when the step runs, if the condition is false.
    """
    holds = convert_to_tensor(condition, dtypes.bool_)
    with holds.graph.as_default():
        tensors = convert_n_to_tensor(data)
    return make_op("Assert", holds, tensors, summarize=3 if summarize is None else summarize, name=name)


def Print(
    input_: TensorLike,
    data: list[TensorLike],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return `input_`; whenever it is computed, `data` is written to the standard error stream.

    Args:
        input_: The tensor to return.
        data: Tensors to write.
        message: Text to write first.
        first_n: Maximum number of times to write in a session.
        summarize: Number of elements of each tensor to write; 3 if not given, -1 for all.
        name: Name of the node.
    """
    return make(
        "Print",
        convert_to_tensor(input_),
        convert_n_to_tensor(data),
        message=message or "",
        first_n=-1 if first_n is None else first_n,
        summarize=3 if summarize is None else summarize,
        name=name,
    )

"""`Batch` and `Unbatch`: one of several concurrent steps computes the rows of all.

`Batch` returns the rows of all steps in that step, and empty tensors in the others. `Unbatch` returns each step's own
results.
"""

from __future__ import annotations

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.traits import waiting
from aioflow.ops.apply import make

_NAMED = ["container: string = ''", "shared_name: string = ''"]
QUEUE = [
    "num_batch_threads: int",
    "max_batch_size: int",
    "max_enqueued_batches: int = 10",
    "batch_timeout_micros: int",
    "allowed_batch_sizes: list(int) = []",
    *_NAMED,
    "batching_queue: string = ''",
]


def some_rows(dims: Dims) -> Dims:
    """Return the shape with an unknown number of rows.

    Raises:
        InvalidArgumentError: the shape is that of a scalar.
    """
    if dims is not None and not dims:
        raise InvalidArgumentError("a batch is made of rows", expected="rank >= 1", actual=format_dims(dims))
    return None if dims is None else (None, *dims[1:])


def _batched(ctx: ShapeContext) -> list[Dims]:
    return [*(some_rows(dims) for dims in ctx.dims_list("in_tensors")), (None, 3), ()]


define_op(
    "Batch",
    "in_tensors: list:T",
    "batched_tensors: list:T, batch_index: int64, id: int64",
    [*QUEUE, "grad_timeout_micros: int", "T: list(type) >= 1"],
    shape=_batched,
    traits=waiting(),
)
define_op(
    "Unbatch",
    "batched_tensor: T, batch_index: int64, id: int64",
    "unbatched_tensor: T",
    ["timeout_micros: int", *_NAMED, "T: type"],
    shape=lambda ctx: some_rows(ctx.dims("batched_tensor")),
    traits=waiting(),
)
define_op(
    "UnbatchGrad",
    "original_input: T, batch_index: int64, grad: T, id: int64",
    "batched_grad: T",
    [*_NAMED, "T: type"],
    shape=lambda ctx: some_rows(ctx.dims("grad")),
    traits=waiting(),
)
not_differentiable("UnbatchGrad")


@gradient("Batch")
def _batch_gradient(op: Operation, *grads: Tensor | None) -> list[Tensor | None]:
    *batched, index, number = op.outputs
    return [
        None
        if grad is None
        else make(
            "Unbatch",
            grad,
            index,
            number,
            timeout_micros=op.attrs["grad_timeout_micros"],
            shared_name=f"batch_gradient_{op.name}_{position}",
        )
        for position, grad in enumerate(grads[: len(batched)])
    ]


@gradient("Unbatch")
def _unbatch_gradient(op: Operation, grad: Tensor) -> list[Tensor | None]:
    batched, index, number = op.inputs
    made = make("UnbatchGrad", batched, index, grad, number, shared_name=f"unbatch_gradient_{op.name}")
    return [made, None, None]

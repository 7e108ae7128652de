"""Functions that merge the calls of concurrent steps into one run on the rows of all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from aioflow.arguments import check_whole
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.calls import expander
from aioflow.graph.default_graph import graph_of
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.traits import waiting
from aioflow.ops.apply import make, make_op
from aioflow.ops.function.library import called
from aioflow.ops.function.tracing import TensorSpec, plain_name, trace

__all__ = ["nondifferentiable_batch_function"]


# ── `Batch` and `Unbatch`: one of several concurrent steps computes the rows of all ───────────────────────────────────
#
# `Batch` returns the rows of all steps in that step, and empty tensors in the others. `Unbatch` returns each step's own
# results.

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
            # The gradient of each tensor is divided by its own `Unbatch`, so each needs a name of its own.
            shared_name=f"batch_gradient_{op.name}_{position}",
        )
        for position, grad in enumerate(grads[: len(batched)])
    ]


@gradient("Unbatch")
def _unbatch_gradient(op: Operation, grad: Tensor) -> list[Tensor | None]:
    batched, index, number = op.inputs
    made = make("UnbatchGrad", batched, index, grad, number, shared_name=f"unbatch_gradient_{op.name}")
    return [made, None, None]


_POLICIES: Final = (
    "mixed_priority_policy: {'low_priority_padding_with_max_batch_size', "
    "'low_priority_padding_with_next_allowed_batch_size', 'priority_isolation', 'priority_merge'}"
    " = 'low_priority_padding_with_max_batch_size'"
)

define_op(
    "BatchFunction",
    "in_tensors: list:Tin, captured_tensors: list:Tcaptured",
    "out_tensors: list:Tout",
    [
        "f: func",
        *QUEUE,
        "low_priority_max_batch_size: int = 0",
        "low_priority_batch_timeout_micros: int = 0",
        "low_priority_allowed_batch_sizes: list(int) = []",
        "low_priority_max_enqueued_batches: int = 0",
        _POLICIES,
        "batch_padding_policy: {'PAD_UP', 'BATCH_DOWN', 'MINIMIZE_TPU_COST_PER_REQUEST'} = 'PAD_UP'",
        "Tin: list(type) >= 1",
        "Tcaptured: list(type)",
        "Tout: list(type) >= 1",
        "enable_large_batch_splitting: bool = False",
    ],
    traits=waiting(),
)


@expander("BatchFunction")
def _load(op: Operation) -> None:
    """Ensure that the function is loaded and returns the declared dtypes."""
    # The node is not replaced by the function's body, because one run of the function serves several steps.
    function = called(op, "f", op.inputs)
    given, wanted = [tensor.dtype.name for tensor in function.outputs], [dtype.name for dtype in op.attrs["Tout"]]
    if given != wanted:
        raise DTypeError(
            f"function {function.name!r} does not return the dtypes that the node declares",
            expected=wanted,
            actual=given,
        )


def nondifferentiable_batch_function(
    num_batch_threads: int,
    max_batch_size: int,
    batch_timeout_micros: int,
    allowed_batch_sizes: Sequence[int] | None = None,
    max_enqueued_batches: int = 10,
    autograph: bool = True,
    enable_large_batch_splitting: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that merges calls of a function in concurrent steps into one run on the rows of all.

    The steps may be of any session of a worker.

        @aioflow.nondifferentiable_batch_function(1, 64, 2000)
        def layer(x):  # [rows, 784], of several steps
            return aioflow.matmul(x, weights)

        y = layer(image)  # [rows, 10], of this one

    Each call makes a node and traces the function. Its arguments are tensors with the same number of rows along axis 0,
    and so are its results. The function cannot tell which rows belong to which caller. Values that it captures from
    outside are not batched: steps share a run only if those values are the same. A run belongs to no single step, so
    canceling a step does not affect the others. Rows that make a run fail are found by halving the batch, unless the
    function changes state.

    Args:
        num_batch_threads: Number of concurrent runs.
        max_batch_size: Maximum number of rows of a step, and of a run unless splitting lowers it.
        batch_timeout_micros: Microseconds that a step waits for others while a batch is not full.
        allowed_batch_sizes: Ascending numbers of rows of a run. The last one must be `max_batch_size`; with splitting
            it may be less, and is then the limit of a run. A batch of another size is padded to the next one by
            repeating its last row.
        max_enqueued_batches: Number of full batches that may wait.
        autograph: Ignored; accepted for compatibility.
        enable_large_batch_splitting: Whether a step's rows may be split into several runs, if the last of
            `allowed_batch_sizes` is less than `max_batch_size`.

    Raises, in a run:
        InvalidArgumentError: the arguments have different numbers of rows, or too many.
        ResourceExhaustedError: the queue is full.

    Raises, in a call of the decorated function:
        DTypeError: an argument is not a tensor.
        InvalidArgumentError: an argument or a result is a scalar.
    """
    check_whole(max_batch_size, "max_batch_size", 1)

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        name = plain_name(getattr(function, "__name__", "function"))

        @functools.wraps(function)
        def decorated(*args: Tensor) -> Any:
            return _call(
                function,
                name,
                args,
                num_batch_threads=num_batch_threads,
                max_batch_size=max_batch_size,
                batch_timeout_micros=batch_timeout_micros,
                allowed_batch_sizes=tuple(allowed_batch_sizes or ()),
                max_enqueued_batches=max_enqueued_batches,
                enable_large_batch_splitting=enable_large_batch_splitting,
            )

        return decorated

    return decorator


def _call(function: Callable[..., Any], name: str, args: Sequence[Tensor], **settings: Any) -> Any:
    for arg in args:
        if not isinstance(arg, Tensor):
            raise DTypeError("a batch function accepts tensors only", expected="Tensor", actual=type(arg).__name__)
    graph = graph_of(args)
    # A run has the rows of several steps, so the body is traced for any number of them.
    specs = [TensorSpec(some_rows(arg.dims), arg.dtype, f"batch_{i}") for i, arg in enumerate(args)]
    with graph.as_default():
        traced = trace(graph, name, lambda values: function(*values), specs, [f"batch_{i}" for i in range(len(args))])
        body = traced.function
        with graph.name_scope("batch"), graph.control_dependencies(list(body.body.waits)):
            types = [t.dtype for t in body.outputs]
            op = make_op("BatchFunction", list(args), list(body.captured), Tout=types, f=body, **settings)
    for output, inside in zip(op.outputs, body.outputs, strict=True):
        output.set_shape(some_rows(inside.dims))
    return traced.results_of(op)

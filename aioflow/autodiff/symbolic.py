"""`SymbolicGradient`, the op for the gradient of a function: it expands into a copy of the body and its gradients."""

from __future__ import annotations

from aioflow.autodiff.gradients import gradients
from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Operation
from aioflow.ops.apply import convert_to_tensor, make
from aioflow.ops.core import identity
from aioflow.ops.function.calls import stand_for
from aioflow.ops.function.copying import inline
from aioflow.ops.function.library import check_call, find_function


def expand_gradient(op: Operation) -> None:
    """Expand the node: from the function's inputs and the gradients of its outputs to the gradients of its inputs.

    Raises:
        InvalidArgumentError: the node's inputs do not fit the function.
    """
    function = find_function(op.graph, op.attrs["f"].name)
    count = len(function.inputs)
    check_call(function, op.inputs[:count])
    # New tensors, so that the walk does not follow the nodes that computed the inputs.
    inputs = [identity(t, name="input") for t in op.inputs[:count]]
    results, _ = inline(function, inputs)
    if len(op.inputs) != count + len(results):
        raise InvalidArgumentError(
            f"the gradient of function {function.name!r} needs its inputs and a gradient for each of its outputs",
            expected=f"{count} + {len(results)} inputs",
            actual=f"{len(op.inputs)} inputs",
        )
    pairs = zip(results, op.inputs[count:], strict=True)
    given = [(y, g) for y, g in pairs if y.dtype.is_floating or y.dtype.is_complex]
    found = gradients([y for y, _ in given], inputs, [g for _, g in given]) if given else [None] * count
    made = [make("ZerosLike", x) if g is None else convert_to_tensor(g) for x, g in zip(inputs, found, strict=True)]
    stand_for(op, made, [t.op for t in made])

"""Shape inference after a variable is assigned a value of a different shape.

The static shape of the variable, and all shapes derived from it, are inferred again, and become less specific.
Constants made from the old shape (such as `shape(v)`) stay as they are, as in TensorFlow.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from aioflow.errors import OpError
from aioflow.graph.dtypes import resource
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.shapes import Dims, common_dims
from aioflow.ops.apply import output_specs
from aioflow.ops.importer import by_name

WIDENED: Final = "_widened"  # attribute of the handle of a variable whose static shape was widened


def widen_variable(handle: Operation, dims: Dims) -> Dims:
    """Let the variable accept values of another shape too. Return the most specific shape that covers both.

    Raises:
        FailedPreconditionError: the graph is finalized.
    """
    graph = handle.graph
    graph.note_mutation()
    wider = common_dims(handle.attrs["shape"], dims)
    handle.attrs |= {"shape": wider, WIDENED: True}
    readers: dict[Tensor, list[Operation]] = defaultdict(list)
    for op in graph.get_operations():
        for tensor in op.inputs:
            readers[tensor].append(op)
    # Nodes that pass the handle on have readers that depend on the variable's shape, too.
    changed, handles = deque(handle.outputs), set(handle.outputs)
    while changed:
        for op in readers[changed.popleft()]:
            passed_on = {t for t in op.outputs if t.dtype is resource} - handles
            handles |= passed_on
            changed.extend([*_inferred_again(op), *passed_on])
    return wider


def _inferred_again(op: Operation) -> list[Tensor]:
    """Widen the shapes of the outputs to those inferred from the inputs now. Return the outputs that changed."""
    try:
        specs = output_specs(op.op_def, by_name(op.op_def, op.inputs, op.attrs), op.attrs)
    except OpError:
        specs = [(t.dtype, None) for t in op.outputs]  # incompatible shapes fail in the step that runs the node
    changed: list[Tensor] = []
    for tensor, (_, inferred) in zip(op.outputs, specs, strict=True):
        wider = common_dims(tensor.dims, inferred)
        if wider != tensor.dims:
            tensor.widen_shape(wider)
            changed.append(tensor)
    return changed

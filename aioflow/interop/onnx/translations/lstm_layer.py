"""LSTM layers of the usual form, translated to the op that computes a whole layer."""

from __future__ import annotations

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.translating import Node
from aioflow.interop.onnx.translations.dimensions import int32, shape_of, size_of
from aioflow.ops.apply import constant, make, make_list


def is_usual(node: Node, x: Tensor) -> bool:
    """Return whether the op supports the node: float32, default activations, no clipping and no coupled gates."""
    # Each direction has three activations: of the gates, of the new cell values and of the cell.
    named = {name.lower() for name in (node.attr("activations") or [])[::3]}
    others = {name.lower() for i, name in enumerate(node.attr("activations") or []) if i % 3}
    usual = named <= {"sigmoid"} and others <= {"tanh"}
    return usual and x.dtype is dtypes.float32 and not node.attr("clip") and not node.attr("input_forget", 0)


def whole_layer(
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    bias: Tensor | None,
    peepholes: Tensor | None,
    state: list[Tensor],
    lengths: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """Return all outputs, of shape [steps, batch, units], and the last h and c.

    Args:
        x: Inputs, [steps, batch, size].
        weights: Weights of the input and of the previous output. The rows are ordered by gate and unit; the order of
            gates is input, output, forget, cell.
        bias: Sum of the biases of each gate and unit, in the same order.
        peepholes: Peephole weights of the gates input, output, forget.
        state: Initial h and c.
        lengths: Number of steps of each sequence; None if all have all steps.
    """
    h, c = state
    units = size_of(weights[1], 1)
    columns = make("Transpose", make("ConcatV2", [_reordered(each) for each in weights], 1), [1, 0])
    zeros = make("Fill", shape_of([units]), constant(np.float32(0)))
    looks = [zeros] * 3 if peepholes is None else make_list("Split", 0, peepholes, num_split=3)
    to_in, to_out, to_keep = looks
    shift = _reordered(bias) if bias is not None else make("Tile", zeros, [4])
    steps = make("Cast", size_of(x, 0), DstT=dtypes.int64)
    _, cells, _, _, _, _, outputs = make_list(
        "BlockLSTMV2",
        *(steps, x, c, h, columns, to_in, to_keep, to_out, shift),
        use_peephole=peepholes is not None,
    )
    if lengths is not None:
        return _shortened(outputs, cells, state, lengths)
    return outputs, [_last(outputs, h), _last(cells, c)]


def _reordered(gates: Tensor) -> Tensor:
    """Return the gates in the op's order, input, forget, cell, output, instead of input, output, forget, cell."""
    in_, out, forget, cell = make_list("Split", 0, gates, num_split=4)
    return make("ConcatV2", [in_, forget, cell, out], 0)


def _last(values: Tensor, before: Tensor) -> Tensor:
    if values.dims is not None and values.dims[0]:
        return make("StridedSlice", values, [-1], [0], [1], shrink_axis_mask=1)
    # The number of steps may be 0. The last state is then the initial one.
    return make("GatherV2", make("ConcatV2", [make("ExpandDims", before, 0), values], 0), size_of(values, 0), 0)


def _shortened(outputs: Tensor, cells: Tensor, state: list[Tensor], lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs with zeros after the end of each sequence, and the state at each end.

    Steps after the end do not affect earlier ones, so the layer may compute them first.
    """
    ends = int32(lengths)
    times = make("Reshape", make("Range", 0, size_of(outputs, 0), 1), [-1, 1, 1])
    going = make("Less", times, make("ExpandDims", ends, 1))
    where = make("Pack", [ends, make("Range", 0, size_of(outputs, 1), 1)], axis=1)
    with_start = [
        make("ConcatV2", [make("ExpandDims", before, 0), values], 0)
        for before, values in zip(state, (outputs, cells), strict=True)
    ]
    return make("SelectV2", going, outputs, 0), [make("GatherNd", each, where) for each in with_start]

"""RNN, LSTM and GRU: all inputs are projected in one matrix product, then a loop goes over the steps.

The runtime raises that loop into a native loop, and gradients flow through it. An LSTM of the usual form becomes
the op of a whole layer, which takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import int32, shape_of, size_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.interop.onnx.translations.recurrent_cells import (
    Activation,
    Cell,
    Product,
    activations,
    gru_cell,
    lstm_cell,
    product_with,
    rnn_cell,
)
from aioflow.ops.apply import constant, make, make_list
from aioflow.ops.array.tensor_array import TensorArray
from aioflow.ops.control.branches_and_loops import while_loop

# ── LSTM layers of the usual form, translated to the op that computes a whole layer ───────────────────────────────────


def is_usual(node: OnnxNode, x: Tensor) -> bool:
    """Return whether the op supports the node: float32, default activations, no clipping and no coupled gates."""
    # Each direction has three activations: of the gates, of the new cell values and of the cell.
    # Names of activations are case-insensitive in ONNX.
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
    # [size + units, 4 · units], as the op expects the weights of both factors.
    columns = make("Transpose", make("ConcatV2", [_reordered(each) for each in weights], 1), [1, 0])
    zeros = make("Fill", shape_of([units]), constant(np.float32(0)))
    # The op takes the weights in any case, and ignores them without `use_peephole`.
    looks = [zeros] * 3 if peepholes is None else make_list("Split", 0, peepholes, num_split=3)
    to_in, to_out, to_keep = looks
    shift = _reordered(bias) if bias is not None else make("Tile", zeros, [4])
    steps = make("Cast", size_of(x, 0), DstT=dtypes.int64)
    # The op returns i, cs, f, o, ci, co and h.
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
    # The state at the end of a sequence is at its length, since the initial state comes first.
    where = make("Pack", [ends, make("Range", 0, size_of(outputs, 1), 1)], axis=1)
    with_start = [
        make("ConcatV2", [make("ExpandDims", before, 0), values], 0)
        for before, values in zip(state, (outputs, cells), strict=True)
    ]
    return make("SelectV2", going, outputs, 0), [make("GatherNd", each, where) for each in with_start]


_SWAP: Final = (1, 0, 2)  # swaps [batch, steps, size] and [steps, batch, size]
_DIRECTIONS: Final = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


@dataclass(frozen=True)
class _Input:
    """The input of all directions.

    Attributes:
        x: The input, [steps, batch, size].
        lengths: Number of steps of each sequence; None if all have all steps.
    """

    x: Tensor
    lengths: Tensor | None

    def reversed(self, x: Tensor) -> Tensor:
        """Return each sequence in reverse. Elements after its end stay in place."""
        if self.lengths is None:
            return make("ReverseV2", x, [0])
        return make("ReverseSequence", x, self.lengths, seq_dim=0, batch_dim=1)


# (input, (input weights, recurrent weights), bias, state, lengths) -> all outputs and the last state.
_Whole = Callable[[Tensor, tuple[Tensor, Tensor], Tensor | None, list[Tensor], Tensor | None], "_Result"]
_Result = tuple[Tensor | None, list[Tensor]]
_Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # x, both weights, bias, lengths


@dataclass(frozen=True)
class _Kind:
    """The differences between the three ops.

    Attributes:
        functions: Default activations of a direction.
        cell: Function that makes a direction's step from its number, recurrent weights and activations.
        whole: Function that returns the computation of all steps for a direction's number, if an op supports it.
        project: Function that returns the product with the input weights for a direction's number; None for floats.
    """

    functions: Sequence[str]
    cell: Callable[[int, Tensor, Sequence[Activation]], Cell]
    whole: Callable[[int], _Whole] | None = None
    project: Callable[[int], Product] | None = None


@dataclass(frozen=True)
class _Direction:
    """One direction: the computation of one step or all steps, its weights and its initial state."""

    cell: Cell
    whole: _Whole | None
    weights: tuple[Tensor, Tensor]
    project: Product
    bias: Tensor | None
    state: list[Tensor]
    backwards: bool


@translation("RNN")
def rnn(
    node: OnnxNode,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:
    def cell(number: int, weights: Tensor, functions: Sequence[Activation]) -> Cell:
        return rnn_cell(weights, functions)

    return _recurrent(node, (x, w, r, b, lengths), [h], _Kind(("Tanh",), cell))


@translation("LSTM")
def lstm(
    node: OnnxNode,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    return lstm_layers(node, (x, w, r, b, lengths), [h, c], peepholes)


def lstm_layers(
    node: OnnxNode,
    inputs: _Inputs,
    state: Sequence[Tensor | None],
    peepholes: Tensor | None,
    products: Callable[[int], tuple[Product, Product]] | None = None,
) -> tuple[Tensor, ...]:
    """Return the outputs of an LSTM.

    Args:
        node: The node.
        inputs: `x`, both weights, the bias and the lengths.
        state: Initial h and c.
        peepholes: Peephole weights.
        products: Function that returns the products with the input weights and the recurrent weights for a direction's
            number; None if the weights are floats.
    """
    x, _, r, _, _ = inputs
    size = _hidden_size(node, r)
    looks = None if peepholes is None else make_list("Unpack", peepholes, num=_count(node), axis=0)

    def cell(number: int, weights: Tensor, functions: Sequence[Activation]) -> Cell:
        coupled = bool(node.attr("input_forget", 0))
        times = product_with(weights) if products is None else products(number)[1]
        return lstm_cell(times, size, functions, None if looks is None else looks[number], coupled)

    def whole(number: int) -> _Whole:
        look = None if looks is None else looks[number]
        return lambda x, weights, bias, state, ends: whole_layer(x, weights, bias, look, state, ends)

    functions = ("Sigmoid", "Tanh", "Tanh")
    if products is not None:
        return _recurrent(node, inputs, state, _Kind(functions, cell, project=lambda number: products(number)[0]))
    return _recurrent(node, inputs, state, _Kind(functions, cell, whole if is_usual(node, x) else None))


@translation("GRU")
def gru(
    node: OnnxNode,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:
    size, linear_first = _hidden_size(node, r), bool(node.attr("linear_before_reset", 0))
    own: list[Tensor] | None = None  # biases of the hidden gate that the reset gate multiplies
    if linear_first and b is not None:
        *_, hidden = make_list("SplitV", b, [5 * size, size], 1, num_split=2)
        own = make_list("Unpack", hidden, num=_count(node), axis=0)
        # The projection must not add these biases: the reset gate does not multiply what it adds.
        b = make("Mul", b, constant(np.array([1] * 5 * size + [0] * size, b.dtype.np_dtype)))

    def cell(number: int, weights: Tensor, functions: Sequence[Activation]) -> Cell:
        return gru_cell(weights, size, functions, None if own is None else own[number], linear_first)

    return _recurrent(node, (x, w, r, b, lengths), [h], _Kind(("Sigmoid", "Tanh"), cell))


def _count(node: OnnxNode) -> int:
    return len(_DIRECTIONS[node.attr("direction", "forward")])


def _hidden_size(node: OnnxNode, r: Tensor) -> int:
    size = node.attr("hidden_size") or (r.dims[-1] if r.dims else None)
    if size is None:
        node.refuse("no hidden_size")
    return int(size)


# ── all directions ────────────────────────────────────────────────────────────────────────────────────────────────────


def _recurrent(
    node: OnnxNode,
    inputs: _Inputs,
    state: Sequence[Tensor | None],
    kind: _Kind,
) -> tuple[Tensor, ...]:
    """Return the outputs of the node: those of all steps, and each part of the last state."""
    x, w, r, b, lengths = inputs
    batch_first = bool(node.attr("layout", 0))
    x = make("Transpose", x, _SWAP) if batch_first else x
    given = _cleared(x, differing(node, lengths, x))
    size, wanted = _hidden_size(node, r), not node.outputs or bool(node.outputs[0])
    functions = activations(node, kind.functions, _count(node))
    starts = [_start(part, given.x, size, _count(node), batch_first) for part in state]
    ways = []
    for number, backwards in enumerate(_DIRECTIONS[node.attr("direction", "forward")]):
        weights, recurrent = part(w, number), part(r, number)
        # The biases of the input and of the state are added to the same sums, so one vector suffices.
        bias = None if b is None else make("Sum", make("Reshape", part(b, number), [2, -1]), 0)
        cell = kind.cell(number, recurrent, functions[number])
        whole = kind.whole(number) if kind.whole else None
        first = [parts[number] for parts in starts]
        project = kind.project(number) if kind.project else product_with(weights)
        ways.append(_Direction(cell, whole, (weights, recurrent), project, bias, first, backwards))
    results = [_run(way, given, wanted) for way in ways]
    last = [make("Pack", [end[i] for _, end in results], axis=1 if batch_first else 0) for i in range(len(state))]
    outputs = [output for output, _ in results if output is not None]
    if not outputs:
        return last[0], *last  # the first output is unused
    if batch_first:
        return make("Pack", [make("Transpose", y, _SWAP) for y in outputs], axis=2), *last
    return make("Pack", outputs, axis=1), *last


def _cleared(x: Tensor, lengths: Tensor | None) -> _Input:
    """Return the input with zeros after the end of each sequence.

    The values there may be anything, such as NaN, and must not contribute to gradients.
    """
    if lengths is None:
        return _Input(x, None)
    times = make("Reshape", make("Range", 0, size_of(x, 0), 1), [-1, 1, 1])
    going = make("Less", times, make("ExpandDims", int32(lengths), 1))
    return _Input(make("SelectV2", going, x, 0), lengths)


def part(x: Tensor, number: int) -> Tensor:
    """Return `x[number]`."""
    return make("StridedSlice", x, [number], [number + 1], [1], shrink_axis_mask=1)


def differing(node: OnnxNode, lengths: Tensor | None, x: Tensor) -> Tensor | None:
    """Return the lengths, or None if all are known to be the number of steps."""
    known = None if lengths is None else node.constant(lengths)
    if known is not None and x.dims is not None and (known == x.dims[0]).all():
        return None
    return lengths


def _start(state: Tensor | None, x: Tensor, size: int, count: int, batch_first: bool) -> list[Tensor]:
    if state is None:
        zero = make("Fill", shape_of([size_of(x, 1), size]), constant(np.zeros((), x.dtype.np_dtype)))
        return [zero] * count
    # Unpack needs a known rank: [directions, batch, size], or [batch, directions, size].
    state.set_shape((None, None, None))
    return make_list("Unpack", state, num=count, axis=1 if batch_first else 0)


# ── one direction ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _run(way: _Direction, given: _Input, wanted: bool) -> tuple[Tensor | None, list[Tensor]]:
    """Return all outputs, of shape [steps, batch, size], if they are wanted, and the last state."""
    x = given.reversed(given.x) if way.backwards else given.x
    if way.whole is not None and size_of(x, 0) != 1:  # the op's overhead does not pay off for a single step
        outputs, state = way.whole(x, way.weights, way.bias, way.state, given.lengths)
    else:
        outputs, state = _steps(way, _projected(x, way), given.lengths, wanted)
    if outputs is not None and way.backwards:
        outputs = given.reversed(outputs)
    return outputs, state


def _projected(x: Tensor, way: _Direction) -> Tensor:
    """Return x W' + b of all steps, in one matrix product."""
    weights, _ = way.weights
    # Steps and batch as the rows of one matrix.
    flat = make("Reshape", x, shape_of([-1, size_of(weights, 1)]))
    flat = way.project(flat)
    flat = flat if way.bias is None else make("BiasAdd", flat, way.bias)
    return make("Reshape", flat, shape_of([size_of(x, 0), size_of(x, 1), size_of(weights, 0)]))


def _steps(way: _Direction, x: Tensor, lengths: Tensor | None, wanted: bool) -> tuple[Tensor | None, list[Tensor]]:
    steps = size_of(x, 0)
    if steps == 1 and lengths is None:
        state = way.cell(make("Squeeze", x, squeeze_dims=[0]), way.state)
        return make("ExpandDims", state[0], 0) if wanted else None, state
    source = TensorArray(x.dtype, steps, infer_shape=True).unstack(x)
    target = TensorArray(x.dtype, steps, infer_shape=True) if wanted else None
    limits = None if lengths is None else make("ExpandDims", lengths, 1)

    def body(time: Tensor, out: list[TensorArray], *before: Tensor) -> list[object]:
        after = way.cell(source.read(time), before)
        output = after[0]
        if limits is not None:
            going = make("Less", make("Cast", time, DstT=limits.dtype), limits)
            # After its end, a sequence returns zeros and keeps its state.
            output = make("SelectV2", going, output, 0)
            after = [make("SelectV2", going, new, old) for new, old in zip(after, before, strict=True)]
        return [time + 1, [array.write(time, output) for array in out], *after]

    arrays = [] if target is None else [target]
    start = [constant(np.int32(0)), arrays, *way.state]
    shapes = [(), [None for _ in arrays], *(_invariant(part, x, way.weights[1]) for part in way.state)]
    _, ends, *state = while_loop(lambda time, *_: time < steps, body, start, shape_invariants=shapes)
    return ends[0].stack() if ends else None, state


def _invariant(state: Tensor, x: Tensor, weights: Tensor) -> tuple[int | None, int | None]:
    """Return the static shape of a state that holds in all steps.

    A size is only kept if it is known of every operand that the state is computed from.
    """
    batch, size = state.dims or (None, None)
    same = x.dims is not None and x.dims[1] == batch
    return batch if same else None, size if weights.dims is not None and None not in weights.dims else None

"""Whole LSTM layers.

An LSTM node computes the outputs. A Scan node computes the intermediate results that LSTM does not return. A node
whose results are not read is dropped.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Final

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.scope import GraphBuilder
from aioflow.interop.onnx.exporting.values import ModelValue

_REST: Final = 2**62  # to the end, in a slice
_GATES: Final = "iofc"  # the order of the rows of weights in an LSTM: input, output, forget, cell
_LOOKS: Final = "iof"  # the order of an LSTM's peepholes


@dataclass(frozen=True, slots=True)
class _Layer:
    """The operands of one layer.

    Attributes:
        x: Inputs of the steps within the sequence length.
        state: Initial h and c.
        columns: Weights of each gate for the input and the previous output, [size + units, units].
        biases: Bias of each gate, [units].
        looks: Peephole weights of each gate, [units]; empty without peepholes.
        clip: Bound on the absolute value of cells; 0 for no bound.
        units: Number of units.
    """

    x: ModelValue
    state: tuple[ModelValue, ModelValue]
    columns: dict[str, ModelValue]
    biases: dict[str, ModelValue]
    looks: dict[str, ModelValue]
    clip: float
    units: int


@exporter("BlockLSTM")
def block_lstm(node: ExportedNode, *inputs: ModelValue) -> tuple[ModelValue, ...]:
    """Export a layer whose gates are ordered as input, cell, forget, output."""
    return _layer(node, "icfo", node.attr("forget_bias"), inputs)


@exporter("BlockLSTMV2")
def block_lstm_v2(node: ExportedNode, *inputs: ModelValue) -> tuple[ModelValue, ...]:
    """Export a layer whose gates are ordered as input, forget, cell, output."""
    return _layer(node, "ifco", 0.0, inputs)


def _layer(node: ExportedNode, gates: str, forget: float, inputs: tuple[ModelValue, ...]) -> tuple[ModelValue, ...]:
    """Return i, cs, f, o, ci, co and h of all steps, with zeros after the last step of the sequence length."""
    steps, x, cells, output, columns, wci, wcf, wco, bias = inputs
    units = None if bias.dims is None or bias.dims[0] is None else bias.dims[0] // 4
    if units is None:
        node.refuse("a number of units that is not known")
    if node.dtype is not dtypes.float32:
        node.refuse(f"onnxruntime runs LSTM on no {node.dtype.name}")
    all_steps = steps.constant is not None and x.dims is not None and x.dims[0] == int(steps.constant)
    biases = {gate: node.sliced(bias, i * units, (i + 1) * units) for i, gate in enumerate(gates)}
    if forget:
        # TensorFlow adds `forget_bias` in every step; as part of the bias it costs nothing.
        biases["f"] = node.make("Add", biases["f"], node.like(forget, bias))
    layer = _Layer(
        x if all_steps else node.make("Slice", x, node.const([0]), node.vector(steps), node.const([0])),
        (output, cells),
        {gate: node.sliced(columns, i * units, (i + 1) * units, axis=1) for i, gate in enumerate(gates)},
        biases,
        {"i": wci, "f": wcf, "o": wco} if node.attr("use_peephole") else {},
        node.attr("cell_clip"),
        units,
    )
    *others, last = _scanned(node, layer)
    # ONNX's LSTM clips the inputs of activations, not the cells, so with clipping h comes from the Scan.
    made = [*others, last if layer.clip > 0 else _whole(node, layer)]
    return tuple(made if all_steps else [_padded(node, each, x) for each in made])


def _padded(node: ExportedNode, made: ModelValue, x: ModelValue) -> ModelValue:
    """Return `made` with zeros appended up to the number of steps of `x`."""
    missing = node.make("Sub", node.size_of(x, 0), node.make("Shape", made, start=0, end=1))
    return node.make("Pad", made, node.joined([node.const([0] * 3), missing, node.const([0] * 2)]))


def _whole(node: ExportedNode, layer: _Layer) -> ModelValue:
    """Return h of all steps, computed by an LSTM node."""
    rows = node.transposed(node.joined([layer.columns[gate] for gate in _GATES], axis=1).of((None, None)), (1, 0))
    of_input, of_output = (node.sliced(rows, *ends, axis=1) for ends in ((0, -layer.units), (-layer.units, _REST)))
    # ONNX has one bias for the input and one for the previous output, which are added; the second is zero here.
    bias = node.joined([*(layer.biases[gate] for gate in _GATES), node.like([0] * 4 * layer.units, layer.x)])
    looks = node.joined([layer.looks[gate] for gate in _LOOKS]) if layer.looks else None
    given = [of_input, of_output, bias, None, *layer.state, looks]
    # ONNX has an axis of directions in front, of size 1 here.
    directed = [None if each is None else node.unsqueezed(each, [0]) for each in given]
    made = node.make("LSTM", layer.x, *directed, hidden_size=layer.units)
    return node.squeezed(made, [1])


def _scanned(node: ExportedNode, layer: _Layer) -> tuple[ModelValue, ...]:
    """Return i, cs, f, o, ci, co and h of all steps, computed by a Scan over single steps."""
    order = "ifco"
    columns = node.joined([layer.columns[gate] for gate in order], axis=1)
    of_input, of_output = (node.sliced(columns, *ends) for ends in ((0, -layer.units), (-layer.units, _REST)))
    # One product for all steps, outside of the Scan; only the product with the previous output is sequential.
    projected = node.make("MatMul", layer.x, of_input)
    projected = node.make("Add", projected, node.joined([layer.biases[gate] for gate in order]))
    inner = copy(node)
    inner.scope = scope = GraphBuilder(node.scope.parts, f"{node.name}/step", node.scope)
    # x is [steps, batch, size].
    batch = None if layer.x.dims is None else layer.x.dims[1]
    output, cells = (scope.input(f"{node.name}/{each}", node.dtype, (batch, layer.units)) for each in ("h", "c"))
    at = scope.input(f"{node.name}/x", node.dtype, (batch, 4 * layer.units))
    at = inner.make("Add", at, inner.make("MatMul", output, of_output))
    gates = {gate: inner.sliced(at, i * layer.units, (i + 1) * layer.units, axis=1) for i, gate in enumerate(order)}
    found = _step(inner, layer, gates, cells)
    state = [inner.make("Identity", each) for each in (found[-1], found[1])]  # outputs of a body need distinct names
    scope.body.outputs += [*state, *found]
    kinds = [node.dtype] * len(scope.body.outputs)
    attrs = {"body": scope.body, "num_scan_inputs": 1}
    # A Scan returns the last states first; only the stacked results count here.
    return node.scope.nest("Scan", f"{node.name}/Scan", [*layer.state, projected], kinds, attrs)[2:]


def _step(node: ExportedNode, layer: _Layer, gates: dict[str, ModelValue], cells: ModelValue) -> list[ModelValue]:
    """Return i, cs, f, o, ci, co and h of one step."""

    def gate(name: str, seen: ModelValue) -> ModelValue:
        given = gates[name]
        if layer.looks:
            given = node.make("Add", given, node.make("Mul", seen, layer.looks[name]))
        return node.make("Sigmoid", given)

    # Peepholes of input and forget gates see the old cells, that of the output gate the new ones.
    i, f, ci = gate("i", cells), gate("f", cells), node.make("Tanh", gates["c"])
    # cs = f · c + i · ci.
    cs = node.make("Add", node.make("Mul", f, cells), node.make("Mul", i, ci))
    if layer.clip > 0:
        cs = node.make("Clip", cs, node.like(-layer.clip, cs), node.like(layer.clip, cs))
    o, co = gate("o", cs), node.make("Tanh", cs)
    return [i, cs, f, o, ci, co, node.make("Mul", o, co)]

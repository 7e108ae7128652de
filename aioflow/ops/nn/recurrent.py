"""A whole LSTM layer over all steps as one op (Hochreiter and Schmidhuber, 1997; peepholes: Gers et al., 2002)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.costs import Cost, Operand
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import product
from aioflow.ops.apply import make, make_list

_INPUTS: Final = "seq_len_max: int64, x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, b: T"
_OUTPUTS: Final = "i: T, cs: T, f: T, o: T, ci: T, co: T, h: T"
_DTYPES: Final = "T: {float16, float32}"


def _check(ctx: ShapeContext) -> tuple[Dims, Dims]:
    """Return the shapes of the input and of the biases, which determine the shapes of all outputs."""
    ctx.require_rank("seq_len_max", 0)
    x, bias = ctx.require_rank("x", 3), ctx.require_rank("b", 1)
    merge_dims(ctx.require_rank("cs_prev", 2), ctx.require_rank("h_prev", 2))
    ctx.require_rank("w", 2)
    return x, bias


def _each_step(ctx: ShapeContext) -> list[Dims]:
    x, bias = _check(ctx)
    steps, batch = (None, None) if x is None else x[:2]
    columns = None if bias is None else bias[0]
    # The biases of the four gates lie side by side.
    if columns is not None and columns % 4:
        raise InvalidArgumentError("the biases are not of four gates", expected="a multiple of 4", actual=columns)
    return [(steps, batch, None if columns is None else columns // 4)] * 7


def _like_inputs(ctx: ShapeContext) -> list[Dims]:
    _check(ctx)
    return [ctx.dims(name) for name in ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")]


def _products(times: int) -> Cost:
    def multiply_adds(attrs: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
        # The input without its features: steps and batch.
        rows = inputs[1].dims[:-1]
        return float(times * inputs[4].elements * (rows[0] * rows[1] if len(rows) == 2 else 1))

    return Cost("product", multiply_adds)


for _name, _attrs in (
    ("BlockLSTM", ["forget_bias: float = 1.0", "cell_clip: float = 3.0"]),
    ("BlockLSTMV2", ["cell_clip: float = 0.0"]),
):
    define_op(
        _name,
        _INPUTS,
        _OUTPUTS,
        [*_attrs, "use_peephole: bool = False", _DTYPES],
        shape=_each_step,
        traits=product(cost=_products(1)),
    )
for _name in ("BlockLSTMGrad", "BlockLSTMGradV2"):
    define_op(
        _name,
        f"{_INPUTS}, {_OUTPUTS}, cs_grad: T, h_grad: T",
        "x_grad: T, cs_prev_grad: T, h_prev_grad: T, w_grad: T, wci_grad: T, wcf_grad: T, wco_grad: T, b_grad: T",
        ["use_peephole: bool", _DTYPES],
        shape=_like_inputs,
        traits=product(cost=_products(2)),
    )


@gradient("BlockLSTM")
def _block_lstm_grad(op: Operation, *grads: Tensor | None) -> list[Tensor | None]:
    return _layer_grad("BlockLSTMGrad", op, grads)


@gradient("BlockLSTMV2")
def _block_lstm_v2_grad(op: Operation, *grads: Tensor | None) -> list[Tensor | None]:
    return _layer_grad("BlockLSTMGradV2", op, grads)


def _layer_grad(kind: str, op: Operation, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Create the gradient op of the layer."""
    # As in TensorFlow, only the gradients of the cell states (1) and of the outputs (6) count, not those of the gates.
    of_cells, of_outputs = (_or_zeros(grads[n], op.outputs[n]) for n in (1, 6))
    peephole = op.get_attr("use_peephole")
    return [None, *make_list(kind, *op.inputs, *op.outputs, of_cells, of_outputs, use_peephole=peephole)]


def _or_zeros(grad: Tensor | None, like: Tensor) -> Tensor:
    return make("ZerosLike", like) if grad is None else grad

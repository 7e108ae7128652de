"""Kernels of whole LSTM layers: one product projects the inputs of all steps, then a loop runs the steps.

The gates of a step are adjacent columns of one array, so one call computes what is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import batches
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_int
from aioflow.kernels.nn.activations import narrow, widen
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array, Namespace

# The gates in the order of their columns in the weights: input, cell, forget, output.
_ORDERS: Final = {"BlockLSTM": "icfo", "BlockLSTMV2": "ifco", "BlockLSTMGrad": "icfo", "BlockLSTMGradV2": "ifco"}


class _Layer:
    """The column order of an op's gates, and the checks of its arrays at run time."""

    def __init__(self, binding: Binding) -> None:
        self.order = _ORDERS[binding.op_type]
        self.peephole: bool = binding.attrs["use_peephole"]
        self.xp = binding.xp

    def gate(self, name: str, units: int) -> slice:
        """Return the columns of a gate."""
        at = self.order.index(name) * units
        return slice(at, at + units)

    def check(
        self, steps: int, x: Array, cs_prev: Array, h_prev: Array, w: Array, b: Array, looks: Sequence[Array]
    ) -> int:
        """Return the number of units. Raise InvalidArgumentError unless the shapes of the arrays match."""
        if x.ndim != 3 or cs_prev.ndim != 2 or not 0 <= steps <= x.shape[0]:
            raise InvalidArgumentError(
                "not a layer's input", expected="[steps, batch, size], and not more steps", actual=(x.shape, steps)
            )
        units = int(cs_prev.shape[1])
        shapes = [cs_prev.shape, h_prev.shape, w.shape, b.shape, *(look.shape for look in looks if self.peephole)]
        state = (x.shape[1], units)
        wanted = [state, state, (x.shape[2] + units, 4 * units), (4 * units,), *[(units,)] * (3 * self.peephole)]
        if shapes != wanted:
            raise InvalidArgumentError("the weights or the state do not fit", expected=wanted, actual=shapes)
        return units


@binder("BlockLSTM", fresh=True, host={"seq_len_max": as_int})
@binder("BlockLSTMV2", fresh=True, host={"seq_len_max": as_int})
def block_lstm(binding: Binding) -> Callable[..., tuple[Array, ...]]:
    xp, layer, dtype = binding.xp, _Layer(binding), binding.output_dtypes[0].np_dtype
    clip, forget = binding.attrs["cell_clip"], binding.attrs.get("forget_bias", 0.0)

    def body(
        steps: int, x: Array, cs_prev: Array, h_prev: Array, w: Array, wci: Array, wcf: Array, wco: Array, b: Array
    ) -> tuple[Array, ...]:
        units = layer.check(steps, x, cs_prev, h_prev, w, b, (wci, wcf, wco))
        wide = [widen(each) for each in (x, cs_prev, h_prev, w, wci, wcf, wco, b)]
        x, cells, output, w, wci, wcf, wco, b = wide
        size = x.shape[2]
        # `b` may be a constant or the array of a variable, which must not change.
        bias = b.copy()
        bias[layer.gate("f", units)] += np.float32(forget)
        # The first rows of `w` belong to x, which needs no state, so one product serves all steps.
        gates = xp.matmul(x.reshape(-1, size), w[:size]).reshape(*x.shape[:2], 4 * units)
        gates += bias
        recurrent = xp.ascontiguousarray(w[size:])
        news, cs, co, hs = (xp.zeros((*x.shape[:2], units), np.float32) for _ in range(4))
        # The outputs i, f and o are slices of `gates`, and must be 0 for steps that do not run.
        gates[steps:] = 0
        to_i, to_c, to_f, to_o = (layer.gate(name, units) for name in "icfo")
        for t in batches(range(steps)):
            at, new = gates[t], news[t]
            at += xp.matmul(output, recurrent)
            if layer.peephole:
                at[:, to_i] += cells * wci
                at[:, to_f] += cells * wcf
            xp.tanh(at[:, to_c], new)
            before, cells = cells, cs[t]
            if layer.peephole:
                _sigmoid(xp, at[:, to_i])
                _sigmoid(xp, at[:, to_f])
            else:
                # The cell's columns may be overwritten, too: `new` holds their tanh.
                _sigmoid(xp, at)
            xp.multiply(at[:, to_f], before, cells)
            cells += at[:, to_i] * new
            if clip > 0:
                xp.clip(cells, -clip, clip, cells)
            if layer.peephole:
                at[:, to_o] += cells * wco
                _sigmoid(xp, at[:, to_o])
            output = xp.multiply(at[:, to_o], xp.tanh(cells, co[t]), hs[t])
        i, f, o = (xp.ascontiguousarray(gates[:, :, each]) for each in (to_i, to_f, to_o))
        return tuple(narrow(each, dtype) for each in (i, cs, f, o, news, co, hs))

    return body


def _sigmoid(xp: Namespace, x: Array) -> None:
    """Apply the sigmoid in place. Where exp overflows, 1 / inf is the correct 0."""
    # Not `xp.negative(x, x)`: NumPy 2.4 negates every fourth element of an array wrongly in place.
    xp.multiply(x, -1, x)
    xp.exp(x, x)
    x += 1
    xp.reciprocal(x, x)


@binder("BlockLSTMGrad", fresh=True, host={"seq_len_max": as_int})
@binder("BlockLSTMGradV2", fresh=True, host={"seq_len_max": as_int})
def block_lstm_grad(binding: Binding) -> Callable[..., tuple[Array, ...]]:
    xp, layer, dtype = binding.xp, _Layer(binding), binding.output_dtypes[0].np_dtype

    def body(steps: int, *arrays: Array) -> tuple[Array, ...]:
        x, cs_prev, h_prev, w, wci, wcf, wco, b = arrays[:8]
        units = layer.check(steps, x, cs_prev, h_prev, w, b, (wci, wcf, wco))
        x, cs_prev, h_prev, w, wci, wcf, wco, b, *values = (widen(each) for each in arrays)
        size = x.shape[2]
        slopes, of_cells, of_output = _backwards(xp, layer, steps, w[size:], (cs_prev, wci, wcf, wco), values)
        flat = slopes.reshape(-1, 4 * units)
        # The input of a step is [x, output of the step before].
        inputs = xp.concatenate([x, xp.concatenate([h_prev[None], values[6][:-1]])[: len(x)]], axis=2)
        before = xp.concatenate([cs_prev[None], values[1][:-1]])[: len(x)]
        of_peepholes = [xp.zeros(look.shape, np.float32) for look in (wci, wcf, wco)]
        if layer.peephole:
            for n, (name, cells) in enumerate((("i", before), ("f", before), ("o", values[1]))):
                of_peepholes[n] = (slopes[:, :, layer.gate(name, units)] * cells).sum(axis=(0, 1))
        results = (
            xp.matmul(flat, w[:size].T).reshape(x.shape),
            of_cells,
            of_output,
            xp.matmul(inputs.reshape(-1, inputs.shape[2]).T, flat),
            *of_peepholes,
            flat.sum(axis=0),
        )
        return tuple(narrow(each, dtype) for each in results)

    return body


def _backwards(
    xp: Namespace, layer: _Layer, steps: int, recurrent: Array, state: Sequence[Array], values: Sequence[Array]
) -> tuple[Array, Array, Array]:
    """Return the gradients of all gates before their activations, and of the cells and output before the first step."""
    cs_prev, wci, wcf, wco = state
    i, cs, f, o, ci, co, _, cs_grad, h_grad = values
    units = i.shape[2]
    slopes = xp.zeros((*i.shape[:2], 4 * units), np.float32)
    of_cells, of_output = xp.zeros_like(cs_prev), xp.zeros_like(cs_prev)
    to_i, to_c, to_f, to_o = (layer.gate(name, units) for name in "icfo")
    back = recurrent.T
    for t in batches(range(steps - 1, -1, -1)):
        at, before = slopes[t], cs[t - 1] if t else cs_prev
        of_output = h_grad[t] + of_output
        # σ' = σ (1 - σ) and tanh' = 1 - tanh²; `ci` and `co` are values of tanh.
        at[:, to_o] = of_output * co[t] * o[t] * (1 - o[t])
        of_cells = cs_grad[t] + of_cells + of_output * o[t] * (1 - co[t] * co[t])
        if layer.peephole:
            of_cells += at[:, to_o] * wco
        at[:, to_c] = of_cells * i[t] * (1 - ci[t] * ci[t])
        at[:, to_f] = of_cells * before * f[t] * (1 - f[t])
        at[:, to_i] = of_cells * ci[t] * i[t] * (1 - i[t])
        of_cells = of_cells * f[t]
        if layer.peephole:
            of_cells += at[:, to_i] * wci + at[:, to_f] * wcf
        of_output = xp.matmul(at, back)
    return slopes, of_cells, of_output

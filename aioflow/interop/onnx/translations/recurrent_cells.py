"""One step of RNN, LSTM and GRU: from the projected input and the previous state to the new state.

The input is already multiplied by its weights for all steps at once, with the biases added. A step thus has a single
matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.translating import OnnxNode
from aioflow.interop.onnx.translations.math import elu_of, hard_sigmoid_of, thresholded_relu_of
from aioflow.ops.apply import make, make_list

Activation = Callable[[Tensor], Tensor]
Product = Callable[[Tensor], Tensor]  # by weights; the result has a column for each of their rows
Cell = Callable[
    [Tensor, Sequence[Tensor]], list[Tensor]
]  # (projected input, state) -> state, its first being the output


@dataclass(frozen=True)
class _Kind:
    """An activation and the default values of its parameters; None for a parameter that it does not have."""

    function: Callable[[Tensor, float, float], Tensor]
    alpha: float | None = None
    beta: float | None = None


def _op(name: str) -> _Kind:
    return _Kind(lambda x, alpha, beta: make(name, x))


_KINDS: Final[Mapping[str, _Kind]] = {
    **{name: _op(name.capitalize()) for name in ("relu", "tanh", "sigmoid", "softsign", "softplus")},
    "affine": _Kind(lambda x, alpha, beta: x * alpha + beta, 1.0, 0.0),
    "leakyrelu": _Kind(lambda x, alpha, beta: make("LeakyRelu", x, alpha=alpha), 0.01),
    "thresholdedrelu": _Kind(lambda x, alpha, beta: thresholded_relu_of(x, alpha), 1.0),
    "scaledtanh": _Kind(lambda x, alpha, beta: make("Tanh", x * beta) * alpha, 1.0, 1.0),
    "hardsigmoid": _Kind(hard_sigmoid_of, 0.2, 0.5),
    "elu": _Kind(lambda x, alpha, beta: elu_of(x, alpha), 1.0),
}


def activations(node: OnnxNode, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """Return the activations of each direction.

    The node's lists of alphas and betas contain, in order, values only for activations that have the parameter. Results
    of products are clipped to the node's `clip`. An LSTM's third activation, of the cell, is not clipped.
    """
    names = node.attr("activations") or [*defaults] * directions
    alphas, betas = iter(node.attr("activation_alpha") or ()), iter(node.attr("activation_beta") or ())
    clip = node.attr("clip")
    found = []
    for number, name in enumerate(names):
        kind = _KINDS.get(name.lower())
        if kind is None or len(names) != len(defaults) * directions:
            node.refuse(f"activations={names}")
        limit = None if number % len(defaults) == 2 else clip
        found.append(_clipped(kind, _next(alphas, kind.alpha), _next(betas, kind.beta), limit))
    return [found[i : i + len(defaults)] for i in range(0, len(found), len(defaults))]


def activation_of(node: OnnxNode, name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """Return an activation by name. Parameters that are None have their defaults. Refuse an unknown name."""
    kind = _KINDS.get(name.lower())
    if kind is None:
        return node.refuse(f"activation={name}")
    a, b = (found or 0.0 if given is None else given for given, found in ((alpha, kind.alpha), (beta, kind.beta)))
    return _clipped(kind, a, b, None)


def _next(values: Iterator[float], default: float | None) -> float:
    return 0.0 if default is None else next(values, default)


def _clipped(kind: _Kind, alpha: float, beta: float, clip: float | None) -> Activation:
    def activate(x: Tensor) -> Tensor:
        if clip:
            x = make("Minimum", make("Maximum", x, -clip), clip)
        return kind.function(x, alpha, beta)

    return activate


def _split(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    if len(set(sizes)) == 1:
        return make_list("Split", 1, x, num_split=len(sizes))
    return make_list("SplitV", x, list(sizes), 1, num_split=len(sizes))


def _times(h: Tensor, weights: Tensor) -> Tensor:
    return make("MatMul", h, weights, transpose_b=True)


def product_with(weights: Tensor) -> Product:
    """Return a function that multiplies a matrix by the transpose of the weights."""
    return lambda h: _times(h, weights)


def rnn_cell(weights: Tensor, functions: Sequence[Activation]) -> Cell:
    """Return a step that computes h = f(x + h R')."""

    def step(x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        return [functions[0](x + _times(state[0], weights))]

    return step


def lstm_cell(
    times: Product, size: int, functions: Sequence[Activation], peepholes: Tensor | None, coupled: bool
) -> Cell:
    """Return a step of an LSTM.

    The gates are in the order input, output, forget, cell; the state is h and c. If `coupled`, the forget gate is 1
    minus the input gate.
    """
    f, g, h = functions
    looks = [] if peepholes is None else _split(make("ExpandDims", peepholes, 0), [size] * 3)

    def step(x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        gates, cell = _split(x + times(state[0]), [3 * size, size])
        # One activation for the three gates, which are adjacent.
        let_in, let_out, keep = _split(f(gates), [size] * 3)
        return _next_state(let_in, let_out, 1 - let_in if coupled else keep, g(cell), state[1])

    def step_with_peepholes(x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        before = state[1]
        to_in, to_out, to_keep = looks
        in_, out, forget, cell = _split(x + times(state[0]), [size] * 4)
        let_in = f(in_ + to_in * before)
        keep = 1 - let_in if coupled else f(forget + to_keep * before)
        # The output gate looks at the new cell, so the gates cannot share one activation here.
        after = keep * before + let_in * g(cell)
        return [f(out + to_out * after) * h(after), after]

    def _next_state(let_in: Tensor, let_out: Tensor, keep: Tensor, new: Tensor, before: Tensor) -> list[Tensor]:
        after = keep * before + let_in * new
        return [let_out * h(after), after]

    return step if peepholes is None else step_with_peepholes


def gru_cell(
    weights: Tensor, size: int, functions: Sequence[Activation], hidden_bias: Tensor | None, linear_first: bool
) -> Cell:
    """Return a step of a GRU.

    The gates are in the order update, reset, hidden. If `linear_first`, the reset gate multiplies the product plus
    `hidden_bias` instead of the factor h.
    """
    f, g = functions
    to_gates, to_hidden = make_list("SplitV", weights, [2 * size, size], 0, num_split=2)

    def step(x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        (before,) = state
        x_gates, x_hidden = _split(x, [2 * size, size])
        update, reset = _split(f(x_gates + _times(before, to_gates)), [size] * 2)
        # The product with the hidden weights must wait for the reset gate.
        return _mixed(update, g(x_hidden + _times(reset * before, to_hidden)), before)

    def step_linear_first(x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        (before,) = state
        x_gates, x_hidden = _split(x, [2 * size, size])
        # One product with all weights, since the reset gate comes after it.
        h_gates, h_hidden = _split(_times(before, weights), [2 * size, size])
        update, reset = _split(f(x_gates + h_gates), [size] * 2)
        candidate = h_hidden if hidden_bias is None else h_hidden + hidden_bias
        return _mixed(update, g(x_hidden + reset * candidate), before)

    def _mixed(update: Tensor, new: Tensor, before: Tensor) -> list[Tensor]:
        # (1 - update) · new + update · before.
        return [new + update * (before - new)]

    return step_linear_first if linear_first else step

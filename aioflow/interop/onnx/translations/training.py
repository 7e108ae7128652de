"""Ops of training: derivatives within a model, and updates of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aioflow.autodiff import gradients
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops.apply import convert_to_tensor, make
from aioflow.ops.core import cast_like

# ── derivatives within a model (ai.onnx.preview.training) ─────────────────────────────────────────────────────────────


@translation("Gradient", domain="ai.onnx.preview.training")
def gradient(node: OnnxNode, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the derivatives of a value by the sources that attributes name.

    The inputs of the node must be these sources, so that the derivatives are at the values of the model.
    """
    sources, constants = node.required("xs"), node.attr("zs", [])
    if [*sources, *constants] != list(node.proto.input) or node.named is None:
        return node.refuse("a derivative at values other than those of the model")
    found = gradients([node.named(node.required("y"))], list(inputs[: len(sources)]))
    # A source that is only gathered has a sparse gradient (IndexedSlices); ONNX's output is dense.
    dense = tuple(convert_to_tensor(each) for each in found if each is not None)
    if len(dense) < len(found):
        return node.refuse("a derivative by a tensor that the value does not depend on")
    return dense


# ── updates of optimizers: they return the new values and change nothing in place ─────────────────────────────────────


_DOMAIN: Final = "ai.onnx.preview.training"


def _each(
    node: OnnxNode, inputs: Sequence[Tensor], parts: int, update: Callable[..., Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """Apply `update` to each tensor and its state.

    The inputs are grouped by part (all tensors, all gradients, …), and so are the outputs.
    """
    count, left = divmod(len(inputs), parts)
    if left:
        raise node.wrong("the inputs", f"{parts} for each tensor", len(inputs))
    new = [update(*inputs[i::count]) for i in range(count)]
    return tuple(value for part in zip(*new, strict=True) for value in part)


@translation("Adagrad", domain=_DOMAIN)
def adagrad(node: OnnxNode, rate: Tensor, step: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    decay = node.attr("decay_factor", 0.0)

    def update(x: Tensor, slope: Tensor, squares: Tensor) -> Sequence[Tensor]:
        slope = slope + x * node.attr("norm_coefficient", 0.0)
        squares = squares + slope * slope
        # r = rate / (1 + step · decay).
        now = cast_like(rate, x) / (cast_like(step, x) * decay + 1)
        return x - now * slope / (make("Sqrt", squares) + node.attr("epsilon", 1e-6)), squares

    return _each(node, inputs, 3, update)


@translation("Adam", domain=_DOMAIN)
def adam(node: OnnxNode, rate: Tensor, step: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)

    def update(x: Tensor, slope: Tensor, mean: Tensor, squares: Tensor) -> Sequence[Tensor]:
        slope = slope + x * node.attr("norm_coefficient", 0.0)
        # m = α m + (1 - α) g; v = β v + (1 - β) g².
        mean = mean * alpha + slope * (1 - alpha)
        squares = squares * beta + slope * slope * (1 - beta)
        count, now = cast_like(step, x), cast_like(rate, x)
        # Bias correction: rate · √(1 - βᵗ) / (1 - αᵗ); at step 0 it would be 0 / 0.
        corrected = now * make("Sqrt", 1 - make("Pow", beta, count)) / (1 - make("Pow", alpha, count))
        now = make("SelectV2", make("Greater", step, 0), corrected, now)
        x = x - now * mean / (make("Sqrt", squares) + node.attr("epsilon", 1e-6))
        return x * (1 - node.attr("norm_coefficient_post", 0.0)), mean, squares

    return _each(node, inputs, 4, update)


@translation("Momentum", domain=_DOMAIN)
def momentum(node: OnnxNode, rate: Tensor, step: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    alpha, beta, nesterov = node.required("alpha"), node.required("beta"), node.required("mode") == "nesterov"

    def update(x: Tensor, slope: Tensor, mean: Tensor) -> Sequence[Tensor]:
        slope = slope + x * node.attr("norm_coefficient", 0.0)
        # The first gradient enters the mean without the factor β.
        share = make("SelectV2", make("Greater", step, 0), slope * beta, slope)
        mean = mean * alpha + share
        return x - cast_like(rate, x) * (slope + mean * alpha if nesterov else mean), mean

    return _each(node, inputs, 3, update)

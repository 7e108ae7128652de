"""Small layers composed of ops: dropout, and products with a bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioflow.arguments import check_kind
from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, ShapeLike, format_dims
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.core import identity, stop_gradient
from aioflow.ops.math.random import random_uniform
from aioflow.ops.nn.activations import bias_add, relu
from aioflow.ops.scoping import name_scope


def dropout(
    x: TensorLike,
    keep_prob: TensorLike | None = None,
    noise_shape: ShapeLike | Tensor | None = None,
    seed: int | None = None,
    name: str | None = None,
    rate: TensorLike | None = None,
) -> Tensor:
    """Set a random fraction `rate` of the elements of x to 0 and divide the others by 1 - rate.

    Each step draws anew.

    Args:
        x: A floating tensor.
        keep_prob: 1 - rate. The older parameter.
        noise_shape: Shape of the random mask. Along an axis of size 1, elements are kept or dropped together. None
            stands for x's size.
        seed: Seed of the op. See `set_random_seed`.
        name: Name of the node.
        rate: A number or a scalar tensor in [0, 1).

    Raises:
        InvalidArgumentError: the rate is missing, given twice, or out of range, or x is not floating.
    """
    dropped = _rate(keep_prob, rate)
    with name_scope(name, "dropout", [x, dropped]) as scope:
        tensor = convert_to_tensor(x, name="x")
        if not tensor.dtype.is_floating:
            raise InvalidArgumentError(
                "dropout scales x, so x must be floating", expected="a floating dtype", actual=tensor.dtype
            )
        if isinstance(dropped, int | float) and dropped == 0:
            return identity(tensor, name=scope)
        sample = random_uniform(_noise_shape(tensor, noise_shape), dtype=tensor.dtype, seed=seed)
        if isinstance(dropped, int | float):
            # The sample is uniform in [0, 1), so it is below the rate with that probability.
            kept = make("GreaterEqual", sample, dropped)
            scale: TensorLike = 1 / (1 - dropped)
        else:
            share = convert_to_tensor(dropped, tensor.dtype, name="rate")
            kept, scale = make("GreaterEqual", sample, share), make("Reciprocal", 1 - share)
        # No gradient flows through the factor, so x's own gradient is one multiplication.
        factor = stop_gradient(make("Mul", make("Cast", kept, DstT=tensor.dtype), scale))
        result = make("Mul", tensor, factor, name=scope)
        result.set_shape(tensor.dims)
        return result


def _rate(keep_prob: Any, rate: Any) -> float | Tensor:
    if (keep_prob is None) == (rate is None):
        raise InvalidArgumentError(
            "give one of rate and keep_prob", expected="one of them", actual="both" if rate is not None else "none"
        )
    given = keep_prob if rate is None else rate
    check_kind(given, (int, float, np.number, np.ndarray, Tensor), "rate or keep_prob", "a number")
    if rate is None:
        rate = 1 - keep_prob
    known = rate
    if isinstance(rate, Tensor):
        value = constant_value(rate)
        known = None if value is None else value.item()
        rate = rate if known is None else known
    if known is not None and not 0 <= known < 1:
        raise InvalidArgumentError("rate is out of range", expected="0 <= rate < 1", actual=known)
    return rate if isinstance(rate, Tensor) else float(rate)


def _noise_shape(tensor: Tensor, noise_shape: Any) -> Any:
    if noise_shape is None:
        return shape_of(tensor)
    if isinstance(noise_shape, Tensor):
        return noise_shape
    wanted = [None if s is None else int(s) for s in noise_shape]
    own: Dims = tensor.dims
    if None not in wanted:
        return wanted
    if own is None or len(own) != len(wanted):
        raise InvalidArgumentError("noise_shape needs one size per axis", expected=format_dims(own), actual=wanted)
    if all(w is not None or o is not None for w, o in zip(wanted, own, strict=True)):
        return [o if w is None else w for w, o in zip(wanted, own, strict=True)]
    # A size that is needed is known only in a step.
    sizes = make_list("Unpack", shape_of(tensor), num=len(own))
    return make("Pack", [s if w is None else constant(w, "int32") for w, s in zip(wanted, sizes, strict=True)])


def xw_plus_b(x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None) -> Tensor:
    """Return x @ weights + biases, for x [batch, in], weights [in, out], biases [out]."""
    with name_scope(name, "xw_plus_b", [x, weights, biases]) as scope:
        return bias_add(make("MatMul", x, weights), biases, name=scope)


def relu_layer(x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None) -> Tensor:
    """Return relu(x @ weights + biases). Arguments as for `xw_plus_b`."""
    with name_scope(name, "relu_layer", [x, weights, biases]) as scope:
        return relu(xw_plus_b(x, weights, biases), name=scope)


def zero_fraction(value: TensorLike, name: str | None = None) -> Tensor:
    """Return the fraction of the elements that are 0, a float32 scalar; NaN for an empty tensor."""
    with name_scope(name, "zero_fraction", [value]) as scope:
        tensor = convert_to_tensor(value, name="value")
        zeros = make("Equal", tensor, constant(0, tensor.dtype))
        flat = make("Reshape", make("Cast", zeros, DstT="float32"), [-1])
        return make("Mean", flat, 0, name=scope)

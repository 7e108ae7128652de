"""Random numbers from a key and a counter, by the Philox algorithm: equal to TensorFlow's, on every machine.

Keras's seed generators use these ops. The older stateless ops are in `ops/math/random.py`.
"""

from __future__ import annotations

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.costs import Cost, written
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, random
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.math.random import shape_tensor
from aioflow.ops.scoping import name_scope

_DRAWN = "shape: Tshape, key: uint64, counter: uint64, alg: int32"


def _key_and_counter(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("seed", 1)
    # Philox has a key of 64 bits and a counter of 128 bits, here in words of 64.
    return [(1,), (2,)]


def _given_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("key", 1)
    ctx.require_rank("counter", 1)
    return ctx.partial_shape("shape")


define_op(
    "StatelessRandomGetKeyCounter",
    "seed: Tseed",
    "key: uint64, counter: uint64",
    ["Tseed: {index} = int64"],
    shape=_key_and_counter,
    traits=random(effect=Effect.NONE),
)
for _name in ("StatelessRandomUniformV2", "StatelessRandomNormalV2"):
    define_op(
        _name,
        _DRAWN,
        "output: dtype",
        ["dtype: {floats} = float32", "Tshape: {index} = int32"],
        shape=_given_shape,
        traits=random(effect=Effect.NONE),
    )
define_op(
    "StatelessRandomUniformIntV2",
    f"{_DRAWN}, minval: dtype, maxval: dtype",
    "output: dtype",
    ["dtype: {int32, int64, uint32, uint64}", "Tshape: {index} = int32"],
    shape=_given_shape,
    traits=random(effect=Effect.NONE),
)
define_op(
    "StatelessRandomGammaV3",
    "shape: shape_dtype, key: uint64, counter: uint64, alg: int32, alpha: dtype",
    "output: dtype",
    ["dtype: {float16, float32, float64}", "shape_dtype: {index} = int32"],
    shape=_given_shape,
    traits=random(
        effect=Effect.NONE,
        cost=Cost("transcendental", written, 20.0),
        on_host="each number is tried again until it is taken",
    ),
)

not_differentiable(
    "StatelessRandomGetKeyCounter",
    "StatelessRandomUniformV2",
    "StatelessRandomNormalV2",
    "StatelessRandomUniformIntV2",
)


@gradient("StatelessRandomGammaV3")
def _gamma_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Return the gradient as for `RandomGamma`. The last dimensions of the sample are those of alpha."""
    alpha = op.inputs[4]
    leading = make("Sub", make("Size", op.inputs[0]), make("Rank", alpha))
    slope = make("Mul", grad, make("RandomGammaGrad", alpha, op.outputs[0]))
    return [None, None, None, None, make("Sum", slope, make("Range", 0, leading, 1), keep_dims=False)]


def stateless_gamma(
    shape: TensorLike,
    seed: TensorLike,
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Draw from gamma distributions by a seed: equal seeds return equal numbers, which are also TensorFlow's.

    Args:
        shape: Shape of the result. It ends with the broadcast shape of alpha and beta.
        seed: Two integers.
        alpha: The shape parameters, > 0.
        beta: The inverse scales, > 0; None is 1.
        dtype: float16, float32 or float64, also that of alpha and beta.
        name: Name scope of the nodes.
    """
    wanted = as_dtype(dtype)
    with name_scope(name, "stateless_random_gamma"):
        concentration = convert_to_tensor(alpha, wanted)
        rate = convert_to_tensor(1 if beta is None else beta, wanted)
        sizes = make("BroadcastArgs", make("Shape", concentration), make("Shape", rate))
        key, counter = make_list("StatelessRandomGetKeyCounter", seed)
        # 3 is TensorFlow's number for an algorithm that the device chooses.
        drawn = make(
            "StatelessRandomGammaV3", shape_tensor(shape), key, counter, 3, make("BroadcastTo", concentration, sizes)
        )
        least = constant(np.finfo(wanted.np_dtype).tiny, wanted)
        return make("Maximum", least, make("RealDiv", drawn, rate))

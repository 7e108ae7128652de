"""Random numbers from a key and a counter, by Philox: the same on every machine, as TensorFlow draws them.

These are what Keras's seed generators draw by. The older stateless ops are in `ops/math/random.py`.
"""

from __future__ import annotations

from aioflow.graph.opdef import ShapeContext, define_op, not_differentiable
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, random

__all__: list[str] = []

_DRAWN = "shape: Tshape, key: uint64, counter: uint64, alg: int32"


def _key_and_counter(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("seed", 1)
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

not_differentiable(
    "StatelessRandomGetKeyCounter",
    "StatelessRandomUniformV2",
    "StatelessRandomNormalV2",
    "StatelessRandomUniformIntV2",
)

"""Ops that only the optimizer makes: several of a user's nodes as one.

They have no builders. They need no gradients, since gradients are built before a step is compiled.

`_FusedMatMul` and the fused convolutions have TensorFlow's names and attributes: `fused_ops` lists the ops that follow
the product, in order. They also have `operands` if these ops are not a simple chain. `_ElementwiseChain` is written as
a straight-line program. All carry the names and lines of the nodes that they replace, since an error must name the
user's own node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aioflow.graph.costs import Cost, Operand, moved
from aioflow.graph.opdef import define_op
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import elementwise, product, reading, reduction
from aioflow.ops.linalg.products import MATRIX_PRODUCT
from aioflow.ops.nn.windows import convolution, depthwise

# For error messages: the name of each fused node, in order, and `str` of its source line ("" if it has no line).
ORIGINS: Final = ("nodes", "sources")
_ORIGINS: Final = [f"{name}: list(string) = []" for name in ORIGINS]
# Value 0 is the product, then come `args`, and then the results of `fused_ops`. `operands` has the values that these
# ops read, op by op. It is empty for a simple chain: each op reads the result before it, and then the next of `args`.
_EPILOGUE: Final = [
    "T: {float32, float64}",
    "num_args: int >= 0",
    "fused_ops: list(string) = []",
    "operands: list(int) = []",
    *_ORIGINS,
]


def _chain(attrs: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return the cost of a chain.

    A chain reads and writes memory once; each step then works in the cache, at half the price of an op of its own.
    """
    steps = attrs.get("ops", ())
    return moved(attrs, inputs, outputs) * max(1.0, 0.5 * len(steps) if isinstance(steps, list | tuple) else 1.0)


# Value i is input i, and after the inputs come the results of the members in order, the last of which is the output.
# `ops` are the members' ops, `operands` the values that they read, member by member, `dtypes` those of their results.
define_op(
    "_ElementwiseChain",
    "inputs: list:Tin",
    "output: Tout",
    [
        "Tin: list(type) >= 1",
        "Tout: type",
        "ops: list(string) >= 1",
        "operands: list(int)",
        "dtypes: list(type)",
        *_ORIGINS,
    ],
    made_by="compiler",
    traits=elementwise(cost=Cost("elementwise", _chain)),
)
define_op(
    "_FusedMatMul",
    "a: T, b: T, args: num_args*T",
    "product: T",
    ["transpose_a: bool = False", "transpose_b: bool = False", *_EPILOGUE],
    made_by="compiler",
    traits=product(cost=MATRIX_PRODUCT),
)
# (x - mean) * rsqrt(variance + epsilon) * scale + offset, along the last axis.
define_op(
    "_LayerNorm",
    "x: T, scale: T, offset: T",
    "y: T",
    ["T: {float32}", "epsilon: float"],
    made_by="compiler",
    traits=reduction(cost=reading(4)),
)
# A product of `a` less the zero point, if there is one (a scalar), and `b`, both converted to `T`.
for _name in ("_IntegerMatMul", "_IntegerBatchMatMulV2"):
    define_op(
        _name,
        "a: Ta, b: Tb, zeros: num_zeros*T",
        "product: T",
        [
            "Ta: {int8, uint8}",
            "Tb: {int8, uint8, float32, float64}",
            "T: {float32, float64}",
            "num_zeros: int >= 0",
            *_ORIGINS,
        ],
        made_by="compiler",
        traits=product(cost=MATRIX_PRODUCT),
    )
_WINDOWS: Final = [
    "strides: list(int)",
    "padding: {'SAME', 'VALID', 'EXPLICIT'}",
    "explicit_paddings: list(int) = []",
    "data_format: {'NHWC', 'NCHW'} = 'NHWC'",
    "dilations: list(int) = [1, 1, 1, 1]",
]
for _name, _cost in (("_FusedConv2D", convolution(-1, 1)), ("_FusedDepthwiseConv2dNative", depthwise(-1, 1))):
    define_op(
        _name,
        "input: T, filter: T, args: num_args*T",
        "output: T",
        [*_WINDOWS, *_EPILOGUE],
        made_by="compiler",
        traits=product(cost=_cost),
    )

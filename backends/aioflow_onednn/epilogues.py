"""The operations after a product in a fused node (its epilogue), apart from the bias, which the primitive adds.

They are applied to each part of the result while that is in the cache, or by the primitive itself. They may read
another array of the result's shape, the residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from aioflow.kernels.fused import epilogue_of, operands_of
from aioflow.kernels.registry import Binding
from aioflow.memory.values import Array
from aioflow.ops.fused import ORIGINS
from aioflow_numpy.fused_blocks import BlockChain
from aioflow_onednn.codes import Algorithm
from aioflow_onednn.filters import PackedFilter
from aioflow_onednn.forward import Activated
from aioflow_onednn.library import PostOps
from aioflow_onednn.primitives import Finish

_BIAS: Final = "BiasAdd"
# Activations that oneDNN applies before it writes a result; bits are the same except for NaN (`forward.Activated`).
_ACTIVATIONS: Final = {
    "Relu": PostOps(Algorithm.ELTWISE_RELU),
    "Relu6": PostOps(Algorithm.ELTWISE_CLIP, 0.0, 6.0),
}
_SWISH: Final = PostOps(Algorithm.ELTWISE_SWISH, 1.0)  # results in NaN wherever NumPy's does
_SUMS: Final = frozenset({"Add", "AddV2"})
_MOST: Final = 2  # maximum arguments: bias and residual


def without_bias(binding: Binding) -> Binding | None:
    """Return the fused node as if its product included the bias.

    Return None if the epilogue does not have the form that the optimizer writes: at most one bias, as the first
    operation, and a residual only after it.
    """
    ops, operands, count = tuple(binding.attrs["fused_ops"]), operands_of(binding.attrs), binding.attrs["num_args"]
    if not count and _BIAS not in ops:
        return binding
    if ops[:1] != (_BIAS,) or _BIAS in ops[1:] or count > _MOST:
        return None
    # Value 0 is the product and value 1 the bias. No later operation may read either of them.
    if operands[:2] != [0, 1] or {0, 1} & set(operands[2:]):
        return None
    # One argument fewer, and the result of the bias is value 0.
    values = {1 + count: 0} | {value: value - (1 if value <= count else 2) for value in operands if value != 1 + count}
    attrs: dict[str, Any] = {**binding.attrs, "num_args": count - 1, "fused_ops": ops[1:]}
    attrs["operands"] = [values[value] for value in operands[2:]]
    attrs |= {name: [attrs[name][0], *attrs[name][2:]] for name in ORIGINS}
    inputs: dict[str, Any] = {name: (*known[:2], *known[3:]) for name, known in _inputs(binding)}
    return replace(binding, attrs=attrs, **inputs)


def _inputs(binding: Binding) -> Sequence[tuple[str, tuple[Any, ...]]]:
    """Return the known properties of the inputs."""
    return [(name, getattr(binding, name)) for name in ("input_dtypes", "input_dims", "constants")]


def finish_of(rest: Binding) -> Finish | None:
    """Return the epilogue of a node without bias, or None if there is no epilogue.

    The epilogue updates a part of the result in place, from the same part of the residual.
    """
    epilogue = epilogue_of(rest)
    if epilogue is None:
        return None
    blocks = BlockChain(epilogue)

    def finish(block: Array, *others: Array) -> None:
        made = blocks.run((block, *others), block, threads=False)
        # `run` writes to `block` only where that is possible.
        if made is not block:
            block[...] = made

    return finish


def activated_of(rest: Binding, kernel: PackedFilter | None, biases: Sequence[Array | None]) -> Activated | None:
    """Return the epilogue as an operation of oneDNN, or None if oneDNN does not support it.

    Args:
        rest: A node without bias.
        kernel: Filter of its convolution, if that is constant.
        biases: Bias of its convolution, if there is one; None if it is not constant.
    """
    ops, operands, count = tuple(rest.attrs["fused_ops"]), operands_of(rest.attrs), rest.attrs["num_args"]
    # The swish function, x * sigmoid(x), with the product of the convolution as x.
    if ops == ("Sigmoid", "Mul") and not count and sorted(operands) == [0, 0, 1]:
        return Activated(_SWISH)
    adds = bool(count)
    if adds:
        # The first operation adds the residual, value 1; the one after it reads only that sum, value 2.
        if ops[0] not in _SUMS or sorted(operands[:2]) != [0, 1] or operands[2:] != [2] * len(ops[1:]):
            return None
        ops = ops[1:]
        if not ops:
            return Activated(PostOps(None, adds=True))
    activation = _ACTIVATIONS.get(ops[0]) if len(ops) == 1 else None
    if activation is None or kernel is None or any(bias is None for bias in biases):
        return None
    return Activated(activation._replace(adds=adds), kernel, biases[0] if biases else None)

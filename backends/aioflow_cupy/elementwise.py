"""Chains of elementwise ops as one generated kernel: each element is read once and written once.

The optimizer's `_ElementwiseChain` is a straight-line program of ops (`aioflow.kernels.fused`). Here it becomes a CuPy
`ElementwiseKernel` in CUDA C, one line per op. CuPy broadcasts the inputs, and compiles the kernel for their dtypes.
Every value has the dtype of the single op's output, so a fused chain rounds where the separate ops would. A chain with
an op that has no form in C (`Traits.in_c`) runs op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.kernels.fused import Chain, chain_of
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array

_C_TYPES: Final = {
    dtypes.float32: "float",
    dtypes.float64: "double",
    dtypes.float16: "float16",
    dtypes.bool_: "bool",
}


def program(chain: Chain, inputs: Sequence[DType]) -> str | None:
    """Return the body of the kernel, which reads a0, a1, … and sets y, or None if an op or dtype has no C form here."""
    known = list(inputs)
    names = [f"a{i}" for i in range(len(inputs))]
    lines: list[str] = []
    for at, member in enumerate(chain.members):
        expression, own = traits_of(member.op).in_c, known[member.operands[0]]
        if not expression or own not in _C_TYPES or member.dtype not in _C_TYPES:
            return None
        # Half precision has no functions of its own: C's functions use float, and the assignment rounds.
        text = expression.format(*(names[value] for value in member.operands)).replace("(T)", f"({_C_TYPES[own]})")
        # `y` has the output's dtype. Variables with the dtypes of the ops round each value as the ops would.
        target = "y" if at == len(chain.members) - 1 else f"{_C_TYPES[member.dtype]} v{at}"
        lines.append(f"{target} = {text};")
        names.append(f"v{at}")
        known.append(member.dtype)
    return "\n".join(lines)


@binder("_ElementwiseChain", device="GPU", dtypes={"Tout": "numbers bool"}, fresh=True)
def elementwise_chain(binding: Binding) -> Callable[[Sequence[Array]], Array]:
    chain = chain_of(binding)
    text = program(chain, binding.input_dtypes)
    make = getattr(binding.xp, "ElementwiseKernel", None)
    if text is None or make is None or any(t not in _C_TYPES for t in binding.input_dtypes):
        return chain
    parameters = ", ".join(f"{dtype.name} a{i}" for i, dtype in enumerate(binding.input_dtypes))
    kernel = make(parameters, f"{binding.output_dtypes[0].name} y", text, f"aioflow_chain_{len(chain.members)}")

    def fused(inputs: Sequence[Array]) -> Array:
        try:
            found: Array = kernel(*inputs)
            return found
        # The shapes do not broadcast. Op by op, the error names the node.
        except ValueError as error:
            chain(inputs)
            raise InvalidArgumentError("the shapes of a fused chain do not broadcast") from error

    return fused

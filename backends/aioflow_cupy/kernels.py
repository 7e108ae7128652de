"""Kernels of the GPU device that differ from the portable ones.

Many check nothing, because the host would have to wait for the device to look at a value. As TensorFlow documents for
GPUs, an index that is out of bounds gathers zeros, and a label that is out of bounds produces NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import check_axis
from aioflow.kernels.array import indexing as array_index
from aioflow.kernels.convert import as_int
from aioflow.kernels.fused import Chain, chain_of
from aioflow.kernels.nn.activations import narrow, softmax_parts
from aioflow.kernels.registry import ANY_DEVICE, KERNELS, Binding, KernelBody, binder
from aioflow.kernels.resources import VariableResource
from aioflow.kernels.variables import state
from aioflow.memory.values import Array, Namespace

_NUMERIC: Final = "numbers bool"  # strings stay on the CPU
_HALVES: Final = {"T": "float16 bfloat16"}

# ── products of half precision, which cuBLAS itself sums in float32 ───────────────────────────────────────────────────


@binder("MatMul", device="GPU", dtypes=_HALVES, fresh=True)
def matmul(binding: Binding) -> Callable[[Array, Array], Array]:
    xp, turn_a, turn_b = binding.xp, binding.attrs["transpose_a"], binding.attrs["transpose_b"]

    def product(a: Array, b: Array) -> Array:
        left, right = (a.T if turn_a else a), (b.T if turn_b else b)
        if a.ndim != 2 or b.ndim != 2 or left.shape[1] != right.shape[0]:
            raise _no_product(a, b, "rank 2 and equal inner sizes")
        return xp.matmul(left, right).astype(a.dtype, copy=False)

    return product


@binder("BatchMatMul", device="GPU", dtypes=_HALVES, fresh=True)
@binder("BatchMatMulV2", device="GPU", dtypes=_HALVES, fresh=True)
def batch_matmul(binding: Binding) -> Callable[[Array, Array], Array]:
    xp, turn_x, turn_y = binding.xp, binding.attrs["adj_x"], binding.attrs["adj_y"]
    same = binding.op_type == "BatchMatMul"

    def product(x: Array, y: Array) -> Array:
        if x.ndim < 2 or y.ndim < 2 or (same and x.shape[:-2] != y.shape[:-2]):
            raise _no_product(x, y, "rank >= 2" + (" and equal batches" if same else ""))
        left, right = (x.swapaxes(-1, -2) if turn_x else x), (y.swapaxes(-1, -2) if turn_y else y)
        # Batches broadcast from the last axis on; the longer one has no counterpart for its first axes.
        pairs = zip(reversed(x.shape[:-2]), reversed(y.shape[:-2]), strict=False)
        if left.shape[-1] != right.shape[-2] or any(a != b and 1 not in (a, b) for a, b in pairs):
            raise _no_product(x, y, "equal inner sizes, and batches that broadcast")
        return xp.matmul(left, right).astype(x.dtype, copy=False)

    return product


def _no_product(a: Array, b: Array, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the operands cannot be multiplied as matrices", expected=expected, actual=f"{a.shape} times {b.shape}"
    )


# ── access by index, without a look at the indices ────────────────────────────────────────────────────────────────────


def _pick(xp: Namespace, params: Array, indices: Array, axis: int) -> Array:
    """Return the elements along an axis, zeros where the index is out of bounds."""
    limit = params.shape[axis]
    if not limit:
        return xp.zeros(params.shape[:axis] + indices.shape + params.shape[axis + 1 :], params.dtype)
    inside = (indices >= 0) & (indices < limit)
    # Index 0 exists, since the axis is not empty here.
    picked = params.take(xp.where(inside, indices, 0), axis)
    # The mask has the shape of the indices, and is broadcast over the axes before and after.
    wide = (None,) * axis + (...,) + (None,) * (params.ndim - axis - 1)
    return xp.where(inside[wide], picked, params.dtype.type(0))


@binder("Gather", device="GPU", dtypes={"Tparams": _NUMERIC}, fresh=True)
def gather(binding: Binding) -> Callable[[Array, Array], Array]:
    xp = binding.xp
    return lambda params, indices: _pick(xp, params, indices, check_axis(0, params.ndim))


@binder("GatherV2", device="GPU", dtypes={"Tparams": _NUMERIC}, host={"axis": as_int}, fresh=True)
def gather_v2(binding: Binding) -> KernelBody:
    xp = binding.xp
    if binding.attrs["batch_dims"]:
        return array_index.gather_v2(binding)
    return lambda params, indices, axis: _pick(xp, params, indices, check_axis(axis, params.ndim))


@binder("ResourceGather", device="GPU", dtypes={"dtype": _NUMERIC}, fresh=True, takes=VariableResource)
def resource_gather(binding: Binding) -> Callable[[VariableResource, Array], Array]:
    xp = binding.xp
    if binding.attrs["batch_dims"]:
        return state.gather(binding)

    def read(resource: VariableResource, indices: Array) -> Array:
        value = resource.read()
        if value.ndim == 0:
            raise InvalidArgumentError(f"variable {resource.name} has no rows", expected="rank >= 1", actual="rank 0")
        return _pick(xp, value, indices, 0)

    return read


@binder("OneHot", device="GPU", dtypes={"T": _NUMERIC}, host={"depth": as_int}, fresh=True)
def one_hot(binding: Binding) -> KernelBody:
    xp, dtype, axis = binding.xp, binding.output_dtypes[0].np_dtype, binding.attrs["axis"]

    def encode(indices: Array, depth: int, on_value: Array, off_value: Array) -> Array:
        if depth < 0:
            raise InvalidArgumentError("the depth of one_hot is negative", expected="depth >= 0", actual=depth)
        hot = indices[..., None] == xp.arange(depth, dtype=indices.dtype)
        result = xp.where(hot, on_value, off_value).astype(dtype, copy=False)
        return result if axis in (-1, indices.ndim) else xp.moveaxis(result, -1, axis)

    return encode


@binder("SparseSoftmaxCrossEntropyWithLogits", device="GPU", fresh=True)
def sparse_cross_entropy(binding: Binding) -> Callable[[Array, Array], tuple[Array, Array]]:
    xp, parts = binding.xp, softmax_parts(binding.xp)

    def body(features: Array, labels: Array) -> tuple[Array, Array]:
        if features.ndim != 2 or labels.shape != features.shape[:1] or not features.shape[1]:
            raise InvalidArgumentError(
                "logits must be a matrix, with one label per row",
                expected="(batch, classes >= 1) and (batch,)",
                actual=f"{features.shape} and {labels.shape}",
            )
        batch, classes = features.shape
        inside = (labels >= 0) & (labels < classes)
        chosen = xp.where(inside, labels, 0)
        shifted, backprop, total = parts(features)
        rows = xp.arange(batch)
        nan = backprop.dtype.type(np.nan)
        # -log softmax(x)[label] = log(sum(exp(x - max))) - (x[label] - max)
        loss = xp.where(inside, xp.log(total[:, 0]) - shifted[rows, chosen], nan)
        # The gradient is softmax(x) - one_hot(label).
        backprop /= total
        backprop[rows, chosen] -= backprop.dtype.type(1)
        backprop = xp.where(inside[:, None], backprop, nan)
        return narrow(loss, features.dtype), narrow(backprop, features.dtype)

    return body


# ── special functions, which CuPy has as single kernels ───────────────────────────────────────────────────────────────

_SPECIAL: Final = {
    "Erf": "erf",
    "Erfc": "erfc",
    "Erfinv": "erfinv",
    "Ndtri": "ndtri",
    "Lgamma": "gammaln",
    "Digamma": "digamma",
    "Zeta": "zeta",
}


def _special(binding: Binding) -> KernelBody:
    dtype = binding.output_dtypes[0].np_dtype
    found = getattr(getattr(binding.backend, "special", None), _SPECIAL[binding.op_type], None)
    if found is None:
        portable = next(k for k in KERNELS.for_op(binding.op_type) if k.device_type == ANY_DEVICE)
        return portable.bind(binding)
    # Half precision is computed in float32 and rounded once.
    wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)

    def body(*inputs: Array) -> Array:
        result: Array = found(*(x.astype(wide, copy=False) for x in inputs)).astype(dtype, copy=False)
        return result

    return body


for _op in _SPECIAL:
    binder(_op, device="GPU", fresh=True)(_special)


# ── chains of elementwise ops as one generated kernel: each element is read once and written once ─────────────────────
#
# The optimizer's `_ElementwiseChain` is a straight-line program of ops (`aioflow.kernels.fused`). Here it becomes a
# CuPy `ElementwiseKernel` in CUDA C, one line per op. CuPy broadcasts the inputs, and compiles the kernel for their
# dtypes. Every value has the dtype of the single op's output, so a fused chain rounds where the separate ops would. A
# chain with an op that has no form in C (`Traits.in_c`) runs op by op.


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

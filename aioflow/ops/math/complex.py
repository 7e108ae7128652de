"""Complex numbers and their parts, absolute values, and casts between dtypes."""

from __future__ import annotations

import builtins
from typing import Any, Final, overload

import numpy as np

from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import define_op
from aioflow.graph.static_value import known_by, moving
from aioflow.graph.tensor_like import DenseLike
from aioflow.graph.traits import ANY, NUMBERS, WRITING, Laws, elementwise
from aioflow.memory.values import Array
from aioflow.ops import row_values
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.core import unchanged
from aioflow.ops.math.broadcasting import GradientPair, broadcast, same_dtype, unbroadcast
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.tensor import SparseTensor

__all__ = [
    "abs",
    "angle",
    "cast",
    "complex",
    "conj",
    "imag",
    "real",
    "saturate_cast",
    "to_bfloat16",
    "to_complex64",
    "to_complex128",
    "to_double",
    "to_float",
    "to_int32",
    "to_int64",
]

_TO_REAL: Final = ["T: {complexes} = complex64", "Tout: {float32, float64} = float32"]


def _cast_value(op: Operation, inputs: list[Array]) -> Array | None:
    wanted = op.outputs[0].dtype.np_dtype
    if inputs[0].dtype.kind != "O":
        return inputs[0].astype(wanted)
    # An array of objects is a shape that is known in part, with None for unknown sizes.
    return None if any(not isinstance(v, int | None) for v in inputs[0].reshape(-1)) else inputs[0]


define_op(
    "Cast",
    "x: SrcT",
    "y: DstT",
    ["SrcT: type", "DstT: type", "Truncate: bool = False"],
    shape=unchanged,
    value=moving(_cast_value),
    rows=row_values.converted,
    traits=elementwise(cost=WRITING, fuses=ANY),
)
define_op(
    "Complex",
    "real: T, imag: T",
    "out: Tout",
    ["T: {float32, float64} = float32", "Tout: {complexes} = complex64"],
    shape=broadcast,
    traits=elementwise(),
)
define_op("Real", "input: T", "output: Tout", _TO_REAL, shape=unchanged, traits=elementwise())
define_op("Imag", "input: T", "output: Tout", _TO_REAL, shape=unchanged, traits=elementwise())
define_op("Angle", "input: T", "output: Tout", _TO_REAL, shape=unchanged, traits=elementwise())
define_op("ComplexAbs", "x: T", "y: Tout", _TO_REAL, shape=unchanged, traits=elementwise())
define_op(
    "Conj", "input: T", "output: T", ["T: {complexes, variant} = complex64"], shape=unchanged, traits=elementwise()
)
define_op(
    "Abs",
    "x: T",
    "y: T",
    ["T: {floats, int8, int16, int32, int64}"],
    shape=unchanged,
    value=known_by(np.abs),
    traits=elementwise(in_c="fabs({0})", fuses=NUMBERS, laws=Laws(idempotent=True)),
)


@gradient("Cast", takes_slices=True)
def _cast_grad(op: Operation, grad: Tensor) -> Tensor | None:
    source: DType = op.get_attr("SrcT")
    target: DType = op.get_attr("DstT")
    # Gradients flow only between dtypes that have gradients themselves.
    if all((t.is_floating and not t.is_narrow) or t.is_complex for t in (source, target)):
        result: Tensor = cast(grad, source)
        return result
    return None


@gradient("Complex")
def _complex_grad(op: Operation, grad: Tensor) -> GradientPair:
    # z = x + i y: ∂z/∂x = 1 and ∂z/∂y = i, whose conjugate selects the imaginary part of the gradient.
    return unbroadcast(op.inputs[0], op.inputs[1], real(grad), imag(grad))


@gradient("Real")
def _real_grad(op: Operation, grad: Tensor) -> Tensor:
    return complex(grad, convert_to_tensor(0, grad.dtype))


@gradient("Imag")
def _imag_grad(op: Operation, grad: Tensor) -> Tensor:
    return complex(convert_to_tensor(0, grad.dtype), grad)


@gradient("Angle")
def _angle_grad(op: Operation, grad: Tensor) -> Tensor:
    """Return i z / |z|² for z = input, computed as -1 / (Im z + i Re z), times the gradient."""
    z = op.inputs[0]
    turned = complex(imag(z), real(z))
    return make("Neg", make("RealDiv", complex(grad, convert_to_tensor(0, grad.dtype)), turned))


@gradient("Conj")
def _conj_grad(op: Operation, grad: Tensor) -> Tensor:
    return conj(grad)


@gradient("ComplexAbs")
def _complex_abs_grad(op: Operation, grad: Tensor) -> Tensor:
    """Return z / |z|, and 0 at 0, times the gradient."""
    zero = convert_to_tensor(0, grad.dtype)
    scaled = make("Mul", complex(grad, zero), op.inputs[0])
    return make("DivNoNan", scaled, complex(op.outputs[0], zero))


@gradient("Abs")
def _abs_grad(op: Operation, grad: Tensor) -> Tensor:
    # |x|' = sign x, and 0 at 0.
    return make("Mul", grad, make("Sign", op.inputs[0]))


@overload
def abs(x: TensorLike, name: str | None = None) -> Tensor: ...


@overload
def abs(x: SparseTensor, name: str | None = None) -> SparseTensor: ...


def abs(x: Any, name: str | None = None) -> Any:
    """Return |x|; a real tensor for complex dtypes."""
    if isinstance(x, SparseTensor):
        return x.with_values(abs(x.values, name))
    tensor = convert_to_tensor(x)
    if tensor.dtype.is_complex:
        return _to_real("ComplexAbs", tensor, name or "Abs")
    return make("Abs", tensor, name=name)


def _to_real(op_type: str, tensor: Tensor, name: str | None) -> Tensor:
    return make(op_type, tensor, Tout=tensor.dtype.real_dtype, name=name)


def complex(real: TensorLike, imag: TensorLike, name: str | None = None) -> Tensor:
    """Return real + i imag: complex64 for float32 parts, complex128 for float64 parts.

    Raises:
        DTypeError: the parts have an unsupported dtype, or different ones.
    """
    first, second = same_dtype(real, imag)
    wanted = {dtypes.float32: dtypes.complex64, dtypes.float64: dtypes.complex128}.get(first.dtype)
    if wanted is None:
        raise DTypeError(
            "the parts of a complex number must be floats", expected="float32 or float64", actual=repr(first)
        )
    return make("Complex", first, second, Tout=wanted, name=name)


def _numeric(x: TensorLike, what: str) -> Tensor:
    tensor = convert_to_tensor(x)
    if not tensor.dtype.is_numeric:
        raise DTypeError(f"{what} needs numbers", expected="a numeric dtype", actual=repr(tensor))
    return tensor


def real(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the real part; a real tensor unchanged."""
    tensor = _numeric(input, "real")
    return _to_real("Real", tensor, name) if tensor.dtype.is_complex else tensor


def imag(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the imaginary part; zeros for a real tensor."""
    tensor = _numeric(input, "imag")
    if tensor.dtype.is_complex:
        return _to_real("Imag", tensor, name)
    return make("ZerosLike", tensor, name=name)


def conj(x: TensorLike, name: str | None = None) -> Tensor:
    """Return the complex conjugate; a real tensor unchanged."""
    tensor = _numeric(x, "conj")
    if not tensor.dtype.is_complex:
        return tensor
    return make("Conj", tensor, name=name)


def angle(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the argument of a complex number in (-π, π]; for real numbers 0, or π below 0."""
    tensor = _numeric(input, "angle")
    if tensor.dtype.is_complex:
        return _to_real("Angle", tensor, name)
    pi = np.asarray(np.pi).astype(tensor.dtype.np_dtype)
    below = make("Less", tensor, 0)
    return make("SelectV2", below, convert_to_tensor(pi), convert_to_tensor(0, tensor.dtype), name=name)


@overload
def cast(x: DenseLike, dtype: DTypeLike, name: str | None = None) -> Tensor: ...


@overload
def cast(x: IndexedSlices, dtype: DTypeLike, name: str | None = None) -> IndexedSlices: ...


@overload
def cast(x: SparseTensor, dtype: DTypeLike, name: str | None = None) -> SparseTensor: ...


def cast(
    x: TensorLike | SparseTensor, dtype: DTypeLike, name: str | None = None
) -> Tensor | IndexedSlices | SparseTensor:
    """Return x in a different dtype. IndexedSlices and a SparseTensor stay what they are.

    - Floats become integers by dropping the fraction.
    - Complex numbers become real by dropping the imaginary part.
    - Every number except 0 becomes True.

    Raises:
        DTypeError: there is no such dtype.
    """
    wanted = as_dtype(dtype)
    if isinstance(x, IndexedSlices):
        return IndexedSlices(cast(x.values, wanted, name), x.indices, x.dense_shape)
    if isinstance(x, SparseTensor):
        return x.with_values(cast(x.values, wanted, name))
    tensor = convert_to_tensor(x)
    if tensor.dtype is wanted:
        return tensor
    return make("Cast", tensor, DstT=wanted, name=name)


def saturate_cast(value: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """Like `cast`, but replace values outside the range of the new dtype by the nearest value in it."""
    wanted = as_dtype(dtype)
    tensor = _numeric(value, "saturate_cast")
    with name_scope(name, "saturate_cast", [tensor]):
        if tensor.dtype.is_complex and not wanted.is_complex:
            tensor = real(tensor)
        if not tensor.dtype.is_complex and wanted.is_numeric:
            low, high = _limits(tensor.dtype, wanted.real_dtype)
            if low is not None:
                tensor = make("Maximum", tensor, convert_to_tensor(low))
            if high is not None:
                tensor = make("Minimum", tensor, convert_to_tensor(high))
        result: Tensor = cast(tensor, wanted)
    return result


def _limits(source: DType, target: DType) -> tuple[np.generic | None, np.generic | None]:
    """Return the least and the greatest value of `target`, as values of `source`.

    None for a limit that no value of `source` exceeds.
    """
    least, greatest = _exact(target.min), _exact(target.max)
    low = _towards_zero(source, least) if _exact(source.min) < least else None
    high = _towards_zero(source, greatest) if _exact(source.max) > greatest else None
    return low, high


def _exact(value: Any) -> int | float:
    """Return a finite NumPy value as a Python number."""
    # Python compares ints with floats exactly; NumPy converts first, and rounds.
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _towards_zero(dtype: DType, limit: int | float) -> Any:
    if dtype.is_integer:
        return dtype.as_numpy_dtype(int(limit))
    nearest = dtype.as_numpy_dtype(float(limit))
    if builtins.abs(_exact(nearest)) > builtins.abs(limit):
        # Rounding to the nearest float may exceed the limit; the next float towards 0 does not.
        return np.nextafter(nearest, dtype.as_numpy_dtype(0.0))
    return nearest


def to_float(x: DenseLike, name: str = "ToFloat") -> Tensor:
    """Cast x to float32. See `cast`."""
    return cast(x, dtypes.float32, name)


def to_double(x: DenseLike, name: str = "ToDouble") -> Tensor:
    """Cast x to float64. See `cast`."""
    return cast(x, dtypes.float64, name)


def to_int32(x: DenseLike, name: str = "ToInt32") -> Tensor:
    """Cast x to int32. See `cast`."""
    return cast(x, dtypes.int32, name)


def to_int64(x: DenseLike, name: str = "ToInt64") -> Tensor:
    """Cast x to int64. See `cast`."""
    return cast(x, dtypes.int64, name)


def to_bfloat16(x: DenseLike, name: str = "ToBFloat16") -> Tensor:
    """Cast x to bfloat16. See `cast`."""
    return cast(x, dtypes.bfloat16, name)


def to_complex64(x: DenseLike, name: str = "ToComplex64") -> Tensor:
    """Cast x to complex64. See `cast`."""
    return cast(x, dtypes.complex64, name)


def to_complex128(x: DenseLike, name: str = "ToComplex128") -> Tensor:
    """Cast x to complex128. See `cast`."""
    return cast(x, dtypes.complex128, name)

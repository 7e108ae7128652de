"""Elementwise kernels that check shapes or values first, integer division, casts, and parts of complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

import numpy as np
import numpy.typing as npt

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType, bfloat16, float32
from aioflow.kernels.convert import as_sizes, broadcast_shape
from aioflow.kernels.narrowing import narrowed
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, ArrayFunction, Namespace, NpDType

_COMPARABLE: Final = {"T": "numbers bool string"}


def _equality(binding: Binding, compare: ArrayFunction, otherwise: bool) -> KernelBody:
    if binding.attrs["incompatible_shape_error"]:
        return compare

    def lenient(x: npt.ArrayLike, y: npt.ArrayLike) -> Array | np.bool_:
        try:
            broadcast_shape(np.shape(x), np.shape(y))
        except InvalidArgumentError:
            # Tensors whose shapes do not broadcast are unequal as a whole.
            return np.bool_(otherwise)
        return compare(x, y)

    return lenient


@binder("Equal", dtypes=_COMPARABLE, fresh=True, exact_c="{0} == {1}")
def equal(binding: Binding) -> KernelBody:
    return _equality(binding, binding.xp.equal, False)


@binder("NotEqual", dtypes=_COMPARABLE, fresh=True, exact_c="{0} != {1}")
def not_equal(binding: Binding) -> KernelBody:
    return _equality(binding, binding.xp.not_equal, True)


@kernel("ApproximateEqual", dtypes={"T": "numbers"}, fresh=True)
def approximate_equal(xp: Namespace, x: Array, y: Array, *, tolerance: float) -> Array:
    if x.shape != y.shape:
        raise InvalidArgumentError(
            "the operands of ApproximateEqual must have the same shape", expected=x.shape, actual=y.shape
        )
    # The difference of unsigned integers would wrap around.
    distance = xp.maximum(x, y) - xp.minimum(x, y) if x.dtype.kind == "u" else xp.absolute(x - y)
    return distance < tolerance


@binder("CheckNumerics", synchronises=True)
def check_numerics(binding: Binding) -> KernelBody:
    xp, message = binding.xp, binding.attrs["message"]

    def checked(tensor: Array) -> Array:
        if xp.isfinite(tensor).all():
            return tensor
        kinds = [name for name, found in (("Inf", xp.isinf(tensor)), ("NaN", xp.isnan(tensor))) if found.any()]
        raise InvalidArgumentError(
            f"{message} : Tensor had {' and '.join(kinds)} values", expected="finite values", actual=" and ".join(kinds)
        )

    return checked


# ── casts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@binder("Cast", dtypes={"SrcT": "numbers narrow bool", "DstT": "numbers narrow bool"}, fresh=True)
def cast(binding: Binding) -> KernelBody:
    source, target = binding.input_dtypes[0], binding.output_dtypes[0]
    if binding.attrs["Truncate"] and source.is_floating and target.is_floating and target.size < source.size:
        exact = source is float32 and target is bfloat16
        return partial(_upper_half if exact else _truncate, binding.xp, target.np_dtype)
    if source.is_narrow and target.is_narrow and source is not target:
        between = np.dtype(np.int32 if source.is_integer and target.is_integer else np.float32)  # holds both exactly
        return partial(_cast_by, between, target.np_dtype)
    if source.is_complex and not (target.is_complex or target.is_bool):
        return partial(_cast_real, target.np_dtype)
    return partial(_cast, target.np_dtype)


def _cast(dtype: NpDType, x: Array) -> Array:
    return narrowed(x, dtype)


def _cast_by(between: NpDType, dtype: NpDType, x: Array) -> Array:
    """Cast by way of another dtype, because NumPy has no casts between most narrow dtypes."""
    return narrowed(x.astype(between), dtype)


def _cast_real(dtype: NpDType, x: Array) -> Array:
    return x.real.astype(dtype)


def _truncate(xp: Namespace, dtype: NpDType, x: Array) -> Array:
    """Round towards zero."""
    nearest = x.astype(dtype)
    # Where rounding to nearest went away from 0, the neighbor towards 0 is the result.
    beyond = xp.isfinite(nearest) & (xp.absolute(nearest.astype(x.dtype)) > xp.absolute(x))
    return xp.where(beyond, xp.nextafter(nearest, dtype.type(0)), nearest)[()]


def _upper_half(xp: Namespace, dtype: NpDType, x: Array) -> Array:
    """Return the upper 16 bits of a float32, which form a bfloat16."""
    array = xp.asarray(x)
    bits = (array.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    # A NaN may have all its payload bits in the lower half, and would become infinite.
    return xp.where(xp.isnan(array), np.uint16(0x7FC0), bits).view(dtype)[()]


# ── complex numbers ───────────────────────────────────────────────────────────────────────────────────────────────────


@binder("Complex", fresh=True)
def make_complex(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, _output(binding).np_dtype

    def join(real: Array, imag: Array) -> Array:
        result = xp.empty(broadcast_shape(real.shape, imag.shape), dtype)
        result.real = real
        result.imag = imag
        return result[()]

    return join


@binder("Real", fresh=True)
def real(binding: Binding) -> KernelBody:
    dtype = _output(binding).np_dtype
    return lambda x: x.real.astype(dtype)


@binder("Imag", fresh=True)
def imag(binding: Binding) -> KernelBody:
    dtype = _output(binding).np_dtype
    return lambda x: x.imag.astype(dtype)


@binder("Angle", fresh=True)
def angle(binding: Binding) -> KernelBody:
    arctan2, dtype = binding.xp.arctan2, _output(binding).np_dtype
    return lambda x: arctan2(x.imag, x.real).astype(dtype, copy=False)


@binder("ComplexAbs", fresh=True, takes_out=True)
def complex_abs(binding: Binding) -> KernelBody:
    absolute = binding.xp.absolute
    made = _output(binding)
    if made is binding.input_dtypes[0].real_dtype:
        return absolute

    def converted(x: Array, out: Array | None = None) -> Array:
        size = absolute(x).astype(made.np_dtype)
        if out is None:
            return size
        out[...] = size
        return out

    return converted


def _output(binding: Binding) -> DType:
    return binding.output_dtypes[0]


# ── broadcasting of shapes ────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=1024)
def _gradient_axes(s0: tuple[int, ...], s1: tuple[int, ...], dtype: NpDType) -> tuple[Array, Array]:
    broadcast_shape(s0, s1)
    rank = max(len(s0), len(s1))
    padded = [(1,) * (rank - len(s)) + s for s in (s0, s1)]
    # Between equal shapes nothing is summed, even where a size is 1.
    axes = [[] if s0 == s1 else [i for i, size in enumerate(shape) if size == 1] for shape in padded]
    results = [np.array(a, dtype) for a in axes]
    for result in results:
        result.flags.writeable = False  # cached, so shared by all steps with the same shapes
    return results[0], results[1]


@binder("BroadcastGradientArgs", host={"s0": as_sizes, "s1": as_sizes}, host_results=True)
def broadcast_gradient_args(binding: Binding) -> KernelBody:
    dtype = _output(binding).np_dtype
    return lambda s0, s1: _gradient_axes(s0, s1, dtype)


@binder("BroadcastArgs", host={"s0": as_sizes, "s1": as_sizes}, fresh=True, host_results=True)
def broadcast_args(binding: Binding) -> KernelBody:
    dtype = _output(binding).np_dtype
    return lambda s0, s1: np.array(broadcast_shape(s0, s1), dtype)


# ── integer division, remainders and shifts, where the hardware may leave the result undefined ────────────────────────


def _truncated(xp: Namespace, x: Array, y: Array) -> Array:
    """Return x / y rounded towards zero."""
    # fmod has the sign of x, and x minus it divides evenly.
    return xp.floor_divide(xp.subtract(x, xp.fmod(x, y)), y)


def _division(binding: Binding, divide: Callable[..., Array]) -> KernelBody:
    divisor = binding.constants[1]
    if divisor is not None and divisor.all():
        return divide

    def checked(x: Array, y: Array) -> Array:
        result = divide(x, y)
        if result.size and not y.all():
            raise InvalidArgumentError("integer division by zero", expected="a divisor other than 0", actual=0)
        return result

    return checked


@binder("FloorDiv", dtypes={"T": "ints"}, fresh=True, synchronises=True)
def floor_div(binding: Binding) -> KernelBody:
    return _division(binding, binding.xp.floor_divide)


@binder("FloorMod", dtypes={"T": "ints"}, fresh=True, synchronises=True)
def floor_mod(binding: Binding) -> KernelBody:
    return _division(binding, binding.xp.remainder)


@binder("Div", dtypes={"T": "ints"}, fresh=True, synchronises=True)
@binder("TruncateDiv", dtypes={"T": "ints"}, fresh=True, synchronises=True)
def truncate_div(binding: Binding) -> KernelBody:
    if binding.output_dtypes[0].is_unsigned:
        return _division(binding, binding.xp.floor_divide)
    return _division(binding, partial(_truncated, binding.xp))


@binder("Mod", dtypes={"T": "int32 int64"}, fresh=True, synchronises=True)
@binder("TruncateMod", dtypes={"T": "int32 int64"}, fresh=True, synchronises=True)
def truncate_mod(binding: Binding) -> KernelBody:
    return _division(binding, binding.xp.fmod)


def _shift(binding: Binding, shift: Callable[..., Array]) -> KernelBody:
    xp, last = binding.xp, 8 * binding.output_dtypes[0].size - 1
    amount = binding.constants[1]
    if amount is not None and ((amount >= 0) & (amount <= last)).all():
        return shift

    def limited(x: Array, y: Array) -> Array:
        # In C a shift by a negative amount, or by the width of the number or more, is undefined.
        return shift(x, xp.minimum(xp.maximum(y, 0), last))

    return limited


@binder("LeftShift", fresh=True)
def left_shift(binding: Binding) -> KernelBody:
    return _shift(binding, binding.xp.left_shift)


@binder("RightShift", fresh=True)
def right_shift(binding: Binding) -> KernelBody:
    return _shift(binding, binding.xp.right_shift)

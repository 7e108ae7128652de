"""Discrete Fourier transforms of complex and of real numbers, over the last one, two or three axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.costs import Cost, Operand
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import product
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.static_shapes import shape_of

__all__ = ["fft", "fft2d", "fft3d", "ifft", "ifft2d", "ifft3d"]  # the others are public in `aioflow.signal` only

_COMPLEX: Final = ["Tcomplex: {complexes} = complex64"]
_REAL: Final = ["Treal: {float32, float64} = float32", *_COMPLEX]


def _work(_: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return n log n, with the logarithm of the total number of elements instead of the length of an axis."""
    elements = float(inputs[0].elements)
    return elements * math.log2(elements + 2)


_COST: Final = Cost("elementwise", _work, 4.0)


def _rank_at_least(ctx: ShapeContext, rank: int) -> Dims:
    dims = ctx.dims("input")
    if dims is not None and len(dims) < rank:
        raise InvalidArgumentError("the input has too few axes", expected=f"rank >= {rank}", actual=format_dims(dims))
    return dims


def _same(rank: int) -> Callable[[ShapeContext], Dims]:
    return lambda ctx: _rank_at_least(ctx, rank)


def _by_length(rank: int, halved: bool) -> Callable[[ShapeContext], Dims]:
    """Return the shape function of a transform with `fft_length`, which sets the sizes of the last axes.

    If `halved`, the last axis has the size n // 2 + 1.
    """

    def shape(ctx: ShapeContext) -> Dims:
        dims = _rank_at_least(ctx, rank)
        ctx.require_rank("fft_length", 1)
        lengths = ctx.partial_shape("fft_length")
        lengths = (None,) * rank if lengths is None else lengths
        if len(lengths) != rank:
            raise InvalidArgumentError(
                "fft_length has a size for each axis", expected=f"{rank} sizes", actual=format_dims(lengths)
            )
        if dims is None:
            return None
        last = lengths[-1]
        # The transform of n real numbers has n // 2 + 1 independent numbers: the others are their conjugates.
        return (*dims[: len(dims) - rank], *lengths[:-1], last // 2 + 1 if halved and last else last)

    return shape


for _suffix, _rank in (("", 1), ("2D", 2), ("3D", 3)):
    for _name in (f"FFT{_suffix}", f"IFFT{_suffix}"):
        define_op(
            _name,
            "input: Tcomplex",
            "output: Tcomplex",
            _COMPLEX,
            shape=_same(_rank),
            traits=product(cost=_COST),
        )
    define_op(
        f"RFFT{_suffix}",
        "input: Treal, fft_length: int32",
        "output: Tcomplex",
        _REAL,
        shape=_by_length(_rank, True),
        traits=product(cost=_COST),
    )
    define_op(
        f"IRFFT{_suffix}",
        "input: Tcomplex, fft_length: int32",
        "output: Treal",
        _REAL,
        shape=_by_length(_rank, False),
        traits=product(cost=_COST),
    )


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parts(op: Operation) -> tuple[str, int]:
    """Return the suffix of the op's name, and the number of transformed axes."""
    suffix = op.type[-2:] if op.type.endswith("D") else ""
    return suffix, int(suffix[0]) if suffix else 1


def _scaled(x: Tensor, sizes: Tensor, inverse: bool) -> Tensor:
    """Multiply x by the product of the sizes, or divide it by that if `inverse`."""
    real = x.dtype.real_dtype
    size = make("Prod", make("Cast", sizes, DstT=real), 0)
    factor = make("Reciprocal", size) if inverse else size
    if x.dtype.is_complex:
        factor = make("Cast", factor, DstT=x.dtype)
    return make("Mul", x, factor)


def _last(sizes: Tensor, rank: int) -> Tensor:
    return make("StridedSlice", sizes, [-rank], [0], [1], end_mask=1)


@gradient("FFT", "FFT2D", "FFT3D")
def _fft_grad(op: Operation, grad: Tensor) -> Tensor:
    suffix, rank = _parts(op)
    # The adjoint of the transform F is n F⁻¹.
    return _scaled(make(f"IFFT{suffix}", grad), _last(shape_of(grad), rank), False)


@gradient("IFFT", "IFFT2D", "IFFT3D")
def _ifft_grad(op: Operation, grad: Tensor) -> Tensor:
    suffix, rank = _parts(op)
    # The adjoint of F⁻¹ is F / n.
    return _scaled(make(f"FFT{suffix}", grad), _last(shape_of(grad), rank), True)


@gradient("RFFT", "RFFT2D", "RFFT3D")
def _rfft_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Return the gradient of a full transform of which only a part of the result was kept."""
    suffix, rank = _parts(op)
    source, lengths = op.inputs
    # The part of the result that was not kept has no gradient.
    whole = _fitted(grad, lengths, rank)
    back = _scaled(make(f"IFFT{suffix}", whole), lengths, False)
    # The input is real, so only the real part of its gradient counts.
    real = make("Real", back, Tout=source.dtype)
    return [_fitted(real, _last(shape_of(source), rank), rank), None]


@gradient("IRFFT", "IRFFT2D", "IRFFT3D")
def _irfft_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Return the gradient of the inverse transform of real numbers."""
    suffix, rank = _parts(op)
    source, lengths = op.inputs
    forward = _scaled(make(f"RFFT{suffix}", grad, lengths, Tcomplex=source.dtype), lengths, True)
    # Each number also stands for its conjugate in the half that is not stored, so its gradient counts twice. Only the
    # first and the middle number have no counterpart.
    last = make("Reshape", _last(lengths, 1), [])
    place = make("Range", 0, make("AddV2", make("FloorDiv", last, 2), 1), 1)
    once = make("LogicalOr", make("Equal", place, 0), make("Equal", make("Mul", place, 2), last))
    weight = make("Sub", 2, make("Cast", once, DstT="int32"))
    doubled = make("Mul", forward, make("Cast", make("Cast", weight, DstT="float32"), DstT=source.dtype))
    return [_fitted(doubled, _last(shape_of(source), rank), rank), None]


def _fitted(x: Tensor, sizes: Tensor, rank: int) -> Tensor:
    """Truncate the last axes of x to these sizes, or pad them with zeros at the end."""
    shape = shape_of(x)
    own = _last(shape, rank)
    missing = make("Maximum", make("Sub", sizes, own), 0)
    batch = make("Sub", make("Size", shape), rank)
    # The axes in front of the transformed ones are not padded.
    ahead = make("Fill", make("Reshape", batch, [1]), 0)
    after = make("ConcatV2", [ahead, missing], 0)
    padded = make("Pad", x, make("Pack", [make("ZerosLike", after), after], axis=1))
    kept = make("ConcatV2", [make("Slice", shape, [0], make("Reshape", batch, [1])), sizes], 0)
    return make("Slice", padded, make("ZerosLike", kept), kept)


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def fft(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the discrete Fourier transform of complex numbers over the last axis.

    Raises:
        DTypeError: the input is not complex.
        InvalidArgumentError: the input has too few axes.
    """
    return make("FFT", input, name=name)


def ifft(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the inverse of `fft`."""
    return make("IFFT", input, name=name)


def fft2d(input: TensorLike, name: str | None = None) -> Tensor:
    """Apply `fft` over the last two axes."""
    return make("FFT2D", input, name=name)


def ifft2d(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the inverse of `fft2d`."""
    return make("IFFT2D", input, name=name)


def fft3d(input: TensorLike, name: str | None = None) -> Tensor:
    """Apply `fft` over the last three axes."""
    return make("FFT3D", input, name=name)


def ifft3d(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the inverse of `fft3d`."""
    return make("IFFT3D", input, name=name)


def rfft(input_tensor: TensorLike, fft_length: TensorLike | None = None, name: str | None = None) -> Tensor:
    """Return the first half, including the middle, of the Fourier transform of real numbers over the last axis.

    Args:
        input_tensor: float32 or float64.
        fft_length: [1]: the number of elements to transform. The input is truncated, or padded with zeros at its end.
        name: Name of the node.
    """
    return _real("RFFT", 1, input_tensor, fft_length, name)


def rfft2d(input_tensor: TensorLike, fft_length: TensorLike | None = None, name: str | None = None) -> Tensor:
    """Apply `rfft` over the last two axes."""
    return _real("RFFT2D", 2, input_tensor, fft_length, name)


def rfft3d(input_tensor: TensorLike, fft_length: TensorLike | None = None, name: str | None = None) -> Tensor:
    """Apply `rfft` over the last three axes."""
    return _real("RFFT3D", 3, input_tensor, fft_length, name)


def irfft(input_tensor: TensorLike, fft_length: TensorLike | None = None, name: str | None = None) -> Tensor:
    """Return the inverse of `rfft`: `fft_length` real numbers.

    By default the number is even: the halved transform does not determine whether it was.
    """
    return _real("IRFFT", 1, input_tensor, fft_length, name)


def irfft2d(input_tensor: TensorLike, fft_length: TensorLike | None = None, name: str | None = None) -> Tensor:
    """Return the inverse of `rfft2d`."""
    return _real("IRFFT2D", 2, input_tensor, fft_length, name)


def irfft3d(input_tensor: TensorLike, fft_length: TensorLike | None = None, name: str | None = None) -> Tensor:
    """Return the inverse of `rfft3d`."""
    return _real("IRFFT3D", 3, input_tensor, fft_length, name)


def _real(op: str, rank: int, given: TensorLike, length: TensorLike | None, name: str | None) -> Tensor:
    inverse = op.startswith("I")
    tensor = convert_to_tensor(given)
    if length is None:
        sizes = _last(shape_of(tensor), rank)
        if inverse:
            # m numbers come from 2m - 2 or from 2m - 1 elements; the even number is the default.
            factors, less = [1] * (rank - 1) + [2], [0] * (rank - 1) + [1]
            sizes = make("Maximum", make("Mul", make("Sub", sizes, less), factors), 0)
    else:
        sizes = convert_to_tensor(length, dtypes.int32)
    wide = dtypes.float64 in (tensor.dtype, tensor.dtype.real_dtype)
    kinds = {"Tcomplex": dtypes.complex128 if wide else dtypes.complex64}
    if inverse:
        kinds = {"Treal": dtypes.float64 if wide else dtypes.float32}
    return make(op, tensor, sizes, name=name, **kinds)

"""Initial values of variables, by shape and dtype: constants, random values, and random values scaled by a layer's fan.

Sources: Glorot and Bengio 2010 (AISTATS 9, eq. 16); He et al. 2015 (arXiv:1502.01852, eq. 10);
LeCun et al. 1998 (Efficient BackProp, 4.6); Saxe et al. 2014 (arXiv:1312.6120); Sussillo and Abbott 2014
(arXiv:1412.6558).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import ShapeLike, TensorShape, dims_of, format_dims
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops.apply import constant, make, make_list
from aioflow.ops.array.making import ones, zeros
from aioflow.ops.math.random import random_normal, random_uniform, truncated_normal
from aioflow.ops.variables.slices import PartitionInfo

__all__ = [
    "constant_initializer",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "ones_initializer",
    "orthogonal_initializer",
    "random_normal_initializer",
    "random_uniform_initializer",
    "truncated_normal_initializer",
    "uniform_unit_scaling_initializer",
    "variance_scaling_initializer",
    "zeros_initializer",
]

_TRUNCATED_STDDEV: Final = 0.87962566103423978  # of a standard normal truncated at two standard deviations

_Shape: TypeAlias = TensorShape | Sequence[int]


class Initializer:
    """A function that returns an initial value. `get_config` and `from_config` convert it to plain data and back."""

    fields: ClassVar[tuple[str, ...]] = ("dtype",)
    floating: ClassVar[bool] = False

    def __init__(self, dtype: DTypeLike = dtypes.float32) -> None:
        self.dtype: DType = self._checked(as_dtype(dtype))

    def _checked(self, dtype: DType) -> DType:
        if self.floating and not dtype.is_floating:
            raise DTypeError(
                f"{type(self).__name__} draws real numbers", expected="a floating dtype", actual=dtype.name
            )
        return dtype

    def __call__(
        self,
        shape: Any,
        dtype: DTypeLike | None = None,
        partition_info: PartitionInfo | None = None,
        verify_shape: bool | None = None,
    ) -> Tensor:
        """Return the initial value as a tensor of `shape`, in the initializer's dtype by default.

        Args:
            shape: Static shape of the tensor.
            dtype: Dtype of the tensor.
            partition_info: The position of the tensor in a larger variable.
            verify_shape: Whether a given value must have `shape` itself.

        Raises:
            InvalidArgumentError: the initializer does not fit the shape, or needs a known one.
            DTypeError: the initializer draws real numbers, and the dtype is not floating.
        """
        wanted = self.dtype if dtype is None else self._checked(as_dtype(dtype))
        if partition_info is not None:
            return self._make_part(shape, wanted, partition_info)
        return self._make(shape, wanted, bool(verify_shape))

    def _make_part(self, shape: _Shape, dtype: DType, part: PartitionInfo) -> Tensor:
        """Return the initial value of a part of a variable."""
        return self._make(shape, dtype, False)

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create an equal initializer, as plain data."""
        config = {field: getattr(self, field) for field in self.fields}
        return {key: value.name if isinstance(value, DType) else value for key, value in config.items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the initializer with the arguments in `config`: see `get_config`."""
        return cls(**config)


class Zeros(Initializer):
    """Zeros (False, or empty strings)."""

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        return zeros(shape, dtype)


class Ones(Initializer):
    """Ones (True)."""

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        return ones(shape, dtype)


class Constant(Initializer):
    """A given value: a scalar that fills the shape, or as many numbers as the shape holds.

    Args:
        value: The value.
        dtype: Default dtype.
        verify_shape: Whether the value must have the shape itself.
    """

    fields: ClassVar[tuple[str, ...]] = ("value", "dtype")

    def __init__(self, value: Any = 0, dtype: DTypeLike = dtypes.float32, verify_shape: bool = False) -> None:
        super().__init__(dtype)
        if not (np.isscalar(value) or isinstance(value, list | tuple | np.ndarray)):
            raise InvalidArgumentError("not a constant", expected="a number, a list or an array", actual=repr(value))
        self.value = value
        self._verify_shape = verify_shape

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        return constant(self.value, dtype, _sizes(shape), verify_shape=verify_shape or self._verify_shape)


class RandomUniform(Initializer):
    """Uniform random values from [minval, maxval). `maxval` is 1 by default for floats, and required for integers."""

    fields: ClassVar[tuple[str, ...]] = ("minval", "maxval", "seed", "dtype")

    def __init__(
        self,
        minval: Any = 0.0,
        maxval: Any = None,
        seed: int | None = None,
        dtype: DTypeLike = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        self.minval = minval
        self.maxval = maxval
        self.seed = seed

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        if dtype.is_integer:
            high = None if self.maxval is None else int(self.maxval)
            return random_uniform(shape, int(self.minval), high, dtype, self.seed)
        return random_uniform(shape, self.minval, self.maxval, dtype, self.seed)


class RandomNormal(Initializer):
    """Normally distributed random values."""

    fields: ClassVar[tuple[str, ...]] = ("mean", "stddev", "seed", "dtype")
    floating = True

    def __init__(
        self,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        seed: int | None = None,
        dtype: DTypeLike = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        self.mean = mean
        self.stddev = stddev
        self.seed = seed

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        return random_normal(shape, self.mean, self.stddev, dtype, self.seed)


class TruncatedNormal(RandomNormal):
    """Normally distributed random values; values off the mean by over two standard deviations are drawn again."""

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        return truncated_normal(shape, self.mean, self.stddev, dtype, self.seed)


class UniformUnitScaling(Initializer):
    """Uniform random values up to ±factor · √(3 / inputs), which preserve the variance in a linear layer."""

    fields: ClassVar[tuple[str, ...]] = ("factor", "seed", "dtype")
    floating = True

    def __init__(self, factor: float = 1.0, seed: int | None = None, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(dtype)
        self.factor = factor
        self.seed = seed

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        return self._draw(shape, dtype, shape)

    def _make_part(self, shape: _Shape, dtype: DType, part: PartitionInfo) -> Tensor:
        # Use the fan of the whole variable, so that partitioning does not change the distribution.
        return self._draw(shape, dtype, part.full_shape)

    def _draw(self, shape: _Shape, dtype: DType, whole: _Shape) -> Tensor:
        inputs = math.prod(max(size, 1) for size in _sizes(whole)[:-1])
        # A uniform distribution on [-a, a] has the variance a² / 3.
        limit = math.sqrt(3 / max(inputs, 1)) * self.factor
        return random_uniform(shape, -limit, limit, dtype, self.seed)


class VarianceScaling(Initializer):
    """Random values whose variance is `scale` over the fan.

    Args:
        scale: A positive number.
        mode: "fan_in", "fan_out" or "fan_avg".
        distribution: "normal" (the same as "truncated_normal"), "untruncated_normal" or "uniform".
        seed: Seed of the random values.
        dtype: Default dtype.
    """

    fields: ClassVar[tuple[str, ...]] = ("scale", "mode", "distribution", "seed", "dtype")
    floating = True

    def __init__(
        self,
        scale: float = 1.0,
        mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in",
        distribution: Literal["normal", "uniform", "truncated_normal", "untruncated_normal"] = "truncated_normal",
        seed: int | None = None,
        dtype: DTypeLike = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        if scale <= 0:
            raise InvalidArgumentError("`scale` must be positive", expected="> 0", actual=scale)
        _one_of("mode", mode, ("fan_in", "fan_out", "fan_avg"))
        _one_of("distribution", distribution, ("normal", "uniform", "truncated_normal", "untruncated_normal"))
        self.scale = scale
        self.mode = mode.lower()
        self.distribution = distribution.lower()
        self.seed = seed

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        return self._draw(shape, dtype, shape)

    def _make_part(self, shape: _Shape, dtype: DType, part: PartitionInfo) -> Tensor:
        # Use the fan of the whole variable, so that partitioning does not change the distribution.
        return self._draw(shape, dtype, part.full_shape)

    def _draw(self, shape: _Shape, dtype: DType, whole: _Shape) -> Tensor:
        fan_in, fan_out = _fans(_sizes(whole))
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, fan)
        if self.distribution in ("normal", "truncated_normal"):
            # Truncation makes the deviation smaller; the quotient makes up for it.
            return truncated_normal(shape, 0.0, math.sqrt(variance) / _TRUNCATED_STDDEV, dtype, self.seed)
        if self.distribution == "untruncated_normal":
            return random_normal(shape, 0.0, math.sqrt(variance), dtype, self.seed)
        # The variance of a uniform distribution on [-a, a] is a² / 3.
        limit = math.sqrt(3.0 * variance)
        return random_uniform(shape, -limit, limit, dtype, self.seed)


class GlorotUniform(VarianceScaling):
    """Uniform random values up to ±√(6 / (fan_in + fan_out))."""

    fields: ClassVar[tuple[str, ...]] = ("seed", "dtype")

    def __init__(self, seed: int | None = None, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Random values from a truncated normal distribution of variance 2 / (fan_in + fan_out)."""

    fields: ClassVar[tuple[str, ...]] = ("seed", "dtype")

    def __init__(self, seed: int | None = None, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "truncated_normal", seed, dtype)


class Orthogonal(Initializer):
    """A random matrix with orthonormal rows or columns, times `gain`. Leading dimensions are flattened to rows."""

    fields: ClassVar[tuple[str, ...]] = ("gain", "seed", "dtype")
    floating = True

    def __init__(self, gain: float = 1.0, seed: int | None = None, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(dtype)
        self.gain = gain
        self.seed = seed

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        sizes = _sizes(shape)
        if len(sizes) < 2:
            raise InvalidArgumentError(
                "an orthogonal initializer needs at least two dimensions", expected="rank >= 2", actual=tuple(sizes)
            )
        rows, columns = math.prod(sizes[:-1]), sizes[-1]
        # The draws form a tall matrix, so that q has orthonormal columns; a wide result is its transpose.
        draws = random_normal([max(rows, columns), min(rows, columns)], dtype=dtype, seed=self.seed)
        q, r = make_list("Qr", draws)
        # The factorization is unique only up to signs. The signs of the diagonal of r make the distribution uniform.
        signed = make("Mul", q, make("Sign", make("MatrixDiagPart", r)))
        matrix = make("Transpose", signed, [1, 0]) if rows < columns else signed
        return make("Mul", constant(self.gain, dtype), make("Reshape", matrix, sizes))


class Identity(Initializer):
    """The identity matrix times `gain`."""

    fields: ClassVar[tuple[str, ...]] = ("gain", "dtype")
    floating = True

    def __init__(self, gain: float = 1.0, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(dtype)
        self.gain = gain

    def _make(self, shape: _Shape, dtype: DType, verify_shape: bool) -> Tensor:
        sizes = _sizes(shape)
        if len(sizes) != 2:
            raise InvalidArgumentError(
                "an identity matrix needs two dimensions", expected="rank 2", actual=tuple(sizes)
            )
        return constant(np.eye(sizes[0], sizes[1]) * self.gain, dtype, name="eye")

    def _make_part(self, shape: _Shape, dtype: DType, part: PartitionInfo) -> Tensor:
        # A part of an identity matrix has only a part of the diagonal.
        return make("Slice", self._make(part.full_shape, dtype, False), part.var_offset, _sizes(shape))


zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_uniform_initializer = RandomUniform
random_normal_initializer = RandomNormal
truncated_normal_initializer = TruncatedNormal
uniform_unit_scaling_initializer = UniformUnitScaling
variance_scaling_initializer = VarianceScaling
glorot_uniform_initializer = GlorotUniform
glorot_normal_initializer = GlorotNormal
orthogonal_initializer = Orthogonal
identity_initializer = Identity


def he_normal(seed: int | None = None) -> VarianceScaling:
    """Return an initializer from a truncated normal distribution of variance 2 / fan_in, for layers before relu."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed)


def he_uniform(seed: int | None = None) -> VarianceScaling:
    """Return a uniform initializer with limits ±√(6 / fan_in), for layers before relu."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed)


def lecun_normal(seed: int | None = None) -> VarianceScaling:
    """Return an initializer from a truncated normal distribution of variance 1 / fan_in."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed)


def lecun_uniform(seed: int | None = None) -> VarianceScaling:
    """Return a uniform initializer with limits ±√(3 / fan_in)."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed)


def _sizes(shape: ShapeLike) -> list[int]:
    dims = dims_of(shape)
    if dims is None or None in dims:
        raise InvalidArgumentError(
            "the initial value needs a known shape", expected="known sizes", actual=format_dims(dims)
        )
    return [d for d in dims if d is not None]


def _fans(sizes: Sequence[int]) -> tuple[float, float]:
    """Return the inputs and outputs per unit of a layer with weights [in, out], or [height, width, in, out]."""
    # As in TensorFlow, a vector has equal fans, and those of a scalar are 1.
    if len(sizes) < 2:
        fan = float(sizes[0]) if sizes else 1.0
        return fan, fan
    # Each position of a convolution's field has its own weights.
    field = math.prod(sizes[:-2])
    return float(sizes[-2] * field), float(sizes[-1] * field)


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value.lower() not in allowed:
        raise InvalidArgumentError(f"`{what}` is unknown", expected=f"one of {list(allowed)}", actual=value)

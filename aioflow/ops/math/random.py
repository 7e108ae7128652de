"""Random ops. Each node has a stream of its own in each session.

A stream starts from the node's seeds and continues from step to step. Seeds follow TensorFlow's rules: the graph's seed
and the op's together determine a stream; with neither, the operating system provides a seed. The numbers are those of
the backend's generator, not TensorFlow's.
"""

from __future__ import annotations

import math
from typing import Any, Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, ShapeFn, define_op
from aioflow.graph.shapes import Dimension, Dims, TensorShape, broadcast_dims, format_dims
from aioflow.graph.traits import Effect, elementwise, random, transcendental
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.core import unchanged
from aioflow.ops.math.broadcasting import broadcast
from aioflow.ops.scoping import name_scope

__all__ = [
    "get_seed",
    "multinomial",
    "random_crop",
    "random_gamma",
    "random_normal",
    "random_poisson",
    "random_shuffle",
    "random_uniform",
    "set_random_seed",
    "truncated_normal",
]

# TensorFlow's number, so that a seed of an op alone means the same there and here.
DEFAULT_GRAPH_SEED: Final = 87654321
_MAX_INT32: Final = 2**31 - 1
_SEEDS = ["seed: int = 0", "seed2: int = 0"]


def set_random_seed(seed: int | None) -> None:
    """Set the seed of the random ops that are added to the default graph from now on.

    None removes it.
    """
    default_graph().seed = None if seed is None else int(seed)


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """Return the pair of seeds of a new random op in the default graph, given its own seed.

    - With a graph seed only, the op's part is the number of nodes in the graph: the same program has the same streams.
    - With an op seed only, the graph's part is a constant.
    - With neither, both are None: the streams of each session differ.
    """
    graph = default_graph()
    if graph.seed is None:
        return (None, None) if op_seed is None else (DEFAULT_GRAPH_SEED, op_seed % _MAX_INT32)
    pair = (graph.seed % _MAX_INT32, (graph.version if op_seed is None else op_seed) % _MAX_INT32)
    # The attributes (0, 0) mean that a node has no seed.
    return (0, _MAX_INT32) if pair == (0, 0) else pair


def _seeds(op_seed: int | None) -> dict[str, int]:
    seed, seed2 = get_seed(op_seed)
    return {"seed": seed or 0, "seed2": seed2 or 0}


# ── ops ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _given_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("shape", 1)
    return ctx.partial_shape("shape")


def _given_shape_and(name: str) -> ShapeFn:
    def shape(ctx: ShapeContext) -> Dims:
        outer, inner = _given_shape(ctx), ctx.dims(name)
        # The samples of each parameter come first.
        return None if outer is None or inner is None else outer + inner

    return shape


def _multinomial_shape(ctx: ShapeContext) -> Dims:
    logits = ctx.require_rank("logits", 2)
    ctx.require_rank("num_samples", 0)
    count = ctx.scalar("num_samples")
    if count is not None and count < 0:
        raise InvalidArgumentError("the number of samples is negative", expected=">= 0", actual=count)
    return (None if logits is None else logits[0], count)


def _stateless_shape(ctx: ShapeContext) -> Dims:
    seed = ctx.require_rank("seed", 1)
    if seed is not None and seed[0] not in (None, 2):
        raise InvalidArgumentError("seed must hold two integers", expected="shape (2,)", actual=format_dims(seed))
    return _given_shape(ctx)


_OF_FLOATS = [*_SEEDS, "dtype: {floats}", "T: {index}"]
for _name in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
    define_op(_name, "shape: T", "output: dtype", _OF_FLOATS, shape=_given_shape, traits=random())
define_op(
    "RandomUniformInt",
    "shape: T, minval: Tout, maxval: Tout",
    "output: Tout",
    [*_SEEDS, "Tout: {index}", "T: {index}"],
    shape=_given_shape,
    traits=random(),
)
define_op("RandomShuffle", "value: T", "output: T", [*_SEEDS, "T: type"], shape=unchanged, traits=random())
define_op(
    "Multinomial",
    "logits: T, num_samples: int32",
    "output: output_dtype",
    [*_SEEDS, "T: {reals}", "output_dtype: {index} = int64"],
    shape=_multinomial_shape,
    traits=random(),
)
define_op(
    "RandomGamma",
    "shape: S, alpha: T",
    "output: T",
    [*_SEEDS, "S: {index}", "T: {float16, float32, float64}"],
    shape=_given_shape_and("alpha"),
    traits=random(),
)
define_op(
    "RandomGammaGrad",
    "alpha: T, sample: T",
    "output: T",
    ["T: {floats}"],
    shape=broadcast,
    traits=elementwise(cost=transcendental(50)),
)
define_op(
    "RandomPoissonV2",
    "shape: S, rate: R",
    "output: dtype",
    [
        *_SEEDS,
        "S: {index}",
        "R: {float16, float32, float64, int32, int64} = float64",
        "dtype: {float16, float32, float64, int32, int64} = int64",
    ],
    shape=_given_shape_and("rate"),
    traits=random(),
)
_STATELESS = ["dtype: {floats} = float32", "T: {index} = int32", "Tseed: {index} = int64"]
for _name in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"):
    define_op(
        _name,
        "shape: T, seed: Tseed",
        "output: dtype",
        _STATELESS,
        shape=_stateless_shape,
        traits=random(effect=Effect.NONE),
    )

not_differentiable(
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "RandomShuffle",
    "Multinomial",
    "RandomPoissonV2",
    "StatelessRandomUniform",
    "StatelessRandomNormal",
    "StatelessTruncatedNormal",
)


@gradient("RandomGamma")
def _random_gamma_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Return the derivative of the samples with respect to alpha, for fixed underlying random numbers.

    After Figurnov et al., 2018.
    """
    shape, alpha = op.inputs
    slope = make("Mul", grad, make("RandomGammaGrad", alpha, op.outputs[0]))
    # The first axes enumerate the samples of one element of alpha, so their gradients add up.
    return [None, make("Sum", slope, make("Range", 0, make("Size", shape), 1), keep_dims=False)]


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def shape_tensor(shape: Any) -> Tensor:
    if isinstance(shape, TensorShape):
        shape = shape.as_list()
    if isinstance(shape, int):
        shape = [shape]
    if isinstance(shape, list | tuple) and not shape:
        return constant([], "int32", shape=(0,))
    if isinstance(shape, list | tuple):
        shape = [int(s) if isinstance(s, Dimension) else s for s in shape]
    return convert_to_tensor(shape, name="shape", preferred_dtype="int32")


def _is(value: object, number: float) -> bool:
    """Return whether a Python number equals `number`; False for tensors."""
    return isinstance(value, int | float) and value == number


def _scaled(sample: Tensor, low: TensorLike, scale: TensorLike, name: str) -> Tensor:
    """Return sample * scale + low, without ops that change nothing."""
    shifts = not _is(low, 0)
    if not _is(scale, 1):
        # The caller's name belongs to the last of the nodes.
        sample = make("Mul", sample, scale, name=None if shifts else name)
    return make("AddV2", sample, low, name=name) if shifts else sample


def _as_given(value: Any, dtype: DType) -> Any:
    """Return a Python number unchanged, anything else as a tensor of `dtype`."""
    return value if isinstance(value, int | float) else convert_to_tensor(value, dtype)


def random_uniform(
    shape: TensorLike,
    minval: TensorLike = 0,
    maxval: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw uniformly from [minval, maxval).

    For a floating `dtype`, maxval defaults to 1.

    Raises:
        InvalidArgumentError: an integer `dtype` without maxval; at run time, minval >= maxval for integers.
    """
    kind = as_dtype(dtype)
    if maxval is None:
        if kind.is_integer:
            raise InvalidArgumentError(
                "maxval must be given for an integer dtype", expected="maxval", actual=f"None for {kind}"
            )
        maxval = 1
    with name_scope(name, "random_uniform", [shape, minval, maxval]) as scope:
        sizes = shape_tensor(shape)
        result: Tensor
        if kind.is_integer:
            low, high = convert_to_tensor(minval, kind, name="min"), convert_to_tensor(maxval, kind, name="max")
            result = make("RandomUniformInt", sizes, low, high, name=scope, **_seeds(seed))
            return result
        low, high = _as_given(minval, kind), _as_given(maxval, kind)
        sample = make("RandomUniform", sizes, dtype=kind, name="RandomUniform", **_seeds(seed))
        # A sample from [0, 1) becomes one from [low, high).
        return _scaled(sample, low, high - low, scope)


def random_normal(
    shape: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw from the normal distribution; mean and stddev broadcast with `shape`."""
    return _normal("RandomStandardNormal", "random_normal", shape, mean, stddev, dtype, seed, name)


def truncated_normal(
    shape: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Like `random_normal`, but redraw values more than two standard deviations from the mean."""
    return _normal("TruncatedNormal", "truncated_normal", shape, mean, stddev, dtype, seed, name)


def _normal(
    op_type: str,
    default: str,
    shape: TensorLike,
    mean: TensorLike,
    stddev: TensorLike,
    dtype: DTypeLike,
    seed: int | None,
    name: str | None,
) -> Tensor:
    kind = as_dtype(dtype)
    with name_scope(name, default, [shape, mean, stddev]) as scope:
        sizes = shape_tensor(shape)
        centre, spread = _as_given(mean, kind), _as_given(stddev, kind)
        sample = make(op_type, sizes, dtype=kind, name=op_type, **_seeds(seed))
        return _scaled(sample, centre, spread, scope)


def random_shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """Return the rows of `value` (along its first axis) in random order."""
    tensor = convert_to_tensor(value)
    with tensor.graph.as_default():
        return make("RandomShuffle", tensor, name=name, **_seeds(seed))


def random_crop(value: TensorLike, size: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """Return a slice of shape `size` at a random position.

    Raises:
        InvalidArgumentError: `size` is larger than the value.
    """
    with name_scope(name, "random_crop", [value, size]) as scope:
        tensor = convert_to_tensor(value, name="value")
        extent = convert_to_tensor(size, "int32", name="size")
        shape = make("Shape", tensor)
        _check_crop(tensor, extent)
        # If the size is too large at run time, FloorMod or Slice raises an error.
        room = shape - extent + 1
        rank = None if extent.dims is None else extent.dims[0]
        # RandomUniformInt has one range for all axes, so the remainder below maps the draws to the range of each axis.
        sample = make(
            "RandomUniformInt",
            [rank] if rank is not None else make("Shape", extent),
            0,
            _MAX_INT32,
            name=None,
            Tout="int32",
            **_seeds(seed),
        )
        return make("Slice", tensor, make("FloorMod", sample, room), extent, name=scope)


def _check_crop(tensor: Tensor, extent: Tensor) -> None:
    wanted = extent.op.attrs["value"].tolist() if extent.op.type == "Const" else None
    if extent.dims is not None and len(extent.dims) != 1:
        raise InvalidArgumentError(
            "the size of a crop must be a vector", expected="rank 1", actual=format_dims(extent.dims)
        )
    if wanted is None or tensor.dims is None:
        return
    fits = len(wanted) == len(tensor.dims) and all(
        have is None or have >= need for have, need in zip(tensor.dims, wanted, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            "the crop is larger than the value", expected=f"at most {format_dims(tensor.dims)}", actual=wanted
        )


def multinomial(
    logits: TensorLike,
    num_samples: TensorLike,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: DTypeLike | None = None,
) -> Tensor:
    """Draw class numbers [batch, num_samples] with probabilities softmax(logits).

    Args:
        logits: [batch, classes] unscaled log probabilities. A class with a non-finite logit is never drawn.
        num_samples: Number of draws for each row, a scalar.
        seed: Seed of the op. See `set_random_seed`.
        name: Name of the node.
        output_dtype: int64 (the default) or int32.

    Raises:
        InvalidArgumentError: num_samples is negative, or there are no classes.
    """
    with name_scope(name, "multinomial", [logits]) as scope:
        tensor = convert_to_tensor(logits, name="logits")
        kind = as_dtype(output_dtype or "int64")
        return make("Multinomial", tensor, num_samples, output_dtype=kind, name=scope, **_seeds(seed))


def categorical(
    logits: TensorLike,
    num_samples: TensorLike,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return `multinomial` with the arguments in a later order. Raises as it does."""
    return multinomial(logits, num_samples, seed, name or "categorical", dtype)


def random_gamma(
    shape: TensorLike,
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw `shape` numbers from the gamma distribution for each element of alpha and beta, which broadcast.

    Args:
        shape: Shape of the numbers for each element.
        alpha: The shape parameter.
        beta: The inverse scale; 1 by default.
        dtype: float16, float32 or float64, also that of alpha and beta.
        seed: Seed of the op. See `set_random_seed`.
        name: Name scope of the nodes.

    Returns:
        A tensor of shape `shape` + broadcast(alpha, beta).
    """
    kind = as_dtype(dtype)
    with name_scope(name, "random_gamma", [shape, alpha, beta]):
        sizes = shape_tensor(shape)
        concentration = convert_to_tensor(alpha, kind, name="alpha")
        rate = convert_to_tensor(1 if beta is None else beta, kind, name="beta")
        if beta is not None:
            concentration = _broadcast(concentration, rate)
        sample = make("RandomGamma", sizes, concentration, name=None, **_seeds(seed))
        # Samples for a small alpha may underflow to 0, which is outside the support of the distribution.
        tiny = constant(math.ldexp(1.0, -14) if kind is dtypes.float16 else _tiny(kind), kind)
        return make("Maximum", tiny, sample if beta is None else sample / rate)


def _tiny(kind: DType) -> float:
    # The smallest normal numbers of float32 and float64.
    return math.ldexp(1.0, -126) if kind is dtypes.float32 else math.ldexp(1.0, -1022)


def _broadcast(tensor: Tensor, other: Tensor) -> Tensor:
    dims = broadcast_dims([tensor.dims, other.dims])
    if dims == tensor.dims and dims is not None and None not in dims:
        return tensor
    # The sum with zeros broadcasts alpha to the common shape.
    return make("AddV2", tensor, make("ZerosLike", other))


def random_poisson(
    lam: TensorLike,
    shape: TensorLike,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw `shape` numbers from the Poisson distribution for each element of lam, its mean.

    The result has the shape `shape` + lam.shape.
    """
    with name_scope(name, "random_poisson", [lam, shape]) as scope:
        sizes = shape_tensor(shape)
        rate = convert_to_tensor(lam, name="lam")
        return make("RandomPoissonV2", sizes, rate, dtype=as_dtype(dtype), name=scope, **_seeds(seed))


# ── stateless: equal seeds always draw equal numbers ──────────────────────────────────────────────────────────────────


def stateless_random_uniform(
    shape: TensorLike,
    seed: TensorLike,
    minval: TensorLike = 0,
    maxval: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Like `random_uniform` for floating dtypes, but determined by the two integers in `seed` alone."""
    kind = as_dtype(dtype)
    with name_scope(name, "stateless_random_uniform", [shape, seed, minval, maxval]) as scope:
        low, high = _as_given(minval, kind), _as_given(1 if maxval is None else maxval, kind)
        sample = make("StatelessRandomUniform", shape_tensor(shape), seed, dtype=kind)
        return _scaled(sample, low, high - low, scope)


def stateless_random_normal(
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Like `random_normal`, but determined by the two integers in `seed` alone."""
    return _stateless("StatelessRandomNormal", "stateless_random_normal", shape, seed, mean, stddev, dtype, name)


def stateless_truncated_normal(
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Like `truncated_normal`, but determined by the two integers in `seed` alone."""
    return _stateless("StatelessTruncatedNormal", "stateless_truncated_normal", shape, seed, mean, stddev, dtype, name)


def _stateless(
    op_type: str,
    default: str,
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike,
    stddev: TensorLike,
    dtype: DTypeLike,
    name: str | None,
) -> Tensor:
    kind = as_dtype(dtype)
    with name_scope(name, default, [shape, seed, mean, stddev]) as scope:
        sample = make(op_type, shape_tensor(shape), seed, dtype=kind)
        return _scaled(sample, _as_given(mean, kind), _as_given(stddev, kind), scope)

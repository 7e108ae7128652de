"""Activations, bias, softmax and L2 loss."""

from __future__ import annotations

from typing import Any

from aioflow.arguments import check_text
from aioflow.errors import InvalidArgumentError
from aioflow.graph.costs import PER_ELEMENT
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, both_merged, define_op
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.graph.traits import FLOATS, NOTHING, NUMBERS, elementwise, opaque, reduction, transcendental
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.static_shapes import shape_of, swap_with_last
from aioflow.ops.core import scalar, unchanged
from aioflow.ops.nn.geometry import ImageFormat, VolumeFormat
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.indexed_slices import Gradient


def at_least_vector(ctx: ShapeContext) -> Dims:
    """Infer the shape of ops along the last axis. Raise InvalidArgumentError for a scalar."""
    dims: Dims = ctx.tensors[0].dims
    if dims == ():
        raise InvalidArgumentError("the input has no last axis", expected="rank >= 1", actual=format_dims(dims))
    return dims


def zeros_like(tensor: Tensor) -> Tensor:
    """Return zeros, for gradients that vanish everywhere."""
    return make("ZerosLike", tensor)


def renamed(new: object, old: object, names: tuple[str, str]) -> Any:
    """Return the value of an argument that has a new and an old name.

    Raises:
        InvalidArgumentError: both are given.
    """
    if new is not None and old is not None:
        raise InvalidArgumentError(
            f"cannot specify both {names[0]!r} and {names[1]!r}", expected="one of them", actual="both"
        )
    return old if new is None else new


def unless_zero(grad: Tensor | None) -> Tensor | None:
    """Return the gradient, or None if it is the zeros of an output through which no gradient flows."""
    return None if grad is None or grad.op.type == "ZerosLike" else grad


# ── activations ───────────────────────────────────────────────────────────────────────────────────────────────────────

define_op(
    "Relu",
    "features: T",
    "activations: T",
    ["T: {reals, qint8}"],
    shape=unchanged,
    # {0} != {0} holds for NaN alone, which passes through.
    traits=elementwise(in_c="({0} != {0} || {0} > 0) ? {0} : (T)0", fuses=NUMBERS),
)
define_op(
    "ReluGrad",
    "gradients: T, features: T",
    "backprops: T",
    ["T: {reals}"],
    shape=both_merged,
    traits=elementwise(in_c="{0} * (T)({1} > 0)", fuses=NUMBERS),
)
define_op(
    "Relu6",
    "features: T",
    "activations: T",
    ["T: {reals}"],
    shape=unchanged,
    traits=elementwise(in_c="{0} != {0} ? {0} : ({0} > 0 ? ({0} < 6 ? {0} : (T)6) : (T)0)", fuses=NUMBERS),
)
define_op(
    "Relu6Grad",
    "gradients: T, features: T",
    "backprops: T",
    ["T: {reals}"],
    shape=both_merged,
    traits=elementwise(fuses=NUMBERS),
)
# 0.2 in float32, as TensorFlow's op definition spells it.
_ALPHA = ["alpha: float = 0.20000000298023224", "T: {floats} = float32"]
define_op("LeakyRelu", "features: T", "activations: T", _ALPHA, shape=unchanged, traits=elementwise())
define_op("LeakyReluGrad", "gradients: T, features: T", "backprops: T", _ALPHA, shape=both_merged, traits=elementwise())
for _name, _second, _in_c in (
    ("Elu", "outputs", "{0} > 0 ? {0} : (T)expm1({0})"),
    ("Selu", "outputs", ""),
    # log(1 + eˣ) = max(x, 0) + log(1 + e^-|x|), in which exp cannot overflow.
    ("Softplus", "features", "({0} > 0 ? {0} : (T)0) + log1p(exp(-fabs({0})))"),
    ("Softsign", "features", "{0} / (fabs({0}) + 1)"),
):
    _cost = PER_ELEMENT if _name == "Softsign" else transcendental()
    define_op(
        _name,
        "features: T",
        "activations: T",
        ["T: {floats}"],
        shape=unchanged,
        traits=elementwise(in_c=_in_c, cost=_cost, fuses=FLOATS),
    )
    define_op(
        f"{_name}Grad",
        f"gradients: T, {_second}: T",
        "backprops: T",
        ["T: {floats}"],
        shape=both_merged,
        traits=elementwise(cost=_cost, fuses=FLOATS if _second == "outputs" else NOTHING),
    )


@gradient("Relu")
def _relu_grad(op: Operation, grad: Tensor) -> Tensor:
    # The output is positive where the features are. With it, the features need not be kept.
    return make("ReluGrad", grad, op.outputs[0])


@gradient("Relu6")
def _relu6_grad(op: Operation, grad: Tensor) -> Tensor:
    # As for Relu: the output is in (0, 6) exactly where the features are.
    return make("Relu6Grad", grad, op.outputs[0])


@gradient("ReluGrad", "Relu6Grad")
def _relu_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    features = op.inputs[1]
    # The op is linear in the gradient, and its derivative by the features is 0 wherever it exists.
    return [make(op.type, grad, features), zeros_like(features)]


@gradient("LeakyRelu")
def _leaky_relu_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("LeakyReluGrad", grad, op.inputs[0], alpha=op.get_attr("alpha"))


@gradient("LeakyReluGrad")
def _leaky_relu_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    features = op.inputs[1]
    return [make("LeakyReluGrad", grad, features, alpha=op.get_attr("alpha")), zeros_like(features)]


@gradient("Elu", "Selu")
def _elu_grad(op: Operation, grad: Tensor) -> Tensor:
    # From the output y: y + 1 for y < 0 (Elu), which needs no second exponential.
    return make(f"{op.type}Grad", grad, op.outputs[0])


@gradient("EluGrad", "SeluGrad")
def _elu_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    # Where the output is negative, its slope is the output plus a constant, and elsewhere a constant.
    gradients, outputs = op.inputs
    negative = make("SelectV2", outputs < 0, grad * gradients, zeros_like(outputs))
    return [make(op.type, grad, outputs), negative]


@gradient("Softplus", "Softsign")
def _soft_grad(op: Operation, grad: Tensor) -> Tensor:
    return make(f"{op.type}Grad", grad, op.inputs[0])


@gradient("SoftplusGrad")
def _softplus_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    gradients, features = op.inputs
    slope = make("Sigmoid", features)
    # softplus' = σ, and σ' = σ (1 - σ).
    return [make("SoftplusGrad", grad, features), grad * gradients * slope * (1 - slope)]


@gradient("SoftsignGrad")
def _softsign_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    gradients, features = op.inputs
    base = 1 + abs(features)
    # softsign' = 1 / (1 + |x|)², so the second derivative is -2 sign(x) / (1 + |x|)³.
    second = -2 * make("Sign", features) / (base * base * base)
    return [make("SoftsignGrad", grad, features), grad * gradients * second]


def relu(features: TensorLike, name: str | None = None) -> Tensor:
    """Return max(features, 0), elementwise, for real numbers of any dtype."""
    return make("Relu", features, name=name)


def relu6(features: TensorLike, name: str | None = None) -> Tensor:
    """Return min(max(features, 0), 6), elementwise, for real numbers of any dtype."""
    return make("Relu6", features, name=name)


def leaky_relu(features: TensorLike, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """Return features where positive, otherwise alpha * features. Integers become float32."""
    tensor = convert_to_tensor(features)
    with name_scope(name, "LeakyRelu", [tensor]) as scope:
        if tensor.dtype.is_integer:
            tensor = make("Cast", tensor, DstT="float32")
        return make("LeakyRelu", tensor, alpha=alpha, name=scope)


def elu(features: TensorLike, name: str | None = None) -> Tensor:
    """Return features where positive, otherwise exp(features) - 1 (arXiv:1511.07289)."""
    return make("Elu", features, name=name)


def selu(features: TensorLike, name: str | None = None) -> Tensor:
    """Return the scaled `elu`, whose activations keep mean 0 and variance 1 (arXiv:1706.02515)."""
    return make("Selu", features, name=name)


def softplus(features: TensorLike, name: str | None = None) -> Tensor:
    """Return log(1 + exp(features)), without overflow."""
    return make("Softplus", features, name=name)


def softsign(features: TensorLike, name: str | None = None) -> Tensor:
    """Return features / (1 + |features|)."""
    return make("Softsign", features, name=name)


def crelu(features: TensorLike, name: str | None = None, axis: int = -1) -> Tensor:
    """Return relu of features and of -features, concatenated along `axis` (arXiv:1603.05201).

    The size of `axis` doubles.
    """
    tensor = convert_to_tensor(features)
    with name_scope(name, "CRelu", [tensor]) as scope:
        both = make("ConcatV2", [tensor, -tensor], axis)
        return relu(both, name=scope)


def swish(features: TensorLike, beta: TensorLike = 1.0) -> Tensor:
    """Return features * sigmoid(beta * features), elementwise (arXiv:1710.05941). With beta 1 it is also named SiLU."""
    tensor = convert_to_tensor(features, name="features")
    with name_scope(None, "swish", [tensor]):
        scaled = tensor * convert_to_tensor(beta, tensor.dtype, name="beta")
        return make("Mul", tensor, make("Sigmoid", scaled))


# ── bias ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _channel(ctx: ShapeContext, dims: tuple[int | None, ...]) -> int:
    """Return the position of the channel axis."""
    nchw = ctx.attrs.get("data_format") == "NCHW"
    low = 3 if nchw else 2
    if len(dims) < low:
        raise InvalidArgumentError("the value has the wrong rank", expected=f"rank >= {low}", actual=format_dims(dims))
    return 1 if nchw else len(dims) - 1


def _bias_add_shape(ctx: ShapeContext) -> Dims:
    bias = ctx.require_rank("bias", 1)
    dims = ctx.dims("value")
    if dims is None:
        return None
    axis = _channel(ctx, dims)
    if bias is None:
        return dims
    if not is_compatible((dims[axis],), bias):
        raise InvalidArgumentError(
            "bias needs one element per channel",
            expected=f"bias {format_dims((dims[axis],))}",
            actual=format_dims(bias),
        )
    # Either input may have the unknown size.
    return (*dims[:axis], dims[axis] if bias[0] is None else bias[0], *dims[axis + 1 :])


def _bias_add_grad_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.dims("out_backprop")
    return (None,) if dims is None else (dims[_channel(ctx, dims)],)


_FORMAT = "data_format: {'NHWC', 'NCHW'} = 'NHWC'"
define_op(
    "BiasAdd",
    "value: T, bias: T",
    "output: T",
    ["T: {numbertype}", _FORMAT],
    shape=_bias_add_shape,
    rows=rows.first_axis,
    traits=elementwise(fuses=FLOATS, broadcasts=False),
)
define_op(
    "BiasAddV1",
    "value: T, bias: T",
    "output: T",
    ["T: {numbertype}"],
    shape=_bias_add_shape,
    rows=rows.first_axis,
    traits=elementwise(broadcasts=False),
)
define_op(
    "BiasAddGrad",
    "out_backprop: T",
    "output: T",
    ["T: {numbertype}", _FORMAT],
    shape=_bias_add_grad_shape,
    traits=reduction(),
)


@gradient("BiasAdd", "BiasAddV1", takes_slices=True)
def _bias_add_gradient(op: Operation, grad: Gradient) -> list[Gradient]:
    return [grad, make("BiasAddGrad", grad, data_format=op.attrs.get("data_format", "NHWC"))]


@gradient("BiasAddGrad")
def _bias_add_grad_gradient(op: Operation, grad: Tensor) -> Tensor:
    source = op.inputs[0]
    if op.attrs["data_format"] == "NCHW":
        if source.dims is None:
            raise InvalidArgumentError(
                "the gradient of BiasAddGrad needs a known rank", expected="a rank", actual="unknown"
            )
        # NCHW: one column per channel aligns with axis 1. In NHWC the channels are last already.
        grad = make("Reshape", grad, [-1] + [1] * (len(source.dims) - 2))
    return make("BroadcastTo", grad, shape_of(source))


def bias_add(
    value: TensorLike, bias: TensorLike, data_format: ImageFormat | VolumeFormat | None = None, name: str | None = None
) -> Tensor:
    """Return value plus one number per channel.

    Args:
        value: [..., channels]; [batch, channels, ...] if `data_format` starts with "NC".
        bias: [channels], of value's dtype.
        data_format: Order of the axes; channels come last by default.
        name: Name of the node.

    Raises:
        DTypeError: `data_format` is not a text.
        InvalidArgumentError: the sizes differ, or value has no channels.
    """
    given = "NHWC" if data_format is None else data_format
    check_text(given, "data_format")
    channels_first = given.startswith("NC")  # TensorFlow accepts every format that does, such as NCDHW
    return make("BiasAdd", value, bias, data_format="NCHW" if channels_first else "NHWC", name=name)


# ── softmax ───────────────────────────────────────────────────────────────────────────────────────────────────────────

define_op(
    "Softmax",
    "logits: T",
    "softmax: T",
    ["T: {floats}"],
    shape=at_least_vector,
    rows=rows.last_axes(1),
    traits=opaque(cost=transcendental(1.5)),
)
define_op(
    "LogSoftmax",
    "logits: T",
    "logsoftmax: T",
    ["T: {floats}"],
    shape=at_least_vector,
    rows=rows.last_axes(1),
    traits=opaque(cost=transcendental(1.5)),
)


def sum_last(tensor: Tensor) -> Tensor:
    """Return the sum along the last axis, which stays with size 1."""
    return make("Sum", tensor, -1, keep_dims=True)


@gradient("Softmax")
def _softmax_grad(op: Operation, grad: Tensor) -> Tensor:
    softmax = op.outputs[0]
    # y = softmax(x): dx = (dy - Σ dy y) y, as ∂yᵢ/∂xⱼ = yᵢ (δᵢⱼ - yⱼ).
    return (grad - sum_last(grad * softmax)) * softmax


@gradient("LogSoftmax")
def _log_softmax_grad(op: Operation, grad: Tensor) -> Tensor:
    # y = log softmax(x): ∂yᵢ/∂xⱼ = δᵢⱼ - softmax(x)ⱼ, with softmax(x) = exp y.
    return grad - sum_last(grad) * make("Exp", op.outputs[0])


def softmax(logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor:
    """Return exp(logits) / sum(exp(logits)) along `axis` (the last by default); `dim` is its older name."""
    return _along_axis("Softmax", logits, one_axis(axis, dim), name)


def log_softmax(logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor:
    """Return logits - log(sum(exp(logits))) along `axis` (the last by default); `dim` is its older name."""
    return _along_axis("LogSoftmax", logits, one_axis(axis, dim), name)


def one_axis(axis: int | None, dim: int | None) -> int:
    """Return whichever of `axis` and `dim` is given, or -1. Raise InvalidArgumentError if both are."""
    if axis is not None and dim is not None:
        raise InvalidArgumentError("cannot specify both 'axis' and 'dim'", expected="one of them", actual=(axis, dim))
    chosen = dim if axis is None else axis
    return -1 if chosen is None else int(chosen)


def _along_axis(op_type: str, logits: TensorLike, axis: int, name: str | None) -> Tensor:
    tensor = convert_to_tensor(logits)
    result: Tensor
    if is_last_axis(tensor, axis):
        result = make(op_type, tensor, name=name)
        return result
    with name_scope(name, op_type.lower(), [tensor]) as scope:
        order = swap_with_last(tensor, axis)
        # The permutation swaps two axes, so it is its own inverse.
        result = make("Transpose", make(op_type, make("Transpose", tensor, order)), order, name=scope)
        result.set_shape(tensor.dims)
        return result


def is_last_axis(tensor: Tensor, axis: int) -> bool:
    """Return whether `axis` is known to be the last."""
    return axis == -1 or (tensor.dims is not None and axis == len(tensor.dims) - 1)


# ── L2 loss ───────────────────────────────────────────────────────────────────────────────────────────────────────────

define_op("L2Loss", "t: T", "output: T", ["T: {floats}"], shape=scalar, rows=rows.mixed, traits=reduction())


@gradient("L2Loss")
def _l2_loss_grad(op: Operation, grad: Tensor) -> Tensor:
    # (½ Σ t²)' = t.
    return op.inputs[0] * grad


def l2_loss(t: TensorLike, name: str | None = None) -> Tensor:
    """Return sum(t * t) / 2, a scalar."""
    return make("L2Loss", t, name=name)

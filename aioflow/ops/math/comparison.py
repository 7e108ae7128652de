"""Comparisons, tests for NaN and infinity, logical ops, and the check for non-finite values.

The results of all but the check are bool and have no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.graph.static_value import known_by
from aioflow.graph.traits import ANY, BOOLS, FLOATS, NUMBERS, Effect, Laws, Neutral, elementwise, opaque
from aioflow.memory.values import Array
from aioflow.ops import row_values, rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.core import unchanged
from aioflow.ops.math.broadcasting import broadcast

__all__ = [
    "check_numerics",
    "equal",
    "greater",
    "greater_equal",
    "is_finite",
    "is_inf",
    "is_nan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "verify_tensor_all_finite",
]


def _lenient_broadcast(ctx: ShapeContext) -> Dims:
    """Infer the shape of Equal and NotEqual.

    With incompatible_shape_error=False, incompatible shapes result in a scalar. So an unknown size of one input
    leaves the whole shape unknown, unless the other input has size 1 there or is the same tensor.
    """
    if ctx.attrs["incompatible_shape_error"]:
        return broadcast(ctx)
    first, second = ctx.tensors
    x, y = first.dims, second.dims
    if x is None or y is None:
        return None
    try:
        dims = broadcast(ctx)
    except InvalidArgumentError:
        return ()
    if first is second:
        return dims
    may_differ = any(None in (a, b) and 1 not in (a, b) for a, b in zip(x[::-1], y[::-1], strict=False))
    return None if may_differ else dims


def _one_shape(ctx: ShapeContext) -> Dims:
    return merge_dims(*(t.dims for t in ctx.tensors))


_ORDERED: Final = ("Less", "LessEqual", "Greater", "GreaterEqual")
_CLASSES: Final = ("IsNan", "IsInf", "IsFinite")
_LOGIC: Final = ("LogicalAnd", "LogicalOr")

_COMPARE: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
}
for _name, _opposite in (("Equal", "NotEqual"), ("NotEqual", "Equal")):
    define_op(
        _name,
        "x: T, y: T",
        "z: bool",
        ["T: type", "incompatible_shape_error: bool = True"],
        shape=_lenient_broadcast,
        value=known_by(_COMPARE[_name]),
        rows=row_values.compared(_COMPARE[_name]),
        commutative=True,
        traits=elementwise(fuses=ANY, laws=Laws(opposite=_opposite, total=True)),
    )
for _name, _opposite, _sign in (
    ("Less", "GreaterEqual", "<"),
    ("LessEqual", "Greater", "<="),
    ("Greater", "LessEqual", ">"),
    ("GreaterEqual", "Less", ">="),
):
    define_op(
        _name,
        "x: T, y: T",
        "z: bool",
        ["T: {reals}"],
        shape=broadcast,
        value=known_by(_COMPARE[_name]),
        rows=row_values.compared(_COMPARE[_name]),
        traits=elementwise(in_c=f"{{0}} {_sign} {{1}}", fuses=NUMBERS, laws=Laws(opposite=_opposite)),
    )
define_op(
    "ApproximateEqual",
    "x: T, y: T",
    "z: bool",
    ["T: {numbertype}", "tolerance: float = 9.999999747378752e-06"],
    shape=_one_shape,
    commutative=True,
    traits=elementwise(),
)
for _name in _CLASSES:
    define_op(_name, "x: T", "y: bool", ["T: {floats}"], shape=unchanged, traits=elementwise(fuses=FLOATS))
for _name, _neutral, _combine, _in_c in (
    ("LogicalAnd", True, np.logical_and, "{0} && {1}"),
    ("LogicalOr", False, np.logical_or, "{0} || {1}"),
):
    define_op(
        _name,
        "x: bool, y: bool",
        "z: bool",
        shape=broadcast,
        value=known_by(_combine),
        commutative=True,
        traits=elementwise(in_c=_in_c, fuses=BOOLS, laws=Laws(neutral=Neutral((0, 1), _neutral), of_equals=True)),
    )
define_op(
    "LogicalNot",
    "x: bool",
    "y: bool",
    shape=unchanged,
    value=known_by(np.logical_not),
    traits=elementwise(in_c="!{0}", fuses=BOOLS, laws=Laws(undoes_itself=True)),
)

not_differentiable("Equal", "NotEqual", "ApproximateEqual", "LogicalNot", *_ORDERED, *_CLASSES, *_LOGIC)


def equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return whether x equals y, elementwise with broadcasting; any dtype, strings included."""
    return make("Equal", x, y, name=name)


def not_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return whether x differs from y, elementwise with broadcasting; any dtype, strings included."""
    return make("NotEqual", x, y, name=name)


def less(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return whether x < y, elementwise with broadcasting."""
    return make("Less", x, y, name=name)


def less_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return whether x <= y, elementwise with broadcasting."""
    return make("LessEqual", x, y, name=name)


def greater(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return whether x > y, elementwise with broadcasting."""
    return make("Greater", x, y, name=name)


def greater_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return whether x >= y, elementwise with broadcasting."""
    return make("GreaterEqual", x, y, name=name)


def approximate_equal(
    x: TensorLike, y: TensorLike, tolerance: float = 9.999999747378752e-06, name: str | None = None
) -> Tensor:
    """Return whether |x - y| < tolerance, for tensors of equal shape. They do not broadcast."""
    return make("ApproximateEqual", x, y, tolerance=tolerance, name=name)


def is_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """Return whether each element is NaN."""
    return make("IsNan", x, name=name)


def is_inf(x: TensorLike, name: str | None = None) -> Tensor:
    """Return whether each element is infinite."""
    return make("IsInf", x, name=name)


def is_finite(x: TensorLike, name: str | None = None) -> Tensor:
    """Return whether each element is neither infinite nor NaN."""
    return make("IsFinite", x, name=name)


def logical_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return `x and y` of bools, elementwise with broadcasting."""
    return make("LogicalAnd", x, y, name=name)


def logical_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return `x or y` of bools, elementwise with broadcasting."""
    return make("LogicalOr", x, y, name=name)


def logical_not(x: TensorLike, name: str | None = None) -> Tensor:
    """Return `not x` of bools."""
    return make("LogicalNot", x, name=name)


def logical_xor(x: TensorLike, y: TensorLike, name: str = "LogicalXor") -> Tensor:
    """Return whether exactly one of x and y is true, elementwise with broadcasting."""
    # For bools, NotEqual is exclusive or.
    return make("NotEqual", x, y, T="bool", name=name)


# ── the check for non-finite values: it stops a step at the node where they first appear ──────────────────────────────


define_op(
    "CheckNumerics",
    "tensor: T",
    "output: T",
    ["T: {floats}", "message: string"],
    shape=unchanged,
    rows=rows.each_element,
    traits=opaque(effect=Effect.FAILS),
)


@gradient("CheckNumerics")
def _check_numerics_grad(op: Operation, grad: Tensor) -> Tensor:
    return check_numerics(grad, f"the gradient of {op.name!r} is not finite")


def check_numerics(tensor: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Return the tensor itself, after checking that all elements are finite. Its gradient is checked as well.

    Raises:
        InvalidArgumentError: (at run time) an element is NaN or infinite; the error has `message` and names the node.
    """
    return make("CheckNumerics", tensor, message=message, name=name)


def verify_tensor_all_finite(
    t: TensorLike | None = None,
    msg: str | None = None,
    name: str | None = None,
    x: TensorLike | None = None,
    message: str | None = None,
) -> Tensor:
    """Return the result of `check_numerics`; `x` and `message` are other names of `t` and `msg`.

    Raises:
        InvalidArgumentError: the tensor is missing, or given twice.
    """
    given = x if t is None else t
    if given is None or (t is not None and x is not None):
        raise InvalidArgumentError("verify_tensor_all_finite needs one tensor", expected="t or x", actual=(t, x))
    tensor = convert_to_tensor(given, name="t")
    return check_numerics(tensor, msg or message or "", name or "VerifyFinite")

"""The check for non-finite values: it stops a step at the node where they first appear."""

from __future__ import annotations

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import Effect, opaque
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.core import unchanged

__all__ = ["check_numerics", "verify_tensor_all_finite"]

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

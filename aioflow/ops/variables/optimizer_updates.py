"""Ops by which optimizers update variables. They have no outputs, only the update as a side effect.

The signatures are TensorFlow's, with variables passed as resources. The kernels document the formulas.
"""

from __future__ import annotations

from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, is_compatible, merge_dims
from aioflow.graph.traits import state_change
from aioflow.ops.variables.state import handle_dims

_ADAM = "beta1_power: T, beta2_power: T, lr: T, beta1: T, beta2: T, epsilon: T"

# The op's name without "Resource", its inputs, and its attributes besides T, Tindices and use_locking. "*name" in the
# inputs is a variable. "SparseApply" ops read rows of the gradient, and their indices.
_OPS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("ApplyGradientDescent", "*var, alpha: T, delta: T", ()),
    ("ApplyProximalGradientDescent", "*var, alpha: T, l1: T, l2: T, delta: T", ()),
    ("ApplyMomentum", "*var, *accum, lr: T, grad: T, momentum: T", ("use_nesterov: bool = False",)),
    ("ApplyAdagrad", "*var, *accum, lr: T, grad: T", ("update_slots: bool = True",)),
    ("ApplyAdagradV2", "*var, *accum, lr: T, epsilon: T, grad: T", ("update_slots: bool = True",)),
    ("ApplyProximalAdagrad", "*var, *accum, lr: T, l1: T, l2: T, grad: T", ()),
    (
        "ApplyAdagradDA",
        "*var, *gradient_accumulator, *gradient_squared_accumulator, grad: T, lr: T, l1: T, l2: T, global_step: int64",
        (),
    ),
    ("ApplyAdadelta", "*var, *accum, *accum_update, lr: T, rho: T, epsilon: T, grad: T", ()),
    ("ApplyAdam", f"*var, *m, *v, {_ADAM}, grad: T", ("use_nesterov: bool = False",)),
    ("ApplyAdamWithAmsgrad", f"*var, *m, *v, *vhat, {_ADAM}, grad: T", ()),
    ("ApplyAdaMax", "*var, *m, *v, beta1_power: T, lr: T, beta1: T, beta2: T, epsilon: T, grad: T", ()),
    ("ApplyRMSProp", "*var, *ms, *mom, lr: T, rho: T, momentum: T, epsilon: T, grad: T", ()),
    ("ApplyCenteredRMSProp", "*var, *mg, *ms, *mom, lr: T, rho: T, momentum: T, epsilon: T, grad: T", ()),
    (
        "ApplyFtrl",
        "*var, *accum, *linear, grad: T, lr: T, l1: T, l2: T, lr_power: T",
        ("multiply_linear_by_lr: bool = False",),
    ),
    (
        "ApplyFtrlV2",
        "*var, *accum, *linear, grad: T, lr: T, l1: T, l2: T, l2_shrinkage: T, lr_power: T",
        ("multiply_linear_by_lr: bool = False",),
    ),
    ("SparseApplyProximalGradientDescent", "*var, alpha: T, l1: T, l2: T, grad: T, indices: Tindices", ()),
    (
        "SparseApplyMomentum",
        "*var, *accum, lr: T, grad: T, indices: Tindices, momentum: T",
        ("use_nesterov: bool = False",),
    ),
    ("SparseApplyAdagrad", "*var, *accum, lr: T, grad: T, indices: Tindices", ("update_slots: bool = True",)),
    (
        "SparseApplyAdagradV2",
        "*var, *accum, lr: T, epsilon: T, grad: T, indices: Tindices",
        ("update_slots: bool = True",),
    ),
    ("SparseApplyProximalAdagrad", "*var, *accum, lr: T, l1: T, l2: T, grad: T, indices: Tindices", ()),
    (
        "SparseApplyAdagradDA",
        "*var, *gradient_accumulator, *gradient_squared_accumulator, grad: T, indices: Tindices, lr: T, l1: T, l2: T, "
        "global_step: int64",
        (),
    ),
    (
        "SparseApplyAdadelta",
        "*var, *accum, *accum_update, lr: T, rho: T, epsilon: T, grad: T, indices: Tindices",
        (),
    ),
    (
        "SparseApplyRMSProp",
        "*var, *ms, *mom, lr: T, rho: T, momentum: T, epsilon: T, grad: T, indices: Tindices",
        (),
    ),
    (
        "SparseApplyCenteredRMSProp",
        "*var, *mg, *ms, *mom, lr: T, rho: T, momentum: T, epsilon: T, grad: T, indices: Tindices",
        (),
    ),
    (
        "SparseApplyFtrl",
        "*var, *accum, *linear, grad: T, indices: Tindices, lr: T, l1: T, l2: T, lr_power: T",
        ("multiply_linear_by_lr: bool = False",),
    ),
    (
        "SparseApplyFtrlV2",
        "*var, *accum, *linear, grad: T, indices: Tindices, lr: T, l1: T, l2: T, l2_shrinkage: T, lr_power: T",
        ("multiply_linear_by_lr: bool = False",),
    ),
)


def _check_shapes(ctx: ShapeContext) -> list[Dims]:
    """Check that the shapes of the variables, the gradient and the scalars fit. The op has no outputs."""
    variable: Dims = None
    for tensor in ctx.tensors:
        if tensor.dtype is dtypes.resource:
            variable = merge_dims(variable, handle_dims(tensor))
    names = [arg.name for arg in ctx.op_def.inputs if arg.type_attr == "T" or arg.name == "global_step"]
    for name in names:
        if name not in ("grad", "delta"):
            ctx.require_rank(name, 0)
        elif "Tindices" not in ctx.op_def.attrs:
            _check_fits(variable, ctx.dims(name))
        else:
            # A sparse gradient has one row for each index.
            rows = ctx.require_rank("indices", 1)
            count = None if rows is None else rows[0]
            _check_fits(None if variable is None else (count, *variable[1:]), ctx.dims(name))
    return []


def _check_fits(wanted: Dims, gradient: Dims) -> None:
    if not is_compatible(wanted, gradient):
        raise InvalidArgumentError(
            "the gradient does not have the shape of the variable",
            expected=format_dims(wanted),
            actual=format_dims(gradient),
        )


def _define() -> None:
    for name, inputs, attrs in _OPS:
        parts = [f"{p[1:]}: resource" if p.startswith("*") else p for p in inputs.split(", ")]
        common = ["T: {numbertype}", "use_locking: bool = False"]
        if "indices" in inputs:
            common.insert(1, "Tindices: {index}")
        define_op(
            f"Resource{name}", ", ".join(parts), "", [*common, *attrs], shape=_check_shapes, traits=state_change()
        )
        not_differentiable(f"Resource{name}")


_define()

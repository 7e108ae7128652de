"""Automatic differentiation: the reverse walk over the graph. The gradient functions are defined beside their ops."""

from aioflow.autodiff.custom import NoGradient as NoGradient
from aioflow.autodiff.custom import NotDifferentiable as NotDifferentiable
from aioflow.autodiff.custom import RegisterGradient as RegisterGradient
from aioflow.autodiff.custom import custom_gradient as custom_gradient
from aioflow.autodiff.custom import grad_pass_through as grad_pass_through
from aioflow.autodiff.custom import no_gradient as no_gradient
from aioflow.autodiff.gradients import AggregationMethod as AggregationMethod
from aioflow.autodiff.gradients import UnconnectedGradients as UnconnectedGradients
from aioflow.autodiff.gradients import gradients as gradients
from aioflow.autodiff.gradients import hessians as hessians
from aioflow.autodiff.recompute import recompute_grad as recompute_grad

__all__ = [
    "AggregationMethod",
    "NoGradient",
    "NotDifferentiable",
    "RegisterGradient",
    "UnconnectedGradients",
    "custom_gradient",
    "grad_pass_through",
    "gradients",
    "hessians",
    "no_gradient",
    "recompute_grad",
]

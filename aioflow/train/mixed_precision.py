"""Mixed precision for a graph: products in 16 bits, variables in 32 bits, and an optimizer that scales the loss.

A pass of the compiler (`compiler/optimize/mixed_precision.py`) does the rewrite; this module enables it for all
sessions of a graph.
"""

from __future__ import annotations

from aioflow.arguments import check_kind
from aioflow.compiler.optimize.passes import MIXED_PRECISION
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.train.loss_scale import LossScaleLike
from aioflow.train.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer
from aioflow.train.optimizer import Optimizer


def enable_mixed_precision_graph_rewrite(
    opt: Optimizer, loss_scale: LossScaleLike = "dynamic", dtype: DTypeLike = dtypes.float16
) -> MixedPrecisionLossScaleOptimizer:
    """Make sessions compute the products of the default graph in 16 bits, and return an optimizer with a loss scale.

    The setting applies to every plan made from now on; a session's `SessionConfig.optimizations` takes precedence. If
    the processor has no instructions for the dtype, nothing is faster: products are computed in float32 and rounded.

    Args:
        opt: The optimizer to wrap.
        loss_scale: As in `MixedPrecisionLossScaleOptimizer`. For bfloat16, which has the range of float32, 1 suffices.
        dtype: float16 or bfloat16.

    Returns:
        The optimizer to use instead of `opt`.

    Raises:
        DTypeError: `opt` is not an optimizer, or `dtype` is not a dtype.
        InvalidArgumentError: `opt` already scales its loss, or the dtype is neither float16 nor bfloat16.
        FailedPreconditionError: the graph is finalized.
    """
    check_kind(opt, Optimizer, "opt", "an Optimizer")
    if isinstance(opt, MixedPrecisionLossScaleOptimizer):
        raise InvalidArgumentError(
            "the optimizer scales its loss already", expected="an optimizer without a loss scale", actual=repr(opt)
        )
    name = as_dtype(dtype).name
    if name not in MIXED_PRECISION:
        raise InvalidArgumentError(
            "not a type for mixed precision", expected=f"one of {[*MIXED_PRECISION]}", actual=name
        )
    made = MixedPrecisionLossScaleOptimizer(opt, loss_scale)
    # A graph uses one 16-bit dtype: an earlier call with the other dtype is undone.
    _switch({each: known == name for known, each in MIXED_PRECISION.items()})
    return made


def disable_mixed_precision_graph_rewrite() -> None:
    """Make sessions compute the default graph's products in float32 again. Optimizers keep scaling their losses.

    Raises:
        FailedPreconditionError: the graph is finalized.
    """
    _switch({})


def _switch(switches: dict[str, bool]) -> None:
    graph = default_graph()
    graph.note_mutation()  # invalidates the plans of existing steps
    others = {name: on for name, on in graph.optimizations.items() if name not in MIXED_PRECISION.values()}
    graph.optimizations = {**others, **switches}

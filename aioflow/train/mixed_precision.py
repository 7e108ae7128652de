"""Mixed precision for a graph: products in 16 bits, variables of 32, and an optimizer that scales the loss.

The rewriting itself is a pass of the compiler (`compiler/optimize/mixed_precision.py`); here it is switched on for all
sessions of a graph.
"""

from __future__ import annotations

from aioflow.compiler.optimize.passes import MIXED_PRECISION
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.argument_kinds import check_kind
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.train.loss_scale import LossScaleLike
from aioflow.train.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer
from aioflow.train.optimizer import Optimizer

__all__ = ["disable_mixed_precision_graph_rewrite", "enable_mixed_precision_graph_rewrite"]


def enable_mixed_precision_graph_rewrite(
    opt: Optimizer, loss_scale: LossScaleLike = "dynamic", dtype: DTypeLike = dtypes.float16
) -> MixedPrecisionLossScaleOptimizer:
    """Have sessions compute the products of the default graph in 16 bits, and the optimizer scale its loss.

    It holds for every plan that is made from now on; `SessionConfig.optimizations` of a session goes before. Where the
    processor has no instructions for the type, nothing is faster: products are computed in float32 and rounded.

    Args:
        loss_scale: As of `MixedPrecisionLossScaleOptimizer`. bfloat16 has the range of float32: 1 will do.
        dtype: float16, or bfloat16.

    Returns:
        The optimizer to use in the place of `opt`.

    Raises:
        DTypeError: `opt` is no optimizer.
        InvalidArgumentError: it scales its loss already, or the dtype is another one.
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
    _switch({each: known == name for known, each in MIXED_PRECISION.items()})
    return made


def disable_mixed_precision_graph_rewrite() -> None:
    """Have the products of the default graph in float32 again. Optimizers go on scaling their losses."""
    _switch({})


def _switch(switches: dict[str, bool]) -> None:
    graph = default_graph()
    graph.note_mutation()  # so that steps that have a plan get another one
    others = {name: on for name, on in graph.optimizations.items() if name not in MIXED_PRECISION.values()}
    graph.optimizations = {**others, **switches}

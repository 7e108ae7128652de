"""`aioflow.train.experimental`: mixed-precision training with 16-bit floats, under TensorFlow 1.15's names."""

# ruff: noqa: TC004
from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later

if _TYPE_CHECKING:
    from aioflow.train.mixed_precision import DynamicLossScale as DynamicLossScale
    from aioflow.train.mixed_precision import FixedLossScale as FixedLossScale
    from aioflow.train.mixed_precision import LossScale as LossScale
    from aioflow.train.mixed_precision import MixedPrecisionLossScaleOptimizer as MixedPrecisionLossScaleOptimizer
    from aioflow.train.mixed_precision import (
        disable_mixed_precision_graph_rewrite as disable_mixed_precision_graph_rewrite,
    )
    from aioflow.train.mixed_precision import (
        enable_mixed_precision_graph_rewrite as enable_mixed_precision_graph_rewrite,
    )

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScale",
    "MixedPrecisionLossScaleOptimizer",
    "disable_mixed_precision_graph_rewrite",
    "enable_mixed_precision_graph_rewrite",
]

_load_later(
    __name__,
    _homes(
        {
            "aioflow.train.mixed_precision": (
                "DynamicLossScale FixedLossScale LossScale MixedPrecisionLossScaleOptimizer "
                "disable_mixed_precision_graph_rewrite enable_mixed_precision_graph_rewrite"
            ),
        }
    ),
)

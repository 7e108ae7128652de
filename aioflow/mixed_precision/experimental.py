"""`aioflow.mixed_precision.experimental`: loss scales, under TensorFlow's earlier names."""

# ruff: noqa: TC004
from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later

if _TYPE_CHECKING:
    from aioflow.train.mixed_precision import DynamicLossScale as DynamicLossScale
    from aioflow.train.mixed_precision import FixedLossScale as FixedLossScale
    from aioflow.train.mixed_precision import LossScale as LossScale

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale"]

_load_later(__name__, dict.fromkeys(__all__, "aioflow.train.mixed_precision"))

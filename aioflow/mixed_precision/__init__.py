"""`aioflow.mixed_precision`: training in 16 bits with variables of 32, under TensorFlow 1's names.

The same names are also in `aioflow.train.experimental`.
"""

# ruff: noqa: F403
from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later
from aioflow.mixed_precision import experimental as experimental
from aioflow.train import experimental as _the_same

if _TYPE_CHECKING:
    from aioflow.train.experimental import *

__all__ = list(_the_same.__all__)

_load_later(__name__, dict.fromkeys(__all__, _the_same.__name__))

"""Names of `tf.data.experimental`: the position of an iterator in checkpoints."""

# ruff: noqa: TC004
from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later

if _TYPE_CHECKING:
    from aioflow.data.dataset import AUTOTUNE as AUTOTUNE
    from aioflow.data.iterator import make_saveable_from_iterator as make_saveable_from_iterator

__all__ = ["AUTOTUNE", "make_saveable_from_iterator"]

_load_later(
    __name__,
    _homes({"aioflow.data.dataset": "AUTOTUNE", "aioflow.data.iterator": "make_saveable_from_iterator"}),
)

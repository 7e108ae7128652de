"""What the tasks of a cluster do together without a parameter server: the public namespace `aioflow.distributed`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.work.later import load_later as _load_later

# ruff: noqa: TC004
# Loaded with the first use.
if _TYPE_CHECKING:
    from aioflow.distributed.across import all_reduce_across as all_reduce_across
    from aioflow.distributed.ring import all_reduce as all_reduce

__all__ = ["all_reduce", "all_reduce_across"]

_load_later(__name__, {"all_reduce": "aioflow.distributed.ring", "all_reduce_across": "aioflow.distributed.across"})

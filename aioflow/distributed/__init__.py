"""What the tasks of a cluster do together without a parameter server: the public namespace `aioflow.distributed`."""

from aioflow.distributed.across import all_reduce_across as all_reduce_across
from aioflow.distributed.ring import all_reduce as all_reduce

__all__ = ["all_reduce", "all_reduce_across"]

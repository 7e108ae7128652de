"""What the tasks of a cluster do together without a parameter server: the public namespace `aioflow.distributed`."""

from aioflow.distributed.ring import all_reduce as all_reduce

__all__ = ["all_reduce"]

"""Kernel that checks the ids of a lookup in a partitioned table.

It runs before the ids are translated to row numbers of the partitions, so that an error names the original id.
"""

from __future__ import annotations

from collections.abc import Callable

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.array.scatter import in_bounds
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array


@binder("AioflowCheckedIds", synchronises=True)
def checked_ids(binding: Binding) -> Callable[[Array], Array]:
    xp, table, rows = binding.xp, binding.attrs["table"], binding.attrs["rows"]

    def checked(ids: Array) -> Array:
        given = xp.asarray(ids)
        if in_bounds(given, rows):
            return ids
        bad = int(given[(given < 0) | (given >= rows)][0])
        raise InvalidArgumentError(
            f"id {bad} is not in the table {table!r}, which has {rows} rows", expected=f"0 <= id < {rows}", actual=bad
        )

    return checked

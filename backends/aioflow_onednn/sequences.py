"""Runs of nodes that oneDNN computes for the most part, as one call.

The first steps with inputs of some shapes compute the nodes one by one. The next step also inspects the results, from
which a plan is made for later steps (`plans.py`). Where a plan meets an unusual case, such as a number that is not
finite, or an error, it stops, and the nodes are computed one by one. A stopped plan has no visible effect.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.kernels.joinable import JoinedMember, given
from aioflow.kernels.registry import KernelBody
from aioflow.memory.values import Array
from aioflow_onednn.parts import PlanPart, called, viewed
from aioflow_onednn.plans import Drawing, PlanValue, RunPlan
from aioflow_onednn.primitives import address

_FIRST: Final = 1  # steps that compute the nodes one by one before a plan is made
_SHAPES: Final = 8  # combinations of input shapes that are remembered
_LARGEST: Final = 2**22  # bytes of an input: larger ones take so long that a plan gains nothing
_MOST: Final = 2**28  # bytes of all values together
_FEWEST: Final = 2  # minimum nodes for a plan


def join(members: Sequence[JoinedMember], inputs: int, outputs: Sequence[int]) -> KernelBody | None:
    """Return the call of a run of nodes, or None if too few of them are oneDNN's; a `joinable.Joiner`."""
    return _Run(members, inputs) if sum(each.part is not None for each in members) >= _FEWEST else None


class _Run:
    """A run of nodes.

    Args:
        members: The nodes.
        inputs: Number of values that the run reads from outside.
    """

    def __init__(self, members: Sequence[JoinedMember], inputs: int) -> None:
        self._members, self._inputs = members, inputs
        # By the shapes and dtypes of the inputs: the number of steps so far, or the plan, or None if there is no plan.
        self._known: OrderedDict[Hashable, int | RunPlan | None] = OrderedDict()

    def __call__(self, *inputs: Array) -> Array | None:
        """Return the last value, or None if the nodes must be computed one by one."""
        key = tuple((each.shape, each.dtype) for each in inputs)
        known = self._known.get(key, 0)
        try:
            if isinstance(known, RunPlan):
                return known.run(inputs)
            return None if known is None else self._before(known, key, inputs)
        except Exception:  # the nodes, computed one by one, fail too and report which of them it is
            return None

    def _before(self, steps: int, key: Hashable, inputs: Sequence[Array]) -> Array | None:
        """Handle a call without a plan, after `steps` calls with such inputs. Return like `__call__`."""
        if steps < _FIRST:
            self._remember(key, steps + 1)
            return None
        arrays = self._looked_at(inputs)
        self._remember(key, None)  # remains if a plan cannot be made
        drawing = None if arrays is None else self._drawn(arrays)
        if drawing is not None:
            self._remember(key, RunPlan(drawing, self._inputs))
        # Already computed above. It is returned without a copy, so it must not share memory with other values.
        return arrays[-1] if arrays is not None and self._members[-1].fresh else None

    def _remember(self, key: Hashable, known: int | RunPlan | None) -> None:
        self._known[key] = known
        if len(self._known) > _SHAPES:
            self._known.popitem(last=False)

    def _looked_at(self, inputs: Sequence[Any]) -> list[Array] | None:
        """Return all values of a step; None if they are too large or not arrays."""
        if any(not isinstance(each, np.ndarray) or each.dtype.hasobject or each.nbytes > _LARGEST for each in inputs):
            return None
        arrays, size = list(inputs), 0
        for member in self._members:
            checkpoint()
            made = member.call(*(given(item, arrays) for item in member.arguments))
            if not isinstance(made, np.ndarray) or made.dtype.hasobject or not made.ndim:
                return None
            arrays.append(made)
            size += made.nbytes
            if size > _MOST:
                return None
        return arrays

    def _drawn(self, arrays: Sequence[Array]) -> Drawing | None:
        """Return a plan that computes values like these; None if too few of the nodes are oneDNN's."""
        values = [PlanValue(each.shape, each.dtype, number, _norm(each)) for number, each in enumerate(arrays)]
        drawing, parts = Drawing(values), 0
        for number, member in enumerate(self._members, self._inputs):
            part: PlanPart | None = member.part
            if part is not None and part.draw(drawing, member.arguments, number):
                parts += 1
                continue
            source = _looks_at(member, arrays, number)
            # A view of another value shares its memory and bound; anything else is computed into memory of its own.
            if source is None:
                drawing.add(called(member.call, member.arguments, number, member.takes_out))
            else:
                values[number].root, values[number].bound = values[source].root, values[source].bound
                drawing.add(viewed(member.call, member.arguments, source, number))
        return None if parts < _FEWEST or drawing.is_refused else drawing


def _norm(array: Array) -> float:
    return float(np.sqrt(np.square(array, dtype=np.float64).sum())) if array.dtype == np.float32 else math.inf


def _looks_at(member: JoinedMember, arrays: Sequence[Array], number: int) -> int | None:
    """Return the number of the value of which a member returns a reshaped view; None if its result is not a view."""
    sources = [item for item in member.arguments if isinstance(item, int)]
    if member.fresh or len(sources) != 1 or any(isinstance(item, tuple) for item in member.arguments):
        return None
    made, array = arrays[number], arrays[sources[0]]
    is_whole = made.flags.c_contiguous and array.flags.c_contiguous and made.nbytes == array.nbytes
    is_same = made.dtype == array.dtype and address(made) == address(array)
    return sources[0] if is_whole and is_same else None

"""Which nodes lie on a path from xs to ys: the part of the graph that the reverse walk visits, and in what order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aioflow.graph import dtypes

if TYPE_CHECKING:
    from aioflow.graph.dtypes import DType
    from aioflow.graph.graph import Operation, Tensor

__all__ = ["Paths", "find_paths", "is_trainable"]

_HANDLES: Final = (dtypes.resource, dtypes.variant)


def is_trainable(dtype: DType) -> bool:
    """Whether gradients flow through tensors of this dtype: floating, complex, and the handles of variables."""
    return dtype.is_floating or dtype.is_complex or dtype in _HANDLES


@dataclass(frozen=True, slots=True)
class Paths:
    """The nodes between xs and ys.

    Attributes:
        pending: For each node on a path, how many gradients its consumers on paths still owe it.
        ends: The nodes of ys that xs can reach.
        stops: Nodes whose inputs get nothing: those of `stop_gradients`, and the xs with no further x upstream.
    """

    pending: dict[Operation, int]
    ends: list[Operation]
    stops: set[Operation]


def find_paths(ys: Iterable[Operation], xs: Iterable[Operation], stop: Iterable[Operation]) -> Paths:
    """The nodes between `xs` and `ys`, found in time linear in what `ys` depend on."""
    ends = list(dict.fromkeys(ys))
    starts = list(dict.fromkeys(xs))
    reached = _reachable(starts, _consumers(ends))
    between = _backward([op for op in ends if op in reached], reached)
    pending = dict.fromkeys(between, 0)
    for op in between:
        for tensor in op.inputs:
            if tensor.op in pending:
                pending[tensor.op] += 1
    stops = {op for op in starts if not any(pending.get(t.op, 0) > 0 for t in op.inputs)}
    return Paths(pending, [op for op in ends if op in pending], stops | set(stop))


def _consumers(ends: list[Operation]) -> dict[Tensor, list[Operation]]:
    """Who reads each tensor, among the nodes that `ends` depend on."""
    found: dict[Tensor, list[Operation]] = {}
    seen = set(ends)
    queue = deque(ends)
    while queue:
        op = queue.popleft()
        for tensor in op.inputs:
            found.setdefault(tensor, []).append(op)
            if tensor.op not in seen:
                seen.add(tensor.op)
                queue.append(tensor.op)
    return found


def _reachable(starts: list[Operation], consumers: dict[Tensor, list[Operation]]) -> set[Operation]:
    reached = set(starts)
    queue = deque(starts)
    while queue:
        for tensor in queue.popleft().outputs:
            if not is_trainable(tensor.dtype):
                continue
            for op in consumers.get(tensor, ()):
                if op not in reached:
                    reached.add(op)
                    queue.append(op)
    return reached


def _backward(ends: list[Operation], reached: set[Operation]) -> list[Operation]:
    """The reached nodes from which `ends` can be reached, nearest to `ends` first."""
    found = dict.fromkeys(ends)
    queue = deque(ends)
    while queue:
        for tensor in queue.popleft().inputs:
            if tensor.op in reached and tensor.op not in found:
                found[tensor.op] = None
                queue.append(tensor.op)
    return list(found)

"""Between-graph replication's device function: variables on parameter servers in turn, all else on the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Operation
from aioflow.net.cluster_spec import ClusterSpec

__all__ = ["replica_device_setter"]

_STATE: Final = ("VarHandleOp",)

Strategy = Callable[[Operation], int]


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: ClusterSpec | Mapping[str, Any] | None = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Strategy | None = None,
) -> Callable[[Operation], str] | None:
    """A function for `device`: nodes that hold variables go to the tasks of `ps_device`, others to `worker_device`.

    Args:
        ps_tasks: How many parameter servers there are; `cluster` says so too. With none the result is None.
        merge_devices: Whether what a node asks for itself is completed rather than left alone.
        ps_ops: The ops that go to parameter servers; those of variables by default.
        ps_strategy: The parameter server of a node, by its number; one after the other by default.

    Raises:
        InvalidArgumentError: the strategy is not a function.
    """
    job = DeviceSpec.from_string(ps_device).job
    if cluster is not None:
        spec = ClusterSpec(cluster)
        ps_tasks = len(spec.job_tasks(job)) if job is not None and job in spec.jobs else 0
    if ps_tasks == 0:
        return None
    turns = cycle(range(ps_tasks))
    strategy = (lambda op: next(turns)) if ps_strategy is None else ps_strategy
    if not callable(strategy):
        raise InvalidArgumentError("ps_strategy", expected="a function", actual=repr(strategy))
    stateful = frozenset(_STATE if ps_ops is None else ps_ops)
    server, worker = DeviceSpec.from_string(ps_device), DeviceSpec.from_string(worker_device)

    def choose(op: Operation) -> str:
        if op.device and not merge_devices:
            return op.device
        asked = DeviceSpec.from_string(op.device or "")
        if op.type not in stateful:
            return worker.make_merged_spec(asked).to_string()
        base = server
        if server.job is not None and asked.job in (None, server.job):
            base = replace(server, task=strategy(op))
        return base.make_merged_spec(asked).to_string()

    return choose

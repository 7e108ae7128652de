"""Device function for between-graph replication: variables on parameter servers, other nodes on the worker.

A strategy chooses the server. Each replica evaluates it separately, so it may depend only on what all replicas share:
the number, sizes and names of the variables created before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

from aioflow.arguments import check_whole
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Operation
from aioflow.graph.shapes import format_dims, num_elements
from aioflow.net.cluster_spec import ClusterSpec

TaskStrategy = Callable[[Operation], int]


class GreedyLoadBalancingStrategy:
    """A strategy for `replica_device_setter` that assigns each node to the server with the least load so far.

    Args:
        num_tasks: Number of parameter servers.
        load_fn: Function that returns the load a node adds to its server, such as `byte_size_load_fn`.

    The result depends on the order in which variables are created; it is best if large ones come first.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Operation], float]) -> None:
        self._loads = [0.0] * _task_count(num_tasks)
        self._load_of = load_fn

    def __call__(self, op: Operation) -> int:
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_of(op)
        return task


class RandomStrategy:
    """A strategy for `replica_device_setter` that assigns a node by a hash of its name, whatever the creation order.

    Args:
        num_ps_tasks: Number of parameter servers.
        seed: Seed of the hash.
    """

    def __init__(self, num_ps_tasks: int, seed: int = 0) -> None:
        self._count = _task_count(num_ps_tasks)
        self._seed = seed

    def __call__(self, op: Operation) -> int:
        # Python's own `hash` of a string differs between processes; all replicas must agree.
        digest = hashlib.md5(f"{op.name}_{self._seed:d}".encode(), usedforsecurity=False)
        return int(digest.hexdigest(), 16) % self._count


def byte_size_load_fn(op: Operation) -> int:
    """Return the size in bytes of a node's state (a variable, an accumulator), or else of its only output.

    Raises:
        InvalidArgumentError: the node has several outputs, or its size is unknown.
    """
    if len(op.outputs) != 1:
        raise InvalidArgumentError(f"the size of {op.name!r} is ambiguous", expected="one output", actual=op.outputs)
    output = op.outputs[0]
    dtype, dims = output.dtype, output.dims
    if dtype is dtypes.resource:
        dtype, dims = op.attrs.get("dtype", dtype), op.attrs.get("shape")
    elements = num_elements(dims)
    if elements is None:
        raise InvalidArgumentError(
            f"the size of {op.name!r} is unknown", expected="a known shape", actual=format_dims(dims)
        )
    return elements * dtype.size


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: ClusterSpec | Mapping[str, Any] | None = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: TaskStrategy | None = None,
) -> Callable[[Operation], str] | None:
    """Return a function for `device`: nodes that hold variables go to `ps_device` tasks, others to `worker_device`.

    Args:
        ps_tasks: Number of parameter servers, unless `cluster` defines it. With 0 the result is None.
        ps_device: Device of the parameter servers.
        worker_device: Device of all other nodes.
        merge_devices: Whether to complete a device that a node requests itself; otherwise it is left unchanged.
        cluster: Cluster whose tasks are counted instead of `ps_tasks`.
        ps_ops: Ops that go to parameter servers; by default those whose definition declares them shared between
            replicas: variables and dense accumulators.
        ps_strategy: Function that returns the index of a node's parameter server; round robin by default. See
            `GreedyLoadBalancingStrategy` and `RandomStrategy`.

    Raises:
        InvalidArgumentError: the strategy is not callable.
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
    chosen = None if ps_ops is None else frozenset(ps_ops)
    server, worker = DeviceSpec.from_string(ps_device), DeviceSpec.from_string(worker_device)

    def choose(op: Operation) -> str:
        if op.device and not merge_devices:
            return op.device
        asked = DeviceSpec.from_string(op.device or "")
        if not (op.op_def.traits.is_shared if chosen is None else op.type in chosen):
            return worker.make_merged_spec(asked).to_string()
        base = server
        if server.job is not None and asked.job in (None, server.job):
            base = replace(server, task=strategy(op))
        return base.make_merged_spec(asked).to_string()

    return choose


def _task_count(count: int) -> int:
    check_whole(count, "the number of parameter servers", 1)
    return int(count)

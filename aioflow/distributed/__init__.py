"""The public namespace `aioflow.distributed`: start a cluster, find a task's place in it, reduce across tasks."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
# These names are loaded at their first use.
if _TYPE_CHECKING:
    from aioflow.distributed import processes as processes
    from aioflow.distributed import ray as ray
    from aioflow.distributed.cluster_settings import ClusterTask as ClusterTask
    from aioflow.distributed.cluster_sources import cluster_task as cluster_task
    from aioflow.distributed.ring_all_reduce import all_reduce as all_reduce
    from aioflow.distributed.ring_all_reduce import all_reduce_across as all_reduce_across
    from aioflow.distributed.supervising import Job as Job
    from aioflow.distributed.supervising import StartedCluster as StartedCluster
    from aioflow.distributed.supervising import TaskStatus as TaskStatus
    from aioflow.net.credentials import Credentials as Credentials
    from aioflow.net.tls import Tls as Tls

__all__ = [
    "ClusterTask",
    "Credentials",
    "Job",
    "StartedCluster",
    "TaskStatus",
    "Tls",
    "all_reduce",
    "all_reduce_across",
    "cluster_task",
]

_load_later(
    __name__,
    {
        "ClusterTask": "aioflow.distributed.cluster_settings",
        "Credentials": "aioflow.net.credentials",
        "Job": "aioflow.distributed.supervising",
        "StartedCluster": "aioflow.distributed.supervising",
        "TaskStatus": "aioflow.distributed.supervising",
        "Tls": "aioflow.net.tls",
        "all_reduce": "aioflow.distributed.ring_all_reduce",
        "all_reduce_across": "aioflow.distributed.ring_all_reduce",
        "cluster_task": "aioflow.distributed.cluster_sources",
        "processes": "aioflow.distributed.processes",
        "ray": "aioflow.distributed.ray",
    },
)

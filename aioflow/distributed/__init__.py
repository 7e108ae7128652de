"""The public namespace `aioflow.distributed`: start a cluster, find a task's place in it, reduce across tasks."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
# These names are loaded at their first use.
if _TYPE_CHECKING:
    from aioflow.distributed import processes as processes
    from aioflow.distributed import ray as ray
    from aioflow.distributed.across import all_reduce_across as all_reduce_across
    from aioflow.distributed.ring import all_reduce as all_reduce
    from aioflow.distributed.starting.cluster import StartedCluster as StartedCluster
    from aioflow.distributed.starting.cluster import TaskStatus as TaskStatus
    from aioflow.distributed.starting.jobs import Job as Job
    from aioflow.net.cluster_sources.sources import ClusterTask as ClusterTask
    from aioflow.net.cluster_sources.this_task import cluster_task as cluster_task
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
        "ClusterTask": "aioflow.net.cluster_sources.sources",
        "Credentials": "aioflow.net.credentials",
        "Job": "aioflow.distributed.starting.jobs",
        "StartedCluster": "aioflow.distributed.starting.cluster",
        "TaskStatus": "aioflow.distributed.starting.cluster",
        "Tls": "aioflow.net.tls",
        "all_reduce": "aioflow.distributed.ring",
        "all_reduce_across": "aioflow.distributed.across",
        "cluster_task": "aioflow.net.cluster_sources.this_task",
        "processes": "aioflow.distributed.processes",
        "ray": "aioflow.distributed.ray",
    },
)

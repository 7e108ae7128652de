"""Descriptions of the tasks of a cluster, before their addresses are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from aioflow.arguments import brief, check_number, check_whole, wrong_kind
from aioflow.config import SessionConfig
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.net.cluster_spec import ClusterSpec, TaskId

_STANDS_FOR: Final = "0.0.0.0:0"  # placeholder for an address that is not known yet


@dataclass(frozen=True, slots=True)
class Job:
    """The tasks of a job, which are all alike.

    Attributes:
        count: Number of tasks.
        num_cpus: Processors to reserve for each task, as Ray counts them; processes do not reserve any.
        num_gpus: GPUs that each task has to itself; with Ray also a fraction, such as 0.5.
        resources: Further resources for Ray to reserve for each task, {name: amount}.
        cpu_devices: Number of CPU devices of each task.

    Raises:
        InvalidArgumentError: a number is out of range.
        DTypeError: a value is not a number.
    """

    count: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    cpu_devices: int = 1

    def __post_init__(self) -> None:
        check_whole(self.count, "Job.count", 1)
        check_whole(self.cpu_devices, "Job.cpu_devices", 1)
        amounts: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        for name, amount in (amounts | dict(self.resources)).items():
            check_number(amount, f"Job: {name}")
            if amount < 0:
                raise InvalidArgumentError(f"Job: {name} is out of range", expected="at least 0", actual=amount)


Jobs: TypeAlias = Mapping[str, int | Job]


def read_jobs(jobs: Jobs) -> dict[str, Job]:
    """Return the jobs in the order of a ClusterSpec. A number stands for a job with that many tasks.

    Raises:
        InvalidArgumentError: there are no jobs, or a name is not a valid job name.
        DTypeError: a value is neither a number nor a Job.
    """
    given: object = jobs
    if not isinstance(given, Mapping):
        raise DTypeError("malformed jobs of a cluster", expected="{job: number of tasks}", actual=brief(given))
    if not given:
        raise InvalidArgumentError("a cluster without tasks", expected="at least one job", actual=given)
    found: dict[str, Job] = {}
    # A ClusterSpec sorts its jobs, too.
    for name, job in sorted(given.items()):
        if not isinstance(job, Job):
            # True is an int, but no number of tasks.
            if isinstance(job, bool) or not isinstance(job, int):
                raise wrong_kind(job, f"the job {name!r}", "a number of tasks, or a Job")
            job = Job(job)
        found[name] = job
    # Made only to check the names of the jobs.
    ClusterSpec({name: [_STANDS_FOR] for name in found})
    return found


def tasks_of(jobs: Mapping[str, Job]) -> list[TaskId]:
    """Return all tasks, job by job."""
    return [TaskId(name, index) for name, job in jobs.items() for index in range(job.count)]


def device_count(job: Job) -> dict[str, int]:
    """Return the devices for `SessionConfig.device_count`: no GPUs if the job requests none, visible or not."""
    # GPU: 0 states that none is used, even if the process sees some.
    found = {"CPU": job.cpu_devices} if job.num_gpus else {"CPU": job.cpu_devices, "GPU": 0}
    return dict(SessionConfig(device_count=found).device_count)

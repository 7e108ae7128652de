"""What the tasks of a cluster are to be, before it is known where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from aioflow.checks.brief import brief
from aioflow.checks.numbers import check_number, check_whole, wrong_kind
from aioflow.config import SessionConfig
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.net.cluster_spec import ClusterSpec, Task

__all__ = ["Job", "Jobs", "device_count", "read_jobs", "tasks_of"]

_STANDS_FOR: Final = "0.0.0.0:0"  # an address, until there is one


@dataclass(frozen=True, slots=True)
class Job:
    """The tasks of a job, which are all alike.

    Attributes:
        count: How many there are.
        num_cpus: How many processors are set aside for each, as Ray counts them; processes take what is there.
        num_gpus: How many GPUs each task has to itself; with Ray also a part of one, such as 0.5.
        resources: What else Ray is to set aside for each, {name: amount}.
        cpu_devices: How many CPU devices each task has.

    Raises:
        InvalidArgumentError: a number is out of range.
        DTypeError: something is no number.
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
    """The jobs in the order of a ClusterSpec; a number is that of tasks.

    Raises:
        InvalidArgumentError: there are none, or a name is not one of a job.
        DTypeError: something is neither a number nor a Job.
    """
    given: Any = jobs
    if not isinstance(given, Mapping):
        raise DTypeError("not the jobs of a cluster", expected="{job: number of tasks}", actual=brief(given))
    if not given:
        raise InvalidArgumentError("a cluster without tasks", expected="at least one job", actual=given)
    found: dict[str, Job] = {}
    for name, job in sorted(given.items()):
        if not isinstance(job, Job):
            if isinstance(job, bool) or not isinstance(job, int):
                raise wrong_kind(job, f"the job {name!r}", "a number of tasks, or a Job")
            job = Job(job)
        found[name] = job
    ClusterSpec({name: [_STANDS_FOR] for name in found})
    return found


def tasks_of(jobs: Mapping[str, Job]) -> list[Task]:
    """All tasks, job by job."""
    return [Task(name, index) for name, job in jobs.items() for index in range(job.count)]


def device_count(job: Job) -> dict[str, int]:
    """As of `SessionConfig`: no GPUs where none are asked for, whoever else may see them."""
    found = {"CPU": job.cpu_devices} if job.num_gpus else {"CPU": job.cpu_devices, "GPU": 0}
    return dict(SessionConfig(device_count=found).device_count)

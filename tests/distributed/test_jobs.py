"""Job descriptions: accepted values, and the tasks and devices that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.distributed.supervising import Job, device_count, read_jobs, tasks_of
from aioflow.errors import InvalidArgumentError
from aioflow.net.cluster_spec import ClusterSpec


def test_tasks_come_in_the_order_of_a_cluster_spec() -> None:
    jobs = read_jobs({"worker": 2, "ps": Job(num_cpus=2), "chief": 1})
    addresses = {name: [f"127.0.0.1:{port}" for port in range(1, job.count + 1)] for name, job in jobs.items()}
    assert tasks_of(jobs) == list(ClusterSpec(addresses).tasks())
    assert jobs["ps"].num_cpus == 2
    assert jobs["worker"] == Job(2)


@pytest.mark.parametrize("jobs", [{}, {"ps": 0}, {"ps": -1}, {"": 1}, {"p s": 1}, {"ps": True}, {"ps": 1.0}, ["ps"]])
def test_invalid_jobs_are_rejected(jobs: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        read_jobs(jobs)


@pytest.mark.parametrize(
    "amounts",
    [
        {"count": 0},
        {"num_cpus": -1},
        {"num_gpus": float("nan")},
        {"num_gpus": "1"},
        {"resources": {"disk": -1}},
        {"cpu_devices": 0},
    ],
)
def test_impossible_amounts_are_rejected(amounts: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Job(**amounts)


def test_a_task_has_gpus_only_on_request() -> None:
    assert device_count(Job(cpu_devices=3)) == {"CPU": 3, "GPU": 0}
    assert device_count(Job(num_gpus=0.5)) == {"CPU": 1}  # no entry for GPUs: the task uses those that it sees

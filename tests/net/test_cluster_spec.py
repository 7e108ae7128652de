"""`train.ClusterSpec`: TensorFlow's accessors, and refused arguments."""

from __future__ import annotations

from typing import Any

import pytest

import aioflow as af
from aioflow.net.cluster_spec import TaskId, parse_task

DENSE = {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
SPARSE = {"worker": {0: "127.0.0.1:1", 2: "127.0.0.1:2"}}


def test_accessors_of_a_dense_cluster() -> None:
    spec = af.train.ClusterSpec(DENSE)
    assert spec.jobs == ["ps", "worker"]
    assert spec.as_dict() == DENSE
    assert (spec.num_tasks("worker"), spec.task_indices("worker")) == (2, [0, 1])
    assert spec.task_address("worker", 1) == "127.0.0.1:2"
    assert spec.job_tasks("worker") == ["127.0.0.1:1", "127.0.0.1:2"]
    assert list(spec.tasks()) == [TaskId("ps", 0), TaskId("worker", 0), TaskId("worker", 1)]
    assert spec
    assert not af.train.ClusterSpec({})


def test_cluster_may_lack_tasks() -> None:
    spec = af.train.ClusterSpec(SPARSE)
    assert spec.as_dict() == SPARSE
    assert (spec.num_tasks("worker"), spec.task_indices("worker")) == (2, [0, 2])
    assert spec.job_tasks("worker") == ["127.0.0.1:1", None, "127.0.0.1:2"]


def test_equality_is_by_content() -> None:
    assert af.train.ClusterSpec(DENSE) == af.train.ClusterSpec(af.train.ClusterSpec(DENSE))
    assert af.train.ClusterSpec(DENSE) != af.train.ClusterSpec(SPARSE)
    assert af.train.ClusterSpec({"a": ["h:1"]}) == af.train.ClusterSpec({"a": {0: "h:1"}})
    assert af.train.ClusterSpec(DENSE) != DENSE


@pytest.mark.parametrize("call", [("num_tasks", "chief"), ("task_address", "worker", 2), ("task_indices", "x")])
def test_missing_job_or_task_is_named(call: tuple[Any, ...]) -> None:
    name, *arguments = call
    with pytest.raises(af.errors.NotFoundError) as raised:
        getattr(af.train.ClusterSpec(DENSE), name)(*arguments)
    assert raised.value.actual == arguments[-1]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        ["127.0.0.1:1"],
        {"worker": "127.0.0.1:1"},
        {"worker": [1]},
        {"worker": {-1: "127.0.0.1:1"}},
        {"worker": {"0": "127.0.0.1:1"}},
        {"worker": ["127.0.0.1"]},
        {"worker": ["127.0.0.1:99999"]},
        {"no such/job": ["127.0.0.1:1"]},
    ],
)
def test_invalid_cluster_is_refused(wrong: Any) -> None:
    with pytest.raises(af.errors.InvalidArgumentError):
        af.train.ClusterSpec(wrong)


def test_task_names_are_written_and_parsed() -> None:
    assert TaskId("ps", 3).name == "/job:ps/replica:0/task:3"
    assert parse_task(TaskId("ps", 3).name) == TaskId("ps", 3)
    with pytest.raises(af.errors.InvalidArgumentError):
        parse_task("/job:ps")


def test_replica_device_setter_places_variables_in_turn() -> None:
    cluster = {"ps": ["127.0.0.1:1", "127.0.0.1:2"], "worker": ["127.0.0.1:3"]}
    with af.device(af.train.replica_device_setter(worker_device="/job:worker/task:0", cluster=cluster)):
        a, b, c = (af.Variable([1.0], name=name) for name in "abc")
        y = a * 2.0
        with af.device("/job:ps/task:1"):
            held = af.constant(1.0)
    assert [v.handle.op.device for v in (a, b, c)] == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert (y.device, held.device) == ("/job:worker/task:0", "/job:ps/task:1")
    assert af.train.replica_device_setter() is None
    assert af.train.replica_device_setter(cluster={"worker": ["127.0.0.1:1"]}) is None


def test_replica_device_setter_accepts_a_strategy() -> None:
    with af.device(af.train.replica_device_setter(ps_tasks=3, ps_strategy=lambda op: 2)):
        assert af.Variable([1.0]).handle.op.device == "/job:ps/task:2"
    with af.device(af.train.replica_device_setter(ps_tasks=1, merge_devices=False)):
        assert af.constant(1.0).device == "/job:worker"
        with af.device("/cpu:0"):
            assert af.Variable([1.0]).handle.op.device == "/device:CPU:0"

"""Cluster resolvers against TensorFlow's: the same cluster and task from `TF_CONFIG` and from Slurm's variables."""

from __future__ import annotations

import json
from typing import Any

import pytest

import aioflow as af

CLUSTER = {"chief": ["c:1"], "ps": ["p0:1", "p1:1"], "worker": ["w0:1", "w1:1", "w2:1"]}


@pytest.mark.parametrize(("job", "index"), [("chief", 0), ("ps", 1), ("worker", 2), ("worker", "1")])
def test_tf_config(job: str, index: Any, monkeypatch: pytest.MonkeyPatch, tf: Any) -> None:
    document = {"cluster": CLUSTER, "task": {"type": job, "index": index}, "environment": "cloud", "rpc_layer": "grpc"}
    monkeypatch.setenv("TF_CONFIG", json.dumps(document))
    theirs = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    ours = af.distributed.cluster_task()
    assert (ours.job_name, ours.task_index) == (theirs.task_type, theirs.task_id)
    assert ours.cluster.as_dict() == theirs.cluster_spec().as_dict()


@pytest.mark.parametrize(
    ("hosts", "per_host", "jobs"),
    [
        ("m5,n[1-2]", "1,2(x2)", {"ps": 1, "worker": 4}),
        ("gpu[08-11]", "1(x4)", {"chief": 1, "ps": 1, "worker": 2}),
        ("login", "3", {"worker": 3}),
        ("a1,b[3-4,6]", "1,2,1(x2)", {"worker": 5}),
    ],
)
def test_slurm(hosts: str, per_host: str, jobs: dict[str, int], monkeypatch: pytest.MonkeyPatch, tf: Any) -> None:
    """Use sorted host lists only: TensorFlow sorts the hosts, although Slurm assigns ranks in list order."""
    total = sum(jobs.values())
    variables = {"STEP_NODELIST": hosts, "STEP_TASKS_PER_NODE": per_host, "STEP_NUM_TASKS": str(total)}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for rank in range(total):
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        theirs = tf.distribute.cluster_resolver.SlurmClusterResolver(
            jobs, port_base=7000, gpus_per_node=8, gpus_per_task=1, auto_set_gpu=False
        )
        spec = theirs.cluster_spec()
        ours = af.distributed.cluster_task(slurm_jobs=jobs, slurm_port=7000)
        assert ours.cluster.as_dict() == spec.as_dict()
        assert (ours.job_name, ours.task_index) == tuple(theirs.get_task_info())

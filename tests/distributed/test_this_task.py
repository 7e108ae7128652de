"""Discovery of a process's cluster and task: every source, and their precedence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioflow as af
from aioflow.arguments import brief
from aioflow.distributed import ClusterTask, cluster_task
from aioflow.distributed.cluster_sources import parse_toml
from aioflow.errors import InvalidArgumentError, NotFoundError, OpError

CLUSTER: dict[str, Any] = {"ps": ["h0:1"], "worker": ["h1:1", "h2:1", "h3:1"]}
SLURM = {
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
}
JOBS = {"ps": 1, "worker": 3}


def tf_config(cluster: Any = None, **task: Any) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": CLUSTER if cluster is None else cluster, "task": task})}


def place(found: ClusterTask) -> tuple[str, int]:
    return found.job_name, found.task_index


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(InvalidArgumentError) as raised:
        cluster_task(*args, **{"environment": {}, **options})
    return str(raised.value)


# ── TF_CONFIG ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("index", [1, "1"])
def test_tf_config_determines_cluster_and_task(index: Any) -> None:
    found = cluster_task(environment=tf_config(type="worker", index=index))
    assert place(found) == ("worker", 1)
    assert found.cluster == af.train.ClusterSpec(CLUSTER)
    assert set(found.came_from.values()) == {"TF_CONFIG"}


def test_cluster_in_tf_config_may_be_sparse() -> None:
    found = cluster_task(environment=tf_config({"worker": {"0": "a:1", "7": "b:1"}}, type="worker", index=7))
    assert found.cluster.as_dict() == {"worker": {0: "a:1", 7: "b:1"}}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "7",
        '{"task": 7}',
        '{"task": {"type": 7}}',
        '{"task": {"index": -1}}',
        '{"task": {"index": true}}',
        '{"task": {"index": "x"}}',
        '{"cluster": 7}',
        '{"cluster": {"a": 7}}',
        '{"cluster": {"a": [7]}}',
        "[" * 100_000,
        '{"cluster": {"a": {"1": "b:1", "x": "c:1"}}}',
        '{"cluster": {"a": ["b"]}}',
        '{"cluster": {"": ["b:1"]}}',
    ],
    ids=brief,
)
def test_invalid_tf_config_is_named_in_the_error(text: str) -> None:
    assert "TF_CONFIG" in refused(environment={"TF_CONFIG": text})


def test_empty_tf_config_is_ignored() -> None:
    assert "no cluster" in refused(environment={"TF_CONFIG": " "})
    assert "no cluster" in refused(environment={"TF_CONFIG": "{}"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("h:1"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["cluster", "task", "type", "index", "ps", "0", "1"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_in_tf_config_is_a_task_or_a_typed_error(document: Any) -> None:
    try:
        found = cluster_task(environment={"TF_CONFIG": json.dumps(document)})
    except OpError:
        return
    assert found.task_index in found.cluster.task_indices(found.job_name)


# ── task indices from the environment ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["JOB_COMPLETION_INDEX", "SLURM_PROCID"])
def test_auto_index_is_read_from_the_environment(name: str) -> None:
    found = cluster_task({"worker": "job-{0..3}.svc:2222"}, task_index="auto", environment={name: "3"})
    assert place(found) == ("worker", 3)
    assert found.cluster.task_address("worker", 3) == "job-3.svc:2222"
    assert found.came_from == {"cluster": "cluster", "job": "the cluster", "task": name}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"JOB_COMPLETION_INDEX": "x"},
        {"JOB_COMPLETION_INDEX": "-1"},
        {"JOB_COMPLETION_INDEX": "9" * 5000},
        {"JOB_COMPLETION_INDEX": "1", "SLURM_PROCID": "1"},
    ],
)
def test_invalid_or_ambiguous_index_is_refused(environment: dict[str, str]) -> None:
    assert "JOB_COMPLETION_INDEX" in refused(CLUSTER, "worker", "auto", environment=environment)


def test_environment_index_is_used_only_on_request() -> None:
    """Ignore the rank: a worker started by hand within an allocation is not the task of that rank."""
    with pytest.raises(InvalidArgumentError, match="do not identify one task"):
        cluster_task(CLUSTER, "worker", environment={"SLURM_PROCID": "1", "JOB_COMPLETION_INDEX": "1"})


# ── Slurm ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_slurm_determines_cluster_and_task() -> None:
    found = cluster_task(slurm_jobs=JOBS, slurm_port=7000, environment=SLURM)
    assert found.cluster.as_dict() == {"ps": ["n1:7000"], "worker": ["n1:7001", "n2:7000", "n2:7001"]}
    assert place(found) == ("worker", 1)


def test_every_slurm_rank_gets_its_own_task() -> None:
    environment = {**SLURM, "SLURM_TASKS_PER_NODE": "3,1", "SLURM_NODEID": ""}
    places = [cluster_task(slurm_jobs=JOBS, environment={**environment, "SLURM_PROCID": str(n)}) for n in range(4)]
    assert [place(found) for found in places] == [("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2)]
    addresses = [found.cluster.task_address(*place(found)) for found in places]
    assert addresses == ["n1:8888", "n1:8889", "n1:8890", "n2:8888"]


def test_slurm_step_precedes_the_job() -> None:
    step = {"SLURM_STEP_NODELIST": "n2", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    found = cluster_task(slurm_jobs={"worker": 1}, environment={**SLURM, **step})
    assert found.cluster.as_dict() == {"worker": ["n2:8888"]}


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SLURM_PROCID": ""}, "SLURM_PROCID"),
        ({"SLURM_PROCID": "4", "SLURM_NODEID": ""}, "number of tasks differs"),
        ({"SLURM_JOB_NODELIST": ""}, "SLURM_STEP_NODELIST"),
        ({"SLURM_JOB_NODELIST": "n[1-3]"}, "hosts"),
        ({"SLURM_TASKS_PER_NODE": "2(x"}, "SLURM_TASKS_PER_NODE"),
        ({"SLURM_TASKS_PER_NODE": "2(x999999999)"}, "too many"),
        ({"SLURM_TASKS_PER_NODE": "999999999(x60000)"}, "too many"),
        ({"SLURM_TASKS_PER_NODE": "1(x2)"}, "number of tasks differs"),
        ({"SLURM_NODEID": "0"}, "--distribution=block"),
    ],
)
def test_inconsistent_slurm_variables_are_explained(environment: dict[str, str], says: str) -> None:
    assert says in refused(slurm_jobs=JOBS, environment={**SLURM, **environment})


@pytest.mark.parametrize("jobs", [["ps"], 3, {"ps": -1}, {"ps": "3"}, {"ps": 10**9}, {}])
def test_invalid_slurm_jobs_are_refused(jobs: Any) -> None:
    assert refused(slurm_jobs=jobs, environment=SLURM)


def test_slurm_ports_out_of_range_are_refused() -> None:
    assert "port" in refused(slurm_jobs=JOBS, slurm_port=0, environment=SLURM)
    assert "ports" in refused(slurm_jobs=JOBS, slurm_port=65535, environment=SLURM)


# ── a file ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_file_determines_cluster_and_task(tmp_path: Path) -> None:
    path = written(tmp_path, 'job = "worker"\ntask = 2\n[cluster]\nps = ["h0:1"]\nworker = "h{1..3}:1"\n')
    found = cluster_task(config=path, environment={})
    assert place(found) == ("worker", 2)
    assert found.cluster == af.train.ClusterSpec(CLUSTER)
    assert set(found.came_from.values()) == {str(path)}


def test_file_may_refer_to_slurm(tmp_path: Path) -> None:
    path = written(tmp_path, "[slurm]\njobs = {ps = 1, worker = 3}\nport = 7000\n")
    assert place(cluster_task(config=path, environment=SLURM)) == ("worker", 1)


@pytest.mark.parametrize(
    "text",
    [
        "job =",
        "job = 7",
        "task = -1",
        "task = 1.5",
        "task = true",
        'task = "first"',
        "jobs = 1",
        "cluster = 1",
        "[slurm]\njob = {}",
        "[slurm]\njobs = 7",
        "[slurm]\nport = 0",
        "[cluster]\na = 7",
        '[cluster]\na = "b"',
        '[cluster]\na = "b:1"\n[slurm]\njobs = {a = 1}',
        "worker = 7",
        "a = " + "[" * 10_000,
    ],
    ids=brief,
)
def test_invalid_file_is_named_in_the_error(tmp_path: Path, text: str) -> None:
    assert "cluster.toml" in refused(config=written(tmp_path, text))


def test_missing_file_is_named_in_the_error() -> None:
    with pytest.raises(NotFoundError, match=r"missing\.toml"):
        cluster_task(config="missing.toml", environment={})


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_raise_a_typed_error(data: bytes) -> None:
    try:
        parse_toml("a file", data)
    except InvalidArgumentError as error:
        assert "a file" in error.message  # noqa: PT017


# ── precedence ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_arguments_precede_the_file_and_the_file_the_environment(tmp_path: Path) -> None:
    path = written(tmp_path, 'job = "worker"\n[cluster]\nworker = ["f0:1", "f1:1"]\n')
    environment = tf_config(type="worker", index=1)
    found = cluster_task(config=path, environment=environment)
    assert found.cluster.as_dict() == {"worker": ["f0:1", "f1:1"]}
    assert found.came_from == {"cluster": str(path), "job": str(path), "task": "TF_CONFIG"}
    found = cluster_task({"worker": ["a0:1"]}, task_index=0, config=path, environment=environment)
    assert found.cluster.as_dict() == {"worker": ["a0:1"]}
    assert found.came_from == {"cluster": "cluster", "job": str(path), "task": "task_index"}


def test_task_index_applies_only_to_its_own_job() -> None:
    found = cluster_task(job_name="ps", environment=tf_config(type="worker", index=2))
    assert place(found) == ("ps", 0)
    with pytest.raises(InvalidArgumentError, match="do not identify one task"):
        cluster_task(job_name="worker", environment=tf_config(type="ps", index=0))


def test_argument_makes_its_other_sources_unnecessary(tmp_path: Path) -> None:
    """Read neither "auto" indices nor Slurm variables when arguments replace them."""
    path = written(tmp_path, 'task = "auto"\n[slurm]\njobs = {worker = 3}\n')
    assert place(cluster_task(CLUSTER, "worker", 1, config=path, environment={})) == ("worker", 1)


def test_error_names_the_source_of_each_value(tmp_path: Path) -> None:
    path = written(tmp_path, 'job = "chief"\n')
    message = refused(CLUSTER, config=path, environment=tf_config(type="chief", index=4))
    for part in ("ps (0 to 0), worker (0 to 2)", "from cluster", f"job chief ({path})", "task 4 (TF_CONFIG)"):
        assert part in message
    assert "two clusters" in refused(CLUSTER, slurm_jobs=JOBS, environment=SLURM)

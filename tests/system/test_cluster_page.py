"""Tests of docs/cluster.md: its programs run, its files are valid, and its commands name existing tasks."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from aioflow.cli.worker_options import WorkerOptions, make_parser, parse_options
from aioflow.distributed.cluster_sources import parse_toml
from tests.support.processes import SECONDS, program

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
TEXT: Final = PAGE.read_text(encoding="utf-8")
BLOCKS: Final = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS: Final = [
    line.partition("-m aioflow.worker ")[2]
    for language, block in BLOCKS
    for line in block.splitlines()
    if language in ("sh", "ini") and "-m aioflow.worker " in line
]


def blocks(language: str) -> list[str]:
    return [block for of, block in BLOCKS if of == language]


def told(arguments: list[str], environment: dict[str, str], folder: Path) -> WorkerOptions:
    """Return the options that a worker derives from these arguments, with the configuration file of the page."""
    [file] = blocks("toml")
    (folder / "cluster.toml").write_text(file, encoding="utf-8")
    (folder / "secret").touch(0o600)
    (folder / "secret").write_text("0" * 64, encoding="utf-8")
    here = [str(folder / "cluster.toml") if word.endswith("cluster.toml") else word for word in arguments]
    here = [f"--secret-file={folder / 'secret'}" if word.startswith("--secret-file=") else word for word in here]
    return parse_options(make_parser("worker", ""), here, environment)


def test_toml_file_of_the_page_is_valid() -> None:
    [file] = blocks("toml")
    assert parse_toml("cluster.toml", file.encode()).worker == {"cpus": 2, "drain-seconds": 30}


def test_table_of_the_page_has_all_keys_of_a_file() -> None:
    keys = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
    documented = set(re.findall(r"`\[?(\w+)\]?`", " ".join(keys)))
    assert documented == {"job", "task", "cluster", "slurm", "limits", "worker"}


def test_page_names_all_options_of_a_worker() -> None:
    """Accept an option in the text or in an example."""
    options = set(re.findall(r"--[a-z-]+", make_parser("worker", "").format_help()))
    page = set(re.findall(r"--[a-z-]+", TEXT)) | {f"--{name}" for name in re.findall(r"`([a-z-]+)`", TEXT)}
    assert options - page <= {"--version", "--help"}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_page_names_an_existing_task(command: str, tmp_path: Path) -> None:
    hosts = {"SLURM_JOB_NODELIST": "n[1-5]", "SLURM_TASKS_PER_NODE": "1(x5)", "SLURM_NODEID": "4", "SLURM_PROCID": "4"}
    found = told(shlex.split(command.replace("%i", "3")), hosts if "--slurm" in command else {}, tmp_path)
    assert found.task.task_index in found.task.cluster.task_indices(found.task.job_name)
    if "--slurm" in command:
        assert found.task.cluster.as_dict()["ps"] == ["n1:8888"]
        assert (found.task.job_name, found.task.task_index) == ("worker", 3)


def test_every_section_has_a_command() -> None:
    assert len(COMMANDS) >= 6
    for name in ("## One process", "## Several processes", "## systemd", "## Five machines with Slurm"):
        section = TEXT.partition(name)[2].partition("\n## ")[0]
        assert "-m aioflow.worker" in section, name


def test_systemd_unit_allows_more_time_than_draining_takes(tmp_path: Path) -> None:
    [unit] = blocks("ini")
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(unit)
    assert set(parser.sections()) == {"Unit", "Service", "Install"}
    arguments = parser["Service"]["ExecStart"].partition("aioflow.worker ")[2].replace("%i", "0").split()
    options = told(arguments, {}, tmp_path)
    assert float(parser["Service"]["TimeoutStopSec"]) > options.drain_seconds


def test_pod_arguments_name_every_task_once(tmp_path: Path) -> None:
    manifest = next(block for block in blocks("yaml") if "kind: Job" in block)
    tasks: list[tuple[str, int]] = []
    clusters = set()
    for document in manifest.split("---\n")[1:]:
        arguments = re.findall(r"^ +- (--\S+)$", document, re.MULTILINE)
        [completions] = re.findall(r"^  completions: (\d+)$", document, re.MULTILINE)
        for index in range(int(completions)):
            options = told(arguments, {"JOB_COMPLETION_INDEX": str(index)}, tmp_path)
            tasks.append((options.task.job_name, options.task.task_index))
            clusters.add(json.dumps(options.task.cluster.as_dict()))
            [name] = re.findall(r"^metadata:\n  name: (\S+)$", document, re.MULTILINE)
            address = options.task.cluster.task_address(*tasks[-1])
            assert address == f"{name}-{index}.training:2222"  # the name of the pod in Kubernetes
    assert len(clusters) == 1
    assert sorted(tasks) == [("ps", 0), *(("worker", n) for n in range(4))]


def test_manifest_is_valid_yaml_and_consistent(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is of the extra `test`")
    manifest = next(block for block in blocks("yaml") if "kind: Job" in block)
    service, *jobs = yaml.safe_load_all(manifest)
    assert service["spec"]["clusterIP"] == "None"
    for job in jobs:
        spec = job["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["completions"] == spec["parallelism"]
        pod = spec["template"]["spec"]
        assert pod["subdomain"] == service["metadata"]["name"]
        labels = spec["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        [container] = pod["containers"]
        assert container["command"] == ["python", "-m", "aioflow.worker"]
        # The probes request the status page of this worker, which listens inside the pod alone.
        health = {each["name"]: each["value"] for each in container["env"]}["AIOFLOW_HEALTH"]
        options = told(container["args"], {"JOB_COMPLETION_INDEX": "0"}, tmp_path)
        assert health == f"http://127.0.0.1:{options.status_port}/health"


def test_kuberay_manifest_is_valid_yaml_with_one_image() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is of the extra `test`")
    manifest = yaml.safe_load(next(block for block in blocks("yaml") if "kind: RayJob" in block))
    cluster = manifest["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert len({container["image"] for container in containers}) == 1
    for container in containers:
        assert container["resources"]["requests"] == container["resources"]["limits"]
    [workers] = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    assert cluster["rayVersion"].count(".") == 2


def test_program_of_the_page_finds_its_task(tmp_path: Path) -> None:
    done = pasted(next(code for code in blocks("python") if "cluster_task" in code), tmp_path)
    assert done.stdout == "job local, task 0 (cluster from cluster, job from the cluster, task from the cluster) 42.0\n"
    assert done.stderr == ""


def test_program_of_the_page_starts_its_cluster(tmp_path: Path) -> None:
    done = pasted(next(code for code in blocks("python") if "processes.start" in code), tmp_path)
    assert done.stdout == "['ps', 'worker'] 42.0\n"
    assert done.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_program_with_a_server_drains_and_exits_on_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(next(code for code in blocks("python") if "SIGTERM" in code), encoding="utf-8")
    with program("-W", "error", str(file), stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serves at aioflow://127.0.0.1:")
        process.terminate()
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def pasted(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program from a file, and return the finished process."""
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-W", "error", str(file)], capture_output=True, text=True, check=True, timeout=SECONDS
    )


def test_page_shows_the_line_that_a_worker_prints_to_stderr(tmp_path: Path) -> None:
    shown = next(block for block in blocks("") if "cluster from" in block)
    options = told(["--config", "cluster.toml", "--job", "worker", "--task", "3"], {}, tmp_path)
    said = str(options.task).replace(str(tmp_path / "cluster.toml"), "cluster.toml")
    assert shown == f"python -m aioflow.worker: {said}\n"

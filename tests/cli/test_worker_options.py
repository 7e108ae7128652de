"""Options of `python -m aioflow.worker`: command line, file, environment, and their errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aioflow.cli.worker_options import WorkerOptions, make_parser, parse_options
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.net.comm import CommOptions
from aioflow.net.limit_settings import LIMIT_NAMES, with_limits
from aioflow.net.limits import Limits
from aioflow.net.server import server_options
from aioflow.worker import main

CLUSTER = ["--cluster", "ps=127.0.0.1:1", "--cluster", "worker=127.0.0.1:{2..5}"]
FILE = """
job = "worker"
task = 3

[cluster]
worker = "127.0.0.1:{2..5}"

[worker]
cpus = 4
status-port = 9090
drain-seconds = 2.5
import = ["json", "math"]
"""


def parsed(*arguments: str, environment: dict[str, str] | None = None) -> WorkerOptions:
    return parse_options(make_parser("worker", "A worker."), arguments, environment or {})


def task(options: WorkerOptions) -> tuple[str, int]:
    return options.task.job_name, options.task.task_index


def settings(options: WorkerOptions) -> tuple[int, int | None, float]:
    return options.cpus, options.status_port, options.drain_seconds


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    return str(path)


def test_options_from_the_command_line() -> None:
    options = parsed(*CLUSTER, "--job", "worker", "--task", "2", "--cpus", "2", "--drain-seconds", "0")
    assert task(options) == ("worker", 2)
    assert options.task.cluster.task_address("worker", 2) == "127.0.0.1:4"
    assert settings(options) == (2, None, 0.0)
    assert options.task.comes_from("--")


def test_options_from_a_file(file: str) -> None:
    options = parsed("--config", file)
    assert task(options) == ("worker", 3)
    assert settings(options) == (4, 9090, 2.5)


def test_command_line_overrides_the_file_and_its_whole_cluster(file: str) -> None:
    options = parsed("--config", file, *CLUSTER, "--task", "1", "--cpus", "1", "--status-port", "0")
    assert task(options) == ("worker", 1)
    assert options.task.cluster.jobs == ["ps", "worker"]
    assert settings(options) == (1, 0, 2.5)
    assert options.task.came_from == {"cluster": "--cluster", "job": file, "task": "--task"}


def test_environment_supplies_missing_options(file: str) -> None:
    document = {"cluster": {"worker": ["127.0.0.1:7", "127.0.0.1:8"]}, "task": {"type": "worker", "index": 1}}
    environment = {"TF_CONFIG": json.dumps(document), "JOB_COMPLETION_INDEX": "2"}
    assert task(parsed(environment=environment)) == ("worker", 1)
    assert settings(parsed(environment=environment)) == (1, None, 10.0)
    assert task(parsed("--config", file, "--task", "auto", environment=environment)) == ("worker", 2)


def test_bind_address_from_the_file_or_the_command_line(file: str, tmp_path: Path) -> None:
    assert parsed(*CLUSTER, "--job", "ps").bind is None
    bound = tmp_path / "bound.toml"
    bound.write_text(FILE + 'bind = "0.0.0.0"\n')
    assert parsed("--config", str(bound)).bind == "0.0.0.0"
    assert parsed("--config", str(bound), "--bind", "[::]:7").bind == "[::]:7"


def test_slurm_supplies_cluster_and_task() -> None:
    environment = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
    options = parsed("--slurm", "ps=1,worker=1", "--slurm-port", "7000", environment=environment)
    assert task(options) == ("worker", 0)
    assert options.task.cluster.as_dict() == {"ps": ["n1:7000"], "worker": ["n2:7000"]}


def test_unquoted_range_is_suspected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(make_parser("worker", ""), ["--cluster", "w=127.0.0.1:1", "w=127.0.0.1:2"], {})
    assert "unrecognized arguments: w=127.0.0.1:2; a range needs quotes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("cpus = 0", "'0' is not a number of at least 1"),
        ("cpus = true", "cpus"),
        ("cpu = 1", "an unknown key"),
        ("cluster = 'a=b:1'", "an unknown key"),
        ("config = 'other.toml'", "an unknown key"),
        ("help = 1", "an unknown key"),
        ("status-port = 99999", "from 0 to 65535"),
        ("drain-seconds = -1", "'-1' is not a number of seconds"),
        ("drain-seconds = nan", "'nan' is not a number of seconds"),
        ("import = 'no_such_module'", "No module named 'no_such_module'"),
        ("import = [['json']]", "import"),
        ("'' = 1", "an unknown key"),
    ],
)
def test_wrong_setting_is_reported_with_its_file(tmp_path: Path, settings: str, says: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f"[cluster]\na = '127.0.0.1:1'\n[worker]\n{settings}\n")
    with pytest.raises(InvalidArgumentError) as raised:
        parsed("--config", str(path))
    assert "cluster.toml: [worker]" in raised.value.message
    assert says in raised.value.message


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--slurm", "ps"], "JOB=COUNT"),
        (["--slurm", "ps=1,ps=2"], "JOB=COUNT"),
        (["--slurm", "ps=1"], "SLURM_PROCID"),
        ([*CLUSTER, "--slurm", "ps=1"], "two clusters"),
        ([*CLUSTER, "--job", "worker", "--task", "auto"], "JOB_COMPLETION_INDEX"),
        ([*CLUSTER, "--job", "worker", "--task", "x"], "'x' is not a number"),
        ([*CLUSTER, "--job", "worker"], "job worker (--job), no task"),
        (["--cluster", "ps=127.0.0.1:{1..0}"], "runs backwards"),
        (["--cluster", "ps=127.0.0.1:{1..99999}"], "too many"),
        (["--config", "missing.toml"], "missing.toml cannot be read"),
        ([*CLUSTER, "--drain-seconds", "inf"], "'inf' is not a number of seconds"),
    ],
)
def test_mistake_is_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TF_CONFIG", "JOB_COMPLETION_INDEX", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    try:
        status: Any = main(arguments)
    except SystemExit as stopped:
        status = stopped.code
    [line] = capsys.readouterr().err.splitlines()
    assert status == 2
    assert says in line


def test_allow_dir_of_the_command_line_replaces_the_files(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE + 'allow-dir = ["/data", "/runs"]\n')
    assert list(parsed("--config", str(path)).allow_dir) == ["/data", "/runs"]
    assert list(parsed("--config", str(path), "--allow-dir", "/tmp").allow_dir) == ["/tmp"]
    assert list(parsed(*CLUSTER, "--job", "ps", "--task", "0").allow_dir) == []


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LIMITS = """
[limits]
open_bytes = 1_000_000
step_seconds = 2.5
peers = 7
"""


def test_limits_of_the_command_line_override_the_files(file: str) -> None:
    Path(file).write_text(FILE + LIMITS)
    options = parsed(
        "--config", file, "--limit", "open_bytes=5", "--limit", "connections=3", "--limit", "step_seconds=0.5"
    )
    found = with_limits(server_options(), options.limits)
    assert (found.connections, found.peers, found.unauthenticated) == (3, 7, server_options().unauthenticated)
    assert found.limits == replace(Limits(), open_bytes=5, step_seconds=0.5)
    assert (found.heartbeat, found.misses) == (server_options().heartbeat, server_options().misses)
    assert not parsed(*CLUSTER, "--job", "worker", "--task", "2").limits


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_every_limit_has_a_name(name: str) -> None:
    options = with_limits(CommOptions(), {name: 1003})
    assert 1003 in (getattr(options, name, None), getattr(options.limits, name, None))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nothing = 1", "unknown limit"),
        ("handshake_timeout = 0", "handshake_timeout is out of range"),
        ("handshake_timeout = -1.5", "handshake_timeout is out of range"),
        ("peers = -1", "CommOptions.peers"),
        ("parts = 1.5", "Limits.parts"),
        ("parts = true", "Limits.parts"),
        ("parts = '1'", "Limits.parts"),
        ("header_bytes = 0", "header_bytes"),
        ("step_seconds = nan", "step_seconds"),
    ],
)
def test_invalid_limit_is_rejected(file: str, text: str, told: str) -> None:
    Path(file).write_text(f"{FILE}[limits]\n{text}\n")
    with pytest.raises((InvalidArgumentError, DTypeError), match=r"\[limits\]") as raised:
        parsed("--config", file)
    assert told in str(raised.value)
    with pytest.raises(SystemExit):
        parsed("--config", file, "--limit", text.replace(" ", ""))

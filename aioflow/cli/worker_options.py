"""The options of `python -m aioflow.worker`, from the command line and from a file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aioflow
from aioflow.cli.arguments import (
    Parser,
    add_imports,
    add_logs,
    count,
    file,
    given_logs,
    patience,
    port,
    positive,
    stored_file,
    up_to,
)
from aioflow.cli.cluster import CREDENTIALS, add_credentials, given_credentials, parse_cluster
from aioflow.cli.option_files import parse_table
from aioflow.distributed.cluster_settings import AUTO, ClusterTask, GivenSettings
from aioflow.distributed.cluster_sources import FIRST_PORT, find_task, parse_jobs, read_toml
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.net.comm import CommOptions
from aioflow.net.credentials import Credentials
from aioflow.net.limit_settings import parse_limit, with_limits
from aioflow.observe.logs import LogOptions

DRAIN_SECONDS: Final = 10.0


class WorkerOptions(NamedTuple):
    """The options of a worker.

    Attributes:
        task: The worker's task and its cluster.
        bind: Address to listen at; None for the task's address in the cluster.
        cpus: Number of CPU devices.
        allow_dir: Folders in which graphs may open files.
        status_port: Port of the status page; None for no status page.
        drain_seconds: Maximum wait for running steps at shutdown.
        until_eof: Whether the worker ends at the end of its standard input.
        credentials: Credentials of the worker, by which it also authenticates others.
        limits: Limits on the requests of clients and peers, by name.
        logs: The form of the logs.
    """

    task: ClusterTask
    bind: str | None
    cpus: int
    allow_dir: Sequence[str]
    status_port: int | None
    drain_seconds: float
    until_eof: bool
    credentials: Credentials
    limits: Mapping[str, int | float]
    logs: LogOptions


# Defaults of options that neither the command line nor the file sets.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "bind": None,
    "cpus": 1,
    "allow_dir": (),
    "status_port": None,
    "drain_seconds": DRAIN_SECONDS,
}


def make_parser(program: str, description: str) -> Parser:
    """Return the parser of the command line. Options that are not used have no attribute in its result."""
    # SUPPRESS: the default of an unused option must not override the setting of the file.
    parser = Parser(prog=program, description=description, argument_default=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"aioflow {aioflow.__version__}")
    which = parser.add_argument_group("cluster and task", "defaults come from --config or TF_CONFIG")
    which.add_argument("--config", type=file, metavar="FILE", help="TOML file; the other options override it")
    which.add_argument(
        "--cluster",
        action="append",
        metavar="JOB=HOST:PORT[,…]",
        help="tasks of a job; once per job. Ranges: 'worker=job-{0..3}.svc:2222'",
    )
    which.add_argument("--job", help="job of this task")
    which.add_argument(
        "--task", type=_task, help="task number in the job; auto: JOB_COMPLETION_INDEX (Kubernetes) or SLURM_PROCID"
    )
    which.add_argument(
        "--slurm", metavar="JOB=COUNT[,…]", help="use the tasks that Slurm has started as the cluster: ps=1,worker=3"
    )
    which.add_argument(
        "--slurm-port", type=up_to(65535), metavar="PORT", help=f"port of each host's first task ({FIRST_PORT})"
    )
    parser.add_argument(
        "--limit",
        action="append",
        type=_limit,
        metavar="NAME=NUMBER",
        help="limit on clients and peers, such as open_bytes=1000000000; see [limits] in docs/cluster.md",
    )
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="drain and exit at the end of standard input, which the exit of the parent process causes",
    )
    _add_settings(parser)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that the `[worker]` section of a file may also have."""
    parser.add_argument(
        "--bind",
        metavar="HOST[:PORT]",
        help="address to listen on, if other tasks connect by a different one (containers, NAT)",
    )
    parser.add_argument("--cpus", type=positive, help=f"number of CPU devices ({_DEFAULTS['cpus']})")
    parser.add_argument(
        "--allow-dir",
        action="append",
        type=stored_file,
        metavar="FOLDER",
        help="folder, or its URL in a store, in which graphs may use files; may be repeated (none)",
    )
    parser.add_argument("--status-port", type=port, metavar="PORT", help="serve /health and /metrics here; 0: any port")
    parser.add_argument(
        "--drain-seconds",
        type=patience,
        metavar="SECONDS",
        help=f"time for running steps to finish after SIGTERM ({DRAIN_SECONDS:g})",
    )
    add_logs(parser)
    add_imports(parser)
    add_credentials(parser)


def _limit(text: str) -> tuple[str, int | float]:
    try:
        limit = parse_limit(text)
        # Checked alone here, to name the option; the result is discarded.
        with_limits(CommOptions(credentials=Credentials()), dict([limit]))
    except (InvalidArgumentError, DTypeError) as error:
        raise argparse.ArgumentTypeError(f"{error.message}: expected {error.expected}, not {error.actual}") from error
    return limit


def _task(text: str) -> int | str:
    return AUTO if text == AUTO else count(text)


def parse_options(parser: Parser, arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerOptions:
    """Return the options of the command line; those that it leaves out come from its file and the environment.

    Raises:
        InvalidArgumentError: as in `cluster_task`; or a setting of the file or a credential is wrong.
        NotFoundError: as in `cluster_task`; or a file of a credential cannot be read.
    """
    # Not `parse_args`, so that the error can mention a range that the shell has expanded.
    known, rest = parser.parse_known_args(arguments)
    if rest:
        is_range = any("=" in word and not word.startswith("-") for word in rest)
        hint = "; a range needs quotes, or else the shell expands it" if is_range else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    flags = vars(known)
    jobs = flags.get("slurm")
    given = [
        GivenSettings(
            "--{}".format,
            parse_cluster(flags["cluster"]) if "cluster" in flags else None,
            flags.get("job"),
            flags.get("task"),
            None if jobs is None else parse_jobs(jobs),
            flags.get("slurm_port", FIRST_PORT),
        )
    ]
    settings: Mapping[str, Any] = {}
    limits: Mapping[str, Any] = {}
    if "config" in flags:
        found = read_toml(flags["config"])
        settings = parse_table(f"{flags['config']}: [worker]", found.worker, _add_settings)
        limits = _limits_of_file(flags["config"], found.limits)
        given.append(found.given)
    # In order of precedence: the command line, the file, the environment.
    task = find_task(given, environment)
    chosen = {name: flags.get(name, settings.get(name, default)) for name, default in _DEFAULTS.items()}
    proofs = {name: flags.get(name, settings.get(name)) for name in CREDENTIALS}
    chosen["until_eof"] = "until_eof" in flags
    # The command line overrides the file.
    limits = {**limits, **dict(flags.get("limit", ()))}
    return WorkerOptions(
        task,
        **chosen,
        credentials=given_credentials(argparse.Namespace(**proofs)),
        limits=limits,
        logs=given_logs({**settings, **flags}),
    )


def _limits_of_file(path: Path, limits: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        with_limits(CommOptions(credentials=Credentials()), limits)
    except (InvalidArgumentError, DTypeError) as error:
        error.message = f"{path}: [limits]: {error.message}"
        raise
    return limits

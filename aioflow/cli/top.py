"""`aioflow top`: watch the servers of a cluster: steps and their waits, lag, memory."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Final

from aioflow.cli import program, tables
from aioflow.cli.arguments import Commands, seconds
from aioflow.cli.cluster import add_credentials, given_credentials, parse_cluster
from aioflow.cli.devices import readable_size
from aioflow.compiler.place.timeline_svg import time_text
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, OpError, UnavailableError
from aioflow.net.cluster_spec import ClusterSpec
from aioflow.net.credentials import Credentials
from aioflow.net.remote_cluster import RemoteCluster
from aioflow.net.status import ServerStatus
from aioflow.net.status_page import printable

_WORKER: Final = "aioflow.worker"  # the module, in the command line of a worker
_CLUSTER: Final = "--cluster"
_PROCESSES: Final = Path("/proc")
_INTERVAL: Final = 2.0
_ANSWER: Final = 3.0  # timeout of a server's answer, in seconds
_STEPS: Final = 5  # shown steps of a server, longest-running first
_WAITS: Final = 3  # shown waits of each step
_ESCAPE: Final = "\x1b["
_CLEAR: Final = f"{_ESCAPE}H{_ESCAPE}J"
_ENTER: Final = f"{_ESCAPE}?1049h{_ESCAPE}?25l"  # the alternate screen, without a cursor
_LEAVE: Final = f"{_ESCAPE}?25h{_ESCAPE}?1049l"


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "top",
        help="watch the servers of a cluster: steps and their waits, lag, memory",
        description="Watch the servers of a cluster: clients, running steps and their waits, queues, event loop lag, "
        "memory. One server is enough: it lists the others. Stop with Ctrl-C.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="HOST:PORT",
        help="address of any server of the cluster; default: that of your workers on this machine (root's for root)",
    )
    parser.add_argument(
        "--cluster",
        action="append",
        metavar="JOB=HOST:PORT[,…]",
        help="addresses of all servers, instead of HOST:PORT; once per job",
    )
    parser.add_argument(
        "--interval",
        type=seconds,
        default=_INTERVAL,
        metavar="SECONDS",
        help=f"time between two updates ({_INTERVAL:g})",
    )
    parser.add_argument("--once", action="store_true", help="show one update and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON object per update, one per line")
    add_credentials(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return program.run(_watch(arguments))


async def _watch(arguments: argparse.Namespace) -> int:
    cluster = await _reached(arguments)
    try:
        if arguments.once:
            found = await _look(cluster)
            _show(arguments, found, {}, 0.0)
            return 0 if any(isinstance(each, ServerStatus) for each in found.values()) else 1
        with _screen(arguments):
            await _again_and_again(arguments, cluster)
    finally:
        await cluster.close()
    return 0


async def _reached(arguments: argparse.Namespace) -> RemoteCluster:
    """Return the cluster, connected to the first server that answers. Raises the error of the last one if none does."""
    (targets, credentials), error = _targets(arguments), None
    for target in targets:
        cluster = RemoteCluster(target, timeout=_ANSWER, credentials=credentials)
        try:
            # The first server lists the others, so none of them is connected here.
            await cluster.connect(others=False)
        except (UnavailableError, DeadlineExceededError) as away:
            # Another server of the cluster may answer.
            error = away
            await cluster.close()
        except BaseException:
            await cluster.close()
            raise
        else:
            return cluster
    raise error or InvalidArgumentError("the cluster has no tasks", expected="at least one task")


def _targets(arguments: argparse.Namespace) -> tuple[list[str], Credentials]:
    """Return the addresses of servers, and the credentials for them."""
    jobs = arguments.cluster or []
    if arguments.target is None and not jobs:
        jobs, environment = _local_cluster()
        credentials = given_credentials(arguments, environment)
    else:
        credentials = given_credentials(arguments)
    spec = ClusterSpec(parse_cluster(jobs))
    targets = [f"aioflow://{spec.task_address(*task)}" for task in spec.tasks()]
    if arguments.target is not None:
        targets.insert(0, arguments.target if "://" in arguments.target else f"aioflow://{arguments.target}")
    return targets, credentials


def _local_cluster() -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the --cluster options and the environment of the effective user's workers, by Linux' /proc.

    Raises:
        InvalidArgumentError: there are no such workers, or those of several clusters.
    """
    found: dict[tuple[str, ...], Mapping[str, str]] = {}
    for process in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if not _is_own(process):
                continue
            command = _texts(process / "cmdline")
            jobs = tuple(_given_jobs(command))
            if _WORKER in command and jobs:
                pairs = (each.partition("=") for each in _texts(process / "environ"))
                found[jobs] = {name: value for name, _, value in pairs}
    if len(found) != 1:
        clusters = "; ".join(sorted(" ".join(jobs) for jobs in found)) or "no worker"
        raise InvalidArgumentError(
            "no cluster is given",
            expected="HOST:PORT, --cluster JOB=HOST:PORT, or workers of one cluster on this machine",
            actual=f"{clusters} on this machine",
        )
    return next(iter(found.items()))


def _is_own(process: Path) -> bool:
    """Return whether this is a Python process of the effective user, with no right of another user.

    Root could read all processes, but would send its credentials to addresses that any user may choose: also by the
    arguments and the environment of a set-uid program, whose owner is root, and whose real user is not.
    """
    if not process.joinpath("exe").readlink().name.startswith("python"):
        return False
    lines = process.joinpath("status").read_text(encoding="utf-8").splitlines()
    users = next(line.split()[1:] for line in lines if line.startswith("Uid:"))  # real, effective, saved, file system
    return set(users) == {str(os.geteuid())}


def _given_jobs(command: Sequence[str]) -> Iterator[str]:
    for option, following in zip(command, [*command[1:], ""], strict=True):
        if option == _CLUSTER:
            yield following
        elif option.startswith(f"{_CLUSTER}="):
            yield option.removeprefix(f"{_CLUSTER}=")


def _texts(file: Path) -> list[str]:
    """Return the strings in a file of /proc, which end with NUL bytes."""
    return [os.fsdecode(each) for each in file.read_bytes().split(b"\0")]


async def _again_and_again(arguments: argparse.Namespace, cluster: RemoteCluster) -> None:
    before: Mapping[str, ServerStatus | OpError] = {}
    looked = monotonic()
    while True:
        found = await _look(cluster)
        now = monotonic()
        _show(arguments, found, before, now - looked)
        # Rates are over the time between two looks, which also includes the wait for slow servers.
        before, looked = found, now
        await asyncio.sleep(arguments.interval)


async def _look(cluster: RemoteCluster) -> Mapping[str, ServerStatus | OpError]:
    return await cluster.status(_ANSWER)


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _screen(arguments: argparse.Namespace) -> Iterator[None]:
    """Switch the terminal to its alternate screen for the duration of the block."""
    if arguments.json or not sys.stdout.isatty():
        yield
        return
    print(_ENTER, end="", flush=True)
    try:
        yield
    finally:
        print(_LEAVE, end="", flush=True)


def _show(
    arguments: argparse.Namespace,
    found: Mapping[str, ServerStatus | OpError],
    before: Mapping[str, ServerStatus | OpError],
    passed: float,
) -> None:
    if arguments.json:
        print(json.dumps(_document(found)), flush=True)
        return
    # Texts of other machines could contain escape sequences of the terminal.
    lines = [printable(line) for line in _lines(found, before, passed)]
    if arguments.once or not sys.stdout.isatty():
        print("\n".join(lines) + ("" if arguments.once else "\n"), flush=True)
        return
    columns, height = shutil.get_terminal_size()
    # Full lines would wrap and scroll the screen.
    shown = "\n".join(line[: columns - 1] for line in lines[: height - 1])
    print(_CLEAR + shown, end="", flush=True)


def _lines(
    found: Mapping[str, ServerStatus | OpError], before: Mapping[str, ServerStatus | OpError], passed: float
) -> Iterator[str]:
    servers = {task: status for task, status in found.items() if isinstance(status, ServerStatus)}
    running = sum(status.activity.running for status in servers.values())
    yield f"{len(servers)} of {tables.plural(len(found), 'server')}, {tables.plural(running, 'step')} in flight"
    yield ""
    heads = ("task", "state", "up", "clients", "parts", "steps", "begun", "a second", "failed", "lag", "peak memory")
    table = [heads, *(_row(task, status, before.get(task), passed) for task, status in found.items())]
    yield from tables.rows(table, right=range(2, len(heads)), indent="")
    for task, status in servers.items():
        yield from _details(task, status)


def _row(
    task: str, status: ServerStatus | OpError, before: ServerStatus | OpError | None, passed: float
) -> tuple[str, ...]:
    if not isinstance(status, ServerStatus):
        return (task, f"unreachable: {status.message}"[:60], *[""] * 9)
    activity = status.activity
    rate = ""
    # A server that was restarted counts from 0, and has no rate until the next look.
    if isinstance(before, ServerStatus) and passed and activity.begun >= before.activity.begun:
        rate = f"{(activity.begun - before.activity.begun) / passed:,.1f}"
    return (
        task,
        status.state,
        _duration(status.seconds),
        f"{activity.connections:,}",
        f"{activity.parts:,}",
        f"{activity.running:,}",
        f"{activity.begun:,}",
        rate,
        f"{activity.failed:,}",
        "" if status.lag is None else time_text(status.lag),
        readable_size(activity.memory or None),
    )


def _duration(value: float) -> str:
    if value < 60:
        return f"{value:.1f} s"
    # `divmod` gives (hours, minutes).
    minutes, hours = divmod(int(value) // 60, 60)[::-1]
    return f"{hours}:{minutes:02} h" if hours else f"{minutes} min"


def _details(task: str, status: ServerStatus) -> Iterator[str]:
    activity = status.activity
    steps = sorted(activity.steps, key=lambda step: -step.seconds)
    if steps or activity.queues:
        yield ""
        yield task
    for step in steps[:_STEPS]:
        name = f"step {step.id}" if step.id else "a step on this task only"
        yield f"  {name}, for {_duration(step.seconds)}"
        yield from (f"    {waiting}" for waiting in step.waiting[:_WAITS])
        if len(step.waiting) > _WAITS:
            yield f"    and {len(step.waiting) - _WAITS} more"
    if activity.running > len(steps[:_STEPS]):
        yield f"  and {tables.plural(activity.running - len(steps[:_STEPS]), 'step')} more"
    yield from (f"  {queue}" for queue in activity.queues)


def _document(found: Mapping[str, ServerStatus | OpError]) -> dict[str, object]:
    return {
        task: dataclasses.asdict(status) if isinstance(status, ServerStatus) else {"error": status.message}
        for task, status in found.items()
    }

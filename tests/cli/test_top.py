"""`aioflow top`: real servers as the command shows them, in a pipe, as JSON, and on a terminal."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import aioflow as af
import aioflow.cli.top
from aioflow.cli import main
from aioflow.errors import DataLossError, OpError
from aioflow.net import worker_service
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.remote_cluster import RemoteCluster
from aioflow.net.status import Activity, RunningStep, ServerStatus, pack_status, unpack_status
from tests.net.clusters import cluster
from tests.support.processes import SECONDS, program_on_loop
from tests.support.waiting import until_waiting

PS, WORKER = (f"/job:{job}/replica:0/task:0" for job in ("ps", "worker"))


@asynccontextmanager
async def servers(*jobs: str) -> AsyncIterator[tuple[list[str], list[asyncio.subprocess.Process]]]:
    """Start one task per job and yield the addresses and processes."""
    addresses = free_addresses(len(jobs))
    command = ["-m", "aioflow.worker"]
    for job, address in zip(jobs, addresses, strict=True):
        command += ["--cluster", f"{job}={address}"]
    async with AsyncExitStack() as stack:
        processes = []
        for job in jobs:
            process = await stack.enter_async_context(program_on_loop(*command, "--job", job, "--task", "0"))
            assert process.stdout is not None
            assert b"serves at" in await process.stdout.readline()
            processes.append(process)
        yield addresses, processes


async def top(*arguments: str) -> tuple[int | None, str, str]:
    """Run the command and return its exit status, output and error output."""
    async with program_on_loop("-m", "aioflow", "top", *arguments, stderr=asyncio.subprocess.PIPE) as process:
        async with asyncio.timeout(SECONDS):
            output, errors = await process.communicate()
        return process.returncode, output.decode(), errors.decode()


def process_of_a_worker(folder: Path, jobs: str, users: Iterable[int] = (), program: str = "python3.11") -> None:
    """Make a folder as of a process in Linux' /proc, with its real, effective, saved and file system user."""
    user = os.geteuid()
    folder.mkdir()
    folder.joinpath("cmdline").write_text(f"python\0-m\0aioflow.worker\0--cluster\0{jobs}\0--job\0ps\0")
    folder.joinpath("environ").write_text("HOME=/\0")
    folder.joinpath("exe").symlink_to(f"/usr/bin/{program}")
    listed = "\t".join(map(str, users or [user] * 4))
    folder.joinpath("status").write_text(f"Name:\tpython\nUid:\t{listed}\nGid:\t0\t0\t0\t0\n")


def test_only_python_processes_without_another_user_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user = os.geteuid()
    process_of_a_worker(tmp_path / "1", "ps=localhost:2222")
    process_of_a_worker(tmp_path / "2", "ps=localhost:3333", program="python")
    process_of_a_worker(tmp_path / "3", "ps=localhost:4444", [user + 1, user, user, user])  # as of a set-uid program
    process_of_a_worker(tmp_path / "4", "ps=localhost:5555", program="su")
    monkeypatch.setattr(aioflow.cli.top, "_PROCESSES", tmp_path)
    assert main(["top", "--once"]) == 2
    assert "actual: ps=localhost:2222; ps=localhost:3333 on this machine" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert main(["top", "--once"]) == 2
    assert "no worker on this machine" in capsys.readouterr().err


async def test_stuck_step_is_shown_with_its_waiting_op() -> None:
    async with servers("ps", "worker") as (addresses, processes):
        with af.device(PS):
            queue = af.FIFOQueue(10, ["float32"], shared_name="jobs")
            element = queue.dequeue(name="take")
            put = queue.enqueue([1.0])
        async with af.Session(f"aioflow://{addresses[0]}") as session, asyncio.TaskGroup() as group:
            stuck = group.create_task(session.run(element))
            await until_waiting(session, 2)
            status, output, _ = await top(addresses[1], "--once")
            assert status == 0
            assert output.startswith("2 of 2 servers, 1 step in flight\n")
            rows = {line.split()[0]: line.split() for line in output.splitlines()[:5] if line.startswith("/job")}
            assert rows[PS][1] == rows[WORKER][1] == "serves"
            assert "take on queue 'jobs'" in output
            assert "  queue 'jobs' (size 0, capacity 10, open; waiting: 0 enqueuing, 1 dequeuing)" in output

            status, output, _ = await top(addresses[0], "--once", "--json")
            assert status == 0
            found = json.loads(output)
            activity = found[PS]["activity"]
            assert activity["running"] == len(activity["steps"]) == 1
            assert activity["steps"][0]["seconds"] > 0
            assert activity["memory"] > 10 << 20
            assert 0 <= found[WORKER]["lag"] < SECONDS
            await session.run(put)
            assert await stuck == 1.0
        processes[1].kill()
        await processes[1].wait()
        status, output, _ = await top(
            "--cluster", f"worker={addresses[1]}", "--cluster", f"ps={addresses[0]}", "--once"
        )
        assert status == 0
        assert output.startswith("1 of 2 servers, 0 steps in flight\n")
        assert f"{WORKER}  unreachable: " in output


async def test_top_repeats_and_shows_rates() -> None:
    async with servers("ps") as (addresses, _), af.Session(f"aioflow://{addresses[0]}") as session:
        y = af.constant(1.0)
        command = ["-m", "aioflow", "top", addresses[0], "--interval", "0.05"]
        async with program_on_loop(*command, stderr=asyncio.subprocess.PIPE) as process:
            assert process.stdout is not None
            rates: list[float] = []
            async with asyncio.timeout(SECONDS):
                while not any(rates):
                    await session.run(y)
                    line = (await process.stdout.readline()).decode()
                    if line.startswith(PS):
                        cells = line.split()
                        rates += [float(cells[8])] if len(cells) == 14 else []
                process.send_signal(signal.SIGINT)
                _, errors = await process.communicate()
            assert process.returncode == 128 + signal.SIGINT
            assert errors.decode() == "aioflow: stopped by SIGINT\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudoterminals")
async def test_terminal_is_restored() -> None:
    async with servers("ps") as (addresses, _):
        ours, theirs = os.openpty()
        try:
            async with program_on_loop(
                "-m", "aioflow", "top", addresses[0], "--interval", "0.05", stdout=theirs
            ) as process:
                os.close(theirs)
                seen = b""
                async with asyncio.timeout(SECONDS):
                    while seen.count(b"\x1b[H\x1b[J") < 3:
                        seen += await asyncio.to_thread(os.read, ours, 1 << 16)
                    process.send_signal(signal.SIGINT)
                    while b"\x1b[?1049l" not in seen:
                        seen += await asyncio.to_thread(os.read, ours, 1 << 16)
                    await process.wait()
        finally:
            os.close(ours)
    assert seen.startswith(b"\x1b[?1049h\x1b[?25l"), "the other screen, without a cursor"
    assert seen.endswith(b"\x1b[?25h\x1b[?1049l")
    assert b"1 of 1 server" in seen


async def test_unreachable_cluster_is_one_line() -> None:
    status, output, errors = await top("127.0.0.1:1", "--once")
    assert (status, output) == (2, "")
    assert errors.count("\n") == 1
    assert "127.0.0.1:1" in errors


async def test_cluster_of_a_program_on_this_machine_is_found(tmp_path: Path) -> None:
    # In a folder, since other workers may run on this machine.
    code = "import pathlib, sys\nfrom aioflow.cli import main, top\ntop._PROCESSES = pathlib.Path(sys.argv[1])\n"
    code += "sys.exit(main(['top', '--once']))"
    async with af.distributed.processes.start({"ps": 1, "worker": 1}) as started:
        for task in started.tasks.values():
            (tmp_path / str(task.pid)).symlink_to(f"/proc/{task.pid}")
        async with program_on_loop("-c", code, str(tmp_path)) as process, asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
        assert process.returncode == 0
        assert b"2 of 2 servers" in output


@pytest.mark.parametrize(
    ("clusters", "says"),
    [
        ([], "no worker on this machine"),
        (["ps=h:1", "ps=h:2"], "ps=h:1; ps=h:2 on this machine"),
    ],
)
def test_cluster_must_be_given_if_there_is_not_one(
    clusters: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aioflow.cli.top._PROCESSES", tmp_path)
    for number, jobs in enumerate(clusters):
        process_of_a_worker(tmp_path / str(number), jobs)
    assert main(["top", "--once"]) == 2
    errors = capsys.readouterr().err
    assert "no cluster is given" in errors
    assert says in errors
    assert errors.count("\n") == 1


async def test_server_of_an_earlier_release_has_a_smaller_status() -> None:
    with mock.patch.object(worker_service, "STATUS", "of a later release"):
        async with cluster("ps", "worker", tcp=True) as (ps, _):
            watched = RemoteCluster(ps.target)
            try:
                found = await watched.status(5.0)
            finally:
                await watched.close()
    status = found[WORKER]
    assert isinstance(status, ServerStatus)
    assert (status.task, status.state, status.lag) == (WORKER, "serves", None)


def test_status_is_unchanged_by_packing_and_unpacking() -> None:
    activity = Activity(3, 2, 1, 9, 4, 1, 77, 1 << 30, (RunningStep(5, 1.5, ("a on b",)),), ("queue 'q'",))
    status = ServerStatus(PS, "aioflow://h:1", "drains", 1.5, (f"{PS}/device:CPU:0",), activity, 0.25)
    assert unpack_status(pack_status(status)) == status
    later = pack_status(status)
    later[0][0] = json.dumps({**dataclasses.asdict(status), "of a later release": 1}).encode()
    assert unpack_status(later) == status


@pytest.mark.parametrize(
    "change",
    [
        {"task": 3},
        {"activity": None},
        {"activity": {"running": "many"}},
        {"activity": {"steps": [{"id": 1}]}},
        {"devices": "CPU"},
    ],
)
def test_malformed_statuses_are_rejected(change: dict[str, Any]) -> None:
    tensors = pack_status(ServerStatus(PS, "", "serves", 1.5, (), Activity()))
    document = json.loads(tensors[0][0])
    tensors[0][0] = json.dumps({**document, **change}).encode()
    with pytest.raises(DataLossError):
        unpack_status(tensors)


@pytest.mark.parametrize("text", [b"", b"[1", b"[]", b"[" * 100_000, b"null"])
def test_bytes_that_are_not_a_status_are_rejected(text: bytes) -> None:
    tensors = pack_status(ServerStatus(PS, "", "serves", 1.5, (), Activity()))
    tensors[0][0] = text
    with pytest.raises(OpError):
        unpack_status(tensors)

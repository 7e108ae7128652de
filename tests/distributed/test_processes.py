"""Clusters of local processes: their command lines, restarts after a crash, and their end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

import aioflow as af
from aioflow.cli.worker_options import make_parser, parse_options
from aioflow.distributed.processes import command, environments, start
from aioflow.distributed.supervising import ClusterRequest, Job, StartedCluster, cluster_request, read_jobs
from aioflow.errors import InvalidArgumentError, OpError, UnauthenticatedError, UnavailableError
from aioflow.net.cluster_spec import ClusterSpec, TaskId
from aioflow.net.credentials import Credentials
from tests.support.processes import SECONDS, program_on_loop

KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)


def asked(jobs: Any, **options: Any) -> ClusterRequest:
    given = {"credentials": None, "allow_dirs": (), "imports": (), "max_restarts": 3, "drain_seconds": 2.5}
    return cluster_request(jobs, **(given | options))


# ── command lines and environments ───────────────────────────────────────────────────────────────────────────────────


def test_the_command_line_has_everything_but_the_secret() -> None:
    what = asked({"ps": 1, "worker": Job(2, cpu_devices=3)}, allow_dirs=["/data run", "/x"], imports=["json"])
    spec = ClusterSpec({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"]})
    interpreter, module, *told = command(what, TaskId("worker", 1), spec)
    assert (interpreter, module) == ("-m", "aioflow.worker")
    options = parse_options(make_parser("worker", ""), told, {})
    assert options.task.cluster == spec
    assert (options.task.job_name, options.task.task_index) == ("worker", 1)
    assert options.task.comes_from("--")  # otherwise the worker prints its task
    assert (options.cpus, options.drain_seconds, options.until_eof) == (3, 2.5, True)
    assert options.allow_dir == ["/data run", "/x"]
    secret = what.credentials.secret
    assert secret is not None
    assert secret.decode() not in " ".join(told)
    own = environments(what, {})[TaskId("worker", 1)]
    assert Credentials.from_environment(own).secret == secret


def test_gpus_are_assigned_in_order() -> None:
    jobs = read_jobs({"ps": 1, "worker": Job(2, num_gpus=2)})
    what = ClusterRequest(jobs, Credentials())
    given = [environments(what, environment) for environment in ({}, {"CUDA_VISIBLE_DEVICES": "7,GPU-a,5,MIG-b,1"})]
    gpus = [[own["CUDA_VISIBLE_DEVICES"] for own in found.values()] for found in given]
    assert gpus == [["", "0,1", "2,3"], ["", "7,GPU-a", "5,MIG-b"]]


@pytest.mark.parametrize(("number", "visible"), [(0.5, "0,1"), (2, "0"), (1, "")])
def test_unavailable_gpus_are_rejected(number: float, visible: str) -> None:
    what = ClusterRequest(read_jobs({"worker": Job(num_gpus=number)}), Credentials())
    with pytest.raises(InvalidArgumentError):
        environments(what, {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize("secret", [b" " + b"x" * 16, b"x" * 16 + b"\n", b"x" * 16 + b"\0"])
def test_a_secret_unfit_for_the_environment_is_rejected(secret: bytes) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        environments(ClusterRequest(read_jobs({"ps": 1}), Credentials(secret)), {})
    assert repr(secret)[2:-1] not in str(raised.value)


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def until_serving(cluster: StartedCluster, job: str, restarts: int) -> None:
    status = cluster.status_of(job)
    while (status.state, status.restarts) != ("serves", restarts):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_processes_serve_restart_and_end() -> None:
    with af.device("/job:worker"):
        v = af.Variable(1.0)
        total = v + 41.0
    async with asyncio.timeout(SECONDS):
        async with start({"ps": 1, "worker": 1}) as cluster:
            first = [status.pid for status in cluster.tasks.values()]
            async with af.Session(cluster.target) as session:
                await session.run(v.initializer)
                assert await session.run(total) == 42.0
                os.kill(cluster.status_of("worker").pid, KILL)
                await until_serving(cluster, "worker", restarts=1)
                with pytest.raises(OpError):
                    await session.run(total)  # the variable was lost with its process
                await session.run(v.initializer)
                assert await session.run(total) == 42.0
            health = await cluster.health()
            assert list(health) == list(cluster.tasks)
            assert not [state for state in health.values() if isinstance(state, OpError)]
            pids = first + [status.pid for status in cluster.tasks.values()]
            assert await asyncio.to_thread(refused, cluster.target)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


def refused(target: str) -> bool:
    """Return True if a local client with another secret is rejected."""

    async def run() -> None:
        async with af.Session(target, credentials=Credentials(b"another secret than theirs")):
            raise AssertionError("it is served")

    with pytest.raises(UnauthenticatedError):
        asyncio.run(run())
    return True


async def test_a_worker_that_prints_long_lines_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "talkative.py").write_text("print(200_000 * 'x', flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    async with asyncio.timeout(SECONDS), start({"ps": 1}, imports=["talkative"], max_restarts=0) as cluster:
        assert cluster.status_of("ps").state == "serves"


async def test_a_task_is_lost_if_the_system_cannot_start_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(UnavailableError, match=f"is lost: .*{os.strerror(errno.EMFILE)}.*1 times"):
            async with start({"ps": 1}, max_restarts=1):
                pass


async def test_a_task_without_restarts_is_lost() -> None:
    async def program() -> None:
        async with start({"ps": 1}, max_restarts=0) as cluster:
            os.kill(cluster.status_of("ps").pid, KILL)
            await asyncio.Event().wait()

    async with asyncio.timeout(SECONDS):
        with pytest.raises(UnavailableError, match=r"/job:ps/replica:0/task:0 is lost: .* status") as raised:
            await program()
    assert "at most 0 restarts" in str(raised.value)


async def test_a_task_that_cannot_start_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(SECONDS):
        with pytest.raises(UnavailableError, match="status 2"):
            async with start({"ps": 1}, imports=["no_such_module"], max_restarts=1):
                raise AssertionError("it serves")
    assert capfd.readouterr().err.count("no_such_module") == 2  # printed by the worker at each start


PROGRAM: Final = """
import asyncio
import aioflow as af

async def main():
    async with af.distributed.processes.start({"ps": 1, "worker": 1}) as cluster:
        print(*(status.pid for status in cluster.tasks.values()), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
async def test_no_process_outlives_the_program(how: str) -> None:
    async with asyncio.timeout(SECONDS), program_on_loop("-c", PROGRAM, stderr=asyncio.subprocess.DEVNULL) as program:
        if program.stdout is None:
            raise AssertionError("there is no output")
        pids = list(map(int, (await program.stdout.readline()).split()))
        assert len(pids) == 2
        program.send_signal(getattr(signal, how))
        await program.wait()
        while any(map(runs, pids)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

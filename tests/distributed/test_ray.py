"""Clusters of Ray actors, on a small local Ray cluster that is started for this file."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any, Final

import psutil
import pytest

import aioflow as af
from aioflow.distributed.ray import start
from aioflow.distributed.supervising import Job, StartedCluster
from aioflow.errors import DeadlineExceededError, OpError, UnavailableError
from examples import train_cluster as example
from tests.distributed import seen_gpus
from tests.examples.test_train_cluster import check
from tests.support.processes import SECONDS

ray: Any = pytest.importorskip("ray", reason="Ray is of the extra `ray`")

HALF: Final = Job(num_cpus=0.5)
STORE_BYTES: Final = 80 << 20  # about the minimum that Ray accepts
ROOM: Final = {"CPU": 2.0, "GPU": 2.0, "disk": 1.0}  # Ray does not check these amounts


@pytest.fixture(scope="module", autouse=True)
def local_cluster() -> Iterator[None]:
    """Start Ray for this file, and end it with all of its half a dozen processes."""
    folder = tempfile.mkdtemp(prefix="ray")  # short, because names of sockets are limited
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # otherwise Ray writes one to the user's folder
        patch.setenv(seen_gpus.FOLDER, folder)
        patch.delenv("RAY_ADDRESS", raising=False)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        ray.init(
            address="local",
            num_cpus=int(ROOM["CPU"]),
            num_gpus=int(ROOM["GPU"]),
            resources={"disk": ROOM["disk"]},
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )
        try:
            yield
        finally:
            ray.shutdown()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            shutil.rmtree(folder, ignore_errors=True)


async def until_serving(cluster: StartedCluster, job: str, restarts: int) -> None:
    status = cluster.status_of(job)
    while (status.state, status.restarts) != ("serves", restarts):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def until_all_is_given_back(pids: list[int]) -> None:
    """Wait until no process is left and Ray has all resources back."""
    while any(map(psutil.pid_exists, pids)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    while {name: ray.available_resources().get(name) for name in ROOM} != ROOM:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    groups = ray.util.placement_group_table().values()
    assert {group["state"] for group in groups} <= {"REMOVED"}


def pids_of(cluster: StartedCluster) -> list[int]:
    return [status.pid for status in cluster.tasks.values()]


async def test_actors_serve_restart_and_end() -> None:
    with af.device("/job:worker"):
        v = af.Variable(1.0)
        total = v + 41.0
    async with asyncio.timeout(SECONDS):
        async with start({"ps": HALF, "worker": HALF}, strategy="SPREAD") as cluster:
            before, address = pids_of(cluster), cluster.status_of("worker").address
            async with af.Session(cluster.target) as session:
                await session.run(v.initializer)
                assert await session.run(total) == 42.0
                os.kill(cluster.status_of("worker").pid, signal.SIGKILL)
                await until_serving(cluster, "worker", restarts=1)
                assert cluster.status_of("worker").address == address
                with pytest.raises(OpError):
                    await session.run(total)  # the variable was lost with its process
                await session.run(v.initializer)
                assert await session.run(total) == 42.0
            health = await cluster.health()
            assert not [state for state in health.values() if isinstance(state, OpError)]
            pids = before + pids_of(cluster)
            assert len(set(pids)) == 3
        await until_all_is_given_back(pids)


async def test_an_actor_without_restarts_ends_the_block() -> None:
    pids: list[int] = []

    async def program() -> None:
        async with start({"ps": HALF, "worker": HALF}, max_restarts=0) as cluster:
            pids.extend(pids_of(cluster))
            os.kill(cluster.status_of("worker").pid, signal.SIGKILL)
            await asyncio.Event().wait()

    async with asyncio.timeout(SECONDS):
        with pytest.raises(UnavailableError, match="/job:worker/replica:0/task:0 is lost"):
            await program()
        await until_all_is_given_back(pids)


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_an_interrupted_block_leaves_nothing_behind(how: str) -> None:
    pids: list[int] = []

    async def program() -> None:
        async with asyncio.timeout(None) as limit, start({"ps": HALF}) as cluster:
            pids.extend(pids_of(cluster))
            if how == "fails":
                raise KeyError("of its own")
            limit.reschedule(0.0)
            await asyncio.Event().wait()

    async with asyncio.timeout(SECONDS):
        with pytest.raises(KeyError if how == "fails" else TimeoutError):
            await program()
        await until_all_is_given_back(pids)


async def test_missing_ray_resources_are_reported() -> None:
    with pytest.raises(DeadlineExceededError) as raised:
        async with asyncio.timeout(SECONDS), start({"ps": HALF, "worker": Job(resources={"disk": 2})}, timeout=1.0):
            raise AssertionError("it begins")
    assert "'disk': 2" in str(raised.value.expected)
    assert "'disk': 1.0" in str(raised.value.actual)
    await until_all_is_given_back([])


async def test_an_actor_that_cannot_be_created_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="no_such_module"):
        async with asyncio.timeout(SECONDS), start({"ps": HALF}, imports=["no_such_module"]):
            raise AssertionError("it begins")
    await until_all_is_given_back([])


async def test_actors_reserve_the_resources_of_their_job() -> None:
    async with asyncio.timeout(SECONDS):
        async with start({"ps": Job(num_cpus=1.5, resources={"disk": 1})}) as cluster:
            pids = pids_of(cluster)
            free = ray.available_resources()
            assert (free["CPU"], free.get("disk", 0.0)) == (0.5, 0.0)
        await until_all_is_given_back(pids)


async def test_each_task_sees_the_gpu_that_ray_assigns() -> None:
    async with asyncio.timeout(SECONDS):
        jobs = {"ps": HALF, "worker": Job(2, num_cpus=0.5, num_gpus=1)}
        async with start(jobs, imports=[seen_gpus.__name__]) as cluster:
            pids = pids_of(cluster)
            seen = [seen_gpus.by_process(pid) for pid in pids]
        assert seen[0] in ("", None)
        assert sorted(map(str, seen[1:])) == ["0", "1"]
        await until_all_is_given_back(pids)


async def test_only_clients_with_the_secret_are_served() -> None:
    async with asyncio.timeout(SECONDS), start({"ps": HALF}) as cluster:
        known = cluster.credentials
        assert known.prove
        await asyncio.to_thread(asyncio.run, run_there(cluster.target, known))
        with pytest.raises(af.errors.UnauthenticatedError):
            await asyncio.to_thread(
                asyncio.run, run_there(cluster.target, af.distributed.Credentials(b"another secret than that"))
            )


async def run_there(target: str, credentials: af.distributed.Credentials) -> None:
    with af.Graph().as_default(), af.device("/job:ps"):
        two = af.constant(1.0) + 1.0
        async with af.Session(target, credentials=credentials) as session:
            assert await session.run(two) == 2.0


@pytest.mark.parametrize("kill", ["worker", "ps"])
async def test_training_continues_after_an_actor_is_killed(kill: str) -> None:
    """The script is that of `tests/examples/test_train_cluster.py`, which runs it on processes."""
    report = await example.main(on="ray", kill=kill)
    check(report)
    assert {task for task, times in report.restarts.items() if times} == {f"/job:{kill}/replica:0/task:0"}

"""Tests of clusters beyond the loopback, on machines in namespaces: access, and steps whose links are cut."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.net.certificates import Authority
from tests.system.beyond_loopback import STEPS
from tests.system.namespaces import Machine, Network, machines

SECRET = "0123456789abcdef0123456789abcdef"
TOGETHER = 60.0  # limit in seconds for any operation on a busy machine
NOTICED = 20.0  # seconds until a cut link is an error: two, plus the delays of a busy machine
PORT = 2222

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")


def environment(**more: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("AIOFLOW_")}
    return {**known, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}


def cluster(network: Network) -> list[str]:
    return [text for job in ("ps", "worker") for text in ("--cluster", f"{job}={network[job].address}:{PORT}")]


def target(machine: Machine) -> str:
    return f"aioflow://{machine.address}:{PORT}"


async def line(process: Process, seconds: float = TOGETHER) -> list[str]:
    assert process.stdout is not None
    async with asyncio.timeout(seconds):
        return (await process.stdout.readline()).decode().split()


@asynccontextmanager
async def workers(network: Network, given: Mapping[str, Mapping[str, str]], *options: str) -> AsyncIterator[None]:
    """Run both tasks, each on its machine."""
    async with AsyncExitStack() as stack:
        for job in ("ps", "worker"):
            command = ("-m", "aioflow.worker", *cluster(network), "--job", job, *options)
            process = await stack.enter_async_context(network[job].program(*command, environment=given[job]))
            assert "serves" in await line(process)
        yield


@asynccontextmanager
async def client(machine: Machine, *command: str, given: Mapping[str, str]) -> AsyncIterator[Process]:
    async with machine.program(
        "-m", "tests.system.beyond_loopback", *command, environment=given, stdin=PIPE
    ) as process:
        yield process


async def outcome(network: Network, given: Mapping[str, str]) -> list[str]:
    async with client(network["client"], "step", target(network["worker"]), given=given) as process:
        return await line(process)


@pytest.mark.parametrize("by", ["secret", "certificates"])
async def test_only_clients_with_the_cluster_credentials_are_admitted(by: str, tmp_path: Path) -> None:
    async with asyncio.timeout(250), machines("client", "ps", "worker") as network:
        authority, foreign = Authority(tmp_path), Authority(tmp_path, "other")
        given, wrong = {}, {}
        for name, machine in network.machines.items():
            if by == "secret":
                given[name], wrong[name] = {"AIOFLOW_SECRET": SECRET}, {"AIOFLOW_SECRET": SECRET[::-1]}
            else:
                authority.tls(name, f"IP:{machine.address}")
                foreign.tls(f"foreign-{name}", f"IP:{machine.address}")
                given[name], wrong[name] = files(tmp_path, name), files(tmp_path, f"foreign-{name}")
        known = {name: environment(**mine) for name, mine in given.items()}
        async with workers(network, known):
            assert await outcome(network, known["client"]) == ["result", "6.0"]
            assert (await outcome(network, environment()))[:2] == ["error", "PermissionDeniedError"]
            refused = await outcome(network, environment(**wrong["client"]))
            assert refused[0] == "error"
            assert refused[1] in ("UnauthenticatedError", "UnavailableError")
            assert any(by.rstrip("s") in word for word in refused), refused
            assert await outcome(network, known["client"]) == ["result", "6.0"]


def files(folder: Path, name: str) -> dict[str, str]:
    return {
        "AIOFLOW_TLS_CERT": str(folder / f"{name}.pem"),
        "AIOFLOW_TLS_KEY": str(folder / f"{name}.key"),
        "AIOFLOW_TLS_CA": str(folder / "ca.pem"),
    }


async def test_worker_without_a_secret_does_not_listen_beyond_the_loopback() -> None:
    async with asyncio.timeout(100), machines("client", "ps", "worker") as network:
        command = ("-m", "aioflow.worker", *cluster(network), "--job", "ps")
        async with network["ps"].program(*command, environment=environment(), stderr=PIPE) as process:
            said, errors = await process.communicate()
        assert process.returncode
        assert b"serves" not in said
        assert b"loopback" in errors


async def test_step_fails_when_the_link_between_tasks_is_cut_and_works_after_repair() -> None:
    """Cut the link between the two tasks; their client reaches both."""
    known = environment(AIOFLOW_SECRET=SECRET)
    async with (
        asyncio.timeout(200),
        machines("client", "ps", "worker") as network,
        workers(network, dict.fromkeys(("ps", "worker"), known)),
        client(network["client"], "waiting", target(network["worker"]), given=known) as process,
    ):
        assert await line(process) == ["waits"]
        await network.cut("ps", "worker")
        async with asyncio.timeout(NOTICED):
            word, kind, *message = await line(process)
        assert (word, kind) == ("error", "UnavailableError"), message
        assert any("/job:" in part for part in message), "it names who cannot be reached"
        await network.heal("ps", "worker")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        assert await line(process) == ["result", "2.0"]


async def test_monitored_training_resumes_after_a_partition(tmp_path: Path) -> None:
    """Cut the client off from both tasks for longer than the dead-peer timeout. In the end no update is lost."""
    known = environment(AIOFLOW_SECRET=SECRET)
    async with (
        asyncio.timeout(200),
        machines("client", "ps", "worker") as network,
        workers(network, dict.fromkeys(("ps", "worker"), known), "--allow-dir", str(tmp_path)),
        client(network["client"], "training", target(network["ps"]), str(tmp_path), given=known) as process,
    ):
        assert await line(process) == ["trains"]
        for job in ("ps", "worker"):
            await network.cut("client", job)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        async with asyncio.timeout(NOTICED):
            assert await line(process) == ["recovers"]
        for job in ("ps", "worker"):
            await network.heal("client", job)
        said = await line(process)
        while said == ["recovers"]:
            said = await line(process)
        assert said == ["result", str(STEPS), str(STEPS / 2)]


BEYOND = """
import asyncio
import aioflow as af
from aioflow.net.server import Server

async def main():
    cluster = {"ps": ["10.99.0.1:0"], "worker": ["10.99.0.2:2223"]}
    async with Server(cluster, "ps", 0) as ps:
        cluster["ps"] = [ps.target.removeprefix("aioflow://")]
        async with Server(cluster, "worker", 0) as worker:
            ps.cluster, graph = worker.cluster, af.Graph()
            with graph.as_default():
                with af.device("/job:ps"):
                    x = af.constant([1.0, 2.0]) * 2.0
                with af.device("/job:worker"):
                    y = af.reduce_sum(x)
            async with af.Session(worker.target, graph=graph) as session:
                print(await session.run(y))
asyncio.run(main())
"""


def in_namespace(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program in a new network namespace with two addresses beyond the loopback."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("there is no unshare or no ip on this machine")
    made = subprocess.run(["unshare", "-rn", "true"], capture_output=True, text=True, timeout=60)
    if made.returncode:
        pytest.skip(f"this machine gives no network namespace: {made.stderr.strip()}")
    set_up = "ip link set lo up && ip addr add 10.99.0.1/24 dev lo && ip addr add 10.99.0.2/24 dev lo"
    command = ["unshare", "-rn", "sh", "-c", f'{set_up} && exec "$0" -c "$1"', sys.executable, program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_cluster_beyond_the_loopback_requires_a_secret(secret: str | None) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if secret is not None:
        environment["AIOFLOW_SECRET"] = secret
    ended = in_namespace(BEYOND, environment)
    if secret is None:
        assert "PermissionDeniedError" in ended.stderr
        assert "loopback" in ended.stderr
    else:
        assert ended.stdout.strip() == "6.0", ended.stderr

"""Requests to Ray, and the behavior of an actor, as far as they need no Ray."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import pytest

import aioflow as af
from aioflow.distributed import ray_actor
from aioflow.distributed.ray import STRATEGIES, actor_options, bundles, check_strategy, orders, start
from aioflow.distributed.ray_actor import WorkerActor
from aioflow.distributed.supervising import ClusterRequest, Job, read_jobs
from aioflow.errors import AlreadyExistsError, InvalidArgumentError, OpError, UnavailableError, UnimplementedError
from aioflow.net.cluster_spec import ClusterSpec, TaskId
from aioflow.net.credentials import Credentials
from aioflow.net.errors_codec import decode_error

KNOWN: Final = Credentials(b"0123456789abcdef0123456789abcdef")


def asked(jobs: Any, **options: Any) -> ClusterRequest:
    return ClusterRequest(read_jobs(jobs), KNOWN, **options)


# ── requests to Ray ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_task_has_a_bundle_with_its_resources() -> None:
    jobs = read_jobs({"worker": Job(2, num_cpus=4, num_gpus=1, resources={"disk": 0.5, "tape": 0}), "ps": 1})
    ps, *workers = bundles(jobs)
    assert ps == {"CPU": 1.0}
    assert workers == [{"CPU": 4, "GPU": 1, "disk": 0.5}] * 2


def test_actor_options_match_the_bundle() -> None:
    job = Job(num_cpus=2, num_gpus=0.5, resources={"disk": 1})
    options = actor_options(job, max_restarts=-1)
    assert (options["num_cpus"], options["num_gpus"], options["resources"]) == (2, 0.5, {"disk": 1})
    assert options["max_restarts"] == -1
    assert options["max_task_retries"] == 0  # a repeated call would hide the restart from the supervisor


def test_a_task_without_resources_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="'ps'"):
        bundles(read_jobs({"ps": Job(num_cpus=0)}))


def test_strategies_are_those_of_ray() -> None:
    for strategy in STRATEGIES:
        check_strategy(strategy)
    with pytest.raises(InvalidArgumentError):
        check_strategy("pack")


async def test_the_error_without_ray_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnimplementedError, match=r"pip install 'aioflow-engine\[ray\]'"):
        async with start({"ps": 1}):
            raise AssertionError("it begins")


def test_the_package_imports_without_ray() -> None:
    assert importlib.import_module("aioflow.distributed.ray") is af.distributed.ray


# ── an actor ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the address of the actor's node, in a list that tests may change."""
    found = ["127.0.0.1"]
    monkeypatch.setattr(ray_actor, "_node_address", lambda: found[0])
    return found


def told(address: str, what: ClusterRequest | None = None) -> dict[str, Any]:
    return orders(what or asked({"ps": 1}), TaskId("ps", 0), ClusterSpec({"ps": [address]}), bind=None)


def error_of(answer: dict[str, Any]) -> OpError:
    return decode_error(answer["error"], "the actor")


async def test_an_actor_keeps_its_port_until_it_serves_there(node: list[str]) -> None:
    ps = WorkerActor("ps", 0, [])
    address = await ps.place(None)
    assert await ps.place(None) == address
    assert address.startswith("127.0.0.1:")
    assert "error" not in await ps.begin(told(address))
    assert "error" not in await ps.begin(told(address))  # a retry after a lost response
    async with af.Session(f"aioflow://{address}", credentials=KNOWN) as session:
        with af.device("/job:ps"):
            assert await session.run(af.constant(1.0) + 1.0) == 2.0
    await ps.drain(0.0)
    await ps.ended()


async def test_a_recreated_actor_serves_at_the_known_address(node: list[str]) -> None:
    first, again = WorkerActor("ps", 0, []), WorkerActor("ps", 0, [])
    address = await first.place(None)
    assert "error" not in await first.begin(told(address))
    assert isinstance(error_of(await again.begin(told(address))), AlreadyExistsError)  # the first actor still runs
    await first.drain(0.0)
    assert "error" not in await again.begin(told(address))  # the failed attempt has released the address
    await again.drain(0.0)


async def test_an_actor_on_another_node_reports_the_lost_node(node: list[str]) -> None:
    first, again = WorkerActor("ps", 0, []), WorkerActor("ps", 0, [])
    address = await first.place(None)
    node[0] = "127.0.0.2"
    error = error_of(await again.begin(told(address)))
    assert isinstance(error, UnavailableError)
    assert "lost with its node" in error.message
    assert address in error.message
    assert "start the cluster again" in str(error.expected)


async def test_an_actor_bound_elsewhere_is_addressed_by_its_node(node: list[str]) -> None:
    node[0] = "127.0.0.3"
    ps = WorkerActor("ps", 0, [])
    address = await ps.place("127.0.0.1")
    assert address.startswith("127.0.0.3:")
    answer = await ps.begin(told(address) | {"bind": "127.0.0.1"})
    assert "error" not in answer
    async with af.Session(f"aioflow://127.0.0.1:{address.partition(':')[2]}", credentials=KNOWN) as session:
        with af.device("/job:ps"):
            assert await session.run(af.constant(1.0) + 1.0) == 2.0
    await ps.drain(0.0)


async def test_an_actor_has_the_folders_and_devices_of_its_job(node: list[str], tmp_path: Any) -> None:
    ps = WorkerActor("ps", 0, ["json"])
    address = await ps.place(None)
    what = asked({"ps": Job(cpu_devices=2)}, allow_dirs=[str(tmp_path)])
    await ps.begin(told(address, what))
    async with af.Session(f"aioflow://{address}", credentials=KNOWN) as session:
        assert list(session.list_devices()) == [
            "/job:ps/replica:0/task:0/device:CPU:0",
            "/job:ps/replica:0/task:0/device:CPU:1",
        ]
        with af.device("/job:ps"):
            await session.run(af.write_file(str(tmp_path / "x"), "y"))
    assert (tmp_path / "x").read_text() == "y"
    await ps.drain(0.0)


def test_actor_arguments_contain_no_secret() -> None:
    """Ray stores the arguments of an actor, to create it again."""
    what = asked({"ps": 1})
    kept = (actor_options(what.jobs["ps"], 3), bundles(what.jobs), vars(WorkerActor("ps", 0, [])))
    assert KNOWN.secret is not None
    assert KNOWN.secret.decode() not in repr(kept)

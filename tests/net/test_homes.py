"""Owners of a cluster's resources: decided once, for all clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.limits import Limits
from aioflow.net.resource_directory import Holdings, Resource, ResourceDirectory, pack_texts, unpack_texts
from aioflow.net.server import Server
from aioflow.runtime.worker import Worker
from tests.net.clusters import cluster, given_up_at_once

LOCAL = "/job:localhost/replica:0/task:0/device:CPU:0"
TASKS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(3)]


def places(session: af.Session, v: af.Variable) -> set[str]:
    return {device for device, node in session.plan(v.initializer).placed_nodes() if node.op == "VarHandleOp"}


@pytest.mark.parametrize("tcp", [False, True], ids=["inproc", "tcp"])
async def test_two_clients_agree_on_the_owner_of_a_variable(tcp: bool) -> None:
    """Use sessions with different targets: each alone would choose its own target."""
    graphs = [af.Graph(), af.Graph()]
    made = []
    for graph in graphs:
        with graph.as_default():
            made.append(af.Variable([1.0, 2.0], name="v"))
    one_v, two_v = made
    async with cluster("worker", "worker", "worker", tcp=tcp) as servers:
        async with (
            af.Session(servers[1].target, graph=graphs[0]) as one,
            af.Session(servers[2].target, graph=graphs[1]) as two,
        ):
            await asyncio.gather(one.run(one_v.initializer), two.run(two_v.initializer))
            assert places(one, one_v) == places(two, two_v)
            await one.run(one_v.assign([5.0, 6.0]))
            assert (await two.run(two_v)).tolist() == [5.0, 6.0]
        async with af.Session(servers[0].target, graph=graphs[0]) as three:
            assert (await three.run(one_v)).tolist() == [5.0, 6.0]


async def test_owner_is_found_after_a_restart_of_the_coordinator() -> None:
    ports = free_addresses(2)
    spec = {"chief": ports[:1], "worker": ports[1:]}
    v = af.Variable([1.0, 2.0], name="v")
    async with Server(spec, "worker", 0) as worker:
        async with Server(spec, "chief", 0), af.Session(worker.target) as one:
            await one.run(v.initializer)
            assert places(one, v) == {"/job:worker/replica:0/task:0/device:CPU:0"}
        async with Server(spec, "chief", 0) as chief, af.Session(chief.target) as two:
            assert (await two.run(v)).tolist() == [1.0, 2.0]


async def test_old_session_learns_new_owner_after_coordinator_restart() -> None:
    ports = free_addresses(2)
    spec = {"chief": ports[:1], "worker": ports[1:]}
    graphs = [af.Graph(), af.Graph()]
    made = []
    for graph in graphs:
        with graph.as_default():
            made.append(af.Variable([1.0], name="v"))
    async with Server(spec, "worker", 0) as worker, AsyncExitStack() as stack:
        async with Server(spec, "chief", 0) as chief:
            old = await stack.enter_async_context(af.Session(chief.target, graph=graphs[0]))
            await old.run(made[0].initializer)
            assert places(old, made[0]) == {"/job:chief/replica:0/task:0/device:CPU:0"}
        async with Server(spec, "chief", 0), af.Session(worker.target, graph=graphs[1]) as new:
            await new.run(made[1].initializer)
            assert places(new, made[1]) == {"/job:worker/replica:0/task:0/device:CPU:0"}
            with pytest.raises(af.errors.AbortedError, match="restarted"):
                await old.run(made[0].initializer)
            assert (await old.run(made[0])).tolist() == [1.0]
            assert places(old, made[0]) == places(new, made[1])


class Fed:
    """A graph with a variable whose initial value is fed."""

    def __init__(self) -> None:
        with af.Graph().as_default() as self.graph:
            self.value = af.placeholder("float32", [1])
            self.v = af.Variable(self.value, name="v")

    async def place(self, session: af.Session) -> None:
        """Make the session place the variable without creating it."""
        with pytest.raises(af.errors.OpError):
            await session.run(self.v.initializer, {self.value: "no number"})

    async def make(self, session: af.Session, value: float) -> None:
        await session.run(self.v.initializer, {self.value: [value]})


async def test_reserved_owner_survives_a_restart_of_the_coordinator() -> None:
    """Restart the coordinator unnoticed: the steps of the first client do not touch it."""
    ports = free_addresses(3)
    spec = {"chief": ports[:1], "worker": ports[1:]}
    first, second = Fed(), Fed()
    async with Server(spec, "worker", 0) as one, Server(spec, "worker", 1) as two, AsyncExitStack() as stack:
        async with Server(spec, "chief", 0):
            old = await stack.enter_async_context(af.Session(one.target, graph=first.graph))
            await first.place(old)
        async with Server(spec, "chief", 0), af.Session(two.target, graph=second.graph) as new:
            await second.place(new)
            await first.make(old, 1.0)
            assert (await new.run(second.v)).tolist() == [1.0]
            await second.make(new, 2.0)
            assert (await old.run(first.v)).tolist() == [2.0]


async def test_variable_with_explicit_device_needs_no_coordinator() -> None:
    ports = free_addresses(2)
    spec = {"chief": ports[:1], "worker": ports[1:]}
    with af.device("/job:worker"):
        v = af.Variable([1.0, 2.0], name="v")
    free = af.Variable(3.0, name="free")
    async with Server(spec, "worker", 0) as worker, af.Session(worker.target) as session:
        await session.run(v.initializer)
        assert (await session.run(v)).tolist() == [1.0, 2.0]
        with (
            given_up_at_once(),
            pytest.raises(af.errors.UnavailableError, match=r"chief.* coordinates the resource directory"),
        ):
            await session.run(free.initializer)


async def test_soft_placement_chooses_one_owner() -> None:
    """Request a device that no task has."""
    config = af.SessionConfig(allow_soft_placement=True)
    graphs = [af.Graph(), af.Graph()]
    made = []
    for graph in graphs:
        with graph.as_default(), af.device("/device:GPU:0"):
            made.append(af.Variable([1.0], name="v"))
    async with (
        cluster("worker", "worker") as servers,
        af.Session(servers[0].target, graph=graphs[0], config=config) as one,
        af.Session(servers[1].target, graph=graphs[1], config=config) as two,
    ):
        await one.run(made[0].initializer)
        assert (await two.run(made[1])).tolist() == [1.0]


def homes_of_two(error: af.errors.OpError) -> ResourceDirectory:
    """Return the resource directory of a cluster whose other task cannot be called."""

    @asynccontextmanager
    async def reach(task: str) -> AsyncIterator[Any]:
        if task:
            raise error
        yield

    return ResourceDirectory(Holdings(Worker()), lambda: ["other"], reach)


async def test_resolve_decides_nothing_while_a_task_may_be_alive() -> None:
    """Decide only if the other task refuses connections: then it holds nothing.

    A task that does not answer, or whose connection is lost, may hold the resource.
    """
    names = [Resource("", "v", "")]
    refused = UnavailableError("nobody")
    refused.__cause__ = ConnectionRefusedError()
    assert await homes_of_two(refused).resolve(names, [LOCAL]) == [LOCAL]
    for error in (DeadlineExceededError("silence"), UnavailableError("silence: the connection was lost")):
        silent = homes_of_two(error)
        for _ in range(2):
            with pytest.raises(type(error), match="silence"):
                await silent.resolve(names, [LOCAL])


def test_holdings_refuse_claims_of_an_earlier_coordinator() -> None:
    """Refuse a claim that a coordinator sent before its end, once its successor has asked."""
    worker = Worker()
    (device,) = worker.devices
    v, w = Resource("", "v", ""), Resource("c", "w", "/job:localhost")
    holdings = Holdings(worker)
    holdings.claim({v: device}, coordinator=1)
    assert holdings.look_up([("", "v"), ("c", "w")], coordinator=2) == [(v, device)]
    with pytest.raises(af.errors.AbortedError):
        holdings.claim({w: device}, coordinator=1)
    assert holdings.look_up([("c", "w")], coordinator=2) == []
    holdings.claim({w: device}, coordinator=2)
    assert holdings.look_up([("c", "w")], coordinator=2) == [(w, device)]


def test_claims_are_validated_and_bounded() -> None:
    worker = Worker()
    (device,) = worker.devices
    holdings = Holdings(worker, Limits(resources=2, places=2))
    with pytest.raises(af.errors.NotFoundError, match="no such device"):
        holdings.claim({Resource("", "v", ""): f"{device}0"})
    with pytest.raises(InvalidArgumentError, match="malformed device name"):
        holdings.claim({Resource("", "v", "garbage///"): device})
    for many in (
        {Resource("", name, ""): device for name in "abc"},
        {Resource("", "a", request): device for request in ("", "/cpu:0", "/job:localhost")},
    ):
        with pytest.raises(ResourceExhaustedError):
            holdings.claim(many)
    assert holdings.look_up([("", "a"), ("", "b"), ("", "v")]) == []
    for _ in range(3):
        holdings.claim({Resource("", "a", ""): device, Resource("", "a", "/cpu:0"): device})
    with pytest.raises(ResourceExhaustedError):
        holdings.claim({Resource("", "b", ""): device})


async def test_each_task_may_own_a_resource_of_the_same_name() -> None:
    """Request different tasks for one name: these are two resources."""
    config = af.SessionConfig(device_count={"CPU": 2})
    graphs = [af.Graph(), af.Graph()]
    async with cluster("worker", "worker", config=config) as servers, AsyncExitStack() as stack:
        found = []
        for task, graph in enumerate(graphs):
            with graph.as_default(), af.device(f"/job:worker/task:{task}"):
                v = af.Variable(float(task), name="local")
            session = await stack.enter_async_context(af.Session(servers[0].target, graph=graph))
            await session.run(v.initializer)
            found.append(places(session, v))
        assert [{device.rpartition("/")[0] for device in devices} for devices in found] == [
            {"/job:worker/replica:0/task:0"},
            {"/job:worker/replica:0/task:1"},
        ]


async def test_malformed_device_in_a_lookup_decides_nothing() -> None:
    async with cluster("worker", "worker") as (server, _):
        v = Resource("", "v", "")
        for resource, device in ((v, "garbage///"), (Resource("", "v", "/job:%%%"), TASKS[0])):
            with pytest.raises(InvalidArgumentError, match="malformed device name"):
                await server.homes.resolve([v, resource], [TASKS[0], device])
        assert await server.homes.resolve([v], [TASKS[1]]) == [TASKS[1]], "nothing was decided before"


def test_packed_texts_are_unpacked_and_validated() -> None:
    rows = [["", "a"], ["b", "ö"]]
    assert unpack_texts([pack_texts(rows)], 2) == rows
    for wrong in ([], [np.zeros((2, 2))], [pack_texts(rows), pack_texts(rows)]):
        with pytest.raises(DataLossError):
            unpack_texts(wrong, 2)
    for shape in ((3, 2), (2, 3)):
        with pytest.raises(DataLossError):
            unpack_texts([pack_texts(rows)], shape[1], shape[0])

"""Errors of steps of which nothing was sent: they say that nothing was applied, so the step may be run again."""

from __future__ import annotations

from typing import Any

import pytest

import aioflow as af
from aioflow.errors import ClosedSessionError, OpError
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate
from tests.net.clusters import cluster


async def told(session: af.Session, fetches: Any, kind: type[OpError]) -> bool:
    with pytest.raises(kind) as raised:
        await session.run(fetches)
    return raised.value.may_have_been_applied


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("remote", [False, True])
async def test_closed_session_reports_that_nothing_was_applied(remote: bool, known: bool) -> None:
    v = af.Variable(1.0)
    add = v.assign_add(1.0)
    async with cluster("worker") as (server,):
        async with af.Session(server.target if remote else "") as session:
            await session.run(v.initializer)
            if known:
                await session.run(add)
        assert not await told(session, add, ClosedSessionError)
        with pytest.raises(ClosedSessionError) as raised:
            session.run_sync(add)
        assert not raised.value.may_have_been_applied


@pytest.mark.blocks_loop("a simulation runs without a stop")
@pytest.mark.parametrize("away", ["worker0", "worker1"])
def test_unreachable_worker_reports_that_nothing_was_applied(away: str) -> None:
    with af.Graph().as_default() as graph, af.device("/job:worker/task:1"):
        v = af.Variable(1.0)

    async def main(net: SimNet) -> None:
        servers = SimCluster(net, {"worker": 2})
        await servers.start()
        net.crash(away)

        async def client() -> None:
            session = af.Session(servers.target("worker0"), graph=graph, config=SIMULATED)
            assert not await told(session, v.initializer, af.errors.UnavailableError)
            await session.close()

        await net.host("client").call(client)
        await servers.stop()

    simulate(main)


async def test_expired_timeout_reports_that_nothing_was_applied() -> None:
    v = af.Variable(1.0)
    async with af.Session() as session:
        with pytest.raises(af.errors.DeadlineExceededError) as raised:
            await session.run(v.initializer, timeout=0.0)
    assert not raised.value.may_have_been_applied

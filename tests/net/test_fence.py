"""A step that comes late is begun only if its client says, and says in time, that it is still waited for."""

from __future__ import annotations

import asyncio

import pytest

from aioflow.errors import AbortedError, NotFoundError, OpError
from aioflow.net.channel import Channel, Reply, Request
from aioflow.net.comm import CommOptions
from aioflow.net.messages import RUN, WANTED
from aioflow.net.transports import connect
from aioflow.testing.sim_cluster import SimCluster
from aioflow.testing.sim_net import SimNet, simulate

_PATIENCE = 0.9  # seconds
_NO_BEAT = 1_000_000  # a heartbeat that never was, and so as old as can be
_NO_PART = 77


async def late_step(net: SimNet, wanted: bool, seconds: float) -> OpError:
    """What a worker says of a late step, of a part that it does not know, where the answer takes so long."""
    cluster = SimCluster(net, {"ps": 1})
    await cluster.start()

    async def answer(request: Request) -> Reply:
        await asyncio.sleep(seconds)
        return Reply({"wanted": wanted})

    async def ask() -> OpError:
        comm = await connect(cluster.target("ps0").replace("aioflow", "tcp"), 5.0, CommOptions(), peer="ps")
        run = {"handle": _NO_PART, "step": 1, "trace": False, "beat": _NO_BEAT, "patience": _PATIENCE, "seconds": None}
        async with Channel(comm, {WANTED: answer}, {}) as channel:
            with pytest.raises(OpError) as raised:
                await channel.call(RUN, run, timeout=20.0)
        return raised.value

    error: OpError = await net.host("client").call(ask)
    await cluster.stop()
    return error


@pytest.mark.parametrize(("wanted", "seconds", "begun"), [(True, 0.5, True), (False, 0.5, False), (True, 1.2, False)])
def test_a_late_step_is_begun_if_its_client_says_in_time_that_it_waits(
    wanted: bool, seconds: float, begun: bool
) -> None:
    error = simulate(lambda net: late_step(net, wanted, seconds))
    if begun:  # or would have been, if there were such a part
        assert isinstance(error, NotFoundError)
    else:
        assert isinstance(error, AbortedError)
        assert not error.may_have_been_applied

"""In-process servers against TensorFlow's: variables that a session sees, and settings that it uses."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioflow


def values(m: Any) -> tuple[Any, Any]:
    v = m.get_variable("v", initializer=np.array([1.0, 2.0], np.float32))
    return v.initializer, v


def test_two_local_servers_share_nothing(tf: Any) -> None:
    with tf.Graph().as_default():
        initializer, v = values(tf)
        servers = [tf.train.Server.create_local_server() for _ in range(2)]
        assert servers[0].target != servers[1].target
        with tf.Session(servers[0].target) as first, tf.Session(servers[1].target) as second:
            first.run(initializer)
            expected = first.run(v).tolist()
            with pytest.raises(tf.errors.FailedPreconditionError):
                second.run(v)

    async def ours() -> Any:
        servers = [aioflow.train.Server.create_local_server(start=True) for _ in range(2)]
        assert servers[0].target != servers[1].target
        async with (
            aioflow.Session(servers[0].target) as first,
            aioflow.Session(servers[1].target) as second,
        ):
            await first.run(initializer)
            found = (await first.run(v)).tolist()
            with pytest.raises(aioflow.errors.FailedPreconditionError):
                await second.run(v)
        for server in servers:
            await server.stop()
        return found

    with aioflow.Graph().as_default():
        initializer, v = values(aioflow)
        assert asyncio.run(ours()) == expected


@pytest.mark.parametrize("own", [False, True])
def test_sessions_use_the_timeout_of_their_server(tf: Any, own: bool) -> None:
    """Check sessions without a config and with a config that sets no timeout."""
    with tf.Graph().as_default():
        waits = tf.FIFOQueue(1, ["float32"], [[]]).dequeue()
        server = tf.train.Server.create_local_server(config=tf.ConfigProto(operation_timeout_in_ms=100))
        config = tf.ConfigProto(allow_soft_placement=True) if own else None
        with tf.Session(server.target, config=config) as session, pytest.raises(tf.errors.DeadlineExceededError):
            session.run(waits)

    async def ours() -> None:
        server = aioflow.train.Server.create_local_server(aioflow.SessionConfig(operation_timeout=0.1))
        config = aioflow.SessionConfig(allow_soft_placement=True) if own else None
        async with aioflow.Session(server.target, config=config) as session:
            with pytest.raises(aioflow.errors.DeadlineExceededError):
                await session.run(waits)
        await server.stop()

    with aioflow.Graph().as_default():
        waits = aioflow.FIFOQueue(1, ["float32"], [[]]).dequeue()
        asyncio.run(ours())

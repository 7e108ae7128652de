"""Limits of plans received over a connection: no Python functions of this process, and only registered ops."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Node, OutputSpec, Part
from aioflow.errors import InvalidArgumentError, OpError, PermissionDeniedError
from aioflow.extend import define_op, kernel
from aioflow.net.channel import Channel, Reply, ServiceRequest
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.messages import HELLO, REGISTER, config_document
from aioflow.net.plan_codec import encode_part
from aioflow.net.server import Server
from aioflow.net.transports import listen
from aioflow.ops.function.python_functions import proof
from tests.net.clusters import cluster, inproc
from tests.net.test_hostile_clients import TASK, hostile_client

CALLED: list[str] = []


def part(op: str, outputs: tuple[OutputSpec, ...] = (), **attrs: Any) -> Part:
    """Return a part of one node without inputs."""
    node = Node("n", op, (), (), attrs, outputs)
    return Part(TASK, {f"{TASK}/device:CPU:0": ClientGraph({"n": node}, 0, 0, ("n",))})


async def refusal(channel: Channel, what: Part, **more: Any) -> OpError | None:
    """Register `what`, with `more` in its header; return the error, or None."""
    document, tensors = encode_part(what)
    message = {"part": document | more, "config": config_document(af.SessionConfig()), "peers": {}}
    try:
        await channel.call(REGISTER, message, tensors, timeout=60)
    except OpError as error:
        return error
    return None


# -- Python functions -------------------------------------------------------------------------------------------------


def calling(kind: str) -> af.Operation:
    """Return a node that calls a function of this process."""
    # The token in its attributes is not a secret: graphs that users publish contain it.

    def function() -> None:
        CALLED.append(kind)

    async def coroutine() -> None:
        CALLED.append(kind)

    if kind == "py_coroutine":
        made = af.py_coroutine(coroutine, [], [])
    else:
        made = af.py_func(function, [], [], stateful=kind == "py_func")
    return made if isinstance(made, af.Operation) else made.op


@pytest.mark.parametrize("kind", ["py_func", "py_func without state", "py_coroutine"])
async def test_plans_cannot_call_python_functions_of_the_server(kind: str) -> None:
    operation = calling(kind)
    plan = part(operation.type, **operation.attrs)
    async with hostile_client() as (server, channel):
        claims: list[dict[str, Any]] = [{}, {"proof": ""}, {"proof": None}, {"proof": "0" * 32}, {"proof": "é"}]
        for claim in [*claims, {"proof": [proof()]}, {"proof": proof()[:-1]}]:
            error = await refusal(channel, plan, **claim)
            assert isinstance(error, PermissionDeniedError), claim
            assert error.node == "n"
        assert (await server.worker.state()).registered == 0
        assert await refusal(channel, plan, proof=proof()) is None, "the process itself may"
    assert not CALLED


async def test_functions_of_the_client_run_on_servers_of_its_process() -> None:
    with af.device("/job:ps"):
        doubled = af.py_func(lambda x: x * 2, [af.constant(2.0)], af.float32)
    for tcp in (False, True):
        async with cluster("ps", "worker", tcp=tcp) as servers, af.Session(servers[1].target) as session:
            assert await session.run(doubled) == 4.0


async def test_plans_cannot_have_onnx_nodes_computed_by_an_engine() -> None:
    # Malformed inputs may crash the engine, and the process with it.
    async with hostile_client() as (server, channel):
        error = await refusal(channel, part("OnnxNode", Tin=(), Tout=(af.float32,), output_shapes=(None,)))
        assert isinstance(error, PermissionDeniedError)
        assert (await server.worker.state()).registered == 0


# -- ops --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["NoSuchOp", "os.system", "_PartialFeed", "_PartialFetch", ""])
async def test_unknown_and_internal_ops_are_refused(op: str) -> None:
    async with hostile_client() as (server, channel):
        error = await refusal(channel, part(op))
        assert isinstance(error, InvalidArgumentError)
        assert "no op" in str(error)
        assert (await server.worker.state()).registered == 0


async def test_user_op_is_accepted_if_registered_in_this_process() -> None:
    # Only the registry of this process decides whether an op exists; the plan cannot.
    define_op("UntrustedNoted", "", "", ["text: string"], stateful=True)

    @kernel("UntrustedNoted")
    def noted(*, text: str) -> None:
        CALLED.append(text)

    async with hostile_client() as (_, channel):
        assert await refusal(channel, part("UntrustedNoted", text="x")) is None
        assert isinstance(await refusal(channel, part("UntrustedNoted", text=3)), OpError)
        assert isinstance(await refusal(channel, part("UntrustedNoted", text="x", function="os.system")), OpError)
        assert isinstance(await refusal(channel, part("UntrustedElsewhere", text="x")), InvalidArgumentError)
    assert not CALLED


async def test_proof_is_not_sent_to_another_listener_at_the_address() -> None:
    # A server that was not started does not hold its port yet, so another process may listen there.
    address = inproc(1)[0]
    mine = Server({"ps": [address]}, "ps", 0, start=False)
    seen: list[Mapping[str, Any]] = []

    async def greet(request: ServiceRequest) -> Reply:
        return Reply(mine.hello()._asdict())

    async def note(request: ServiceRequest) -> None:
        seen.append(request.header["part"])
        raise InvalidArgumentError("noted")

    async def serve(comm: Comm) -> None:
        async with Channel(comm, {HELLO: greet, REGISTER: note}) as channel:
            await channel.wait_ended()

    async with listen(address, serve, CommOptions()), af.Session(mine.target) as session, asyncio.timeout(60):
        with pytest.raises(InvalidArgumentError, match="noted"):
            await session.run(af.random_normal([]))
    assert len(seen) == 1
    assert "proof" not in seen[0]
    await mine.stop()

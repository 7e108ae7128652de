"""What plans that come by a connection may not do: call Python functions, or be of ops that are not known here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Node, OutputSpec, Part
from aioflow.errors import InvalidArgumentError, OpError, PermissionDeniedError
from aioflow.extend import define_op, kernel
from aioflow.graph.python_functions import proof
from aioflow.net.channel import Channel, Reply, Request
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.messages import HELLO, REGISTER, config_document
from aioflow.net.plan_codec import encode_part
from aioflow.net.server import Server
from aioflow.net.transports import listen
from tests.net.clusters import cluster, inproc
from tests.net.test_hostile_clients import TASK, stranger

CALLED: list[str] = []


def part(op: str, outputs: tuple[OutputSpec, ...] = (), **attrs: Any) -> Part:
    """One node without inputs."""
    node = Node("n", op, (), (), attrs, outputs)
    return Part(TASK, {f"{TASK}/device:CPU:0": ClientGraph({"n": node}, 0, 0, ("n",))})


async def refusal(channel: Channel, what: Part, **more: Any) -> OpError | None:
    """The error of registering it, with more in its header."""
    document, tensors = encode_part(what)
    message = {"part": document | more, "config": config_document(af.SessionConfig()), "peers": {}}
    try:
        await channel.call(REGISTER, message, tensors, timeout=60)
    except OpError as error:
        return error
    return None


# -- Python functions -------------------------------------------------------------------------------------------------


def calling(kind: str) -> af.Operation:
    """A node that calls a function of this process. Its token is no secret: it is in files that are given away."""

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
async def test_no_function_of_the_server_is_called_for_others(kind: str) -> None:
    operation = calling(kind)
    plan = part(operation.type, **operation.attrs)
    async with stranger() as (server, channel):
        claims: list[dict[str, Any]] = [{}, {"proof": ""}, {"proof": None}, {"proof": "0" * 32}, {"proof": "é"}]
        for claim in [*claims, {"proof": [proof()]}, {"proof": proof()[:-1]}]:
            error = await refusal(channel, plan, **claim)
            assert isinstance(error, PermissionDeniedError), claim
            assert error.node == "n"
        assert (await server.worker.state()).registered == 0
        assert await refusal(channel, plan, proof=proof()) is None, "the process itself may"
    assert not CALLED


async def test_the_functions_of_the_client_run_in_its_own_process() -> None:
    """On servers of this process as before, whatever way a session has to them."""
    with af.device("/job:ps"):
        doubled = af.py_func(lambda x: x * 2, [af.constant(2.0)], af.float32)
    for tcp in (False, True):
        async with cluster("ps", "worker", tcp=tcp) as servers, af.Session(servers[1].target) as session:
            assert await session.run(doubled) == 4.0


async def test_no_engine_computes_a_node_of_a_model_for_others() -> None:
    """Wrong inputs may crash the engine, and the process with it."""
    async with stranger() as (server, channel):
        error = await refusal(channel, part("OnnxNode", Tin=(), Tout=(af.float32,), output_shapes=(None,)))
        assert isinstance(error, PermissionDeniedError)
        assert (await server.worker.state()).registered == 0


# -- ops --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["NoSuchOp", "os.system", "_PartialFeed", "_PartialFetch", ""])
async def test_an_op_that_is_not_for_plans(op: str) -> None:
    async with stranger() as (server, channel):
        error = await refusal(channel, part(op))
        assert isinstance(error, InvalidArgumentError)
        assert "no op" in str(error)
        assert (await server.worker.state()).registered == 0


async def test_an_op_of_a_user_is_there_where_its_module_was_imported() -> None:
    """What is registered here counts, and nothing that a plan says of itself."""
    define_op("UntrustedNoted", "", "", ["text: string"], stateful=True)

    @kernel("UntrustedNoted")
    def noted(*, text: str) -> None:
        CALLED.append(text)

    async with stranger() as (_, channel):
        assert await refusal(channel, part("UntrustedNoted", text="x")) is None
        assert isinstance(await refusal(channel, part("UntrustedNoted", text=3)), OpError)
        assert isinstance(await refusal(channel, part("UntrustedNoted", text="x", function="os.system")), OpError)
        assert isinstance(await refusal(channel, part("UntrustedElsewhere", text="x")), InvalidArgumentError)
    assert not CALLED


async def test_nobody_else_at_the_address_of_a_server_is_shown_that() -> None:
    """A server that was not started has not got its port yet, and another process may listen there."""
    address = inproc(1)[0]
    mine = Server({"ps": [address]}, "ps", 0, start=False)
    seen: list[Mapping[str, Any]] = []

    async def greet(request: Request) -> Reply:
        return Reply(mine.hello()._asdict())

    async def note(request: Request) -> None:
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

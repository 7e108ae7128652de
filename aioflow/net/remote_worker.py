"""A worker in another process: each method is one message, and `run` is one message per step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from aioflow.compiler.ir import Part, worth_a_thread
from aioflow.config import SessionConfig
from aioflow.errors import CancelledError, DataLossError, InvalidArgumentError, OpError, UnavailableError
from aioflow.graph.boundary import SEND
from aioflow.graph.device_spec import task_of
from aioflow.net.channel import Channel, Reply
from aioflow.net.errors_codec import encode_error
from aioflow.net.messages import (
    ABORT,
    DEREGISTER,
    HELLO,
    REGISTER,
    RESET,
    RUN,
    STATE,
    STATS_TENSORS,
    Handle,
    Hello,
    Ran,
    State,
    config_document,
    parse,
    to_wire_value,
    unpack_stats,
)
from aioflow.net.plan_codec import encode_part
from aioflow.runtime.stats import FiniteProbe, TraceProbe
from aioflow.runtime.step import Step
from aioflow.runtime.worker import WorkerState
from aioflow.work.threads import in_thread

__all__ = ["RemoteWorker"]

_ABORT_SECONDS: Final = 2.0
_REGISTER_SECONDS: Final = 60.0  # per part: kernels are bound, and code is generated


class RemoteWorker:
    """A worker at the other end of a channel (`runtime.worker.WorkerAPI`).

    Args:
        channel: The connection, open; whoever made it closes it.
        peers: For each task the number of its process; a part is told those of the tasks that it sends to.
        timeout: Seconds for an answer to a short question.

    A step has no deadline but its caller's: it ends early if the connection does, which heartbeats watch.
    """

    def __init__(self, channel: Channel, peers: Mapping[str, int] | None = None, timeout: float = 10.0) -> None:
        self._channel = channel
        self._peers = {} if peers is None else peers
        self._timeout = timeout
        self._feeds: dict[int, tuple[int, tuple[int, ...]]] = {}  # how many a step has, and which of them go there

    async def hello(self) -> Hello:
        """Who is there. Errors call the worker by the name of its task from now on."""
        reply = await self._ask(HELLO, {})
        hello = parse(Hello, reply.header)
        self._channel.comm.peer = hello.task
        return hello

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Prepare a part of a plan; `session` is ignored, since the connection is one.

        Raises:
            OpError: the worker cannot; or UnavailableError: it cannot be reached.
        """
        if worth_a_thread(part.size):
            header, tensors = await in_thread(encode_part, part, effects=False)
        else:
            header, tensors = encode_part(part)
        peers = {task: self._peers[task] for task in _destinations(part) if task in self._peers}
        document = {"part": header, "config": config_document(config), "peers": peers}
        reply = await self._channel.call(REGISTER, document, tensors, timeout=_REGISTER_SECONDS)
        handle = parse(Handle, reply.header).handle
        self._feeds[handle] = part.all_feeds, part.feeds
        return handle

    async def deregister(self, handle: int) -> None:
        """Forget a part; a step of it that is running goes on."""
        self._feeds.pop(handle, None)
        with suppress(UnavailableError):  # it has forgotten the part with the connection
            await self._ask(DEREGISTER, {"handle": handle})

    async def run(self, handle: int, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run a registered part once and return its fetches. When this returns or raises, nothing of the step is
        running there any more, as far as the worker can be reached.

        Raises:
            InvalidArgumentError: `feeds` are not those of the whole step.
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
            UnavailableError: the worker cannot be reached any more; the error names it.
        """
        if step.requested:
            step.halt()
        probe = step.probe.trace if isinstance(step.probe, FiniteProbe) else step.probe
        trace = probe if isinstance(probe, TraceProbe) else None
        header = {"handle": handle, "step": step.id, "trace": trace is not None}
        count, taken = self._feeds.get(handle, (len(feeds), ()))  # the worker says that there is no such part
        if len(feeds) != count:
            raise InvalidArgumentError("wrong number of feeds", expected=count, actual=len(feeds))
        tensors = [to_wire_value(feeds[index]) for index in taken]
        wait = _Wait(self._channel.peer)
        step.waiting[wait] = None
        try:
            reply = await self._reply(header, tensors, step)
        except asyncio.CancelledError:  # the wait stays in the step, so that a timeout names it
            await self._stop(step)
            raise
        del step.waiting[wait]
        return self._fetches(reply, trace)

    async def _reply(self, header: Mapping[str, Any], tensors: Sequence[Any], step: Step) -> Reply:
        """What the worker answers, unless the step is stopped before."""
        stopping = asyncio.timeout(None)

        def stopped() -> None:
            if not stopping.expired():
                stopping.reschedule(asyncio.get_running_loop().time())

        step.watchers.append(stopped)
        try:
            async with stopping:
                return await self._channel.call(RUN, header, tensors, timeout=None)
        except TimeoutError as error:
            if not stopping.expired() or isinstance(error, OpError):
                raise
        finally:
            step.watchers.remove(stopped)
        await self._stop(step)
        raise step.error or CancelledError("the step was stopped")

    def _fetches(self, reply: Reply, trace: TraceProbe | None) -> list[Any]:
        devices = parse(Ran, reply.header).devices
        tensors = list(reply.tensors)
        if trace is not None:
            if devices is None or len(tensors) < STATS_TENSORS:
                raise DataLossError(f"{self._channel.peer} has sent no times", expected="a traced step", actual=devices)
            trace.add(unpack_stats(devices, tensors[-STATS_TENSORS:]))
            del tensors[-STATS_TENSORS:]
        return [_own(tensor) for tensor in tensors]

    async def _stop(self, step: Step) -> None:
        with suppress(OpError):  # it cannot be reached, or is busy: more than to ask cannot be done
            await self.abort(step.id, step.error or CancelledError("the step was stopped"))

    async def abort(self, step: int, error: OpError) -> None:
        """Stop a step, because of an error somewhere else; returns when nothing of it is running there any more.

        Raises:
            DeadlineExceededError: the worker has not stopped it within two seconds; it will.
        """
        header = {"step": step, "error": encode_error(error, 16 << 10)}
        await self._channel.call(ABORT, header, timeout=_ABORT_SECONDS)

    async def state(self) -> WorkerState:
        """How the worker is."""
        state = parse(State, (await self._ask(STATE, {})).header)
        return WorkerState(tuple(state.devices), state.registered, state.running)

    async def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of the containers, or of all."""
        await self._ask(RESET, {"containers": None if containers is None else list(containers)})

    async def _ask(self, kind: str, header: Mapping[str, Any]) -> Reply:
        return await self._channel.call(kind, header, timeout=self._timeout)


class _Wait:
    """The wait for a worker, as `Step.waiting` has it."""

    __slots__ = ("node", "since")

    def __init__(self, peer: str) -> None:
        self.node = peer
        self.since = monotonic()

    def describe(self) -> str:
        """What it waits for."""
        return "its part of the step"


def _destinations(part: Part) -> set[str]:
    """The tasks that a part sends to."""
    return {task_of(node.attrs["recv_device"]) for node in part.nodes() if node.op == SEND} - {part.task}


def _own(tensor: Any) -> Any:
    """A fetched value that belongs to the caller."""
    if not tensor.ndim:
        return tensor[()]
    return tensor if tensor.flags.writeable else tensor.copy()

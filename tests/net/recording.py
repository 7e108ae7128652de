"""Recorded frames: all kinds and services that a cluster and its client exchange in a few steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.net import tcp
from aioflow.net.framing import CHUNK_BYTES, EncodedMessage, FrameKind, WireMessage, bare_frame, encode
from aioflow.net.limits import Limits
from aioflow.net.shared_memory import sharing
from tests.net.clusters import cluster

__all__ = ["Stream", "recorded"]

Stream = list[bytes]  # the frames of one message
_LONGEST = 200_000  # bytes of the longest stream that is recorded for mutation


def recorded() -> list[Stream]:
    """Return recorded messages, at most three of each kind and service, and the frames without content."""
    found: dict[tuple[FrameKind, Any], list[Stream]] = {}
    with _listening(found):
        asyncio.run(_steps())
    return _rare() + [stream for streams in found.values() for stream in streams[:3]]


def _rare() -> list[Stream]:
    """Return messages of late steps, variable lookups and exported memory, and the frames without content."""
    row = np.array([[b"", b"w", b"/device:CPU:0", b"/job:ps/replica:0/task:0/device:CPU:0"]], object)
    asked = [("wanted", {"step": 5}, ()), ("report", {"step": 5}, ()), ("settle", {}, (row,)), ("claim", {}, (row,))]
    messages = [
        WireMessage(FrameKind.REQUEST, 9, {"kind": kind, "timeout": 1.0, "body": body}, tensors)
        for kind, body, tensors in asked
    ]
    messages += [WireMessage(FrameKind.CANCEL, 9), WireMessage(FrameKind.REPLY, 9, {"wanted": True})]
    lent = {"kind": 17, "header": {}, "lent": [[0, "float32", [1024], 4096, [1, 9, 1 << 20, 0, 0, 1]]]}
    messages.append(WireMessage(FrameKind.LENT, 9, lent))
    return [[bare_frame(FrameKind.HEARTBEAT, 7)], [bare_frame(FrameKind.CLOSE)], *([encode(m).head] for m in messages)]


@contextmanager
def _listening(found: dict[tuple[FrameKind, Any], list[Stream]]) -> Iterator[None]:
    def encode_and_keep(message: WireMessage, limits: Limits) -> EncodedMessage:
        encoded = encode(message, limits)
        if encoded.size <= _LONGEST:
            chunks = (b"".join(map(bytes, chunk)) for chunk in encoded.chunks(min(CHUNK_BYTES, 30_000)))
            streams = found.setdefault((message.kind, message.header.get("kind")), [])
            streams.append([encoded.head, *chunks])
        return encoded

    with pytest.MonkeyPatch.context() as patches:
        for module in (tcp, sharing):
            patches.setattr(module, "encode", encode_and_keep)
        yield


async def _steps() -> None:
    async with asyncio.timeout(60), cluster("ps", "worker", tcp=True) as servers:
        # In another thread: on this event loop the target would be used without a connection.
        await asyncio.to_thread(asyncio.run, _client(servers[1].target))


async def _client(target: str) -> None:
    with af.Graph().as_default() as graph:
        x = af.placeholder(af.float32, [None], name="x")
        with af.device("/job:ps"):
            w = af.get_variable("w", [20_000], initializer=af.constant_initializer(2.0))
            text = af.as_string(af.reduce_sum(x))
            queue = af.FIFOQueue(3, [af.float32], shapes=[()], shared_name="queue")
            never = queue.dequeue()
        with af.device("/job:worker"):
            y = w * x[0] + np.arange(20_000, dtype=np.float32)
            many = af.reduce_sum(af.cast(y, af.bfloat16)), af.cast(x, af.complex64), af.is_nan(x), text
        wrong = af.reshape(x, [3, 3])
    async with af.Session(target, graph=graph) as session:
        await session.run(w.initializer)
        await session.run(y, {x: [1.0, 2.0]})
        await session.run(many, {x: [1.0, 2.0]}, options=af.RunOptions(trace_level=af.RunOptions.FULL_TRACE))
        with suppress(af.errors.OpError):
            await session.run(wrong, {x: [1.0]})
        with suppress(af.errors.DeadlineExceededError):
            await session.run(never, timeout=0.1)
        await session.health(5.0)
        await session.clear()

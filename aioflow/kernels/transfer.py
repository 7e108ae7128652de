"""Kernels of Send and Recv, of copies between devices, and of the feeds and fetches of partial runs.

The two ends of an edge meet in the step's rendezvous, which they reach through `step`.

A Send never waits. In frames and on branches the propagator calls the same kernels for each send and receive, because
there a key has a tag and a value may be dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np

from aioflow.graph.boundary import RECV, SEND
from aioflow.graph.device_spec import task_of
from aioflow.kernels.registry import HOST, KERNELS, ArrayBackend, Binding, KernelBody, KernelDef, binder, kernel
from aioflow.memory.values import Array, Value
from aioflow.sync.partial_run import EXCHANGE

_TOP_LEVEL: Final = ""  # the tag outside of all frames


class TransferStep(Protocol):
    """The interface of a step that Send and Recv need."""

    @property
    def meeting(self) -> Any:
        """The rendezvous, with `send` and `recv`, where the two ends of an edge meet."""


def _send(binding: Binding) -> KernelBody:
    name, to = binding.attrs["tensor_name"], binding.attrs["recv_device"]
    # Between devices of one task, the value goes straight to the rendezvous.
    here = task_of(binding.attrs["send_device"]) == task_of(to)

    def send(value: Value, *, step: TransferStep, tag: str = _TOP_LEVEL) -> None:
        step.meeting.send(name, tag, value, to)

    def deliver(value: Value, *, step: TransferStep, tag: str = _TOP_LEVEL) -> None:
        step.meeting.deliver(name, tag, value)

    return deliver if here else send


def _recv(binding: Binding) -> KernelBody:
    name, source = binding.attrs["tensor_name"], binding.attrs["send_device"]

    def recv(*, step: TransferStep, tag: str = _TOP_LEVEL) -> Value:
        return step.meeting.recv(name, tag, source)

    return recv


KERNELS.offer(SEND, partial(KernelDef, SEND, _send, takes_step=True, sends=True, opaque=True))
KERNELS.offer(RECV, partial(KernelDef, RECV, _recv, is_async=True, takes_step=True))


@final
class _Lent(NamedTuple):
    """A value in transit between devices of one kind. For a value that never left the host, `device` is the host's."""

    device: ArrayBackend
    array: Array


def _to_device(binding: Binding) -> KernelBody:
    device = binding.backend  # a device with its own memory

    def to_device(value: Array | _Lent) -> Awaitable[Array] | Array:
        if type(value) is not _Lent:
            return device.to_device(value)
        # A copy: the kernel is `fresh`, so its output must not share the value's memory.
        if value.device.device_type == HOST:
            return np.array(value.array)
        return device.copy_from(value.array, value.device)

    return to_device


def _lend(binding: Binding) -> KernelBody:
    return partial(_Lent, binding.backend)


def _to_host(binding: Binding) -> KernelBody:
    return binding.backend.to_host


def _share(binding: Binding) -> KernelBody:
    return binding.backend.share


KERNELS.offer("_Share", partial(KernelDef, "_Share", _share))
KERNELS.offer("_Lend", partial(KernelDef, "_Lend", _lend))
KERNELS.offer("_ToDevice", partial(KernelDef, "_ToDevice", _to_device, is_async=True, fresh=True))
KERNELS.offer("_ToHost", partial(KernelDef, "_ToHost", _to_host, is_async=True, fresh=True))


# ── partial runs: a feed waits for its value, a fetch delivers its value as soon as it is computed ────────────────────


class _Feed:
    """An awaitable for a value that has not been fed yet."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Value]) -> None:
        self._future = future

    def __await__(self) -> Generator[object, None, Value]:
        return self._future.__await__()

    @staticmethod
    def describe() -> str:
        """Return a description of the wait, like `Waiting.describe`."""
        return "a value that has not been fed yet"


@binder("_PartialFeed", is_async=True, fresh=True)
def partial_feed(binding: Binding) -> Callable[[], _Feed]:
    index: int = binding.attrs["index"]
    return lambda: _Feed(EXCHANGE.get().feeds[index])


@kernel("_PartialFetch", retains=True, opaque=True)
async def partial_fetch(value: Value, *, index: int) -> None:
    EXCHANGE.get().fetches[index].set_result(value)

"""Kernels of Send and Recv: they meet in the rendezvous of the step, which hands them what they need as `step`.

A Send never waits. In frames and on branches it is the propagator that sends and receives, since a key has a tag there
and a value may be dead; it calls the same kernels.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from aioflow.graph.boundary import RECV, SEND
from aioflow.graph.device_spec import task_of
from aioflow.kernels.registry import HOST, KERNELS, Binding, Body, KernelDef

__all__ = ["TransferStep"]

_TOP_LEVEL: Final = ""  # the tag of what is in no frame


class TransferStep(Protocol):
    """What Send and Recv need of a step."""

    @property
    def meeting(self) -> Any:
        """Has `send` and `recv`: the two ends of an edge meet there."""


def _send(binding: Binding) -> Body:
    name, to = binding.attrs["tensor_name"], binding.attrs["recv_device"]
    here = task_of(binding.attrs["send_device"]) == task_of(to)

    def send(value: Any, *, step: TransferStep, tag: str = _TOP_LEVEL) -> None:
        step.meeting.send(name, tag, value, to)

    def deliver(value: Any, *, step: TransferStep, tag: str = _TOP_LEVEL) -> None:
        step.meeting.deliver(name, tag, value)

    return deliver if here else send


def _recv(binding: Binding) -> Body:
    name, source = binding.attrs["tensor_name"], binding.attrs["send_device"]

    def recv(*, step: TransferStep, tag: str = _TOP_LEVEL) -> Any:
        return step.meeting.recv(name, tag, source)

    return recv


KERNELS.offer(SEND, partial(KernelDef, SEND, _send, takes_step=True, sends=True, opaque=True))
KERNELS.offer(RECV, partial(KernelDef, RECV, _recv, is_async=True, takes_step=True))


class _Lent(NamedTuple):
    """A value on its way between devices of one kind. The device is the host's where the value never left that."""

    device: Any
    array: Any


def _to_device(binding: Binding) -> Body:
    device = binding.backend  # one that has memory of its own

    def to_device(value: Any) -> Any:
        if type(value) is not _Lent:
            return device.to_device(value)
        if value.device.device_type == HOST:
            return np.array(value.array)
        return device.copy_from(value.array, value.device)

    return to_device


def _lend(binding: Binding) -> Body:
    return partial(_Lent, binding.backend)


def _to_host(binding: Binding) -> Body:
    return binding.backend.to_host


def _share(binding: Binding) -> Body:
    return binding.backend.share


KERNELS.offer("_Share", partial(KernelDef, "_Share", _share))
KERNELS.offer("_Lend", partial(KernelDef, "_Lend", _lend))
KERNELS.offer("_ToDevice", partial(KernelDef, "_ToDevice", _to_device, is_async=True, fresh=True))
KERNELS.offer("_ToHost", partial(KernelDef, "_ToHost", _to_host, is_async=True, fresh=True))

"""Kernels of Send and Recv: they meet in the rendezvous of the step, which hands them what they need as `step`.

A Send never waits. In frames and on branches it is the propagator that sends and receives, since a key has a tag there
and a value may be dead; it calls the same kernels.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from aioflow.graph.device_spec import task_of
from aioflow.kernels.registry import KERNELS, Binding, Body, KernelDef

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


KERNELS.register(KernelDef("_Send", _send, takes_step=True, sends=True, opaque=True))
KERNELS.register(KernelDef("_Recv", _recv, is_async=True, takes_step=True))


class _Lent(NamedTuple):
    """An array on its way from a device to another one of the same kind."""

    device: Any
    array: Any


def _to_device(binding: Binding) -> Body:
    device: Any = binding.backend  # one that has memory of its own

    def to_device(value: Any) -> Any:
        return device.copy_from(value.array, value.device) if type(value) is _Lent else device.to_device(value)

    return to_device


def _lend(binding: Binding) -> Body:
    return partial(_Lent, binding.backend)


def _to_host(binding: Binding) -> Body:
    body: Body = binding.backend.to_host  # type: ignore[attr-defined]  # as above
    return body


def _share(binding: Binding) -> Body:
    body: Body = binding.backend.share  # type: ignore[attr-defined]  # as above
    return body


KERNELS.register(KernelDef("_Share", _share))
KERNELS.register(KernelDef("_Lend", _lend))
KERNELS.register(KernelDef("_ToDevice", _to_device, is_async=True, fresh=True))
KERNELS.register(KernelDef("_ToHost", _to_host, is_async=True, fresh=True))

"""Small values that describe shapes stay in host memory, also in a part of the graph that runs on a GPU.

TensorFlow fixes the memory of every kernel's argument when it is registered. Here a value says by its type where it is.
Constants and what the shape ops make are NumPy's, and a node all of whose inputs are NumPy's and small is computed on
the host: most likely its consumer is a shape input or a loop's condition, which the host needs, and waiting for the
device costs more than the work. As soon as one input is on the device the others are brought there, constants once and
for all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from aioflow.errors import FailedPreconditionError
from aioflow.graph import dtypes
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS, ArrayBackend, Binding, Body, KernelDef

__all__ = ["DeviceConstant", "DeviceConstants", "bind_near_values"]

_OPAQUE: Final = (dtypes.resource, dtypes.variant)
_HOST: Final = (np.ndarray, np.generic)
_SMALL: Final = 64 * 1024  # bytes; a larger value is worked on by the device


class DeviceConstant:
    """A constant's copy on the device. Who holds this holds the array, so no variable may overwrite it."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: Any) -> None:
        self.array = array


class DeviceConstants:
    """The device's copies of constants: one for each value, for as long as a node holds it."""

    def __init__(self, is_capturing: Callable[[], bool] = lambda: False) -> None:
        self._held: dict[int, tuple[Any, weakref.ref[DeviceConstant]]] = {}
        self._is_capturing = is_capturing

    def on_device(self, xp: Any, value: Any) -> DeviceConstant:
        """The copy of a host value, made where there is none."""
        held = self._held.get(id(value))
        found = None if held is None else held[1]()  # the entry holds the value, so its id is nobody else's
        if found is None:
            found, key = DeviceConstant(xp.asarray(value)), id(value)
            self._held[key] = (value, weakref.ref(found, lambda _: self._held.pop(key, None)))
        return found

    def bring(self, xp: Any, value: Any, constant: DeviceConstant | None) -> Any:
        """A value on the device, which a host value is copied to.

        Raises:
            FailedPreconditionError: the device is capturing a graph, which would have the value of now built in.
        """
        if constant is not None:
            return constant.array
        if not _is_host_value(value):
            return value
        if self._is_capturing():
            raise FailedPreconditionError("a value on the host cannot enter a captured strand")
        return xp.asarray(value)


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument of the body.

    Attributes:
        is_tensor: Whether it is a value of the graph, and not one that a converter has made for the host.
        far: For each of its parts the constant on the device; None where it is no constant.
    """

    is_tensor: bool
    is_sequence: bool
    far: tuple[DeviceConstant | None, ...]


def bind_near_values(kernel: KernelDef, binding: Binding, host: ArrayBackend, constants: DeviceConstants) -> Body:
    """The callable for a node: it computes on the device, or on the host where all its inputs are.

    Args:
        kernel: The device's kernel.
        host: The backend whose kernel takes over there.
    """
    body = kernel.bind(binding)
    arguments = _arguments(kernel, binding, constants)
    if kernel.is_async or kernel.takes_step or not any(a.is_tensor for a in arguments):
        return body  # those that take the step hand values on, as they are
    opaque = any(dtype in _OPAQUE for dtype in (*binding.input_dtypes, *binding.output_dtypes))
    stays = opaque or OPS.get(binding.op_type).stateful
    return _dispatch(constants, binding.xp, body, None if stays else _host_body(binding, host), arguments)


def _arguments(kernel: KernelDef, binding: Binding, constants: DeviceConstants) -> list[_Argument]:
    made: list[_Argument] = []
    position = 0
    for arg in OPS.get(binding.op_type).inputs:
        count = arg.count(binding.attrs)
        given = binding.constants[position : position + count]
        position += count
        is_tensor = arg.name not in kernel.host
        far = tuple(
            constants.on_device(binding.xp, value) if is_tensor and _is_host_value(value) else None for value in given
        )
        made.append(_Argument(is_tensor, arg.is_sequence, far))
    return made


def _host_body(binding: Binding, host: ArrayBackend) -> Callable[[], Body] | None:
    kernel = KERNELS.find(binding.op_type, host.device_type, binding.attrs)
    if kernel is None:
        return None
    found = kernel
    made: list[Body] = []

    def get() -> Body:
        if not made:
            made.append(found.bind(replace(binding, backend=host)))
        return made[0]

    return get


def _dispatch(
    constants: DeviceConstants, xp: Any, body: Body, near: Callable[[], Body] | None, arguments: Sequence[_Argument]
) -> Body:
    watched = [i for i, a in enumerate(arguments) if a.is_tensor and a.far == (None,)]
    fixed = [(i, a.far[0]) for i, a in enumerate(arguments) if not a.is_sequence and a.far[0] is not None]
    plain = bool(watched) and not any(a.is_sequence for a in arguments)

    def call(*args: Any) -> Any:
        if plain and not any(isinstance(args[i], _HOST) for i in watched):  # as nearly always: all on the device
            if fixed:
                given = list(args)
                for i, constant in fixed:
                    given[i] = constant.array
                return body(*given)
            return body(*args)
        return mixed(args)

    def mixed(args: Sequence[Any]) -> Any:
        parts = [value if a.is_sequence else (value,) for a, value in zip(arguments, args, strict=True)]
        if near is not None and all(
            not a.is_tensor or _all_small(values) for a, values in zip(arguments, parts, strict=True)
        ):
            return near()(*args)
        moved: list[Any] = []
        for argument, values, value in zip(arguments, parts, args, strict=True):
            if argument.is_tensor:
                brought = tuple(constants.bring(xp, v, c) for v, c in zip(values, argument.far, strict=True))
                moved.append(brought if argument.is_sequence else brought[0])
            else:
                moved.append(value)
        return body(*moved)

    return call


def _is_host_value(value: Any) -> bool:
    return isinstance(value, _HOST) and value.dtype != object


def _all_small(values: Sequence[Any]) -> bool:
    return all(_is_host_value(value) and value.nbytes <= _SMALL for value in values)

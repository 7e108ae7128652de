"""Small values that describe shapes stay in host memory, also in a part of the graph that runs on another device.

TensorFlow fixes the memory of every kernel argument at registration. Here the type of a value shows where it is.
Constants and the results of shape ops are NumPy arrays on every device. A node whose inputs are all small NumPy arrays
is computed on the host. Its consumer is most likely a shape input or a loop condition, which the host needs, and
waiting for the device would cost more than the work. As soon as one input is on the device, the others are copied
there, constants only once. A device with its own memory has one `HostValues`, and binds its kernels by it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeGuard

import numpy as np

from aioflow.errors import FailedPreconditionError
from aioflow.graph import dtypes
from aioflow.graph.opdef import OPS
from aioflow.graph.signature.arguments import per_argument
from aioflow.kernels.registry import HOST, KERNELS, Binding, KernelBody, KernelDef
from aioflow.memory.values import Array, Value
from aioflow.runtime.device import host

Bring: TypeAlias = Callable[[Array], Value]

_OPAQUE: Final = (dtypes.resource, dtypes.variant)
_NUMPY: Final = (np.ndarray, np.generic)
_SMALL: Final = 64 * 1024  # bytes; the device processes larger values


class _Constant:
    """A constant's copy on the device. Its holder also holds the array, so no variable may overwrite the array."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: Value) -> None:
        self.array = array


class HostValues:
    """Binder of one device's kernels: they compute where their inputs are.

    Args:
        bring: Copies a host value to a device array. It is called in kernel calls, and for constants at binding. All
            nodes that read a constant share its copy for as long as one of them exists.
        is_capturing: Whether calls are being recorded, to be replayed with other inputs. Then no host value may enter,
            because its current value would be recorded.
    """

    def __init__(self, bring: Bring, is_capturing: Callable[[], bool] = lambda: False) -> None:
        self._bring = bring
        self._is_capturing = is_capturing
        self._held: dict[int, tuple[Array, weakref.ref[_Constant]]] = {}

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, KernelBody]:
        """Bind a kernel, like `ArrayBackend.bind`.

        The body accepts both NumPy values and device arrays. So no Python operator can replace it, and it accepts no
        `out=` buffer.
        """
        return replace(kernel, expression=None, takes_out=False), self._body(kernel, binding)

    def constant(self, value: Array) -> _Constant:
        """Return the device's copy of a constant, creating it if necessary."""
        held = self._held.get(id(value))
        found = None if held is None else held[1]()  # the entry holds the value, so its id stays unique
        if found is None:
            found, key = _Constant(self._bring(value)), id(value)
            self._held[key] = (value, weakref.ref(found, lambda _: self._held.pop(key, None)))
        return found

    def on_device(self, value: Value, constant: _Constant | None = None) -> Value:
        """Return a value on the device, copying a host value.

        Raises:
            FailedPreconditionError: calls are being recorded.
        """
        if constant is not None:
            return constant.array
        if not _is_host_value(value):
            return value
        if self._is_capturing():
            raise FailedPreconditionError("a value on the host cannot enter a captured strand")
        return self._bring(value)

    def _body(self, kernel: KernelDef, binding: Binding) -> KernelBody:
        body = kernel.bind(binding)
        arguments = self._arguments(kernel, binding)
        if kernel.is_async or kernel.takes_step or not any(a.is_tensor for a in arguments):
            return body  # a body that takes the step passes values on unchanged
        opaque = any(dtype in _OPAQUE for dtype in (*binding.input_dtypes, *binding.output_dtypes))
        stays = opaque or OPS.get(binding.op_type).stateful
        return _dispatch(self.on_device, body, None if stays else _host_body(binding), arguments)

    def _arguments(self, kernel: KernelDef, binding: Binding) -> list[_Argument]:
        made: list[_Argument] = []
        for arg, given in per_argument(OPS.get(binding.op_type).inputs, binding.attrs, binding.constants):
            is_tensor = arg.name not in kernel.host
            far = tuple(self.constant(value) if is_tensor and _is_host_value(value) else None for value in given)
            made.append(_Argument(is_tensor, arg.is_sequence, far))
        return made


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument of the body.

    Attributes:
        is_tensor: Whether it is a value of the graph, not one that a converter has made for the host.
        is_sequence: Whether it is a sequence of values.
        far: For each of its items the constant on the device; None for an item that is not a constant.
    """

    is_tensor: bool
    is_sequence: bool
    far: tuple[_Constant | None, ...]


def _host_body(binding: Binding) -> Callable[[], KernelBody] | None:
    """Return a function that creates the body of the host kernel once, or None if there is no host kernel."""
    kernel = KERNELS.find(binding.op_type, HOST, binding.attrs)
    if kernel is None:
        return None
    found = kernel
    made: list[KernelBody] = []

    def get() -> KernelBody:
        if not made:
            made.append(found.bind(replace(binding, backend=host())))
        return made[0]

    return get


def _dispatch(
    on_device: Callable[[Value, _Constant | None], Value],
    body: KernelBody,
    near: Callable[[], KernelBody] | None,
    arguments: Sequence[_Argument],
) -> KernelBody:
    # `far == (None,)`: a single value that is no constant. Constants are on the device already.
    watched = [i for i, a in enumerate(arguments) if a.is_tensor and a.far == (None,)]
    fixed = [(i, a.far[0]) for i, a in enumerate(arguments) if not a.is_sequence and a.far[0] is not None]
    plain = bool(watched) and not any(a.is_sequence for a in arguments)

    def call(*args: Value) -> Value:
        if plain and not any(isinstance(args[i], _NUMPY) for i in watched):  # the usual case: all on the device
            if fixed:
                given = list(args)
                for i, constant in fixed:
                    given[i] = constant.array
                return body(*given)
            return body(*args)
        return mixed(args)

    def mixed(args: Sequence[Any]) -> Value:
        parts = [value if a.is_sequence else (value,) for a, value in zip(arguments, args, strict=True)]
        if near is not None and all(
            not a.is_tensor or _all_small(values) for a, values in zip(arguments, parts, strict=True)
        ):
            return near()(*args)
        moved: list[Value] = []
        for argument, values, value in zip(arguments, parts, args, strict=True):
            if argument.is_tensor:
                brought = tuple(on_device(v, c) for v, c in zip(values, argument.far, strict=True))
                moved.append(brought if argument.is_sequence else brought[0])
            else:
                moved.append(value)
        return body(*moved)

    return call


def _is_host_value(value: Value) -> TypeGuard[Array]:
    return isinstance(value, _NUMPY) and value.dtype != object


def _all_small(values: Sequence[Value]) -> bool:
    return all(_is_host_value(value) and value.nbytes <= _SMALL for value in values)

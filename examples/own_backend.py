"""A custom backend: a device with its own memory, which counts the transfers between it and the host.

The device is implemented with NumPy, so it runs anywhere, but its arrays behave like those of a GPU library. They never
mix with host arrays implicitly, and reading one means a copy. A backend for another library has the same three parts:
its arrays in a namespace like NumPy's, a device, and the backend class that an entry point names:

    [project.entry-points."aioflow.backends"]
    counted = "examples.own_backend:CountedBackend"

Once that is installed, `with aioflow.device("/device:COUNTED:0")` places nodes there. The interface of a backend is
`aioflow.extend.Backend`, and this command checks the implementation:

    python -m examples.own_backend
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from aioflow.errors import NotFoundError
from aioflow.extend import Binding, BoundNode, DeviceThreads, HostValues, KernelBody, KernelDef, host_device
from aioflow.testing.check_backend import check_backend


@dataclass
class Traffic:
    """Counts of values copied to the device and to the host, and of values that a kernel made the host wait for."""

    into: int = 0
    out: int = 0
    looks: int = 0


class Array:
    """An array on the device, with the methods of NumPy's. Only `look` and the device itself read its memory."""

    __slots__ = ("__weakref__", "memory", "traffic")
    __array_ufunc__ = None  # makes NumPy scalars on the left defer to the operators of this class

    def __init__(self, memory: Any, traffic: Traffic) -> None:
        self.memory = np.asarray(memory)
        self.traffic = traffic

    @property
    def base(self) -> Any:
        """The memory, never None: if `base` were None, the runtime could overwrite the array as its only owner."""
        return self.memory

    def look(self) -> Any:
        """Return a copy in host memory, for a kernel that needs the value."""
        self.traffic.looks += 1
        return self.memory.copy()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("an array of the device is not on the host")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # NumPy's protocols for an array's memory must not be forwarded
        if name in ("item", "tolist"):
            return getattr(self.look(), name)
        found = getattr(self.memory, name)
        return Numpy(found, self.traffic) if callable(found) else _wrapped(found, self.traffic)

    def __bool__(self) -> bool:
        return bool(self.look())

    def __int__(self) -> int:
        return int(self.look())

    def __len__(self) -> int:
        return len(self.memory)

    def __getitem__(self, index: Any) -> Any:
        return _wrapped(self.memory[_plain(index)], self.traffic)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.memory[_plain(index)] = _plain(value)

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: Array, *other: Any) -> Any:
        return _wrapped(getattr(self.memory, name)(*_plain(other)), self.traffic)

    return apply


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul")
for _name in (*_BINARY, *(f"r{name}" for name in _BINARY), "lt", "le", "gt", "ge", "eq", "ne", "neg", "invert", "abs"):
    setattr(Array, f"__{_name}__", _operator(f"__{_name}__"))


def _plain(value: Any) -> Any:
    """Convert an argument for NumPy. Raise TypeError for a host array."""
    if isinstance(value, Array):
        return value.memory
    if isinstance(value, np.ndarray):
        raise TypeError("an array of the host among those of the device")
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value


def _wrapped(value: Any, traffic: Traffic) -> Any:
    """Wrap arrays in a result of NumPy as device arrays, including scalars, which are rank-0 results."""
    if isinstance(value, np.ndarray | np.generic):
        return Array(value, traffic)
    return tuple(_wrapped(v, traffic) for v in value) if isinstance(value, tuple | list) else value


class Numpy:
    """A NumPy function, ufunc or module over the arrays of the device."""

    def __init__(self, found: Any, traffic: Traffic) -> None:
        self._found = found
        self._traffic = traffic

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        named = {name: _plain(value) for name, value in kwargs.items()}
        return _wrapped(self._found(*_plain(args), **named), self._traffic)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._found, name)
        if isinstance(found, type) or not (callable(found) or isinstance(found, ModuleType)):
            return found
        made = Numpy(found, self._traffic)
        setattr(self, name, made)
        return made


class Namespace(Numpy):
    """The namespace `xp` of kernels. Host values enter by `asarray` and `array`."""

    ndarray = Array

    def __init__(self, traffic: Traffic) -> None:
        super().__init__(np, traffic)

    def asarray(self, value: Any, dtype: Any = None) -> Array:
        """Return the array itself, or a copy of a host value."""
        return value.astype(dtype or value.dtype, copy=False) if isinstance(value, Array) else self.array(value, dtype)

    def array(self, value: Any, dtype: Any = None, **layout: Any) -> Array:
        """Return a copy."""
        self._traffic.into += not isinstance(value, Array)
        return Array(np.array(value.memory if isinstance(value, Array) else value, dtype, **layout), self._traffic)


class CountedDevice:
    """A device that implements `extend.BackendDevice`."""

    device_type = "COUNTED"

    def __init__(self, index: int) -> None:
        self.traffic = Traffic()
        self.xp: Any = Namespace(self.traffic)
        self.executor = DeviceThreads(f"-counted{index}", 1)
        self._values = HostValues(self.xp.asarray)

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, KernelBody]:
        """Bind a kernel so that constants and shapes stay on the host until an array of the device needs them."""
        return self._values.bind(kernel, binding)

    def generator(self, seed: int, seed2: int) -> Any:
        """Return the host's generator, with its results on the device."""
        return Numpy(host_device().generator(seed, seed2), self.traffic)

    async def to_device(self, value: Any) -> Any:
        """Return a copy of a host value; strings and handles are returned unchanged."""
        is_number = isinstance(value, np.ndarray | np.generic) and value.dtype != object
        return self.xp.array(value) if is_number else value

    async def to_host(self, value: Any) -> Any:
        """Return a copy in host memory."""
        if isinstance(value, Array):
            self.traffic.out += 1
            return value.memory.copy()
        return np.array(value)  # the value never left the host

    def on_host(self, value: Any) -> Any:
        """Return a host value, for kernels that need to read it."""
        return value.look() if isinstance(value, Array) else value

    def copy_from(self, array: Any, other: CountedDevice) -> Any:
        """Return a copy on this device."""
        return Array(array.memory.copy(), self.traffic)

    def share(self, array: Any) -> Any:
        """Return the array itself, which has `__dlpack__`."""
        return array

    def captured(self, function: Callable[..., tuple[Any, ...]], nodes: Sequence[BoundNode]) -> None:
        """Return None: there is no cheaper form of the function."""

    def memory(self) -> None:
        """Return None: memory is not tracked."""

    def close(self) -> None:
        """Do nothing; the device's thread ends with the process."""


class CountedBackend:
    """A backend with two devices."""

    name = "counted"
    device_type = CountedDevice.device_type

    def __init__(self) -> None:
        self._devices = [CountedDevice(0), CountedDevice(1)]

    def count(self) -> int:
        """Return the number of devices."""
        return len(self._devices)

    def describe(self, index: int) -> tuple[int | None, str]:
        """Return no memory limit, and a description of the device."""
        return None, "NumPy, with copies that are counted"

    def device(self, index: int, threads: int = 0) -> CountedDevice:
        """Return the device with this number."""
        if not 0 <= index < self.count():
            raise NotFoundError("there is no such device", expected=f"one of {self.count()}", actual=index)
        return self._devices[index]


async def main() -> None:
    """Print the checks and their results."""
    for result in await check_backend(CountedBackend, complete=True):
        print(f"{'ok  ' if result.problem is None else 'FAIL'} {result.about}  {result.problem or ''}".rstrip())


if __name__ == "__main__":
    asyncio.run(main())

"""Kernels that keep tensors in a session between steps, on the worker of their device, until the session ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_text
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array, Value

_KEY = "/session_tensors"  # in the table of node state; names of nodes do not begin with a slash


class StoredTensors:
    """The tensors of a session on one worker, by handle."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._values: dict[str, tuple[Value, str]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, node: str, device: str, value: Value) -> str:
        """Store a value of a device and return its handle."""
        handle = f"{node};{next(self._numbers)};{device}"
        self._values[handle] = value, device
        return handle

    def get(self, handle: str, device: str) -> Value:
        """Return the value of a handle. Raise InvalidArgumentError if it is not stored on this device."""
        value, home = self._values.get(handle) or (None, None)
        if home is None:
            raise self._absent(handle)
        if home != device:
            raise InvalidArgumentError(
                f"the tensor with the handle {handle!r} is on another device; "
                "to move it, feed its TensorHandle for a tensor of that dtype",
                expected=device,
                actual=home,
            )
        return value

    def delete(self, handle: str) -> None:
        """Drop the value of a handle. Raise InvalidArgumentError if it is not stored."""
        if self._values.pop(handle, None) is None:
            raise self._absent(handle)

    @staticmethod
    def _absent(handle: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the tensor with the handle {handle!r} is not in the session store",
            expected="a tensor that this session has stored and not deleted",
            actual=handle,
        )


def _stored(binding: Binding) -> StoredTensors:
    # One atomic operation: threads may bind kernels of one session at once.
    found = binding.state.setdefault(_KEY, StoredTensors())
    if not isinstance(found, StoredTensors):
        raise InvalidArgumentError("the state of the session is in use", expected="stored tensors", actual=repr(found))
    return found


@binder("GetSessionHandle", retains=True, host_results=True)
def keep(binding: Binding) -> Callable[[Array], bytes]:
    stored, node, device = _stored(binding), binding.name, binding.resources.device
    return lambda value: stored.add(node, device, value).encode()


@binder("GetSessionTensor", host={"handle": as_text})
def find(binding: Binding) -> Callable[[str], Value]:
    stored, device = _stored(binding), binding.resources.device
    return lambda handle: stored.get(handle, device)


@binder("DeleteSessionTensor", host={"handle": as_text})
def delete(binding: Binding) -> Callable[[str], None]:
    return _stored(binding).delete

"""Kernels of stacks. The handle is the stack itself, which lives until the step ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Value


class StackValue:
    """A last-in, first-out stack of tensors of one dtype, with at most `max_size` elements unless that is negative."""

    def __init__(self, name: str, dtype: DType, max_size: int) -> None:
        self.name = name
        self.dtype = dtype
        self.max_size = max_size
        self._items: list[Value] = []
        self._closed = False
        self._lock = threading.Lock()  # several iterations of a loop may use the stack at once

    def push(self, dtype: DType, value: Value) -> None:
        """Push a tensor. Raise InvalidArgumentError if the stack is full, closed, or of another dtype."""
        with self._lock:
            self._check(dtype)
            if 0 <= self.max_size <= len(self._items):
                raise InvalidArgumentError(
                    f"Stack[{self.name}] overflowed its max_size",
                    expected=f"at most {self.max_size} elements",
                    actual=len(self._items) + 1,
                )
            self._items.append(value)

    def pop(self, dtype: DType) -> Value:
        """Pop the top tensor. Raise InvalidArgumentError if the stack is empty, closed, or of another dtype."""
        with self._lock:
            self._check(dtype)
            if not self._items:
                raise InvalidArgumentError(f"Stack[{self.name}] is empty", expected="an element", actual="none")
            return self._items.pop()

    def close(self) -> None:
        """Drop the tensors and refuse further calls."""
        with self._lock:
            self._closed = True
            self._items.clear()

    def _check(self, dtype: DType) -> None:
        if self._closed:
            raise InvalidArgumentError(f"Stack[{self.name}] is closed", expected="an open one", actual="closed")
        if dtype is not self.dtype:
            raise InvalidArgumentError(
                f"Stack[{self.name}] holds a different dtype", expected=self.dtype.name, actual=dtype.name
            )


@binder("StackV2", host={"max_size": as_int}, makes=StackValue)
def stack(binding: Binding) -> Callable[[int], StackValue]:
    name, dtype = binding.attrs["stack_name"] or binding.name, binding.attrs["elem_type"]
    return lambda max_size: StackValue(name, dtype, max_size)


@binder("StackPushV2", retains=True, takes=StackValue, opaque=True)
def push(binding: Binding) -> Callable[[StackValue, Value], Value]:
    dtype = binding.attrs["T"]

    def put(handle: StackValue, elem: Value) -> Value:
        handle.push(dtype, elem)
        return elem

    return put


@kernel("StackPopV2", takes=StackValue)
def pop(handle: StackValue, *, elem_type: DType) -> Value:
    return handle.pop(elem_type)


@kernel("StackCloseV2", takes=StackValue)
def close(handle: StackValue) -> None:
    handle.close()

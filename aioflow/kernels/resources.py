"""What outlives a step: variables and other resources, in named containers of the device that owns them.

A variable's value is a snapshot: `read` hands out the array itself, and an update either puts a new array in its place
or, when nobody else holds the array, changes it where it is. So a step never sees half an update, and an array that was
fetched never changes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims, is_compatible

__all__ = ["ResourceManager", "VariableResource"]

T = TypeVar("T")


class VariableResource:
    """A named, mutable tensor.

    Updates are atomic with respect to each other: they happen under `lock`.
    """

    __slots__ = ("dims", "dtype", "lock", "name", "value")

    def __init__(self, name: str, dtype: DType, dims: Dims) -> None:
        self.name = name
        self.dtype = dtype
        self.dims = dims
        self.lock = threading.Lock()
        self.value: Any = None

    @property
    def is_initialized(self) -> bool:
        """Whether a value has been assigned."""
        return self.value is not None

    def read(self) -> Any:
        """The present value. Do not modify it.

        Raises:
            FailedPreconditionError: nothing has been assigned yet.
        """
        value = self.value
        if value is None:
            raise FailedPreconditionError(
                f"attempting to use uninitialized value {self.name}",
                expected="run `global_variables_initializer()`, or restore a checkpoint, first",
                actual="uninitialized",
            )
        return value

    def assign(self, value: Any, validate_shape: bool = True) -> None:
        """Replace the value. The variable keeps the array: the caller must not modify it afterwards.

        Raises:
            InvalidArgumentError: the shape does not fit.
        """
        if validate_shape and not is_compatible(self.dims, np.shape(value)):
            raise InvalidArgumentError(
                f"cannot assign to variable {self.name}", expected=format_dims(self.dims), actual=format_dims(np.shape(value))
            )
        with self.lock:
            self.value = value

    def update(self, change: Callable[[Any, Any], Any]) -> None:
        """Replace the value by `change(value, out)` atomically.

        `out` is the present array where nobody else holds it and it may be overwritten, otherwise None; `change`
        returns the array to keep, which may be `out`.
        """
        with self.lock:
            self.read()
            out = self.value if _exclusive(self) else None
            self.value = change(self.value, out)


def _exclusive(variable: VariableResource) -> bool:
    """Whether the variable alone holds its array, and the array owns its memory."""
    value = variable.value
    return (
        sys.getrefcount(value) <= _ALONE
        and getattr(value, "base", value) is None
        and value.flags.writeable
    )


def _count_alone() -> int:
    """The reference count that `_exclusive` sees when the variable alone holds the array."""
    holder = VariableResource("", None, None)  # type: ignore[arg-type]  # only its value slot is used
    holder.value = np.empty(1)

    def measure(variable: VariableResource) -> int:
        value = variable.value
        return sys.getrefcount(value)

    return measure(holder)


_ALONE: Final = _count_alone()


class ResourceManager:
    """The resources of one device, by container and name. The default container is ""."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._containers: dict[str, dict[str, Any]] = {}
        self.generation = 0

    def get_or_create(self, container: str, name: str, make: Callable[[], T]) -> T:
        """The resource of that name, made by `make` where there is none."""
        with self._lock:
            held = self._containers.setdefault(container, {})
            if name not in held:
                held[name] = make()
            found: T = held[name]
            return found

    def find(self, container: str, name: str) -> Any:
        """The resource of that name, or None."""
        with self._lock:
            return self._containers.get(container, {}).get(name)

    def clear(self, container: str | None = None) -> None:
        """Drop the resources of one container, or of all."""
        with self._lock:
            self.generation += 1
            if container is None:
                self._containers.clear()
            else:
                self._containers.pop(container, None)

    def names(self, container: str = "") -> list[str]:
        """Names of the resources of a container."""
        with self._lock:
            return list(self._containers.get(container, ()))

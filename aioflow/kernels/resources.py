"""What outlives a step: variables and other resources, in named containers of the device that owns them.

A variable's value is a snapshot: `read` hands out the array itself, and an update either puts a new array in its place
or, when nobody else holds the array, changes it where it is. So a step never sees half an update, and an array that was
fetched never changes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.kernels.registry import Binding

__all__ = ["ResourceManager", "VariableResource", "resource_finder", "update_together"]

T = TypeVar("T")
Change: TypeAlias = Callable[[list[Any], list[Any]], Sequence[Any]]


class VariableResource:
    """A named, mutable tensor.

    Updates are atomic with respect to each other: they happen under `lock`. Reads of the whole take no lock, but while
    an update works in place: the value is out of its slot then, and a reader waits for the update to finish. Who reads
    some rows (`pick`) takes the lock, so that the next update can work in place.
    """

    __slots__ = ("_value", "dims", "dtype", "lock", "name")

    def __init__(self, name: str, dtype: DType, dims: Dims) -> None:
        self.name = name
        self.dtype = dtype
        self.dims = dims
        self.lock = threading.Lock()
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The present value, or None where nothing has been assigned. Do not modify it."""
        if self._value is not None:
            return self._value
        with self.lock:
            return self._value

    @property
    def is_initialized(self) -> bool:
        """Whether a value has been assigned."""
        return self.value is not None

    def read(self) -> Any:
        """The present value. Do not modify it.

        Raises:
            FailedPreconditionError: nothing has been assigned yet.
        """
        value = self._value
        return value if value is not None else self._wait_and_read()

    def pick(self, take: Callable[[Any], T]) -> T:
        """`take(value)`, where that is quick and keeps nothing of the value: rows of a large table.

        Updates wait for it meanwhile. Did they not, one that comes just then would find the value held by somebody, and
        copy it, all of it.

        Raises:
            FailedPreconditionError: nothing has been assigned yet.
        """
        with self.lock:
            return take(self._initialized())

    def _wait_and_read(self) -> Any:
        with self.lock:
            return self._initialized()

    def _initialized(self) -> Any:
        value = self._value
        if value is None:
            raise FailedPreconditionError(
                f"attempting to use uninitialized value {self.name}",
                expected="run `global_variables_initializer()`, or restore a checkpoint, first",
                actual="uninitialized",
            )
        return value

    def assign(self, value: Any, same_shape: bool = False) -> None:
        """Replace the value. The variable keeps the array: the caller must not modify it afterwards.

        Args:
            same_shape: Require the shape of the present value, if there is one.

        Raises:
            InvalidArgumentError: the shape does not fit.
        """
        if not is_compatible(self.dims, np.shape(value)):
            raise self._misfit(format_dims(self.dims), value)
        with self.lock:
            present = self._value
            if same_shape and present is not None and np.shape(present) != np.shape(value):
                raise self._misfit(np.shape(present), value)
            self._value = value

    def _misfit(self, expected: Any, value: Any) -> InvalidArgumentError:
        return InvalidArgumentError(f"cannot assign to variable {self.name}", expected=expected, actual=np.shape(value))

    def update(self, change: Callable[[Any, Any], Any]) -> None:
        """Replace the value by `change(value, out)` atomically.

        `out` is the present array where nobody else holds it and it may be overwritten, otherwise None; `change`
        returns the array to keep, which may be `out`. It must check its arguments before it writes into `out`: where it
        raises, the variable keeps the array that it had.

        Raises:
            FailedPreconditionError: nothing has been assigned yet.
        """
        with self.lock:
            value = self._initialized()
            kept = None
            try:
                # Out of the slot first, counted second: nobody can take the array after it has been counted.
                self._value = None
                alone = sys.getrefcount(value) <= _ALONE and _overwritable(value)
                if not alone:
                    self._value = value  # readers go on with the present value meanwhile
                kept = change(value, value if alone else None)
            finally:
                self._value = value if kept is None else kept


def _overwritable(value: Any) -> bool:
    """Whether this is an array that owns its memory, and not a scalar, a view or a constant."""
    return getattr(value, "base", value) is None and bool(getattr(value.flags, "writeable", True))


def _count_alone() -> int:
    """The reference count of an array that one local variable holds."""
    value = np.empty(1)
    return sys.getrefcount(value)


_ALONE: Final = _count_alone()


def update_together(variables: Sequence[VariableResource], change: Change) -> None:
    """`VariableResource.update` for several variables at once: `change(values, outs)` returns their new values.

    Raises:
        FailedPreconditionError: one of them has no value yet.
        InvalidArgumentError: one is given twice.
    """
    if len(variables) == 1:
        variables[0].update(lambda value, out: change([value], [out])[0])
        return
    held: list[VariableResource] = []
    try:
        for variable in sorted(variables, key=id):  # one order for everybody, so that updates never wait in a ring
            if held and held[-1] is variable:
                raise InvalidArgumentError(
                    "a variable cannot be two inputs of its update", expected="distinct variables", actual=variable.name
                )
            variable.lock.acquire()
            held.append(variable)
        _update_locked(variables, change)
    finally:
        for variable in held:
            variable.lock.release()


def _update_locked(variables: Sequence[VariableResource], change: Change) -> None:
    values = [variable._initialized() for variable in variables]
    outs: list[Any] = []
    news: Sequence[Any] = values
    try:
        for i, variable in enumerate(variables):
            value = values[i]
            variable._value = None  # as in `update`: out of the slot first, counted second
            alone = sys.getrefcount(value) <= _ALONE + 1 and _overwritable(value)  # one more: the list
            if not alone:
                variable._value = value
            outs.append(value if alone else None)
        news = change(values, outs)
    finally:
        for variable, new in zip(variables, news, strict=True):
            variable._value = new


class ResourceManager:
    """The resources of one device, by container and name. The default container is "".

    Attributes:
        generation: Counts up whenever resources are dropped, so that a holder knows when to look them up again.
    """

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

    def remove(self, resource: Any) -> bool:
        """Drop one resource; whether it was there."""
        with self._lock:
            for held in self._containers.values():
                for name, candidate in held.items():
                    if candidate is resource:
                        self.generation += 1
                        del held[name]
                        return True
        return False

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


def resource_finder(kind: type[T], binding: Binding, make: Callable[[str], T]) -> Callable[[], T]:
    """A function that finds the resource which a node names by its attributes; `make(name)` makes it the first time.

    The op has the attributes `container` and `shared_name`, both strings that may be empty. Steps may use the resource
    at the same time, from several threads.

    The function raises InvalidArgumentError where the resource of that name is of a different kind.
    """
    resources, container = binding.resources, binding.attrs["container"]
    name: str = binding.attrs["shared_name"] or binding.name

    def find() -> T:
        found = resources.get_or_create(container, name, lambda: make(name))
        if not isinstance(found, kind):
            raise InvalidArgumentError(
                f"resource {name!r} is of a different kind", expected=kind.__name__, actual=type(found).__name__
            )
        return found

    return find

"""Variables and other resources that outlive a step, in named containers of the device that owns them.

A variable's value is a snapshot: `read` returns the array itself. An update either replaces the array or, if there is
no other reference to it, changes it in place. So a step never sees half an update, and a fetched array never changes. A
reader that needs the value over many steps, as a checkpoint does, takes a `Snapshot`. Then an update of some rows can
still work in place.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.kernels.registry import Binding
from aioflow.kernels.snapshots import Snapshot
from aioflow.memory.values import Array

T = TypeVar("T")


class Overwrites(Enum):
    """The part of the array `out` that a change of a variable overwrites.

    ANY: unknown; `out` must hold the present value. ROWS: some rows, which the change first passes to `keep`; `out`
    must hold the present value. WHOLE: every element, so `out` may hold anything.
    """

    ANY = auto()
    ROWS = auto()
    WHOLE = auto()


VariableChange: TypeAlias = Callable[[list[Array], list[Array | None]], Sequence[Array]]


class VariableResource:
    """A named, mutable tensor.

    Updates are atomic with respect to each other: they run under `lock`. Reads of the whole value take no lock, except
    during an update in place: then the slot is empty, and a reader waits for the update to finish. Reads of some rows
    (`pick`) take the lock, so that the next update can work in place.

    Attributes:
        name, dtype, dims: What it was created with.
        lock: Held by updates.
        writes: The number of writes so far, also of those in place.
    """

    __slots__ = ("_snapshots", "_spares", "_value", "dims", "dtype", "lock", "name", "writes")

    def __init__(self, name: str, dtype: DType, dims: Dims) -> None:
        self.name = name
        self.dtype = dtype
        self.dims = dims
        self.lock = threading.Lock()
        self.writes = 0
        self._value: Array | None = None
        self._snapshots: list[weakref.ref[Snapshot]] = []  # those that share the present array
        self._spares: list[Array] = []  # an array that a snapshot has released

    @property
    def value(self) -> Any:
        """The present value, or None before the first assignment. Do not modify it."""
        if self._value is not None:
            return self._value
        # An update may have emptied the slot for the moment.
        with self.lock:
            return self._value

    @property
    def is_initialized(self) -> bool:
        """True if a value has been assigned."""
        return self.value is not None

    def read(self) -> Array:
        """Return the present value. Do not modify it.

        Raises:
            FailedPreconditionError: no value has been assigned yet.
        """
        # One read of the slot: an update could empty it between two.
        value = self._value
        return value if value is not None else self._wait_and_read()

    def pick(self, take: Callable[[Array], T]) -> T:
        """Return `take(value)`, for reads of some rows of a large table.

        Updates wait meanwhile, so `take` must be quick. It must keep no reference to the value.

        Raises:
            FailedPreconditionError: no value has been assigned yet.
        """
        # Without the lock, an update at this moment would find another reference to the array, and copy all of it.
        with self.lock:
            return take(self._initialized())

    def _wait_and_read(self) -> Array:
        with self.lock:
            return self._initialized()

    def _initialized(self) -> Array:
        value = self._value
        if value is None:
            raise FailedPreconditionError(
                f"attempting to use uninitialized value {self.name}",
                expected="run `global_variables_initializer()`, or restore a checkpoint, first",
                actual="uninitialized",
            )
        return value

    def snapshot(self) -> Any:
        """Return the present value for a later read: a `Snapshot`, or the value itself if a snapshot has no benefit.

        Raises:
            FailedPreconditionError: no value has been assigned yet.
        """
        with self.lock:
            value = self._initialized()
            # An array that is never changed in place needs no snapshot.
            if not Snapshot.pays(value) or not _overwritable(value):
                return value
            taken = Snapshot(value, self.lock, self._spares)
            self._snapshots = [known for known in self._snapshots if known() is not None]
            self._snapshots.append(weakref.ref(taken))
            return taken

    def _sharers(self) -> list[Snapshot]:
        """Return the snapshots that share the present array. Call under the lock; they live as long as the list."""
        return [found for known in self._snapshots if (found := known()) is not None]

    def keep(self, rows: Array) -> None:
        """Prepare for a `change` that is about to overwrite these rows in place. Each must be in range."""
        for taken in self._sharers():
            taken.keep(rows)

    def _leave(self) -> None:
        """Detach the snapshots from the variable, because another array is about to replace the one that they share."""
        for taken in self._sharers():
            taken.detach()
        self._snapshots = []

    def _spare(self, value: Array, reach: Overwrites) -> Array | None:
        """Return memory for a new value that a snapshot has released, or None. Fresh memory would cost page faults."""
        if reach is not Overwrites.WHOLE or not self._spares:
            return None
        spare = self._spares.pop()
        # A reader may still use a part that it took from the snapshot.
        alone = sys.getrefcount(spare) <= _ALONE and spare.shape == value.shape and spare.dtype == value.dtype
        return spare if alone else None

    def assign(self, value: Array, same_shape: bool = False) -> None:
        """Replace the value. The variable keeps the array: the caller must not modify it afterwards.

        Args:
            value: The new value.
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
            if self._snapshots:
                self._leave()
            self.writes += 1
            self._value = value

    def _misfit(self, expected: object, value: Array) -> InvalidArgumentError:
        return InvalidArgumentError(f"cannot assign to variable {self.name}", expected=expected, actual=np.shape(value))

    def update(self, change: Callable[[Array, Array | None], Array], reach: Overwrites = Overwrites.ANY) -> None:
        """Replace the value with `change(value, out)` atomically.

        `out` is None or an array that may be overwritten: the present one if there is no other reference to it, or,
        with Overwrites.WHOLE, spare memory with other contents. `change` returns the array to keep, which may be `out`.
        It must check its arguments before it writes into `out`: if it raises, the variable keeps its old array.

        Raises:
            FailedPreconditionError: no value has been assigned yet.
        """
        with self.lock:
            value = self._initialized()
            # Each snapshot holds one reference. Only Overwrites.ROWS saves the overwritten rows first, so any other
            # change must not overwrite an array that a snapshot shares.
            sharers = self._sharers() if self._snapshots and reach is Overwrites.ROWS else ()
            kept = None
            try:
                # The value leaves the slot before its references are counted, so no reader can take it after the count.
                self._value = None
                alone = sys.getrefcount(value) <= _ALONE + len(sharers) and _overwritable(value)
                if not alone:
                    self._value = value  # meanwhile readers continue with the present value
                kept = change(value, value if alone else self._spare(value, reach))
            finally:
                # Another array replaces the one that snapshots share. If `change` has raised, `kept` is None and the
                # old array stays.
                if self._snapshots and kept is not None and kept is not value:
                    self._leave()
                self.writes += 1
                self._value = value if kept is None else kept

    @staticmethod
    def update_locked(variables: Sequence[VariableResource], change: VariableChange, reach: Overwrites) -> None:
        """Update variables whose locks are held, as `update_together`."""
        values = [variable._initialized() for variable in variables]
        outs: list[Array | None] = []
        # If `change` raises, each variable keeps its old array.
        news: Sequence[Array] = values
        try:
            for i, variable in enumerate(variables):
                value = values[i]
                sharers = variable._sharers() if variable._snapshots and reach is Overwrites.ROWS else ()
                variable._value = None  # as in `update`, the value leaves the slot before the count
                # `values` holds one more reference.
                alone = sys.getrefcount(value) <= _ALONE + 1 + len(sharers) and _overwritable(value)
                if not alone:
                    variable._value = value
                outs.append(value if alone else variable._spare(value, reach))
            news = change(values, outs)
        finally:
            for variable, value, new in zip(variables, values, news, strict=True):
                if variable._snapshots and new is not value:
                    variable._leave()
                variable.writes += 1
                variable._value = new


def _overwritable(value: Array) -> bool:
    """Return whether this is an array that owns its memory, and not a scalar, a view or a constant."""
    return getattr(value, "base", value) is None and bool(getattr(value.flags, "writeable", True))


def _count_alone() -> int:
    """Return the reference count of an array that one local variable holds."""
    value = np.empty(1)
    return sys.getrefcount(value)


_ALONE: Final = _count_alone()


def update_together(
    variables: Sequence[VariableResource], change: VariableChange, reach: Overwrites = Overwrites.ANY
) -> None:
    """Update several variables at once, like `VariableResource.update`: `change(values, outs)` returns the new values.

    Raises:
        FailedPreconditionError: a variable has no value yet.
        InvalidArgumentError: a variable is given twice.
    """
    if len(variables) == 1:
        variables[0].update(lambda value, out: change([value], [out])[0], reach)
        return
    held: list[VariableResource] = []
    try:
        # All callers lock in the same order, so that updates cannot deadlock.
        for variable in sorted(variables, key=id):
            # In sorted order, a variable that is given twice meets itself.
            if held and held[-1] is variable:
                raise InvalidArgumentError(
                    "a variable cannot be two inputs of its update", expected="distinct variables", actual=variable.name
                )
            variable.lock.acquire()
            held.append(variable)
        VariableResource.update_locked(variables, change, reach)
    finally:
        for variable in held:
            variable.lock.release()


class ResourceManager:
    """The resources of one device, by container and name. The default container is "".

    Attributes:
        device: The full name of the device, if it has one.
        generation: Incremented whenever resources are dropped, so that a holder knows when to look them up again.
    """

    def __init__(self) -> None:
        self.device = ""
        self._lock = threading.Lock()
        self._containers: dict[str, dict[str, Any]] = {}
        self.generation = 0

    def get_or_create(self, container: str, name: str, make: Callable[[], T]) -> T:
        """Return the resource of that name. If it does not exist, `make` makes it.

        `make` runs under the manager's lock, so it must not use the manager.
        """
        with self._lock:
            held = self._containers.setdefault(container, {})
            if name not in held:
                held[name] = make()
            found: T = held[name]
            return found

    def find(self, container: str, name: str) -> Any:
        """Return the resource of that name, or None."""
        with self._lock:
            return self._containers.get(container, {}).get(name)

    def remove(self, resource: object) -> bool:
        """Drop one resource. Return whether it existed."""
        with self._lock:
            for held in self._containers.values():
                for name, candidate in held.items():
                    if candidate is resource:
                        self.generation += 1
                        # The iteration ends here, so the dict may change.
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

    def held(self) -> list[Any]:
        """Return all resources of all containers."""
        with self._lock:
            return [resource for container in self._containers.values() for resource in container.values()]

    def names(self, container: str = "") -> list[str]:
        """Return the names of the resources of a container."""
        with self._lock:
            return list(self._containers.get(container, ()))


def resource_finder(kind: type[T], binding: Binding, make: Callable[[str], T]) -> Callable[[], T]:
    """Return a function that returns the resource named by a node's attributes, made by `make(name)` if necessary.

    The op has the attributes `container` and `shared_name`, both strings that may be empty. Without a `shared_name`
    the resource has the node's name. Steps may use the resource at the same time, from several threads.

    The returned function raises InvalidArgumentError if the resource of that name is of a different kind.
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

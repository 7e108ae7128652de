"""Kernels of barriers: they move arrays in and out of a `BarrierCore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.resources import resource_finder
from aioflow.memory.values import Array, Namespace
from aioflow.sync.barrier import BarrierCore
from aioflow.sync.queue import Dequeue
from aioflow.sync.waiting import StepAccount, Waiting, tell, wake_all


class BarrierResource(BarrierCore):
    """A barrier of arrays; `shapes` is empty if the barrier accepts any shape."""

    def __init__(self, name: str, dtypes: tuple[DType, ...], shapes: tuple[Dims, ...]) -> None:
        super().__init__(name, len(dtypes))
        self.dtypes = dtypes
        self.shapes = shapes

    def check_component(self, index: int, dtype: DType, values: Array) -> None:
        """Raise InvalidArgumentError if the rows do not fit that component."""
        if not 0 <= index < self.width:
            raise InvalidArgumentError(
                f"barrier {self.name!r} has no such component", expected=f"0 to {self.width - 1}", actual=index
            )
        if dtype is not self.dtypes[index]:
            raise InvalidArgumentError(
                f"component {index} of barrier {self.name!r} has a different dtype",
                expected=self.dtypes[index].name,
                actual=dtype.name,
            )
        wanted = self.shapes[index] if self.shapes else None
        if not is_compatible(wanted, values.shape[1:]):
            raise InvalidArgumentError(
                f"the values do not fit component {index} of barrier {self.name!r}",
                expected=format_dims(wanted),
                actual=values.shape[1:],
            )


@binder("Barrier", device="CPU", makes=BarrierResource)
def barrier(binding: Binding) -> Callable[[], BarrierResource]:
    dtypes, shapes = tuple(binding.attrs["component_types"]), tuple(binding.attrs["shapes"])
    if shapes and len(shapes) != len(dtypes):
        raise InvalidArgumentError(
            "the barrier needs one shape per component", expected=len(dtypes), actual=len(shapes)
        )
    find = resource_finder(BarrierResource, binding, lambda name: BarrierResource(name, dtypes, shapes))

    def handle() -> BarrierResource:
        found = find()
        if (found.dtypes, found.shapes) != (dtypes, shapes):
            raise InvalidArgumentError(
                f"barrier {found.name!r} exists with different components",
                expected=[t.name for t in dtypes],
                actual=[t.name for t in found.dtypes],
            )
        return found

    return handle


@binder("BarrierInsertMany", device="CPU", retains=True, takes=BarrierResource)
def insert_many(binding: Binding) -> Callable[[BarrierResource, Array, Array], None]:
    component, dtype = binding.attrs["component_index"], binding.input_dtypes[2]

    def insert(found: BarrierResource, keys: Array, values: Array) -> None:
        if np.ndim(keys) != 1 or np.ndim(values) == 0 or len(keys) != len(values):
            raise InvalidArgumentError(
                "a barrier takes one value per key",
                expected="keys [n] and values [n, ...]",
                actual=(np.shape(keys), np.shape(values)),
            )
        found.check_component(component, dtype, values)
        if len(keys) and not values.size:
            raise InvalidArgumentError("a barrier takes no empty values", expected="elements", actual=values.shape)
        # The barrier keeps views of the rows; `retains` protects their array.
        wake_all(found.insert(component, keys.tolist(), list(values)))

    return insert


@binder(
    "BarrierTakeMany",
    device="CPU",
    is_async=True,
    fresh=True,
    host={"num_elements": as_int},
    takes=BarrierResource,
    takes_step=True,
)
def take_many(binding: Binding) -> Callable[..., Waiting]:
    small, dtypes, xp = binding.attrs["allow_small_batch"], tuple(binding.attrs["component_types"]), binding.xp
    gives_back = binding.gives_back

    def take(found: BarrierResource, count: int, *, step: StepAccount) -> Waiting:
        if dtypes != found.dtypes:
            raise InvalidArgumentError(
                f"the node cannot take from barrier {found.name!r}",
                expected=[t.name for t in found.dtypes],
                actual=[t.name for t in dtypes],
            )
        if count < 0:
            raise InvalidArgumentError("cannot take a negative number of elements", expected=">= 0", actual=count)
        finish = partial(_batch, xp, found)
        # With `gives_back` the step only borrows the elements, and a withdrawal puts them back.
        told = partial(tell, step, found.withdraw if gives_back else None)
        return Waiting(found.submit, found.withdraw, partial(Dequeue, count, small), found.describe, finish, told=told)

    return take


def _batch(xp: Namespace, found: BarrierResource, elements: Sequence[Sequence[Any]]) -> tuple[Array, ...]:
    """Return the indices, the keys, and each component stacked."""
    indices = np.array([element[0] for element in elements], np.int64)
    keys = np.array([element[1] for element in elements], object)
    return indices, keys, *(_stack(xp, found, i, [e[2 + i] for e in elements]) for i in range(found.width))


def _stack(xp: Namespace, found: BarrierResource, component: int, values: list[Array]) -> Array:
    dims = found.shapes[component] if found.shapes else None
    # Without elements, an unknown size counts as 0.
    shape = np.shape(values[0]) if values else tuple(d or 0 for d in dims or ())
    other = next((v for v in values if np.shape(v) != shape), None)
    if other is not None:
        raise InvalidArgumentError(
            f"the elements of barrier {found.name!r} differ in component {component}",
            expected=shape,
            actual=np.shape(other),
        )
    made = xp.empty((len(values), *shape), found.dtypes[component].np_dtype)
    for i, value in enumerate(values):
        made[i] = value
    return made


@binder("BarrierClose", device="CPU", takes=BarrierResource)
def close(binding: Binding) -> Callable[[BarrierResource], None]:
    cancel = binding.attrs["cancel_pending_enqueues"]
    return lambda found: wake_all(found.close(cancel))


@kernel("BarrierReadySize", device="CPU", fresh=True, takes=BarrierResource)
def ready_size(handle: BarrierResource) -> np.int32:
    return np.int32(handle.ready_size)


@kernel("BarrierIncompleteSize", device="CPU", fresh=True, takes=BarrierResource)
def incomplete_size(handle: BarrierResource) -> np.int32:
    return np.int32(handle.incomplete_size)

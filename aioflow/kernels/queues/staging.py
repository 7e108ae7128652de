"""Kernels of staging areas. Their nodes have no handle: each names its area, and the first one to run creates it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, binder
from aioflow.kernels.resources import resource_finder
from aioflow.memory.values import Array, Value
from aioflow.sync.staging import Get, Peek, Put, StagingCore
from aioflow.sync.waiting import StepAccount, Ticket, Waiting, tell, wake_all


def _finder(binding: Binding) -> Callable[[], StagingCore]:
    capacity, limit = binding.attrs["capacity"], binding.attrs["memory_limit"]
    return resource_finder(StagingCore, binding, lambda name: StagingCore(name, capacity, limit))


def _waiting(
    area: StagingCore,
    make: Callable[[Callable[[], None]], Ticket],
    finish: Callable[[Any], Value],
    told: Callable[[Ticket], None] | None = None,
) -> Waiting:
    return Waiting(area.submit, area.withdraw, make, area.describe, finish, told=told)


def _nothing(value: Value) -> None:
    return None


def _element(put: Put) -> Value:
    # The value of a Get or a Peek is the Put that brought the element.
    return put.element


@binder("Stage", device="CPU", is_async=True, retains=True, takes_step=True)
def stage(binding: Binding) -> Callable[..., Waiting]:
    find = _finder(binding)

    def put(values: tuple[Array, ...], *, step: StepAccount) -> Waiting:
        size = sum(v.nbytes for v in values)
        # Without a withdrawal for the step: an element that is in the area stays there, even if the step fails later.
        return _waiting(find(), partial(Put, values, size), _nothing, partial(tell, step, None))

    return put


@binder("Unstage", device="CPU", is_async=True, takes_step=True)
def unstage(binding: Binding) -> Callable[..., Waiting]:
    find, gives_back = _finder(binding), binding.gives_back

    def take(*, step: StepAccount) -> Waiting:
        area = find()
        return _waiting(area, Get, _element, partial(tell, step, area.withdraw if gives_back else None))

    return take


@binder("StagePeek", device="CPU", is_async=True, host={"index": as_int})
def peek(binding: Binding) -> Callable[[int], Waiting]:
    find = _finder(binding)

    def look(index: int) -> Waiting:
        if index < 0:
            raise InvalidArgumentError("the index is negative", expected=">= 0", actual=index)
        return _waiting(find(), partial(Peek, index), _element)

    return look


@binder("StageSize", device="CPU", fresh=True)
def size(binding: Binding) -> Callable[[], np.int32]:
    find = _finder(binding)
    return lambda: np.int32(len(find()))


@binder("StageClear", device="CPU")
def clear(binding: Binding) -> Callable[[], None]:
    find = _finder(binding)
    return lambda: wake_all(find().clear())

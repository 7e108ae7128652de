"""Kernels of queues: they move arrays in and out of a `QueueCore`, and wait where that is necessary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType, int64
from aioflow.graph.shapes import Dims, common_dims, format_dims, is_compatible
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, Namespace, NpDType, Value
from aioflow.sync.queue import (
    Close,
    Dequeue,
    ElementStore,
    Enqueue,
    FIFOStore,
    PriorityStore,
    QueueCore,
    ShuffleStore,
)
from aioflow.sync.waiting import StepAccount, Ticket, Waiting, tell, wake_all


class Queue(QueueCore):
    """A queue of tuples of arrays.

    Attributes:
        kind: The op that makes the queue.
        order: min_after_dequeue and the two seeds of a shuffling queue, otherwise None.
        dtypes: The dtypes of the components.
        shapes: The shapes of the components; empty if the queue accepts any shape.
        exact: The shapes if all sizes are known, otherwise None.
        pads: Whether components with unknown sizes are padded when they are batched.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        capacity: int,
        store: ElementStore,
        dtypes: tuple[DType, ...],
        shapes: tuple[Dims, ...],
    ) -> None:
        super().__init__(name, capacity, store)
        self.kind = kind
        self.order: tuple[int, int, int] | None = None
        self.dtypes = dtypes
        self.shapes = shapes
        self.exact = shapes if shapes and all(s is not None and None not in s for s in shapes) else None
        self.pads = kind == "PaddingFIFOQueueV2"

    def check(self, element: Sequence[Array]) -> None:
        """Raise InvalidArgumentError if the element does not fit this queue."""
        # The common case is one comparison.
        if self.exact is not None and self.exact == tuple([v.shape for v in element]):
            return
        for i, (dims, value) in enumerate(zip(self.shapes, element, strict=False)):
            if not is_compatible(dims, value.shape):
                raise InvalidArgumentError(
                    f"component {i} does not fit queue {self.name!r}", expected=format_dims(dims), actual=value.shape
                )

    def check_types(self, dtypes: Sequence[DType], what: str) -> None:
        """Raise InvalidArgumentError if the node expects a queue of other dtypes."""
        if tuple(dtypes) != self.dtypes:
            raise InvalidArgumentError(
                f"the node cannot {what} queue {self.name!r}",
                expected=[t.name for t in self.dtypes],
                actual=[t.name for t in dtypes],
            )

    def waiting(
        self,
        make: Callable[[Callable[[], None]], Ticket],
        finish: Callable[[Any], Value] | None = None,
        told: Callable[[Ticket], None] | None = None,
    ) -> Waiting:
        """Return an attempt that may have to wait; the arguments are those of `Waiting`."""
        return Waiting(self.submit, self.withdraw, make, self.describe, finish, told=told)


# ── handles ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fifo(binding: Binding) -> ElementStore:
    return FIFOStore()


def _shuffle(binding: Binding) -> ElementStore:
    attrs = binding.attrs
    least, capacity = attrs["min_after_dequeue"], attrs["capacity"]
    if least < 0 or 0 <= capacity <= least:
        raise InvalidArgumentError(
            "min_after_dequeue does not fit the capacity", expected=f"0 <= value < {capacity}", actual=least
        )
    seeds = (attrs["seed"], attrs["seed2"])
    # Two seeds of 0 stand for a seed from the operating system.
    generator = np.random.Generator(np.random.PCG64(None if seeds == (0, 0) else seeds))
    return ShuffleStore(least, lambda count: int(generator.random() * count))


def _priority(binding: Binding) -> ElementStore:
    first = next(iter(binding.attrs["component_types"]), None)
    if first is not int64:
        raise InvalidArgumentError("the first component is the priority", expected=int64, actual=first)
    return PriorityStore(lambda element: as_int(element[0]))


def _handle(make_store: Callable[[Binding], ElementStore], binding: Binding) -> Callable[[], Queue]:
    attrs, resources, kind = binding.attrs, binding.resources, binding.op_type
    name: str = attrs["shared_name"] or binding.name
    dtypes, shapes = tuple(attrs["component_types"]), tuple(attrs["shapes"])
    if shapes and len(shapes) != len(dtypes):
        raise InvalidArgumentError("the queue needs one shape per component", expected=len(dtypes), actual=len(shapes))
    # The last lookup is cached, since each step that uses the queue runs its handle.
    held: Queue | None = None
    seen = -1

    order = (attrs["min_after_dequeue"], attrs["seed"], attrs["seed2"]) if "min_after_dequeue" in attrs else None

    def make() -> Queue:
        queue = Queue(kind, name, attrs["capacity"], make_store(binding), dtypes, shapes)
        queue.order = order
        return queue

    def handle() -> Queue:
        nonlocal held, seen
        if held is not None and seen == resources.generation:
            return held
        # Read before the lookup, so that a concurrent clearing only causes another lookup.
        generation = resources.generation
        found: Queue = resources.get_or_create(attrs["container"], name, make)
        _check_same(found, kind, name, dtypes, shapes, attrs["capacity"])
        _check_order(found, order)
        held, seen = found, generation
        return found

    return handle


def _check_same(
    found: object, kind: str, name: str, dtypes: tuple[DType, ...], shapes: tuple[Dims, ...], capacity: int
) -> None:
    """Raise InvalidArgumentError unless the existing resource matches the handle. Another graph may have made it."""
    if not isinstance(found, Queue) or found.kind != kind:
        actual = found.kind if isinstance(found, Queue) else type(found).__name__
        raise InvalidArgumentError(f"resource {name!r} is of a different kind", expected=kind, actual=actual)
    found.check_types(dtypes, "share")
    # A `QueueCore` replaces a negative capacity, so the handle's capacity goes through one, too.
    have, wanted = (found.shapes, found.capacity), (shapes, QueueCore("", capacity, FIFOStore()).capacity)
    if found.pads and tuple(map(common_dims, shapes, found.shapes)) == shapes:
        # A size that is unknown here may be known in the existing queue, but not the other way around.
        have = (shapes, found.capacity)
    if have != wanted:
        raise InvalidArgumentError(f"queue {name!r} exists with different attributes", expected=wanted, actual=have)


def _check_order(found: Queue, order: tuple[int, int, int] | None) -> None:
    """Raise InvalidArgumentError unless a shuffling queue has the handle's order.

    A handle without seeds accepts any seeds.
    """
    have = found.order
    if order is None or have is None or have == order or (order[1:] == (0, 0) and have[0] == order[0]):
        return
    raise InvalidArgumentError(
        f"queue {found.name!r} exists with different attributes",
        expected="min_after_dequeue {}, seeds {} and {}".format(*order),
        actual="min_after_dequeue {}, seeds {} and {}".format(*have),
    )


for _kind, _make_store in (
    ("FIFOQueueV2", _fifo),
    ("PaddingFIFOQueueV2", _fifo),
    ("RandomShuffleQueueV2", _shuffle),
    ("PriorityQueueV2", _priority),
):
    binder(_kind, device="CPU", makes=Queue)(partial(_handle, _make_store))


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@binder("QueueEnqueueV2", device="CPU", is_async=True, retains=True, takes=Queue, takes_step=True)
def enqueue(binding: Binding) -> Callable[..., Waiting | None]:
    dtypes = binding.input_dtypes[1:]

    def put(queue: Queue, components: tuple[Array, ...], *, step: StepAccount) -> Waiting | None:
        if dtypes != queue.dtypes:
            queue.check_types(dtypes, "enqueue into")
        queue.check(components)
        # None if the element has to wait; otherwise the tickets that it has resolved.
        resolved = queue.try_put(components)
        if resolved is None:
            return queue.waiting(lambda wake: Enqueue((components,), wake), told=partial(tell, step, None))
        step.changed = True
        if resolved:
            wake_all(resolved)
        return None

    return put


@binder("QueueEnqueueManyV2", device="CPU", is_async=True, retains=True, takes=Queue)
def enqueue_many(binding: Binding) -> Callable[[Queue, tuple[Array, ...]], Waiting | None]:
    dtypes = binding.input_dtypes[1:]

    def put(queue: Queue, components: tuple[Array, ...]) -> Waiting | None:
        queue.check_types(dtypes, "enqueue into")
        elements = _rows(components)
        for element in elements[:1]:  # the rows of an array have the same shape
            queue.check(element)
        resolved = queue.try_submit(Enqueue(elements))
        if resolved is None:
            return queue.waiting(lambda wake: Enqueue(elements, wake))
        wake_all(resolved)
        return None

    return put


def _rows(components: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    sizes = {c.shape[0] if c.ndim else None for c in components}
    if len(sizes) != 1 or None in sizes:
        raise InvalidArgumentError(
            "the components of enqueue_many must have the same first dimension",
            expected="equal",
            actual=[c.shape for c in components],
        )
    return list(zip(*map(_split, components), strict=True))


def _split(component: Array) -> list[Array]:
    # Iterating would yield bare bytes instead of 0-d arrays.
    if component.dtype == object and component.ndim == 1:
        return [component[i : i + 1].reshape(()) for i in range(len(component))]
    return list(component)


# ── dequeue ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@binder("QueueDequeueV2", device="CPU", is_async=True, takes=Queue, takes_step=True)
def dequeue(binding: Binding) -> KernelBody:
    dtypes, gives_back = binding.output_dtypes, binding.gives_back

    def take(queue: Queue, *, step: StepAccount) -> Value:
        if dtypes != queue.dtypes:
            queue.check_types(dtypes, "dequeue from")
        withdraw = queue.withdraw if gives_back else None
        taken = queue.try_take()
        if taken is None:
            return queue.waiting(partial(Dequeue, 1, False), _first, partial(tell, step, withdraw))
        ticket, resolved = taken
        if resolved:
            wake_all(resolved)
        tell(step, withdraw, ticket)
        return ticket.value[0]

    return take


def _first(elements: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    return elements[0]


def _dequeue_many(small: bool, binding: Binding) -> KernelBody:
    dtypes, xp, gives_back = binding.output_dtypes, binding.xp, binding.gives_back

    def take(queue: Queue, n: int, *, step: StepAccount) -> tuple[Array, ...] | Waiting:
        queue.check_types(dtypes, "dequeue from")
        if n < 0:
            raise InvalidArgumentError("cannot dequeue a negative number of elements", expected=">= 0", actual=n)
        if not queue.pads and queue.exact is None:
            raise InvalidArgumentError(
                f"queue {queue.name!r} must know the shapes of its components to batch them",
                expected="known shapes",
                actual=[format_dims(s) for s in queue.shapes] or "none",
            )
        # It has no `wake`. If the request has to wait, a second ticket with one is made.
        ticket = Dequeue(n, small)
        resolved = queue.try_submit(ticket)
        told, finish = partial(tell, step, queue.withdraw if gives_back else None), partial(_batch, xp, queue)
        if resolved is None:
            return queue.waiting(partial(Dequeue, n, small), finish, told)
        wake_all(resolved)
        told(ticket)
        return finish(ticket.value)

    return take


for _op, _small in (("QueueDequeueManyV2", False), ("QueueDequeueUpToV2", True)):
    binder(_op, device="CPU", is_async=True, fresh=True, host={"n": as_int}, takes=Queue, takes_step=True)(
        partial(_dequeue_many, _small)
    )


def _batch(xp: Namespace, queue: Queue, elements: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return the elements, stacked component by component."""
    columns = list(zip(*elements, strict=True)) if elements else [()] * len(queue.dtypes)
    return tuple(
        _stack(xp, column, dtype.np_dtype, dims)
        for column, dtype, dims in zip(columns, queue.dtypes, queue.shapes, strict=True)
    )


def _stack(xp: Namespace, column: Sequence[Array], dtype: NpDType, dims: Dims) -> Array:
    if dims is None:
        raise InvalidArgumentError("a component of unknown rank cannot be batched", expected="a rank", actual=None)
    if dims == () and dtype.kind != "O" and column:
        return xp.array(column, dtype=dtype)
    if dims and len({value.shape for value in column}) == 1 and column[0].ndim:
        return xp.concatenate(column).reshape(len(column), *column[0].shape)
    # An unknown size becomes that of the largest element, as PaddingFIFOQueue promises.
    sizes = [max((v.shape[i] for v in column), default=0) if d is None else d for i, d in enumerate(dims)]
    made = xp.empty((len(column), *sizes), dtype=dtype)
    made.fill(b"" if dtype.kind == "O" else 0)
    for i, value in enumerate(column):
        corner: tuple[Any, ...] = (i, *(slice(0, size) for size in value.shape))
        made[corner] = value[()] if dims == () else value
    return made


# ── the rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@binder("QueueCloseV2", device="CPU", is_async=True, takes=Queue)
def close(binding: Binding) -> Callable[[Queue], Waiting | None]:
    cancel = binding.attrs["cancel_pending_enqueues"]

    def end(queue: Queue) -> Waiting | None:
        # This close takes effect after all earlier enqueues.
        if not cancel:
            return queue.waiting(Close)
        wake_all(queue.cancel_and_close())
        return None

    return end


@kernel("QueueSizeV2", device="CPU", fresh=True, takes=Queue)
def size(handle: Queue) -> np.int32:
    return np.int32(len(handle))


@kernel("_QueueDequeuersV2", device="CPU", fresh=True, takes=Queue)
def dequeuers(handle: Queue) -> np.int32:
    return np.int32(handle.num_dequeuing)


@kernel("QueueIsClosedV2", device="CPU", fresh=True, takes=Queue)
def is_closed(handle: Queue) -> np.bool_:
    return np.bool_(handle.closed)

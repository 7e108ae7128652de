"""Definitions of the queue and stack ops. The classes in `aioflow.ops.queues.queues` build the nodes of queues."""

from __future__ import annotations

import functools

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, common_dims, format_dims
from aioflow.graph.traits import Effect, bookkeeping, handle, waiting
from aioflow.ops.core import origin, scalar

_KINDS = ("FIFOQueueV2", "PaddingFIFOQueueV2", "RandomShuffleQueueV2", "PriorityQueueV2")
_NAMES = ["container: string = ''", "shared_name: string = ''"]
_TYPES = "component_types: list(type) >= 1"
_SHAPES = "shapes: list(shape) = []"
_CAPACITY = "capacity: int = -1"
_TIMEOUT = "timeout_ms: int = -1"


def _shapes_of(handle: Tensor) -> tuple[Dims, ...]:
    """Return the static shapes of the queue's elements, derived from its handle; () if they are unknown."""
    op = origin(handle).op
    if op.type == "GatherV2" and op.inputs[0].op.type == "Pack":  # see `QueueBase.from_list`
        found = {_shapes_of(each) for each in op.inputs[0].op.inputs}
        return tuple(map(_common, zip(*found, strict=False))) if () not in found else ()
    return tuple(op.attrs["shapes"]) if op.type in _KINDS else ()


def _common(shapes: tuple[Dims, ...]) -> Dims:
    return functools.reduce(common_dims, shapes)


def _element_shapes(ctx: ShapeContext) -> list[Dims]:
    return list(_shapes_of(ctx.tensors[0])) or [None] * len(ctx.attrs["component_types"])


def _batch_shapes(ctx: ShapeContext, size: int | None) -> list[Dims]:
    if ctx.dims("n") not in (None, ()):
        raise InvalidArgumentError("n must be a scalar", expected="()", actual=format_dims(ctx.dims("n")))
    return [None if dims is None else (size, *dims) for dims in _element_shapes(ctx)]


def _many(ctx: ShapeContext) -> list[Dims]:
    count = ctx.scalar("n")
    if count is not None and count < 0:
        raise InvalidArgumentError("cannot dequeue a negative number", expected="n >= 0", actual=count)
    return _batch_shapes(ctx, count)


def _up_to(ctx: ShapeContext) -> list[Dims]:
    return _batch_shapes(ctx, None)


_FIFO = [_TYPES, _SHAPES, _CAPACITY]
define_op(
    "FIFOQueueV2",
    "",
    "handle: resource",
    [*_FIFO, *_NAMES],
    shape=scalar,
    traits=handle(on_host="its queue belongs to the event loop", is_numeric=False),
)
define_op(
    "PaddingFIFOQueueV2",
    "",
    "handle: resource",
    [*_FIFO, *_NAMES],
    shape=scalar,
    traits=handle(on_host="its queue belongs to the event loop", is_numeric=False),
)
define_op(
    "RandomShuffleQueueV2",
    "",
    "handle: resource",
    [*_FIFO, "min_after_dequeue: int = 0", "seed: int = 0", "seed2: int = 0", *_NAMES],
    shape=scalar,
    traits=handle(on_host="its queue belongs to the event loop", is_numeric=False),
)
define_op(
    "PriorityQueueV2",
    "",
    "handle: resource",
    ["component_types: list(type) = []", "shapes: list(shape)", _CAPACITY, *_NAMES],
    shape=scalar,
    traits=handle(on_host="its queue belongs to the event loop", is_numeric=False),
)
define_op(
    "QueueEnqueueV2",
    "handle: resource, components: list:Tcomponents",
    "",
    ["Tcomponents: list(type) >= 1", _TIMEOUT],
    traits=waiting(tells_step=True),
)
define_op(
    "QueueEnqueueManyV2",
    "handle: resource, components: list:Tcomponents",
    "",
    ["Tcomponents: list(type) >= 1", _TIMEOUT],
    traits=waiting(),
)
define_op(
    "QueueDequeueV2",
    "handle: resource",
    "components: list:component_types",
    [_TYPES, _TIMEOUT],
    shape=_element_shapes,
    traits=waiting(tells_step=True, takes_away=True),
)
define_op(
    "QueueDequeueManyV2",
    "handle: resource, n: int32",
    "components: list:component_types",
    [_TYPES, _TIMEOUT],
    shape=_many,
    traits=waiting(tells_step=True, takes_away=True),
)
define_op(
    "QueueDequeueUpToV2",
    "handle: resource, n: int32",
    "components: list:component_types",
    [_TYPES, _TIMEOUT],
    shape=_up_to,
    traits=waiting(tells_step=True, takes_away=True),
)
define_op("QueueCloseV2", "handle: resource", "", ["cancel_pending_enqueues: bool = False"], traits=waiting())
define_op("QueueSizeV2", "handle: resource", "size: int32", shape=scalar, traits=waiting(tells_step=True))
define_op("_QueueDequeuersV2", "handle: resource", "waiting: int32", shape=scalar, traits=waiting(tells_step=True))
define_op("QueueIsClosedV2", "handle: resource", "is_closed: bool", shape=scalar, traits=waiting(tells_step=True))

not_differentiable(
    *_KINDS,
    "QueueEnqueueV2",
    "QueueEnqueueManyV2",
    "QueueDequeueV2",
    "QueueDequeueManyV2",
    "QueueDequeueUpToV2",
    "QueueCloseV2",
    "QueueSizeV2",
    "_QueueDequeuersV2",
    "QueueIsClosedV2",
)


# ── stacks, for `aioflow.raw_ops` and imported graphs; a stack lives as long as its step ──────────────────────────────


def _pushed(ctx: ShapeContext) -> Dims:
    return ctx.dims("elem")


define_op(
    "StackV2",
    "max_size: int32",
    "handle: resource",
    ["elem_type: type", "stack_name: string = ''"],
    shape=scalar,
    traits=handle(),
)
define_op(
    "StackPushV2",
    "handle: resource, elem: T",
    "output: T",
    ["T: type", "swap_memory: bool = False"],
    shape=_pushed,
    traits=bookkeeping(effect=Effect.CHANGES),
)
define_op(
    "StackPopV2", "handle: resource", "elem: elem_type", ["elem_type: type"], traits=bookkeeping(effect=Effect.CHANGES)
)
define_op("StackCloseV2", "handle: resource", "", traits=bookkeeping(effect=Effect.CHANGES))
not_differentiable("StackV2", "StackPushV2", "StackPopV2", "StackCloseV2")

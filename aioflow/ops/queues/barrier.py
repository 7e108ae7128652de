"""A barrier gathers tuples whose components are made by different nodes, and gives out those that are whole.

TensorFlow's barrier is a reference to a string; here its handle is a resource, under the same op names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes as _dtypes
from aioflow.graph.costs import PER_ELEMENT
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op, not_differentiable
from aioflow.graph.scopes import current_scope
from aioflow.graph.shapes import Dims, format_dims, merge_dims
from aioflow.graph.traits import handle, waiting
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_op, make_tuple
from aioflow.ops.core import scalar
from aioflow.ops.queues.queues import Shapes, component_dims

__all__ = ["Barrier"]


def _inserted(ctx: ShapeContext) -> list[Dims]:
    keys = merge_dims(ctx.dims("keys"), (None,))
    values = ctx.dims("values")
    if values is not None:
        merge_dims(keys, values[:1])
    return []


def _taken(ctx: ShapeContext) -> list[Dims]:
    op = ctx.tensors[0].op
    shapes: Sequence[Dims] = op.attrs["shapes"] if op.type == "Barrier" else ()
    size = ctx.scalar("num_elements")
    if size is not None and size < 0:
        raise InvalidArgumentError("cannot take a negative number of elements", expected=">= 0", actual=size)
    if ctx.attrs["allow_small_batch"]:
        size = None
    elements = list(shapes) or [None] * len(ctx.attrs["component_types"])
    return [(size,), (size,), *(None if dims is None else (size, *dims) for dims in elements)]


define_op(
    "Barrier",
    "",
    "handle: resource",
    [
        "component_types: list(type) >= 1",
        "shapes: list(shape) = []",
        "capacity: int = -1",
        "container: string = ''",
        "shared_name: string = ''",
    ],
    shape=scalar,
    traits=handle(on_host="it waits on the event loop", is_numeric=False),
)
define_op(
    "BarrierInsertMany",
    "handle: resource, keys: string, values: T",
    "",
    ["T: type", "component_index: int"],
    shape=_inserted,
    traits=waiting(cost=PER_ELEMENT),
)
define_op(
    "BarrierTakeMany",
    "handle: resource, num_elements: int32",
    "indices: int64, keys: string, values: list:component_types",
    [
        "component_types: list(type) >= 1",
        "allow_small_batch: bool = False",
        "wait_for_incomplete: bool = False",
        "timeout_ms: int = -1",
    ],
    shape=_taken,
    traits=waiting(cost=PER_ELEMENT, tells_step=True, takes_away=True),
)
define_op("BarrierClose", "handle: resource", "", ["cancel_pending_enqueues: bool = False"], traits=waiting())
define_op("BarrierReadySize", "handle: resource", "size: int32", shape=scalar, traits=waiting(tells_step=True))
define_op("BarrierIncompleteSize", "handle: resource", "size: int32", shape=scalar, traits=waiting(tells_step=True))
not_differentiable(
    "Barrier", "BarrierInsertMany", "BarrierTakeMany", "BarrierClose", "BarrierReadySize", "BarrierIncompleteSize"
)


class Taken(NamedTuple):
    """What `Barrier.take_many` gives."""

    indices: Tensor
    keys: Tensor
    values: list[Tensor]


class Barrier:
    """A map from string keys to tuples. A tuple that has all its components can be taken.

    Args:
        types: One dtype per component, or one alone.
        shapes: One fully known shape a component, without a size of 0; that of a single component may stand alone, so
            that () is a scalar's. None for any shapes.
        shared_name: Barriers with the same name, in any session of a worker, are the same.
    """

    def __init__(
        self,
        types: DTypeLike | Sequence[DTypeLike],
        shapes: Shapes | None = None,
        shared_name: str | None = None,
        name: str = "barrier",
    ) -> None:
        kinds: Sequence[Any] = types if isinstance(types, list | tuple) else [types]
        self._types = [_dtypes.as_dtype(t) for t in kinds]
        self._barrier_ref = make(
            "Barrier",
            component_types=self._types,
            shapes=_known_shapes(shapes, len(self._types)),
            container=current_scope(default_graph()).container,
            shared_name=shared_name or "",
            name=name,
        )

    @property
    def barrier_ref(self) -> Tensor:
        """The handle."""
        return self._barrier_ref

    @property
    def name(self) -> str:
        """Name of the node that makes the handle."""
        return self._barrier_ref.op.name

    def insert_many(
        self, component_index: int, keys: TensorLike, values: TensorLike, name: str | None = None
    ) -> Operation:
        """A node that sets one component of several tuples. It never waits.

        Args:
            component_index: Which component.
            keys: [n] strings; those that are new begin a tuple.
            values: [n, …], one value per key.

        Raises, in a run (nothing has been inserted then):
            CancelledError: the barrier is closed and a key is new, or it was closed with `cancel_pending_enqueues`.
            InvalidArgumentError: a tuple has that component already, or a value does not fit.
        """
        known = 0 <= component_index < len(self._types)
        return make_op(
            "BarrierInsertMany",
            self._barrier_ref,
            convert_to_tensor(keys, _dtypes.string),
            convert_to_tensor(values, self._types[component_index] if known else None),
            component_index=component_index,
            name=name or f"{self._base_name}_BarrierInsertMany",
        )

    def take_many(
        self,
        num_elements: TensorLike,
        allow_small_batch: bool = False,
        timeout: int | None = None,
        name: str | None = None,
    ) -> Taken:
        """The next `num_elements` whole tuples, in the order of `indices`; the node waits until there are enough.

        Args:
            allow_small_batch: Once the barrier is closed, take fewer, at least one. It does not wait then.
            timeout: Not supported here, as in TensorFlow: give `Session.run` a timeout.

        Returns:
            A named tuple of `indices` (for each tuple, which insert began it, counted from -2**63), `keys`, and
            `values`, a list of components of shape [n, …].

        Raises, in a run:
            OutOfRangeError: the barrier is closed, and its complete and incomplete elements together are not enough.
            InvalidArgumentError: the values of a component differ in shape.
        """
        return make_tuple(
            Taken,
            "BarrierTakeMany",
            self._barrier_ref,
            convert_to_tensor(num_elements, _dtypes.int32),
            component_types=self._types,
            allow_small_batch=allow_small_batch,
            timeout_ms=-1 if timeout is None else timeout,
            name=name or f"{self._base_name}_BarrierTakeMany",
        )

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """A node that closes the barrier: new keys are refused, tuples that have been begun may be completed.

        Args:
            cancel_pending_enqueues: Refuse these too, and drop what has been begun.

        Raises, in a run:
            CancelledError: it is already closed; but `cancel_pending_enqueues` may follow a close without.
        """
        return make_op(
            "BarrierClose",
            self._barrier_ref,
            cancel_pending_enqueues=cancel_pending_enqueues,
            name=name or f"{self._base_name}_BarrierClose",
        )

    def ready_size(self, name: str | None = None) -> Tensor:
        """How many tuples are whole, an int32 scalar."""
        return make("BarrierReadySize", self._barrier_ref, name=name or f"{self._base_name}_BarrierReadySize")

    def incomplete_size(self, name: str | None = None) -> Tensor:
        """How many tuples have some of their components, an int32 scalar."""
        return make("BarrierIncompleteSize", self._barrier_ref, name=name or f"{self._base_name}_BarrierIncompleteSize")

    @property
    def _base_name(self) -> str:
        return self._barrier_ref.op.name.rpartition("/")[2]


def _known_shapes(shapes: Any, count: int) -> list[Dims]:
    if shapes is None:
        return []
    dims = component_dims(shapes)
    if len(dims) != count:
        raise InvalidArgumentError("the barrier needs one shape per component", expected=count, actual=len(dims))
    if any(d is None or None in d or 0 in d for d in dims):
        raise InvalidArgumentError(
            "the shapes of a barrier must be fully known and not empty",
            expected="positive sizes",
            actual=[format_dims(d) for d in dims],
        )
    return dims

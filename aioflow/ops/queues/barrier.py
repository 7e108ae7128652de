"""A barrier: collects tuples whose components come from different nodes, and returns the complete ones.

TensorFlow's barrier is a reference to a string. Here its handle is a resource under the same op names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes as _dtypes
from aioflow.graph.costs import PER_ELEMENT
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.scopes import current_scope
from aioflow.graph.shapes import Dims, format_dims, merge_dims
from aioflow.graph.traits import handle, waiting
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_op, make_tuple
from aioflow.ops.core import scalar
from aioflow.ops.queues.queues import ShapesLike, component_dims

__all__ = ["Barrier"]


def _inserted(ctx: ShapeContext) -> list[Dims]:
    keys = merge_dims(ctx.dims("keys"), (None,))
    values = ctx.dims("values")
    if values is not None:
        merge_dims(keys, values[:1])
    return []


def _taken(ctx: ShapeContext) -> list[Dims]:
    op = ctx.tensors[0].op
    # A handle that comes through another node tells no shapes.
    shapes: Sequence[Dims] = op.attrs["shapes"] if op.type == "Barrier" else ()
    size = ctx.scalar("num_elements")
    if size is not None and size < 0:
        raise InvalidArgumentError("cannot take a negative number of elements", expected=">= 0", actual=size)
    if ctx.attrs["allow_small_batch"]:
        # A closed barrier may hold fewer elements than requested.
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
    """Result of `Barrier.take_many`."""

    indices: Tensor
    keys: Tensor
    values: list[Tensor]


class Barrier:
    """A map from string keys to tuples. A tuple can be taken once it has all its components.

    Args:
        types: One dtype per component, or a single dtype.
        shapes: One fully known shape per component, without a size of 0; or None for any shapes. The shape of a single
            component need not be in a list, so () is a scalar shape.
        shared_name: Barriers with the same name, in any session of a worker, are the same.
        name: Name of the node.
    """

    def __init__(
        self,
        types: DTypeLike | Sequence[DTypeLike],
        shapes: ShapesLike | None = None,
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
        """Return an operation that sets one component of several tuples. It never waits.

        If it fails, it inserts nothing.

        Args:
            component_index: Index of the component.
            keys: [n] strings. A new key starts a tuple.
            values: [n, …], one value per key.
            name: Name of the node.

        Raises:
            CancelledError: at run time, the barrier is closed and a key is new, or it was closed with
                `cancel_pending_enqueues`.
            InvalidArgumentError: at run time, a tuple already has that component, or a value does not fit.
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
        """Return the next `num_elements` complete tuples, in the order of `indices`.

        The node waits until there are enough.

        Args:
            num_elements: Number of tuples, an int32 scalar.
            allow_small_batch: Once the barrier is closed, return fewer tuples without waiting, but at least one.
            timeout: Unsupported, as in TensorFlow; pass a timeout to `Session.run` instead.
            name: Name of the node.

        Returns:
            A named tuple of `indices` (the ordinal of the insert that started each tuple, counted from -2**63), `keys`,
            and `values`, a list of components of shape [n, …].

        Raises:
            OutOfRangeError: at run time, the barrier is closed, and its complete and incomplete tuples together are too
                few.
            InvalidArgumentError: at run time, the values of a component differ in shape.
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
        """Return an operation that closes the barrier: it rejects new keys, but started tuples may be completed.

        Args:
            cancel_pending_enqueues: Also reject the remaining components, and drop incomplete tuples.
            name: Name of the node.

        Raises:
            CancelledError: at run time, the barrier is already closed. A close with `cancel_pending_enqueues` may
                follow one without it.
        """
        return make_op(
            "BarrierClose",
            self._barrier_ref,
            cancel_pending_enqueues=cancel_pending_enqueues,
            name=name or f"{self._base_name}_BarrierClose",
        )

    def ready_size(self, name: str | None = None) -> Tensor:
        """Return the number of complete tuples, an int32 scalar."""
        return make("BarrierReadySize", self._barrier_ref, name=name or f"{self._base_name}_BarrierReadySize")

    def incomplete_size(self, name: str | None = None) -> Tensor:
        """Return the number of incomplete tuples, an int32 scalar."""
        return make("BarrierIncompleteSize", self._barrier_ref, name=name or f"{self._base_name}_BarrierIncompleteSize")

    @property
    def _base_name(self) -> str:
        return self._barrier_ref.op.name.rpartition("/")[2]


def _known_shapes(shapes: object, count: int) -> list[Dims]:
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

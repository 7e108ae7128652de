"""Queues between steps: bounded, shared by name, with backpressure in both directions.

A node names the queue, which is a resource, and further nodes operate on it. An enqueue into a full queue and a dequeue
from an empty one wait in order of arrival. They block only the nodes that depend on them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from aioflow.arguments import check_list
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes as _dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.scopes import current_scope
from aioflow.graph.shapes import (
    Dimension,
    Dims,
    ShapeLike,
    TensorShape,
    common_dims,
    dims_of,
    format_dims,
    merge_dims,
)
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list, make_op
from aioflow.ops.math.random import get_seed
from aioflow.ops.queues import definitions as _definitions  # noqa: F401  # defines the ops used here

# One shape per component, or a single shape.
ShapesLike: TypeAlias = ShapeLike | Sequence[ShapeLike | None]

__all__ = ["FIFOQueue", "PaddingFIFOQueue", "PriorityQueue", "QueueBase", "RandomShuffleQueue"]


class QueueBase:
    """Base class of queues, whose elements are tuples of tensors with fixed dtypes.

    Enqueues accept a list, tuple or dictionary of components, or a single component in place of a list of one; dequeues
    return them. Each operation runs where it is fetched. Several can be in flight; they are served in order of arrival.

    Args:
        dtypes: One dtype per component.
        shapes: One shape per component, or None for any shapes; batches of elements need shapes.
        names: Names of the components, or None. With names, elements are dictionaries.
        queue_ref: The handle tensor.
    """

    def __init__(
        self,
        dtypes: Sequence[DTypeLike],
        shapes: Sequence[ShapeLike | None] | None,
        names: Sequence[str] | None,
        queue_ref: Tensor,
    ) -> None:
        self._dtypes = [_dtypes.as_dtype(t) for t in dtypes]
        self._dims: list[Dims] = [None] * len(self._dtypes) if shapes is None else [dims_of(s) for s in shapes]
        if len(self._dims) != len(self._dtypes):
            raise InvalidArgumentError(
                "the queue needs one shape per component", expected=len(self._dtypes), actual=len(self._dims)
            )
        self._names: list[str] | None = list(names) if names is not None else None
        self._queue_ref = queue_ref

    @staticmethod
    def from_list(index: TensorLike, queues: Sequence[QueueBase]) -> QueueBase:
        """Return the queue `queues[index]`, selected in each run.

        Args:
            index: An int scalar.
            queues: Queues of the same dtypes and names. A size that differs among their shapes is unknown.

        Raises:
            DTypeError: the dtypes differ, or `queues` is empty.
            InvalidArgumentError: the names differ, or at run time `index` is out of range.
        """
        check_list(queues, "the queues to choose from")
        if {isinstance(queue, QueueBase) for queue in queues} != {True}:
            raise DTypeError("from_list takes a list of queues", expected="a list of queues", actual=list(queues))
        first = queues[0]
        for other in queues[1:]:
            if other.dtypes != first.dtypes:
                raise DTypeError("the queues differ in their dtypes", expected=first.dtypes, actual=other.dtypes)
            if other.names != first.names:
                raise InvalidArgumentError("the queues differ in their names", expected=first.names, actual=other.names)
        # The queue is selected in the step, so only the sizes that all queues share are known.
        dims = [functools.reduce(common_dims, shapes) for shapes in zip(*(q._dims for q in queues), strict=True)]
        handles = make("Pack", [q.queue_ref for q in queues], axis=0)
        handle = make("GatherV2", handles, convert_to_tensor(index), 0)
        return QueueBase(first.dtypes, dims, first.names, handle)

    @property
    def queue_ref(self) -> Tensor:
        """The handle."""
        return self._queue_ref

    @property
    def name(self) -> str:
        """Name of the node that makes the handle."""
        return self._queue_ref.op.name

    @property
    def dtypes(self) -> list[DType]:
        """Dtypes of the components."""
        return list(self._dtypes)

    @property
    def shapes(self) -> list[TensorShape]:
        """Static shapes of the components."""
        return [TensorShape(dims) for dims in self._dims]

    @property
    def names(self) -> list[str] | None:
        """Names of the components, or None."""
        return None if self._names is None else list(self._names)

    def enqueue(self, vals: TensorLike | Mapping[str, TensorLike], name: str | None = None) -> Operation:
        """Return an operation that enqueues one element; it waits while the queue is full.

        Raises:
            CancelledError: at run time, the queue is closed, or is closed with `cancel_pending_enqueues` during the
                wait.
            InvalidArgumentError: a shape differs from the queue's; at run time if it is not known before.
        """
        components = self._components(vals)
        for tensor, dims in zip(components, self._dims, strict=True):
            _fit(tensor, tensor.dims, dims)
        return make_op("QueueEnqueueV2", self._queue_ref, components, name=name or f"{self._base_name}_enqueue")

    def enqueue_many(self, vals: TensorLike | Mapping[str, TensorLike], name: str | None = None) -> Operation:
        """Return an operation that enqueues as many elements as the components have rows, one after another.

        It waits if the queue becomes full, with some elements already enqueued; these stay if the step is cancelled. It
        raises the errors of `enqueue`.
        """
        components = self._components(vals)
        for tensor, dims in zip(components, self._dims, strict=True):
            _fit(tensor, tensor.dims, None if dims is None else (None, *dims))
        # All components must have the same number of rows.
        sizes: Dims = (None,)
        for tensor in components:
            sizes = merge_dims(sizes, None if tensor.dims is None else tensor.dims[:1])
        return make_op("QueueEnqueueManyV2", self._queue_ref, components, name=name or f"{self._base_name}_EnqueueMany")

    def dequeue(self, name: str | None = None) -> Any:
        """Return the next element; the node waits while the queue is empty.

        A step that is cancelled during the wait leaves the queue unchanged. If the fetches are not delivered, the
        element is put back. It is lost if a kernel has failed, if a state change in the step depends on the element, or
        if the dequeue is behind control flow.

        Returns:
            A tensor, a list of tensors, or a dictionary if the queue has names.

        Raises:
            OutOfRangeError: at run time, the queue is closed and empty.
        """
        found = make_list(
            "QueueDequeueV2",
            self._queue_ref,
            component_types=self._dtypes,
            name=name or f"{self._base_name}_Dequeue",
        )
        return self._element(found)

    def dequeue_many(self, n: TensorLike, name: str | None = None) -> Any:
        """Return the next `n` elements, as components of shape [n, …]; the node waits until there are enough.

        Raises:
            OutOfRangeError: at run time, the queue is closed and has fewer elements, which stay in it.
        """
        return self._batch("QueueDequeueManyV2", n, name or f"{self._base_name}_DequeueMany")

    def dequeue_up_to(self, n: TensorLike, name: str | None = None) -> Any:
        """Return the next `n` elements like `dequeue_many`, or fewer, but at least one, once the queue is closed.

        Raises:
            OutOfRangeError: at run time, the queue is closed and empty.
        """
        return self._batch("QueueDequeueUpToV2", n, name or f"{self._base_name}_DequeueUpTo")

    def _batch(self, op_type: str, n: TensorLike, name: str) -> object:
        count = convert_to_tensor(n, _dtypes.int32)
        return self._element(make_list(op_type, self._queue_ref, count, component_types=self._dtypes, name=name))

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """Return an operation that closes the queue: it accepts no more elements, but returns those that it has.

        Args:
            cancel_pending_enqueues: Close at once and fail waiting enqueues with CancelledError. Otherwise, the close
                waits for them.
            name: Name of the node.

        Raises:
            CancelledError: at run time, the queue is already closed; not with `cancel_pending_enqueues`.
        """
        return make_op(
            "QueueCloseV2",
            self._queue_ref,
            cancel_pending_enqueues=cancel_pending_enqueues,
            name=name or f"{self._base_name}_Close",
        )

    def is_closed(self, name: str | None = None) -> Tensor:
        """Return whether the queue is closed, a bool scalar."""
        return make("QueueIsClosedV2", self._queue_ref, name=name or f"{self._base_name}_Is_Closed")

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of elements, an int32 scalar."""
        return make("QueueSizeV2", self._queue_ref, name=name or f"{self._base_name}_Size")

    def num_waiting(self) -> Tensor:
        """Return the number of waiting dequeues, an int32 scalar. TensorFlow has no such method."""
        return make("_QueueDequeuersV2", self._queue_ref, name=f"{self._base_name}_Waiting")

    @property
    def _base_name(self) -> str:
        return self._queue_ref.op.name.rpartition("/")[2]

    def _components(self, vals: Any) -> list[Tensor]:
        """Return the components of an element, or of a batch of elements, as tensors in order."""
        if isinstance(vals, Mapping):
            if self._names is None:
                raise InvalidArgumentError("this queue has no names", expected="a list", actual="a dictionary")
            if set(vals) != set(self._names):
                raise InvalidArgumentError(
                    "the keys are not the names of the components", expected=sorted(self._names), actual=sorted(vals)
                )
            vals = [vals[name] for name in self._names]
        elif self._names is not None:
            raise InvalidArgumentError(
                "a queue with names takes dictionaries", expected=f"keys {self._names}", actual=type(vals).__name__
            )
        items = list(vals) if isinstance(vals, list | tuple) else [vals]
        if len(items) != len(self._dtypes):
            raise InvalidArgumentError(
                "the element has the wrong number of components", expected=len(self._dtypes), actual=len(items)
            )
        return [convert_to_tensor(v, dtype=t) for v, t in zip(items, self._dtypes, strict=True)]

    def _element(self, tensors: Sequence[Tensor]) -> object:
        if self._names is not None:
            return dict(zip(self._names, tensors, strict=True))
        return tensors[0] if len(tensors) == 1 else list(tensors)


def _fit(tensor: Tensor, have: Dims, wanted: Dims) -> None:
    try:
        merge_dims(have, wanted)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{tensor.name!r} does not fit the queue", expected=format_dims(wanted), actual=format_dims(have)
        ) from error


def _listed(values: object) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _is_size(value: object) -> bool:
    return value is None or isinstance(value, int | Dimension)


def component_dims(shapes: object) -> list[Dims]:
    """Return the shapes of components as dims.

    A flat list of sizes, even an empty one, is the shape of a single component.
    """
    listed = [shapes] if isinstance(shapes, TensorShape) else shapes
    if not isinstance(listed, list | tuple):
        raise DTypeError("shapes must be a list", expected="one shape per component", actual=shapes)
    return [dims_of(s) for s in ([listed] if all(_is_size(s) for s in listed) else listed)]


def _shape_list(shapes: object, count: int, partial: bool) -> list[Dims] | None:
    """Return shapes as dims.

    With `partial`, a flat list is rejected: [None, 2] could be one shape or two shapes.
    """
    if shapes is None:
        return None
    if partial and isinstance(shapes, list | tuple) and (not shapes or any(_is_size(s) for s in shapes)):
        raise InvalidArgumentError(
            "shapes with unknown sizes must be a list of shapes", expected="[[None, 2]]", actual=shapes
        )
    dims = component_dims(shapes)
    if len(dims) != count:
        raise InvalidArgumentError("the queue needs one shape per component", expected=count, actual=len(dims))
    if not partial and any(d is None or None in d for d in dims):
        raise InvalidArgumentError(
            "the shapes of this queue must be fully known",
            expected="known sizes",
            actual=[format_dims(d) for d in dims],
        )
    return dims


class _Typed(QueueBase):
    """A queue that creates its own handle."""

    _op = ""
    _partial = False

    def __init__(
        self,
        capacity: int,
        dtypes: object,
        shapes: object,
        names: object,
        shared_name: str | None,
        name: str,
        **attrs: object,
    ) -> None:
        types = [_dtypes.as_dtype(t) for t in _listed(dtypes)]
        dims = self._component_dims(shapes, len(types))
        labels = None if names is None else _listed(names)
        if labels is not None and len(labels) != len(types):
            raise InvalidArgumentError(
                "the queue needs one name per component", expected=len(types), actual=len(labels)
            )
        handle = make(
            self._op,
            component_types=types,
            shapes=dims or [],
            capacity=capacity,
            container=current_scope(default_graph()).container,
            shared_name=shared_name or "",
            name=name,
            **attrs,
        )
        super().__init__(types, dims, labels, handle)

    def _component_dims(self, shapes: object, count: int) -> list[Dims] | None:
        return _shape_list(shapes, count, self._partial)


class FIFOQueue(_Typed):
    """A queue that returns its elements in order of arrival.

    Args:
        capacity: Number of elements beyond which enqueues wait; negative for no limit.
        dtypes: One dtype per component, or a single dtype.
        shapes: One fully known shape per component, or None for any shapes.
        names: Names of the components; with names, elements are dictionaries.
        shared_name: Queues with the same name, in any session of a worker, are the same queue.
        name: Name of the node.
    """

    _op = "FIFOQueueV2"

    def __init__(
        self,
        capacity: int,
        dtypes: DTypeLike | Sequence[DTypeLike],
        shapes: ShapesLike | None = None,
        names: str | Sequence[str] | None = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        super().__init__(capacity, dtypes, shapes, names, shared_name, name)


class PaddingFIFOQueue(_Typed):
    """A `FIFOQueue` whose shapes may have unknown sizes; a batch pads these with zeros to the largest size.

    The arguments are those of `FIFOQueue`. `shapes` is required, with None for sizes that vary.
    """

    _op = "PaddingFIFOQueueV2"
    _partial = True

    def __init__(
        self,
        capacity: int,
        dtypes: DTypeLike | Sequence[DTypeLike],
        shapes: ShapesLike,
        names: str | Sequence[str] | None = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        if shapes is None:
            raise InvalidArgumentError("a padding queue needs shapes", expected="a list of shapes", actual=None)
        super().__init__(capacity, dtypes, shapes, names, shared_name, name)


class RandomShuffleQueue(_Typed):
    """A queue that returns its elements in random order.

    Args:
        min_after_dequeue: Minimum number of elements that a dequeue leaves while the queue is open, for good mixing.
        seed: With a seed here or in the graph, the order depends only on the order of the operations.
        capacity, dtypes, shapes, names, shared_name, name: As for `FIFOQueue`.
    """

    _op = "RandomShuffleQueueV2"

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: DTypeLike | Sequence[DTypeLike],
        shapes: ShapesLike | None = None,
        names: str | Sequence[str] | None = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        first, second = get_seed(seed)
        if first is not None and seed is None and shared_name is not None:
            # TensorFlow's formula, which depends neither on the graph nor on the node's position in it, so all graphs
            # that share the queue agree on its seed.
            digest = hashlib.md5(f"{first}{shared_name}".encode(), usedforsecurity=False)
            second = int(digest.hexdigest()[:8], 16) & 0x7FFFFFFF
        super().__init__(
            capacity,
            dtypes,
            shapes,
            names,
            shared_name,
            name,
            min_after_dequeue=min_after_dequeue,
            seed=first or 0,
            seed2=second or 0,
        )


class PriorityQueue(_Typed):
    """A queue that returns the element with the smallest priority first; equal priorities in order of arrival.

    An element is its priority, an int64 scalar, followed by the components of `types`.

    Args:
        types: One dtype per component, without the priority.
        shapes: As for `FIFOQueue`, without the priority.
        names: As for `FIFOQueue`, including a name for the priority.
        capacity, shared_name, name: As for `FIFOQueue`.
    """

    _op = "PriorityQueueV2"

    def __init__(
        self,
        capacity: int,
        types: DTypeLike | Sequence[DTypeLike],
        shapes: ShapesLike | None = None,
        names: str | Sequence[str] | None = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        kinds = [_dtypes.as_dtype(t) for t in _listed(types)]
        super().__init__(capacity, [_dtypes.int64, *kinds], shapes, names, shared_name, name)

    def _component_dims(self, shapes: object, count: int) -> list[Dims] | None:
        dims = _shape_list(shapes, count - 1, False)
        # The priority, a scalar, is in front of the components.
        return [(), *([None] * (count - 1) if dims is None else dims)]

    def _components(self, vals: Any) -> list[Tensor]:
        components = super()._components(vals)
        if components[0].dtype is not _dtypes.int64:
            raise DTypeError("the priority must be int64", expected="int64", actual=components[0].dtype.name)
        return components

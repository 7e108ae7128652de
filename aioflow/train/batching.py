"""Batching of elements through queues: in order, padded or shuffled, from one source or several.

The names and arguments are those of TensorFlow 1. Every function adds nodes and a `QueueRunner` to the graph. To
start the pipeline, call `start_queue_runners` inside an `async with Coordinator()` block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from aioflow.arguments import check_kind, check_list
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.control.branches_and_loops import cond
from aioflow.ops.core import no_op
from aioflow.ops.io.serialization import deserialize_many_sparse, serialize_many_sparse, serialize_sparse
from aioflow.ops.queues.queues import (
    FIFOQueue,
    PaddingFIFOQueue,
    QueueBase,
    RandomShuffleQueue,
    ShapesLike,
    component_dims,
)
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.tensor import SparseTensor, convert_to_tensor_or_sparse_tensor
from aioflow.train.queue_runner import QueueRunner, add_queue_runner

# One element: a tensor, or a list or dictionary of tensors.
BatchElement: TypeAlias = (
    TensorLike | SparseTensor | Sequence[TensorLike | SparseTensor] | Mapping[str, TensorLike | SparseTensor]
)


class _Elements:
    """The tensors of a batching function as one list per source, whether they were passed as lists, dicts or singly.

    Args:
        sources: The elements, one per source.
        shapes: Shapes of the components; None to infer them.
        enqueue_many: Whether each tensor holds many elements, one per row.
        keep_input: The condition under which an element is enqueued.

    A sparse tensor is stored in the queue as three strings.
    """

    def __init__(
        self, sources: Sequence[object], shapes: object, enqueue_many: bool, keep_input: TensorLike = True
    ) -> None:
        check_list(sources, "the tensors to batch")
        if not sources:
            raise InvalidArgumentError("there is nothing to batch", expected="at least one list", actual="none")
        first = sources[0]
        self._keys = sorted(first) if isinstance(first, Mapping) else None
        # As in TensorFlow, a list of one tensor gives a tensor.
        self._single = self._keys is None and (not isinstance(first, list | tuple) or len(first) == 1)
        self.many = enqueue_many
        self._keep = _kept(keep_input, enqueue_many)
        given = [self._listed(source) for source in sources]
        if len({len(items) for items in given}) > 1:
            raise InvalidArgumentError(
                "all lists must have the same length", expected="equal lengths", actual=[len(items) for items in given]
            )
        self._sparse = [_merged(column) for column in zip(*given, strict=True)]
        self.sources = [[self._stored(item) for item in items] for items in given]
        self.dtypes = [t.dtype for t in self.sources[0]]
        for tensors in self.sources:
            if [t.dtype for t in tensors] != self.dtypes:
                raise DTypeError(
                    "all lists must have the same dtypes", expected=self.dtypes, actual=[t.dtype for t in tensors]
                )
        self._shapes = None if shapes is None else component_dims(shapes)

    def _listed(self, source: object) -> list[Tensor | SparseTensor]:
        # All sources in the order of the first one's sorted keys.
        if self._keys is not None:
            if not isinstance(source, Mapping) or sorted(source) != self._keys:
                raise InvalidArgumentError("all dictionaries need the same keys", expected=self._keys, actual=source)
            items = [source[key] for key in self._keys]
        else:
            items = list(source) if isinstance(source, list | tuple) else [source]
        if not items:
            raise InvalidArgumentError("there is nothing to batch", expected="at least one tensor", actual="none")
        return [convert_to_tensor_or_sparse_tensor(item) for item in items]

    def _stored(self, item: Tensor | SparseTensor) -> Tensor:
        if isinstance(item, Tensor):
            return item
        return serialize_many_sparse(item) if self.many else serialize_sparse(item)

    def dims(self) -> list[Dims]:
        """Return the shape of each component of an element.

        Shapes come from `shapes=` or from the first source. A dimension for which another source has a different known
        size is unknown.
        """
        if self._shapes is not None:
            if len(self._shapes) != len(self.dtypes):
                raise InvalidArgumentError(
                    "one shape per tensor is needed", expected=len(self.dtypes), actual=len(self._shapes)
                )
            # A serialized sparse tensor: indices, values and shape, as three strings.
            stored: Dims = (3,)
            return [dims if sparse is None else stored for dims, sparse in zip(self._shapes, self._sparse, strict=True)]
        return [self._common([tensors[i] for tensors in self.sources]) for i in range(len(self.dtypes))]

    def _common(self, tensors: Sequence[Tensor]) -> Dims:
        found = [self._element_dims(t) for t in tensors]
        ranks = {len(dims) for dims in found}
        if len(ranks) != 1:
            raise InvalidArgumentError("the tensors differ in rank", expected="equal ranks", actual=sorted(ranks))
        return tuple(
            size if all(other in (size, None) for other in others) else None
            for size, *others in zip(*found, strict=True)
        )

    def _element_dims(self, tensor: Tensor) -> tuple[int | None, ...]:
        dims = tensor.dims
        if dims is None or (self.many and not dims):
            raise InvalidArgumentError(
                f"cannot tell the shape of an element of {tensor.name}",
                expected="a known rank, or shapes=",
                actual=format_dims(dims),
            )
        return dims[1:] if self.many else dims

    def fill(self, queue: QueueBase, repeat: int) -> None:
        """Add a queue runner that fills `queue`, with `repeat` enqueue operations per source."""
        add_queue_runner(QueueRunner(queue, [self._put(queue, tensors) for tensors in self.sources] * repeat))

    def _put(self, queue: QueueBase, tensors: list[Tensor]) -> Any:
        put = queue.enqueue_many if self.many else queue.enqueue
        # A constant condition needs no branch in the graph.
        known = constant_value(self._keep)
        if self._keep.dims != ():
            # One condition per row selects rows.
            rows = make("Reshape", make("Where", self._keep), [-1])
            return put([make("GatherV2", tensor, rows, 0) for tensor in tensors])
        if known is not None:
            return put(tensors) if bool(known) else no_op()
        return cond(self._keep, lambda: put(tensors), no_op)

    def take(self, queue: QueueBase, size: TensorLike, smaller: bool, name: str) -> object:
        """Dequeue a batch and return it in the structure in which the tensors were passed."""
        found = queue.dequeue_up_to(size, name=name) if smaller else queue.dequeue_many(size, name=name)
        stored = list(found) if isinstance(found, list | tuple) else [found]
        items = [
            tensor if sparse is None else deserialize_many_sparse(tensor, sparse.dtype, self._rank(sparse))
            for tensor, sparse in zip(stored, self._sparse, strict=True)
        ]
        if self._keys is not None:
            return dict(zip(self._keys, items, strict=True))
        return items[0] if self._single else items

    def _rank(self, sparse: SparseTensor) -> int | None:
        # A batch has one dimension more than an element; the rank of many elements includes it already.
        rank = sparse.shape.ndims
        return rank if rank is None or self.many else rank + 1


def _merged(column: Sequence[Tensor | SparseTensor]) -> SparseTensor | None:
    """Return the first sparse tensor among the sources of one component, or None if the component is dense."""
    # A queue has one dtype per component, so a mix of dense and sparse cannot be stored.
    sparse = [item for item in column if isinstance(item, SparseTensor)]
    if sparse and (len(sparse) < len(column) or len({item.dtype for item in sparse}) > 1):
        raise InvalidArgumentError(
            "the sources differ", expected="all sparse, of one dtype", actual=[repr(item) for item in column]
        )
    return sparse[0] if sparse else None


def _kept(keep_input: TensorLike, many: bool) -> Tensor:
    keep = convert_to_tensor(keep_input, dtypes.bool_)
    if keep.dims is None or len(keep.dims) > int(many):
        wanted = "a scalar, or a vector with enqueue_many" if many else "a scalar"
        raise InvalidArgumentError("keep_input has the wrong shape", expected=wanted, actual=format_dims(keep.dims))
    return keep


def _in_order(
    elements: _Elements,
    batch_size: TensorLike,
    threads: int,
    queue: tuple[int, bool, str | None],
    smaller: bool,
    scope: str,
) -> object:
    """Build the pipeline of `batch`; `queue` holds the capacity, the padding flag and the shared name."""
    capacity, pads, shared_name = queue
    kind = PaddingFIFOQueue if pads else FIFOQueue
    made = kind(capacity, elements.dtypes, elements.dims(), shared_name=shared_name)
    elements.fill(made, threads)
    return elements.take(made, batch_size, smaller, scope)


def _shuffled(
    elements: _Elements,
    batch_size: TensorLike,
    threads: int,
    queue: tuple[int, int, int | None, str | None],
    smaller: bool,
    scope: str,
) -> object:
    """Build the pipeline of `shuffle_batch`; `queue` holds the capacity, the minimum size, seed and shared name."""
    capacity, least, seed, shared_name = queue
    for number in (capacity, least):
        check_kind(number, (int, np.integer), "the size of a queue", "an int")
    # The queue would never hand out an element.
    if capacity <= least:
        raise InvalidArgumentError(
            "the queue has no room beyond the elements that stay in it", expected=f"capacity > {least}", actual=capacity
        )
    made = RandomShuffleQueue(capacity, least, elements.dtypes, elements.dims(), seed=seed, shared_name=shared_name)
    elements.fill(made, threads)
    return elements.take(made, batch_size, smaller, scope)


def batch(
    tensors: BatchElement,
    batch_size: TensorLike,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: ShapesLike | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return batches of elements in the order in which they arrive.

    Args:
        tensors: One element: a tensor, or a list or dictionary of tensors, which may be sparse.
        batch_size: Number of elements per batch.
        num_threads: Number of tasks that compute elements at once; with more than one, the order is undefined.
        capacity: Capacity of the queue.
        enqueue_many: Whether each tensor holds many elements, one per row.
        shapes: Shapes of the elements, if the tensors' static shapes are incomplete.
        dynamic_pad: Allow elements to differ in size; each batch is padded with zeros to its largest element.
        allow_smaller_final_batch: Return the elements left over at the end; otherwise drop them.
        shared_name: Queues with the same shared name are one queue.
        name: Name of the scope of the nodes.

    Returns:
        The tensors with a batch dimension in front, in the structure of `tensors`; a list of one becomes the tensor.

    Raises:
        InvalidArgumentError: the shapes are unknown.
    """
    with name_scope(name, "batch") as scope:
        elements = _Elements([tensors], shapes, enqueue_many)
        queue = (capacity, dynamic_pad, shared_name)
        return _in_order(elements, batch_size, num_threads, queue, allow_smaller_final_batch, scope)


def maybe_batch(
    tensors: BatchElement,
    keep_input: TensorLike,
    batch_size: TensorLike,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: ShapesLike | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return batches of the elements for which `keep_input` is true. See `batch`.

    `keep_input` is a bool scalar; with `enqueue_many` it may also be a vector with one entry per row.
    """
    with name_scope(name, "maybe_batch") as scope:
        elements = _Elements([tensors], shapes, enqueue_many, keep_input)
        queue = (capacity, dynamic_pad, shared_name)
        return _in_order(elements, batch_size, num_threads, queue, allow_smaller_final_batch, scope)


def batch_join(
    tensors_list: Sequence[BatchElement],
    batch_size: TensorLike,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: ShapesLike | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return batches of elements from several sources, which one task each computes concurrently. See `batch`.

    `tensors_list` has one entry per source, each a list or dictionary as in `batch`.
    """
    with name_scope(name, "batch_join") as scope:
        elements = _Elements(tensors_list, shapes, enqueue_many)
        queue = (capacity, dynamic_pad, shared_name)
        return _in_order(elements, batch_size, 1, queue, allow_smaller_final_batch, scope)


def maybe_batch_join(
    tensors_list: Sequence[BatchElement],
    keep_input: TensorLike,
    batch_size: TensorLike,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: ShapesLike | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return `batch_join` of the elements for which `keep_input` is true. See `maybe_batch`."""
    with name_scope(name, "maybe_batch_join") as scope:
        elements = _Elements(tensors_list, shapes, enqueue_many, keep_input)
        queue = (capacity, dynamic_pad, shared_name)
        return _in_order(elements, batch_size, 1, queue, allow_smaller_final_batch, scope)


def shuffle_batch(
    tensors: BatchElement,
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: ShapesLike | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return batches of elements in random order. See `batch` for the other parameters.

    At least `min_after_dequeue` elements stay in the queue to choose from until the input ends; `capacity` must exceed
    that number. `seed` seeds the random order.
    """
    with name_scope(name, "shuffle_batch") as scope:
        elements = _Elements([tensors], shapes, enqueue_many)
        queue = (capacity, min_after_dequeue, seed, shared_name)
        return _shuffled(elements, batch_size, num_threads, queue, allow_smaller_final_batch, scope)


def maybe_shuffle_batch(
    tensors: BatchElement,
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    keep_input: TensorLike,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: ShapesLike | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return `shuffle_batch` of the elements for which `keep_input` is true. See `maybe_batch`."""
    with name_scope(name, "maybe_shuffle_batch") as scope:
        elements = _Elements([tensors], shapes, enqueue_many, keep_input)
        queue = (capacity, min_after_dequeue, seed, shared_name)
        return _shuffled(elements, batch_size, num_threads, queue, allow_smaller_final_batch, scope)


def shuffle_batch_join(
    tensors_list: Sequence[BatchElement],
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: ShapesLike | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return batches, in random order, of elements from several sources. See `shuffle_batch`, `batch_join`."""
    with name_scope(name, "shuffle_batch_join") as scope:
        elements = _Elements(tensors_list, shapes, enqueue_many)
        queue = (capacity, min_after_dequeue, seed, shared_name)
        return _shuffled(elements, batch_size, 1, queue, allow_smaller_final_batch, scope)


def maybe_shuffle_batch_join(
    tensors_list: Sequence[BatchElement],
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    keep_input: TensorLike,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: ShapesLike | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return `shuffle_batch_join` of the elements for which `keep_input` is true. See `maybe_batch`."""
    with name_scope(name, "maybe_shuffle_batch_join") as scope:
        elements = _Elements(tensors_list, shapes, enqueue_many, keep_input)
        queue = (capacity, min_after_dequeue, seed, shared_name)
        return _shuffled(elements, batch_size, 1, queue, allow_smaller_final_batch, scope)

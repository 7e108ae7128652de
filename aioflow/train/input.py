"""Input pipelines of queues: producers of file names and slices, and batches, each kept filled by a queue runner.

The names and arguments are TensorFlow 1's. Everything here adds nodes and a `QueueRunner`; run
`start_queue_runners` inside an `async with Coordinator()` block to set the pipeline going.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.shapes import Dims, dims_of, format_dims, merge_dims, num_elements
from aioflow.ops.apply import TensorLike, apply_op, convert_to_tensor
from aioflow.ops.control_flow_ops import Assert
from aioflow.ops.core import identity
from aioflow.ops.io_files import matching_files
from aioflow.ops.queues import FIFOQueue, PaddingFIFOQueue, QueueBase, RandomShuffleQueue
from aioflow.ops.random import random_shuffle
from aioflow.ops.state import count_up_to
from aioflow.ops.variables import Variable
from aioflow.train.queue_runner import QueueRunner, add_queue_runner

__all__ = [
    "batch",
    "batch_join",
    "input_producer",
    "limit_epochs",
    "match_filenames_once",
    "range_input_producer",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "string_input_producer",
]

# ── producers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def match_filenames_once(pattern: TensorLike, name: str | None = None) -> Variable:
    """A local variable with the names of the files that match `pattern` when it is initialized."""
    with default_graph().name_scope(name or "matching_filenames"):
        return Variable(
            matching_files(pattern),
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES],
            validate_shape=False,
            name=name or "matching_filenames",
        )


def limit_epochs(tensor: TensorLike, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """The tensor `num_epochs` times, then OutOfRangeError; forever without `num_epochs`.

    The count is a local variable: run `local_variables_initializer()` first.

    Raises:
        InvalidArgumentError: `num_epochs` is not positive.
    """
    given = convert_to_tensor(tensor)
    if num_epochs is None:
        return given
    if num_epochs <= 0:
        raise InvalidArgumentError("num_epochs must be positive", expected="> 0", actual=num_epochs)
    graph = given.op.graph
    with graph.as_default(), graph.name_scope(name or "limit_epochs"):
        epochs = Variable(
            convert_to_tensor(0, dtypes.int64),
            name="epochs",
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES],
        )
        with graph.control_dependencies([count_up_to(epochs, num_epochs)]):
            return identity(given, name="limited")


def input_producer(
    input_tensor: TensorLike,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> FIFOQueue:
    """A queue that is kept filled with the rows of `input_tensor`.

    Args:
        element_shape: Of a row, where the tensor's shape does not tell.
        num_epochs: How often each row is given; then dequeues raise OutOfRangeError. Forever without it.
        shuffle, seed: Give the rows of each epoch in a random order.
        capacity, shared_name: Of the queue.
        summary_name: Accepted as TensorFlow does; there are no summaries.
        cancel_op: See `QueueRunner`.

    Raises:
        InvalidArgumentError: the tensor has no rows, or the rows' shape is not known.
    """
    with default_graph().name_scope(name or "input_producer"):
        rows = convert_to_tensor(input_tensor, name="input_tensor")
        if rows.dims == ():
            raise InvalidArgumentError("a producer needs a tensor with rows", expected="rank >= 1", actual="()")
        dims = merge_dims(None if rows.dims is None else rows.dims[1:], dims_of(element_shape))
        if num_elements(dims) is None:
            raise InvalidArgumentError("the shape of a row must be known", expected="sizes", actual=format_dims(dims))
        if shuffle:
            rows = random_shuffle(rows, seed=seed)
        rows = limit_epochs(rows, num_epochs)
        queue = FIFOQueue(capacity, [rows.dtype], [dims], shared_name=shared_name)
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([rows])], cancel_op=cancel_op))
        return queue


def string_input_producer(
    string_tensor: TensorLike,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> FIFOQueue:
    """A queue that is kept filled with strings, such as file names. See `input_producer`.

    Raises:
        InvalidArgumentError: there are no strings, now or in a run.
    """
    graph = default_graph()
    with graph.name_scope(name or "input_producer"):
        strings = convert_to_tensor(string_tensor, dtypes.string)
        if strings.dims == (0,):
            raise InvalidArgumentError("string_input_producer needs strings", expected="at least one", actual="none")
        some = apply_op("Greater", apply_op("Size", strings, out_type=dtypes.int32), 0)
        check = Assert(some, ["string_input_producer needs at least one string"])
        with graph.control_dependencies([check]):
            strings = identity(strings)
        return input_producer(strings, [], num_epochs, shuffle, seed, capacity, shared_name, None, name, cancel_op)


def range_input_producer(
    limit: TensorLike,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> FIFOQueue:
    """A queue that is kept filled with the int32 numbers below `limit`. See `input_producer`."""
    with default_graph().name_scope(name or "input_producer"):
        numbers = apply_op("Range", 0, limit, 1)
        return input_producer(numbers, [], num_epochs, shuffle, seed, capacity, shared_name, None, name)


def slice_input_producer(
    tensor_list: Sequence[TensorLike],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """One row of each tensor, the same row of all, another one each time. See `input_producer`.

    Raises:
        InvalidArgumentError: the list is empty.
    """
    if not tensor_list:
        raise InvalidArgumentError("slice_input_producer needs tensors", expected="at least one", actual="none")
    with default_graph().name_scope(name or "input_producer"):
        tensors = [convert_to_tensor(t) for t in tensor_list]
        count = tensors[0].dims[0] if tensors[0].dims else None
        rows = (
            count
            if count is not None
            else apply_op("StridedSlice", apply_op("Shape", tensors[0]), [0], [1], [1], shrink_axis_mask=1)
        )
        queue = range_input_producer(rows, num_epochs, shuffle, seed, capacity, shared_name)
        index = queue.dequeue()
        return [apply_op("GatherV2", t, index, 0) for t in tensors]


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Elements:
    """The tensors of a batching function: a list (or several) of them, whatever the caller gave them in."""

    def __init__(self, sources: Sequence[Any], shapes: Any, enqueue_many: bool) -> None:
        if not sources:
            raise InvalidArgumentError("there is nothing to batch", expected="at least one list", actual="none")
        first = sources[0]
        self._keys = sorted(first) if isinstance(first, Mapping) else None
        self._single = self._keys is None and (not isinstance(first, list | tuple) or len(first) == 1)
        self.many = enqueue_many
        self.sources = [self._listed(source) for source in sources]
        self.dtypes = [t.dtype for t in self.sources[0]]
        for tensors in self.sources:
            if [t.dtype for t in tensors] != self.dtypes:
                raise InvalidArgumentError(
                    "all lists must have the same dtypes", expected=self.dtypes, actual=[t.dtype for t in tensors]
                )
        self._shapes = None if shapes is None else [dims_of(shape) for shape in shapes]

    def _listed(self, source: Any) -> list[Tensor]:
        if self._keys is not None:
            if not isinstance(source, Mapping) or sorted(source) != self._keys:
                raise InvalidArgumentError("all dictionaries need the same keys", expected=self._keys, actual=source)
            items = [source[key] for key in self._keys]
        else:
            items = list(source) if isinstance(source, list | tuple) else [source]
        if not items:
            raise InvalidArgumentError("there is nothing to batch", expected="at least one tensor", actual="none")
        return [convert_to_tensor(item) for item in items]

    def dims(self) -> list[Dims]:
        """The shape of each component of an element: what all sources have in common."""
        if self._shapes is not None:
            if len(self._shapes) != len(self.dtypes):
                raise InvalidArgumentError(
                    "a shape a tensor is needed", expected=len(self.dtypes), actual=len(self._shapes)
                )
            return self._shapes
        return [self._common([tensors[i] for tensors in self.sources]) for i in range(len(self.dtypes))]

    def _common(self, tensors: Sequence[Tensor]) -> Dims:
        found = [self._element_dims(t) for t in tensors]
        ranks = {len(dims) for dims in found}
        if len(ranks) != 1:
            raise InvalidArgumentError("the tensors differ in rank", expected="one rank", actual=sorted(ranks))
        return tuple(column[0] if len(set(column)) == 1 else None for column in zip(*found, strict=True))

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
        """Add the runner that keeps the queue filled."""
        put = queue.enqueue_many if self.many else queue.enqueue
        add_queue_runner(QueueRunner(queue, [put(tensors) for tensors in self.sources] * repeat))

    def take(self, queue: QueueBase, size: TensorLike, smaller: bool, name: str) -> Any:
        """A batch, in the form in which the tensors were given."""
        found = queue.dequeue_up_to(size, name=name) if smaller else queue.dequeue_many(size, name=name)
        items = list(found) if isinstance(found, list | tuple) else [found]
        if self._keys is not None:
            return dict(zip(self._keys, items, strict=True))
        return items[0] if self._single else items


def _fifo(elements: _Elements, capacity: int, pads: bool, shared_name: str | None) -> QueueBase:
    kind = PaddingFIFOQueue if pads else FIFOQueue
    return kind(capacity, elements.dtypes, elements.dims(), shared_name=shared_name)


def batch(
    tensors: Any,
    batch_size: TensorLike,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of elements, in the order in which they come.

    Args:
        tensors: A list or dictionary of tensors, or one: an element.
        batch_size: How many elements a batch has.
        num_threads: How many tasks compute elements at once; with more than one their order is open.
        capacity: Of the queue.
        enqueue_many: The tensors hold many elements, one a row.
        shapes: Of the elements, where the tensors do not tell.
        dynamic_pad: Sizes may differ; each batch is padded with zeros to the largest of it.
        allow_smaller_final_batch: Give what is left at the end; otherwise it is dropped.
        shared_name: Queues of one name are one queue.

    Returns:
        The tensors with a batch dimension in front, in the form of `tensors` (of a list of one, the tensor).

    Raises:
        InvalidArgumentError: the shapes are not known.
    """
    with default_graph().name_scope(name or "batch") as scope:
        elements = _Elements([tensors], shapes, enqueue_many)
        queue = _fifo(elements, capacity, dynamic_pad, shared_name)
        elements.fill(queue, num_threads)
        return elements.take(queue, batch_size, allow_smaller_final_batch, scope)


def batch_join(
    tensors_list: Sequence[Any],
    batch_size: TensorLike,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of elements that several sources give at once, one task each. See `batch`.

    Args:
        tensors_list: A list of such lists or dictionaries as `batch` takes.
    """
    with default_graph().name_scope(name or "batch_join") as scope:
        elements = _Elements(tensors_list, shapes, enqueue_many)
        queue = _fifo(elements, capacity, dynamic_pad, shared_name)
        elements.fill(queue, 1)
        return elements.take(queue, batch_size, allow_smaller_final_batch, scope)


def shuffle_batch(
    tensors: Any,
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of elements in random order. See `batch`.

    Args:
        capacity: Of the queue, more than `min_after_dequeue`.
        min_after_dequeue: How many elements stay to choose among while more are coming.
        seed: Of the random order.
    """
    with default_graph().name_scope(name or "shuffle_batch") as scope:
        elements = _Elements([tensors], shapes, enqueue_many)
        queue = _shuffled(elements, capacity, min_after_dequeue, seed, shared_name)
        elements.fill(queue, num_threads)
        return elements.take(queue, batch_size, allow_smaller_final_batch, scope)


def shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches, in random order, of elements that several sources give at once. See `shuffle_batch`, `batch_join`."""
    with default_graph().name_scope(name or "shuffle_batch_join") as scope:
        elements = _Elements(tensors_list, shapes, enqueue_many)
        queue = _shuffled(elements, capacity, min_after_dequeue, seed, shared_name)
        elements.fill(queue, 1)
        return elements.take(queue, batch_size, allow_smaller_final_batch, scope)


def _shuffled(
    elements: _Elements, capacity: int, least: int, seed: int | None, shared_name: str | None
) -> RandomShuffleQueue:
    return RandomShuffleQueue(capacity, least, elements.dtypes, elements.dims(), seed=seed, shared_name=shared_name)

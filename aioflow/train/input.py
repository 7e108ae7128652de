"""Producers of file names and slices: queues, filled by queue runners, at the start of an input pipeline.

The names and arguments are those of TensorFlow 1. Every function adds nodes and a `QueueRunner` to the graph. To
start the pipeline, call `start_queue_runners` inside an `async with Coordinator()` block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from aioflow.arguments import check_kind
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.graph.shapes import ShapeLike, dims_of, format_dims, merge_dims, num_elements
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.control.primitives import Assert
from aioflow.ops.core import identity
from aioflow.ops.io.files import matching_files
from aioflow.ops.math.random import random_shuffle
from aioflow.ops.queues.queues import FIFOQueue
from aioflow.ops.scoping import name_scope
from aioflow.ops.variables.update_functions import count_up_to
from aioflow.ops.variables.variable import Variable
from aioflow.train.queue_runner import QueueRunner, add_queue_runner

# ── producers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def match_filenames_once(pattern: TensorLike, name: str | None = None) -> Variable:
    """Return a local variable with the names of the files that match `pattern` at its initialization."""
    with name_scope(name, "matching_filenames") as scope:
        return Variable(
            matching_files(pattern),
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES],
            # The number of files is not known before the initialization.
            validate_shape=False,
            name=scope,
        )


def limit_epochs(tensor: TensorLike, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """Return a tensor that can be read `num_epochs` times and then raises OutOfRangeError; None means forever.

    The count is a local variable: run `local_variables_initializer()` first.

    Raises:
        InvalidArgumentError: `num_epochs` is not positive.
    """
    given = convert_to_tensor(tensor)
    if num_epochs is None:
        return given
    check_kind(num_epochs, (int, np.integer), "num_epochs", "an int")
    if num_epochs <= 0:
        raise InvalidArgumentError("num_epochs must be positive", expected="> 0", actual=num_epochs)
    with name_scope(name, "limit_epochs", [given]):
        epochs = Variable(
            convert_to_tensor(0, dtypes.int64),
            name="epochs",
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES],
        )
        # Each read counts first, and fails once the limit is reached.
        with given.graph.control_dependencies([count_up_to(epochs, num_epochs)]):
            return identity(given, name="limited")


def input_producer(
    input_tensor: TensorLike,
    element_shape: ShapeLike | None = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Operation | None = None,
) -> FIFOQueue:
    """Return a queue that a queue runner fills with the rows of `input_tensor`.

    `capacity` and `shared_name` are the queue's, `cancel_op` is as in `QueueRunner`. `element_shape` is the shape of a
    row, if the tensor's static shape is incomplete. Each row is produced `num_epochs` times, then dequeues raise
    OutOfRangeError; without `num_epochs`, production never ends. `shuffle` and `seed` put the rows of each epoch in a
    random order. `summary_name` is accepted as in TensorFlow, but no summaries are made.

    Raises:
        InvalidArgumentError: the tensor has no rows, or the shape of a row is unknown.
    """
    with name_scope(name, "input_producer"):
        rows = convert_to_tensor(input_tensor, name="input_tensor")
        if rows.dims == ():
            raise InvalidArgumentError("a producer needs a tensor with rows", expected="rank >= 1", actual="()")
        dims = merge_dims(None if rows.dims is None else rows.dims[1:], dims_of(element_shape))
        if num_elements(dims) is None:
            raise InvalidArgumentError("the shape of a row must be known", expected="sizes", actual=format_dims(dims))
        if shuffle:
            # The node shuffles anew in each run, so each epoch has another order.
            rows = random_shuffle(rows, seed=seed)
        # After the shuffle: one enqueue of all rows is one epoch.
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
    cancel_op: Operation | None = None,
) -> FIFOQueue:
    """Return a queue that a queue runner fills with strings, such as file names. See `input_producer`.

    Raises:
        InvalidArgumentError: there are no strings, either statically or at run time.
    """
    with name_scope(name, "input_producer"):
        strings = convert_to_tensor(string_tensor, dtypes.string)
        if strings.dims == (0,):
            raise InvalidArgumentError("string_input_producer needs strings", expected="at least one", actual="none")
        some = make("Greater", make("Size", strings, out_type=dtypes.int32), 0)
        check = Assert(some, ["string_input_producer needs at least one string"])
        # A dequeue would otherwise wait forever for an empty producer.
        with strings.graph.control_dependencies([check]):
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
    """Return a queue that a queue runner fills with the int32 numbers below `limit`. See `input_producer`."""
    with name_scope(name, "input_producer"):
        numbers = make("Range", 0, limit, 1)
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
    """Return one row of each tensor, at the same index in all, a different one each time. See `input_producer`.

    Raises:
        InvalidArgumentError: the list is empty.
    """
    check_kind(tensor_list, Iterable, "the tensors to slice", "a list of tensors")
    if not tensor_list:
        raise InvalidArgumentError("slice_input_producer needs tensors", expected="at least one", actual="none")
    with name_scope(name, "input_producer"):
        tensors = [convert_to_tensor(t) for t in tensor_list]
        count = tensors[0].dims[0] if tensors[0].dims else None
        # The first tensor decides; the gather fails if another one is shorter.
        rows = (
            count
            if count is not None
            else make("StridedSlice", make("Shape", tensors[0]), [0], [1], [1], shrink_axis_mask=1)
        )
        queue = range_input_producer(rows, num_epochs, shuffle, seed, capacity, shared_name)
        index = queue.dequeue()
        return [make("GatherV2", t, index, 0) for t in tensors]

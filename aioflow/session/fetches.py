"""The structure of fetches and feeds: nested lists, tuples, dicts, named tuples, names, operations and variables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import INLINE_COPY, OffloadToThread, current_work
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.arrays import holds_bytes, takes_long, to_array
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices, IndexedSlicesValue
from aioflow.graph.labelled import LabelledTensor
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.kernels.convert import as_text
from aioflow.kernels.list_values import tensors_of
from aioflow.memory.copying import copied
from aioflow.memory.values import Array, Value
from aioflow.ops.session_tensors import stored_dtype
from aioflow.ops.sparse.tensor import SparseTensor, SparseTensorValue
from aioflow.ops.variables.state import value_behind
from aioflow.session.tensor_handle import HandleOwner, TensorHandle

ResultPicker: TypeAlias = Callable[[Sequence[Value]], Any]
Feeds: TypeAlias = Mapping[Any, object]  # by tensors, variables or names

# Bytes. Feeds up to this size are copied before a step waits, which takes some microseconds.
_OWNED: Final = 1 << 16
_LEAVES: Final = (Tensor, Operation, str)
_HOST_MEMORY: Final = (1, 3)  # DLPack device types kDLCPU and kDLCUDAHost


def fetch_key(fetches: Any) -> Hashable:
    """Return a hashable key that is equal for fetches of the same structure over the same elements.

    Raises:
        DTypeError: an element is not hashable, so it is not a fetch.
    """
    kind = type(fetches)
    # The most frequent fetches first: this runs on every call of a session.
    if kind is Tensor or kind is Operation or kind is str:
        return fetches  # type: ignore[no-any-return]  # each of the three is hashable
    if kind is list or isinstance(fetches, list | tuple):
        return (kind, *map(fetch_key, fetches))
    if isinstance(fetches, Mapping):
        return (kind, *fetches, *map(fetch_key, fetches.values()))
    try:
        hash(fetches)
    except TypeError as error:
        raise _not_a_fetch(fetches) from error
    return fetches  # type: ignore[no-any-return]  # variables, IndexedSlices and SparseTensors hash by identity


def _not_a_fetch(value: object) -> DTypeError:
    return DTypeError(
        "the fetch has an invalid type",
        expected="a Tensor, an Operation, a name, or a list, tuple or dict of them",
        actual=f"{value!r} ({type(value).__name__})",
    )


class FetchMapper:
    """The tensors and operations of a structure of fetches, and the inverse mapping of results into it.

    Attributes:
        tensors: Each tensor once, in the order in which a run returns them.
        targets: Operations that run for their effect; their place in the result is None.
        copies: Positions of the tensors that occur several times in the structure: once for each further occurrence.
        single: The function `take` if the structure is just the first tensor, else None.
        is_direct: Whether `take` alone makes the result, without `give`.

    Raises:
        DTypeError: an element is not a valid kind of fetch.
        InvalidArgumentError, NotFoundError, …: an element is not in the graph, or may not be fetched.
    """

    def __init__(self, graph: Graph, fetches: object, handles: HandleOwner | None = None) -> None:
        self.tensors: list[Tensor] = []
        self.targets: list[Operation] = []
        self._graph = graph
        self._positions: dict[Tensor, int] = {}
        self.copies: list[int] = []
        self._labelled: list[int] = []
        self._handles = handles
        self._stored: dict[int, DType] = {}
        self.take: ResultPicker = self._plan(fetches)
        self.single = self.take if isinstance(self.take, _First) else None
        self.is_direct = not self.copies and not self._labelled and not self._stored

    async def give(self, values: list[Value]) -> Value:
        """Return the values of `tensors` in the structure of the fetches. Each occurrence gets its own value."""
        if self._handles is not None:
            for position, dtype in self._stored.items():
                values[position] = await self._handles.made(as_text(values[position]), dtype)
        again = [values[position] for position in self.copies]
        # Copying a large value would block the event loop.
        again = await in_thread(_copies, again, effects=False) if any(map(_is_large, again)) else _copies(again)
        if any(_is_large(values[position]) for position in self._labelled):
            return await in_thread(self.take, values + again, effects=False)
        return self.take(values + again)

    def _plan(self, fetches: object) -> ResultPicker:
        if isinstance(fetches, list | tuple):
            return self._sequence(fetches)
        if isinstance(fetches, Mapping):
            keys, takes = list(fetches), [self._plan(v) for v in fetches.values()]
            kind = type(fetches) if type(fetches) is not dict else dict
            return lambda values: kind((k, t(values)) for k, t in zip(keys, takes, strict=True))  # type: ignore[call-arg]  # a mapping of the caller's own kind
        if isinstance(fetches, IndexedSlices):
            parts = [fetches.values, fetches.indices, fetches.dense_shape]
            inner: list[ResultPicker] = [self._plan(p) if p is not None else _nothing for p in parts]
            return lambda values: IndexedSlicesValue(*(t(values) for t in inner))
        if isinstance(fetches, SparseTensor):
            sparse = [self._plan(part) for part in (fetches.indices, fetches.values, fetches.dense_shape)]
            return lambda values: SparseTensorValue(*(t(values) for t in sparse))
        if isinstance(fetches, LabelledTensor):
            labelled, rows = fetches, self._plan(fetches.values)
            self._labelled.append(self._positions[fetches.values])
            return lambda values: labelled.dictionaries(rows(values))
        return self._leaf(fetches)

    def _sequence(self, fetches: list[object] | tuple[object, ...]) -> ResultPicker:
        kind = type(fetches)
        takes = [self._plan(f) for f in fetches]
        if kind is list:
            return lambda values: [t(values) for t in takes]
        if hasattr(kind, "_fields"):  # a named tuple
            return lambda values: kind(*(t(values) for t in takes))
        return lambda values: kind(t(values) for t in takes)

    def _leaf(self, fetch: object) -> ResultPicker:
        try:
            element = self._graph.as_graph_element(fetch)
        except InvalidArgumentError as error:
            # For valid kinds of fetches the graph's own error is more precise.
            if isinstance(fetch, _LEAVES) or hasattr(fetch, "_as_graph_element"):
                raise
            raise _not_a_fetch(fetch) from error
        if not self._graph.is_fetchable(element):
            raise InvalidArgumentError(f"{element!r} may not be fetched")
        if isinstance(element, Operation):
            self.targets.append(element)
            return _nothing
        element = value_behind(element)
        position = self._positions.setdefault(element, len(self.tensors))
        stored = stored_dtype(element)
        if stored is not None and self._handles is not None:
            self._stored[position] = stored
            if position == len(self.tensors):
                self.tensors.append(element)
            return _Take(position)  # all occurrences take the same handle
        # The first occurrence takes the value itself, all further ones a copy, so that no two places share memory.
        if position == len(self.tensors):
            self.tensors.append(element)
            if element.dtype is dtypes.variant:
                return partial(_list_at, position)
            return _First(position) if position == 0 else _Take(position)
        # `_list_at` copies the arrays of a list at each occurrence.
        if element.dtype is dtypes.variant:
            return partial(_list_at, position)
        self.copies.append(position)
        return _Copy(self.tensors, len(self.copies) - 1)


class _Take:
    """Picks the value at a position."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __call__(self, values: Sequence[Value]) -> Value:
        return values[self.position]


class _First(_Take):
    """Picks the first value."""


class _Copy:
    """Picks the copy of a tensor that occurs more than once. The copies follow the values of all tensors."""

    def __init__(self, tensors: Sequence[Tensor], number: int) -> None:
        self._tensors = tensors
        self._number = number

    def __call__(self, values: Sequence[Value]) -> Value:
        # The number of tensors is read here, not in `__init__`: the structure may contain further ones.
        return values[len(self._tensors) + self._number]


def _list_at(position: int, values: Sequence[Value]) -> Value:
    """Return a tensor list as a list of arrays that the caller owns; return any other variant unchanged."""
    value = values[position]
    return _owned(value) if isinstance(value, tuple | list) else value


def _owned(value: Value) -> Value:
    if isinstance(value, tuple | list):
        return [_owned(item) for item in tensors_of(value)]
    return copied(value) if isinstance(value, np.ndarray) else value


def _is_large(value: Value) -> bool:
    return isinstance(value, np.ndarray) and value.nbytes > INLINE_COPY


def _copies(values: Sequence[Value]) -> list[Value]:
    return [copied(value) if isinstance(value, np.ndarray) else value for value in values]


def _nothing(values: Sequence[Value]) -> None:
    return None


def feed_parts(key: object) -> tuple[object, ...]:
    """Return the tensors that a feed key stands for: the three parts of a `SparseTensor`, or the key itself."""
    return (key.indices, key.values, key.dense_shape) if isinstance(key, SparseTensor) else (key,)


def flat_feeds(feeds: Mapping[Any, Any]) -> Feeds:
    """Replace each `SparseTensor` among the feeds by its three tensors.

    Raises:
        DTypeError: the value fed for a `SparseTensor` does not have three parts.
        InvalidArgumentError: a tensor is fed twice.
    """
    if not any(isinstance(key, SparseTensor) for key in feeds):
        return feeds
    flat: dict[object, object] = {}
    for key, value in feeds.items():
        parts = feed_parts(key)
        if len(parts) == 3 and (not isinstance(value, tuple | list) or len(value) != 3):
            raise DTypeError(
                f"cannot feed the value for {key!r}",
                expected="a SparseTensorValue, or a tuple (indices, values, dense_shape)",
                actual=repr(value)[:200],
            )
        for part, item in zip(parts, value if len(parts) == 3 else [value], strict=True):
            if part in flat:
                raise InvalidArgumentError(f"{part!r} is fed twice", expected="one value per tensor", actual=repr(key))
            flat[part] = item
    return flat


def fed_tensors(graph: Graph, feeds: Iterable[object]) -> list[Tensor]:
    """Return the tensors that the keys of a feed dictionary stand for.

    Raises:
        DTypeError: a key is neither a tensor of the graph nor the name of one.
        InvalidArgumentError: a tensor may not be fed, or is fed twice.
    """
    fed: dict[Tensor, None] = {}
    for key in feeds:
        try:
            tensor = graph.as_graph_element(key, allow_operation=False)
        except DTypeError:
            raise
        except InvalidArgumentError as error:
            raise _not_a_feed(key, error) from error
        if not isinstance(tensor, Tensor) or not graph.is_feedable(tensor):
            raise InvalidArgumentError(f"{key!r} may not be fed", expected="a feedable tensor", actual=repr(tensor))
        if tensor in fed:
            raise InvalidArgumentError(
                f"{tensor.name!r} is fed twice", expected="one value per tensor", actual=repr(key)
            )
        fed[tensor] = None
    return list(fed)


def _not_a_feed(key: object, error: InvalidArgumentError) -> DTypeError:
    wrong = DTypeError(f"cannot feed {key!r}: {error.message}", expected=error.expected, actual=error.actual)
    wrong.at(error.node, error.op_type or "", error.source)
    return wrong


def small_copies(values: Iterable[Value]) -> list[Value]:
    """Copy the small arrays among fed values, since a caller may change them while the step waits."""
    return [
        value.copy("K") if type(value) is np.ndarray and value.nbytes <= _OWNED and value.flags.writeable else value
        for value in values
    ]


def convert_feeds(converters: Sequence[Callable[[Value], Value]], fed: Sequence[Value]) -> list[Value]:
    """Convert each value by its `feed_converter`. Raises as the converters do."""
    return [convert(value) for convert, value in zip(converters, fed, strict=True)]


def feed_converter(tensor: Tensor, in_device_memory: bool = False) -> Callable[[Value], Any]:
    """Return a function that converts a fed value to the dtype and shape of `tensor`.

    An array that already fits is passed through without a copy. The returned function raises:

    - OffloadToThread: the conversion takes too long for an event loop, and the thread has no current work.
    - DTypeError: the value is of another kind, or is a tensor of a graph.
    - InvalidArgumentError: the value has another shape.

    Args:
        tensor: The fed tensor.
        in_device_memory: Whether only devices with their own memory read the feed. Then an array of another library may
            already be in device memory (`__dlpack_device__`).
    """
    dtype, dims = tensor.dtype, tensor.dims
    np_dtype = dtype.np_dtype
    fixed = dims if dims is not None and None not in dims else None
    scalar = dtype.as_numpy_dtype if dims in ((), None) and dtype.is_numeric else None
    plain = (scalar, float) if dtype.is_floating else (scalar,)
    is_text = dtype is dtypes.string
    if dtype is dtypes.variant:
        return partial(_fed_list, tensor)

    def convert(value: Value) -> Value:
        try:
            if type(value) is np.ndarray:
                # 0-d arrays take the slow path, which turns them into scalars. So do dtypes that are equal but another
                # object: comparing identities is cheaper.
                if value.dtype is np_dtype and value.ndim and (not is_text or _is_text(value)):
                    if value.shape != fixed:
                        _check_shape(tensor, value.shape)
                    return value
            elif scalar is not None and type(value) in plain:
                return scalar(value)
            if in_device_memory and _is_in_device_memory(value):
                return _checked_as_it_is(tensor, value)
            return _slow_feed(tensor, value)
        except InvalidArgumentError as error:
            raise error.at(tensor.op.name, tensor.op.type, tensor.op.source) from error.__cause__

    return convert


def _fed_list(tensor: Tensor, value: Value) -> Value:
    """Convert a value fed for a tensor list: a list of arrays, which may be nested."""
    if not isinstance(value, list | tuple):
        error = DTypeError(
            f"cannot feed the value for {tensor.name!r}", expected="a list of arrays", actual=type(value).__name__
        )
        raise error.at(tensor.op.name, tensor.op.type, tensor.op.source)
    return [_fed_list(tensor, v) if isinstance(v, list | tuple) else v if v is None else to_array(v)[()] for v in value]


def _is_text(value: Array) -> bool:
    """Return True if every element of an object array is bytes. Raises OffloadToThread if the scan takes too long."""
    if current_work() is None and takes_long(value, dtypes.string):
        raise OffloadToThread
    return holds_bytes(value)


def _is_in_device_memory(value: Value) -> bool:
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and device()[0] not in _HOST_MEMORY


def _checked_as_it_is(tensor: Tensor, value: Any) -> Value:
    """Check an array of another library and return it unchanged.

    Its dtype is compared by the name that libraries use for it (torch.float32, float32).
    """
    name = str(value.dtype).rpartition(".")[2]
    if name != tensor.dtype.name:
        raise DTypeError(f"the feed for {tensor.name!r} has a different dtype", expected=tensor.dtype.name, actual=name)
    _check_shape(tensor, tuple(value.shape))
    return value


def _slow_feed(tensor: Tensor, value: Value) -> Value:
    if isinstance(value, Tensor):
        raise DTypeError(
            f"the value fed for {tensor.name!r} is a tensor of a graph",
            expected="an array or a Python value",
            actual=repr(value),
        )
    is_handle = isinstance(value, TensorHandle)
    if current_work() is None and (is_handle or takes_long(value, tensor.dtype)):
        raise OffloadToThread  # before a run converts the feeds again, it reads the handles
    if is_handle:
        raise DTypeError(f"a handle is fed for {tensor.name!r}", expected="await handle.eval()", actual=repr(value))
    try:
        array = to_array(value, tensor.dtype)
    except InvalidArgumentError as error:
        error.message = f"feed for {tensor.name!r}: {error.message}"
        raise
    _check_shape(tensor, array.shape)
    return array[()] if array.ndim == 0 and tensor.dtype.is_numeric else array


def _check_shape(tensor: Tensor, shape: tuple[int, ...]) -> None:
    if not is_compatible(shape, tensor.dims):
        wanted = format_dims(tensor.dims)
        raise InvalidArgumentError(
            f"cannot feed value of shape {shape} for tensor {tensor.name!r}, which has shape {wanted}",
            expected=wanted,
            actual=shape,
        )

"""Kernels of tensor arrays. The handle is the array itself, which lives until the step ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aioflow.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims, is_compatible, merge_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.convert import as_int, as_ints, check_room
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Array, Namespace

_CLEARED: Any = object()


class TensorArrayValue:
    """The tensors of one array. Each element is written once; in an array of gradients, writes are added up."""

    def __init__(self, name: str, size: int, attrs: Attrs) -> None:
        self.name = name
        self.items: list[Any] = [None] * size
        self.dtype = attrs["dtype"]
        self.dims: Dims = attrs["element_shape"]
        self.dynamic_size: bool = attrs["dynamic_size"]
        self.clear_after_read: bool = attrs["clear_after_read"]
        self.identical: bool = attrs["identical_element_shapes"]
        self.adds_up = False
        self.closed = False
        self.forward: TensorArrayValue | None = None
        self.parts: int | None = None  # number of elements that a split wrote, at the front
        self.gradients: dict[str, TensorArrayValue] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.given_out: set[int] = set()
        self.lock = threading.Lock()  # several iterations may write at once

    def write(self, index: int, value: Array) -> None:
        """Set the tensor at `index`.

        Raises:
            InvalidArgumentError: the array is closed, the index is out of range, the shape does not fit, or the element
                was already written (unless it is a gradient) or read.
        """
        with self.lock:
            self._check_open()
            if index >= len(self.items) and self.dynamic_size:
                self.items.extend([None] * (index + 1 - len(self.items)))
            self._check_index(index)
            shape = np.shape(value)
            self._check_shape(index, shape)
            present = self.items[index]
            # Even a gradient must not grow after it was read: its reader has the smaller sum.
            if index in self.given_out:
                raise self._not_writable(index, "it has been read already", "the read after all writes")
            if present is not None and not self.adds_up:
                raise self._not_writable(index, "it has been written to already", "one write per index")
            # Not in place: `present` is the value of another node, which may have more readers.
            self.items[index] = value if present is None else present + value
            # Kept when the tensor is cleared, because zeros for its gradient need the shape.
            self.shapes[index] = shape

    def read(self, xp: Namespace, index: int) -> Array:
        """Return the tensor at `index`.

        Raises:
            InvalidArgumentError: the array is closed, the index is out of range, or nothing was written there and the
                shape is unknown.
            FailedPreconditionError: it was read before, and the array clears elements after a read.
        """
        with self.lock:
            self._check_open()
            self._check_index(index)
            value: Array | None = self.items[index]
            if value is _CLEARED:
                raise FailedPreconditionError(
                    f"could not read index {index} of tensor array {self.name} twice",
                    expected="clear_after_read=False",
                    actual="cleared by an earlier read",
                )
            self.given_out.add(index)
            if value is None:
                return self._zeros(xp, index)
            if self.clear_after_read:
                self.items[index] = _CLEARED
            return value

    def prepare_for(self, count: int, dims: Dims) -> None:
        """Make room for `count` tensors of the shape `dims`, which the array records even if `count` is 0."""
        with self.lock:
            self._check_open()
            if self.identical and is_compatible(self.dims, dims):
                self.dims = merge_dims(self.dims, dims)
            if count > len(self.items) and self.dynamic_size:
                self.items.extend([None] * (count - len(self.items)))

    def gradient(self, source: str) -> TensorArrayValue:
        """Return the array of the gradients of this one for `source`, and create it on the first call."""
        with self.lock:
            self._check_open()
            found = self.gradients.get(source)
            if found is None:
                attrs = {
                    "dtype": self.dtype,
                    "element_shape": self.dims,
                    "dynamic_size": False,
                    # The gradient of each write reads its element. An array that adds up has several writes for one.
                    "clear_after_read": not self.adds_up,
                    "identical_element_shapes": self.identical,
                }
                found = self.gradients[source] = TensorArrayValue(f"{self.name}/{source}", len(self.items), attrs)
                found.adds_up = True
                found.forward = self
            return found

    @property
    def size(self) -> int:
        """The number of elements. Raises InvalidArgumentError if the array is closed."""
        with self.lock:
            self._check_open()
            return len(self.items)

    @property
    def joined(self) -> int:
        """The number of elements that a concat joins; for the gradient of a split array, the number of parts.

        Raises:
            InvalidArgumentError: the array is closed.
        """
        parts = None if self.forward is None else self.forward.parts
        return self.size if parts is None else parts

    def close(self) -> None:
        """Close the array and drop its tensors."""
        with self.lock:
            self.closed = True
            self.items = []

    def _zeros(self, xp: Namespace, index: int) -> Array:
        """Return zeros for an element that was never written. Raise InvalidArgumentError if its shape is unknown."""
        dims = self._known_shape(index)
        if dims is None or None in dims:
            raise InvalidArgumentError(
                f"could not read index {index} of tensor array {self.name}: nothing has been written there",
                expected="a write before, or an element_shape",
                actual=format_dims(dims),
            )
        return _zeros(xp, dims, self.dtype)

    def _known_shape(self, index: int) -> Dims:
        """Return the known shape of an element; for a gradient, that of the element in the forward array."""
        if self.adds_up and index in self.shapes:
            return self.shapes[index]
        if self.forward is not None and index in self.forward.shapes:
            return self.forward.shapes[index]
        return self.dims

    def _not_writable(self, index: int, reason: str, expected: str) -> InvalidArgumentError:
        message = f"could not write to index {index} of tensor array {self.name}: {reason}"
        return InvalidArgumentError(message, expected=expected, actual=index)

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidArgumentError(f"tensor array {self.name} is closed", expected="an open one", actual="closed")

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self.items):
            raise InvalidArgumentError(  # OutOfRangeError would read as the end of the input
                f"tensor array {self.name} has no index {index}",
                expected=f"an index below {len(self.items)}",
                actual=index,
            )

    def _check_shape(self, index: int, shape: tuple[int, ...]) -> None:
        wanted = self._known_shape(index)
        if wanted == shape == self.dims:  # the common case: compatible, and `dims` needs no merge
            return
        if not is_compatible(wanted, shape):
            raise InvalidArgumentError(
                f"could not write to index {index} of tensor array {self.name}: the shape does not fit",
                expected=format_dims(wanted),
                actual=shape,
            )
        if self.identical:
            self.dims = merge_dims(self.dims, shape)


def _zeros(xp: Namespace, dims: Sequence[int | None], dtype: DType) -> Array:
    sizes = tuple(size for size in dims if size is not None)
    check_room(sizes)
    return xp.zeros(sizes, dtype.np_dtype)


@binder("TensorArrayV3", host={"size": as_int}, makes=TensorArrayValue)
def tensor_array(binding: Binding) -> Callable[[int], tuple[TensorArrayValue, np.float32]]:
    name = binding.attrs["tensor_array_name"] or binding.name
    # The flow orders reads after writes. Its value is never used.
    flow = np.float32(0)

    def make(size: int) -> tuple[TensorArrayValue, np.float32]:
        if size < 0:
            raise InvalidArgumentError("a tensor array cannot have a negative size", expected=">= 0", actual=size)
        return TensorArrayValue(name, size, binding.attrs), flow

    return make


def _check_flow(flow: Array) -> None:
    if np.ndim(flow):
        raise InvalidArgumentError("the flow of a tensor array is no scalar", expected=(), actual=np.shape(flow))


def _check_dtype(handle: TensorArrayValue, dtype: DType) -> None:
    if handle.dtype is not dtype:
        raise InvalidArgumentError(
            f"tensor array {handle.name} has elements of another dtype", expected=dtype.name, actual=handle.dtype.name
        )


def _check_dims(handle: TensorArrayValue, dims: Dims, wanted: Dims) -> None:
    if not is_compatible(dims, wanted):
        raise InvalidArgumentError(
            f"the elements of tensor array {handle.name} have another shape",
            expected=format_dims(wanted),
            actual=format_dims(dims),
        )


@kernel("TensorArrayGradV3", takes=TensorArrayValue, makes=TensorArrayValue)
def gradient(handle: TensorArrayValue, flow: Array, *, source: str) -> tuple[TensorArrayValue, Array]:
    _check_flow(flow)
    return handle.gradient(source), flow


@kernel("TensorArrayWriteV3", host={"index": as_int}, retains=True, takes=TensorArrayValue)
def write(handle: TensorArrayValue, index: int, value: Array, flow: Array) -> Array:
    _check_flow(flow)
    handle.write(index, value)
    return flow


@kernel("TensorArrayReadV3", host={"index": as_int}, takes=TensorArrayValue)
def read(xp: Namespace, handle: TensorArrayValue, index: int, flow: Array, *, dtype: DType) -> Array:
    _check_dtype(handle, dtype)
    return handle.read(xp, index)


@kernel("TensorArrayGatherV3", host={"indices": as_ints}, fresh=True, takes=TensorArrayValue)
def gather(
    xp: Namespace,
    handle: TensorArrayValue,
    indices: Sequence[int],
    flow: Array,
    *,
    dtype: DType,
    element_shape: Dims,
) -> Array:
    _check_dtype(handle, dtype)
    items = [handle.read(xp, i) for i in indices]
    if not items:
        dims = merge_dims(element_shape, handle.dims)
        if dims is None or None in dims:
            raise UnimplementedError(
                f"tensor array {handle.name} has no elements and no known element shape",
                expected="a known element_shape",
                actual=format_dims(dims),
            )
        return _zeros(xp, (0, *dims), dtype)
    _check_dims(handle, np.shape(items[0]), element_shape)
    return xp.stack(_alike(handle, items, 0))


@kernel("TensorArrayScatterV3", host={"indices": as_ints}, retains=True, takes=TensorArrayValue)
def scatter(handle: TensorArrayValue, indices: Sequence[int], value: Array, flow: Array) -> Array:
    _check_flow(flow)
    if np.ndim(value) == 0 or np.shape(value)[0] != len(indices):
        raise InvalidArgumentError(
            f"the value does not fit the indices of tensor array {handle.name}",
            expected=f"a first dimension of {len(indices)}",
            actual=np.shape(value),
        )
    handle.prepare_for(max(indices, default=-1) + 1, np.shape(value)[1:])
    for i, index in enumerate(indices):
        handle.write(index, value[i])
    return flow


@kernel("TensorArraySplitV3", host={"lengths": as_ints}, retains=True, takes=TensorArrayValue)
def split(handle: TensorArrayValue, value: Array, lengths: Sequence[int], flow: Array) -> Array:
    _check_flow(flow)
    if np.ndim(value) == 0 or sum(lengths) != np.shape(value)[0] or min(lengths, default=0) < 0:
        raise InvalidArgumentError(
            f"the lengths do not fit the value split into tensor array {handle.name}",
            expected=f"lengths that sum to the first dimension of {np.shape(value)}",
            actual=lengths,
        )
    # The parts may differ in their first size.
    handle.prepare_for(len(lengths), (None, *np.shape(value)[1:]))
    handle.parts = len(lengths)
    if len(lengths) != handle.size:
        raise InvalidArgumentError(
            f"tensor array {handle.name} is not of that size", expected=handle.size, actual=len(lengths)
        )
    start = 0
    for index, length in enumerate(lengths):
        handle.write(index, value[start : start + length])
        start += length
    return flow


@kernel("TensorArrayConcatV3", fresh=True, takes=TensorArrayValue)
def concat(
    xp: Namespace, handle: TensorArrayValue, flow: Array, *, dtype: DType, element_shape_except0: Dims
) -> tuple[Array, Array]:
    _check_dtype(handle, dtype)
    items = [handle.read(xp, i) for i in range(handle.joined)]
    if not items:
        rest = merge_dims(element_shape_except0, None if handle.dims is None else handle.dims[1:])
        if rest is None or None in rest:
            raise UnimplementedError(f"tensor array {handle.name} has no elements and no known element shape")
        return _zeros(xp, (0, *rest), dtype), np.zeros(0, np.int64)
    if any(np.ndim(item) == 0 for item in items):
        raise InvalidArgumentError(
            f"the elements of tensor array {handle.name} are scalars and cannot be joined",
            expected="rank >= 1",
            actual="rank 0",
        )
    _check_dims(handle, np.shape(items[0])[1:], element_shape_except0)
    joined = xp.concatenate(_alike(handle, items, 1))
    return joined, np.array([item.shape[0] for item in items], np.int64)


def _alike(handle: TensorArrayValue, items: list[Array], axis: int) -> list[Array]:
    shapes = [np.shape(item)[axis:] for item in items]
    if any(shape != shapes[0] for shape in shapes):
        other = next(shape for shape in shapes if shape != shapes[0])
        raise InvalidArgumentError(
            f"the elements of tensor array {handle.name} differ in shape", expected=shapes[0], actual=other
        )
    return items


@kernel("TensorArraySizeV3", fresh=True, takes=TensorArrayValue)
def size(handle: TensorArrayValue, flow: Array) -> np.int32:
    return np.int32(handle.size)


@kernel("TensorArrayCloseV3", takes=TensorArrayValue)
def close(handle: TensorArrayValue) -> None:
    handle.close()

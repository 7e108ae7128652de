"""Kernels of tensor lists, which `kernels.list_values` defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import blocks, reserve
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.kernels.convert import as_int, as_ints, as_sizes, check_room
from aioflow.kernels.list_values import Items, stack_of, tensors_of
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, Namespace, Value

_PLACE: Final = 8  # bytes of a list for each tensor, besides the tensor
_PLACES: Final = 1 << 20  # places added at once: no other Python code runs meanwhile


def _lengthened(tensors: list[Value], size: int) -> list[Value]:
    """Return a copy of the list with `size` elements, at least as many as before; the new ones are unset (None)."""
    check_room((size,))
    reserve(size * _PLACE)
    made = tensors.copy()
    for part in blocks(size - len(tensors), _PLACES):
        made += [None] * (part.stop - part.start)
    return made


@kernel("EmptyTensorList", fresh=True)
def empty(element_shape: Array, max_num_elements: Array) -> Items:
    return ()


@kernel("TensorListPushBack", expression="({0}, {1})", opaque=True)
def push(items: Items, tensor: Value) -> Items:
    return items, tensor


def _as_dims(element_shape: Array) -> Dims:
    """Return the shape of an element, with None for each size that is -1; None if `element_shape` is a scalar.

    Raises:
        InvalidArgumentError: it is a scalar other than -1, has more than one axis, or has a size less than -1.
    """
    sizes = np.asarray(element_shape)
    if sizes.ndim > 1 or (sizes < -1).any() or (sizes.ndim == 0 and sizes != -1):
        raise InvalidArgumentError(
            "the element_shape of a tensor list is not a shape", expected="sizes >= -1, or -1", actual=sizes.tolist()
        )
    return tuple(None if size < 0 else size for size in sizes.tolist()) if sizes.ndim else None


_OF_ELEMENTS: Final = {"element_shape": _as_dims}


@binder("TensorListPopBack", host=_OF_ELEMENTS)
def bind_pop(binding: Binding) -> Callable[[Items, Dims], tuple[Items, Value]]:
    element = _element_of(binding)

    def pop(items: Items, dims: Dims) -> tuple[Items, Value]:
        # Converted once: each further pop of the rest costs one tuple.
        if isinstance(items, list):
            items = stack_of(items)
        if type(items) is not tuple or not items:
            raise InvalidArgumentError("an empty tensor list has nothing to pop", expected="a tensor", actual="none")
        rest, tensor = items
        return rest, element(tensor, dims)

    return pop


def _element_of(binding: Binding) -> Callable[[Any, Dims], Any]:
    """Return a function that returns a tensor of a list as the op declares it, or zeros if the tensor was never set.

    A list does not record the dtype and shape of its tensors, so every reader compares them.
    """
    wanted = binding.attrs["element_dtype"]
    dtype, zeros = wanted.np_dtype, _zeros_of(binding)

    def element(tensor: Any, dims: Dims) -> Any:
        if tensor is None:
            return zeros(dims)
        # A nested list has no dtype. A handle may have one, which is that of its resource and no `np.dtype`.
        held = getattr(tensor, "dtype", dtype)
        if held != dtype and (not dtype.hasobject or isinstance(held, np.dtype)):
            raise DTypeError("a tensor list holds tensors of another dtype", expected=wanted.name, actual=str(held))
        if dims is not None and not is_compatible(dims, np.shape(tensor)):
            raise InvalidArgumentError(
                "an element of a tensor list is not of the element_shape",
                expected=format_dims(dims),
                actual=np.shape(tensor),
            )
        return tensor

    return element


def _zeros_of(binding: Binding) -> Callable[[Dims], Array | tuple[()]]:
    """Return a function that creates zeros of a shape, for a tensor that was never set."""
    xp, dtype = binding.xp, binding.attrs["element_dtype"]

    def zeros(dims: Dims) -> Array | tuple[()]:
        if dims is None or None in dims:
            raise InvalidArgumentError(
                "an element of a tensor list was never set, and its shape is not known",
                expected="a tensor, or an element_shape",
                actual=format_dims(dims),
            )
        return () if dtype.name == "variant" else xp.zeros(as_sizes(dims), dtype.np_dtype)

    return zeros


@kernel("TensorListLength", fresh=True)
def length(items: Items) -> np.int32:
    return np.int32(len(tensors_of(items)))


@binder("TensorListConcatV2", host=_OF_ELEMENTS, fresh=True)
def concat(binding: Binding) -> KernelBody:
    xp, dtype, element = binding.xp, binding.attrs["element_dtype"].np_dtype, _element_of(binding)

    def join(items: Items, dims: Dims, leading_dims: Array) -> tuple[Array, Array]:
        rest = () if dims is None else dims[1:]
        rows = None if dims is None else (None, *rest)  # the tensors may differ in their first size
        tensors = [element(t, dims if t is None else rows) for t in tensors_of(items)]
        if not all(np.ndim(t) for t in tensors):
            raise InvalidArgumentError("scalars cannot be joined", expected="rank >= 1", actual="rank 0")
        sizes = np.array([np.shape(t)[0] for t in tensors], np.int64)
        if not tensors:  # only the element shape determines the rank
            if None in rest:
                raise InvalidArgumentError(
                    "an empty tensor list of elements of unknown shape cannot be joined",
                    expected="a known element_shape",
                    actual=format_dims(dims),
                )
            return xp.zeros((0, *as_sizes(rest)), dtype), sizes
        return xp.concatenate(tensors), sizes

    return join


@kernel("TensorListSplit", host={"lengths": as_ints})
def split(tensor: Array, element_shape: Array, lengths: tuple[int, ...]) -> Items:
    if np.ndim(tensor) == 0 or sum(lengths) != np.shape(tensor)[0] or min(lengths, default=0) < 0:
        raise InvalidArgumentError(
            "the lengths do not fit the tensor that is split into a list",
            expected=f"lengths that sum to the first dimension of {np.shape(tensor)}",
            actual=lengths,
        )
    ends = np.cumsum(lengths)
    return stack_of([tensor[end - size : end] for size, end in zip(lengths, ends, strict=True)])


@binder("_Hole", fresh=True)
def bind_hole(binding: Binding) -> Callable[[], Value]:
    """Bind the smallest value of the dtype, for an element whose gradient is requested but never used."""
    dtype = binding.attrs["dtype"]
    least: Value = () if dtype.name == "variant" else np.zeros((), dtype.np_dtype)[()]
    return lambda: least


@kernel("ZerosLike", dtypes={"T": ("variant",)}, priority=1)
def zeros_like(xp: Namespace, items: Items) -> Items:
    """Return a list with zeros in place of every tensor, including those of nested lists."""
    return stack_of([_zeros(xp, tensor) for tensor in tensors_of(items)])


def _zeros(xp: Namespace, tensor: Array | Items | None) -> Array | Items | None:
    if tensor is None:
        return None
    return zeros_like(xp, tensor) if isinstance(tensor, tuple | list) else xp.zeros_like(tensor)


# ── by index ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("TensorListReserve", host={"num_elements": as_int}, fresh=True, elastic=True)
def reserve_list(element_shape: Array, num_elements: int) -> Items:
    if num_elements < 0:
        raise InvalidArgumentError("a tensor list cannot have a negative size", expected=">= 0", actual=num_elements)
    return _lengthened([], num_elements)


@kernel("TensorListFromTensor")
def from_tensor(tensor: Array, element_shape: Array) -> Items:
    if np.ndim(tensor) == 0:
        raise InvalidArgumentError("a scalar has no rows to list", expected="rank >= 1", actual="rank 0")
    return list(tensor)


@binder("TensorListGetItem", host={"index": as_int, **_OF_ELEMENTS})
def bind_get_item(binding: Binding) -> Callable[[Items, int, Dims], Value]:
    element = _element_of(binding)

    def get_item(items: Items, index: int, dims: Dims) -> Value:
        tensors = tensors_of(items)
        _check_index(index, len(tensors))
        return element(tensors[index], dims)

    return get_item


@kernel("TensorListSetItem", host={"index": as_int}, opaque=True, elastic=True)
def set_item(items: Items, index: int, item: Value, *, resize_if_index_out_of_bounds: bool) -> Items:
    tensors = tensors_of(items)
    grows = resize_if_index_out_of_bounds and index >= len(tensors)
    # A list is a value: other nodes may hold the one without the change.
    made = _lengthened(tensors, index + 1) if grows else tensors.copy()
    _check_index(index, len(made))
    made[index] = item
    return made


@kernel("_TensorListInsert", host={"index": as_int}, opaque=True)
def insert(items: Items, index: int, item: Value) -> Items:
    made = tensors_of(items).copy()
    _check_index(index, len(made) + 1)
    made.insert(index, item)
    return made


@kernel("_TensorListErase", host={"index": as_int}, opaque=True)
def erase(items: Items, index: int) -> Items:
    made = tensors_of(items).copy()
    _check_index(index, len(made))
    del made[index]
    return made


@kernel("TensorListResize", host={"size": as_int}, elastic=True)
def resize(items: Items, size: int) -> Items:
    if size < 0:
        raise InvalidArgumentError("a tensor list cannot have a negative size", expected=">= 0", actual=size)
    return _lengthened(tensors_of(items)[:size], size)


@binder("TensorListStack", host=_OF_ELEMENTS, fresh=True)
def bind_stack(binding: Binding) -> Callable[[Items, Dims], Array]:
    xp, dtype, count = binding.xp, binding.attrs["element_dtype"].np_dtype, binding.attrs["num_elements"]
    element, zeros = _element_of(binding), _zeros_of(binding)

    def stack(items: Items, dims: Dims) -> Array:
        tensors = tensors_of(items)
        if count not in (-1, len(tensors)):
            raise InvalidArgumentError("the tensor list is not of that size", expected=count, actual=len(tensors))
        shapes = {np.shape(t) for t in tensors if t is not None}
        if len(shapes) > 1:
            raise InvalidArgumentError(
                "the elements of a tensor list differ in shape", expected="equal shapes", actual=sorted(shapes)
            )
        if not tensors:
            return xp.zeros((0, *np.shape(zeros(dims))), dtype)
        # Elements that were never set take the shape of the others.
        shape = next(iter(shapes), dims)
        return xp.stack([zeros(shape) if t is None else element(t, dims) for t in tensors])

    return stack


def _check_index(index: int, size: int) -> None:
    if not 0 <= index < size:
        raise InvalidArgumentError(f"a tensor list has no index {index}", expected=f"below {size}", actual=index)

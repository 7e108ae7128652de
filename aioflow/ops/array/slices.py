"""Ops that slice a tensor: Slice, StridedSlice with its gradient, and `tensor[...]`."""

from __future__ import annotations

import builtins
import operator
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.operators import OPERATORS
from aioflow.graph.shapes import Dimension, Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.static_value import constant_value, moving
from aioflow.graph.traits import opaque, view
from aioflow.memory.values import Array
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.selection import boolean_mask
from aioflow.ops.array.static_shapes import int_constant, known_dims, shape_of
from aioflow.ops.array.strided import MASK_ATTRS, MASKS, strided_dims, strided_index

__all__ = ["newaxis", "slice", "strided_slice"]

newaxis: Final = None


def _slice_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.dims("input")
    vectors = [ctx.require_rank("begin", 1), ctx.require_rank("size", 1)]
    # The length of either vector tells the rank, if the input does not.
    order = next((v[0] for v in vectors if v is not None and v[0] is not None), None) if dims is None else len(dims)
    if order is None:
        return None
    if any(v is not None and v[0] not in (None, order) for v in vectors):
        raise InvalidArgumentError(
            "slice needs one begin and one size per dimension", expected=f"{order} elements", actual=vectors
        )
    known = [ctx.partial_value("begin"), ctx.partial_value("size")]
    begins, sizes = ([None] * order if v is None else v.tolist() for v in known)
    given: tuple[int | None, ...] = (None,) * order if dims is None else dims
    return tuple(_slice_size(*parts) for parts in zip(given, begins, sizes, strict=True))


def _slice_size(whole: int | None, begin: int | None, size: int | None) -> int | None:
    if (size is not None and size < -1) or (begin is not None and begin < 0):
        raise InvalidArgumentError(
            "a slice has a negative bound", expected="begin >= 0 and size >= -1", actual=(begin, size)
        )
    if whole is not None and begin is not None and begin + max(size or 0, 0) > whole:
        raise InvalidArgumentError(
            "a slice is out of bounds", expected=f"begin + size <= {whole}", actual=f"{begin} + {size}"
        )
    if size != -1:
        return size
    # A size of -1 extends to the end.
    return None if whole is None or begin is None else whole - begin


def _slice_value(op: Operation, inputs: list[Array]) -> Array:
    value, begin, size = inputs
    index = [builtins.slice(b, None if s < 0 else b + s) for b, s in zip(begin.tolist(), size.tolist(), strict=True)]
    return value[tuple(index)]


define_op(
    "Slice",
    "input: T, begin: Index, size: Index",
    "output: T",
    ["T: type", "Index: {int32, int64}"],
    shape=_slice_shape,
    value=moving(_slice_value),
    rows=rows.sliced,
    traits=view(never_larger=True),
)


@gradient("Slice")
def _slice_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    source, begin = op.inputs[:2]
    dims, part, first = known_dims(source), known_dims(op.outputs[0]), constant_value(begin)
    if dims is not None and part is not None and first is not None:
        # Behind the part lies whole - part - begin.
        last = np.array(dims, np.int64) - np.array(part, np.int64) - first
        return [make("Pad", grad, int_constant(np.stack([first, last], axis=1))), None, None]
    whole, cut = (shape_of(t, begin.dtype) for t in (source, op.outputs[0]))
    after = make("Sub", make("Sub", whole, cut), begin)
    return [make("Pad", grad, make("Pack", [begin, after], axis=1)), None, None]


def slice(input_: TensorLike, begin: TensorLike, size: TensorLike, name: str | None = None) -> Tensor:
    """Return the block of sizes `size` that starts at `begin`; a size of -1 extends to the end.

    Raises:
        InvalidArgumentError: the block is not inside the tensor.
    """
    return make("Slice", input_, begin, size, name=name)


# ── StridedSlice ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _ints(value: Array | None) -> list[int] | None:
    return None if value is None else [int(v) for v in value]


def _strided_slice_shape(ctx: ShapeContext) -> Dims:
    lengths = {d[0] for d in (ctx.require_rank(n, 1) for n in ("begin", "end", "strides")) if d is not None}
    if len(lengths - {None}) > 1:
        raise InvalidArgumentError(
            "begin, end and strides differ in length",
            expected="equal lengths",
            actual=sorted(n for n in lengths if n is not None),
        )
    begin, end, strides = (_ints(ctx.value(n)) for n in ("begin", "end", "strides"))
    return strided_dims(ctx.dims("input"), begin, end, strides, ctx.attrs)


def _strided_slice_value(op: Operation, inputs: list[Array]) -> Array:
    begin, end, strides = (v.tolist() for v in inputs[1:])
    return np.asarray(inputs[0][strided_index(begin, end, strides, op.attrs)])


define_op(
    "StridedSlice",
    "input: T, begin: Index, end: Index, strides: Index",
    "output: T",
    ["T: type", "Index: {int16, int32, int64}", *MASK_ATTRS],
    shape=_strided_slice_shape,
    value=moving(_strided_slice_value),
    rows=rows.strided,
    traits=view(never_larger=True),
)
define_op(
    "StridedSliceGrad",
    "shape: Index, begin: Index, end: Index, strides: Index, dy: T",
    "output: T",
    ["T: type", "Index: {int32, int64}", *MASK_ATTRS],
    shape=lambda ctx: ctx.partial_shape("shape"),
    traits=opaque(),
)


def _masks(op: Operation) -> Attrs:
    return {mask: op.get_attr(mask) for mask in MASKS}


@gradient("StridedSlice")
def _strided_slice_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    # StridedSliceGrad has no bounds of int16.
    bounds = [make("Cast", t, DstT=dtypes.int32) if t.dtype is dtypes.int16 else t for t in op.inputs[1:]]
    result = make("StridedSliceGrad", shape_of(op.inputs[0], bounds[0].dtype), *bounds, grad, **_masks(op))
    result.set_shape(op.inputs[0].dims)
    return [result, None, None, None]


@gradient("StridedSliceGrad")
def _strided_slice_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [None, None, None, None, make("StridedSlice", grad, *op.inputs[1:4], **_masks(op))]


class SupportsSlices(Protocol):
    """A variable, to whose slices can be assigned."""

    def sliced(self, part: Tensor) -> Tensor:
        """Return the slice with a method `assign`."""


def strided_slice(
    input_: TensorLike,
    begin: TensorLike,
    end: TensorLike,
    strides: TensorLike | None = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: SupportsSlices | None = None,
    name: str | None = None,
) -> Tensor:
    """Return `input_[begin:end:strides]` with NumPy's semantics; the vectors have one element per dimension.

    Each mask is a set of bits, one per element. In the order of the parameters, a bit means: start at the beginning, go
    to the end, `...`, a new dimension, a single index that removes its dimension.

    With `var`, a variable, the result has a method `assign` that updates the slice of the variable.

    Raises:
        InvalidArgumentError: a stride is zero, or a single index is out of bounds.
    """
    first = convert_to_tensor(begin)
    if strides is None:
        length = known_dims(first)
        strides = make("OnesLike", first) if length is None else np.ones(length, first.dtype.np_dtype)
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    made = make("StridedSlice", input_, first, end, strides, name=name, **dict(zip(MASKS, masks, strict=True)))
    return made if var is None else var.sliced(made)


# ── tensor[...] ───────────────────────────────────────────────────────────────────────────────────────────────────────

_Part: TypeAlias = int | Tensor


class _Bounds:
    """The vectors and masks of a strided slice, collected from the items of an index."""

    def __init__(self) -> None:
        self.vectors: tuple[list[_Part], list[_Part], list[_Part]] = ([], [], [])
        self.masks = dict.fromkeys(MASKS, 0)

    def add(self, item: Any) -> None:
        # In every mask, an item has the bit of its position.
        bit = 1 << len(self.vectors[0])
        parts: tuple[_Part, _Part, _Part] = (0, 0, 1)
        if isinstance(item, builtins.slice):
            parts = (_index(item.start, 0), _index(item.stop, 0), _index(item.step, 1))
            self.masks["begin_mask"] |= bit if _is_open(item.start) else 0
            self.masks["end_mask"] |= bit if _is_open(item.stop) else 0
        elif item is Ellipsis:
            self.masks["ellipsis_mask"] |= bit
        elif item is None:
            self.masks["new_axis_mask"] |= bit
        else:
            position = _index(item, 0)
            # With the shrink bit set, the end is not read, so a tensor needs no node that adds 1.
            parts = (position, position if isinstance(position, Tensor) else position + 1, 1)
            self.masks["shrink_axis_mask"] |= bit
        for vector, part in zip(self.vectors, parts, strict=True):
            vector.append(part)

    def dtype(self) -> DType:
        found = {part.dtype for vector in self.vectors for part in vector if isinstance(part, Tensor)}
        # A bound beyond int32 needs int64, and so does a tensor of int64.
        large = any(isinstance(p, int) and not -(2**31) <= p < 2**31 for vector in self.vectors for p in vector)
        return dtypes.int64 if large or dtypes.int64 in found else dtypes.int32


def _is_open(bound: object) -> bool:
    return bound is None or (isinstance(bound, Dimension) and bound.value is None)


def _index(value: Any, default: int) -> _Part:
    """Return one bound: an int, or an integer scalar tensor."""
    if _is_open(value):
        return default
    # Tensors, variables and whatever else has a dtype; arrays are converted below.
    if hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic):
        tensor = convert_to_tensor(value)
        if tensor.dtype.is_integer and tensor.dims in ((), None):
            return tensor
    elif not isinstance(value, bool):
        # Every array has an `__index__`, which raises TypeError except for arrays of one integer.
        with suppress(TypeError):
            return operator.index(value)
    raise DTypeError(
        "only integers, slices, `...`, None and integer scalar tensors are valid indices",
        expected="an integer",
        actual=repr(value),
    )


def _packed(values: list[_Part], dtype: DType) -> Tensor:
    if not any(isinstance(v, Tensor) for v in values):
        return int_constant(values, dtype)
    items = [v if isinstance(v, Tensor) else int_constant(v, dtype) for v in values]
    return make("Pack", [v if v.dtype is dtype else make("Cast", v, DstT=dtype) for v in items])


def _getitem(tensor: Tensor, key: Any) -> Tensor:
    if _is_mask(key):
        return boolean_mask(tensor, key)
    bounds = _Bounds()
    for item in key if isinstance(key, tuple | list) else (key,):
        bounds.add(item)
    dtype = bounds.dtype()
    masks: Attrs = bounds.masks
    vectors = [_packed(vector, dtype) for vector in bounds.vectors]
    return make("StridedSlice", tensor, *vectors, name="strided_slice", **masks)


def _is_mask(key: object) -> bool:
    # A bool is an int for Python, but a mask as an index.
    if isinstance(key, bool | np.bool_):
        return True
    if isinstance(key, Tensor):
        return key.dtype is dtypes.bool_
    return isinstance(key, np.ndarray) and key.dtype == np.bool_


OPERATORS["getitem"] = _getitem

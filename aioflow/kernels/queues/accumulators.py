"""Kernels of conditional accumulators, dense and sparse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.kernels.blockwise import folded_rows
from aioflow.kernels.convert import as_int, as_ints
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Array, Namespace, Value
from aioflow.sync.accumulator import AccumulatorCore, SumRequest
from aioflow.sync.waiting import StepAccount, Waiting, tell, wake_all

T = TypeVar("T")


def check_required(count: int) -> None:
    """Raise InvalidArgumentError if `count` is not a valid number of gradients to wait for."""
    if count < 1:
        raise InvalidArgumentError("num_required must be positive", expected=">= 1", actual=count)


class AccumulatorResource(AccumulatorCore):
    """An accumulator of one dtype and shape.

    `kind` is the op that makes the accumulator, `reduction` the op's attribute "reduction_type".
    """

    def __init__(
        self, kind: str, name: str, dtype: DType, dims: Dims, reduction: str, add: Callable[[Any, Any], object]
    ) -> None:
        super().__init__(name, add, only_first=reduction == "FIRST")
        self.kind = kind
        self.dtype = dtype
        self.dims = dims
        self.reduction = reduction
        self.means = reduction == "MEAN"

    def check(self, kind: str, dtype: DType) -> None:
        """Raise InvalidArgumentError if the node expects an accumulator of another kind or dtype."""
        if (self.kind, self.dtype) != (kind, dtype):
            raise InvalidArgumentError(
                f"accumulator {self.name!r} is a different one",
                expected=f"{self.kind} of {self.dtype.name}",
                actual=f"{kind} of {dtype.name}",
            )

    def mean(self, total: Array, count: Array | int) -> Array:
        """Return the result for a sum of `count` gradients: their mean, or the sum if `means` is False.

        `count` is an array if it differs from row to row.
        """
        if not self.means:
            return total
        kind = self.dtype.np_dtype
        divisor = np.asarray(count).astype(kind)
        found: Array = (total // divisor if self.dtype.is_integer else total / divisor).astype(kind)
        return found

    def taking(self, required: int, finish: Callable[[Any], Value], step: StepAccount, gives_back: bool) -> Waiting:
        """Return an attempt to take the sum of at least `required` gradients.

        Raises:
            InvalidArgumentError: `required` is less than 1.
        """
        check_required(required)
        told = partial(tell, step, self.withdraw if gives_back else None)
        return Waiting(self.submit, self.withdraw, partial(SumRequest, required), self.describe, finish, told=told)


def _handle(add: Callable[[Namespace, T, T], T], binding: Binding) -> Callable[[], AccumulatorResource]:
    attrs, resources, kind = binding.attrs, binding.resources, binding.op_type
    name: str = attrs["shared_name"] or binding.name
    dtype, dims, reduction = attrs["dtype"], attrs["shape"], attrs["reduction_type"]

    def make() -> AccumulatorResource:
        return AccumulatorResource(kind, name, dtype, dims, reduction, partial(add, binding.xp))

    def handle() -> AccumulatorResource:
        found = resources.get_or_create(attrs["container"], name, make)
        wanted = (kind, dtype, dims, reduction)
        if (
            not isinstance(found, AccumulatorResource)
            or (found.kind, found.dtype, found.dims, found.reduction) != wanted
        ):
            raise InvalidArgumentError(
                f"resource {name!r} is a different one", expected=f"{kind} of {dtype.name}", actual=repr(found)
            )
        return found

    return handle


# ── dense ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_DENSE, _SPARSE = "ResourceConditionalAccumulator", "SparseConditionalAccumulator"


def _add(xp: Namespace, total: Array, gradient: Array) -> Array:
    if total.shape != gradient.shape:
        raise InvalidArgumentError("gradients differ in shape", expected=total.shape, actual=gradient.shape)
    # Not in place: the first total is the gradient of a step, which may have more readers.
    return total + gradient


binder(_DENSE, device="CPU", makes=AccumulatorResource)(partial(_handle, _add))


@binder(
    "ResourceAccumulatorApplyGradient",
    device="CPU",
    host={"local_step": as_int},
    retains=True,
    takes=AccumulatorResource,
)
def apply_gradient(binding: Binding) -> Callable[[AccumulatorResource, int, Array], None]:
    dtype = binding.input_dtypes[2]

    def apply(found: AccumulatorResource, step: int, gradient: Array) -> None:
        found.check(_DENSE, dtype)
        if not is_compatible(found.dims, gradient.shape):
            raise InvalidArgumentError(
                f"the gradient does not fit accumulator {found.name!r}",
                expected=format_dims(found.dims),
                actual=gradient.shape,
            )
        wake_all(found.apply(step, gradient))

    return apply


@binder(
    "ResourceAccumulatorTakeGradient",
    device="CPU",
    is_async=True,
    host={"num_required": as_int},
    takes=AccumulatorResource,
    takes_step=True,
)
def take_gradient(binding: Binding) -> Callable[..., Waiting]:
    dtype, gives_back = binding.output_dtypes[0], binding.gives_back

    def take(found: AccumulatorResource, required: int, *, step: StepAccount) -> Waiting:
        found.check(_DENSE, dtype)
        return found.taking(required, lambda value: found.mean(*value), step, gives_back)

    return take


# ── sparse ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class GradientRows:
    """Rows of a gradient, or of a sum of gradients.

    Attributes:
        indices: The numbers of the rows, ascending, each once.
        values: The rows.
        counts: The number of gradients in each row.
    """

    indices: Array
    values: Array
    counts: Array


def _rows(xp: Namespace, indices: Array, values: Array) -> GradientRows:
    """Return the rows of one gradient in ascending order. Rows with the same index are added up."""
    # A gradient whose rows are in order, without repetitions, needs no sort.
    if (indices[1:] <= indices[:-1]).any():
        indices, place = xp.unique(indices, return_inverse=True)
        total = xp.zeros((len(indices), *values.shape[1:]), values.dtype)
        folded_rows(xp.add, total, place, values)
        values = total
    return GradientRows(indices, values, xp.ones(len(indices), np.int64))


def _add_rows(xp: Namespace, total: GradientRows, more: GradientRows) -> GradientRows:
    if total.values.shape[1:] != more.values.shape[1:]:
        raise InvalidArgumentError(
            "gradients differ in the shape of a row", expected=total.values.shape[1:], actual=more.values.shape[1:]
        )
    indices, place = xp.unique(xp.concatenate([total.indices, more.indices]), return_inverse=True)
    values = xp.zeros((len(indices), *total.values.shape[1:]), total.values.dtype)
    counts = xp.zeros(len(indices), np.int64)
    first, second = place[: len(total.indices)], place[len(total.indices) :]
    values[first] = total.values
    counts[first] = total.counts
    # The indices of one gradient are distinct, so an addition by index loses none.
    values[second] += more.values
    counts[second] += more.counts
    return GradientRows(indices, values, counts)


binder(_SPARSE, device="CPU", makes=AccumulatorResource)(partial(_handle, _add_rows))


@binder(
    "SparseAccumulatorApplyGradient",
    device="CPU",
    host={"local_step": as_int, "gradient_shape": as_ints},
    retains=True,
    takes=AccumulatorResource,
)
def apply_sparse(binding: Binding) -> Callable[[AccumulatorResource, int, Array, Array, tuple[int, ...]], None]:
    xp, dtype, has_shape = binding.xp, binding.input_dtypes[3], binding.attrs["has_known_shape"]

    def apply(found: AccumulatorResource, step: int, indices: Array, values: Array, shape: tuple[int, ...]) -> None:
        found.check(_SPARSE, dtype)
        _check_rows(found, indices, values, shape if has_shape else None)
        wake_all(found.apply(step, _rows(xp, indices, values)))

    return apply


def _check_rows(found: AccumulatorResource, indices: Array, values: Array, shape: Dims) -> None:
    if indices.ndim != 1 or values.ndim == 0 or len(indices) != len(values):
        raise InvalidArgumentError(
            "the gradient needs one index per row", expected=f"{values.shape[:1]} indices", actual=indices.shape
        )
    if not is_compatible(found.dims, shape):
        raise InvalidArgumentError(
            f"the gradient does not fit accumulator {found.name!r}",
            expected=format_dims(found.dims),
            actual=format_dims(shape),
        )
    for dims in (found.dims, shape):
        if dims is not None:
            _check_inside(dims, indices, values)
    if len(indices) and int(indices.min()) < 0:
        raise InvalidArgumentError("an index is negative", expected=">= 0", actual=int(indices.min()))


def _check_inside(dims: tuple[int | None, ...], indices: Array, values: Array) -> None:
    """Raise InvalidArgumentError unless these can be rows of a tensor of that shape."""
    if not is_compatible(dims, (None, *values.shape[1:])):
        raise InvalidArgumentError(
            "the rows of the gradient do not fit", expected=format_dims(dims), actual=values.shape
        )
    limit = dims[0]
    if limit is not None and len(indices) and int(indices.max()) >= limit:
        raise InvalidArgumentError("an index is too large", expected=f"< {limit}", actual=int(indices.max()))


@binder(
    "SparseAccumulatorTakeGradient",
    device="CPU",
    is_async=True,
    host={"num_required": as_int},
    takes=AccumulatorResource,
    takes_step=True,
)
def take_sparse(binding: Binding) -> Callable[..., Waiting]:
    dtype, gives_back = binding.output_dtypes[1], binding.gives_back

    def take(found: AccumulatorResource, required: int, *, step: StepAccount) -> Waiting:
        found.check(_SPARSE, dtype)

        def finish(taken: tuple[GradientRows, int]) -> tuple[Array, Array, Array]:
            rows = taken[0]
            values = rows.values
            if found.means:
                # Each row has its own count, since gradients have different rows.
                values = found.mean(values, rows.counts.reshape(-1, *[1] * (values.ndim - 1)))
            # -1 stands for an unknown number of rows.
            limit = found.dims[0] if found.dims else None
            return rows.indices, values, np.array([-1 if limit is None else limit, *values.shape[1:]], np.int64)

        return found.taking(required, finish, step, gives_back)

    return take


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("ResourceAccumulatorNumAccumulated", device="CPU", fresh=True, takes=AccumulatorResource)
def num_accumulated(handle: AccumulatorResource) -> np.int32:
    return np.int32(handle.count)


@kernel("ResourceAccumulatorSetGlobalStep", device="CPU", host={"new_global_step": as_int}, takes=AccumulatorResource)
def set_global_step(handle: AccumulatorResource, new_global_step: int) -> None:
    handle.set_step(new_global_step)


@kernel("_ResourceAccumulatorRestart", device="CPU", host={"step": as_int}, takes=AccumulatorResource)
def restart(handle: AccumulatorResource, step: int) -> None:
    handle.restart(step)


@kernel("_ResourceAccumulatorGoBack", device="CPU", host={"step": as_int}, takes=AccumulatorResource)
def go_back(handle: AccumulatorResource, step: int) -> None:
    handle.go_back(step)


@kernel("_ResourceAccumulatorLimit", device="CPU", host={"num_required": as_int}, takes=AccumulatorResource)
def limit(handle: AccumulatorResource, num_required: int) -> None:
    check_required(num_required)
    wake_all(handle.set_limit(num_required))


@kernel("_ResourceAccumulatorClose", device="CPU", takes=AccumulatorResource)
def close(handle: AccumulatorResource) -> None:
    wake_all(handle.close())

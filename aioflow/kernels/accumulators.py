"""Kernels of dense conditional accumulators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.kernels.accumulator_core import AccumulatorCore, Take
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.waiting import Waiting, wake_all

__all__ = ["Accumulator"]


class Accumulator(AccumulatorCore):
    """An accumulator of arrays of one dtype and shape; `means` where it gives the mean rather than the sum."""

    def __init__(self, name: str, dtype: DType, dims: Dims, means: bool) -> None:
        super().__init__(name)
        self.dtype = dtype
        self.dims = dims
        self.means = means


@binder("ResourceConditionalAccumulator")
def accumulator(binding: Binding) -> Callable[[], Accumulator]:
    attrs, resources = binding.attrs, binding.resources
    name: str = attrs["shared_name"] or binding.name
    dtype, dims, means = attrs["dtype"], attrs["shape"], attrs["reduction_type"] == "MEAN"

    def handle() -> Accumulator:
        found = resources.get_or_create(attrs["container"], name, lambda: Accumulator(name, dtype, dims, means))
        same = isinstance(found, Accumulator) and (found.dtype, found.dims, found.means) == (dtype, dims, means)
        if not isinstance(found, Accumulator) or not same:
            raise InvalidArgumentError(
                f"resource {name!r} is another one", expected=f"an accumulator of {dtype.name}", actual=repr(found)
            )
        return found

    return handle


def _check_dtype(found: Accumulator, dtype: DType) -> None:
    if found.dtype is not dtype:
        raise InvalidArgumentError(
            f"accumulator {found.name!r} has another dtype", expected=found.dtype.name, actual=dtype.name
        )


@binder("ResourceAccumulatorApplyGradient", host={"local_step": as_int}, retains=True)
def apply_gradient(binding: Binding) -> Callable[[Any, int, Any], None]:
    dtype = binding.input_dtypes[2]

    def add(total: Any, gradient: Any) -> Any:
        if total is None:
            return gradient
        if total.shape != gradient.shape:
            raise InvalidArgumentError("gradients differ in shape", expected=total.shape, actual=gradient.shape)
        return total + gradient

    def apply(found: Accumulator, step: int, gradient: Any) -> None:
        _check_dtype(found, dtype)
        if not is_compatible(found.dims, gradient.shape):
            raise InvalidArgumentError(
                f"the gradient does not fit accumulator {found.name!r}",
                expected=format_dims(found.dims),
                actual=gradient.shape,
            )
        wake_all(found.apply(step, gradient, add))

    return apply


@binder("ResourceAccumulatorTakeGradient", is_async=True, host={"num_required": as_int})
def take_gradient(binding: Binding) -> Callable[[Any, int], Waiting]:
    dtype = binding.output_dtypes[0]

    def take(found: Accumulator, required: int) -> Waiting:
        _check_dtype(found, dtype)
        if required < 1:
            raise InvalidArgumentError("num_required must be positive", expected=">= 1", actual=required)

        def finish(value: tuple[Any, int]) -> Any:
            total, count = value
            if not found.means:
                return total
            one = dtype.np_dtype.type
            return (total // one(count) if dtype.is_integer else total / one(count)).astype(dtype.np_dtype)

        return Waiting(found.submit, found.withdraw, partial(Take, required), found.describe, finish)

    return take


@kernel("ResourceAccumulatorNumAccumulated", fresh=True)
def num_accumulated(handle: Any) -> Any:
    return np.int32(handle.count)


@kernel("ResourceAccumulatorSetGlobalStep", host={"new_global_step": as_int})
def set_global_step(handle: Any, new_global_step: int) -> None:
    handle.set_step(new_global_step)

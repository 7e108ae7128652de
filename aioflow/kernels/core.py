"""Kernels of constants, identities and grouping. Feeds replace placeholders before a step runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import Dims
from aioflow.kernels.convert import check_shape
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Value


@binder("Const", host_results=True)
def const(binding: Binding) -> Callable[[], Value]:
    # The value stays on the host; readers on another device have their own copy where they need one.
    value = binding.attrs["value"]
    if binding.is_host and value.ndim == 0 and value.dtype != object:
        value = value[()]  # arithmetic on a NumPy scalar is several times faster than on a 0-d array
    return lambda: value


@binder("Placeholder")
def placeholder(binding: Binding) -> Callable[[], Value]:
    def missing() -> NoReturn:
        raise InvalidArgumentError(
            f"you must feed a value for placeholder tensor '{binding.name}'",
            expected=f"feed_dict with a value of dtype {binding.output_dtypes[0]}",
            actual="no feed",
        )

    return missing


@kernel("NoOp", expression="None")
def no_op() -> None:
    return None


@kernel("Identity", expression="{0}", opaque=True)
@kernel("StopGradient", expression="{0}", opaque=True)
@kernel("PreventGradient", expression="{0}", opaque=True)
def identity(value: Value) -> Value:
    return value


@kernel("PlaceholderWithDefault", opaque=True)
def default(value: Value, *, shape: Dims) -> Value:
    check_shape(value, shape)
    return value


@kernel("IdentityN", opaque=True)
def identity_n(values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(values)

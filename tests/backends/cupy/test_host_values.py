"""Tests of host values: small values that describe shapes stay on the host, unless they meet a device array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS, Binding
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import converter
from aioflow.runtime.host_values import HostValues
from tests.backends.cupy.fake_arrays import FakeArray
from tests.backends.cupy.fakes import PlainDevice

BACKEND = PlainDevice()


def run(op: str, *inputs: Any, constants: tuple[Any, ...] | None = None, **attrs: Any) -> Any:
    flat = [v for i in inputs for v in (i if isinstance(i, tuple) else (i,))]
    types = {
        arg.type_attr: as_dtype((i[0] if isinstance(i, tuple) else i).dtype)
        for arg, i in zip(OPS.get(op).inputs, inputs, strict=True)
        if arg.type_attr
    }
    every = {**{n: a.default for n, a in OPS.get(op).attrs.items() if a.has_default}, **types, **attrs}
    made = tuple(every.get(a.type_attr or "") or as_dtype(flat[0].dtype) for a in OPS.get(op).outputs)
    known = constants or (None,) * len(flat)
    kernel = KERNELS.get(op, "GPU", every)
    dtypes = tuple(as_dtype(v.dtype) for v in flat)
    binding = Binding(
        op, op, every, dtypes, (None,) * len(flat), made, (None,) * len(made), known, BACKEND, ResourceManager(), {}
    )
    converters = [converter(kernel, arg.name, BACKEND) for arg in OPS.get(op).inputs]
    args = [value if c is None else c(value) for c, value in zip(converters, inputs, strict=True)]
    return BACKEND.bind(kernel, binding)[1](*args)


def on_device(value: Any) -> Any:
    return BACKEND.xp.asarray(np.asarray(value))


def test_shapes_and_values_computed_from_them_stay_on_the_host() -> None:
    shape = run("Shape", on_device(np.ones((4, 5), np.float32)), out_type=as_dtype(np.int32))
    assert isinstance(shape, np.ndarray)
    doubled = run("Mul", shape, shape)
    assert isinstance(doubled, np.ndarray)
    assert doubled.tolist() == [16, 25]
    joined = run("Pack", (doubled[0], np.int32(7)), N=2, axis=0)
    assert isinstance(joined, np.ndarray)
    assert joined.tolist() == [16, 7]


def test_constant_follows_the_other_input() -> None:
    two = np.array(2, np.int32)
    doubled = run("Mul", np.array([3, 4], np.int32), two, constants=(None, two))
    assert isinstance(doubled, np.ndarray | np.generic)
    assert doubled.tolist() == [6, 8]
    doubled = run("Mul", on_device(np.array([3, 4], np.int32)), two, constants=(None, two))
    assert isinstance(doubled, FakeArray)
    assert doubled.raw.tolist() == [6, 8]


def test_constant_is_uploaded_once_for_all_readers() -> None:
    values, value = HostValues(on_device), np.ones(3)
    first = values.constant(value)
    assert values.constant(value) is first
    assert values.constant(np.ones(3)) is not first
    kept = first.array
    del first
    assert values._held.keys() == set()  # the array is released with the last node that reads it
    assert values.constant(value).array is not kept  # a variable may have taken over `kept`


def test_host_value_in_a_captured_strand_is_rejected() -> None:
    capturing = False
    values = HostValues(on_device, lambda: capturing)
    held = values.constant(np.ones(2))
    brought: Any = values.on_device(np.ones(3))
    assert brought.shape == (3,)
    capturing = True
    with pytest.raises(FailedPreconditionError):
        values.on_device(np.ones(3))
    assert values.on_device(np.ones(2), held) is held.array  # a constant is already on the device


def test_large_host_value_is_computed_on_the_device() -> None:
    made = run("Square", np.ones(20_000))
    assert isinstance(made, FakeArray)


def test_host_value_that_meets_a_device_array_is_uploaded() -> None:
    made = run("AddV2", on_device([1.0, 2.0]), np.array([10.0, 20.0]))
    assert isinstance(made, FakeArray)
    assert made.raw.tolist() == [11, 22]
    packed = run("Pack", (on_device([1.0]), np.array([5.0])), N=2, axis=0)
    assert isinstance(packed, FakeArray)
    assert packed.raw.tolist() == [[1], [5]]


@pytest.mark.parametrize("is_strict", [True, False])
def test_device_array_is_compared_with_a_host_scalar(is_strict: bool) -> None:
    for pair in ((on_device([1.0, 2.0]), np.float64(1)), (np.array(1.0), on_device([1.0, 2.0]))):
        made = run("Equal", *pair, incompatible_shape_error=is_strict)
        assert isinstance(made, FakeArray)
        assert made.raw.tolist() == [True, False]
    unequal = run("Equal", on_device([1.0, 2.0]), np.ones(3), incompatible_shape_error=False)
    both = run("LogicalOr", unequal, on_device([True, False]))
    assert both.raw.tolist() == [True, False]


def test_host_argument_of_a_kernel_stays_on_the_host() -> None:
    before = BACKEND.waited
    made = run("Reshape", on_device(np.arange(6.0)), np.array([2, 3], np.int32))
    assert made.shape == (2, 3)
    assert BACKEND.waited == before


def test_failed_assert_shows_device_values() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\[3 4\]"):
        run("Assert", on_device(False), (on_device([3, 4]),), T=(as_dtype(np.int64),), summarize=3)


def test_shape_computed_by_the_device_is_fetched() -> None:
    made = run("Reshape", on_device(np.arange(6.0)), on_device(np.array([3, 2], np.int32)))
    assert made.shape == (3, 2)

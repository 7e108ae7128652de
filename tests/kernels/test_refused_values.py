"""Values that a kernel cannot use are refused by its own error, not by an exception of Python or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.ops.apply import make, make_op


def _table_without_a_key() -> Any:
    empty = af.constant([], af.int64)
    return make(
        "MutableDenseHashTableV2", empty, empty, key_dtype="int64", value_dtype="float32", value_shape=[], name="table"
    )


def _boxes_without_an_image() -> Any:
    return make(
        "DrawBoundingBoxes", af.placeholder_with_default(np.float32(1.0), None), np.zeros((1, 1, 4), np.float32)
    )


def _gradients_of_other_images() -> Any:
    image = af.placeholder_with_default(np.zeros((2, 2, 2, 1), np.float32), None)
    return [
        make(op, af.zeros([1, 4, 4, 1]), image, align_corners=False)
        for op in ("ResizeBilinearGrad", "ResizeBicubicGrad")
    ]


def _initial_value_of_another_shape() -> Any:
    handle = af.Variable(af.zeros([2, 2])).handle
    initial = af.placeholder_with_default(np.float32(1.0), None)
    return make("_InitializedValue", handle, initial, name="value")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_table_without_a_key, "empty_key has no elements"),
        (_boxes_without_an_image, "images have four dimensions"),
        (lambda: _gradients_of_other_images()[0], "do not fit the images"),
        (lambda: _gradients_of_other_images()[1], "do not fit the images"),
        (_initial_value_of_another_shape, "does not have the shape"),
    ],
)
async def test_kernel_refuses_unusable_values(build: Callable[[], Any], message: str) -> None:
    node = build()
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError, match=message) as raised:
            await session.run(node)
    assert raised.value.__cause__ is None


async def test_bucketize_accepts_infinite_boundaries() -> None:
    x = af.constant([-1.0, 0.0, 1.0])
    node = make("Bucketize", x, boundaries=[-np.inf, -np.inf, 0.5, np.inf, np.inf])
    async with af.Session() as session:
        np.testing.assert_array_equal(await session.run(node), [2, 2, 3])


@pytest.mark.parametrize("executor", ["strands", "reference"])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("TensorArrayReadV3", {"dtype": "float64"}),
        ("TensorArrayGatherV3", {"dtype": "float64"}),
        ("TensorArrayGatherV3", {"dtype": "float32", "element_shape": [3]}),
        ("TensorArrayConcatV3", {"dtype": "float64"}),
        ("TensorArrayConcatV3", {"dtype": "float32", "element_shape_except0": [2]}),
    ],
)
async def test_tensor_array_ops_reject_other_dtype_or_shape(op: str, attrs: dict[str, Any], executor: str) -> None:
    array = af.TensorArray("float32", size=1).unstack(np.ones((1, 2), np.float32))
    positions: dict[str, list[Any]] = {"TensorArrayReadV3": [0], "TensorArrayGatherV3": [[0]]}
    places = positions.get(op, [])
    node = make_op(op, array.handle, *places, array.flow, **attrs)
    async with af.Session(config=af.SessionConfig(executor=executor)) as session:
        with pytest.raises(InvalidArgumentError, match=r"another (dtype|shape)"):
            await session.run(node.outputs[0])

"""Products of 8-bit integers: when the conversion is fused, and that values stay the same to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize.fuse_integers import fuse_integers
from aioflow.errors import InvalidArgumentError
from tests.compiler.optimize.fused_runs import check, never, ops, pruned, run

RNG = np.random.default_rng(0)


def integers(dtype: str, *shape: int, static: list[int | None] | None = None) -> tuple[af.Tensor, Any]:
    limits = np.iinfo(dtype)
    value = RNG.integers(limits.min, limits.max + 1, shape, dtype)
    return af.placeholder(dtype, list(shape) if static is None else static), value


def weights(kind: str) -> Any:
    return RNG.integers(-128, 128, (40, 12)).astype(kind)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [None, 0.0, 128.0, "fed"])
@pytest.mark.parametrize("shape", [(0, 40), (7, 40), (2, 3, 40), (20000, 40)])
def test_conversion_is_fused_with_the_product(shape: tuple[int, ...], zero: Any, dtype: str, kind: str) -> None:
    x, vx = integers(dtype, *shape, static=[None, *shape[1:]])
    feeds = {x: vx}
    if zero == "fed":
        zero = af.placeholder(kind, [])
        feeds[zero] = np.asarray(3, kind)
    converted = af.cast(x, kind)
    made = af.matmul(converted if zero is None else converted - zero, weights(kind))
    name = "_IntegerMatMul" if len(shape) == 2 else "_IntegerBatchMatMulV2"
    assert ops(check(fuse_integers, [made], feeds)) == {name: 1}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_conversion_of_weights_is_fused(dtype: str) -> None:
    x, vx = integers("uint8", 7, 40)
    _, fixed = integers(dtype, 40, 12)
    made = af.matmul(af.cast(x, "float64") - 3.0, af.cast(af.constant(fixed), "float64"))
    assert ops(check(fuse_integers, [made], {x: vx})) == {"_IntegerMatMul": 1}


def test_conversion_that_another_node_reads_stays() -> None:
    x, vx = integers("uint8", 7, 40)
    converted = af.cast(x, "float32") - 3.0
    made = af.matmul(converted, weights("float32"))
    after = check(fuse_integers, [made, af.reduce_sum(converted)], {x: vx})
    assert ops(after) == {"_IntegerMatMul": 1, "Cast": 1, "Sub": 1, "Sum": 1}
    several = [af.matmul(converted, weights("float32")) for _ in range(3)]
    assert ops(check(fuse_integers, several, {x: vx})) == {"_IntegerMatMul": 3}


def test_other_products_stay() -> None:
    (x, vx), (wide, vwide), (v, vv) = integers("uint8", 7, 40), integers("int32", 7, 40), integers("int8", 40, 12)
    w, row = af.placeholder("float32", [40, 12]), af.constant(np.ones(40, np.float32))
    converted = af.cast(x, "float32")
    fixed = weights("float32")
    with af.device("/job:worker/task:1"):
        elsewhere = af.cast(x, "float32")
    for made, feeds in (
        (af.matmul(converted, w), {x: vx, w: fixed}),  # the weights are not constant
        (af.matmul(converted, af.cast(v, "float32")), {x: vx, v: vv}),
        (af.matmul(converted - row, fixed), {x: vx}),  # several zero points
        (af.matmul(1.0 - converted, fixed), {x: vx}),
        (af.matmul(af.cast(wide, "float32"), fixed), {wide: vwide}),
        (af.matmul(converted, fixed.T.copy(), transpose_b=True), {x: vx}),
        (af.matmul(af.cast(x, "float16"), fixed.astype(np.float16)), {x: vx}),
    ):
        assert ops(check(fuse_integers, [made], feeds)).keys() & {"_IntegerMatMul", "_IntegerBatchMatMulV2"} == set()
    assert ops(fuse_integers(pruned([af.matmul(elsewhere, fixed)], [x]), never))["MatMul"] == 1
    with af.control_dependencies([af.no_op()]):
        late = af.cast(x, "float32")
    assert ops(check(fuse_integers, [af.matmul(late, fixed)], {x: vx}))["MatMul"] == 1


def test_error_names_the_product() -> None:
    x = af.placeholder("uint8", [None, None])
    made = af.matmul(af.cast(x, "float32"), weights("float32"), name="mine")
    after = fuse_integers(pruned([made], [x]), never)
    assert "_IntegerMatMul" in ops(after)
    with pytest.raises(InvalidArgumentError) as failed:
        run(after, {x: np.ones((3, 39), np.uint8)})
    assert (failed.value.node, failed.value.op_type) == ("mine", "MatMul")

"""The custom ops of `examples/custom_op`."""

from __future__ import annotations

import numpy as np
import pytest

import aioflow as af
from aioflow.testing.evaluate import evaluate
from examples.custom_op import softsquare


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_in_every_dtype(dtype: str) -> None:
    x = af.placeholder(dtype, [None, 2])
    y = softsquare.soft_square(x, scale=3.0)
    assert y.get_shape().as_list() == [None, 2]
    values = np.array([[0.0, 1.0], [-1.0, 4.0]])
    (found,) = evaluate([y], {x: values.astype(x.dtype.np_dtype)})
    assert found.dtype == x.dtype.np_dtype
    np.testing.assert_allclose(found.astype(np.float64), [[0, 1], [1, 6]], rtol=1e-2)


def test_custom_ops_are_found_in_raw_ops() -> None:
    assert "SoftSquare" in dir(af.raw_ops)
    assert evaluate([af.raw_ops.SoftSquare(x=np.float64(1.0), scale=3.0)])[0] == 1.0
    with pytest.raises(af.errors.InvalidArgumentError):
        softsquare.soft_square([1, 2])


async def test_a_bounded_loss_ignores_the_outlier() -> None:
    assert 1.0 < await softsquare.fit() < 1.3


async def test_pauses_of_one_step_overlap() -> None:
    assert await softsquare.wait_for_many(count=40, seconds=0.25) < 40 * 0.25 / 4


async def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    await softsquare.main()
    assert "middle of" in capsys.readouterr().out

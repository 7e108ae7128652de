"""Moving averages and the global step: names, errors and collections. tests/parity checks the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients


def test_averages_of_variables_start_at_their_value() -> None:
    v = aioflow.Variable([2.0, 4.0], name="v")
    ema = aioflow.train.ExponentialMovingAverage(0.75)
    assert ema.average(v) is None
    assert ema.average_name(v) == "v/ExponentialMovingAverage"
    moved = ema.apply()
    assert aioflow.moving_average_variables() == [v]
    kept: dict[str, Any] = {"resources": ResourceManager(), "state": {}}
    evaluate([], targets=[v.initializer], **kept)
    average = ema.average(v)
    assert average is not None
    evaluate([], targets=[average.initializer], **kept)
    evaluate([], targets=[v.assign([6.0, 8.0]).op], **kept)
    evaluate([], targets=[moved], **kept)
    assert evaluate([average.read_value()], **kept)[0].tolist() == [3.0, 5.0]
    again = ema.apply([v])
    assert again is not moved
    assert len([x for x in aioflow.global_variables() if "Average" in x.name]) == 1


def test_averages_need_floating_values() -> None:
    counter = aioflow.Variable(1, name="counter", trainable=False)
    with pytest.raises(DTypeError):
        aioflow.train.ExponentialMovingAverage(0.9).apply([counter])
    with pytest.raises(InvalidArgumentError):
        aioflow.train.ExponentialMovingAverage(0.9).average("v")  # type: ignore[arg-type]  # wrong on purpose


def test_variables_to_restore() -> None:
    v = aioflow.Variable([2.0], name="v")
    other = aioflow.Variable([2.0], name="other", trainable=False)
    ema = aioflow.train.ExponentialMovingAverage(0.9, name="EMA")
    assert ema.name == "EMA"
    assert ema.variables_to_restore() == {"v/EMA": v, "other": other}
    assert ema.variables_to_restore([other]) == {"other/EMA": other, "v": v}


def test_names_depend_on_the_open_scopes() -> None:
    v = aioflow.get_variable("v", [2])
    loss = aioflow.reduce_sum(v * v)
    ema = aioflow.train.ExponentialMovingAverage(0.9, name="EMA")
    with aioflow.name_scope("names"):
        assert ema.average_name(v) == "names/v/EMA"
    with aioflow.variable_scope("train"):
        assert ema.average_name(v) == "train/v/EMA"
        ema.apply([v])
        aioflow.train.AdamOptimizer(name="A").minimize(loss)
        aioflow.train.AdamOptimizer(name="A").minimize(loss)
        step = aioflow.train.create_global_step()
    assert ema.average_name(v) == "train/v/EMA"
    assert step.op.name == "train/global_step"
    slots = [w.op.name for w in aioflow.global_variables() if "/A" in w.op.name]
    assert slots == ["train/v/A", "train/v/A_1", "train/v/A_2", "train/v/A_3"]


def test_slots_are_not_created_in_a_reusing_scope() -> None:
    with aioflow.variable_scope("model"):
        v = aioflow.get_variable("v", [2])
    with aioflow.variable_scope("model", reuse=True), pytest.raises(InvalidArgumentError):
        aioflow.train.MomentumOptimizer(0.1, 0.9).minimize(aioflow.reduce_sum(v))


def test_global_step_is_created_once_and_found() -> None:
    assert aioflow.train.get_global_step() is None
    step = aioflow.train.get_or_create_global_step()
    assert step.op.name == "global_step"
    assert step.dtype.name == "int64"
    assert not step.trainable
    assert aioflow.train.get_or_create_global_step() is step
    assert aioflow.train.get_global_step(step.graph) is step
    with pytest.raises(AlreadyExistsError):
        aioflow.train.create_global_step()
    aioflow.add_to_collection(aioflow.GraphKeys.GLOBAL_STEP, aioflow.Variable(0, name="second"))
    with pytest.raises(InvalidArgumentError):
        aioflow.train.get_global_step()


def test_variable_named_global_step_is_found() -> None:
    mine = aioflow.Variable(np.int32(3), name="global_step", trainable=False)
    assert aioflow.train.get_global_step() is mine
    with pytest.raises(DTypeError):
        aioflow.train.assert_global_step(aioflow.constant(1.0))
    with pytest.raises(InvalidArgumentError):
        aioflow.train.assert_global_step(aioflow.constant([1]))


def test_global_step_name_ignores_the_name_scope() -> None:
    with aioflow.name_scope("inner"):
        assert aioflow.train.create_global_step().op.name == "global_step"


async def test_global_step_is_a_coroutine() -> None:
    class Recorder:
        async def run(self, fetch: Any) -> Any:
            return np.int64(7)

    session: Any = Recorder()
    assert await aioflow.train.global_step(session, aioflow.train.create_global_step()) == 7


def test_decays_need_a_step_and_matching_values() -> None:
    with pytest.raises(InvalidArgumentError):
        aioflow.train.exponential_decay(0.1, None, 10, 0.9)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidArgumentError):
        aioflow.train.piecewise_constant(aioflow.constant(1), [1, 2], [0.1, 0.2])
    with pytest.raises(DTypeError):
        aioflow.train.piecewise_constant(aioflow.constant(1), [1.5], [0.1, 0.2])


def test_noisy_decay_has_the_expected_variance() -> None:
    step = aioflow.placeholder("int64", [])
    rate = aioflow.train.noisy_linear_cosine_decay(1.0, step, 100, initial_variance=0.25, variance_decay=0.5, beta=0.0)
    plain = aioflow.train.linear_cosine_decay(1.0, step, 100, beta=0.0)
    kept: dict[str, Any] = {"resources": ResourceManager(), "state": {}}
    drawn = [evaluate([rate], {step: 3}, **kept)[0] for _ in range(400)]
    (expected,) = evaluate([plain], {step: 3}, **kept)
    factor = 0.5 * (1 + np.cos(np.pi * 0.03))
    assert abs(np.mean(drawn) - expected) < 0.06
    assert abs(np.std(drawn) - np.sqrt(0.25 / 2.0) * factor) < 0.05


def test_clipping_rejects_tensors_instead_of_lists() -> None:
    x = aioflow.constant([1.0])
    with pytest.raises(DTypeError):
        aioflow.global_norm(x)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(DTypeError):
        aioflow.clip_by_global_norm(x, 1.0)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidArgumentError):
        aioflow.global_norm([None])


def test_clipping_of_slices() -> None:
    slices = aioflow.IndexedSlices(aioflow.constant([[3.0, 4.0]]), aioflow.constant([1]), aioflow.constant([2, 2]))
    (first, nothing), norm = aioflow.clip_by_global_norm([slices, None], 2.5)
    single = aioflow.clip_by_norm(slices, 2.5)
    assert nothing is None
    assert isinstance(first, aioflow.IndexedSlices)
    assert isinstance(single, aioflow.IndexedSlices)
    values = evaluate([first.values, single.values, norm])
    assert np.allclose(values[0], [[1.5, 2.0]])
    assert np.allclose(values[1], [[1.5, 2.0]])
    assert values[2] == 5.0


@pytest.mark.parametrize("size", [0.3, 3.0])
def test_gradients_of_clipping(size: float) -> None:
    x = np.random.default_rng(2).standard_normal((3, 2)) * size
    check_gradients(lambda t: aioflow.clip_by_norm(t, 1.5), x)
    check_gradients(lambda t: aioflow.clip_by_norm(t, 0.7, axes=[1]), x)
    check_gradients(lambda t: aioflow.clip_by_average_norm(t, 0.2), x)
    check_gradients(lambda t, u: aioflow.clip_by_global_norm([t, u], 1.2)[0], x, x[0])
    check_gradients(lambda t, u: aioflow.global_norm([t, u]), x, x[0])

"""Optimizers: names, errors and atomic updates. tests/parity checks their values."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from aioflow.graph import dtypes
from aioflow.kernels import resources
from aioflow.kernels.resources import ResourceManager, VariableResource
from aioflow.kernels.variables import optimizer_updates as training
from aioflow.kernels.variables.optimizer_rules import RULES
from aioflow.ops.apply import make_op
from aioflow.testing.evaluate import evaluate
from aioflow.train.optimizer import Optimizer


class Steps:
    """Several steps on the same variables."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {"resources": ResourceManager(), "state": {}}

    def do(self, *targets: Any, **feeds: Any) -> None:
        evaluate([], targets=targets, **self._kept)

    def get(self, *tensors: Any) -> Any:
        return evaluate([t.read_value() if isinstance(t, aioflow.Variable) else t for t in tensors], **self._kept)


def quadratic(*variables: Any) -> Any:
    return aioflow.add_n([aioflow.reduce_sum(v * v) for v in variables])


ALL: dict[str, Callable[[], Optimizer]] = {
    "GradientDescent": lambda: aioflow.train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: aioflow.train.MomentumOptimizer(0.1, 0.9),
    "Adagrad": lambda: aioflow.train.AdagradOptimizer(0.1),
    "AdagradDA": lambda: aioflow.train.AdagradDAOptimizer(0.1, aioflow.train.get_or_create_global_step()),
    "Adadelta": lambda: aioflow.train.AdadeltaOptimizer(1.0),
    "Adam": lambda: aioflow.train.AdamOptimizer(0.1),
    "RMSProp": lambda: aioflow.train.RMSPropOptimizer(0.1, centered=True),
    "Ftrl": lambda: aioflow.train.FtrlOptimizer(0.1),
    "ProximalGradientDescent": lambda: aioflow.train.ProximalGradientDescentOptimizer(0.1),
    "ProximalAdagrad": lambda: aioflow.train.ProximalAdagradOptimizer(0.1),
}


@pytest.mark.parametrize("name", ALL)
def test_names_slots_and_the_global_step(name: str) -> None:
    w = aioflow.Variable([1.0, -2.0], name="layer/w")
    optimizer = ALL[name]()
    step = aioflow.train.get_or_create_global_step()
    train = optimizer.minimize(quadratic(w), global_step=step)
    assert train.name == optimizer.get_name() == name
    slots: list[Any] = [optimizer.get_slot(w, n) for n in optimizer.get_slot_names()]
    assert sorted(s.op.name for s in slots) == [f"layer/w/{name}" + (f"_{i}" if i else "") for i in range(len(slots))]
    assert all(not s.trainable and s.shape == w.shape for s in slots)
    assert set(slots) <= set(aioflow.global_variables())
    assert optimizer.get_slot(w, "nothing") is None
    assert train in aioflow.get_collection(aioflow.GraphKeys.TRAIN_OP)
    steps = Steps()
    steps.do(aioflow.global_variables_initializer())
    (before,) = steps.get(quadratic(w))
    for _ in range(3):
        steps.do(train)
    after, count = steps.get(quadratic(w), step)
    assert after < before
    assert count == 3
    assert count.dtype == np.int64


def test_two_optimizers_on_one_variable_have_separate_slots() -> None:
    w = aioflow.Variable([1.0], name="w")
    first, second = aioflow.train.AdamOptimizer(0.1), aioflow.train.AdamOptimizer(0.1)
    first.minimize(quadratic(w))
    second.minimize(quadratic(w))
    first.minimize(quadratic(w) * 2.0)  # a second minimize adds no slots
    assert [v.op.name for v in first.variables()] == ["beta1_power", "beta2_power", "w/Adam", "w/Adam_1"]
    assert [v.op.name for v in second.variables()] == ["beta1_power_1", "beta2_power_1", "w/Adam_2", "w/Adam_3"]
    own = aioflow.train.AdamOptimizer(0.1, use_own_namescope_for_non_slot_vars=True, name="Mine")
    own.minimize(quadratic(w))
    assert [v.op.name for v in own.variables()] == ["Mine/beta1_power", "Mine/beta2_power", "w/Mine", "w/Mine_1"]


def test_var_list_and_missing_gradients() -> None:
    a, b = aioflow.Variable([1.0], name="a"), aioflow.Variable([1.0], name="b")
    optimizer = aioflow.train.GradientDescentOptimizer(0.5)
    pairs = optimizer.compute_gradients(quadratic(a), [[a], b])
    assert [v for _, v in pairs] == [a, b]
    assert pairs[1][0] is None
    steps = Steps()
    steps.do(aioflow.global_variables_initializer())
    steps.do(optimizer.apply_gradients([*pairs, ([3.0], b)]))
    assert [v.tolist() for v in steps.get(a, b)] == [[0.0], [-0.5]]
    callable_loss = optimizer.compute_gradients(lambda: quadratic(a), a)
    assert callable_loss[0][1] is a


def test_optimizers_reject_invalid_arguments() -> None:
    optimizer = aioflow.train.GradientDescentOptimizer(0.1)
    with pytest.raises(InvalidArgumentError):
        optimizer.minimize(aioflow.constant(1.0))
    w = aioflow.Variable([1.0], name="w")
    with pytest.raises(InvalidArgumentError) as caught:
        optimizer.minimize(aioflow.constant(1.0))
    assert caught.value.actual == ["w:0"]
    counter = aioflow.Variable([1], name="counter", trainable=False)
    with pytest.raises(DTypeError):
        optimizer.minimize(aioflow.reduce_sum(counter.value()), var_list=[counter])
    with pytest.raises(InvalidArgumentError):
        optimizer.compute_gradients(quadratic(w), gate_gradients=7)
    with pytest.raises(InvalidArgumentError):
        optimizer.apply_gradients([])
    with pytest.raises(InvalidArgumentError):
        optimizer.apply_gradients([(None, w)])
    with pytest.raises(DTypeError):
        optimizer.apply_gradients([(aioflow.constant([1.0], "float64"), w)])
    with pytest.raises(DTypeError):
        optimizer.apply_gradients([(aioflow.constant([1.0]), w.value())])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(InvalidArgumentError) as shapes:
        optimizer.apply_gradients([(aioflow.constant([1.0, 2.0]), w)])
    assert shapes.value.expected == "(1,)"
    with pytest.raises(DTypeError):
        optimizer.compute_gradients(quadratic(w), var_list=["w"])
    with pytest.raises(InvalidArgumentError):
        Optimizer(False, "")
    with pytest.raises(UnimplementedError):
        Optimizer(False, "Abstract").minimize(quadratic(w))


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.AdagradOptimizer(0.1, initial_accumulator_value=0.0),
        lambda t: t.AdagradDAOptimizer(0.1, 0, initial_gradient_squared_accumulator_value=0.0),
        lambda t: t.ProximalAdagradOptimizer(0.1, initial_accumulator_value=-1.0),
        lambda t: t.ProximalAdagradOptimizer(0.1, l1_regularization_strength=-1.0),
        lambda t: t.ProximalGradientDescentOptimizer(0.1, l2_regularization_strength=-1.0),
        lambda t: t.FtrlOptimizer(0.1, learning_rate_power=0.5),
        lambda t: t.FtrlOptimizer(0.1, l1_regularization_strength=-0.5),
    ],
)
def test_hyperparameters_out_of_range_are_rejected(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make(aioflow.train)


NO_NUMBERS = {
    "a rate of text": lambda t: t.GradientDescentOptimizer("a"),
    "a rate of truth": lambda t: t.AdagradOptimizer(True),
    "a rate of text from a function": lambda t: t.AdamOptimizer(lambda: "a"),
    "no rate": lambda t: t.RMSPropOptimizer(None),
    "a momentum of text": lambda t: t.MomentumOptimizer(0.1, "a"),
    "a beta of text": lambda t: t.AdamOptimizer(0.1, beta1="a"),
}


@pytest.mark.parametrize("case", NO_NUMBERS)
def test_hyperparameters_must_be_numbers(case: str) -> None:
    w = aioflow.Variable([1.0], name="w")
    with pytest.raises(DTypeError):
        NO_NUMBERS[case](aioflow.train).minimize(quadratic(w))


def test_invalid_hyperparameter_tensor_fails_at_run_time() -> None:
    w = aioflow.Variable([1.0], name="w")
    rate = aioflow.placeholder_with_default(aioflow.constant(-1.0), [])
    train = aioflow.train.FtrlOptimizer(rate).minimize(quadratic(w))
    steps = Steps()
    steps.do(aioflow.global_variables_initializer())
    with pytest.raises(InvalidArgumentError) as caught:
        steps.do(train)
    assert caught.value.node == "Ftrl/update_w/ResourceApplyFtrl"
    assert steps.get(w)[0].tolist() == [1.0]


def test_update_of_uninitialized_variables_fails() -> None:
    w = aioflow.Variable([1.0], name="w")
    train = aioflow.train.AdamOptimizer().apply_gradients([(aioflow.constant([1.0]), w)])
    steps = Steps()
    with pytest.raises(FailedPreconditionError) as caught:
        steps.do(train)
    assert "uninitialized" in str(caught.value)
    steps.do(w.initializer)
    with pytest.raises(FailedPreconditionError):
        steps.do(train)
    assert steps.get(w)[0].tolist() == [1.0]


def test_sparse_updates_touch_only_their_rows() -> None:
    table = aioflow.Variable(np.ones((4, 2), np.float32), name="table")
    loss = aioflow.reduce_sum(table.sparse_read([2, 0, 2]))
    train = aioflow.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
    assert "ResourceSparseApplyMomentum" in {op.type for op in table.graph.get_operations()}
    steps = Steps()
    steps.do(aioflow.global_variables_initializer())
    steps.do(train)
    assert steps.get(table)[0][:, 0].tolist() == [0.5, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("index", [-1, 4])
def test_sparse_update_rejects_rows_out_of_range(index: int) -> None:
    table = aioflow.Variable(np.ones((4, 2), np.float32), name="table")
    slices = aioflow.IndexedSlices(
        aioflow.constant([[1.0, 1.0]]),
        aioflow.placeholder_with_default(aioflow.constant([index]), [1]),
        aioflow.constant([4, 2]),
    )
    train = aioflow.train.AdagradOptimizer(0.5).apply_gradients([(slices, table)])
    steps = Steps()
    steps.do(aioflow.global_variables_initializer())
    with pytest.raises(InvalidArgumentError):
        steps.do(train)
    assert steps.get(table)[0].tolist() == np.ones((4, 2)).tolist()


def test_sparse_updates_reject_a_constraint() -> None:
    table = aioflow.Variable(np.ones((4, 2), np.float32), name="table", constraint=lambda t: t)
    with pytest.raises(UnimplementedError):
        aioflow.train.AdagradOptimizer(0.5).minimize(aioflow.reduce_sum(table.sparse_read([1])))


def test_gradient_of_unknown_shape_is_checked_at_run_time() -> None:
    w = aioflow.Variable([1.0, 2.0], name="w")
    gradient = aioflow.placeholder("float32")
    train = aioflow.train.AdamOptimizer(0.1).apply_gradients([(gradient, w)])
    kept: dict[str, Any] = {"resources": ResourceManager(), "state": {}}
    evaluate([], targets=[aioflow.global_variables_initializer()], **kept)
    with pytest.raises(InvalidArgumentError) as caught:
        evaluate([], {gradient: [1.0]}, targets=[train], **kept)
    assert caught.value.expected == (2,)
    assert evaluate([w.read_value()], **kept)[0].tolist() == [1.0, 2.0]


def test_user_defined_optimizer() -> None:
    class Sign(Optimizer):
        def __init__(self) -> None:
            super().__init__(False, "Sign")

        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            return handle.assign_sub(aioflow.sign(grad), read_value=False)

    w = aioflow.Variable([3.0, -2.0], name="w")
    train = Sign().minimize(quadratic(w))
    steps = Steps()
    steps.do(w.initializer)
    steps.do(train)
    assert steps.get(w)[0].tolist() == [2.0, -1.0]


# ── update kernels ───────────────────────────────────────────────────────────────────────────────────────────────────


def held(values: Any) -> Any:
    found = []
    for i, value in enumerate(values):
        variable = VariableResource(f"v{i}", dtypes.as_dtype(value.dtype), value.shape)
        variable.assign(value)
        found.append(variable)
    return found


def dense_update(name: Any, variables: Any, gradient: Any, settings: Any) -> None:
    rule = RULES[name]
    h = settings if rule.prepare is None else rule.prepare(np, settings)
    resources.update_together(
        variables, lambda values, outs: training._dense(training.in_passes, np, rule, h, gradient, values, outs)
    )


ADAM = {
    k: np.float32(v)
    for k, v in {
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.99,
        "beta1_power": 0.9,
        "beta2_power": 0.99,
        "epsilon": 1e-8,
    }.items()
} | {"use_nesterov": False}


@pytest.mark.parametrize("size", [10, training._BLOCK, training._WHOLE + 1, training._WHOLE + training._BLOCK + 17])
def test_blockwise_update_equals_a_single_pass(size: int) -> None:
    rng = np.random.default_rng(size)
    arrays = [rng.random(size, np.float32) for _ in range(4)]
    variables = held([a.copy() for a in arrays[:3]])
    dense_update("Adam", variables, arrays[3], ADAM)
    var, m, v, g = (a.astype(np.float64) for a in arrays)
    m += 0.1 * (g - m)
    v += 0.01 * (g * g - v)
    var -= 0.1 * np.sqrt(1 - 0.99) / (1 - 0.9) * m / (np.sqrt(v) + 1e-8)
    for variable, expected in zip(variables, (var, m, v), strict=True):
        assert np.allclose(variable.read(), expected, rtol=1e-4, atol=1e-6)
        assert variable.read().dtype == np.float32


async def test_large_variable_is_updated_in_blocks() -> None:
    size = 2 * training._WHOLE
    variable, gradient = aioflow.Variable(aioflow.zeros([size])), aioflow.placeholder("float32", [size])
    train = aioflow.train.RMSPropOptimizer(0.1).apply_gradients([(gradient, variable)])
    async with aioflow.Session() as session:
        await session.run(aioflow.global_variables_initializer())
        step, ones = session.make_callable(train, [gradient]), np.ones(size, np.float32)
        await step(ones)
        tracemalloc.start()
        try:
            await step(ones)
            assert tracemalloc.get_traced_memory()[1] < variable.dtype.size * size / 2
        finally:
            tracemalloc.stop()


def test_updates_are_in_place_unless_the_array_is_shared() -> None:
    gradient = np.ones((3, 2), np.float32)
    settings = {"alpha": np.float32(0.5)}
    (variable,) = held([np.zeros((3, 2), np.float32)])
    where = variable.read().ctypes.data
    dense_update("GradientDescent", [variable], gradient, settings)
    assert variable.read().ctypes.data == where
    snapshot = variable.read()
    dense_update("GradientDescent", [variable], gradient, settings)
    assert snapshot[0, 0] == -0.5
    assert variable.read()[0, 0] == -1.0
    assert variable.read() is not snapshot


@pytest.mark.parametrize("order", ["F", "strided"])
def test_update_of_non_contiguous_arrays(order: str) -> None:
    size = training._WHOLE + 6
    base = np.arange(2 * size, dtype=np.float32).reshape(2, size)
    value = np.asfortranarray(base) if order == "F" else np.repeat(base, 2, axis=1)[:, ::2]
    (variable,) = held([value])
    gradient = np.asfortranarray(np.ones((2, size), np.float32))
    dense_update("GradientDescent", [variable], gradient, {"alpha": np.float32(1.0)})
    assert np.array_equal(variable.read(), base - 1.0)


@pytest.mark.parametrize(
    ("initial", "dtype"),
    [
        (0, "float64"),
        ([1, 2], "float64"),
        (lambda: 3, "float64"),
        (np.zeros(2, np.float32), "float32"),
        (lambda: np.zeros(2), "float64"),
    ],
)
def test_slot_of_values_without_a_dtype_has_that_of_its_variable(initial: Any, dtype: str) -> None:
    v = aioflow.Variable([1.0, 2.0], dtype="float64", name="v")
    slot = aioflow.train.GradientDescentOptimizer(0.1)._get_or_make_slot(v, initial, "slot", "Slot")
    assert (slot.name, slot.dtype.name) == ("v/Slot:0", dtype)


def test_variable_cannot_be_its_own_slot() -> None:
    (variable,) = held([np.zeros(3, np.float32)])
    with pytest.raises(InvalidArgumentError):
        resources.update_together([variable, variable], lambda values, outs: values)


def test_concurrent_updates_are_serialized() -> None:
    size, rounds, workers = 50_000, 40, 4
    variables = held([np.zeros(size, np.float64), np.zeros(size, np.float64)])
    gradient = np.ones(size, np.float64)
    settings = {"lr": np.float64(1.0), "momentum": np.float64(1.0), "use_nesterov": False}
    torn: list[np.ndarray] = []

    def work(flip: bool) -> None:
        rule = RULES["Momentum"]
        ordered = variables[::-1] if flip else variables
        for _ in range(rounds):
            resources.update_together(
                ordered,
                lambda values, outs: (
                    training._dense(training.in_passes, np, rule, settings, gradient, values[::-1], outs[::-1])[::-1]
                    if flip
                    else training._dense(training.in_passes, np, rule, settings, gradient, values, outs)
                ),
            )
            seen = variables[0].read()
            if seen.min() != seen.max():
                torn.append(seen)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not torn
    total = rounds * workers
    assert np.all(variables[1].read() == total)
    assert np.all(variables[0].read() == -total * (total + 1) / 2)


def test_update_ops_check_their_shapes_when_built() -> None:
    w = aioflow.Variable([1.0, 2.0], name="w")
    with pytest.raises(InvalidArgumentError):
        make_op("ResourceApplyGradientDescent", w.handle, [0.1], [1.0, 2.0])
    with pytest.raises(InvalidArgumentError):
        make_op("ResourceSparseApplyAdagrad", w.handle, w.handle, 0.1, [1.0], [[0]])
    short = aioflow.Variable([1.0], name="short")
    with pytest.raises(InvalidArgumentError):
        make_op("ResourceApplyMomentum", w.handle, short.handle, 0.1, [1.0, 2.0], 0.9)
    with pytest.raises(DTypeError):
        make_op("ResourceApplyGradientDescent", w.value(), 0.1, [1.0, 2.0])

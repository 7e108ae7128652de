"""Optimizers, learning rates, clipping and moving averages against `tensorflow.compat.v1`, over several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.graph.opdef import OPS
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import apply_op
from aioflow.testing.evaluate import evaluate

STEPS = 6


class Ours:
    """aioflow's steps over one set of variables, by the reference executor."""

    module = aioflow

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {"resources": ResourceManager(), "state": {}}

    def run(self, fetches: Any, feeds: Any = None) -> Any:
        return evaluate(list(fetches), feeds, **self._kept)

    def do(self, *targets: Any, feeds: Any = None) -> None:
        evaluate([], feeds, targets=targets, **self._kept)


class Theirs:
    """TensorFlow's steps over one set of variables, by a session."""

    def __init__(self, tf: Any) -> None:
        self.module = tf
        self._session = tf.Session()

    def run(self, fetches: Any, feeds: Any = None) -> Any:
        return self._session.run(fetches, feeds)

    def do(self, *targets: Any, feeds: Any = None) -> None:
        self._session.run(list(targets), feeds)


def in_both(tf: Any, scenario: Any) -> Any:
    """Return the results of `scenario(module, system)` in TensorFlow and in aioflow."""
    found = []
    for make in (lambda: Theirs(tf), Ours):
        module = aioflow if make is Ours else tf
        with module.Graph().as_default():
            found.append(scenario(module, make()))
    return found


def same(theirs: Any, ours: Any, rtol: Any = 1e-5, atol: Any = 1e-6) -> None:
    assert list(ours) == list(theirs)
    for key, expected in theirs.items():
        mine = np.asarray(ours[key])
        assert mine.dtype == np.asarray(expected).dtype, key
        np.testing.assert_allclose(
            mine.astype(np.float64), np.asarray(expected).astype(np.float64), rtol=rtol, atol=atol, err_msg=str(key)
        )


# ── whole optimizers ─────────────────────────────────────────────────────────────────────────────────────────────────

OPTIMIZERS = {
    "gradient_descent": lambda t: t.GradientDescentOptimizer(0.05),
    "momentum": lambda t: t.MomentumOptimizer(0.02, 0.9),
    "nesterov": lambda t: t.MomentumOptimizer(0.02, 0.9, use_nesterov=True),
    "adagrad": lambda t: t.AdagradOptimizer(0.3),
    "adagrad_da": lambda t: t.AdagradDAOptimizer(0.3, t.get_or_create_global_step()),
    "adagrad_da_regularized": lambda t: t.AdagradDAOptimizer(
        0.3,
        t.get_or_create_global_step(),
        initial_gradient_squared_accumulator_value=0.2,
        l1_regularization_strength=0.05,
        l2_regularization_strength=0.1,
    ),
    "adadelta": lambda t: t.AdadeltaOptimizer(1.0, rho=0.9, epsilon=1e-6),
    "adam": lambda t: t.AdamOptimizer(0.1),
    "adam_epsilon": lambda t: t.AdamOptimizer(lambda: 0.1, beta1=0.5, beta2=0.8, epsilon=0.1),
    "rms_prop": lambda t: t.RMSPropOptimizer(0.05, momentum=0.5),
    "rms_prop_centered": lambda t: t.RMSPropOptimizer(0.05, decay=0.8, momentum=0.3, epsilon=1e-3, centered=True),
    "ftrl": lambda t: t.FtrlOptimizer(0.5),
    "ftrl_regularized": lambda t: t.FtrlOptimizer(
        0.5, initial_accumulator_value=0.2, l1_regularization_strength=0.3, l2_regularization_strength=0.1, beta=0.2
    ),
    "ftrl_power": lambda t: t.FtrlOptimizer(0.5, learning_rate_power=-0.3, l1_regularization_strength=0.1),
    "ftrl_shrinkage": lambda t: t.FtrlOptimizer(0.5, l2_shrinkage_regularization_strength=0.2),
    "proximal_gradient_descent": lambda t: t.ProximalGradientDescentOptimizer(
        0.05, l1_regularization_strength=0.5, l2_regularization_strength=0.2
    ),
    "proximal_adagrad": lambda t: t.ProximalAdagradOptimizer(
        0.3, l1_regularization_strength=0.2, l2_regularization_strength=0.1
    ),
}


def training(make: Any, dtype: Any, kind: Any) -> Any:
    """Return a scenario that trains a matrix, a table with repeated gathered rows, and a scalar."""

    def scenario(m: Any, system: Any) -> Any:
        rng = np.random.default_rng(3)
        x = m.constant(rng.standard_normal((7, 4)), dtype)
        wanted = m.constant(rng.standard_normal((7, 3)), dtype)
        w = m.Variable(m.constant(rng.standard_normal((4, 3)), dtype), name="w", use_resource=True)
        table = m.Variable(m.constant(rng.standard_normal((5, 3)), dtype), name="table", use_resource=True)
        scale = m.Variable(m.constant(1.5, dtype), name="scale", use_resource=True)
        m.Variable(m.constant(2.0, dtype), name="unused", use_resource=True)
        rows = m.gather(table, [0, 3, 3, 1, 0, 3, 1])
        guess = m.matmul(x, w) * scale
        loss = m.reduce_mean(m.square((rows if kind == "sparse" else guess + rows) - wanted))
        optimizer = make(m.train)
        step = m.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=step)
        variables = sorted(m.global_variables(), key=lambda v: v.name)
        system.do(m.global_variables_initializer())
        found = {
            "train_op": np.array(train.name == optimizer.get_name()),
            "slots": np.array([hash_of(n) for n in optimizer.get_slot_names()]),
            "made": np.array([hash_of(v.name) for v in optimizer.variables()]),
        }
        for i in range(STEPS):
            system.do(train)
            values = system.run([v.read_value() for v in variables])
            found.update({f"{v.name} after {i}": value for v, value in zip(variables, values, strict=True)})
        return found

    return scenario


def hash_of(text: Any) -> Any:
    return float(int.from_bytes(text.encode()[:6].ljust(6), "big")) + len(text)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(tf: Any, name: Any, dtype: Any, kind: Any) -> None:
    if "proximal" in name and dtype == "float64" and kind == "dense":
        dtype = "float32"  # TensorFlow's proximal optimizers reject dense float64; ours convert the settings
    theirs, ours = in_both(tf, training(OPTIMIZERS[name], dtype, kind))
    same(theirs, ours, rtol=2e-5, atol=1e-5)
    assert len(theirs) > 3 + STEPS * 4


def test_compute_then_apply_with_clipping_and_gates(tf: Any) -> None:
    def scenario(m: Any, system: Any) -> Any:
        w = m.Variable([[1.0, -2.0], [3.0, 4.0]], name="w", use_resource=True)
        table = m.Variable(np.ones((3, 2), np.float32), name="table", use_resource=True)
        loss = m.reduce_sum(m.matmul(m.gather(table, [0, 0, 2]), w))
        rate = m.train.exponential_decay(0.1, m.train.create_global_step(), 2, 0.5)
        optimizer = m.train.GradientDescentOptimizer(rate)
        found = {}
        updates = []
        for gate in (optimizer.GATE_NONE, optimizer.GATE_OP, optimizer.GATE_GRAPH):
            pairs = optimizer.compute_gradients(loss, [w, table], gate_gradients=gate, grad_loss=m.constant(2.0))
            clipped, norm = m.clip_by_global_norm([g for g, _ in pairs], 1.5)
            updates.append(optimizer.apply_gradients(zip(clipped, [w, table], strict=True), m.train.get_global_step()))
            found[f"norm {gate}"] = norm
        system.do(m.global_variables_initializer())
        values = dict(zip(found, system.run(list(found.values())), strict=True))
        for i, update in enumerate(updates):
            system.do(update)
            values[f"w {i}"], values[f"table {i}"], values[f"step {i}"] = system.run(
                [w.read_value(), table.read_value(), m.train.get_global_step().read_value()]
            )
        return values

    theirs, ours = in_both(tf, scenario)
    same(theirs, ours)


def test_constraints_follow_the_update(tf: Any) -> None:
    def scenario(m: Any, system: Any) -> Any:
        w = m.Variable([1.0, 0.2], name="w", use_resource=True, constraint=lambda t: m.maximum(t, 0.0))
        train = m.train.GradientDescentOptimizer(0.5).minimize(m.reduce_sum(w))
        system.do(m.global_variables_initializer())
        system.do(train)
        return {"w": system.run([w.read_value()])[0]}

    same(*in_both(tf, scenario))


# ── every update op ──────────────────────────────────────────────────────────────────────────────────────────────────

SETTINGS = {
    "alpha": 0.1,
    "global_step": 3,
    "lr": 0.1,
    "l1": 0.05,
    "l2": 0.02,
    "l2_shrinkage": 0.03,
    "lr_power": -0.5,
    "momentum": 0.9,
    "rho": 0.8,
    "epsilon": 0.01,
    "beta1": 0.9,
    "beta2": 0.99,
    "beta1_power": 0.81,
    "beta2_power": 0.98,
}
UPDATES = sorted(d.name for d in OPS if d.name.startswith(("ResourceApply", "ResourceSparseApply")))


def one_update(op: Any, dtype: Any, shape: Any, indices: Any, attrs: Any) -> Any:
    inputs = [a.name for a in OPS.get(op).inputs]
    handles = [a.name for a in OPS.get(op).inputs if a.dtype is aioflow.resource]

    def scenario(m: Any, system: Any) -> Any:
        rng = np.random.default_rng(11)
        variables = {
            n: m.Variable(m.constant(rng.uniform(0.1, 1.0, shape), dtype), name=n, use_resource=True) for n in handles
        }
        rows = shape if indices is None else (len(indices), *shape[1:])
        given = {n: m.constant(SETTINGS[n], "int64" if n == "global_step" else dtype) for n in inputs if n in SETTINGS}
        given.update({n: v.handle for n, v in variables.items()})
        given["grad" if "grad" in inputs else "delta"] = m.constant(rng.standard_normal(rows), dtype)
        if indices is not None:
            given["indices"] = m.constant(indices, "int64")
        if m is aioflow:
            update = apply_op(op, *[given[n] for n in inputs], **attrs)
        else:
            update = getattr(m.raw_ops, op)(**given, **attrs)
        system.do(m.global_variables_initializer())
        system.do(update)
        system.do(update)
        return dict(zip(variables, system.run([v.read_value() for v in variables.values()]), strict=True))

    return scenario


def in_tensorflow(op: Any, dtype: Any) -> Any:
    """Return whether TensorFlow has a CPU kernel of that dtype."""
    if "Proximal" in op or "AdagradDA" in op:
        return dtype in ("float32", "float64")
    return dtype != "bfloat16" or not (op == "ResourceApplyAdaMax" or ("Sparse" in op and "RMSProp" in op))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(o, d) for o in UPDATES for d in ("float16", "bfloat16", "float32", "float64") if in_tensorflow(o, d)],
)
def test_update_ops(tf: Any, op: Any, dtype: Any) -> None:
    sparse = "indices" in [a.name for a in OPS.get(op).inputs]
    coarse = {"float16": 4e-3, "bfloat16": 4e-2}.get(dtype, 1e-5)
    for shape in [(4, 3), (5,)] if sparse else [(4, 3), (), (0, 2), (1,)]:
        indices = [2, 0, 3] if sparse else None
        theirs, ours = in_both(tf, one_update(op, dtype, shape, indices, {}))
        same(theirs, ours, rtol=coarse, atol=coarse)


@pytest.mark.parametrize("op", [u for u in UPDATES if "Sparse" in u])
def test_repeated_rows_are_applied_in_turn(tf: Any, op: Any) -> None:
    theirs, ours = in_both(tf, one_update(op, "float64", (4, 2), [1, 3, 1, 1, 0, 3], {}))
    same(theirs, ours)
    nothing = in_both(tf, one_update(op, "float64", (4, 2), [], {}))
    same(*nothing)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("ResourceApplyMomentum", {"use_nesterov": True}),
        ("ResourceSparseApplyMomentum", {"use_nesterov": True}),
        ("ResourceApplyAdam", {"use_nesterov": True}),
        ("ResourceApplyAdagrad", {"update_slots": False}),
        ("ResourceSparseApplyAdagrad", {"update_slots": False}),
        ("ResourceApplyAdagradV2", {"update_slots": False}),
        ("ResourceApplyFtrl", {"multiply_linear_by_lr": True}),
        ("ResourceApplyFtrlV2", {"multiply_linear_by_lr": True}),
        ("ResourceSparseApplyFtrl", {"multiply_linear_by_lr": True}),
        ("ResourceSparseApplyFtrlV2", {"multiply_linear_by_lr": True}),
    ],
)
def test_update_attributes(tf: Any, op: Any, attrs: Any) -> None:
    indices = [2, 0] if "Sparse" in op else None
    same(*in_both(tf, one_update(op, "float64", (4, 3), indices, attrs)))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_gradient_descent(tf: Any, dtype: Any) -> None:
    def scenario(m: Any, system: Any) -> Any:
        v = m.Variable(m.constant([1 + 2j, 3 - 1j], dtype), name="v", use_resource=True)
        given = (v.handle, m.constant(0.5j, dtype), m.constant([1j, 2.0], dtype))
        op = "ResourceApplyGradientDescent"
        update = (
            apply_op(op, *given)
            if m is aioflow
            else m.raw_ops.ResourceApplyGradientDescent(var=given[0], alpha=given[1], delta=given[2])
        )
        system.do(m.global_variables_initializer())
        system.do(update)
        return system.run([v.read_value()])[0]

    theirs, ours = in_both(tf, scenario)
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


# ── learning rates ───────────────────────────────────────────────────────────────────────────────────────────────────

DECAYS = {
    "exponential": lambda t, s: t.exponential_decay(0.5, s, 7, 0.9),
    "exponential_staircase": lambda t, s: t.exponential_decay(0.5, s, 7, 0.9, staircase=True),
    "natural_exp": lambda t, s: t.natural_exp_decay(0.5, s, 7, 0.3),
    "natural_exp_staircase": lambda t, s: t.natural_exp_decay(0.5, s, 7, 0.3, staircase=True),
    "inverse_time": lambda t, s: t.inverse_time_decay(0.5, s, 7, 0.3),
    "inverse_time_staircase": lambda t, s: t.inverse_time_decay(0.5, s, 7, 0.3, staircase=True),
    "piecewise": lambda t, s: t.piecewise_constant(s, [5, 20], [1.0, 0.5, 0.25]),
    "polynomial": lambda t, s: t.polynomial_decay(0.5, s, 20, 0.01, power=0.7),
    "polynomial_cycle": lambda t, s: t.polynomial_decay(0.5, s, 12, 0.01, power=2.0, cycle=True),
    "cosine": lambda t, s: t.cosine_decay(0.5, s, 25, alpha=0.1),
    "cosine_restarts": lambda t, s: t.cosine_decay_restarts(0.5, s, 5, t_mul=1.5, m_mul=0.8, alpha=0.1),
    "cosine_restarts_equal": lambda t, s: t.cosine_decay_restarts(0.5, s, 5, t_mul=1.0, m_mul=0.8),
    "linear_cosine": lambda t, s: t.linear_cosine_decay(0.5, s, 25, num_periods=1.5, alpha=0.2, beta=0.01),
}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", DECAYS)
def test_learning_rates(tf: Any, name: Any, dtype: Any) -> None:
    def scenario(m: Any, system: Any) -> Any:
        step = m.placeholder(dtype, [])
        rate = DECAYS[name](m.train, step)
        assert rate.dtype.name == "float32"
        return {i: system.run([rate], {step: i})[0] for i in (0, 1, 4, 5, 6, 7, 12, 13, 20, 21, 24, 31)}

    same(*in_both(tf, scenario))


def test_learning_rate_in_float64(tf: Any) -> None:
    def scenario(m: Any, system: Any) -> Any:
        rate = m.train.exponential_decay(m.constant(0.5, "float64"), m.constant(3, "int64"), 7, 0.9)
        return {0: system.run([rate])[0]}

    theirs, ours = in_both(tf, scenario)
    same(theirs, ours, rtol=1e-12)


# ── clipping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (0, 2)])
@pytest.mark.parametrize("size", [0.0, 0.1, 10.0])
def test_clip_by_norm(parity: Any, shape: Any, size: Any) -> None:
    x = (np.random.default_rng(5).standard_normal(shape) * size).astype(np.float32)
    parity(lambda m, t: m.clip_by_norm(t, 1.5), x)
    if len(shape) == 2:
        parity(lambda m, t: m.clip_by_norm(t, 1.5, axes=[1]), x.astype(np.float64))
    if size and x.size:
        parity(lambda m, t: m.clip_by_average_norm(t, 0.3), x)


def test_clip_by_global_norm(parity: Any) -> None:
    a, b = np.array([3.0, 4.0], np.float32), np.array([[12.0]], np.float32)
    parity(lambda m, x, y: m.clip_by_global_norm([x, y], 2.0)[0], a, b)
    parity(lambda m, x, y: m.clip_by_global_norm([x, y], 100.0)[0], a, b)
    parity(lambda m, x, y: m.clip_by_global_norm([x, y], 2.0, use_norm=x[0])[0], a, b)
    parity(lambda m, x, y: m.global_norm([x, None, y]), a, b)
    parity(lambda m, x, y: m.clip_by_global_norm([x, y], 2.0)[0], np.array([np.inf, 1.0], np.float32), b, grad=False)


# ── moving averages ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("num_updates", [None, 3])
@pytest.mark.parametrize("zero_debias", [False, True])
def test_moving_averages(tf: Any, num_updates: Any, zero_debias: Any) -> None:
    def scenario(m: Any, system: Any) -> Any:
        v = m.Variable([1.0, 2.0], name="v", use_resource=True)
        other = m.Variable(5.0, name="other", use_resource=True, trainable=False)
        doubled = m.multiply(v, 2.0, name="doubled")
        ema = m.train.ExponentialMovingAverage(0.9, num_updates, zero_debias)
        moved = ema.apply([v, doubled])
        system.do(m.global_variables_initializer())
        bump = v.assign_add([1.0, -1.0], read_value=False)
        names = sorted(x.name for x in m.global_variables())
        found = {"names": np.array([hash_of(n) for n in names])}
        for i in range(STEPS):
            system.do(bump)
            system.do(moved)
            found[f"v {i}"], found[f"doubled {i}"] = system.run(
                [ema.average(v).read_value(), ema.average(doubled).read_value()]
            )
        restored = ema.variables_to_restore()
        found["restored"] = np.array([hash_of(n) for n in sorted(restored)])
        assert ema.average_name(v) == "v/ExponentialMovingAverage"
        assert ema.average_name(other) == "other/ExponentialMovingAverage"
        assert ema.average(other) is None
        assert restored["v/ExponentialMovingAverage"] is v
        assert restored["other"] is other
        return found

    same(*in_both(tf, scenario))

"""Loss scaling against TensorFlow's: names of variables, values, and the scale after each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow

FACTORS = [1.0, 2.0, np.inf, 1.0, 1.0, 1e37, np.nan, 0.5, 1.0, 1.0]


def scenario(m: Any, optimizer: str, namespace: str) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the variables, and their values after each step."""
    names = m.train.experimental if namespace == "train" else m.mixed_precision
    with m.Graph().as_default():
        x = m.placeholder(m.float32, [])
        w = m.get_variable("layer/w", initializer=np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), use_resource=True)
        b = m.get_variable("layer/b", initializer=np.array([0.5, 0.25], np.float32), use_resource=True)
        loss = m.reduce_sum(m.square(m.gather(w, [0, 0]) + b)) * x
        step = m.train.create_global_step()
        scale = names.DynamicLossScale(initial_loss_scale=2.0**6, increment_period=2, multiplier=4.0)
        inner = {
            "Adam": lambda: m.train.AdamOptimizer(0.1),
            "Momentum": lambda: m.train.MomentumOptimizer(0.01, 0.9),
            "Adagrad": lambda: m.train.AdagradOptimizer(0.1),
        }[optimizer]()
        opt = names.MixedPrecisionLossScaleOptimizer(inner, scale)
        pairs = opt.compute_gradients(loss, [w, b])
        train = opt.apply_gradients(pairs, step)
        watched = sorted(m.global_variables(), key=lambda v: v.op.name)
        with m.Session() as sess:
            run = sess.run_sync if m is aioflow else sess.run
            run(m.global_variables_initializer())
            found = []
            for factor in FACTORS:
                run(train, {x: factor})
                found.append(run(watched))
        return [v.op.name for v in watched], found


@pytest.mark.parametrize("namespace", ["train", "mixed_precision"])
@pytest.mark.parametrize("optimizer", ["Adam", "Momentum", "Adagrad"])
def test_scaled_training(tf: Any, optimizer: str, namespace: str) -> None:
    names, ours = scenario(aioflow, optimizer, namespace)
    their_names, theirs = scenario(tf, optimizer, namespace)
    assert names == their_names
    for mine, expected in zip(ours, theirs, strict=True):
        for name, a, b in zip(names, mine, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=name)

"""`recompute_grad` against TensorFlow's: values, gradients, and the use of variables."""

from __future__ import annotations

from typing import Any

import numpy as np

import aioflow

X = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
W = np.random.default_rng(3).standard_normal((3, 3)).astype(np.float32)


def test_values_and_gradients(parity: Any) -> None:
    def build(m: Any, x: Any, w: Any) -> Any:
        layer = m.recompute_grad(lambda h, w: m.tanh(m.matmul(h, w)) * m.exp(-h * h))
        return layer(layer(x, w), w)

    parity(build, X, W)


def test_several_results(parity: Any) -> None:
    def build(m: Any, x: Any, w: Any) -> Any:
        first, second = m.recompute_grad(lambda h, w: (m.matmul(h, w), m.sin(h)))(x, w)
        return [first * 2.0, second + 1.0]

    parity(build, X, W)


def test_variables(tf: Any) -> None:
    found = []
    for m in (tf, aioflow):
        with m.Graph().as_default():
            w = m.get_variable("w", initializer=W, use_resource=True)
            y = m.recompute_grad(lambda h, m=m, w=w: m.nn.relu(m.matmul(h, w)))(m.constant(X))
            loss = m.reduce_sum(m.square(y))
            with m.Session() as sess:
                run = sess.run_sync if m is aioflow else sess.run
                run(m.global_variables_initializer())
                found.append(run([loss, *m.gradients(loss, [w])]))
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)

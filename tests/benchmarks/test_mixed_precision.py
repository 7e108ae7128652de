"""Training in 16 bits, with accumulation and with recomputation keeps the float32 curve, in less memory.

The curve is compared with a float64 training of the same net that is written here in NumPy.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.demo.digits import load_digits
from benchmarks.mixed_precision import Characters, Digits, Run, Variant, deviation, measure

UPDATES = 40
SIZES = {"blocks": 2, "units": 32, "batch": 512}

Array = np.ndarray[Any, Any]

# The largest relative deviation of a smoothed loss curve.
BOUNDS = {"bfloat16": 0.005, "float16": 0.001, "float32": 1e-5}


@cache
def digits(variant: Variant) -> Run:
    return asyncio.run(measure(Digits, variant, UPDATES, **SIZES))


@cache
def characters(variant: Variant) -> Run:
    return asyncio.run(measure(Characters, variant, 10, units=16, rows=16, steps=8))


# ── the oracle ───────────────────────────────────────────────────────────────────────────────────────────────────────


def initial() -> tuple[list[Array], list[Array]]:
    """Return the initial values of the float32 net, and the positions of each update's examples."""
    with af.Graph().as_default():
        model = Digits(Variant(), **SIZES)
        with af.Session() as session:
            session.run_sync(af.global_variables_initializer())
            values = session.run_sync(af.trainable_variables())
        return [np.asarray(v, np.float64) for v in values], [model.rows() for _ in range(UPDATES)]


def loss_and_gradients(weights: list[Array], x: Array, labels: Array) -> tuple[float, list[Array]]:
    """Return the loss of the net and its gradients, by hand. `weights` are pairs of matrix and bias."""
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    (first, *blocks, last), kept = layers, []
    h = x @ first[0] + first[1]
    for (w1, b1), (w2, b2) in zip(blocks[::2], blocks[1::2], strict=True):
        z = h @ w1 + b1
        s = 1 / (1 + np.exp(-z))
        kept.append((h, z, s, w1, w2))
        h = h + (z * s) @ w2 + b2
    logits = h @ last[0] + last[1]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(x))
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    d = p / len(x)
    found = [d.sum(0), h.T @ d]
    d = d @ last[0].T
    for h, z, s, w1, w2 in reversed(kept):
        inner = (d @ w2.T) * (s + z * s * (1 - s))
        found += [d.sum(0), (z * s).T @ d, inner.sum(0), h.T @ inner]
        d = d + inner @ w1.T
    found += [d.sum(0), x.T @ d]
    return float(loss), found[::-1]


@cache
def expected() -> Array:
    """Return the curve of a training in float64, by Adam on gradients clipped to a global norm of 1."""
    weights, batches = initial()
    train, _ = load_digits().split()
    m, v = [[np.zeros_like(w) for w in weights] for _ in range(2)]
    losses = []
    for t, rows in enumerate(batches, 1):
        loss, gradients = loss_and_gradients(weights, train.images[rows].astype(np.float64), train.labels[rows])
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        for i, g in enumerate(gradients):
            g = g / max(norm, 1.0)
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g**2
            rate = 2e-3 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            weights[i] = weights[i] - rate * m[i] / (np.sqrt(v[i]) + 1e-8)
        losses.append(loss)
    return np.array(losses)


# ── curves ───────────────────────────────────────────────────────────────────────────────────────────────────────────


ALL = Variant("float16", 4, recompute=True)


@pytest.mark.parametrize("variant", [Variant(), Variant("bfloat16"), Variant("float16"), Variant(parts=4), ALL])
def test_curve_and_accuracy_of_the_digits_stay_near_float64(variant: Variant) -> None:
    run = digits(variant)
    assert 0 < deviation(run.losses, expected()) < BOUNDS[variant.precision]
    assert run.losses[-1] < 0.2 * run.losses[0]
    assert abs(run.score - digits(Variant()).score) <= 0.01
    assert digits(Variant()).score > 0.9


@pytest.mark.parametrize("run", [digits, characters])
def test_accumulation_equals_the_large_batch(run: Any) -> None:
    np.testing.assert_allclose(run(Variant(parts=4)).losses, run(Variant()).losses, rtol=1e-5)


@pytest.mark.parametrize("run", [digits, characters])
@pytest.mark.parametrize("variant", [Variant(), Variant("bfloat16")])
def test_recomputation_changes_no_bit_of_the_curve(run: Any, variant: Variant) -> None:
    assert run(variant._replace(recompute=True)).losses.tobytes() == run(variant).losses.tobytes()


@pytest.mark.parametrize("variant", [Variant("bfloat16"), ALL])
def test_character_model_learns_the_same_in_16_bits(variant: Variant) -> None:
    run, plain, bound = characters(variant), characters(Variant()), BOUNDS[variant.precision]
    assert 0 < deviation(run.losses, plain.losses) < bound
    assert run.score == pytest.approx(plain.score, rel=bound)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def peak(variant: Variant) -> int:
    return asyncio.run(measure(Digits, variant, 1, blocks=8, units=32, batch=1024)).peak


@pytest.mark.parametrize(
    ("variant", "share"),
    [(Variant(recompute=True), 0.5), (Variant("bfloat16"), 0.7), (Variant(parts=4), 0.4), (ALL, 0.2)],
)
def test_peak_memory_of_a_deep_net(variant: Variant, share: float) -> None:
    assert peak(variant) < share * peak(Variant())


def test_accumulation_divides_the_peak_of_an_embedding() -> None:
    """The accumulated rows of the table are no more than the table has."""
    runs = [measure(Characters, Variant(parts=parts), 1, units=32, rows=64, steps=16) for parts in (1, 4)]
    whole, divided = (asyncio.run(run).peak for run in runs)
    assert divided < 0.5 * whole

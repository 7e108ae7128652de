"""Random ops: streams, seeds, ranges, distributions and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.kernels.registry import KERNELS, Binding
from aioflow.ops.apply import make
from aioflow.runtime.device import host
from aioflow.testing.evaluate import evaluate
from tests.support.dense import dense


def draw(build: Callable[[], Any], state: dict[str, Any] | None = None) -> np.ndarray[Any, Any]:
    with aioflow.Graph().as_default():
        return evaluate([build()], state=state)[0]


SEEDED: dict[str, Callable[[int | None], Any]] = {
    "uniform": lambda s: aioflow.random_uniform([50], seed=s),
    "uniform int": lambda s: aioflow.random_uniform([50], 0, 1000, "int32", seed=s),
    "normal": lambda s: aioflow.random_normal([50], seed=s),
    "truncated": lambda s: aioflow.truncated_normal([50], seed=s),
    "shuffle": lambda s: aioflow.random_shuffle(np.arange(50), seed=s),
    "multinomial": lambda s: aioflow.multinomial(np.zeros((1, 100)), 50, seed=s),
    "gamma": lambda s: aioflow.random_gamma([50], 2.0, seed=s),
    "poisson": lambda s: aioflow.random_poisson(50.0, [50], seed=s),
    "crop": lambda s: aioflow.random_crop(np.arange(1_000_000), [50], seed=s),
    "dropout": lambda s: aioflow.nn.dropout(np.ones(50, "f"), rate=0.5, seed=s),
}


@pytest.mark.parametrize("name", SEEDED)
def test_stream_continues_across_steps_and_restarts_with_a_session(name: str) -> None:
    with aioflow.Graph().as_default():
        tensor = SEEDED[name](5)
        first, second = {}, {}  # type: dict[str, Any], dict[str, Any]
        a = [evaluate([tensor], state=first)[0] for _ in range(3)]
        b = [evaluate([tensor], state=second)[0] for _ in range(3)]
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a[0], a[1])
    assert not np.array_equal(a[1], a[2])


@pytest.mark.parametrize("name", SEEDED)
def test_different_seeds_have_different_streams(name: str) -> None:
    def with_seeds(graph: int | None, op: int | None) -> Any:
        def build() -> Any:
            aioflow.set_random_seed(graph)
            return SEEDED[name](op)

        return draw(build)

    same = [with_seeds(1, 2), with_seeds(1, 2)]
    np.testing.assert_array_equal(*same)
    np.testing.assert_array_equal(with_seeds(1, None), with_seeds(1, None))
    others = [with_seeds(1, 3), with_seeds(2, 2), with_seeds(None, 2), with_seeds(None, None), with_seeds(None, None)]
    for i, a in enumerate([same[0], *others]):
        for b in others[i:]:
            assert not np.array_equal(a, b)


def test_nodes_with_one_graph_seed_differ() -> None:
    with aioflow.Graph().as_default():
        aioflow.set_random_seed(3)
        a, b = evaluate([aioflow.random_normal([50]), aioflow.random_normal([50])])
    assert not np.array_equal(a, b)


def test_get_seed_counts_the_nodes_of_the_graph() -> None:
    assert aioflow.random.get_seed(None) == (None, None)
    assert aioflow.random.get_seed(5) == (87654321, 5)
    aioflow.set_random_seed(7)
    assert aioflow.random.get_seed(5) == (7, 5)
    assert aioflow.random.get_seed(None) == (7, 0)
    aioflow.constant(1)
    assert aioflow.random.get_seed(None) == (7, 1)
    aioflow.set_random_seed(0)
    assert aioflow.random.get_seed(0) == (0, 2**31 - 1)
    aioflow.set_random_seed(None)
    assert aioflow.random.get_seed(None) == (None, None)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
def test_uniform_is_below_its_upper_bound(dtype: Any) -> None:
    made = draw(lambda: aioflow.random_uniform([200_000], dtype=dtype, seed=1))
    assert made.dtype == np.dtype(dtype)
    wide = made.astype(np.float64)
    assert wide.min() >= 0
    assert wide.max() < 1
    assert abs(wide.mean() - 0.5) < 0.006
    assert abs(wide.var() - 1 / 12) < 0.002


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
def test_normal_and_truncated(dtype: Any) -> None:
    normal = draw(lambda: aioflow.random_normal([100_000], dtype=dtype, seed=1)).astype(np.float64)
    assert abs(normal.mean()) < 0.02
    assert abs(normal.var() - 1) < 0.02
    assert abs(normal).max() > 3
    made = draw(lambda: aioflow.truncated_normal([100_000], dtype=dtype, seed=1))
    assert made.dtype == np.dtype(dtype)
    cut = made.astype(np.float64)
    assert abs(cut).max() <= 2
    assert abs(cut.mean()) < 0.02
    assert abs(cut.var() - 0.7737) < 0.02  # 1 - 4 * phi(2) / (2 * Phi(2) - 1)


def test_mean_and_deviation_broadcast() -> None:
    made = draw(lambda: aioflow.random_normal([20_000, 3], mean=np.array([0.0, 5.0, -5.0], "f"), stddev=[[2.0]]))
    np.testing.assert_allclose(made.mean(axis=0), [0, 5, -5], atol=0.1)
    np.testing.assert_allclose(made.std(axis=0), [2, 2, 2], atol=0.1)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_stay_in_their_range(dtype: str) -> None:
    made = draw(lambda: aioflow.random_uniform([10_000], -3, 4, dtype, seed=1))
    assert made.dtype == np.dtype(dtype)
    assert set(made.tolist()) == set(range(-3, 4))
    limits = np.iinfo(dtype)
    wide = draw(lambda: aioflow.random_uniform([1000], limits.min, limits.max, dtype, seed=1))
    assert wide.min() < 0 < wide.max()


def test_shuffle_keeps_rows() -> None:
    rows = np.arange(300).reshape(100, 3)
    made = draw(lambda: aioflow.random_shuffle(rows, seed=1))
    assert not np.array_equal(made, rows)
    np.testing.assert_array_equal(made[np.argsort(made[:, 0])], rows)
    assert draw(lambda: aioflow.random_shuffle(np.float32(3))) == 3


def test_multinomial_draws_by_the_logits() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-300], [1.0, 1e-300, 1e-300]]))
    logits[1, 2] = -np.inf
    made = draw(lambda: aioflow.multinomial(logits, 20_000, seed=1, output_dtype="int32"))
    assert made.dtype == np.int32
    shares = np.stack([np.bincount(row, minlength=3) / 20_000 for row in made])
    np.testing.assert_allclose(shares, np.exp(logits), atol=0.015)
    assert shares[1, 2] == shares[2, 1] == 0


def test_multinomial_never_draws_impossible_classes() -> None:
    # Thousands of rows, in which the first and the last class are impossible.
    logits = np.zeros((4000, 5))
    logits[:, [0, 4]] = -np.inf
    made = draw(lambda: aioflow.multinomial(logits, 50, seed=1))
    assert made.min() == 1
    assert made.max() == 3
    assert set(draw(lambda: aioflow.multinomial(np.full((2, 3), np.nan), 4)).ravel().tolist()) == {0}


def test_gamma_and_poisson_moments() -> None:
    made = draw(lambda: aioflow.random_gamma([50_000], [0.5, 4.0], beta=2.0, seed=1))
    np.testing.assert_allclose(made.mean(axis=0), [0.25, 2.0], rtol=0.03)
    assert (made > 0).all()
    counts = draw(lambda: aioflow.random_poisson([3.0, 100.0], [50_000], seed=1))
    np.testing.assert_allclose(counts.mean(axis=0), [3, 100], rtol=0.02)
    np.testing.assert_allclose(counts.var(axis=0), [3, 100], rtol=0.05)
    assert np.isnan(draw(lambda: aioflow.random_poisson([-1.0], [2]))).all()


STATELESS: list[Callable[[Any], Any]] = [
    lambda s: aioflow.random.stateless_uniform([40], s),
    lambda s: aioflow.random.stateless_normal([40], s),
    lambda s: aioflow.random.stateless_truncated_normal([40], s),
]


@pytest.mark.parametrize("build", STATELESS)
@pytest.mark.parametrize("seed", [[0, 0], [1, 2], [-1, 2**31 - 1]])
def test_stateless_numbers_depend_on_the_seed_only(build: Any, seed: Any) -> None:
    tensor, other = build(seed), build([9, 9])
    state: dict[str, Any] = {}
    a, b = evaluate([tensor], state=state)[0], evaluate([tensor], state=state)[0]
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, evaluate([other])[0])


def test_gamma_samples_have_gradients_by_alpha() -> None:
    # Expected values: alpha for the samples, alpha (alpha + 1) for their squares. The gradients of the means must match
    # the derivatives of these.
    alpha = aioflow.placeholder("float64", [3])
    shape = aioflow.placeholder_with_default([100, 50], [2])
    for sizes in ([100, 50], shape):
        samples = aioflow.random_gamma(sizes, alpha, dtype="float64", seed=1)
        means = [aioflow.reduce_mean(samples, [0, 1]), aioflow.reduce_mean(samples**2, [0, 1])]
        grads = [dense(aioflow.gradients(m, alpha))[0] for m in means]
        (first, second), a = evaluate(grads, {alpha: [0.5, 2.0, 30.0]}), np.array([0.5, 2.0, 30.0])
        np.testing.assert_allclose(first, 1, rtol=0.05)
        np.testing.assert_allclose(second, 2 * a + 1, rtol=0.1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: aioflow.random_uniform([2, 3], 5, 5, "int32"),
        lambda: aioflow.random_uniform([2, 3], 5, 4, "int64"),
        lambda: aioflow.random_uniform([2], dtype="int32"),
        lambda: aioflow.random_uniform([2], dtype="uint8", maxval=3),
        lambda: aioflow.random_normal([[2, 3]]),
        lambda: aioflow.multinomial(np.zeros(3), 2),
        lambda: aioflow.multinomial(np.zeros((2, 0)), 2),
        lambda: aioflow.multinomial(np.zeros((2, 3)), -1),
        lambda: aioflow.random_crop(np.zeros((3, 3)), [4, 1]),
        lambda: aioflow.random.stateless_uniform([2], [1, 2, 3]),
    ],
)
def test_wrong_arguments_are_refused(build: Any) -> None:
    with pytest.raises(InvalidArgumentError) as info:
        draw(build)
    assert info.value.expected is not None


def test_wrong_arguments_are_refused_at_run_time() -> None:
    shape = aioflow.placeholder("int32", [None])
    for tensor in (
        aioflow.random_uniform(shape),
        aioflow.random_uniform(shape, 0, 3, "int32"),
        aioflow.random_normal(shape),
    ):
        with pytest.raises(InvalidArgumentError) as info:
            evaluate([tensor], {shape: [2, -1]})
        assert info.value.node is not None
    value = aioflow.placeholder("float32")
    with pytest.raises(OpError):
        evaluate([aioflow.random_crop(value, [4])], {value: np.zeros(3, "f")})


def test_random_ops_are_stateful() -> None:
    from aioflow.graph.opdef import OPS

    for op in (
        "RandomUniform",
        "RandomStandardNormal",
        "TruncatedNormal",
        "RandomUniformInt",
        "RandomShuffle",
        "Multinomial",
    ):
        assert OPS.get(op).stateful
    assert not OPS.get("StatelessRandomUniform").stateful


def test_concurrent_steps_share_one_stream() -> None:
    # Eight threads together draw exactly the numbers that a single thread would draw.
    with aioflow.Graph().as_default():
        node = make("RandomUniform", [100], dtype="float64", seed=1, seed2=2).op
        backend = host()

        def body() -> Callable[[Any], Any]:
            binding = Binding(
                node.name, node.type, node.attrs, (), (), (node.outputs[0].dtype,), ((100,),), (), backend, None, {}
            )
            return KERNELS.get(node.type, "CPU", node.attrs).bind(binding)

        alone, together = body(), body()
    expected = np.concatenate([alone((100,)) for _ in range(160)])
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.extend(together((100,)) for _ in range(20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.sort(expected))


def test_gradients_flow_to_the_mean_but_not_into_random_ops() -> None:
    mean = aioflow.constant(2.0)
    tensor = aioflow.random_normal([3], mean=mean, stddev=3.0)
    assert evaluate(dense(aioflow.gradients(tensor, mean)))[0] == 3

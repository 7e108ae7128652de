"""Parity of `gradients` and related functions with TensorFlow: orders, several ys and xs, slices, variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate

RNG = np.random.default_rng(17)
A = RNG.uniform(0.5, 2.0, (3, 4)).astype(np.float32)
B = RNG.uniform(0.5, 2.0, (4,)).astype(np.float32)


def ours(fetches: Any, feeds: Any, variables: Any) -> Any:
    kept: dict[str, Any] = {"resources": ResourceManager(), "state": {}}
    for v in variables:
        evaluate([], targets=[v.initializer], **kept)
    return evaluate(fetches, feeds, **kept)


def theirs(tf: Any, fetches: Any, feeds: Any, variables: Any) -> Any:
    with tf.Session() as session:
        session.run([v.initializer for v in variables])
        return session.run(fetches, feeds)


def compare(tf: Any, build: Any, static: bool = True) -> None:
    """Compare the tensors, feeds and variables that `build(module)` returns; None must be None in both systems."""
    results = []
    for module in (tf, aioflow):
        with module.Graph().as_default():
            made, feeds, variables = build(module)
            kinds = [None if t is None else "slices" if isinstance(t, module.IndexedSlices) else "dense" for t in made]
            dense = [module.convert_to_tensor(t) for t in made if t is not None]
            shapes = [t.shape.as_list() if t.shape.ndims is not None else None for t in dense]
            values = theirs(tf, dense, feeds, variables) if module is tf else ours(dense, feeds, variables)
            results.append((kinds, shapes, values))
    (their_kinds, their_shapes, their_values), (our_kinds, our_shapes, our_values) = results
    assert our_kinds == their_kinds
    assert our_shapes == their_shapes or not static
    for mine, other in zip(our_values, their_values, strict=True):
        assert np.asarray(mine).dtype == np.asarray(other).dtype
        np.testing.assert_allclose(mine, other, rtol=2e-5, atol=1e-6)


def repeated(m: Any, y: Any, x: Any, order: Any) -> Any:
    for _ in range(order):
        (y,) = m.gradients(y, x)
    return y


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["exp_sin", "quotient", "matmul", "power", "softmax", "norm", "reshaped", "broadcast", "tanh"]
)
def test_higher_orders(tf: Any, name: Any, order: Any) -> None:
    functions = {
        "exp_sin": lambda m, x: m.exp(m.sin(x)),
        "quotient": lambda m, x: (x * x + 1.0) / (x + 2.0),
        "matmul": lambda m, x: m.matmul(m.matmul(x, x, transpose_b=True), x) * x,
        "power": lambda m, x: m.pow(x, 3.5) + x**3.0,
        "softmax": lambda m, x: m.nn.softmax(x) * m.log(x),
        "norm": lambda m, x: x / m.sqrt(m.reduce_sum(m.square(x), axis=1, keepdims=True)),
        "reshaped": lambda m, x: m.transpose(m.reshape(x, [4, 3])) * x * x,
        "broadcast": lambda m, x: (x + m.constant(B)) * m.reduce_mean(x, axis=0) * x,
        "tanh": lambda m, x: m.tanh(x) * m.sigmoid(x),
    }

    def build(m: Any) -> Any:
        x = m.placeholder("float32", [3, 4])
        return [repeated(m, functions[name](m, x), x, order)], {x: A}, []

    compare(tf, build)


def test_several_ys_xs_and_seeds(tf: Any) -> None:
    def build(m: Any) -> Any:
        x, y = m.placeholder("float32", [3, 4]), m.placeholder("float32", [4])
        product, total = x * y, m.reduce_sum(x)
        seed = m.constant(A * 2.0)
        return (
            [
                *m.gradients([product, total], [x, y]),
                *m.gradients([product, total], [x, y, x], grad_ys=[seed, None]),
                *m.gradients([product, y], [product, y, total]),
                *m.gradients(total, [x, y], unconnected_gradients="zero"),
                *m.gradients([product * product], [x, product], stop_gradients=[product]),
                *m.gradients(product * m.stop_gradient(x), x),
            ],
            {x: A, y: B},
            [],
        )

    compare(tf, build)


def test_integers_bools_and_casts(tf: Any) -> None:
    def build(m: Any) -> Any:
        x = m.placeholder("float32", [3, 4])
        number = m.cast(x, "int32")
        return (
            [
                *m.gradients(m.cast(number, "float32"), [x]),
                *m.gradients(m.cast(number, "float32") * x, [x]),
                *m.gradients(m.where(x > 1.0, x * x, -x), [x]),
                *m.gradients(m.cast(m.argmax(x, 1), "float32"), [x]),
                *m.gradients(m.cast(x, "float64"), [x]),
            ],
            {x: A},
            [],
        )

    compare(tf, build)


def test_complex_numbers(tf: Any) -> None:
    def build(m: Any) -> Any:
        x = m.placeholder("complex64", [2])
        y = x * x * m.constant([1j, 2 - 1j], "complex64")
        seed = m.constant([1 + 1j, 2 - 3j], "complex64")
        feeds = {x: np.array([1 + 2j, 3j], np.complex64)}
        return [*m.gradients(y, x, grad_ys=seed), *m.gradients(m.real(y), x)], feeds, []

    compare(tf, build)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_slices_of_variables(tf: Any, dtype: Any) -> None:
    def build(m: Any) -> Any:
        table = m.Variable(A, name="table", use_resource=True)
        ids = m.constant([2, 0, 2], dtype)
        rows = m.gather(table, ids)
        more = m.gather(table, m.constant([[1, 1], [0, 2]], dtype))
        return (
            [
                *m.gradients(rows * rows, [table]),
                *m.gradients([rows, more * 2.0], [table]),
                *m.gradients([rows, table * table], [table]),
                *m.gradients(m.nn.embedding_lookup(table, ids) * 3.0, [table]),
                *m.gradients(m.gradients(m.reduce_sum(rows * rows * rows), rows)[0], [table]),
            ],
            {},
            [table],
        )

    compare(tf, build)


def test_slices_of_tensors(tf: Any) -> None:
    def build(m: Any) -> Any:
        x = m.placeholder("float32", [None, 4])
        rows = m.gather(x, [1, 1])
        return [*m.gradients(rows, x), *m.gradients([rows, x * x], x)], {x: A}, []

    compare(tf, build)


def test_hessians(tf: Any) -> None:
    def build(m: Any) -> Any:
        x, y = m.placeholder("float32", [4]), m.placeholder("float32", [3, 4])
        total = m.reduce_sum(x * x * x) + m.reduce_prod(x) + m.reduce_sum(m.exp(y) * x)
        return m.hessians(total, [x, y]), {x: B, y: A}, []

    compare(tf, build)


def test_custom_gradients(tf: Any) -> None:
    def build(m: Any) -> Any:
        weight = m.Variable(3.0, name="weight", use_resource=True)

        def log1pexp(x: Any) -> Any:
            e = m.exp(x)
            return m.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))

        def scaled(x: Any) -> Any:
            def grad(dy: Any, variables: Any = None) -> Any:
                return dy * 5.0, [m.reduce_sum(dy) * 7.0 for _ in variables]

            return x * weight, grad

        soft, steep = m.custom_gradient(log1pexp), m.custom_gradient(scaled)
        x = m.placeholder("float32", [4])
        y = steep(soft(x))
        (first,) = m.gradients(soft(x), x)
        return [y, *m.gradients(y, [x, weight]), first, *m.gradients(first, x)], {x: B}, [weight]

    compare(tf, build)


def test_overridden_gradients(tf: Any) -> None:
    for module in (tf, aioflow):
        module.RegisterGradient("ParityTripled")(lambda op, grad: 3.0 * grad)

    def build(m: Any) -> Any:
        x = m.placeholder("float32", [4])
        with x.graph.gradient_override_map({"Identity": "ParityTripled", "Tanh": "ParityTripled"}):
            y = m.tanh(m.identity(x))
        return [*m.gradients(y, x), *m.gradients(m.tanh(x), x)], {x: B}, []

    compare(tf, build)


@pytest.mark.parametrize("devices", [("", "", ""), ("/cpu:1", "/cpu:2", "/cpu:2"), ("/cpu:1", "", "/cpu:1")])
def test_sums_of_gradients_are_colocated(tf: Any, devices: tuple[str, ...]) -> None:
    def sums(m: Any) -> list[Any]:
        with m.Graph().as_default():
            x = m.constant([1.0], name="x")
            made = []
            for device, name in zip(devices, "abc", strict=True):
                with m.device(device):
                    made.append(m.square(x, name=name))
            (total,) = m.gradients(made, [x], colocate_gradients_with_ops=True)
            return [(t.op.type, t.device, t.op.colocation_groups()) for t in (total, *total.op.inputs)]

    assert sums(aioflow) == sums(tf)


def test_gates_and_colocation(tf: Any) -> None:
    def build(m: Any) -> Any:
        x, y = m.placeholder("float32", [3, 4]), m.placeholder("float32", [4])
        product = m.multiply(x, y)
        return (
            [
                *m.gradients(product, [x, y], gate_gradients=True),
                *m.gradients(product, [x, y], colocate_gradients_with_ops=True, aggregation_method=1),
            ],
            {x: A, y: B},
            [],
        )

    compare(tf, build)


@pytest.mark.parametrize("case", ["complex y", "string y", "complex seed", "seed count"])
def test_both_systems_refuse_wrong_gradients(tf: Any, case: Any) -> None:
    def build(m: Any) -> Any:
        x = m.constant([1.0, 2.0])
        if case == "complex y":
            z = m.constant([1j])
            return m.gradients(z, z)
        if case == "string y":
            s = m.constant("text")
            return m.gradients(s, s)
        if case == "complex seed":
            return m.gradients(x * x, x, grad_ys=m.constant([1j, 2j]))
        return m.gradients([x, x], x, grad_ys=[x])

    for module in (tf, aioflow):
        with module.Graph().as_default(), pytest.raises((TypeError, ValueError)):
            build(module)


# ── slices in backward passes ────────────────────────────────────────────────────────────────────────────────────────

ROW = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
SLICED: dict[str, Any] = {
    "add a scalar": lambda m, x: x + 0.5,
    "add to a scalar": lambda m, x: 0.5 + x,
    "add a row": lambda m, x: x + ROW,
    "add a column": lambda m, x: x + m.ones([3, 1]),
    "add to itself": lambda m, x: x + x,
    "add, broadcast": lambda m, x: x[:1] + m.ones([3, 4]),
    "add, of lower rank": lambda m, x: x[0] + m.ones([3, 4]),
    "subtract a scalar": lambda m, x: x - 0.5,
    "subtract from a row": lambda m, x: ROW - x,
    "subtract from itself": lambda m, x: x - 2.0 * x,
    "subtract, of lower rank": lambda m, x: m.ones([3, 4]) - x[0],
    "negative": lambda m, x: -x,
    "remainder": lambda m, x: m.floormod(x, 0.7),
    "add_n": lambda m, x: m.add_n([x, x]),
    "bias": lambda m, x: m.nn.bias_add(x, m.constant(ROW)),
    "into the bias": lambda m, x: m.nn.bias_add(m.ones([3, 4]), x[0]),
    "sum": lambda m, x: m.reduce_sum(x, 1),
    "sum that keeps": lambda m, x: m.reduce_sum(x, 1, keepdims=True),
    "sum over rows": lambda m, x: m.reduce_sum(x[None], 0),
    "logsumexp": lambda m, x: m.reduce_logsumexp(x, 1),
    "mean": lambda m, x: m.reduce_mean(x, 1),
    "product": lambda m, x: x * ROW,
    "identity": lambda m, x: m.identity(x),
    "cast": lambda m, x: m.cast(x, "float64"),
    "of a known shape": lambda m, x: m.ensure_shape(x, [3, 4]),
    "reshape": lambda m, x: m.reshape(x, [6, 2]),
    "transpose": lambda m, x: m.transpose(x),
    "tile": lambda m, x: m.tile(x, [2, 1]),
    "concat of rows": lambda m, x: m.concat([x, m.ones([1, 4]), x], 0),
    "concat of columns": lambda m, x: m.concat([x, m.ones([3, 2])], 1),
    "concat, counted from behind": lambda m, x: m.concat([x, m.ones([3, 2])], -1),
    "concat of rows, from behind": lambda m, x: m.concat([m.ones([1, 4]), x], -2),
    "batch norm": lambda m, x: m.nn.batch_normalization(x, 0.0, 1.0, None, x, 0.1),
    "scatter": lambda m, x: m.tensor_scatter_nd_add(x, [[0]], m.ones([1, 4])),
    "gather": lambda m, x: m.gather(x, [2, 2, 0]),
    "cond": lambda m, x: m.cond(m.constant(True), lambda: x + 1.0, lambda: x * 2.0),
}


@pytest.mark.parametrize("known", [True, False], ids=["fixed", "open"])
# "add to itself" has a dense gradient in TensorFlow if the shape is unknown.
@pytest.mark.parametrize("name", sorted(SLICED.keys() - {"add to itself"}))
def test_gather_gradients_pass_through_rules(tf: Any, name: str, known: bool) -> None:
    # The gradient of a gather is IndexedSlices, which also reach gradient rules that do not expect slices.
    def build(m: Any) -> Any:
        x = m.placeholder("float32", [3, 4] if known else [None, 4])
        y = m.gather(SLICED[name](m, x), [1, 0, 1])
        return m.gradients(m.cast(y, "float32") * 2.0, x), {x: A}, []

    tf.disable_control_flow_v2()
    try:
        # The static shape of a concat of unknown sizes is more precise than in TensorFlow.
        compare(tf, build, static=known)
    finally:
        tf.enable_control_flow_v2()


@pytest.mark.parametrize("name", SLICED)
def test_given_slices_pass_through_rules(tf: Any, name: str) -> None:
    def build(m: Any) -> Any:
        x = m.placeholder("float32", [3, 4])
        y = SLICED[name](m, x)
        rows, *inner = y.shape.as_list()
        values = np.arange(1, 1 + 2 * int(np.prod(inner))).reshape([2, *inner])
        slices = m.IndexedSlices(m.constant(values, y.dtype), m.constant([0, rows - 1]), m.constant([rows, *inner]))
        return m.gradients([y], [x], grad_ys=[slices]), {x: A}, []

    tf.disable_control_flow_v2()
    try:
        compare(tf, build)
    finally:
        tf.enable_control_flow_v2()

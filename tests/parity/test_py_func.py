"""py_func and numpy_function against TensorFlow's: values, arguments, numbers of results, error codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.testing.evaluate import evaluate

pytestmark = pytest.mark.parity

DTYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3)])
@pytest.mark.parametrize("name", ["py_func", "numpy_function"])
def test_values(parity: Any, dtype: str, shape: tuple[int, ...], name: str) -> None:
    x = (np.random.default_rng(3).standard_normal(shape) * 3).astype(dtype)
    parity(lambda m, x: getattr(m, name)(lambda v: v[...], [x], dtype), x)
    parity(lambda m, x: getattr(m, name)(lambda v, w: (w + v, np.float32(2)), [x, x], [dtype, "float32"]), x)


def test_function_receives_the_same_arguments(tf: Any) -> None:
    def kinds(*values: Any) -> Any:
        return " ".join(f"{type(v).__name__}:{getattr(v, 'dtype', None)}:{np.shape(v)}" for v in values)

    def build(m: Any) -> Any:
        constants = [m.constant(v) for v in (1.0, [1.0], b"a", [b"a", b"b"], True, 3)]
        return m.py_func(kinds, constants, "string")

    with tf.Graph().as_default(), tf.Session() as session:
        expected = session.run(build(tf))
    with aioflow.Graph().as_default():
        assert evaluate([build(aioflow)]) == [expected]


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (lambda: np.float32(2), ["float32"]),
        (lambda: "text", "string"),
        (lambda: ("a", "b"), ["string", "string"]),
        (lambda: np.array([b"a", b"bc"], object), "string"),
        (lambda: np.array(["a", "bc"]), "string"),
        (lambda: True, "bool"),
        (lambda: 1.5, "float64"),
        (lambda: np.float64(1), "float32"),
        (lambda: np.int64(1), "int32"),
        (lambda: (np.float32(1), np.float32(2)), "float32"),
        (lambda: (np.float32(1),), ["float32", "float32"]),
        (lambda: None, "float32"),
        *[(lambda e=e: (_ for _ in ()).throw(e("boom")), "float32") for e in (ValueError, TypeError, MemoryError)],
        *[
            (lambda e=e: (_ for _ in ()).throw(e("boom")), "float32")
            for e in (NotImplementedError, KeyError, OSError, IndexError)
        ],
        (lambda: next(iter(())), "float32"),
    ],
)
def test_results_and_errors(tf: Any, build: Any, dtype: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        try:
            expected: Any = session.run(tf.py_func(build, [], dtype))
        except tf.errors.OpError as error:
            expected = error.error_code
    with aioflow.Graph().as_default():
        node = aioflow.py_func(build, [], dtype)
        try:
            mine: Any = evaluate(node) if isinstance(node, list) else evaluate([node])[0]
        except aioflow.errors.OpError as error:
            mine = error.error_code
    if np.shape(expected) != () or not isinstance(expected, int):
        assert np.array_equal(np.asarray(mine), np.asarray(expected))
    else:
        assert mine == expected


def test_nodes(tf: Any) -> None:
    def describe(m: Any) -> Any:
        with m.Graph().as_default():
            one = m.py_func(len, [[1]], "float32", stateful=False)
            many = m.py_func(len, [[1]], ["float32"])
            none = m.py_func(len, [[1]], [])
            grads = m.gradients(m.py_func(lambda v: v, [one], "float32"), one)
            return (one.op.type, one.shape.rank, type(many), many[0].op.type, none.type, grads)

    assert describe(aioflow) == describe(tf)

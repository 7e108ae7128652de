"""Gradients built after a graph was stored: through loops and branches that TensorFlow or aioflow stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af

pytestmark = pytest.mark.parity

X, W = np.array([0.5, -1.5, 2.0], np.float32), np.array([1.5, 0.25, -0.75], np.float32)


@pytest.fixture(autouse=True)
def _nodes(tf: Any) -> Iterator[None]:
    """Make TensorFlow build branches and loops as nodes, not as functions."""
    functions = tf.control_flow_v2_enabled()
    tf.disable_control_flow_v2()
    yield
    if functions:
        tf.enable_control_flow_v2()


def _loop(f: Any, x: Any, w: Any) -> Any:
    return f.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, f.tanh(a * w) + 0.5 * a), [f.constant(0), x])[1]


def _nested(f: Any, x: Any, w: Any) -> Any:
    def outer(i: Any, a: Any) -> Any:
        inner = f.while_loop(lambda j, b: j < i, lambda j, b: (j + 1, b * w + x), [f.constant(0), a])
        return i + 1, inner[1]

    return f.while_loop(lambda i, a: i < 3, outer, [f.constant(0), x])[1]


def _branch(f: Any, x: Any, w: Any) -> Any:
    return f.cond(f.reduce_sum(x) > 0.0, lambda: f.cond(x[0] > 9.0, lambda: x, lambda: x * w), lambda: f.exp(x))


def _branch_in_loop(f: Any, x: Any, w: Any) -> Any:
    def body(i: Any, a: Any) -> Any:
        return i + 1, f.cond(i > 1, lambda: a * w, lambda: f.sin(a) + x)

    return f.while_loop(lambda i, a: i < 4, body, [f.constant(0), x])[1]


def _loop_in_branch(f: Any, x: Any, w: Any) -> Any:
    return f.cond(f.reduce_sum(x) > 0.0, lambda: _loop(f, x, w), lambda: x)


def _limited(f: Any, x: Any, w: Any) -> Any:
    body = lambda i, a: [i + 1, a * w]  # noqa: E731
    return f.while_loop(lambda i, a: i < 9, body, [f.constant(0), x], maximum_iterations=3)[1]


BUILDERS = [_loop, _nested, _branch, _branch_in_loop, _loop_in_branch, _limited]


def _build(f: Any, build: Any) -> None:
    x = f.placeholder(f.float32, (3,), name="x")
    w = f.placeholder(f.float32, (3,), name="w")
    f.identity(build(f, x, w), name="y")


def _theirs(tf: Any, prepare: Any) -> list[Any]:
    with tf.Graph().as_default() as graph:
        prepare()
        y, x, w = (graph.get_tensor_by_name(f"{name}:0") for name in "yxw")
        wanted = [y, *tf.gradients(y, [x, w])]
        with tf.Session() as session:
            return list(session.run(wanted, {x: X, w: W}))


async def _ours(prepare: Any, scope: str = "") -> list[Any]:
    with af.Graph().as_default() as graph:
        prepare()
        y, x, w = (graph.get_tensor_by_name(f"{scope}{name}:0") for name in "yxw")
        async with af.Session() as session:
            return list(await session.run([y, *af.gradients(y, [x, w])], {x: X, w: W}))


@pytest.mark.parametrize("build", BUILDERS)
async def test_gradients_through_graphs_stored_by_tensorflow(tf: Any, tmp_path: Path, build: Any) -> None:
    file = str(tmp_path / "graph.meta")
    with tf.Graph().as_default():
        _build(tf, build)
        tf.train.export_meta_graph(file)
    expected = _theirs(tf, lambda: tf.train.import_meta_graph(file))
    for scope in ("", "in"):
        found = await _ours(lambda: af.train.import_meta_graph(file, import_scope=scope or None), scope and f"{scope}/")  # noqa: B023
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("build", BUILDERS)
async def test_gradients_through_graphs_stored_by_aioflow(tf: Any, tmp_path: Path, build: Any) -> None:
    file = str(tmp_path / "graph.meta")
    with af.Graph().as_default():
        _build(af, build)
        af.train.export_meta_graph(file)
    expected = await _ours(lambda: _build(af, build))
    again = await _ours(lambda: af.train.import_meta_graph(file))
    theirs = _theirs(tf, lambda: tf.train.import_meta_graph(file))
    for built, mine, other in zip(expected, again, theirs, strict=True):
        np.testing.assert_array_equal(mine, built)
        np.testing.assert_allclose(mine, other, rtol=1e-5)

"""`assign(validate_shape=False)`: values of another shape, and static shapes of the graph afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, InvalidArgumentError


def _session() -> af.Session:
    session = af.Session()
    session.run_sync(af.global_variables_initializer())
    return session


def test_assign_accepts_a_value_of_another_shape() -> None:
    v = af.Variable([1.0, 2.0])
    with _session() as session:
        assert session.run_sync(v).tolist() == [1, 2]
        assert session.run_sync(af.assign(v, [3.0, 4.0, 5.0], validate_shape=False)).tolist() == [3, 4, 5]
        assert session.run_sync(v).tolist() == [3, 4, 5]
        assert session.run_sync(v + 1.0).tolist() == [4, 5, 6]
        assert session.run_sync(v.initializer) is None
        assert session.run_sync(v).tolist() == [1, 2]


def test_static_shape_becomes_the_common_part() -> None:
    v = af.Variable(np.zeros([2, 3], np.float32))
    later = v.assign_add(np.ones([2, 3], np.float32))
    af.assign(v, np.zeros([4, 3], np.float32), validate_shape=False)
    assert v.shape.as_list() == v.value().shape.as_list() == later.shape.as_list() == [None, 3]
    af.assign(v, np.zeros([4], np.float32), validate_shape=False)
    assert v.shape.ndims is v.read_value().shape.ndims is later.read_value().shape.ndims is None


def test_same_shape_leaves_the_graph_unchanged(graph: af.Graph) -> None:
    v = af.Variable([1.0, 2.0])
    before = graph.mutations
    af.assign(v, [3.0, 4.0], validate_shape=False)
    af.assign(v, af.placeholder("float32"), validate_shape=False)
    assert v.shape == (2,)
    assert graph.mutations == before


def test_shape_is_validated_by_default() -> None:
    v = af.Variable([1.0, 2.0])
    for validate in (None, True):
        with pytest.raises(InvalidArgumentError):
            af.assign(v, [3.0, 4.0, 5.0], validate)


def test_existing_nodes_use_the_new_shape() -> None:
    v = af.Variable([1.0, 2.0, 3.0])
    x = af.placeholder("float32", [None])
    built: dict[str, Any] = {
        "slice": v[:2],
        "last": v[-1],
        "pad": af.pad(v, [[1, 1]]),
        "tile": af.tile(v, [2]),
        "sum": af.reduce_sum(v, keepdims=True),
        "stack": af.stack([v, v]),
        "broadcast": v + x,
        "branch": af.cond(af.reduce_sum(v) > 0, lambda: v * 2.0, lambda: v),
        "loop": af.while_loop(lambda i, s: i < 2, lambda i, s: (i + 1, s * v), (0, v))[1],
        "called": _doubled(v),
    }
    assert built["loop"].shape == (3,)
    change = af.assign(v, [1.0, 2.0, 3.0, 4.0], validate_shape=False)
    with _session() as session:
        session.run_sync(change.op)
        found = session.run_sync(built, {x: [1.0]})
        new = np.array([1, 2, 3, 4], np.float32)
        expected = {
            "slice": new[:2],
            "last": new[-1],
            "pad": np.pad(new, 1),
            "tile": np.tile(new, 2),
            "sum": new.sum(keepdims=True),
            "stack": np.stack([new, new]),
            "broadcast": new + 1,
            "branch": new * 2,
            "loop": new**3,
            "called": new * 2,
        }
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert built["loop"].shape == af.TensorShape([None])


@af.function
def _doubled(x: Any) -> Any:
    return x * 2.0


def test_compiled_plan_is_not_reused_after_a_shape_change() -> None:
    v = af.Variable([[1.0, 2.0]])
    product = af.matmul(v, v, transpose_a=True)
    with _session() as session:
        assert session.run_sync(product).shape == (2, 2)
        session.run_sync(af.assign(v, [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], validate_shape=False).op)
        assert session.run_sync(product).tolist() == [[2, 4, 6], [4, 8, 12], [6, 12, 18]]


def test_another_graph_with_the_old_shape_refuses_the_value() -> None:
    v = af.Variable([1.0, 2.0], name="v")
    with _session() as session:
        session.run_sync(af.assign(v, [1.0, 2.0, 3.0], validate_shape=False).op)
        with af.Graph().as_default():
            same = af.Variable([1.0, 2.0], name="v")
            with af.Session(session.worker) as second, pytest.raises(InvalidArgumentError, match="a different shape"):
                second.run_sync(same.value())


def test_a_finalized_graph_keeps_its_shapes(graph: af.Graph) -> None:
    v = af.Variable([1.0, 2.0])
    value = af.constant([1.0, 2.0, 3.0])
    graph.finalize()
    with pytest.raises(FailedPreconditionError):
        af.assign(v, value, validate_shape=False)
    assert v.shape == (2,)

"""The scaffold of training: nodes and savers from arguments, from collections, or created."""

from __future__ import annotations

from typing import Any

import pytest

import aioflow as af
from aioflow.errors import DTypeError, FailedPreconditionError


def test_finalize_creates_missing_parts_once_per_graph(graph: af.Graph) -> None:
    af.Variable(1.0, name="v")
    first = af.train.Scaffold().finalize()
    assert graph.finalized
    keys = af.GraphKeys
    for key, made in (
        (keys.INIT_OP, first.init_op),
        (keys.READY_OP, first.ready_op),
        (keys.READY_FOR_LOCAL_INIT_OP, first.ready_for_local_init_op),
        (keys.LOCAL_INIT_OP, first.local_init_op),
        (keys.SAVERS, first.saver),
    ):
        assert graph.get_collection(key) == [made]
    second = af.train.Scaffold().finalize()
    assert (second.init_op, second.saver) == (first.init_op, first.saver)
    assert second.summary_op is None


def test_arguments_are_not_added_to_collections(graph: af.Graph) -> None:
    af.Variable(1.0, name="v")
    saver, init = af.train.Saver(), af.no_op()
    scaffold = af.train.Scaffold(init_op=init, saver=saver).finalize()
    assert (scaffold.init_op, scaffold.saver) == (init, saver)
    assert graph.get_collection(af.GraphKeys.SAVERS) == []


def test_ambiguous_savers_are_rejected() -> None:
    af.Variable(1.0, name="v")
    for _ in range(2):
        af.add_to_collection(af.GraphKeys.SAVERS, af.train.Saver())
    with pytest.raises(FailedPreconditionError, match="savers"):
        af.train.Scaffold().finalize()


def test_copy_from_scaffold() -> None:
    nodes: dict[str, Any] = {name: af.no_op() for name in ("init_op", "local_init_op", "summary_op")}
    feeds: dict[Any, Any] = {}
    texts: dict[str, Any] = {name: af.constant(["x"]) for name in ("ready_op", "ready_for_local_init_op")}
    other = af.train.Scaffold(
        **nodes, **texts, init_feed_dict=feeds, local_init_feed_dict=feeds, init_fn=lambda scaffold, session: scaffold
    )
    mine = af.no_op()
    copied = af.train.Scaffold(init_op=mine, copy_from_scaffold=other)
    assert copied.init_op is mine
    for name in (*texts, "local_init_op", "summary_op", "init_feed_dict", "local_init_feed_dict"):
        assert getattr(copied, name) is getattr(other, name)
    assert copied.init_fn is not None
    assert copied.init_fn("session") is copied  # each scaffold passes itself to the function
    with pytest.raises(DTypeError):
        af.train.Scaffold(copy_from_scaffold=3)  # type: ignore[arg-type]


async def test_local_variables_and_tables_are_initialized() -> None:
    v = af.Variable(2.0, name="v")
    local = af.Variable(v.read_value() + 1, name="local", collections=[af.GraphKeys.LOCAL_VARIABLES])
    table = af.Variable(0.0, name="table", collections=[])
    af.add_to_collection(af.GraphKeys.TABLE_INITIALIZERS, table.initializer)
    called = []

    async def init(scaffold: af.train.Scaffold, session: Any) -> None:
        called.append(float(await session.run(v)))

    scaffold = af.train.Scaffold(init_fn=init)
    async with af.train.MonitoredSession(af.train.ChiefSessionCreator(scaffold)) as session:
        assert await session.run([v, local, table]) == [2, 3, 0]
    assert called == [2.0]


async def test_graph_without_variables_can_be_trained() -> None:
    one = af.constant(1.0)
    async with af.train.MonitoredTrainingSession() as session:
        assert await session.run(one) == 1


async def test_graph_is_finalized_only_inside_the_block(graph: af.Graph) -> None:
    one = af.constant(1.0)
    async with af.train.MonitoredTrainingSession() as session:
        assert session.graph is graph
        await session.run(one)
        with pytest.raises(FailedPreconditionError, match="finalized"):
            af.constant(2.0)
    af.constant(2.0)
    graph.finalize()
    async with af.train.MonitoredTrainingSession() as session:
        pass
    assert graph.finalized
    assert session.graph is None

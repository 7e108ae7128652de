"""Pruning: exactly the nodes that a step needs, in topological order."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.errors import InvalidArgumentError
from tests.support.work import calls


def _prune(fetches: Any = (), feeds: Any = (), targets: Any = ()) -> ClientGraph:
    request = StepRequest(tuple(feeds), tuple(fetches), tuple(getattr(t, "op", t) for t in targets))
    return verify(prune(request))


def _names(graph: ClientGraph) -> set[str]:
    return {n.name for n in graph.nodes.values() if n.op not in ("_Arg", "_Retval")}


def test_unneeded_nodes_are_pruned() -> None:
    a, b = af.constant(1, name="a"), af.constant(2, name="b")
    c = af.add(a, a, name="c")
    af.add(c, b, name="later")
    graph = _prune([c])
    assert list(graph.nodes) == ["a", "c", "_retval_0"]
    assert graph.nodes["c"].inputs == (Edge("a", 0), Edge("a", 0))
    assert (graph.feeds, graph.fetches) == (0, 1)


def test_feeds_and_fetches_become_nodes() -> None:
    x = af.placeholder("float32", [None, 2], name="x")
    y = af.negative(x, name="y")
    graph = _prune([y, x, y], [x])
    assert list(graph.nodes) == ["_arg_0", "y", "_retval_0", "_retval_1", "_retval_2"]
    assert graph.nodes["_arg_0"].outputs == ((x.dtype, (None, 2)),)
    assert [graph.nodes[f"_retval_{i}"].inputs for i in range(3)] == [
        (Edge("y", 0),),
        (Edge("_arg_0", 0),),  # fetched and fed: returned unchanged
        (Edge("y", 0),),
    ]
    assert [graph.nodes[f"_retval_{i}"].attrs["index"] for i in range(3)] == [0, 1, 2]


def test_a_fed_intermediate_prunes_its_ancestors() -> None:
    x = af.placeholder("float32", [], name="x")
    middle = af.negative(x, name="middle")
    y = af.negative(middle, name="y")
    assert _names(_prune([y], [middle])) == {"y"}
    assert _names(_prune([y], [x])) == {"middle", "y"}
    assert _names(_prune([y])) == {"x", "middle", "y"}


def test_the_other_outputs_of_a_fed_node_still_need_it() -> None:
    a, b = af.constant(1.0, name="a"), af.constant(2.0, name="b")
    first, second = af.identity_n([a, b], name="pair")
    total = af.add(first, second, name="total")
    graph = _prune([total], [first])
    assert _names(graph) == {"a", "b", "pair", "total"}
    assert graph.nodes["total"].inputs == (Edge("_arg_0", 0), Edge("pair", 1))
    assert _names(_prune([total], [first, second])) == {"total"}


def test_control_inputs_are_needed() -> None:
    first = af.no_op(name="first")
    with af.control_dependencies([first]):
        y = af.constant(1, name="y")
    graph = _prune([y])
    assert list(graph.nodes) == ["first", "y", "_retval_0"]
    assert graph.nodes["y"].control == ("first",)


def test_control_edges_of_a_fed_placeholder_vanish() -> None:
    x = af.placeholder("float32", [], name="x")
    with af.control_dependencies([x]):
        y = af.constant(1, name="y")
    fed = _prune([y], [x])
    assert _names(fed) == {"y"}
    assert fed.nodes["y"].control == ()
    assert _names(_prune([y])) == {"x", "y"}


def test_control_edges_of_another_fed_node_stay() -> None:
    """The node may have effects besides its output."""
    x = af.identity(af.constant(1.0, name="c"), name="x")
    with af.control_dependencies([x]):
        y = af.constant(1, name="y")
    graph = _prune([y], [x])
    assert _names(graph) == {"c", "x", "y"}
    assert graph.nodes["y"].control == ("x",)


def test_targets_run_without_a_fetch() -> None:
    a = af.no_op(name="a")
    b = af.constant(1, name="b")
    graph = _prune(targets=[a, b])
    assert list(graph.nodes) == ["a", "b"]
    assert graph.fetches == 0


def test_a_fed_target_still_runs_unless_it_is_a_placeholder() -> None:
    x = af.placeholder("float32", [], name="x")
    y = af.negative(x, name="y")
    assert _names(_prune(feeds=[x, y], targets=[x, y])) == {"y"}


# -- imported loops: no context keeps their tensors from being fed, fetched and read -----------------------------------


def _imported_loops(**inputs: tuple[str, ...]) -> af.Graph:
    """Return an imported graph with the loops "while" and "while_1" and other inputs for some nodes."""
    with af.Graph().as_default() as graph:
        for _ in range(2):
            af.while_loop(lambda i, n: i < n, lambda i, n: (i + 1, n), [af.constant(0), af.constant(3)])
    definition = graph.as_graph_def()
    nodes = tuple(replace(n, inputs=inputs.get(n.name.replace("/", "_"), n.inputs)) for n in definition.nodes)
    with af.Graph().as_default() as imported:
        af.import_graph_def(replace(definition, nodes=nodes), name="")
    return imported


def test_tensors_inside_a_loop_cannot_be_fetched() -> None:
    graph = _imported_loops()
    with pytest.raises(InvalidArgumentError, match="'while/add:0' cannot be fetched") as caught:
        _prune([graph.get_tensor_by_name("while/add:0")])
    assert caught.value.node == "while/add"
    assert "while/Exit" in _names(_prune([graph.get_tensor_by_name("while/Exit:0")]))


@pytest.mark.parametrize(
    ("fed", "inputs"),
    [
        (["while/Enter_1:0"], {}),
        ([], {"while_add": ("while/Switch:1", "Const")}),
        ([], {"while_Merge": ("while/Enter", "while_1/NextIteration")}),
    ],
    ids=["a feed", "a constant", "another loop"],
)
def test_a_loop_cannot_read_tensors_of_another_frame(fed: list[str], inputs: dict[str, tuple[str, ...]]) -> None:
    graph = _imported_loops(**inputs)
    with pytest.raises(InvalidArgumentError, match="has inputs from different frames"):
        _prune([graph.get_tensor_by_name("while/Exit:0")], [graph.get_tensor_by_name(name) for name in fed])


def test_an_empty_step_has_no_nodes() -> None:
    graph = _prune()
    assert (dict(graph.nodes), graph.feeds, graph.fetches) == ({}, 0, 0)


def test_an_unread_feed_is_kept() -> None:
    x = af.placeholder("float32", [], name="x")
    assert list(_prune([af.constant(1, name="c")], [x]).nodes) == ["_arg_0", "c", "_retval_0"]


def test_nodes_keep_their_source_and_device() -> None:
    with af.device("/cpu:0"):
        y = af.constant(1, name="y")
    node = _prune([y]).nodes["y"]
    assert (node.device, node.source, node.op) == ("/device:CPU:0", y.op.source, "Const")
    assert node.attrs["value"] == 1


@pytest.mark.parametrize("by", ["data", "control"])
def test_a_chain_of_20000_nodes(by: str) -> None:
    """The chain exceeds Python's recursion limit."""
    assert len(verify(prune(_chain(20_000, by))).nodes) == 20_001


@pytest.mark.parametrize("by", ["data", "control"])
def test_pruning_takes_linear_time(by: str) -> None:
    short, long = (calls(partial(prune, _chain(length, by))) for length in (200, 1_000))
    assert 4 * short < long < 6 * short


def _chain(length: int, by: str) -> StepRequest:
    with af.Graph().as_default() as graph:
        node: Any = af.constant(1.0)
        for _ in range(length):
            if by == "data":
                node = af.identity(node)
            else:
                with graph.control_dependencies([node]):
                    node = af.no_op()
        return StepRequest((), (), (getattr(node, "op", node),))


@pytest.mark.parametrize("seed", range(20))
def test_the_needed_nodes_are_the_ancestors(seed: int) -> None:
    """On random graphs, `prune` keeps exactly the ancestors, each after its inputs and control inputs."""
    rng = random.Random(seed)
    tensors = [af.placeholder("float32", [], name=f"p{i}") for i in range(3)]
    for i in range(60):
        with af.control_dependencies(rng.sample(tensors, rng.randint(0, 2))):
            tensors.append(af.add(rng.choice(tensors), rng.choice(tensors), name=f"n{i}"))
    fetches, feeds = rng.sample(tensors, 3), rng.sample(tensors, 5)
    graph = _prune(fetches, feeds)
    assert _names(graph) == _ancestors(fetches, feeds)


def _ancestors(fetches: list[af.Tensor], feeds: list[af.Tensor]) -> set[str]:
    placeholders = {t.op for t in feeds if t.op.type == "Placeholder"}
    todo = [t.op for t in fetches if t not in feeds]
    found: set[str] = set()
    while todo:
        op = todo.pop()
        if op.name not in found:
            found.add(op.name)
            todo += [t.op for t in op.inputs if t not in feeds]
            todo += [c for c in op.control_inputs if c not in placeholders]
    return found

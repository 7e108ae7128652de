"""Graph verifier: a valid graph is broken in one way at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.errors import InternalError
from aioflow.graph import dtypes


@pytest.fixture
def good() -> ClientGraph:
    """Return the graph of x → pair(x, c) → total = a + b, where c waits for `first`. Fetches are total and x."""
    x = af.placeholder("float32", [2], name="x")
    with af.control_dependencies([af.no_op(name="first")]):
        a, b = af.identity_n([x, af.constant([1.0, 2.0], name="c")], name="pair")
        total = af.add_n([a, b], name="total")
    return prune(StepRequest((x,), (total, x)))


def _changed(graph: ClientGraph, name: str, /, **changes: Any) -> ClientGraph:
    nodes = dict(graph.nodes)
    nodes[name] = replace(nodes[name], **changes)
    return replace(graph, nodes=nodes)


def _without(graph: ClientGraph, name: str) -> ClientGraph:
    return replace(graph, nodes={k: v for k, v in graph.nodes.items() if k != name})


def _reversed(graph: ClientGraph) -> ClientGraph:
    return replace(graph, nodes=dict(reversed(list(graph.nodes.items()))))


def _attrs(graph: ClientGraph, name: str, **attrs: Any) -> ClientGraph:
    merged = {k: v for k, v in {**graph.nodes[name].attrs, **attrs}.items() if v is not None}
    return _changed(graph, name, attrs=merged)


INT = OutputSpec(dtypes.int32, ())
FLOAT = OutputSpec(dtypes.float32, ())
BROKEN: list[tuple[str, Callable[[ClientGraph], ClientGraph], str]] = [
    ("listed under another name", lambda g: _changed(g, "total", name="other"), "listed as 'total'"),
    ("in the wrong order", _reversed, "comes later"),
    ("an input that is gone", lambda g: _without(g, "c"), "'c' does not exist"),
    ("a control input that is gone", lambda g: _without(g, "first"), "'first' does not exist"),
    ("a control input on itself", lambda g: _changed(g, "total", control=("total",)), "comes later"),
    ("a port too far", lambda g: _changed(g, "_retval_0", inputs=(Edge("total", 1),)), "no output 1"),
    ("a negative port", lambda g: _changed(g, "_retval_0", inputs=(Edge("total", -1),)), "no output -1"),
    ("an op that nobody defined", lambda g: _changed(g, "total", op="Nothing"), "no op 'Nothing'"),
    ("too few inputs", lambda g: _changed(g, "total", inputs=g.nodes["total"].inputs[:1]), "1 inputs, not 2"),
    ("too many inputs", lambda g: _changed(g, "total", inputs=g.nodes["total"].inputs * 2), "4 inputs, not 2"),
    ("an attribute that is gone", lambda g: _attrs(g, "total", N=None), "no attribute 'N'"),
    ("a dtype that differs", lambda g: _attrs(g, "total", T=dtypes.int32), "is float32, not int32"),
    ("a list of dtypes that differs", lambda g: _attrs(g, "pair", T=(dtypes.float32, dtypes.int32)), "not int32"),
    ("too few outputs", lambda g: _changed(g, "first", outputs=(FLOAT,)), "1 outputs, not 0"),
    ("an output of another dtype", lambda g: _changed(g, "c", outputs=(INT,)), "is int32, not float32"),
    ("a feed with an input", lambda g: _changed(g, "_arg_0", inputs=(Edge("c", 0),)), "_arg_0"),
    ("a feed of another dtype", lambda g: _attrs(g, "_arg_0", T=dtypes.int32), "is float32, not int32"),
    ("a fetch without an input", lambda g: _changed(g, "_retval_0", inputs=()), "0 inputs, not 1"),
    ("a fetch with an output", lambda g: _changed(g, "_retval_0", outputs=(FLOAT,)), "1 outputs, not 0"),
    ("a fetch number twice", lambda g: _attrs(g, "_retval_1", index=0), "not numbered"),
    ("a fetch number too far", lambda g: _attrs(g, "_retval_1", index=2), "not numbered"),
    ("a fetch without a number", lambda g: _attrs(g, "_retval_1", index=None), "no attribute 'index'"),
    ("a fetch that is gone", lambda g: _without(g, "_retval_1"), "not numbered"),
    ("a feed too few", lambda g: replace(g, feeds=2), "not numbered"),
]


def test_a_valid_graph_is_returned_unchanged(good: ClientGraph) -> None:
    assert verify(good) is good


@pytest.mark.parametrize(("breaks", "message"), [c[1:] for c in BROKEN], ids=[c[0] for c in BROKEN])
def test_a_broken_graph_is_found(good: ClientGraph, breaks: Callable[[ClientGraph], ClientGraph], message: str) -> None:
    with pytest.raises(InternalError) as caught:
        verify(breaks(good))
    assert message in str(caught.value)


def test_a_device_graph_may_lack_feeds_and_fetches(good: ClientGraph) -> None:
    verify(_without(good, "_retval_1"), whole=False)
    with pytest.raises(InternalError, match="not numbered"):
        verify(_attrs(good, "_retval_1", index=0), whole=False)


def test_the_error_shows_the_node_and_its_neighbourhood(good: ClientGraph) -> None:
    with pytest.raises(InternalError) as caught:
        verify(_attrs(good, "total", T=dtypes.int32))
    assert (caught.value.node, caught.value.op_type) == ("total", "AddN")
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__
    assert "pair = IdentityN(_arg_0:0, c:0)" in str(caught.value)


def test_an_empty_graph_passes() -> None:
    assert verify(ClientGraph({}, 0, 0)).nodes == {}


def test_consumers_and_specs_of_a_graph(good: ClientGraph) -> None:
    consumers = {name: [n.name for n in found] for name, found in good.consumers().items()}
    assert consumers["pair"] == ["total"], "each once, though it reads two outputs"
    assert consumers["first"] == ["c"]
    assert consumers["_arg_0"] == ["pair", "_retval_1"]
    assert consumers["_retval_0"] == []
    assert good.spec(Edge("pair", 1)) == (dtypes.float32, (2,))
    node = Node("n", "Op", (Edge("a", 0), Edge("a", 1)), ("b",))
    assert list(node.predecessors()) == ["a", "a", "b"]

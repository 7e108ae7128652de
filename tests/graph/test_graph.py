"""Graphs: names, lookups, ownership, collections, finalizing, default graphs, and building in several threads."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
)
from aioflow.graph import source_lines as lines_module
from tests.support.waiting import until_collected

# -- names ---------------------------------------------------------------------------------------------------------


def test_names_are_unique_ignoring_case(graph: af.Graph) -> None:
    names = [graph.unique_name(n) for n in ("a", "A", "a_1", "A", "a", "Add", "add", "ADD")]
    assert names == ["a", "A_1", "a_1_1", "A_2", "a_3", "Add", "add_1", "ADD_2"]


def test_a_taken_suffix_is_skipped() -> None:
    assert [af.no_op(name=n).name for n in ("x_1", "x", "x", "x")] == ["x_1", "x", "x_2", "x_3"]


def test_a_name_may_be_tried_without_taking_it(graph: af.Graph) -> None:
    assert [graph.unique_name("n", mark_as_used=m) for m in (False, True, False, True)] == ["n", "n", "n_1", "n_1"]


def test_an_unnamed_op_is_named_after_its_type() -> None:
    x = af.placeholder("float32")
    assert [t.name for t in (x, x + x, x + x)] == ["Placeholder:0", "add:0", "add_1:0"]


def test_an_absolute_name_is_taken_once(graph: af.Graph) -> None:
    with af.name_scope("outer"):
        assert af.no_op(name="elsewhere/node/").name == "elsewhere/node"
        with pytest.raises(AlreadyExistsError) as caught:
            af.no_op(name="elsewhere/node/")
    assert caught.value.node == "elsewhere/node"
    assert str(caught.value).endswith("  node:     'elsewhere/node'"), "and nothing of an op, which is not known"


@pytest.mark.parametrize("name", ["", "a b", "_x", "-x", "/x", "x:0", "^x", "é", "x\n", "/", "//", "a b/", "/x/"])
def test_malformed_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        af.constant(1, name=name)
    assert caught.value.actual == name


@pytest.mark.parametrize("name", ["a", "1", ".x", "a.b", "a/b", "a-b", "a\\b", "a>b", "A_"])
def test_well_formed_names_are_accepted(name: str) -> None:
    assert af.constant(1, name=name).op.name == name


def test_under_a_scope_any_letter_may_come_first() -> None:
    with af.name_scope("s"):
        assert af.no_op(name="_x").name == "s/_x"
        with af.name_scope("-t") as inner:
            assert inner == "s/-t/"


def test_names_made_by_many_threads_are_unique(graph: af.Graph) -> None:
    def build(_: int) -> list[str]:
        with graph.as_default():
            return [af.constant(i, name="c").op.name for i in range(100)]

    with ThreadPoolExecutor(8) as pool:
        names = [n for part in pool.map(build, range(8)) for n in part]
    assert len(set(names)) == 800
    assert graph.version == 800
    assert {op.name for op in graph.get_operations()} == set(names)
    assert [op.id for op in graph.get_operations()] == list(range(800))


# -- lookups -------------------------------------------------------------------------------------------------------


def test_nodes_and_tensors_by_name(graph: af.Graph) -> None:
    x = af.constant([1, 2], name="x")
    assert graph.get_operation_by_name("x") is x.op
    assert graph.get_tensor_by_name("x:0") is x
    for element, obj in ((x.op, "x"), (x, "x:0"), (x, b"x:0"), (x, x), (x.op, x.op)):
        assert graph.as_graph_element(obj) is element
    assert graph.as_graph_element(af.Variable(1.0, name="v")).name.startswith("v")


@pytest.mark.parametrize(
    ("look", "kind"),
    [
        (lambda g: g.get_operation_by_name("wieghts"), NotFoundError),
        (lambda g: g.get_tensor_by_name("wieghts:0"), NotFoundError),
        (lambda g: g.get_tensor_by_name("weights"), InvalidArgumentError),
        (lambda g: g.get_tensor_by_name("weights:"), InvalidArgumentError),
        (lambda g: g.get_tensor_by_name("weights:x"), InvalidArgumentError),
        (lambda g: g.get_tensor_by_name("weights:-1"), InvalidArgumentError),
        (lambda g: g.get_tensor_by_name("weights:²"), InvalidArgumentError),  # a digit to str.isdigit, not to int
        (lambda g: g.get_tensor_by_name("weights:1"), NotFoundError),
        (lambda g: g.as_graph_element("weights", allow_operation=False), InvalidArgumentError),
        (lambda g: g.as_graph_element("weights:0", allow_tensor=False), InvalidArgumentError),
        (lambda g: g.as_graph_element(3), InvalidArgumentError),
        (lambda g: g.as_graph_element(None), InvalidArgumentError),
    ],
)
def test_failed_lookups_explain_the_error(
    graph: af.Graph, look: Callable[[af.Graph], Any], kind: type[OpError]
) -> None:
    af.constant(1, name="weights")
    with pytest.raises(kind) as caught:
        look(graph)
    assert caught.value.expected is not None
    if kind is NotFoundError:
        assert "weights" in str(caught.value), "the error suggests the nearest name"


def test_elements_of_another_graph_are_refused(graph: af.Graph) -> None:
    with af.Graph().as_default():
        foreign = af.constant(1.0, name="foreign")
    here = af.constant(1.0)
    uses: list[Callable[[], Any]] = [
        lambda: graph.as_graph_element(foreign),
        lambda: graph.as_graph_element(foreign.op),
        lambda: here + foreign,
        lambda: here.op.add_control_input(foreign.op),
        lambda: graph.control_dependencies([foreign]).__enter__(),
        lambda: graph.colocate_with(foreign).__enter__(),
    ]
    for use in uses:
        with pytest.raises(InvalidArgumentError) as caught:
            use()
        assert "another graph" in str(caught.value)


def test_consumers_of_a_tensor() -> None:
    x = af.constant(1.0)
    y, z = af.identity(x), x * x
    with af.control_dependencies([x]):
        af.no_op()
    assert x.consumers() == [y.op, z.op]
    assert y.consumers() == []


def test_attributes_of_a_node() -> None:
    op = af.placeholder("float32", [2], name="p").op
    assert op.get_attr("shape") == (2,)
    with pytest.raises(NotFoundError) as caught:
        op.get_attr("shap")
    assert (caught.value.node, "shape" in str(caught.value.expected)) == ("p", True)


def test_set_shape_merges_with_the_known_shape() -> None:
    x = af.placeholder("float32", [None, 3])
    x.set_shape([2, None])
    assert x.shape == x.get_shape() == [2, 3]
    with pytest.raises(InvalidArgumentError):
        x.set_shape([4, 3])
    y = af.placeholder("float32")
    y.set_shape([None])
    assert y.dims == (None,)


def test_a_constant_copies_its_array() -> None:
    data = np.ones(3, np.float32)
    c = af.constant(data)
    data[:] = 7
    assert c.op.get_attr("value").tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        c.op.get_attr("value")[0] = 7


@pytest.mark.parametrize("use", [bool, len, list, lambda t: t and t, lambda t: not t, lambda t: 1 if t else 2])
def test_a_symbolic_tensor_cannot_be_used_as_a_value(use: Callable[[af.Tensor], Any]) -> None:
    x = af.placeholder("float32", [None], name="x")
    with pytest.raises(InvalidArgumentError) as caught:
        use(x)
    assert isinstance(caught.value, TypeError)
    assert caught.value.node == "x"


def test_a_tensor_of_known_length_is_iterated() -> None:
    first, second = af.placeholder("float32", [2, 3])
    assert first.dims == second.dims == (3,)
    assert first.op.type == "StridedSlice"


# -- the user's line -----------------------------------------------------------------------------------------------


def test_a_node_knows_the_line_that_made_it() -> None:
    x = af.constant(1.0) + 2.0  # THIS LINE
    for op in x.graph.get_operations():
        assert op.source is not None
        assert (op.source.filename, op.source.function) == (__file__, "test_a_node_knows_the_line_that_made_it")
        assert "THIS LINE" in Path(__file__).read_text().splitlines()[op.source.lineno - 1]


def test_a_package_with_the_engines_name_as_prefix_is_user_code(tmp_path: Path) -> None:
    """`aioflow_ops/` beside `aioflow/` is not a part of the engine."""
    beside = Path(lines_module._ENGINE.rstrip("/\\") + "_ops_of_somebody_else.py")
    code = compile("def build(af):\n    return af.constant(1)\n", str(beside), "exec")
    scope: dict[str, Any] = {}
    exec(code, scope)
    source = scope["build"](af).op.source
    assert (source.filename, source.lineno) == (str(beside), 2)


def test_engine_files_are_never_the_users_line(tmp_path: Path) -> None:
    """The link imports the package under another path."""
    link = tmp_path / "linked.py"
    link.symlink_to(Path(lines_module.__file__))
    spec = importlib.util.spec_from_file_location("linked_graph", link)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not str(link).startswith(lines_module._ENGINE)
    assert str(link).startswith(str(Path(module._ENGINE).parent))


# -- collections ---------------------------------------------------------------------------------------------------


def test_collections_keep_order_and_are_filtered_by_scope(graph: af.Graph) -> None:
    a, b = af.constant(1, name="part/a"), af.constant(1, name="b")
    for item in (a, b, 3):
        af.add_to_collection("things", item)
    graph.add_to_collections(["things", "others", "others"], a)
    assert af.get_collection("things") == [a, b, 3, a]
    assert graph.get_collection("others") == [a]
    assert graph.get_collection("things", "part/") == [a, a]
    assert graph.get_collection("things", ".*") == [a, b, a], "what has no name is in no scope"
    assert graph.get_collection("nothing") == []
    assert sorted(graph.get_all_collection_keys()) == ["others", "things"]
    graph.get_collection("things").clear()
    assert len(graph.get_collection("things")) == 4, "a copy was cleared"
    graph.get_collection_ref("things").clear()
    assert graph.get_collection("things") == []
    graph.clear_collection("others")
    assert graph.get_all_collection_keys() == []
    graph.add_to_collections("alone", 1)
    assert graph.get_collection("alone") == [1]


# -- changing a graph ----------------------------------------------------------------------------------------------


def test_a_finalized_graph_does_not_change(graph: af.Graph) -> None:
    a, b = af.no_op(name="a"), af.no_op(name="b")
    graph.finalize()
    assert graph.finalized
    for change in (lambda: af.no_op(), lambda: b.add_control_input(a), lambda: af.constant(1)):
        with pytest.raises(FailedPreconditionError, match="finalized") as caught:
            change()
        assert caught.value.source is not None
        assert caught.value.source.filename == __file__
    assert b.control_inputs == []
    assert graph.version == 2
    assert graph.get_operation_by_name("a") is a


def test_a_control_input_added_later_counts_as_a_mutation(graph: af.Graph) -> None:
    a, b = af.no_op(), af.no_op()
    before = graph.mutations
    b.add_control_input(a)
    b.add_control_input(a)
    assert b.control_inputs == [a]
    assert graph.mutations == before + 1


def test_all_or_nothing_removes_nodes_after_an_error(graph: af.Graph) -> None:
    kept = af.no_op(name="kept")
    with pytest.raises(InvalidArgumentError), graph.all_or_nothing():
        af.no_op(name=af.no_op(name="lost").name + " ")
    assert graph.get_operations() == [kept]
    assert af.no_op(name="lost").name == "lost", "the name is free again"
    with graph.all_or_nothing():
        af.no_op(name="stays")
    assert graph.version == 3


# -- default graphs ------------------------------------------------------------------------------------------------


def test_the_innermost_graph_is_the_default(graph: af.Graph) -> None:
    inner = af.Graph()
    with inner.as_default() as entered:
        assert entered is inner is af.get_default_graph()
        assert af.constant(1).graph is inner
        with graph.as_default():
            assert af.get_default_graph() is graph
        assert af.get_default_graph() is inner
    assert af.get_default_graph() is graph
    with pytest.raises(KeyError), inner.as_default():
        raise KeyError
    assert af.get_default_graph() is graph


def _in_a_new_thread(function: Callable[[], Any]) -> Any:
    """Return the result of a function in a new thread, which starts without the scopes of the test."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def test_a_thread_starts_with_the_default_graph_of_the_process(graph: af.Graph) -> None:
    shared = _in_a_new_thread(af.get_default_graph)
    assert shared is not graph
    assert _in_a_new_thread(af.get_default_graph) is shared


def test_resetting_the_default_graph(graph: af.Graph) -> None:
    before = _in_a_new_thread(af.get_default_graph)
    _in_a_new_thread(af.reset_default_graph)
    after = _in_a_new_thread(af.get_default_graph)
    assert after is not before
    assert after.version == 0
    with pytest.raises(FailedPreconditionError, match="as_default"):
        af.reset_default_graph()
    assert _in_a_new_thread(af.get_default_graph) is after


async def test_tasks_have_default_graphs_of_their_own(graph: af.Graph) -> None:
    ready = asyncio.Barrier(3)

    async def build() -> bool:
        mine = af.Graph()
        with mine.as_default():
            await ready.wait()
            made = af.constant(1).graph is mine
            await ready.wait()
            return made and af.get_default_graph() is mine

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(build()) for _ in range(3)]
    assert all(t.result() for t in tasks)
    assert af.get_default_graph() is graph
    assert graph.version == 0


def test_the_package_keeps_no_graph_alive() -> None:
    with af.Graph().as_default() as made:
        af.constant(1) + 2
    reference = weakref.ref(made)
    del made
    until_collected(reference)


def test_attributes_in_tensorflows_form() -> None:
    x = af.placeholder("float32", [1, 4, 4, 1], name="x")
    conv = af.nn.conv2d(x, af.ones([2, 2, 1, 1]), [1, 1, 2, 1], "SAME").op
    assert (conv.get_attr("padding"), conv.get_attr("strides")) == (b"SAME", [1, 1, 2, 1])
    assert (conv.get_attr("T"), conv.get_attr("use_cudnn_on_gpu")) == (af.float32, True)
    queue = af.FIFOQueue(3, ["float32", "string"], [[2], []]).queue_ref.op
    assert queue.get_attr("component_types") == [af.float32, af.string]
    assert queue.get_attr("shapes") == [af.TensorShape([2]), af.TensorShape([])]
    again = af.raw_ops.Conv2D(input=x, filter=af.ones([2, 2, 1, 1]), strides=conv.get_attr("strides"),
                              padding=conv.get_attr("padding"))  # fmt: skip
    assert again.op.attrs == conv.attrs


def test_lists_returned_by_a_node_are_copies() -> None:
    a = af.constant(1.0, name="a")
    with af.control_dependencies([a]):
        b = af.no_op(name="b")
    b.control_inputs.clear()
    assert b.control_inputs == [a.op]
    assert a.op.values() == (a,)
    assert a.op.colocation_groups() == [b"loc:@a"]


def test_a_variable_follows_its_colocation_scopes() -> None:
    a = af.constant(1.0, name="a")
    with af.device("/cpu:1"):
        b = af.constant(1.0, name="b")
    with af.colocate_with(a), af.colocate_with(b), af.device("/cpu:0"):
        v = af.get_variable("v", initializer=1.0)
    assert v.op.colocation_groups() == [b"loc:@a", b"loc:@b"]
    assert v.device == "/device:CPU:1"
    w = af.get_variable("w", initializer=1.0)
    assert w.op.colocation_groups() == [b"loc:@w"]
    assert w.initial_value.op.colocation_groups() == [b"loc:@w"]

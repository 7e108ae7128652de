"""`import_graph_def`: names, maps, scopes, and malformed definitions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow import errors
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.graph.opdef import OpDef
from aioflow.graph.signature.attributes import AttrDef
from aioflow.testing.evaluate import evaluate
from tests.support.random_examples import examples

F32 = af.float32


def sample() -> GraphDef:
    """Return a graph of x → y = x·w; x split in two parts; z = second part − 1, after y."""
    with af.Graph().as_default() as graph:
        with af.device("/cpu:0"):
            x = af.placeholder(F32, [None, 3], name="x")
        w = af.constant([[1.0], [2.0], [3.0]], name="w")
        with af.colocate_with(w.op):
            y = af.matmul(x, w, name="y")
        _, b = af.split(x, [1, 2], axis=1, name="parts")
        with af.control_dependencies([y]):
            af.subtract(b, 1.0, name="z")
    return graph.as_graph_def()


def const(name: str, value: Any = 1.0, inputs: tuple[str, ...] = (), **attrs: Any) -> NodeDef:
    data = TensorData.of(np.asarray(value, np.float32))
    return NodeDef(name, "Const", inputs, "", {"value": data, "dtype": F32, **attrs})


def identity(name: str, *inputs: str, **attrs: Any) -> NodeDef:
    return NodeDef(name, "Identity", inputs, "", {"T": F32} | attrs)


# ── valid definitions ────────────────────────────────────────────────────────────────────────────────────────────────


def test_import_at_the_root_keeps_the_definition(graph: af.Graph) -> None:
    definition = sample()
    af.import_graph_def(definition, name="")
    assert graph.as_graph_def() == definition


def test_the_default_scope_is_import(graph: af.Graph) -> None:
    found = af.import_graph_def(sample(), return_elements=["z:0", "y", "parts:1"])
    assert [e.name for e in found] == ["import/z:0", "import/y", "import/parts:1"]
    y = found[1]
    assert isinstance(y, af.Operation)
    assert y.colocation_groups() == [b"loc:@import/w"]
    assert [t.name for t in y.inputs] == ["import/x:0", "import/w:0"]
    assert y.outputs[0].get_shape().as_list() == [None, 1]
    assert graph.get_operation_by_name("import/x").device == "/device:CPU:0"
    # The constant 1.0 was created inside the block, so it waits for y; z waits through it.
    assert [c.name for c in graph.get_operation_by_name("import/z/y").control_inputs] == ["import/y"]
    assert y.source is not None
    assert y.source.filename == __file__


def test_scopes_are_unique_unless_they_are_absolute() -> None:
    definition = GraphDef((const("c"),))
    names = []
    for name in ("p", "p", None, None):
        (found,) = af.import_graph_def(definition, return_elements=["c"], name=name)
        names.append(found.name)
    with af.name_scope("outer"):
        (found,) = af.import_graph_def(definition, return_elements=["c"], name="p")
        names.append(found.name)
        (found,) = af.import_graph_def(definition, return_elements=["c"], name="")
        names.append(found.name)
    assert names == ["p/c", "p_1/c", "import/c", "import_1/c", "outer/p/c", "c"]


def test_import_merges_device_scopes_and_control_dependencies(graph: af.Graph) -> None:
    gate = af.no_op(name="gate")
    with af.device("/job:worker/gpu:1"), af.control_dependencies([gate]):
        af.import_graph_def(sample(), name="q")
    assert graph.get_operation_by_name("q/x").device == "/job:worker/device:CPU:0"
    assert graph.get_operation_by_name("q/w").device == "/job:worker/device:GPU:1"
    assert graph.get_operation_by_name("q/w").control_inputs == [gate]
    assert gate in graph.get_operation_by_name("q/z/y").control_inputs


def test_imported_loop_waits_at_its_enters() -> None:
    # Edges into a loop may only pass through an Enter.
    with af.Graph().as_default() as source:
        x = af.placeholder(af.float32, [], name="x")
        af.identity(af.while_loop(lambda v: v < 9.0, lambda v: v + v, [x]), name="y")
    counter = af.Variable(1.0)
    with af.control_dependencies([counter.assign_add(5.0)]):
        inputs = {"x:0": af.constant(1.0)}
        [y] = af.import_graph_def(source.as_graph_def(), input_map=inputs, return_elements=["y:0"])

    async def both() -> list[Any]:
        async with af.Session() as session:
            await session.run(counter.initializer)
            return [await session.run(y), await session.run(counter)]

    assert asyncio.run(both()) == [16.0, 6.0]


def test_imported_graph_computes_the_same_values() -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    found = af.import_graph_def(sample(), return_elements=["x:0", "y:0", "z:0"])
    y, z = evaluate(found[1:], {found[0]: x})
    assert y.tolist() == [[14], [32]]
    assert z.tolist() == [[1, 2], [4, 5]]


def test_the_order_of_the_definition_does_not_matter(graph: af.Graph) -> None:
    definition = sample()
    af.import_graph_def(GraphDef(definition.nodes[::-1]), name="")
    assert sorted(graph.as_graph_def().nodes, key=lambda n: n.name) == sorted(definition.nodes, key=lambda n: n.name)


def test_missing_attributes_with_defaults_are_filled_in(graph: af.Graph) -> None:
    product = NodeDef("p", "MatMul", ("m", "m"), "", {"T": F32})
    af.import_graph_def(GraphDef((const("m", [[2.0]]), product)), name="")
    assert graph.get_operation_by_name("p").get_attr("transpose_a") is False


def test_known_shapes_are_kept_with_add_shapes(graph: af.Graph) -> None:
    with af.Graph().as_default() as source:
        x = af.placeholder(F32, name="x")
        x.set_shape([2, None])
    af.import_graph_def(source.as_graph_def(), name="without")
    af.import_graph_def(source.as_graph_def(add_shapes=True), name="with")
    assert graph.get_tensor_by_name("without/x:0").dims is None
    assert graph.get_tensor_by_name("with/x:0").dims == (2, None)
    assert "_output_shapes" not in graph.get_operation_by_name("with/x").attrs


def test_private_attributes_are_kept(graph: af.Graph) -> None:
    af.import_graph_def(GraphDef((const("c", _kernel="special", _numbers=(1, 2)),)), name="")
    op = graph.get_operation_by_name("c")
    assert op.get_attr("_kernel") == b"special"
    assert op.get_attr("_numbers") == [1, 2]


def test_an_attribute_of_a_newer_producer_is_dropped_at_its_default(graph: af.Graph) -> None:
    newer = OpDef("Identity", (), (), {"fast": AttrDef("fast", "bool", False, True)})
    definition = GraphDef((const("c"), identity("i", "c", fast=False)))
    with pytest.raises(errors.NotFoundError):
        af.import_graph_def(definition, name="a")
    af.import_graph_def(definition, name="a", producer_op_list=[newer])
    assert "fast" not in graph.get_operation_by_name("a/i").attrs
    changed = GraphDef((const("c"), identity("i", "c", fast=True)))
    with pytest.raises(errors.NotFoundError):
        af.import_graph_def(changed, name="b", producer_op_list=[newer])


# ── input_map and return_elements ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["x", "x:0", b"x:0"])
def test_a_mapped_input(graph: af.Graph, key: Any) -> None:
    mine = af.constant([[1.0, 1.0, 1.0]], name="mine")
    found = af.import_graph_def(sample(), {key: mine}, ["y:0", "x:0", "x"], name="p")
    y, x, node = found
    assert isinstance(y, af.Tensor)
    assert y.op.inputs[0] is mine
    assert y.dims == (1, 1)
    assert x is mine
    assert node is graph.get_operation_by_name("p/x")
    assert evaluate([y])[0].tolist() == [[6]]


def test_values_in_the_map_are_converted() -> None:
    (y,) = af.import_graph_def(sample(), {"x": np.ones((2, 3), np.float32)}, ["y:0"])
    assert evaluate([y])[0].tolist() == [[6], [6]]


def test_a_mapped_control_input(graph: af.Graph) -> None:
    gate = af.no_op(name="gate")
    af.import_graph_def(sample(), {"^y": gate}, name="p")
    assert graph.get_operation_by_name("p/z/y").control_inputs == [gate]


def test_a_mapped_input_need_not_be_in_the_definition(graph: af.Graph) -> None:
    c = af.constant(2.0, name="c")
    af.import_graph_def(GraphDef((identity("i", "elsewhere:3"),)), {"elsewhere:3": c}, name="")
    assert graph.get_operation_by_name("i").inputs == (c,)


def test_unused_output_may_be_mapped() -> None:
    af.import_graph_def(sample(), {"z:0": af.constant(1.0)})


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

C = const("c")
IDENTITY_N = NodeDef("n", "IdentityN", ("c",), "", {"T": (af.int32,)})
WRONG: dict[str, tuple[tuple[NodeDef, ...], type[errors.OpError], str]] = {
    "a name twice": ((C, C), errors.InvalidArgumentError, "c"),
    "an unknown op": ((NodeDef("n", "MatMull"),), errors.NotFoundError, "n"),
    "an unknown input": ((identity("i", "nobody"),), errors.InvalidArgumentError, "i"),
    "an unknown output": ((C, identity("i", "c:1")), errors.InvalidArgumentError, "i"),
    "an unknown control input": ((const("d", inputs=("^nobody",)),), errors.InvalidArgumentError, "d"),
    "a node that reads itself": ((identity("i", "i"),), errors.InvalidArgumentError, "i"),
    "a cycle": ((identity("i", "k"), identity("j", "i"), identity("k", "j")), errors.InvalidArgumentError, "i"),
    "a cycle of control": ((const("d", inputs=("^e",)), const("e", inputs=("^d",))), errors.InvalidArgumentError, "d"),
    "too few inputs": ((identity("i"),), errors.InvalidArgumentError, "i"),
    "too many inputs": ((C, identity("i", "c", "c")), errors.InvalidArgumentError, "i"),
    "no dtype": ((C, NodeDef("i", "Identity", ("c",))), errors.InvalidArgumentError, "i"),
    "another dtype": ((C, NodeDef("i", "Identity", ("c",), "", {"T": af.int32})), errors.DTypeError, "i"),
    "other dtypes": ((C, IDENTITY_N), errors.DTypeError, "n"),
    "a dtype by number": ((C, NodeDef("i", "Identity", ("c",), "", {"T": 1})), errors.InvalidArgumentError, "i"),
    "an unknown attribute": ((C, identity("i", "c", color="red")), errors.NotFoundError, "i"),
    "a constant without its value": ((NodeDef("k", "Const", attrs={"dtype": F32}),), errors.InvalidArgumentError, "k"),
    "a constant that is text": (
        (NodeDef("k", "Const", attrs={"dtype": F32, "value": "1"}),), errors.InvalidArgumentError, "k"),
    "a constant of another dtype": ((const("k", dtype=af.int32),), errors.DTypeError, "k"),
    "an attribute of another kind": (
        (C, NodeDef("p", "Placeholder", attrs={"dtype": F32, "shape": "wide"})), errors.InvalidArgumentError, "p"),
    "a dtype the op does not take": (
        (NodeDef("s", "Const", attrs={"dtype": af.string, "value": TensorData(af.string, (), (b"",))}),
         NodeDef("m", "MatMul", ("s", "s"), "", {"T": af.string})), errors.InvalidArgumentError, "m"),
    "shapes that do not fit": (
        (const("m", [[1.0, 2.0]]), NodeDef("p", "MatMul", ("m", "m"), "", {"T": F32})),
        errors.InvalidArgumentError, "p"),
    "shapes that were never so": ((const("k", _output_shapes=((2,),)),), errors.InvalidArgumentError, "k"),
    "shapes of another count": ((const("k", _output_shapes=((), ())),), errors.InvalidArgumentError, "k"),
    "shapes that are none": ((const("k", _output_shapes=("x",)),), errors.InvalidArgumentError, "k"),
    "a malformed device": ((NodeDef("n", "NoOp", (), "/cpu:zero"),), errors.InvalidArgumentError, "n"),
    "colocation with nobody": ((const("k", _class=("loc:@nobody",)),), errors.InvalidArgumentError, "k"),
    "colocation with a number": ((const("k", _class=(1,)),), errors.InvalidArgumentError, "k"),
    "an op of the compiler": (
        (NodeDef("r", "_Recv", attrs={"tensor_type": F32, "shape": (), "tensor_name": "e", "send_device": "/cpu:0",
                                      "recv_device": "/cpu:0", "maybe_dead": False}),),
        errors.InvalidArgumentError, "r"),
    "an op of a worker": ((C, NodeDef("h", "_ToHost", ("c",), "", {"T": F32})), errors.InvalidArgumentError, "h"),
    "too many outputs": (
        (C, const("a"), NodeDef("s", "Split", ("a", "c"), "", {"T": F32, "num_split": 2**40})),
        errors.InvalidArgumentError, "s"),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "error", "blamed"), WRONG.values(), ids=WRONG.keys())
def test_import_error_names_the_node_and_adds_nothing(
    graph: af.Graph, nodes: tuple[NodeDef, ...], error: type[errors.OpError], blamed: str
) -> None:
    af.constant(0.0, name="before")
    with pytest.raises(error) as caught:
        af.import_graph_def(GraphDef(nodes), name="")
    assert caught.value.node == blamed
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__
    assert [op.name for op in graph.get_operations()] == ["before"]
    # The failed import has released its names and its scope.
    af.import_graph_def(GraphDef((C,)))
    assert [op.name for op in graph.get_operations()] == ["before", "import/c"]


def test_import_error_shows_the_cycle() -> None:
    nodes = (C, identity("i", "k"), identity("j", "i"), identity("k", "j"), identity("after", "k"))
    with pytest.raises(errors.InvalidArgumentError) as caught:
        af.import_graph_def(GraphDef(nodes))
    assert caught.value.actual == "k ← j ← i ← k"


def test_name_in_use_is_refused(graph: af.Graph) -> None:
    # TensorFlow names the new node c_1, so that a lookup of "c" returns the old node.
    af.constant(1.0, name="c")
    with pytest.raises(errors.AlreadyExistsError) as caught:
        af.import_graph_def(GraphDef((C,)), name="")
    assert caught.value.node == "c"
    assert graph.version == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda d: af.import_graph_def(d, {"nobody": af.constant(1.0)}),
        lambda d: af.import_graph_def(d, {"w:1": af.constant(1.0)}),
        lambda d: af.import_graph_def(d, {"^nobody": af.no_op()}),
        lambda d: af.import_graph_def(d, {"x": af.constant(1.0), "x:0": af.constant(1.0)}),
        lambda d: af.import_graph_def(d, {"^y": 3}),
        lambda d: af.import_graph_def(d, {"x y": af.constant(1.0)}),
        lambda d: af.import_graph_def(d, return_elements=["nobody"]),
        lambda d: af.import_graph_def(d, return_elements=["y:3"]),
        lambda d: af.import_graph_def(d, return_elements=["^y"]),
        lambda d: af.import_graph_def(GraphDef((), 2)),
        lambda d: af.import_graph_def(d.to_bytes()),
    ],
)
def test_wrong_arguments_are_refused(graph: af.Graph, call: Callable[[GraphDef], Any]) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        call(sample())
    assert not [op for op in graph.get_operations() if op.name.startswith("import")]


def test_input_map_rejects_tensors_of_another_graph() -> None:
    with af.Graph().as_default():
        foreign = af.constant([[1.0, 2.0, 3.0]])
    with pytest.raises(errors.InvalidArgumentError):
        af.import_graph_def(sample(), {"x": foreign})


def test_a_finalized_graph_is_refused(graph: af.Graph) -> None:
    graph.finalize()
    with pytest.raises(errors.FailedPreconditionError):
        af.import_graph_def(sample())


def test_failing_shape_function_is_an_invalid_argument() -> None:
    # Only an import passes attributes to shape functions that builders would reject.
    pool = NodeDef("p", "MaxPool", ("c",), "", {"T": F32, "ksize": (1,), "strides": (), "padding": "SAME"})
    with pytest.raises(errors.InvalidArgumentError) as caught:
        af.import_graph_def(GraphDef((const("c", np.zeros((1, 2, 2, 1))), pool)))
    assert caught.value.node == "p"


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def graphs(draw: st.DrawFn) -> tuple[af.Graph, dict[str, Any]]:
    """Draw a graph of ops over [2, 2] floats, with scopes, control inputs and devices, and values for its feeds."""
    feeds: dict[str, Any] = {}
    with af.Graph().as_default() as graph:
        tensors = [af.constant([[1.0, 2.0], [3.0, 4.0]])]

        def pick() -> af.Tensor:
            return tensors[draw(st.integers(0, len(tensors) - 1))]

        for i in range(draw(st.integers(1, 8))):
            with (
                af.name_scope(f"s{i}" if draw(st.booleans()) else None),
                af.device(draw(st.sampled_from(["", "/cpu:0"]))),
            ):
                kind = draw(st.integers(0, 6))
                if kind == 0:
                    x = af.placeholder(F32, [None, 2], name="x")
                    x.set_shape([2, 2])
                    feeds[x.name] = np.full((2, 2), i, np.float32)
                    made = [x]
                elif kind == 1:
                    made = [af.add(pick(), pick())]
                elif kind == 2:
                    made = [af.matmul(pick(), pick(), transpose_b=draw(st.booleans()))]
                elif kind == 3:
                    made = list(af.identity_n([pick(), pick()]))
                elif kind == 4:
                    made = [af.concat(af.split(pick(), 2, axis=1), axis=1)]
                elif kind == 5:
                    with af.control_dependencies([pick()]):
                        made = [af.identity(pick())]
                else:
                    with af.colocate_with(pick().op):
                        made = [af.reduce_sum(af.stack([pick(), pick()]), axis=0)]
            tensors.extend(made)
    return graph, feeds


@settings(max_examples=examples(60), deadline=None)
@given(graphs())
def test_graph_survives_serialization(made: tuple[af.Graph, dict[str, Any]]) -> None:
    graph, feeds = made
    definition = graph.as_graph_def(add_shapes=True)
    with af.Graph().as_default() as copy:
        af.import_graph_def(GraphDef.from_bytes(definition.to_bytes()), name="")
    assert copy.as_graph_def(add_shapes=True) == definition
    values = [
        evaluate([g.get_operations()[-1].outputs[0]], {g.get_tensor_by_name(n): v for n, v in feeds.items()})[0]
        for g in (graph, copy)
    ]
    np.testing.assert_array_equal(values[0], values[1])


@settings(max_examples=examples(150), deadline=None)
@given(graphs(), st.data())
def test_an_altered_definition_is_imported_or_refused(
    made: tuple[af.Graph, dict[str, Any]], data: st.DataObject
) -> None:
    text = bytearray(made[0].as_graph_def(add_shapes=data.draw(st.booleans())).to_json().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(b'0123456789abcfint:"[]{},^-$'))
    with contextlib.suppress(errors.AioflowError), af.Graph().as_default():
        af.import_graph_def(GraphDef.from_json(bytes(text)))

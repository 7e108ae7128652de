"""Graph definitions against TensorFlow's: the same program gives the same nodes, and each system runs the other's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.graph.opdef import OPS
from aioflow.testing.evaluate import evaluate

# TensorFlow records here that a control input was asked for by hand, which says nothing about the node.
IGNORED = {"_has_manual_control_dependencies"}


def perceptron(m: Any) -> None:
    x = m.placeholder(m.float32, [None, 3], name="x")
    with m.name_scope("layer"):
        w = m.constant([[0.5, -1.0], [1.0, 2.0], [0.0, 0.25]], name="w")
        b = m.constant([0.1, 0.2], name="b")
        h = m.nn.relu(m.nn.bias_add(m.matmul(x, w), b), name="h")
    m.nn.softmax(h, name="out")


def convolution(m: Any) -> None:
    x = m.placeholder(m.float32, [2, 4, 4, 1], name="x")
    filters = m.constant(np.linspace(-1, 1, 18, dtype=np.float32).reshape(3, 3, 1, 2), name="filters")
    y = m.nn.relu(m.nn.conv2d(x, filters, strides=[1, 1, 1, 1], padding="SAME", name="conv"))
    y = m.nn.max_pool(y, [1, 2, 2, 1], [1, 2, 2, 1], "VALID", name="pool")
    m.reduce_sum(y, axis=[1, 2], name="out")


def scopes(m: Any) -> None:
    with m.device("/cpu:0"):
        x = m.placeholder(m.float32, [2, 3], name="x")
    with m.name_scope("outer"), m.name_scope("inner"), m.device("/job:w/task:1"):
        y = m.identity(x, name="y")
    with m.name_scope("outer"), m.colocate_with(y.op):
        a, b = m.split(x, [1, 2], axis=1, name="parts")
    with m.control_dependencies([y, m.no_op(name="gate")]):
        z = m.identity(b, name="z")
    m.concat([a, z], axis=1, name="out")


def casts(m: Any) -> None:
    x = m.placeholder(m.float32, [2, 3], name="x")
    y = m.cast(x, m.int64, name="y")
    s = m.shape(x, name="s")
    stacked = m.stack([y, y], axis=1, name="stacked")
    m.reshape(stacked, [-1], name="out")
    m.reshape(x, s, name="same")


def operators(m: Any) -> None:
    x = m.placeholder(m.float32, [2, 3], name="x")
    y = 2.0 * x + 1.0
    y = m.squared_difference(-y, 0.5) * 3.0 - 1.0
    m.reduce_mean(m.maximum(y, 0.0) - m.exp(x), axis=1, name="out")


FEEDS: dict[Callable[[Any], None], tuple[int, ...]] = {
    perceptron: (4, 3), convolution: (2, 4, 4, 1), scopes: (2, 3), casts: (2, 3), operators: (2, 3)
}  # fmt: skip
PROGRAMS = pytest.mark.parametrize("program", FEEDS, ids=lambda f: f.__name__)


def plain(tf: Any, value: Any) -> Any:
    """A TensorFlow attribute as one of ours."""
    kind = value.WhichOneof("value")
    if kind == "list":
        items = next((list(items) for _, items in value.list.ListFields()), [])
        return tuple(_plain_item(tf, item) for item in items)
    return _plain_item(tf, getattr(value, kind))


def _plain_item(tf: Any, item: Any) -> Any:
    if isinstance(item, bytes):
        return item.decode()
    if hasattr(item, "unknown_rank"):
        return None if item.unknown_rank else tuple(None if d.size < 0 else d.size for d in item.dim)
    if hasattr(item, "tensor_shape"):
        return TensorData.of(tf.make_ndarray(item))
    return item


def from_tensorflow(tf: Any, definition: Any) -> GraphDef:
    nodes = []
    for node in definition.node:
        attrs = {key: plain(tf, value) for key, value in node.attr.items() if key not in IGNORED}
        for key, value in node.attr.items():
            if value.WhichOneof("value") == "type":
                attrs[key] = as_dtype(value.type)
            elif value.list.type:
                attrs[key] = tuple(as_dtype(t) for t in value.list.type)
        nodes.append(NodeDef(node.name, node.op, tuple(node.input), node.device, attrs))
    return GraphDef(tuple(nodes))


def to_tensorflow(tf: Any, definition: GraphDef) -> Any:
    result = tf.GraphDef()
    result.versions.producer = 2000
    for node in definition.nodes:
        made = result.node.add(name=node.name, op=node.op, input=node.inputs, device=node.device)
        kinds = {k: a.kind for k, a in OPS.get(node.op).attrs.items()}
        for key, value in node.attrs.items():
            _set_attr(tf, made.attr[key], kinds.get(key, "list(string)"), value)
    return result


def _set_attr(tf: Any, attr: Any, kind: str, value: Any) -> None:
    if kind.startswith("list("):
        attr.list.SetInParent()
        for item in value:
            field, content = _field(tf, kind[5:-1], item)
            getattr(attr.list, field).append(content)
        return
    field, content = _field(tf, kind, value)
    if field in ("tensor", "shape"):
        getattr(attr, field).CopyFrom(content)
    else:
        setattr(attr, field, content)


def _field(tf: Any, kind: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, DType):
        return "type", value.as_datatype_enum
    if isinstance(value, TensorData):
        return "tensor", tf.make_tensor_proto(value.to_array())
    if kind == "shape":
        return "shape", tf.TensorShape(value).as_proto()
    if kind == "string":
        return "s", value.encode()
    return {"int": "i", "float": "f", "bool": "b"}[kind], value


def built(module: Any, program: Callable[[Any], None]) -> Any:
    with module.Graph().as_default() as graph:
        program(module)
    return graph


@PROGRAMS
def test_the_nodes_are_the_same(tf: Any, program: Callable[[Any], None]) -> None:
    theirs = from_tensorflow(tf, built(tf, program).as_graph_def(add_shapes=True))
    ours = built(aioflow, program).as_graph_def(add_shapes=True)
    assert [n.name for n in ours.nodes] == [n.name for n in theirs.nodes]
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        assert mine == other


@PROGRAMS
@pytest.mark.parametrize("from_them", [True, False])
def test_each_system_runs_the_others_graph(tf: Any, program: Callable[[Any], None], from_them: bool) -> None:
    x = np.random.default_rng(3).standard_normal(FEEDS[program]).astype(np.float32)
    theirs, ours = built(tf, program), built(aioflow, program)
    if from_them:
        with aioflow.Graph().as_default() as ours:
            aioflow.import_graph_def(from_tensorflow(tf, theirs.as_graph_def()), name="")
    else:
        with tf.Graph().as_default() as theirs:
            tf.import_graph_def(to_tensorflow(tf, ours.as_graph_def()), name="")
    (mine,) = evaluate([ours.get_tensor_by_name("out:0")], {ours.get_tensor_by_name("x:0"): x})
    with tf.Session(graph=theirs, config=tf.ConfigProto(allow_soft_placement=True)) as session:
        other = session.run(_anywhere(theirs), {"x:0": x})
    np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def _anywhere(graph: Any) -> Any:
    """The output of a graph whose devices name a worker that there is not."""
    for op in graph.get_operations():
        op._set_device("")
    return "out:0"


def _documented() -> dict[str, Any]:
    """The functions that docs/compatibility.md gives for graphs of TensorFlow."""
    text = (Path(__file__).parents[2] / "docs/compatibility.md").read_text(encoding="utf-8")
    (code,) = (part.partition("```")[0] for part in text.split("```python\n")[1:])
    scope: dict[str, Any] = {}
    exec(code, scope)
    return scope


@PROGRAMS
def test_a_file_of_tensorflow_comes_over_as_the_documents_say(
    tf: Any, program: Callable[[Any], None], tmp_path: Path
) -> None:
    file, x = tmp_path / "frozen.pb", np.random.default_rng(3).standard_normal(FEEDS[program]).astype(np.float32)
    theirs = built(tf, program)
    file.write_bytes(theirs.as_graph_def(add_shapes=True).SerializeToString())
    with aioflow.Graph().as_default() as ours:
        aioflow.import_graph_def(_documented()["read"](file), name="")
    (mine,) = evaluate([ours.get_tensor_by_name("out:0")], {ours.get_tensor_by_name("x:0"): x})
    with tf.Session(graph=theirs, config=tf.ConfigProto(allow_soft_placement=True)) as session:
        other = session.run(_anywhere(theirs), {"x:0": x})
    np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@PROGRAMS
def test_their_files_are_recognised(tf: Any, program: Callable[[Any], None], tmp_path: Path) -> None:
    graph = built(tf, program)
    meta = tf.train.export_meta_graph(graph=graph)
    saved = tmp_path / "saved"
    with tf.Session(graph=graph, config=tf.ConfigProto(allow_soft_placement=True)) as session:
        _anywhere(graph)
        ends = {"x": graph.get_tensor_by_name("x:0")}, {"out": graph.get_tensor_by_name("out:0")}
        tf.saved_model.simple_save(session, str(saved), *ends)
    files = {
        "GraphDef (.pb)": graph.as_graph_def().SerializeToString(),
        "MetaGraphDef (.meta)": meta.SerializeToString(),
        "SavedModel": (saved / "saved_model.pb").read_bytes(),
        "text (.pbtxt)": str(graph.as_graph_def()).encode(),
        "as text (.pbtxt)": str(meta).encode(),
    }
    for what, data in files.items():
        (tmp_path / "file").write_bytes(data)
        with pytest.raises(InvalidArgumentError, match=re.escape(what)):
            aioflow.train.read_graph(tmp_path / "file")
    with pytest.raises(InvalidArgumentError, match="a GraphDef of TensorFlow"):
        aioflow.import_graph_def(graph.as_graph_def())


@PROGRAMS
def test_an_import_makes_the_same_nodes(tf: Any, program: Callable[[Any], None]) -> None:
    made = []
    for module in (tf, aioflow):
        definition = built(module, program).as_graph_def()
        with module.Graph().as_default() as graph:
            module.import_graph_def(definition, name="first")
            with module.device("/job:j/gpu:3"), module.name_scope("scope"):
                mapped = module.constant(np.zeros(FEEDS[program], np.float32), name="mapped")
                module.import_graph_def(definition, {"x:0": mapped}, name="first")
                module.import_graph_def(definition)
        definition = graph.as_graph_def()
        made.append(from_tensorflow(tf, definition) if module is tf else definition)
    theirs, ours = ({n.name: (n.op, n.inputs, n.device, n.attrs.get("_class")) for n in d.nodes} for d in made)
    assert ours == theirs

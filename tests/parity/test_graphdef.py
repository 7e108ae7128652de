"""Graph definitions against TensorFlow's: the same program makes the same nodes, and each system runs the other's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

import aioflow
from aioflow.graph.graphdef import GraphDef
from aioflow.testing.evaluate import evaluate

# TensorFlow sets this attribute where a caller added control inputs. It does not change the node.
IGNORED = "_has_manual_control_dependencies"


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


def from_tensorflow(definition: Any) -> GraphDef:
    for node in definition.node:
        node.attr.pop(IGNORED, None)
    return GraphDef.FromString(definition.SerializeToString())


def to_tensorflow(tf: Any, definition: GraphDef) -> Any:
    return tf.GraphDef.FromString(definition.SerializeToString())


def built(module: Any, program: Callable[[Any], None]) -> Any:
    with module.Graph().as_default() as graph:
        program(module)
    return graph


@PROGRAMS
def test_definitions_have_the_same_nodes(tf: Any, program: Callable[[Any], None]) -> None:
    theirs = from_tensorflow(built(tf, program).as_graph_def(add_shapes=True))
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
            aioflow.import_graph_def(from_tensorflow(theirs.as_graph_def()), name="")
    else:
        with tf.Graph().as_default() as theirs:
            tf.import_graph_def(to_tensorflow(tf, ours.as_graph_def()), name="")
    (mine,) = evaluate([ours.get_tensor_by_name("out:0")], {ours.get_tensor_by_name("x:0"): x})
    with tf.Session(graph=theirs, config=tf.ConfigProto(allow_soft_placement=True)) as session:
        other = session.run(_anywhere(theirs), {"x:0": x})
    np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def _anywhere(graph: Any) -> Any:
    """Clear the devices, which name a missing worker, and return the name of the output."""
    for op in graph.get_operations():
        op._set_device("")
    return "out:0"


@PROGRAMS
@pytest.mark.parametrize("as_text", [True, False])
def test_each_system_reads_the_others_files(
    tf: Any, program: Callable[[Any], None], tmp_path: Path, as_text: bool
) -> None:
    theirs, ours = built(tf, program), built(aioflow, program)
    path = tf.train.write_graph(theirs.as_graph_def(), str(tmp_path), "theirs", as_text)
    assert aioflow.train.read_graph(path) == GraphDef.FromString(theirs.as_graph_def().SerializeToString())
    path = aioflow.train.write_graph(ours, tmp_path, "ours", as_text)
    read = tf.GraphDef()
    data = Path(path).read_bytes()
    if as_text:
        text_format.Parse(data, read)
    else:
        read.ParseFromString(data)
    assert from_tensorflow(read) == ours.as_graph_def()


@PROGRAMS
def test_import_graph_def_accepts_tensorflow_messages(tf: Any, program: Callable[[Any], None]) -> None:
    definition = built(tf, program).as_graph_def()
    with aioflow.Graph().as_default() as ours:
        aioflow.import_graph_def(definition, name="")
    assert [node.name for node in ours.as_graph_def().node] == [node.name for node in definition.node]


@PROGRAMS
def test_import_makes_the_same_nodes(tf: Any, program: Callable[[Any], None]) -> None:
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
        made.append(from_tensorflow(definition) if module is tf else definition)
    theirs, ours = ({n.name: (n.op, n.inputs, n.device, n.attrs.get("_class")) for n in d.nodes} for d in made)
    assert ours == theirs

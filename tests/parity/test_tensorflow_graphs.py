"""Graphs of TensorFlow run by aioflow, and graphs of aioflow run by TensorFlow, with equal results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import interop
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.opdef import OPS
from aioflow.interop.unsupported import UnsupportedError
from aioflow.ops.queues.mailbox import mailbox_put
from aioflow.testing.evaluate import evaluate

pytestmark = pytest.mark.parity

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((4, 1)).astype(np.float32)


@pytest.fixture
def first_years(tf: Any) -> Iterator[Any]:
    """Configure TensorFlow as in its first releases: variables are references, branches and loops are nodes."""
    resources, control_flow = tf.resource_variables_enabled(), tf.control_flow_v2_enabled()
    tf.disable_resource_variables()
    tf.disable_control_flow_v2()
    yield tf
    if resources:
        tf.enable_resource_variables()
    if control_flow:
        tf.enable_control_flow_v2()


def same_steps(tf: Any, build: Callable[[Any], Sequence[Any]], feeds: dict[str, Any] | None = None) -> set[str]:
    """Compare the fetches, one step each, in TensorFlow and, imported, in aioflow.

    Return the types of older ops, which aioflow replaces on import.
    """
    with tf.Graph().as_default() as theirs:
        names = [fetch if isinstance(fetch, str) else fetch.name for fetch in build(tf)]
        definition = theirs.as_graph_def()
        with tf.Session() as session:
            wanted = [session.run(theirs.as_graph_element(name), feeds) for name in names]
    with af.Graph().as_default() as ours:
        graph_def = af.GraphDef()
        graph_def.ParseFromString(definition.SerializeToString())
        interop.tensorflow.import_graph_def(definition.SerializeToString(), name="")
        with af.Session() as own:
            for i, (name, value) in enumerate(zip(names, wanted, strict=True)):
                found = own.run_sync(ours.as_graph_element(name), feeds)
                if value is not None and found is not None:
                    np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-6, err_msg=f"{i}: {name}")
    return {node.op for node in definition.node if node.op not in OPS}


OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda t: t.GradientDescentOptimizer(0.1),
    lambda t: t.MomentumOptimizer(0.1, 0.9),
    lambda t: t.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    lambda t: t.AdamOptimizer(0.1),
    lambda t: t.AdagradOptimizer(0.1),
    lambda t: t.AdadeltaOptimizer(0.1),
    lambda t: t.RMSPropOptimizer(0.1),
    lambda t: t.RMSPropOptimizer(0.1, centered=True),
    lambda t: t.FtrlOptimizer(0.1),
    lambda t: t.ProximalGradientDescentOptimizer(0.1),
    lambda t: t.ProximalAdagradOptimizer(0.1),
]


@pytest.mark.parametrize("number", range(len(OPTIMIZERS)))
def test_training_on_references(first_years: Any, number: int) -> None:
    def build(m: Any) -> list[Any]:
        x, y = m.placeholder(m.float32, [None, 3], name="x"), m.placeholder(m.float32, [None, 1], name="y")
        w = m.get_variable("w", initializer=[[1.0], [2.0], [3.0]], use_resource=False)
        b = m.get_variable("b", [1], initializer=m.zeros_initializer(), use_resource=False)
        step = m.Variable(0, name="step", trainable=False, use_resource=False)
        table = m.get_variable("table", initializer=np.ones((5, 1), np.float32), use_resource=False)
        rows = m.reduce_sum(m.nn.embedding_lookup(table, [1, 3, 1]))
        loss = m.reduce_mean(m.square(m.matmul(x, w) + b - y)) + rows * rows
        train = OPTIMIZERS[number](m.train).minimize(loss, global_step=step)
        values = [loss, "w:0", "b:0", "table:0", "step:0"]
        return [m.global_variables_initializer(), *values, train, *values, train, train, *values]

    older = same_steps(first_years, build, {"x:0": X, "y:0": Y})
    assert {"VariableV2", "Assign", "AssignAdd"} < older
    assert any(op.startswith("Apply") for op in older)


def assignments(m: Any) -> list[Any]:
    v = m.Variable([1.0, 2.0], name="v", use_resource=False)
    first = m.assign(v, v * 3.0, name="first")
    second = m.assign_sub(first, [0.5, 0.5], name="second")  # updates the result of the first
    with m.control_dependencies([second]):
        read = m.identity(v._ref(), name="read")
        product = m.multiply(v._ref(), v._ref(), name="product")
    return [m.global_variables_initializer(), "first:0", "v:0", "second:0", "v:0", read, product, "v:0"]


def initialized(m: Any) -> list[Any]:
    v = m.Variable(3, name="v", use_resource=False)
    known = m.is_variable_initialized(v)
    return [known, m.global_variables_initializer(), known, m.count_up_to(v, 9), "v:0", m.count_up_to(v, 9)]


def scattered(m: Any) -> list[Any]:
    v = m.Variable(np.arange(12, dtype=np.float32).reshape(4, 3), name="v", use_resource=False)
    fetches: list[Any] = [m.global_variables_initializer()]
    for kind in ("update", "add", "sub", "mul", "div", "min", "max"):
        fetches += [getattr(m, f"scatter_{kind}")(v, [3, 0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "v:0"]
    for kind in ("update", "add", "sub"):
        fetches += [getattr(m, f"scatter_nd_{kind}")(v, [[1, 2], [2, 0]], [7.0, 8.0]), "v:0"]
    return fetches


def branches(m: Any) -> list[Any]:
    v = m.Variable([1.0, 2.0], name="v", use_resource=False)
    fetches: list[Any] = [m.global_variables_initializer()]
    for limit in (0.0, 5.0):
        more = v[0] > limit
        fetches.append(m.cond(more, lambda: m.assign_add(v, [1.0, 1.0]) * 2.0, lambda: v - 1.0))
        fetches.append("v:0")
        fetches.append(m.cond(more, lambda: m.assign(v, [9.0, 9.0]), lambda: m.assign(v, [4.0, 4.0])))
        fetches.append("v:0")
    return fetches


def a_loop(m: Any) -> list[Any]:
    v = m.Variable(1.0, name="v", use_resource=False)

    def body(i: Any, total: Any) -> Any:
        with m.control_dependencies([m.assign_add(v, 1.0)]):
            return i + 1, total + m.identity(v._ref())

    _, total = m.while_loop(lambda i, _: i < 4, body, [0, 0.0], parallel_iterations=1)
    return [m.global_variables_initializer(), total, "v:0", total, "v:0"]


def queues(m: Any) -> list[Any]:
    from tensorflow.python.ops import gen_data_flow_ops as ops

    fetches: list[Any] = []
    made = [
        ops.fifo_queue([m.float32, m.int32], capacity=10),
        ops.padding_fifo_queue([m.float32, m.int32], shapes=[[], []], capacity=10),
        ops.random_shuffle_queue([m.float32, m.int32], capacity=10, shapes=[[], []], seed=3, seed2=4),
    ]
    for i, queue in enumerate(made):
        first = np.float32(5.0)
        fetches += [ops.queue_enqueue(queue, [first, 7]), ops.queue_size(queue)]
        fetches += ops.queue_dequeue(queue, [m.float32, m.int32])[1:]
        fetches += [ops.queue_enqueue_many(queue, [np.array([first, first]), [1, 1]]), ops.queue_close(queue)]
        fetches += ops.queue_dequeue_up_to(queue, 5, [m.float32, m.int32])[1:] if i else []
    return fetches


def by_priority(m: Any) -> list[Any]:
    queue = m.PriorityQueue(5, [m.float32, m.int32], [[], [2]], name="queue")
    elements = [np.array([5, 1, 3]), np.array([50, 10, 30], np.float32), np.array([[5, 5], [1, 1], [3, 3]], np.int32)]
    return [queue.enqueue_many(elements), queue.dequeue()[1], queue.dequeue_many(2)[2], queue.size()]


def stacks(m: Any) -> list[Any]:
    ops = m.raw_ops
    stack = ops.Stack(elem_type=m.float32)
    with m.control_dependencies([ops.StackPush(handle=stack, elem=m.constant([1.0, 2.0]))]):
        return [ops.StackPop(handle=stack, elem_type=m.float32)]


def accumulators(m: Any) -> list[Any]:
    from tensorflow.python.ops import gen_data_flow_ops as ops

    made = ops.conditional_accumulator(m.float32, [2], shared_name="a")
    apply = ops.accumulator_apply_gradient(made, np.int64(0), m.constant([1.0, 3.0]))
    taken = ops.accumulator_take_gradient(made, 2, m.float32)
    return [apply, ops.accumulator_num_accumulated(made), apply, taken, ops.accumulator_num_accumulated(made)]


PROGRAMS = [assignments, initialized, scattered, branches, a_loop, queues, stacks, accumulators]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_with_older_ops(first_years: Any, program: Callable[[Any], list[Any]]) -> None:
    assert same_steps(first_years, program)


@pytest.mark.parametrize("count", [1, 3])
async def test_ref_select_reads_and_updates(tf: Any, count: int) -> None:
    """Select a reference: read it, update it, and reject an index out of range."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        variables = [v1.Variable([float(i)] * 2, name=f"v{i}", use_resource=False) for i in range(count)]
        index = v1.placeholder(tf.int32, [], name="index")
        chosen = tf.raw_ops.RefSelect(index=index, inputs=[v._ref() for v in variables], name="chosen")
        v1.assign_add(chosen, [10.0, 1.0], name="update")
        v1.global_variables_initializer()
        for i, variable in enumerate(variables):
            tf.identity(variable, name=f"read{i}")
    reads = [f"read{i}:0" for i in range(count)]
    with af.Graph().as_default():
        af.import_graph_def(GraphDef.FromString(graph.as_graph_def().SerializeToString()), name="")
        with v1.Session(graph=graph) as theirs:
            async with af.Session() as ours:
                theirs.run("init")
                await ours.run("init")
                for i in (0, count - 1, 1 % count):
                    for fetch in ("chosen:0", "update:0", *reads):
                        expected = theirs.run(fetch, {"index:0": i})
                        np.testing.assert_array_equal(await ours.run(fetch, {"index:0": i}), expected)
                for i in (-1, count):
                    with pytest.raises(af.errors.InvalidArgumentError):
                        await ours.run("update:0", {"index:0": i})
                    with pytest.raises(tf.errors.InvalidArgumentError):
                        theirs.run("update:0", {"index:0": i})
                for read in reads:
                    np.testing.assert_array_equal(await ours.run(read), theirs.run(read))


def _older(definition: Any) -> bytes:
    """Replace the ops by the older versions of readers and queues, which have no handles, and serialize."""
    for node in definition.node:
        node.op = node.op.removesuffix("V2")
    definition.versions.producer = 20
    return bytes(definition.SerializeToString())


@pytest.mark.parametrize("kind", ["WholeFileReader", "TextLineReader", "IdentityReader", "FixedLengthRecordReader"])
def test_older_readers(tf: Any, tmp_path: Path, kind: str) -> None:
    """Compare with the successors of the ops, since TensorFlow now rejects the older ones."""
    (tmp_path / "text").write_text("one\ntwo\nfour\n")
    with tf.Graph().as_default() as theirs, tf.Session() as session:
        ops = tf.raw_ops
        reader = getattr(ops, f"{kind}V2")(**({"record_bytes": 4} if kind.startswith("Fixed") else {}))
        queue = ops.FIFOQueueV2(component_types=[tf.string])
        fill = ops.QueueEnqueueV2(handle=queue, components=[tf.constant(str(tmp_path / "text"))])
        key, value = ops.ReaderReadV2(reader_handle=reader, queue_handle=queue)
        counts = [
            ops.ReaderNumRecordsProducedV2(reader_handle=reader),
            ops.ReaderNumWorkUnitsCompletedV2(reader_handle=reader),
        ]
        wanted = [session.run([key, value] if step else fill) for step in range(3 if "Line" in kind else 2)]
        wanted.append(session.run(counts))
        definition = theirs.as_graph_def()
    older = _older(definition)
    assert {kind, "ReaderRead", "FIFOQueue"} <= {node.op for node in definition.node}
    with af.Graph().as_default() as ours:
        interop.tensorflow.import_graph_def(older, name="")
        both = [ours.as_graph_element(t.name) for t in (key, value)]
        with af.Session() as own:
            own.run_sync(ours.as_graph_element(fill.name))
            found: list[Any] = [own.run_sync(both) for _ in wanted[1:-1]]
            found.append(own.run_sync([ours.as_graph_element(t.name) for t in counts]))
    assert [[np.asarray(item).item() for item in step] for step in found] == [
        [np.asarray(item).item() for item in step] for step in wanted[1:]
    ]


def test_save_slices_and_older_restore(first_years: Any, tmp_path: Path) -> None:
    file, whole = str(tmp_path / "values"), np.arange(12, dtype=np.float32).reshape(4, 3)
    with first_years.Graph().as_default(), first_years.Session() as session:
        ops = first_years.raw_ops
        slices = ["", "4 3 0,2:-", "4 3 2,2:-"]
        session.run(ops.SaveSlices(filename=file, tensor_names=["n", "w", "w"], shapes_and_slices=slices,
                                   data=[np.int32(7), whole[:2], whole[2:]]))  # fmt: skip

    def program(m: Any) -> list[Any]:
        ops = m.raw_ops
        restored = ops.Restore(file_pattern=file, tensor_name="n", dt=m.int32)
        part = ops.RestoreSlice(file_pattern=file, tensor_name="w", shape_and_slice="4 3 1,2:0,2", dt=m.float32)
        return [restored, part]

    assert same_steps(first_years, program) == {"Restore", "RestoreSlice"}


def test_priority_queue(tf: Any) -> None:
    same_steps(tf, by_priority)


def test_tensorflow_saver_runs_in_aioflow(first_years: Any, tmp_path: Path) -> None:
    tf = first_years
    with tf.Graph().as_default() as theirs, tf.Session() as session:
        v = tf.Variable([1.0, 2.0], name="v", use_resource=False)
        saver = tf.train.Saver(sharded=False)
        session.run(v.initializer)
        saver.save(session, str(tmp_path / "theirs"), write_meta_graph=False)
        session.run(tf.assign(v, [5.0, 6.0]))
        definition = theirs.as_graph_def()
    with af.Graph().as_default() as ours, af.Session() as own:
        af.import_graph_def(definition, name="")
        element = ours.as_graph_element
        own.run_sync(element("save/restore_all"), {"save/Const:0": str(tmp_path / "theirs")})
        np.testing.assert_array_equal(own.run_sync("v:0"), [1, 2])
        own.run_sync(element("Assign"))
        own.run_sync("save/control_dependency:0", {"save/Const:0": str(tmp_path / "ours")})
        own.run_sync(element("save/restore_all"), {"save/Const:0": str(tmp_path / "theirs")})
        own.run_sync(element("save/restore_all"), {"save/Const:0": str(tmp_path / "ours")})
        np.testing.assert_array_equal(own.run_sync("v:0"), [5, 6])


# ── frozen graphs ────────────────────────────────────────────────────────────────────────────────────────────────────


def frozen(tf: Any, seed: int) -> Any:
    """Return a random network with its variables frozen to constants."""
    rng = np.random.default_rng(seed)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 8, 8, 2], name="x")
        h, channels = x, 2
        for i in range(int(rng.integers(1, 4))):
            wider = int(rng.integers(1, 5))
            kernel = tf.Variable(rng.standard_normal((3, 3, channels, wider)).astype(np.float32), name=f"k{i}")
            h = tf.nn.bias_add(tf.nn.conv2d(h, kernel, [1, 1, 1, 1], "SAME"), tf.Variable(tf.fill([wider], 0.5)))
            kind = rng.integers(4)
            if kind == 0:
                h = tf.nn.relu(h)
            elif kind == 1:
                h = tf.nn.leaky_relu(h, 0.3)
            elif kind == 2:
                scale = np.ones(wider, np.float32)
                h, *_ = tf.nn.fused_batch_norm(h, scale, 0 * scale, 0 * scale, scale, is_training=False)
            else:
                h = tf.nn.max_pool(tf.tanh(h), [1, 2, 2, 1], [1, 1, 1, 1], "SAME")
            channels = wider
        flat = tf.reshape(h, tf.stack([tf.shape(h)[0], -1]))
        tf.nn.softmax(flat, name="out")
        session.run(tf.global_variables_initializer())
        return tf.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["out"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("as_text", [True, False])
def test_frozen_graphs(tf: Any, seed: int, as_text: bool, tmp_path: Path) -> None:
    definition = frozen(tf, seed)
    path = tf.train.write_graph(definition, str(tmp_path), "frozen", as_text)
    x = np.random.default_rng(seed).standard_normal((3, 8, 8, 2)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        (out,) = tf.import_graph_def(definition, return_elements=["out:0"])
        wanted = session.run(out, {"import/x:0": x})
    model = interop.tensorflow.load_graph(path)
    assert list(model.inputs) == ["x"]
    assert list(model.outputs) == ["out"]
    (found,) = evaluate([model.outputs["out"]], {model.inputs["x"]: x})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


# ── graphs of aioflow, run by TensorFlow ─────────────────────────────────────────────────────────────────────────────


def trained(m: Any) -> list[Any]:
    x = m.placeholder(m.float32, [None, 3], name="x")
    w = m.get_variable("w", initializer=[[1.0], [2.0], [3.0]])
    later = m.Variable(w.initialized_value() * 2.0, name="later")
    step = m.train.get_or_create_global_step()
    loss = m.reduce_mean(m.square(m.matmul(x, w))) + m.reduce_sum(later)
    trains = [
        m.train.AdamOptimizer(0.1).minimize(loss, global_step=step),
        m.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step),
        m.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step),
    ]
    values = [loss, w.value(), later.value(), step.value()]
    return [m.global_variables_initializer(), *values, *trains, *values]


def looked_up(m: Any) -> list[Any]:
    table = m.get_variable("table", initializer=np.arange(8, dtype=np.float32).reshape(4, 2))
    rows = m.nn.embedding_lookup(table, [3, 1])
    train = m.train.GradientDescentOptimizer(0.5).minimize(m.reduce_sum(rows))
    return [m.global_variables_initializer(), rows, train, rows, m.scatter_add(table, [0], [[5.0, 5.0]]), table.value()]


def flowing(m: Any) -> list[Any]:
    v = m.get_variable("v", initializer=2.0)

    def body(i: Any, a: Any) -> Any:
        return i + 1, m.cond(a > 10.0, lambda: a - v, lambda: a * v)

    _, out = m.while_loop(lambda i, _: i < 6, body, [0, 1.5])
    return [m.global_variables_initializer(), out, *m.gradients(out, [v]), out]


def queued(m: Any) -> list[Any]:
    queue = m.FIFOQueue(5, [m.float32], [[2]], shared_name="ours")
    put = queue.enqueue_many([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    return [put, queue.size(), queue.dequeue(), queue.dequeue_many(2), queue.size(), queue.close()]


def with_a_saver(m: Any) -> list[Any]:
    v = m.get_variable("v", initializer=[2.0, 3.0])
    m.train.Saver()
    return [m.global_variables_initializer(), v.value()]


@pytest.mark.parametrize(
    "program", [trained, looked_up, flowing, queued, by_priority, with_a_saver], ids=lambda f: f.__name__
)
def test_aioflow_programs_run_in_tensorflow(tf: Any, program: Callable[[Any], list[Any]]) -> None:
    with af.Graph().as_default() as ours, af.Session() as own:
        names = [fetch.name for fetch in program(af)]
        feeds = {"x:0": X} if program is trained else {}
        mine = [own.run_sync(ours.as_graph_element(name), feeds) for name in names]
        definition = interop.tensorflow.export_graph_def(ours)
    with tf.Graph().as_default() as theirs, tf.Session() as session:
        tf.import_graph_def(tf.GraphDef.FromString(definition.SerializeToString()), name="")
        for i, (name, value) in enumerate(zip(names, mine, strict=True)):
            if ":" in name and theirs.get_tensor_by_name(name).dtype == tf.resource:
                continue  # TensorFlow does not fetch a handle as the value
            found = session.run(theirs.as_graph_element(name), feeds)
            if value is not None:
                np.testing.assert_allclose(value, found, rtol=1e-4, atol=1e-6, err_msg=f"{i}: {name}")


def test_export_reports_all_unsupported_ops(tf: Any) -> None:
    def later(value: Any) -> Any:
        return value

    with af.Graph().as_default() as graph:
        x = af.constant(1.0)
        af.numpy_function(later, [x], af.float32, name="python")
        mailbox_put("box", af.constant(1, af.int64), x)
    with pytest.raises(UnsupportedError) as raised:
        interop.tensorflow.export_graph_def(graph)
    assert {each.op for each in raised.value.unsupported} == {"PyFunc", "MailboxPut"}


def test_every_published_op_exists_in_tensorflow(tf: Any) -> None:
    from tensorflow.python.framework import op_def_registry

    lacking = [op.name for op in OPS if op.made_by == "user" and op.published and op_def_registry.get(op.name) is None]
    assert lacking == []


def test_definition_survives_a_round_trip_through_tensorflow(tf: Any) -> None:
    with af.Graph().as_default() as graph:
        trained(af)
        definition = graph.as_graph_def(add_shapes=True)
    theirs = tf.GraphDef.FromString(definition.SerializeToString())
    assert GraphDef.FromString(theirs.SerializeToString()) == definition


# ── graphs with their collections ────────────────────────────────────────────────────────────────────────────────────


def program(m: Any) -> Any:
    x = m.placeholder(m.float32, [None, 3], name="x")
    w = m.get_variable("w", initializer=[[1.0], [2.0], [3.0]])
    m.get_variable("fixed", initializer=7.0, trainable=False)
    step = m.train.get_or_create_global_step()
    loss = m.reduce_mean(m.square(m.matmul(x, w)), name="loss")
    train = m.train.AdamOptimizer(0.1).minimize(loss, global_step=step, name="train")
    m.add_to_collection("train_op", train)
    m.add_to_collection("losses", loss)
    m.add_to_collection("sizes", 3)
    m.global_variables_initializer()
    return m.train.Saver(max_to_keep=3, **({"write_version": 2} if m is af else {}))


def checked_here(file: str, checkpoint: str, wanted: Sequence[Any]) -> None:
    with af.Graph().as_default() as graph, af.Session() as session:
        saver = af.train.import_meta_graph(file)
        assert saver is not None
        variables = [v.name for v in af.global_variables()]
        assert variables[:3] == ["w:0", "fixed:0", "global_step:0"]
        assert [v.name for v in af.trainable_variables()] == ["w:0"]
        assert af.trainable_variables()[0] is af.global_variables()[0]
        assert af.train.get_global_step() is af.global_variables()[2]
        assert af.get_collection("losses") == [graph.get_tensor_by_name("loss:0")]
        assert af.get_collection("sizes") == [3]
        session.run_sync([v.initializer for v in af.global_variables()])
        asyncio.run(saver.restore(session, checkpoint))
        session.run_sync(af.get_collection("train_op")[0], {"x:0": X})
        found = session.run_sync(["loss:0", "w:0", "fixed:0", "global_step:0"], {"x:0": X})
    for value, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4)


@pytest.mark.parametrize("references", [True, False])
@pytest.mark.parametrize("as_text", [True, False])
def test_tensorflow_meta_graphs_resume_in_aioflow(
    first_years: Any, references: bool, as_text: bool, tmp_path: Path
) -> None:
    tf = first_years
    if not references:
        tf.enable_resource_variables()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        saver = program(tf)
        session.run("init")
        session.run("train", {"x:0": X})
        checkpoint = saver.save(session, str(tmp_path / "model"))
        if as_text:
            saver.export_meta_graph(f"{checkpoint}.meta", as_text=True)
        session.run("train", {"x:0": X})
        names = ["loss:0", *(v.value() if not references else v for v in tf.global_variables()[:3])]
        wanted = session.run(names, {"x:0": X})
        assert graph
    checked_here(f"{checkpoint}.meta", checkpoint, wanted)


@pytest.mark.parametrize("as_text", [True, False])
def test_aioflow_meta_graphs_resume_in_both(tf: Any, as_text: bool, tmp_path: Path) -> None:
    file = str(tmp_path / "ours.meta")
    with af.Graph().as_default(), af.Session() as session:
        saver = program(af)
        session.run_sync([v.initializer for v in af.global_variables()])
        session.run_sync(af.get_collection("train_op")[0], {"x:0": X})
        checkpoint = asyncio.run(saver.save(session, tmp_path / "model", write_meta_graph=not as_text))
        if as_text:
            saver.export_meta_graph(file, as_text=True)
        else:
            file = f"{checkpoint}.meta"
        session.run_sync(af.get_collection("train_op")[0], {"x:0": X})
        wanted = session.run_sync(["loss:0", "w:0", "fixed:0", "global_step:0"], {"x:0": X})
    checked_here(file, checkpoint, wanted)
    with tf.Graph().as_default() as graph, tf.Session() as theirs:
        other = tf.train.import_meta_graph(file)
        assert [v.name for v in tf.trainable_variables()] == ["w:0"]
        theirs.run([v.initializer for v in tf.global_variables()])
        other.restore(theirs, checkpoint)
        theirs.run(tf.get_collection("train_op")[0], {"x:0": X})
        found = theirs.run(["loss:0", *(v.value() for v in tf.global_variables()[:3])], {"x:0": X})
        assert graph
    for value, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4)

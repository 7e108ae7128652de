"""Meta graphs: graphs with their collections are exported, imported and continued."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.protos import message


def build() -> af.train.Saver:
    v = af.get_variable("v", initializer=[1.0, 2.0])
    af.get_variable("local", initializer=5.0, trainable=False, collections=[af.GraphKeys.LOCAL_VARIABLES])
    with af.variable_scope("parts", partitioner=af.fixed_size_partitioner(2)):
        af.get_variable("p", initializer=np.arange(6.0, dtype=np.float32).reshape(3, 2))
    queue = af.FIFOQueue(8, [af.float32], [[]], name="queue")
    queue_runner = af.train.QueueRunner(queue, [queue.enqueue(3.0)])
    af.train.add_queue_runner(queue_runner)
    queue.dequeue(name="taken")
    af.add_to_collection("texts", "a text")
    af.add_to_collection("numbers", 2.5)
    af.add_to_collection("objects", object())
    af.assign_add(v, [1.0, 1.0], name="more")
    return af.train.Saver(max_to_keep=7)


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("scope", [None, "inner"])
async def test_exported_program_continues_after_import(tmp_path: Path, as_text: bool, scope: str | None) -> None:
    file, prefix = tmp_path / "graph.meta", "" if scope is None else f"{scope}/"
    with af.Graph().as_default():
        async with af.Session() as session:
            saver = build()
            await session.run([af.global_variables_initializer(), af.local_variables_initializer()])
            await session.run("v:0")
            path = await saver.save(session, tmp_path / "model")
        saver.export_meta_graph(file, as_text=as_text)
    assert path is not None
    with af.Graph().as_default():
        restored = af.train.import_meta_graph(file, import_scope=scope)
        assert restored is not None
        assert [v.name for v in af.local_variables()] == [f"{prefix}local:0"]
        assert not af.local_variables()[0].trainable
        assert {v.name for v in af.trainable_variables()} == {
            f"{prefix}v:0",
            f"{prefix}parts/p/part_0:0",
            f"{prefix}parts/p/part_1:0",
        }
        assert af.get_collection("texts") == [b"a text"]
        assert af.get_collection("numbers") == [2.5]
        assert af.get_collection("objects") == []
        async with af.Session() as session:
            await restored.restore(session, path)
            np.testing.assert_array_equal(await session.run(f"{prefix}v:0"), [1, 2])
            np.testing.assert_array_equal(await session.run(f"{prefix}parts/p/part_1:0"), [[4, 5]])
            async with af.train.Coordinator() as coordinator:
                af.train.start_queue_runners(session, coordinator)
                assert await session.run(f"{prefix}taken:0") == 3
                coordinator.request_stop()
            (v,) = [v for v in af.global_variables() if v.op.name == f"{prefix}v"]
            await session.run(v.assign_add([1.0, 1.0]))
            np.testing.assert_array_equal(await session.run(v), [2, 3])
            await session.run(v.initializer)
            np.testing.assert_array_equal(await session.run(v.initialized_value()), [1, 2])


@pytest.mark.parametrize("scope", [None, "inner"])
async def test_import_restores_the_savers_collection(tmp_path: Path, scope: str | None) -> None:
    with af.Graph().as_default():
        v = af.get_variable("v", initializer=1.0)
        whole, other = af.train.Saver(max_to_keep=7), af.train.Saver({"w": v}, max_to_keep=2)
        for saver in (whole, other):
            af.add_to_collection(af.GraphKeys.SAVERS, saver)
        async with af.Session() as session:
            await session.run(v.initializer)
            path = await other.save(session, tmp_path / "other")
        stored = whole.export_meta_graph(), whole.export_meta_graph(clear_extraneous_savers=True)
        apart = af.train.export_meta_graph(clear_extraneous_savers=True)
    prefix = "" if scope is None else f"{scope}/"
    for meta, count in zip((*stored, apart), (2, 1, 0), strict=True):
        with af.Graph().as_default():
            imported = af.train.import_meta_graph(meta, import_scope=scope)
            found = af.get_collection(af.GraphKeys.SAVERS)
            assert len(found) == count
            assert found[:1] == [imported][:count], "one object, not two with nodes of their own"
            assert [each.as_saver_def().max_to_keep for each in found] == [7, 2][:count]
            if count == 2:
                async with af.Session() as session:
                    await found[1].restore(session, path)
                    assert await session.run(f"{prefix}v:0") == 1
                again = af.train.export_meta_graph(saver_def=found[0].as_saver_def())
                assert len(again.collection_def[af.GraphKeys.SAVERS].bytes_list.value) == 2


async def test_meta_graph_is_deleted_with_its_checkpoint(tmp_path: Path) -> None:
    with af.Graph().as_default():
        v = af.get_variable("v", initializer=1.0)
        saver = af.train.Saver(max_to_keep=1)
        async with af.Session() as session:
            await session.run(v.initializer)
            for step in range(2):
                await saver.save(session, tmp_path / "model", step)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".meta")] == ["model-1.meta"]


async def test_meta_graph_is_current_at_each_checkpoint(tmp_path: Path) -> None:
    def nodes(step: int) -> set[str]:
        with af.Graph().as_default() as graph:
            af.train.import_meta_graph(tmp_path / f"model-{step}.other")
            return {op.name for op in graph.get_operations()} & {"later", "v"} | set(af.get_collection("texts"))

    with af.Graph().as_default():
        v = af.get_variable("v", initializer=1.0)
        saver = af.train.Saver()
        async with af.Session() as session:
            await session.run(v.initializer)
            for step in range(4):
                await saver.save(session, tmp_path / "model", step, meta_graph_suffix="other")
                if step == 1:
                    af.add_to_collection("texts", "one")
                if step == 2:
                    af.constant(1.0, name="later")
        assert [nodes(step) for step in range(4)] == [{"v"}, {"v"}, {"v", b"one"}, {"v", b"one", "later"}]
        af.train.remove_checkpoint(str(tmp_path / "model-0"), meta_graph_suffix="other")
        assert not [name for name in os.listdir(tmp_path) if name.startswith("model-0.")]


async def test_checkpoint_is_written_if_its_graph_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with af.Graph().as_default():
        v = af.get_variable("v", initializer=1.0)
        v.op.attrs["_note"] = object()
        saver = af.train.Saver()
        async with af.Session() as session:
            await session.run(v.initializer)
            for step in range(2):
                await saver.save(session, tmp_path / "model", step)
            assert af.train.latest_checkpoint(tmp_path) == str(tmp_path / "model-1")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".meta")]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "model-0.meta" in said
    assert "_note" in said


def test_attributes_with_their_defaults_are_stripped() -> None:
    with af.Graph().as_default():
        a = af.placeholder(af.float32, (2, 2), name="a")
        af.matmul(a, a, transpose_b=True, name="product")
        kept, stripped = (af.train.export_meta_graph(strip_default_attrs=strip) for strip in (False, True))
    assert set(kept.graph_def.node[1].attr) - set(stripped.graph_def.node[1].attr) == {
        "transpose_a",
        "grad_a",
        "grad_b",
    }
    assert stripped.meta_info_def.stripped_default_attrs
    assert not kept.meta_info_def.stripped_default_attrs
    with af.Graph().as_default() as graph:
        af.train.import_meta_graph(stripped)
        assert graph.get_operation_by_name("product").get_attr("transpose_a") is False


def test_export_selects_collections_and_clears_devices() -> None:
    with af.Graph().as_default(), af.device("/device:CPU:0"):
        build()
        meta = af.train.export_meta_graph(collection_list=["texts"], clear_devices=True)
        assert set(meta.collection_def) == {"texts"}
        assert {node.device for node in meta.graph_def.node} == {""}
        assert not meta.HasField("saver_def")


def test_import_error_lists_all_unknown_ops() -> None:
    with af.Graph().as_default():
        meta = af.train.export_meta_graph()
        meta.graph_def.node.add(name="a", op="OneOp")
        meta.graph_def.node.add(name="b", op="AnotherOp")
        with pytest.raises(errors.UnimplementedError) as raised:
            af.train.import_meta_graph(meta)
    assert raised.value.actual == ["AnotherOp", "OneOp"]


def test_import_drops_merge_nodes_of_sharded_savers() -> None:
    with af.Graph().as_default():
        af.get_variable("v", initializer=1.0)
        meta = af.train.Saver().export_meta_graph()
        meta.graph_def.node.add(name="merged", op="MergeV2Checkpoints", input=["save/Const", "save/Const"])
        meta.graph_def.node.add(name="after", op="NoOp", input=["^merged"])
    with af.Graph().as_default() as graph:
        assert af.train.import_meta_graph(meta) is not None
        assert not {"merged", "after"} & {op.name for op in graph.get_operations()}


async def test_messages_have_the_published_names_and_idioms() -> None:
    with af.Graph().as_default():
        v = af.get_variable("scope/v", initializer=[1.0, 2.0], trainable=False)
        data = af.train.Saver().export_meta_graph().SerializeToString()
        definition = v.to_proto()
    meta = af.MetaGraphDef()
    meta.ParseFromString(data)
    assert isinstance(meta.saver_def, af.train.SaverDef)
    assert definition.variable_name == "scope/v:0"
    assert v.to_proto("scope").variable_name == "v:0"
    assert v.to_proto("other") is None
    with af.Graph().as_default():
        af.import_graph_def(meta.graph_def, name="in")
        found = af.Variable(variable_def=definition, import_scope="in")
        assert (found.op.name, found.trainable, found.shape.as_list()) == ("in/scope/v", False, [2])
        assert not af.global_variables()
        assert af.Variable.from_proto(definition, import_scope="in/").handle is found.handle
        async with af.Session() as session:
            await session.run(found.initializer)
            np.testing.assert_array_equal(await session.run(found.assign_add([1.0, 1.0])), [2, 3])
        with pytest.raises(errors.InvalidArgumentError):
            af.Variable(1.0, variable_def=definition)
        with pytest.raises(errors.DTypeError):
            af.Variable(variable_def="v")
        with pytest.raises(errors.NotFoundError):
            af.Variable(variable_def=definition)


def _loop_of(meta: Any) -> Any:
    return message("WhileContextDef").FromString(meta.collection_def["while_context"].bytes_list.value[0])


@pytest.mark.parametrize("limit", [2, 9])
@pytest.mark.parametrize("scope", [None, "inner"])
async def test_upper_bound_of_a_stored_loop_is_kept(limit: int, scope: str | None) -> None:
    with af.Graph().as_default():
        x, n = af.placeholder(af.float32, (), name="x"), af.placeholder(af.int64, (), name="n")
        made = af.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * x), (0, x), maximum_iterations=n)
        af.identity(made[1], name="y")
        meta = af.train.export_meta_graph()
    assert _loop_of(meta).maximum_iterations_name == "n:0"
    with af.Graph().as_default() as graph:
        af.train.import_meta_graph(meta, import_scope=scope)
        x, n, y = (graph.get_tensor_by_name("/".join(filter(None, [scope, f"{name}:0"]))) for name in "xny")
        assert _loop_of(af.train.export_meta_graph()).maximum_iterations_name == n.name
        slope: Any = af.gradients(y, x)[0]
        async with af.Session() as session:
            power = min(limit, 5) + 1
            assert await session.run([y, slope], {x: 2.0, n: limit}) == [2.0**power, power * 2.0 ** (power - 1)]


@pytest.mark.parametrize("stored", ["i/start:0", "m:0", "nobody:0"])
async def test_wrong_upper_bound_of_a_stored_loop_is_ignored(stored: str) -> None:
    with af.Graph().as_default():
        x, start, m = (af.placeholder(af.float32, (), name=name) for name in ("x", "i/start", "m"))
        made = af.while_loop(lambda i, a: i < m, lambda i, a: (i + 1, a * x), (start, x))
        af.identity(made[1], name="y")
        meta = af.train.export_meta_graph()
    value = meta.collection_def["while_context"].bytes_list
    _with(value, "WhileContextDef", maximum_iterations_name=stored)
    with af.Graph().as_default() as graph:
        af.train.import_meta_graph(meta)
        x, start, m, y = (graph.get_tensor_by_name(f"{name}:0") for name in ("x", "i/start", "m", "y"))
        slope: Any = af.gradients(y, x)[0]
        async with af.Session() as session:
            assert await session.run(slope, {x: 2.0, start: 3.0, m: 5.0}) == 12.0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cond_context", lambda stored: stored.value.pop()),
        ("cond_context", lambda stored: _with(stored, "CondContextDef", branch=5)),
        ("cond_context", lambda stored: _with(stored, "CondContextDef", pred_name="nobody:0")),
        ("while_context", lambda stored: _emptied(stored)),
    ],
)
def test_malformed_control_flow_contexts_are_rejected(name: str, change: Any) -> None:
    with af.Graph().as_default():
        x = af.placeholder(af.float32, (), name="x")
        af.cond(x > 0.0, lambda: x + 1.0, lambda: x)
        af.while_loop(lambda a: a < 9.0, lambda a: a * x, [x])
        meta = af.train.export_meta_graph()
    change(meta.collection_def[name].bytes_list)
    with af.Graph().as_default(), pytest.raises((errors.InvalidArgumentError, errors.NotFoundError)):
        af.train.import_meta_graph(meta)


def _with(stored: Any, kind: str, **fields: Any) -> None:
    made = message(kind)(**fields)
    stored.value[0] += made.SerializeToString()


def _emptied(stored: Any) -> None:
    made = message("WhileContextDef").FromString(stored.value[0])
    made.values_def.Clear()
    stored.value[0] = made.SerializeToString()


def test_export_drops_mixed_collections_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with af.Graph().as_default():
        for item in (1, "text"):
            af.add_to_collection("mixed", item)
        af.get_collection_ref("objects").extend(["text", object()])
        af.add_to_collection("texts", "text")
        v = af.get_variable("v", initializer=1.0, collections=[])
        af.CriticalSection(name="section").execute(lambda: v.assign_add(1.0))
        meta = af.train.export_meta_graph()
    assert set(meta.collection_def) == {"texts", "trainable_variables"}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "'mixed'" in said[0]
    assert "'objects'" in said[1]


@pytest.mark.parametrize("scope", [None, "inner"])
async def test_variables_and_runners_in_own_collections_are_stored_as_nodes(
    scope: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with af.Graph().as_default():
        v = af.get_variable("v", initializer=1.0)
        w = af.get_variable("w", initializer=2.0, collections=["alone"])
        queue = af.FIFOQueue(8, [af.float32], [[]], name="queue")
        af.train.add_queue_runner(af.train.QueueRunner(queue, [queue.enqueue(3.0)]), collection="mine/runners")
        af.get_collection_ref("all").extend([v, af.identity(v, name="y"), v.initializer, v.snapshot])
        af.add_to_collection(af.GraphKeys.WEIGHTS, v)
        af.add_to_collection("mine/savers", af.train.Saver([v]))
        meta = af.train.export_meta_graph()
        runners = meta.collection_def["mine/runners"]
        assert list(runners.node_list.value) == ["queue"]
        assert "mine/savers" in caplog.text
    prefix = "" if scope is None else f"{scope}/"
    with af.Graph().as_default() as graph:
        af.train.import_meta_graph(meta, import_scope=scope)
        (variable,) = af.global_variables()
        assert af.get_collection(af.GraphKeys.WEIGHTS) == [variable]
        y, value = (graph.get_tensor_by_name(f"{prefix}{name}") for name in ("y:0", v.snapshot.name))
        assert af.get_collection("all") == [variable, y, variable.initializer, value]
        assert af.get_collection("mine/runners") == [graph.get_operation_by_name(f"{prefix}queue")]
        assert af.get_collection("mine/savers") == []
        (value,) = af.get_collection("alone")
        async with af.Session() as session:
            await session.run(f"{prefix}{w.initializer.name}")
            assert await session.run(value) == 2


def test_variables_that_the_first_release_stored_in_weights_are_read() -> None:
    with af.Graph().as_default():
        v = af.get_variable("v", initializer=1.0)
        meta = af.train.export_meta_graph()
        meta.collection_def["weights"].bytes_list.value.append(v.to_proto().SerializeToString())
    with af.Graph().as_default():
        af.train.import_meta_graph(meta)
        assert af.get_collection(af.GraphKeys.WEIGHTS) == af.global_variables()


def test_import_without_variables_returns_no_saver() -> None:
    with af.Graph().as_default():
        af.constant(1.0, name="c")
        meta = af.train.export_meta_graph()
    with af.Graph().as_default():
        assert af.train.import_meta_graph(meta) is None

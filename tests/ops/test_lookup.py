"""Lookup tables: initialization from tensors and files, concurrent changes, resources, checkpoints, models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from aioflow.ops.apply import make
from aioflow.train import Server

MutableHashTable = af.lookup.experimental.MutableHashTable


def numbers(*values: int) -> Any:
    return af.constant(values, af.int64)


def words_table(name: str | None = None) -> af.lookup.StaticHashTable:
    init = af.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2], value_dtype=af.int64)
    return af.lookup.StaticHashTable(init, -1, name)


def file_table(path: Path, **given: Any) -> af.lookup.StaticHashTable:
    index = af.lookup.TextFileIndex
    init = af.lookup.TextFileInitializer(path, af.string, index.WHOLE_LINE, af.int64, index.LINE_NUMBER, **given)
    return af.lookup.StaticHashTable(init, -1)


# -- static tables ----------------------------------------------------------------------------------------------------


async def test_lookup_requires_the_initializer() -> None:
    table = words_table("words")
    found = table.lookup(af.constant([["a"], ["z"]]))
    assert (found.shape.as_list(), found.dtype, table.name) == ([2, 1], af.int64, "words")
    assert af.get_collection(af.GraphKeys.TABLE_INITIALIZERS) == [table.initializer]
    async with af.Session() as session:
        with pytest.raises(FailedPreconditionError, match="not initialized") as caught:
            await session.run(found)
        assert "tables_initializer" in str(caught.value)
        await session.run(af.tables_initializer())
        assert (await session.run(found)).tolist() == [[1], [-1]]
        keys, values = await session.run(table.export())
        assert (keys.tolist(), values.tolist()) == ([b"a", b"b"], [1, 2])
        assert await session.run(table[af.constant("b")]) == 2


async def test_tables_initializer_without_tables_does_nothing() -> None:
    async with af.Session() as session:
        assert await session.run([af.tables_initializer(), af.initialize_all_tables()]) == [None, None]


async def test_initializer_rejects_two_values_for_one_key() -> None:
    init = af.lookup.KeyValueTensorInitializer(["a", "a"], [1, 2])
    table = af.lookup.StaticHashTable(init, 0)
    async with af.Session() as session:
        with pytest.raises(FailedPreconditionError, match="two values for one key"):
            await session.run(table.initializer)
        assert await session.run(table.size()) == 0


async def test_a_monitored_session_initializes_tables() -> None:
    found = words_table().lookup(af.constant(["b"]))
    async with af.train.MonitoredTrainingSession() as session:
        assert (await session.run(found)).tolist() == [2]


async def test_tables_in_branches_and_loops() -> None:
    table = words_table()
    flag = af.placeholder(af.bool, ())
    chosen = af.cond(flag, lambda: table.lookup(af.constant("a")), lambda: af.constant(7, af.int64))

    def made_inside() -> Any:
        return af.lookup.StaticHashTable(af.lookup.KeyValueTensorInitializer(["c"], [3]), 0).lookup(af.constant("c"))

    inside = af.cond(flag, made_inside, lambda: af.constant(0))
    total = af.while_loop(
        lambda i, s: i < 3,
        lambda i, s: [i + 1, s + table.lookup(af.constant("b"))],
        [af.constant(0), af.constant(0, af.int64)],
    )[1]
    async with af.Session() as session:
        await session.run(af.tables_initializer())
        assert await session.run([chosen, inside, total], {flag: True}) == [1, 3, 6]
        assert await session.run([chosen, inside], {flag: False}) == [7, 0]


def test_lookup_has_no_gradient() -> None:
    x = af.constant([1.0])
    found = MutableHashTable(af.int64, af.float32, 0.0).lookup(numbers(1), x)
    assert af.gradients(found, x) == [None]


def test_wrong_arguments_are_refused_while_building() -> None:
    table = words_table()
    with pytest.raises(DTypeError, match="wrong dtype"):
        table.lookup(af.constant([1]))
    with pytest.raises(InvalidArgumentError, match="one default value"):
        af.lookup.StaticHashTable(af.lookup.KeyValueTensorInitializer(["a"], [1]), [1, 2])
    with pytest.raises(DTypeError, match="initializer of a table"):
        af.lookup.StaticHashTable({"a": 1}, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="buckets"):
        af.lookup.StaticVocabularyTable(None, 0)
    with pytest.raises(InvalidArgumentError, match="buckets alone"):
        _ = af.lookup.StaticVocabularyTable(None, 3).resource_handle
    with pytest.raises(DTypeError, match="other key_dtypes"):
        make("LookupTableFindV2", MutableHashTable(af.string, af.int64, 0).resource_handle, [1], numbers(0)[0])


# -- resources --------------------------------------------------------------------------------------------------------


async def test_a_table_is_dropped_with_its_container() -> None:
    graph = af.get_default_graph()
    with graph.container("words"):
        table = MutableHashTable(af.string, af.int64, -1)
        static = words_table()
    async with af.Session() as session:
        await session.run([table.insert(["a"], [1]), static.initializer])
        await session.clear(["words"])
        assert await session.run([table.size(), static.size()]) == [0, 0]
        await session.run(make_destroyed(table))
        assert await session.run(table.size()) == 0


def make_destroyed(table: Any) -> Any:
    return af.raw_ops.DestroyResourceOp(resource=table.resource_handle)


async def test_shared_name_of_another_resource_kind_is_refused() -> None:
    queue = af.FIFOQueue(1, [af.int32], shared_name="x")
    table = make("HashTableV2", key_dtype=af.string, value_dtype=af.int64, shared_name="x")
    async with af.Session() as session:
        await session.run(queue.size())
        with pytest.raises(InvalidArgumentError, match="different kind"):
            await session.run(make("LookupTableSizeV2", table))
        with pytest.raises(InvalidArgumentError, match="different kind"):
            await session.run(make("LookupTableSizeV2", queue.queue_ref))


async def test_tables_on_another_task() -> None:
    # The tables live on the task `ps`. Each new graph has tables of its own, so the second round starts empty.
    spec = {"ps": ["localhost:0"], "worker": ["localhost:0"]}
    async with Server(spec, "worker", 0) as worker:
        spec = {"ps": ["localhost:0"], "worker": [worker.target.removeprefix("aioflow://")]}
        async with Server(spec, "ps", 0) as ps:
            for expected in (2, 2):
                with af.Graph().as_default() as graph, af.device("/job:ps/task:0"):
                    static, mutable = words_table(), MutableHashTable(af.string, af.float32, [0.0, 0.0])
                    found = static.lookup(af.constant(["b"])), mutable.lookup(af.constant(["k", "l"]))
                    change = mutable.insert(af.constant(["k"]), af.constant([[1.0, 2.0]]))
                async with af.Session(ps.target, graph=graph) as session:
                    with pytest.raises(FailedPreconditionError):
                        await session.run(found[0])
                    await session.run([static.initializer, change])
                    ids, rows = await session.run(found)
                    assert ids.tolist() == [expected]
                    assert rows.tolist() == [[1, 2], [0, 0]]


# -- mutable tables ---------------------------------------------------------------------------------------------------


async def test_concurrent_lookups_see_whole_insertions() -> None:
    # Insertions are atomic: a lookup sees all keys from before an insertion or all from after it.
    table = MutableHashTable(af.int64, af.int64, -1)
    count, rounds = 50_000, 20
    keys = af.constant(np.arange(count))
    value = af.placeholder(af.int64, ())
    insert = table.insert(keys, af.fill([count], value))
    found, size = table.lookup(keys), table.size()
    async with af.Session() as session:
        seen: list[set[int]] = []

        async def write(start: int) -> None:
            for i in range(start, rounds, 2):
                await session.run(insert, {value: i})

        async def read() -> None:
            for _ in range(rounds):
                values = await session.run(found)
                seen.append(set(values.tolist()))

        async with asyncio.TaskGroup() as group:
            for work in (write(0), write(1), read(), read()):
                group.create_task(work)
        assert all(len(each) == 1 for each in seen), seen
        assert await session.run(size) == count


async def test_table_copies_inserted_and_returned_values() -> None:
    table = MutableHashTable(af.string, af.float32, [0.0, 0.0])
    given = np.array([[1, 2], [3, 4]], np.float32)
    fed = af.placeholder(af.float32, [2, 2])
    insert, found = table.insert(af.constant(["a", "b"]), fed), table.lookup(af.constant(["a", "b"]))
    async with af.Session() as session:
        await session.run(insert, {fed: given})
        given[:] = 9
        first = await session.run(found)
        first[:] = 7
        assert (await session.run(found)).tolist() == [[1, 2], [3, 4]]


async def test_export_returns_entries_in_insertion_order() -> None:
    table = MutableHashTable(af.int64, af.string, "")
    steps = [
        table.insert(numbers(5, 1, 9), ["five", "one", "nine"]),
        table.insert(numbers(1), ["uno"]),
        table.remove(numbers(5)),
        table.insert(numbers(5), ["cinco"]),
    ]
    async with af.Session() as session:
        for step in steps:
            await session.run(step)
        keys, values = await session.run(table.export())
        assert (keys.tolist(), values.tolist()) == ([1, 9, 5], [b"uno", b"nine", b"cinco"])


# -- text files -------------------------------------------------------------------------------------------------------


async def test_file_outside_allowed_folders_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("in/words", "words"):
        (tmp_path / name).write_text("a\nb\n")
    good, bad = file_table(tmp_path / "in/words"), file_table(tmp_path / "in/../words")
    server = Server({"worker": ["localhost:0"]}, "worker", 0, allow_dirs=[tmp_path / "in"])
    async with server, af.Session(server.target) as session:
        await session.run(good.initializer)
        assert await session.run(good.size()) == 2
        with pytest.raises(PermissionDeniedError):
            await session.run(bad.initializer)


async def test_file_larger_than_max_value_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"\n".join(b"%d" % i for i in range(100_000)))
    table = file_table(path)
    async with af.Session(config=af.SessionConfig(max_value_bytes=1 << 18)) as session:
        with pytest.raises(ResourceExhaustedError):
            await session.run(table.initializer)
        assert await session.run(table.size()) == 0


@pytest.mark.parametrize("damage", [slice(0, 5), slice(3, None), slice(0, 0), slice(2, -2)])
async def test_a_damaged_file_leaves_the_table_empty(tmp_path: Path, damage: slice) -> None:
    path = tmp_path / "columns"
    path.write_bytes(b"a\t1\nb\t22\nccc\t333"[damage])
    init = af.lookup.TextFileInitializer(path, af.string, 0, af.int64, 1, vocab_size=3)
    table = af.lookup.StaticHashTable(init, -1)
    async with af.Session() as session:
        with pytest.raises(af.OpError) as caught:
            await session.run(table.initializer)
        assert "columns" in str(caught.value)
        assert await session.run(table.size()) == 0
        path.write_bytes(b"a\t1\nb\t22\nccc\t333")
        await session.run(table.initializer)
        assert (await session.run(table.lookup(af.constant(["ccc"])))).tolist() == [333]


async def test_computed_file_names_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("a\nb\n")
    folder = af.placeholder(af.string, ())
    index = af.lookup.TextFileIndex
    name = af.strings.join([folder, "words"], "/")
    init = af.lookup.TextFileInitializer(name, af.string, index.WHOLE_LINE, af.int64, index.LINE_NUMBER)
    table = af.lookup.StaticHashTable(init, -1)
    async with af.Session() as session:
        with pytest.raises(NotFoundError):
            await session.run(table.initializer, {folder: str(tmp_path / "none")})
        await session.run(table.initializer, {folder: str(tmp_path)})
        assert await session.run(table.size()) == 2


# -- dense tables -----------------------------------------------------------------------------------------------------


async def test_too_many_buckets_are_refused_at_export() -> None:
    table = make(
        "MutableDenseHashTableV2",
        numbers(0)[0],
        numbers(1)[0],
        value_dtype=af.int64,
        initial_num_buckets=1 << 60,
    )
    keys, values = af.raw_ops.LookupTableExportV2(table_handle=table, Tkeys=af.int64, Tvalues=af.int64)
    async with af.Session() as session:
        assert await session.run(make("LookupTableSizeV2", table)) == 0
        with pytest.raises(ResourceExhaustedError):
            await session.run([keys, values])


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"write_version": 2}, {"incremental": True}])
async def test_checkpoint_restores_table_entries(tmp_path: Path, form: dict[str, Any]) -> None:
    table = MutableHashTable(af.string, af.int64, -1, name="words")
    MutableHashTable(af.string, af.int64, -1, name="passing", checkpoint=False)
    af.Variable(3.0, name="v")
    found = table.lookup(af.constant(["a", "b", "c"]))
    saver = af.train.Saver(**form)
    async with af.Session() as session:
        await session.run([af.global_variables_initializer(), table.insert(["a", "b"], [1, 2])])
        taken = await saver.snapshot(session, tmp_path / "taken")
        await session.run([table.insert(["c"], [3]), table.remove(["a"])])
        assert taken is not None
        await taken.write()
        path = await saver.save(session, tmp_path / "saved")
        assert path is not None
    assert [name for name, _ in af.train.list_variables(path)] == ["v", "words-keys", "words-values"]
    async with af.Session() as session:
        await saver.restore(session, path)
        assert (await session.run(found)).tolist() == [-1, 2, 3]
        await saver.restore(session, taken.prefix)
        assert (await session.run(found)).tolist() == [1, 2, -1]
    with af.Graph().as_default() as graph:
        again: Any = af.train.import_meta_graph(f"{path}.meta")
        async with af.Session(graph=graph) as session:
            await again.restore(session, path)
            assert (await session.run(found.name)).tolist() == [-1, 2, 3]


async def test_tables_are_saved_under_given_names(tmp_path: Path) -> None:
    table = MutableHashTable(af.string, af.int64, -1)
    async with af.Session() as session:
        await session.run(table.insert(["a"], [1]))
        path = await af.train.Saver({"mine": table}).save(session, tmp_path / "saved")
    assert path is not None
    assert [name for name, _ in af.train.list_variables(path)] == ["mine-keys", "mine-values"]
    other = MutableHashTable(af.string, af.int64, -1)
    with pytest.raises(InvalidArgumentError, match="MutableHashTable-keys"):
        af.train.Saver([table, other])
    with pytest.raises(DTypeError, match="mutable tables"):
        af.train.Saver([words_table()])  # type: ignore[list-item]


# -- models -----------------------------------------------------------------------------------------------------------


async def test_a_model_carries_its_tables(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("a\nb\n")
    vocabulary = af.lookup.StaticVocabularyTable(
        af.lookup.TextFileInitializer(tmp_path / "words", af.string, -2, af.int64, -1), 3
    )
    rows = MutableHashTable(af.int64, af.float32, [0.0, 0.0])
    x = af.placeholder(af.string, [None], name="x")
    ids = vocabulary.lookup(x)
    signature = af.saved.Signature({"x": x}, {"ids": ids, "rows": rows.lookup(ids)})
    async with af.Session() as session:
        with pytest.raises(FailedPreconditionError):
            await af.saved.save(session, tmp_path / "none", signature)
        await session.run([af.tables_initializer(), rows.insert(numbers(1), [[5.0, 6.0]])])
        await af.saved.save(session, tmp_path / "model", signature)
        await af.interop.tensorflow.save_saved_model(session, tmp_path / "theirs", signature)
        expected = await session.run(dict(signature.outputs), {x: ["a", "b", "c"]})
    (tmp_path / "words").unlink()
    models = af.saved.load(tmp_path / "model"), af.interop.tensorflow.load_saved_model(tmp_path / "theirs")
    for model in models:
        async with af.Session(graph=model.graph) as session:
            await model.initialize(session)
            found = await session.run(dict(model.outputs), {model.inputs["x"]: ["a", "b", "c"]})
        for name, value in expected.items():
            assert np.array_equal(found[name], value), name

"""Models with lookup tables: TensorFlow's are imported and exported again, and TensorFlow runs the exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.interop.tensorflow import import_graph_def, load_saved_model, save_saved_model

tensorflow: Any = pytest.importorskip("tensorflow")
tf: Any = tensorflow.compat.v1
_HELD = "TensorFlow writes and reads the model"
WORDS = ["a", "q", "z", ""]


def _file(folder: Path) -> Path:
    path = folder / "words.txt"
    path.write_text("a\nb\nc\n")
    return path


def _module(path: Path, mutable: bool) -> Any:
    """Return a TensorFlow 2 module with tables.

    Functions initialize the static ones from an asset and from constants; the checkpoint has the mutable ones.
    """
    lookup, int64 = tensorflow.lookup, tensorflow.int64

    class Module(tensorflow.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.path = tensorflow.saved_model.Asset(str(path))
            lines = lookup.TextFileInitializer(self.path, tensorflow.string, -2, int64, -1)
            self.lines = lookup.StaticHashTable(lines, -1)
            pairs = lookup.KeyValueTensorInitializer(["a", "b"], tensorflow.constant([0, 1], int64))
            self.vocabulary = lookup.StaticVocabularyTable(pairs, 3)
            self.scale = tensorflow.Variable(2.0)
            if not mutable:
                return
            self.ids = lookup.experimental.MutableHashTable(tensorflow.string, int64, -1)
            self.ids.insert(tensorflow.constant(["q", "a"]), tensorflow.constant([5, 6], int64))
            self.rows = lookup.experimental.DenseHashTable(
                int64, tensorflow.float32, [0.0, 0.5], empty_key=-3, deleted_key=-2, initial_num_buckets=8
            )
            self.rows.insert(tensorflow.constant([1, 5], int64), [[1.0, 2.0], [3.0, 4.0]])

        @tensorflow.function(input_signature=[tensorflow.TensorSpec([None], tensorflow.string)])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            found = {"lines": self.lines.lookup(x), "vocabulary": self.vocabulary.lookup(x), "scale": self.scale * 2}
            if mutable:
                ids = self.ids.lookup(x)
                found |= {"ids": ids, "rows": self.rows.lookup(ids), "size": self.ids.size()}
            return found

    return Module()


async def _found(model: Any) -> dict[str, Any]:
    async with af.Session(graph=model.graph) as session:
        await model.initialize(session)
        (x,) = model.inputs.values()
        found: dict[str, Any] = await session.run(dict(model.outputs), {x: WORDS})
        return found


def _same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name].dtype == np.asarray(value).dtype, name
        assert np.array_equal(found[name], value), name


async def _goes_out_again(model: Any, expected: dict[str, Any], folder: Path) -> None:
    """Export the model in our format and in TensorFlow's, which TensorFlow 1 and 2 load."""
    async with af.Session(graph=model.graph) as session:
        await model.initialize(session)
        await af.saved.save(session, folder / "own", model.signatures)
        await save_saved_model(session, folder / "theirs", model.signatures, assets=model.assets)
    _same(await _found(af.saved.load(folder / "own")), expected)
    _same(await _found(load_saved_model(folder / "theirs")), expected)
    (name,) = model.inputs
    function = tensorflow.saved_model.load(str(folder / "theirs")).signatures["serving_default"]
    _same({k: v.numpy() for k, v in function(**{name: tensorflow.constant(WORDS)}).items()}, expected)
    with tf.Session(graph=tf.Graph()) as session:
        meta = tf.saved_model.load(session, ["serve"], str(folder / "theirs"))
        signature = meta.signature_def["serving_default"]
        fetches = {key: info.name for key, info in signature.outputs.items()}
        _same(session.run(fetches, {signature.inputs[name].name: WORDS}), expected)


@pytest.mark.blocks_loop(_HELD)
@pytest.mark.parametrize("mutable", [False, True])
async def test_tables_of_tensorflow_2(tmp_path: Path, mutable: bool) -> None:
    path = _file(tmp_path)
    module = _module(path, mutable)
    tensorflow.saved_model.save(module, str(tmp_path / "model"))
    expected = {name: value.numpy() for name, value in module(tensorflow.constant(WORDS)).items()}
    path.unlink()
    model = load_saved_model(tmp_path / "model")
    _same(await _found(model), expected)
    await _goes_out_again(model, expected, tmp_path)


@pytest.mark.blocks_loop(_HELD)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_tables_of_tensorflow_1(tmp_path: Path) -> None:
    path = _file(tmp_path)
    with tf.Graph().as_default():
        lines = tf.lookup.TextFileInitializer(str(path), tf.string, -2, tf.int64, -1)
        x = tf.placeholder(tf.string, [None])
        mutable = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1, name="mutable")
        outputs = {"lines": tf.lookup.StaticHashTable(lines, -1).lookup(x), "mutable": mutable.lookup(x)}
        tf.get_variable("v", initializer=1.0)
        with tf.Session() as session:
            session.run([tf.tables_initializer(), tf.global_variables_initializer()])
            session.run(mutable.insert(tf.constant(["q", "a"]), tf.constant([5, 6], tf.int64)))
            expected = session.run(outputs, {x: WORDS})
            builder = tf.saved_model.Builder(str(tmp_path / "model"))
            builder.add_meta_graph_and_variables(
                session,
                ["serve"],
                {"serving_default": tf.saved_model.predict_signature_def({"x": x}, outputs)},
                assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
                main_op=tf.tables_initializer(),
            )
            builder.save()
    path.unlink()
    model = load_saved_model(tmp_path / "model")
    _same(await _found(model), expected)
    await _goes_out_again(model, expected, tmp_path)


async def test_tables_with_string_handles(tmp_path: Path) -> None:
    """Import the table ops of the first TensorFlow 1 releases."""
    path = _file(tmp_path)
    raw = tensorflow.raw_ops

    def number(*values: int) -> Any:
        return tf.constant(values, tf.int64)

    of = {"key_dtype": tf.string, "value_dtype": tf.int64}
    with tf.Graph().as_default() as graph:
        keys = tf.constant(["a", "z", "b"])
        static, text, mutable = raw.HashTable(**of), raw.HashTable(**of), raw.MutableHashTable(**of)
        vectors = raw.MutableHashTableOfTensors(**of, value_shape=[2])

        def find(table: Any) -> Any:
            return raw.LookupTableFind(table_handle=table, keys=keys, default_value=tf.constant(-1, tf.int64)).op

        nodes = [
            raw.InitializeTable(table_handle=static, keys=["a", "b"], values=number(1, 2)),
            find(static),
            raw.LookupTableSize(table_handle=static).op,
            raw.InitializeTableFromTextFile(table_handle=text, filename=str(path), key_index=-2, value_index=-1),
            find(text),
            raw.LookupTableInsert(table_handle=mutable, keys=["z"], values=number(7)),
            find(mutable),
            raw.LookupTableExport(table_handle=mutable, Tkeys=tf.string, Tvalues=tf.int64)[0].op,
            raw.LookupTableImport(table_handle=mutable, keys=["b"], values=number(9)),
            find(mutable),
            raw.LookupTableSize(table_handle=vectors).op,
        ]
    fetched = [each.outputs[0].name if each.outputs else each.name for each in nodes]
    with tf.Session(graph=graph) as session:
        expected = [session.run(name) for name in fetched]
    with af.Graph().as_default() as ours:
        import_graph_def(graph.as_graph_def(), name="")
        async with af.Session(graph=ours) as session:
            for name, value in zip(fetched, expected, strict=True):
                assert np.array_equal(await session.run(name), value), name

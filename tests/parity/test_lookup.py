"""Lookup tables against tensorflow-cpu: values found, kinds of errors, and static shapes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af

tensorflow: Any = pytest.importorskip("tensorflow")
tf: Any = tensorflow.compat.v1

# A program makes nodes and returns those to run, one after the other.
Program = Callable[[Any], Sequence[Any]]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    array = np.asarray(value)
    return None if value is None else (array.dtype.kind, array.dtype.itemsize, array.shape, array.tolist())


def _theirs(program: Program) -> list[Any]:
    with tf.Graph().as_default():
        nodes = program(tf)
        found: list[Any] = []
        with tf.Session() as session:
            for node in nodes:
                try:
                    found.append(_plain(session.run(node)))
                except tf.errors.OpError as error:
                    found.append(type(error).__name__)
        return found


async def _ours(program: Program) -> list[Any]:
    with af.Graph().as_default() as graph:
        nodes = program(af)
        found: list[Any] = []
        async with af.Session(graph=graph) as session:
            for node in nodes:
                try:
                    found.append(_plain(await session.run(node)))
                except af.OpError as error:
                    found.append(next(k.__name__ for k in type(error).__mro__ if hasattr(tf.errors, k.__name__)))
        return found


def same(program: Program) -> list[Any]:
    """Run the program in both systems, check that the results are equal, and return them."""
    expected, found = _theirs(program), asyncio.run(_ours(program))
    assert found == expected
    return found


# -- static tables ----------------------------------------------------------------------------------------------------


def _table(m: Any, keys: Any, values: Any, default: Any, key: str, value: str) -> Any:
    init = m.lookup.KeyValueTensorInitializer(keys, values, key_dtype=getattr(m, key), value_dtype=getattr(m, value))
    return m.lookup.StaticHashTable(init, default)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("int32", v) for v in ("int32", "float32", "float64", "string")],
        *[("int64", v) for v in ("int32", "int64", "float32", "float64", "string")],
        *[("string", v) for v in ("int32", "int64", "float32", "float64", "string", "bool")],
    ],
)
def test_static_tables_of_all_dtypes(key: str, value: str) -> None:
    keys: Any = [b"b", b"a", b""] if key == "string" else [7, -3, 0]
    other: Any = b"z" if key == "string" else 99
    values: Any = {"string": [b"x", b"", b"\xff\0"], "bool": [True, False, True]}.get(value, [1, -2, 3])
    if value.startswith("float"):
        values = [0.1, -np.inf, 1e30]
    default: Any = {"string": "no", "bool": True}.get(value, 5)

    def program(m: Any) -> list[Any]:
        table = _table(m, keys, values, default, key, value)
        wanted = m.constant([[keys[1], other], [keys[2], keys[0]]], getattr(m, key))
        found = table.lookup(wanted)
        assert found.get_shape().as_list() == [2, 2]
        scalar = table.lookup(m.constant(keys[2], getattr(m, key)))
        empty = table.lookup(m.zeros([0, 3], getattr(m, key)) if key != "string" else wanted[:0])
        return [table.size(), found, m.tables_initializer(), table.size(), found, scalar, empty, table[wanted]]

    assert same(program)[:2] == [("i", 8, (), 0), "FailedPreconditionError"]


def test_a_table_is_initialized_once() -> None:
    def program(m: Any) -> list[Any]:
        raw = m.raw_ops
        table = raw.HashTableV2(key_dtype=m.string, value_dtype=m.int64)

        def fill(op: str, keys: Any, values: Any) -> Any:
            keys, values = m.constant(keys, m.string), m.constant(values, m.int64)
            keys, values = m.placeholder_with_default(keys, None), m.placeholder_with_default(values, None)
            return getattr(raw, op)(table_handle=table, keys=keys, values=values)

        def find(keys: Any, default: Any) -> Any:
            keys, default = m.constant(keys, m.string), m.constant(default, m.int64)
            return raw.LookupTableFindV2(table_handle=table, keys=keys, default_value=default)

        nodes = [raw.LookupTableSizeV2(table_handle=table), find(["a"], 7)]
        for op in ("InitializeTableV2", "LookupTableImportV2"):
            nodes += [
                fill(op, ["a", "a"], [1, 2]),
                find(["a"], 7),
                fill(op, [], []),
                fill(op, ["a", "b"], [1]),
                fill(op, ["a", "b"], [[1, 2]]),
            ]
        nodes += [
            fill("InitializeTableV2", [["a", "b"]], [[1, 2]]),
            fill("InitializeTableV2", "a", 1),
            raw.LookupTableSizeV2(table_handle=table),
            fill("InitializeTableV2", ["a", "b"], [1, 2]),
        ]
        for op in ("InitializeTableV2", "LookupTableImportV2"):
            nodes += [fill(op, ["a", "b"], [1, 2]), fill(op, ["a", "c"], [5, 6]), fill(op, ["a"], [1])]
        nodes += [
            find([["a", "c"]], 7),
            find("b", 7),
            find(["a", "z"], [8, 9]),
            find(["y", "z"], [8, 9]),
            find(["y", "z"], [8]),
            find([], 7),
            raw.LookupTableSizeV2(table_handle=table),
            raw.LookupTableInsertV2(table_handle=table, keys=m.constant(["a"]), values=m.constant([4], m.int64)),
            raw.LookupTableRemoveV2(table_handle=table, keys=m.constant(["a"])),
            raw.LookupTableFindV2(table_handle=table, keys=m.constant([1]), default_value=m.constant(1, m.int64)),
            raw.LookupTableFindV2(table_handle=table, keys=m.constant(["a"]), default_value=m.constant(1)),
        ]
        return nodes

    assert len(set(map(str, same(program)))) > 6


def test_one_key_with_two_equal_values_counts_once() -> None:
    def program(m: Any) -> list[Any]:
        table = _table(m, ["a", "a", "b"], [1, 1, 2], -1, "string", "int64")
        return [table.initializer, table.size(), table.lookup(m.constant(["a", "b", "c"]))]

    same(program)


def test_tables_of_one_shared_name_share_content() -> None:
    def program(m: Any) -> list[Any]:
        raw = m.raw_ops
        one, two, other = (
            raw.HashTableV2(key_dtype=m.string, value_dtype=dtype, shared_name="x")
            for dtype in (m.int64, m.int64, m.string)
        )
        fill = raw.InitializeTableV2(table_handle=one, keys=m.constant(["a"]), values=m.constant([3], m.int64))
        sizes = [raw.LookupTableSizeV2(table_handle=each) for each in (one, two, other)]
        return [sizes[0], fill, sizes[0], sizes[1], sizes[2]]

    same(program)


def test_anonymous_tables_last_a_step() -> None:
    def program(m: Any) -> list[Any]:
        init = m.lookup.KeyValueTensorInitializer([1, 2], ["a", "b"], key_dtype=m.int64)
        table = m.lookup.StaticHashTable(init, "no", experimental_is_anonymous=True)
        with m.control_dependencies([m.tables_initializer()]):
            found = table.lookup(m.constant([2, 3], m.int64))
        return [found, m.tables_initializer(), table.lookup(m.constant([2], m.int64))]

    same(program)


def test_sparse_keys() -> None:
    def program(m: Any) -> list[Any]:
        table = _table(m, ["a", "b"], [1, 2], -1, "string", "int64")
        keys = m.SparseTensor(m.constant([[0, 1], [2, 0]], m.int64), ["b", "z"], m.constant([3, 2], m.int64))
        found = table.lookup(keys)
        return [table.initializer, found.indices, found.values, found.dense_shape]

    same(program)


# -- vocabularies -----------------------------------------------------------------------------------------------------

WORDS = ["emerson", "lake", "palmer", "king", "crimson", "", "\u00e9"]


@pytest.mark.parametrize("buckets", [1, 3, 1000])
def test_a_vocabulary_with_buckets(buckets: int) -> None:
    def program(m: Any) -> list[Any]:
        init = m.lookup.KeyValueTensorInitializer(WORDS[:3], [0, 1, 2], value_dtype=m.int64)
        table = m.lookup.StaticVocabularyTable(init, buckets)
        bare = m.lookup.StaticVocabularyTable(None, buckets)
        words = m.constant(WORDS)
        return [
            bare.size(),
            bare.lookup(words),
            table.lookup(words),
            table.initializer,
            table.lookup(words),
            table.size(),
        ]

    same(program)


@pytest.mark.parametrize("lookup", ["int64", "int32"])
def test_a_vocabulary_of_integers(lookup: str) -> None:
    def program(m: Any) -> list[Any]:
        init = m.lookup.KeyValueTensorInitializer([5, 7], [0, 1], key_dtype=m.int64, value_dtype=m.int64)
        table = m.lookup.StaticVocabularyTable(init, 4, lookup_key_dtype=getattr(m, lookup))
        return [table.initializer, table.lookup(m.constant([5, 6, 7, -1, 123456], getattr(m, lookup))), table.size()]

    same(program)


# -- text files -------------------------------------------------------------------------------------------------------

_COLUMNS = {"key_index": 0, "value_index": 1}
FILES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "lines": (b"a\nb\nc\n", {}),
    "no newline at the end": (b"a\nb\nc", {}),
    "carriage returns": (b"a\r\nb\r\nc", {}),
    "a carriage return at the end": (b"a\nb\r", {}),
    "two carriage returns": (b"a\r\r\nb\n", {}),
    "a carriage return inside": (b"a\rb\nc\n", {}),
    "a NUL": (b"a\0b\nc\n", {}),
    "a mark of the byte order": (b"\xef\xbb\xbfa\n", {}),
    "a key twice": (b"a\nb\na\n", {}),
    "an empty line": (b"a\n\nb\n", {}),
    "an empty line first": (b"\na\n", {}),
    "an empty line at the end": (b"a\n\n", {}),
    "a newline alone": (b"\n", {}),
    "nothing": (b"", {}),
    "columns": (b"a\t1\nb\t2\n", _COLUMNS),
    "a column too few": (b"a\t1\nb\n", _COLUMNS),
    "a column too many": (b"a\t1\t9\nb\t2\n", _COLUMNS),
    "no number": (b"a\t1\nb\tx\n", _COLUMNS),
    "half a number": (b"a\t1x\n", _COLUMNS),
    "blanks around a number": (b"a\t 1 \nb\t+2\n", _COLUMNS),
    "no decimal number": (b"a\t0x1\n", _COLUMNS),
    "an underscore in a number": (b"a\t1_0\n", _COLUMNS),
    "a number too large": (b"a\t9223372036854775808\n", _COLUMNS),
    "one key with one value twice": (b"a\t1\na\t1\n", _COLUMNS),
    "an empty column": (b"\t1\n", _COLUMNS),
    "commas": (b"a,1\nb,2\n", {**_COLUMNS, "delimiter": ","}),
    "a long delimiter": (b"a,1\n", {**_COLUMNS, "delimiter": ",,"}),
    "no delimiter": (b"a,1\n", {**_COLUMNS, "delimiter": ""}),
    "the lines of a vocabulary": (b"a\nb\nc\n", {"vocab_size": 3}),
    "more lines than a vocabulary": (b"a\nb\n\n", {"vocab_size": 2}),
    "fewer lines than a vocabulary": (b"a\nb\nc\n", {"vocab_size": 4}),
    "an empty vocabulary": (b"a\nb\nc\n", {"vocab_size": 0}),
    "an offset": (b"a\nb\n", {"offset": 5}),
    "an offset of columns": (b"a\t1\n", {**_COLUMNS, "offset": 5}),
    "numbers to lines": (b"a\nb\n", {"key": "int64", "value": "string", "key_index": -1, "value_index": -2}),
    "whole lines as integers": (b"1\n2\n", {"key": "int64"}),
    "whole lines as no integers": (b"1\nq\n", {"key": "int64"}),
    "columns of integers": (b"1\t5\n2\t6\n", {**_COLUMNS, "key": "int64"}),
    "columns of int32": (b"1\t5\n2\t6\n", {**_COLUMNS, "key": "int32", "value": "int32"}),
    "columns of int32 too large": (b"1\t99999999999\n", {**_COLUMNS, "key": "int32", "value": "int32"}),
    "columns of float32": (b"a\t1.5\nb\t2e3\nc\t1e999\n", {**_COLUMNS, "value": "float32"}),
    "columns of float64": (b"a\t1.5\nb\t-inf\n", {**_COLUMNS, "value": "float64"}),
    "columns of no floats": (b"a\tq\n", {**_COLUMNS, "value": "float32"}),
    "columns of bools": (b"a\t1\n", {**_COLUMNS, "value": "bool"}),
    "numbers of lines as strings": (b"a\n", {"value": "string"}),
    "numbers of lines as int32": (b"a\n", {"value": "int32"}),
    "whole lines twice": (b"a\n", {"value": "string", "value_index": -2}),
    "whole lines as floats": (b"1\n", {"key": "int64", "value": "float32", "key_index": -1, "value_index": -2}),
}


@pytest.mark.parametrize("name", list(FILES))
def test_a_text_file(tmp_path: Path, name: str) -> None:
    content, given = FILES[name]
    arguments = {"key": "string", "value": "int64", "key_index": -2, "value_index": -1, **given}
    key, value = arguments.pop("key"), arguments.pop("value")
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(content)
    keys: Any = [b"a", b"b", b"c", b"a\0b", b"a\rb", b"a\r", b"b\r", b"", b"\xef\xbb\xbfa"]
    keys = keys if key == "string" else list(range(9))

    def program(m: Any) -> list[Any]:
        raw = m.raw_ops
        table = raw.HashTableV2(key_dtype=getattr(m, key), value_dtype=getattr(m, value))
        fill = raw.InitializeTableFromTextFileV2(table_handle=table, filename=m.constant(str(path)), **arguments)
        default = m.constant("none") if value == "string" else m.cast(0, getattr(m, value))
        found = raw.LookupTableFindV2(table_handle=table, keys=m.constant(keys, getattr(m, key)), default_value=default)
        return [fill, fill, raw.LookupTableSizeV2(table_handle=table), found]

    same(program)


def test_missing_text_file(tmp_path: Path) -> None:
    def program(m: Any) -> list[Any]:
        index = m.lookup.TextFileIndex
        made = []
        for path in (tmp_path / "nothing", tmp_path):
            init = m.lookup.TextFileInitializer(str(path), m.string, index.WHOLE_LINE, m.int64, index.LINE_NUMBER)
            made.append(m.lookup.StaticHashTable(init, -1).initializer)
        return made

    assert same(program) == ["NotFoundError", "FailedPreconditionError"]


def test_first_text_file_initializes_a_table(tmp_path: Path) -> None:
    """Initialize one table by several files: only the first line of each later file is read."""
    contents = [b"a\nb\n", b"a\nb\nc\n", b"a\n", b"", b"\n", b"a\n\n"]

    def program(m: Any) -> list[Any]:
        table = m.raw_ops.HashTableV2(key_dtype=m.string, value_dtype=m.int64)
        nodes = []
        for i, content in enumerate(contents):
            path = tmp_path / f"{i}.txt"
            path.write_bytes(content)
            nodes.append(
                m.raw_ops.InitializeTableFromTextFileV2(
                    table_handle=table, filename=str(path), key_index=-2, value_index=-1
                )
            )
        return [*nodes, m.raw_ops.LookupTableSizeV2(table_handle=table)]

    same(program)


def test_tables_of_one_text_file_share_content(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("a\nb\n")

    def program(m: Any) -> list[Any]:
        def table() -> Any:
            index = m.lookup.TextFileIndex
            init = m.lookup.TextFileInitializer(
                str(path), m.string, index.WHOLE_LINE, m.int64, index.LINE_NUMBER, value_index_offset=3
            )
            return m.lookup.StaticHashTable(init, -1)

        one, two = table(), table()
        assert m.get_collection(m.GraphKeys.ASSET_FILEPATHS)
        return [one.initializer, two.lookup(m.constant(["a", "b", "c"]))]

    same(program)
    names = []
    for m in (tf, af):
        with m.Graph().as_default():
            index = m.lookup.TextFileIndex
            init = m.lookup.TextFileInitializer("f", m.string, index.WHOLE_LINE, m.int64, index.LINE_NUMBER, 7)
            handle = m.lookup.StaticHashTable(init, -1).resource_handle
            shared = handle.op.get_attr("shared_name")
            names.append((shared if isinstance(shared, str) else shared.decode(), handle.op.name, init.key_dtype.name))
    assert names[1] == names[0]


# -- mutable tables ---------------------------------------------------------------------------------------------------


def _numbers(m: Any) -> Callable[..., Any]:
    return lambda *values: m.constant(values, m.int64)


def _column(m: Any) -> Callable[..., Any]:
    return lambda *values: m.placeholder_with_default(m.constant([[v] for v in values], m.int64), None)


def test_a_mutable_table() -> None:
    def program(m: Any) -> list[Any]:
        table = m.lookup.experimental.MutableHashTable(m.string, m.int64, -1)
        wanted = m.constant([["a"], ["b"], ["z"]])
        number = _numbers(m)
        return [
            table.size(),
            table.lookup(wanted),
            table.insert(m.constant(["a", "b", "a"]), number(1, 2, 3)),
            table.size(),
            table.lookup(wanted),
            table.lookup(m.constant(["a", "z"]), number(8, 9)),
            table.lookup(m.constant(["a", "z"]), number(8)),
            table.remove(m.constant(["a", "q"])),
            table.export(),
            table.insert(m.constant([["x", "y"]]), m.constant([[1, 2]], m.int64)),
            table.insert(m.constant("w"), m.constant(5, m.int64)),
            table.insert(m.constant(["v"]), number(1, 2)),
            table.insert(m.constant(["v"]), m.constant([[1]], m.int64)),
            table.lookup(m.constant(["v", "w", "x"])),
            table.size(),
            m.raw_ops.LookupTableImportV2(
                table_handle=table.resource_handle, keys=m.constant(["q"]), values=m.constant([4], m.int64)
            ),
            table.export(),
            m.raw_ops.InitializeTableV2(
                table_handle=table.resource_handle, keys=m.constant(["q"]), values=m.constant([4], m.int64)
            ),
            m.raw_ops.LookupTableImportV2(
                table_handle=table.resource_handle, keys=m.constant([], m.string), values=m.constant([], m.int64)
            ),
            table.export(),
        ]

    same(program)


def test_a_table_of_vectors() -> None:
    def program(m: Any) -> list[Any]:
        table = m.lookup.experimental.MutableHashTable(m.string, m.float32, [0.5, -0.5])
        find = table.lookup(m.placeholder_with_default(m.constant([["a"], ["z"]]), [None, 1]))
        assert find.get_shape().as_list() == [None, 1, 2]
        return [
            find,
            table.insert(m.constant(["a", "b"]), m.constant([[1.0, 2], [3, 4]])),
            find,
            table.lookup(m.constant("b")),
            table.lookup(m.constant(["a", "z"]), m.constant([[7.0, 7], [8, 8]])),
            table.lookup(m.constant(["a", "z"]), m.constant([[7.0, 7]])),
            table.insert(m.constant(["a"]), m.constant([1.0])),
            table.insert(m.constant(["a"]), m.constant([[1.0, 2, 3]])),
            table.remove(m.constant(["a"])),
            table.export(),
            table.size(),
        ]

    same(program)


def test_a_dense_table() -> None:
    def program(m: Any) -> list[Any]:
        table = m.lookup.experimental.DenseHashTable(
            m.int64, m.int64, default_value=-1, empty_key=0, deleted_key=-1, initial_num_buckets=4
        )
        number = _numbers(m)
        column = _column(m)
        return [
            table.size(),
            table.insert(number(1, 2, 1), number(5, 6, 7)),
            table.lookup(number(1, 2, 3)),
            table.lookup(number(0)),
            table.lookup(number(-1)),
            table.insert(number(0), number(9)),
            table.remove(number(-1)),
            table.remove(number(2, 77)),
            table.size(),
            m.shape(table.export()[0]),
            table.insert(number(3, 4, 5, 6, 7, 8), number(3, 4, 5, 6, 7, 8)),
            m.shape(table.export()[0]),
            m.shape(table.export()[1]),
            m.reduce_sum(table.export()[1]),
            table.size(),
            m.raw_ops.LookupTableImportV2(
                table_handle=table.resource_handle, keys=column(3, 0, -1), values=column(3, 1, 1)
            ),
            m.raw_ops.LookupTableImportV2(
                table_handle=table.resource_handle, keys=column(3, 0, -1, 4), values=column(3, 1, 1, 8)
            ),
            table.size(),
        ]

    same(program)


def test_a_dense_table_of_vectors() -> None:
    def program(m: Any) -> list[Any]:
        table = m.lookup.experimental.DenseHashTable(
            m.string, m.float32, [0.0, 0.5], empty_key=["", ""], deleted_key=["-", "-"], initial_num_buckets=8
        )
        keys = m.constant([["a", "b"], ["c", "d"]])
        found = table.lookup(m.constant([[["a", "b"]], [["b", "a"]]]))
        assert found.get_shape().as_list() == [2, 1, 2]
        return [
            table.insert(keys, m.constant([[1.0, 2], [3, 4]])),
            found,
            m.shape(table.export()[0]),
            m.shape(table.export()[1]),
            table.size(),
        ]

    same(program)


@pytest.mark.parametrize(("buckets", "load"), [(0, 0.8), (3, 0.8), (-4, 0.8), (8, 1.0), (8, 0.0), (8, 1.5), (8, 0.5)])
def test_bucket_counts_and_load_factors(buckets: int, load: float) -> None:
    def program(m: Any) -> list[Any]:
        table = m.raw_ops.MutableDenseHashTableV2(
            empty_key=m.constant(0, m.int64),
            deleted_key=m.constant(-1, m.int64),
            value_dtype=m.int64,
            initial_num_buckets=buckets,
            max_load_factor=load,
        )
        return [m.raw_ops.LookupTableSizeV2(table_handle=table)]

    same(program)


def _many(m: Any) -> Any:
    """Return inserts into dense tables, with keys that collide in buckets, and the tables."""
    number = _numbers(m)
    common: dict[str, Any] = {"default_value": 0, "initial_num_buckets": 16}
    dense = m.lookup.experimental.DenseHashTable
    integers = dense(m.int64, m.int64, empty_key=0, deleted_key=-1, name="integers", **common)
    strings = dense(m.string, m.int64, empty_key="", deleted_key="-", name="strings", **common)
    pairs = dense(m.int64, m.int64, empty_key=[0, 0], deleted_key=[0, 1], name="pairs", **common)
    texts = dense(m.string, m.int64, empty_key=["", ""], deleted_key=["-", ""], name="texts", **common)
    words = m.constant([f"word {i}" for i in range(10)])
    nine = m.cast(m.range(1, 11), m.int64)
    inserted = [
        integers.insert(number(5, 21, 37, -3, -19, 6, 22, 4, 20, 36), nine),
        strings.insert(words, nine),
        pairs.insert(m.stack([nine, nine * nine], 1), nine),
        texts.insert(m.stack([words, words[::-1]], 1), nine),
    ]
    return inserted, [integers, strings, pairs, texts]


def test_dense_tables_export_the_same_buckets() -> None:
    def program(m: Any) -> list[Any]:
        inserted, tables = _many(m)
        return [*inserted, *(table.export() for table in tables)]

    same(program)


# -- checkpoints ------------------------------------------------------------------------------------------------------


def _saved(m: Any) -> Any:
    words = m.lookup.experimental.MutableHashTable(m.string, m.int64, -1, name="words")
    vectors = m.lookup.experimental.MutableHashTable(m.int64, m.float32, [0.0, 0.0], name="vectors")
    number = _numbers(m)
    inserted, dense = _many(m)
    inserted += [
        words.insert(m.constant(["b", "a", ""]), number(1, 2, 3)),
        vectors.insert(number(7, 5), m.constant([[1.0, 2.0], [3.0, 4.0]])),
    ]
    found = [
        words.lookup(m.constant(["a", "b", "", "c"])),
        words.size(),
        vectors.lookup(number(5, 6, 7)),
        *(table.size() for table in dense),
        dense[0].lookup(number(5, 21, 36, 99)),
        dense[1].lookup(m.constant(["word 3", "word 9", "word"])),
        dense[3].lookup(m.constant([["word 3", "word 6"], ["word 3", "word 3"]])),
    ]
    m.get_variable("v", initializer=1.0)
    return inserted, found


async def test_each_system_reads_the_others_checkpoints(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        inserted, found = _saved(tf)
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), inserted])
            expected = _plain(session.run(found))
            saver.save(session, str(tmp_path / "theirs"))
    with af.Graph().as_default() as graph:
        inserted, found = _saved(af)
        own = af.train.Saver(write_version=2)
        async with af.Session(graph=graph) as session:
            await session.run([af.global_variables_initializer(), inserted])
            assert _plain(await session.run(found)) == expected
            await own.save(session, tmp_path / "ours")
        async with af.Session(graph=graph) as session:
            await own.restore(session, tmp_path / "theirs")
            assert _plain(await session.run(found)) == expected
    listed = [tf.train.list_variables(str(tmp_path / name)) for name in ("ours", "theirs")]
    assert listed[0] == listed[1]
    with tf.Graph().as_default():
        _, found = _saved(tf)
        saver = tf.train.Saver()
        with tf.Session() as session:
            saver.restore(session, str(tmp_path / "ours"))
            assert _plain(session.run(found)) == expected


# -- while a graph is built -------------------------------------------------------------------------------------------


def _refused(m: Any, build: Callable[[Any], Any]) -> Any:
    with m.Graph().as_default():
        try:
            made = build(m)
        except (ValueError, TypeError):
            return "refused"
        return None if made is None else [None if d.ndims is None else d.as_list() for d in made]


def _mutable(m: Any) -> Any:
    return m.raw_ops.MutableHashTableV2(key_dtype=m.string, value_dtype=m.int64)


def _find(m: Any, table: Any, keys: Any, default: Any) -> Any:
    return [m.raw_ops.LookupTableFindV2(table_handle=table, keys=keys, default_value=default).get_shape()]


def _take(m: Any, op: str, keys: Any, values: Any, table: Any = None) -> None:
    table = _mutable(m) if table is None else table
    getattr(m.raw_ops, op)(table_handle=table, keys=m.constant(keys), values=m.constant(values, m.int64))


BUILT: dict[str, Callable[[Any], Any]] = {
    "found in a mutable one": lambda m: _find(
        m, _mutable(m), m.placeholder(m.string, [None, 3]), m.constant(1, m.int64)
    ),
    "found with anything": lambda m: _find(m, _mutable(m), m.placeholder(m.string), m.constant(1, m.int64)),
    "found in a static one": lambda m: _find(
        m, m.raw_ops.HashTableV2(key_dtype=m.string, value_dtype=m.int64), m.constant(["a"]), m.constant(1, m.int64)
    ),
    "other keys": lambda m: _find(m, _mutable(m), m.constant([1]), m.constant(1, m.int64)),
    "other values": lambda m: _find(m, _mutable(m), m.constant(["a"]), m.constant("b")),
    "initialized with a matrix": lambda m: _take(m, "InitializeTableV2", [["a"]], [[1]]),
    "initialized with scalars": lambda m: _take(m, "InitializeTableV2", "a", 1),
    "initialized with too few": lambda m: _take(m, "InitializeTableV2", ["a", "b"], [1]),
    "imported with too few": lambda m: _take(m, "LookupTableImportV2", ["a", "b"], [1]),
    "imported with a matrix": lambda m: _take(m, "LookupTableImportV2", [["a"]], [[1]]),
    "imported with values of rank 2": lambda m: _take(m, "LookupTableImportV2", ["a"], [[1]]),
    "inserted with too few": lambda m: _take(m, "LookupTableInsertV2", ["a", "b"], [1]),
    "a default value of rank 1": lambda m: [
        m.lookup.StaticHashTable(m.lookup.KeyValueTensorInitializer(["a"], [1]), [1]).default_value.get_shape()
    ],
    "no buckets": lambda m: [m.lookup.StaticVocabularyTable(None, 0).size().get_shape()],
    "values that are no numbers": lambda m: [
        m.lookup.StaticVocabularyTable(m.lookup.KeyValueTensorInitializer(["a"], ["b"]), 1).size().get_shape()
    ],
    "keys of another dtype": lambda m: [
        m.lookup.StaticHashTable(m.lookup.KeyValueTensorInitializer(["a"], [1]), 1).lookup(m.constant([1])).get_shape()
    ],
    "numbers of lines as strings": lambda m: m.lookup.TextFileInitializer("f", m.string, -2, m.string, -1) and None,
    "whole lines as floats": lambda m: m.lookup.TextFileInitializer("f", m.string, 0, m.float32, -2) and None,
    "no such part of a line": lambda m: m.lookup.TextFileInitializer("f", m.string, -3, m.int64, -1) and None,
    "no file": lambda m: m.lookup.TextFileInitializer("", m.string, -2, m.int64, -1) and None,
    "a vocabulary of none": lambda m: m.lookup.TextFileInitializer("f", m.string, -2, m.int64, -1, 0) and None,
    "exported": lambda m: [
        each.get_shape()
        for each in m.raw_ops.LookupTableExportV2(table_handle=_mutable(m), Tkeys=m.string, Tvalues=m.int64)
    ],
    "exported as something else": lambda m: [
        each.get_shape()
        for each in m.raw_ops.LookupTableExportV2(table_handle=_mutable(m), Tkeys=m.int64, Tvalues=m.int64)
    ],
}


@pytest.mark.parametrize("name", list(BUILT))
def test_errors_and_shapes_while_a_graph_is_built(name: str) -> None:
    assert _refused(af, BUILT[name]) == _refused(tf, BUILT[name])

"""Records and parsers against TensorFlow: files that each system writes and the other reads, values and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af

RECORDS = [b"", b"one", b"two" * 500, bytes(range(256)) * 9]


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_each_system_reads_the_others_records(tf: Any, tmp_path: Path, compression: str) -> None:
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    with tf.io.TFRecordWriter(theirs, compression) as writer, af.io.TFRecordWriter(ours, compression) as mine:
        for record in RECORDS:
            writer.write(record)
            mine.write(record)
    assert list(af.io.tf_record_iterator(theirs, compression)) == RECORDS
    options = tf.io.TFRecordOptions(compression_type=compression)
    assert list(tf.io.tf_record_iterator(ours, options)) == RECORDS
    if not compression:
        assert Path(ours).read_bytes() == Path(theirs).read_bytes()


def same(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, str) or isinstance(mine, str):
        assert (mine if isinstance(mine, str) else "values") == (theirs if isinstance(theirs, str) else "values")
        return
    for a, b in zip(mine, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


INTS: list[Any] = [[0], [0]]
TEXTS: list[Any] = [[""], [""]]
CSV: list[tuple[Any, list[Any], dict[str, Any]]] = [
    ("1,2", INTS, {}), ("1,", INTS, {}), (",2", INTS, {}), ("1", INTS, {}), ("1,2,3", INTS, {}), ("1,x", INTS, {}),
    ("1,2\n", INTS, {}), ("\n1,\r2", INTS, {}), ('"1","2"', INTS, {}), ('"a""b",c', TEXTS, {}),
    ('"a"b,c', TEXTS, {}), ('a"b,c', TEXTS, {}), ('"a,b",c', TEXTS, {}), ('"a,b,c', TEXTS, {}),
    ('a"b,c', TEXTS, {"use_quote_delim": False}), ('"a",b', TEXTS, {"use_quote_delim": False}),
    ("a\tb", TEXTS, {"field_delim": "\t"}), ("NA,2", [[5], [0]], {"na_value": "NA"}),
    ("a,b,c", [[""]], {"select_cols": [1]}), ("a,b,c", TEXTS, {"select_cols": [0, 2]}),
    ("a,b,c", TEXTS, {"select_cols": [2, 0]}), ("a,b", [[""]], {"select_cols": [5]}),
    ("a,b", [[""]], {"select_cols": [0, 1]}), ("", [[""]], {}), (",", TEXTS, {}), (" 1, 2 ", INTS, {}),
    ("1.5,b", [[0.0], ["x"]], {}), (["1,2", "3,4"], INTS, {}), ([["1,2"]], INTS, {}), (",b", [0.5, "x"], {}),
    ("a,b", TEXTS, {"field_delim": "ab"}), ("a,b", TEXTS, {"field_delim": ""}), ("99999999999,1", INTS, {}),
    ("1.5,1", INTS, {}), ("a,b\r\n", TEXTS, {}), ('"a\nb",c', TEXTS, {}), ('"",c', TEXTS, {}), ('"a","', TEXTS, {}),
    ('"', [[""]], {}), ('"a"\n,b', TEXTS, {}), ("a\nb,c", TEXTS, {"use_quote_delim": False}),
    ("NA,", [[5], ["q"]], {"na_value": "NA"}), ("1,b", [[1, 2], ["x"]], {}), ('a"",b', TEXTS, {}),
    ("\n", [[""]], {}), ("a,\n", TEXTS, {}), ("-7,1e3", [np.array([0], np.int64), np.array([0.0])], {}),
]  # fmt: skip


@pytest.mark.parametrize(("record", "defaults", "options"), CSV)
def test_decode_csv(parity: Any, record: Any, defaults: list[Any], options: dict[str, Any]) -> None:
    same(*parity.either(lambda m: m.decode_csv(record, defaults, **options)))


def test_decode_csv_with_a_required_field(parity: Any) -> None:
    for record in (",2", "1,2"):
        same(*parity.either(lambda m, r=record: m.decode_csv(r, [m.constant([], m.int32), [0]])))


RAW: list[tuple[Any, str, bool]] = [
    ([b"abcd", b"efgh"], "int16", True), ([b"abcd"], "int16", False), ([b"abc"], "int16", True),
    ([b"ab", b"abcd"], "int16", True), (b"", "int16", True), ([b""], "uint8", True), (b"\0\1\0", "bool", True),
    (b"\0\0\x80\x3f" * 2, "complex64", True), (b"\x3f\x80\0\0" * 2, "complex64", False),
    ([[b"12345678"]], "float64", True), (b"\0\x3c", "float16", True), (b"\x80\x3f", "bfloat16", True),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype", "little"), RAW)
def test_decode_raw(parity: Any, value: Any, dtype: str, little: bool) -> None:
    same(*parity.either(lambda m: [m.decode_raw(value, dtype, little)]))


@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"])
def test_decode_raw_of_every_form(parity: Any, dtype: str, little: bool) -> None:
    size = np.dtype(dtype).itemsize
    one = bytes(range(1, size + 1))
    for value in (one, [one], [[one]], [one * 2, one * 2], [b""], np.empty((0, 2), object), [one, b""], [one + b"x"]):
        same(*parity.either(lambda m, v=value: [m.decode_raw(m.constant(v, m.string), dtype, little)]))


NUMBERS = [
    b"1", b" 1 ", b"+1", b"-1", b"- 1", b"1.", b".5", b"1e3", b"1e400", b"1e-400", b"inf", b"-Infinity", b"nan", b"",
    b" ", b"\t1\n", b"2147483648", b"-2147483649", b"1_0", b"01", b"1e", b"1\0", b"1f", b"1e+3", b"1E3", b"infi",
    b"++1", b"18446744073709551615", b"9223372036854775808", b"0.1", b"3.4028236e38",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "uint64"])
def test_string_to_number(parity: Any, dtype: str) -> None:
    """Skip hexadecimal floats and nan(…), which TensorFlow accepts and aioflow rejects."""
    for text in NUMBERS:
        same(*parity.either(lambda m, text=text: [m.string_to_number([text], dtype)]))


@pytest.mark.parametrize("unit", ["BYTE", "UTF8_CHAR"])
def test_substr_and_length(parity: Any, unit: str) -> None:
    texts: list[Any] = ["hello", "h€llo", "", "äöü", ["one", "€uro"]]
    for text in texts:
        same(*parity.either(lambda m, t=text: [m.strings.length(t, unit=unit)]))
        for pos, length in ((0, 2), (1, 2), (-3, 2), (5, 1), (6, 1), (-6, 1), (1, 99), (1, 0), (1, -1), (-99, 1)):
            same(*parity.either(lambda m, t=text, p=pos, n=length: [m.substr(t, p, n, unit=unit)]))
    same(*parity.either(lambda m: [m.substr([["abc", "def"], ["ghi", "jkl"]], [0, 1], [2, 1], unit=unit)]))
    same(*parity.either(lambda m: [m.substr("abc", [0, 1], [2, 1], unit=unit)]))
    same(*parity.either(lambda m: [m.substr(["abc"], [0, 1, 2], [2, 1], unit=unit)]))


def test_string_join(parity: Any) -> None:
    for inputs in (["a", ["b", "c"]], [["a"], ["b", "c"]], ["a", "b"], [["a"]], [[["a"]], "x", [["b"]]]):
        same(*parity.either(lambda m, i=inputs: [m.string_join(i, "-")]))
    parity(lambda m, x, y: m.string_join([x, y, "."], "+"), np.array(["p", "q"], object), np.array(["r", "s"], object))


def test_add_joins_strings(parity: Any) -> None:
    for x, y in (("a", "b"), (["a", "b"], "c"), (["a", ""], [["b"], ["c"]]), ([], ["a"]), (["ä"], ["ö"])):
        same(*parity.either(lambda m, x=x, y=y: [m.add(m.constant(x, m.string), m.constant(y, m.string))]))


AS_STRING: list[tuple[Any, dict[str, Any]]] = [
    ([1.5, -2.0, 1e10, np.nan, np.inf], {}), ([1.5, -2.0], {"precision": 2}), ([1, -2], {"width": 5, "fill": "0"}),
    ([1, -2], {"width": 5, "fill": "-"}), ([1, -2], {"width": 5}), ([True, False], {}), ([1 + 2j], {"precision": 1}),
    ([1.5, 1e-10], {"shortest": True}), ([1.5, 1e-10], {"scientific": True}), ([1.5], {"width": 9, "fill": " "}),
    (["a"], {}), ([1], {"fill": "x"}), ([1], {"precision": 2}), ([1], {"scientific": True}), ([1], {"fill": "00"}),
    ([1.0], {"scientific": True, "shortest": True}), ([1.0], {"width": 9, "fill": "+"}), (np.uint8(7), {}),
    (np.int64(-(2**63)), {}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "options"), AS_STRING)
def test_as_string(parity: Any, value: Any, options: dict[str, Any]) -> None:
    same(*parity.either(lambda m: [m.as_string(value, **options)]))


# ── examples ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def example(module: Any, **features: Any) -> bytes:
    """Serialize an Example of that system. The first value decides between bytes, floats and ints."""
    made = {}
    for name, values in features.items():
        if not values:
            made[name] = module.train.Feature()
        elif isinstance(values[0], bytes):
            made[name] = module.train.Feature(bytes_list=module.train.BytesList(value=values))
        elif isinstance(values[0], float):
            made[name] = module.train.Feature(float_list=module.train.FloatList(value=values))
        else:
            made[name] = module.train.Feature(int64_list=module.train.Int64List(value=values))
    data: bytes = module.train.Example(features=module.train.Features(feature=made)).SerializeToString()
    return data


FEATURES: list[dict[str, Any]] = [
    {"f": [1.5, -2.0], "i": [7], "s": [b"x\0"]},
    {"f": [3.0, 4.0], "i": [-(2**63)], "s": [b""], "more": [1]},
    {"f": [0.0, 1e30], "i": [2**63 - 1], "s": [b"\xff"]},
]
SPECS: list[Any] = [
    lambda m: {"f": m.FixedLenFeature([2], m.float32), "i": m.FixedLenFeature([], m.int64),
               "s": m.FixedLenFeature([1], m.string)},
    lambda m: {"f": m.FixedLenFeature([1, 2], m.float32), "z": m.FixedLenFeature([2], m.int64, [8, 9])},
    lambda m: {"z": m.FixedLenFeature([], m.string, "none")},
    lambda m: {"z": m.FixedLenFeature([2, 2], m.float32, [1.0, 2.0, 3.0, 4.0])},
    lambda m: {"z": m.FixedLenFeature([1], m.int64, 3), "y": m.FixedLenFeature([], m.string, ["none"])},
    lambda m: {"z": m.FixedLenFeature([2, 1], m.int64, m.constant([[1], [2]], "int64"))},
    lambda m: {"more": m.FixedLenSequenceFeature([], m.int64, allow_missing=True, default_value=[5])},
    lambda m: {"z": m.FixedLenFeature([], m.float32)},
    lambda m: {"f": m.FixedLenFeature([3], m.float32)},
    lambda m: {"f": m.FixedLenFeature([2], m.int64)},
    lambda m: {"f": m.FixedLenSequenceFeature([], m.float32, allow_missing=True)},
    lambda m: {"f": m.FixedLenSequenceFeature([2], m.float32, allow_missing=True)},
    lambda m: {"more": m.FixedLenSequenceFeature([], m.int64, allow_missing=True, default_value=5)},
    lambda m: {"f": m.FixedLenSequenceFeature([3], m.float32, allow_missing=True)},
    lambda m: {"f": m.FixedLenFeature([None], m.float32)},
    lambda m: {},
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("single", [False, True])
def test_parse_example(parity: Any, tf: Any, spec: Any, single: bool) -> None:
    """Parse each system's examples in both systems."""
    for writer in (tf, af):
        data = [example(writer, **features) for features in FEATURES]

        def build(m: Any, data: list[bytes] = data) -> list[Any]:
            found = m.parse_single_example(data[1], spec(m)) if single else m.parse_example(data, spec(m))
            return [found[key] for key in sorted(found)]

        same(*parity.either(build))


def test_sparse_features_of_the_raw_op(parity: Any) -> None:
    data = [example(af, a=[1, 2, 3]), example(af), example(af, a=[4], b=[b"x"])]

    def build(m: Any) -> list[Any]:
        found = m.raw_ops.ParseExample(
            serialized=data, names=np.array([], object), sparse_keys=["a", "b"], dense_keys=[], dense_defaults=[],
            sparse_types=[m.int64, m.string], dense_shapes=[],
        )  # fmt: skip
        return [*found.sparse_indices, *found.sparse_values, *found.sparse_shapes]

    same(*parity.either(build))


def test_truncated_example_yields_only_tensorflows_values(parity: Any) -> None:
    """Try every truncation. TensorFlow ignores a field that ends after its tag; aioflow rejects it."""
    data = example(af, f=[1.5], i=[300, 2], s=[b"abc"])
    refused = 0
    for size in range(len(data)):

        def build(m: Any, part: bytes = data[:size]) -> list[Any]:
            return [m.parse_example([part], {"i": m.FixedLenFeature([2], m.int64, [0, 0])})["i"]]

        mine, theirs = parity.either(build)
        refused += isinstance(mine, str)
        if not isinstance(mine, str):
            same(mine, theirs)
    assert refused == len(data) - 1  # all but the empty message


def test_static_shapes(tf: Any) -> None:
    for m in (tf, af):
        with m.Graph().as_default():
            strings = m.placeholder(m.string, [None])
            rows = m.FixedLenSequenceFeature([4], m.int64, allow_missing=True)
            found = m.parse_example(strings, {"f": m.FixedLenFeature([2, 3], m.float32), "g": rows})
            assert [found[k].shape.as_list() for k in "fg"] == [[None, 2, 3], [None, None, 4]]
            assert m.decode_raw(strings, m.int16).shape.as_list() == [None, None]
            assert m.decode_csv(m.placeholder(m.string, [3, 2]), [[0], [""]])[1].shape.as_list() == [3, 2]
            assert m.string_join([m.placeholder(m.string), m.placeholder(m.string, [3])]).shape.as_list() == [3]


# ── features of any length, and sequences ────────────────────────────────────────────────────────────────────────────

RAGGED: list[dict[str, Any]] = [
    {"i": [3, 1], "v": [0.5, 1.5], "j": [0, 2], "s": [b"a", b"b", b""]},
    {"i": [], "v": [], "j": [], "d": [1.0, 2.0]},
    {"i": [0], "v": [9.0], "j": [1], "s": [b"\xff"]},
    {},
]


def flat(found: dict[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for key in sorted(found):
        value = found[key]
        parts += [value.indices, value.values, value.dense_shape] if hasattr(value, "indices") else [value]
    return parts


SPARSE_SPECS: list[Any] = [
    lambda m: {"i": m.VarLenFeature(m.int64), "s": m.VarLenFeature(m.string), "none": m.VarLenFeature(m.float32)},
    lambda m: {"x": m.SparseFeature("i", "v", m.float32, 5)},
    lambda m: {"x": m.SparseFeature("i", "v", m.float32, 5, True), "i": m.VarLenFeature(m.int64)},
    lambda m: {"x": m.SparseFeature(["i", "j"], "v", m.float32, [5, 3])},
    lambda m: {"d": m.FixedLenFeature([2], m.float32, [7.0, 8.0]), "v": m.VarLenFeature(m.float32)},
    lambda m: {"i": m.VarLenFeature(m.float32)},
    lambda m: {"x": m.SparseFeature("v", "v", m.float32, 5)},
    lambda m: {"x": m.SparseFeature("i", "s", m.string, 5)},
    lambda m: {"i": m.FixedLenFeature([], m.int64, 0), "x": m.SparseFeature("i", "v", m.float32, 5)},
]


@pytest.mark.parametrize("spec", SPARSE_SPECS)
@pytest.mark.parametrize("single", [None, 0, 3])
def test_parse_sparse_features(parity: Any, tf: Any, spec: Any, single: int | None) -> None:
    for writer in (tf, af):
        data = [example(writer, **features) for features in RAGGED]

        def build(m: Any, data: list[bytes] = data) -> list[Any]:
            if single is None:
                return flat(m.parse_example(data, spec(m)))
            return flat(m.parse_single_example(data[single], spec(m)))

        same(*parity.either(build))


def sequence(module: Any, context: dict[str, Any], **lists: Any) -> bytes:
    """Serialize a SequenceExample of that system."""
    train = module.train

    def feature(values: Any) -> Any:
        if not values:
            return train.Feature()
        if isinstance(values[0], bytes):
            return train.Feature(bytes_list=train.BytesList(value=values))
        if isinstance(values[0], float):
            return train.Feature(float_list=train.FloatList(value=values))
        return train.Feature(int64_list=train.Int64List(value=values))

    made = {name: train.FeatureList(feature=[feature(step) for step in steps]) for name, steps in lists.items()}
    data: bytes = train.SequenceExample(
        context=train.Features(feature={name: feature(values) for name, values in context.items()}),
        feature_lists=train.FeatureLists(feature_list=made),
    ).SerializeToString()
    return data


SEQUENCES: list[Any] = [
    lambda w: sequence(w, {"n": [3], "t": [b"x", b"y"]}, a=[[1.0, 2.0], [3.0, 4.0]], b=[[1], [2, 3], []], c=[[b"p"]]),
    lambda w: sequence(w, {"n": [7]}, a=[], b=[]),
    lambda w: sequence(w, {}, a=[[1.0], [2.0, 3.0]], b=[[1.0]]),
]
SEQUENCE_SPECS: list[Any] = [
    lambda m: ({"n": m.FixedLenFeature([], m.int64, -1), "t": m.VarLenFeature(m.string)},
               {"a": m.FixedLenSequenceFeature([2], m.float32), "b": m.VarLenFeature(m.int64)}),
    lambda m: (None, {"a": m.FixedLenSequenceFeature([1, 2], m.float32, True)}),
    lambda m: (None, {"z": m.FixedLenSequenceFeature([2], m.float32, True), "y": m.VarLenFeature(m.string)}),
    lambda m: (None, {"z": m.FixedLenSequenceFeature([2], m.float32)}),
    lambda m: ({"n": m.FixedLenFeature([], m.int64)}, None),
    lambda m: ({"n": m.FixedLenFeature([2], m.int64)}, {"c": m.FixedLenSequenceFeature([], m.string)}),
    lambda m: ({"n": m.VarLenFeature(m.string)}, None),
    lambda m: (None, {"a": m.FixedLenSequenceFeature([2], m.int64)}),
    lambda m: (None, {"a": m.FixedLenSequenceFeature([2], m.float32, True, 1.0)}),
    lambda m: (None, {"b": m.FixedLenFeature([2], m.float32)}),
    lambda m: (None, None),
]  # fmt: skip


@pytest.mark.parametrize("spec", SEQUENCE_SPECS)
@pytest.mark.parametrize("record", SEQUENCES)
def test_parse_single_sequence_example(parity: Any, tf: Any, spec: Any, record: Any) -> None:
    for writer in (tf, af):
        data = record(writer)

        def build(m: Any, data: bytes = data) -> list[Any]:
            context, lists = m.parse_single_sequence_example(data, *spec(m))
            return [*flat(context), *flat(lists)]

        same(*parity.either(build))


def test_sequence_example_round_trip(tf: Any) -> None:
    for record in SEQUENCES:
        for data in (record(tf), record(af)):
            found = af.train.SequenceExample.FromString(data)
            theirs = tf.train.SequenceExample.FromString(found.SerializeToString())
            assert theirs == tf.train.SequenceExample.FromString(record(tf))
    with pytest.raises(af.errors.DataLossError):
        af.train.SequenceExample.FromString(b"\x0a\x05")


def test_static_shapes_of_sparse_features(tf: Any) -> None:
    found: list[Any] = []
    for m in (tf, af):
        with m.Graph().as_default():
            texts = m.placeholder(m.string, [None])
            many = m.parse_example(texts, {"v": m.VarLenFeature(m.int64), "x": m.SparseFeature("i", "w", m.int64, 5)})
            one = m.parse_single_example(texts[0], {"v": m.VarLenFeature(m.int64)})
            steps = m.parse_single_sequence_example(
                texts[0], {"c": m.VarLenFeature(m.int64), "d": m.FixedLenFeature([2], m.string)},
                {"e": m.VarLenFeature(m.int64), "f": m.FixedLenSequenceFeature([3], m.float32)},
            )  # fmt: skip
            tensors = [part for group in (many, one, *steps) for part in flat(group)]
            found.append([None if t.shape.ndims is None else t.shape.as_list() for t in tensors])
    assert found[1] == found[0]

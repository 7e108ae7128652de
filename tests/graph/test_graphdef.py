"""Graphs as plain data: contents, both encodings, and rejected input."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow import errors
from aioflow.formats.graphs import documents
from aioflow.graph import dtypes
from aioflow.graph.graphdef import GraphDef, InputRef, NodeDef, TensorData
from tests.support.random_examples import examples

FIXED = [d for d in dtypes.ALL if d.is_plain or d.is_quantized]

NAMES = ["a", "b_1", "scope/c", "Scope/d.e", ".f", "7", "g>h-i", "a\\b"]
KEYS = ["T", "N", "value", "_class", "dtype", "_x"]


@st.composite
def tensors(draw: st.DrawFn) -> TensorData:
    dtype = draw(st.sampled_from([*FIXED, dtypes.string]))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = math.prod(shape)
    if dtype is dtypes.string:
        return TensorData(dtype, shape, tuple(draw(st.lists(st.binary(max_size=4), min_size=count, max_size=count))))
    if dtype.is_bool:
        return TensorData(dtype, shape, bytes(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))))
    return TensorData(dtype, shape, draw(st.binary(min_size=count * dtype.size, max_size=count * dtype.size)))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(dtypes.ALL),
    tensors(),
)
lists = st.lists(scalars, max_size=3).map(tuple)
values = st.one_of(scalars, lists, st.lists(lists, max_size=2).map(tuple))


@st.composite
def graph_defs(draw: st.DrawFn) -> GraphDef:
    nodes: list[NodeDef] = []
    for name in draw(st.permutations(NAMES))[: draw(st.integers(0, 4))]:
        earlier = st.sampled_from([n.name for n in nodes]) if nodes else st.nothing()
        data = draw(st.lists(st.tuples(earlier, st.integers(0, 3)), max_size=3)) if nodes else []
        control = draw(st.lists(earlier, max_size=2)) if nodes else []
        inputs = [str(InputRef(n, p)) for n, p in data] + [f"^{n}" for n in control]
        attrs = {key: draw(values) for key in draw(st.permutations(KEYS))[: draw(st.integers(0, 2))]}
        nodes.append(NodeDef(name, "Op", tuple(inputs), draw(st.sampled_from(["", "/cpu:0"])), attrs))
    return GraphDef(tuple(nodes))


@given(graph_defs())
def test_both_encodings_round_trip(graph_def: GraphDef) -> None:
    assert GraphDef.from_bytes(graph_def.to_bytes()) == graph_def
    assert GraphDef.from_json(graph_def.to_json()) == graph_def


@given(graph_defs(), st.data())
def test_an_altered_or_truncated_file_is_data_loss(graph_def: GraphDef, data: st.DataObject) -> None:
    encoded = bytearray(graph_def.to_bytes())
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((errors.DataLossError, errors.UnimplementedError)):
        GraphDef.from_bytes(bytes(encoded))
    with pytest.raises(errors.DataLossError):
        GraphDef.from_bytes(graph_def.to_bytes()[:position])
    with pytest.raises(errors.DataLossError):
        GraphDef.from_bytes(graph_def.to_bytes() + b"\0")


def test_definitions_are_read_from_bytes_only() -> None:
    text: Any = "x"
    for read in (GraphDef.FromString, GraphDef.from_bytes, GraphDef().ParseFromString):
        with pytest.raises(errors.DTypeError, match="bytes"):
            read(text)


def sealed(body: bytes) -> bytes:
    """Return a file with a valid header and checksum, so that the decoder reads the body."""
    return struct.pack("<8sHIQ", documents.MAGIC, 1, zlib.crc32(body), len(body)) + body


@settings(max_examples=examples(200))
@given(graph_defs(), st.data())
def test_a_body_altered_under_a_right_checksum_is_refused_or_read(graph_def: GraphDef, data: st.DataObject) -> None:
    body = bytearray(graph_def.to_bytes()[22:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(errors.AioflowError):
        af.import_graph_def(GraphDef.from_bytes(sealed(bytes(body))))


@given(graph_defs(), st.data())
def test_altered_text_is_refused_or_read(graph_def: GraphDef, data: st.DataObject) -> None:
    text = bytearray(graph_def.to_json().encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(errors.AioflowError):
        GraphDef.from_json(bytes(text))


def document(**changed: Any) -> dict[str, Any]:
    node = {"name": "a", "op": "NoOp", "inputs": [], "device": "", "attrs": {}} | changed
    return {"version": 1, "nodes": [node]}


def tensor(dtype: Any, shape: Any, data: Any) -> dict[str, Any]:
    return document(attrs={"value": {"$tensor": {"dtype": dtype, "shape": shape, "data": data}}})


HOSTILE: dict[str, Any] = {
    "a list": [],
    "no nodes": {"version": 1},
    "nodes is a map": {"version": 1, "nodes": {}},
    "a node is text": {"version": 1, "nodes": ["a"]},
    "version is text": {"version": "1", "nodes": []},
    "version is negative": {"version": -1, "nodes": []},
    "version is true": {"version": True, "nodes": []},
    "no name": document(name=None),
    "an empty name": document(name=""),
    "a name that escapes": document(name="a b"),
    "a long name": document(name="a" * 5000),
    "an op that escapes": document(op="No Op"),
    "inputs is text": document(inputs="a"),
    "an input is a number": document(inputs=[1]),
    "a control input with a port": document(inputs=["^a:1"]),
    "a negative port": document(inputs=["a:-1"]),
    "a huge port": document(inputs=["a:99999999999"]),
    "data after control": document(inputs=["^a", "b"]),
    "device is a list": document(device=[]),
    "device with a line end": document(device="/cpu:0\n"),
    "attrs is a list": document(attrs=[]),
    "an attribute name that escapes": document(attrs={"a b": 1}),
    "an attribute that is bytes": document(attrs={"a": b"x"}),
    "an attribute that is a map": document(attrs={"a": {"b": 1}}),
    "an attribute nested deeply": document(attrs={"a": [[[[[[1]]]]]]}),
    "an unknown dtype": document(attrs={"T": {"$dtype": "float33"}}),
    "an alias of a dtype": document(attrs={"T": {"$dtype": "float"}}),
    "a structured dtype": document(attrs={"T": {"$dtype": "i4,f8"}}),
    "a dtype that is a number": document(attrs={"T": {"$dtype": 1}}),
    "a dtype with more": document(attrs={"T": {"$dtype": "int32", "x": 1}}),
    "a tensor of objects": tensor("resource", [1], b"\0" * 8),
    "a tensor of variants": tensor("variant", [], b"\0" * 8),
    "a tensor too short": tensor("float32", [2], b"\0" * 7),
    "a tensor too long": tensor("float32", [2], b"\0" * 9),
    "a negative size": tensor("float32", [-1], b""),
    "a size that is a float": tensor("float32", [1.0], b"\0" * 4),
    "a size that is a bool": tensor("float32", [True], b"\0" * 4),
    "sizes that overflow": tensor("float32", [2**32, 2**32, 0], b""),
    "a rank too high": tensor("float32", [1] * 65, b"\0" * 4),
    "text for bytes": tensor("float32", [1], "\0" * 4),
    "bytes for strings": tensor("string", [2], b"ab"),
    "text for strings": tensor("string", [1], ["a"]),
    "too few strings": tensor("string", [2], [b"a"]),
    "a bool of two": tensor("bool", [3], b"\0\2\1"),
}


@pytest.mark.parametrize("wrong", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_well_formed_file_with_other_content_is_an_invalid_argument(wrong: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        GraphDef.from_bytes(documents.to_bytes(wrong))
    with pytest.raises(errors.InvalidArgumentError):
        GraphDef.from_json(documents.to_text(wrong))


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "an extension": msgpack.packb({"version": 1, "nodes": [msgpack.ExtType(1, b"x")]}),
    "a timestamp": msgpack.packb({"version": 1, "nodes": [msgpack.Timestamp(1)]}),
    "a key twice": b"\x82\xa1a\x01\xa1a\x02",
    "a key that is a number": b"\x81\x01\x02",
    "an array that claims 2^32 items": b"\xdd\xff\xff\xff\xff",
    "a map that claims 2^32 items": b"\xdf\xff\xff\xff\xff",
    "bytes that claim 2^32": b"\xc6\xff\xff\xff\xff",
    "two values": b"\x01\x02",
    "text that is not UTF-8": b"\xa1\xff",
    "deep nesting": b"\x91" * 100_000 + b"\x01",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_an_encoding_that_breaks_the_rules_is_data_loss(body: bytes) -> None:
    with pytest.raises(errors.DataLossError):
        GraphDef.from_bytes(sealed(body))


TEXTS: dict[str, str] = {
    "not JSON": "{",
    "a key twice": '{"version": 1, "version": 1}',
    "NaN": '{"version": NaN}',
    "a float that is none": '{"version": {"$float": "1e5"}}',
    "a long integer": '{"version": ' + "9" * 10_000 + "}",
    "not base64": '{"$base64": "*"}',
    "deep nesting": "[" * 100_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_text_that_breaks_the_rules_is_data_loss(text: str) -> None:
    with pytest.raises(errors.DataLossError):
        GraphDef.from_json(text)


def _function(x: Any) -> Any:
    return x + 1.0


def everything() -> dict[str, Any]:
    """Return a document with every kind of value."""
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 2], name="x")
        af.function(_function)(x)
        af.constant([b"text"], name="strings")
        with af.control_dependencies([x]):
            af.split(af.constant([[1.5, float("nan")]]), 2, axis=1, name="parts")
        document: dict[str, Any] = json.loads(graph.as_graph_def(add_shapes=True).to_json())
        return document


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], other)
    return copy


@pytest.mark.parametrize(
    "other",
    [
        *(None, True, 0, -1, 2**63 - 1, 1.5, "", "x", [], [None], [[]], [{}], {}, {"x": 1}, {"$dtype": None}),
        *(
            {"$dtype": []},
            {"$function": {}},
            {"$tensor": None},
            {"$tensor": {"dtype": "int32", "shape": [], "data": 1}},
        ),
        *({"$tensor": {"dtype": "string", "shape": None, "data": []}}, {"$base64": 1}, {"$float": []}),
    ],
    ids=str,
)
def test_a_document_with_any_value_replaced_is_read_or_rejected(other: Any) -> None:
    document = everything()
    for path in places(document):
        text = json.dumps(replaced(document, path, other))
        with contextlib.suppress(errors.OpError):
            definition = GraphDef.from_json(text)
            with af.Graph().as_default(), contextlib.suppress(errors.OpError):
                af.import_graph_def(definition)


def test_optional_additions_of_a_later_release_are_ignored() -> None:
    node = {"name": "a", "op": "NoOp", "inputs": [], "device": "", "attrs": {}, "comment": "later"}
    later = {"version": 7, "min_reader": 1, "min_release": "0.1.0", "nodes": [node], "origin": {"by": "later"}}
    definition = GraphDef.from_bytes(documents.to_bytes(later))
    assert definition == GraphDef((NodeDef("a", "NoOp"),))
    assert GraphDef.from_json(documents.to_text(later)) == definition


@pytest.mark.parametrize(
    "more",
    [
        {"version": 7, "min_reader": 5, "min_release": "3.1.4"},
        {"version": 1, "requires": {"sharding": "3.1.4", "older": "3.0.20"}},
    ],
)
def test_a_definition_that_needs_a_later_release_names_it(more: dict[str, Any]) -> None:
    with pytest.raises(errors.UnimplementedError, match=r"aioflow 3\.1\.4 or later"):
        GraphDef.from_json(documents.to_text({"version": 1, "nodes": []} | more))


def test_the_error_for_a_later_version_names_it() -> None:
    with pytest.raises(errors.UnimplementedError) as caught:
        GraphDef.from_bytes(documents.to_bytes({"version": 2, "nodes": []}))
    assert "has version 2, newer than this release reads: at most 1" in caught.value.message
    later = bytearray(GraphDef().to_bytes())
    later[8] = 9
    with pytest.raises(errors.UnimplementedError):
        GraphDef.from_bytes(bytes(later))


def test_an_error_names_the_node() -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        GraphDef.from_bytes(documents.to_bytes(document(name="scope/bad", attrs={"T": {"$dtype": "?"}})))
    assert "scope/bad" in str(caught.value)
    with pytest.raises(errors.InvalidArgumentError) as caught:
        NodeDef("scope/bad", "NoOp", attrs={"f": len})  # type: ignore[dict-item]  # the mistake under test
    assert caught.value.node == "scope/bad"
    assert "'f'" in str(caught.value)


def test_text_beyond_unicode_is_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError):
        NodeDef("a", "NoOp", attrs={"s": "\ud800"})
    with pytest.raises(errors.InvalidArgumentError):
        GraphDef.from_json(json.dumps(document(attrs={"s": "\ud800"})))


def test_non_finite_numbers_round_trip_through_json() -> None:
    node = NodeDef("a", "NoOp", attrs={"x": (math.inf, -math.inf, math.nan, -0.0)})
    found = GraphDef.from_json(GraphDef((node,)).to_json()).nodes[0].attrs["x"]
    assert repr(found) == "(inf, -inf, nan, -0.0)"


@pytest.mark.parametrize("dtype", FIXED, ids=str)
def test_arrays_of_every_dtype_round_trip(dtype: af.DType) -> None:
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype.np_dtype)
    for given_array in (array, array.T, array[:, ::2], array[:0], array[0, 1].reshape(())):
        found = TensorData.of(given_array).to_array()
        assert found.dtype == dtype.np_dtype
        assert found.shape == given_array.shape
        assert found.tobytes() == given_array.tobytes()
        assert not found.flags.writeable


def test_big_endian_arrays_are_stored_in_little_endian() -> None:
    data = TensorData.of(np.array([1, 2], dtype=">i4"))
    assert data.data == b"\x01\0\0\0\x02\0\0\0"
    assert data.to_array().tolist() == [1, 2]


def test_nodes_of_a_graph(graph: af.Graph) -> None:
    with af.device("/gpu:1"):
        x = af.placeholder(af.float32, [None, 3], name="x")
    c = af.constant([1, 2], name="c")
    with graph.control_dependencies([af.no_op(name="first")]):
        pair = af.identity_n([x, c], name="pair")
    with graph.colocate_with(x.op):
        af.identity(pair[1], name="y")
    by_name = {node.name: node for node in graph.as_graph_def().nodes}
    assert by_name["x"] == NodeDef("x", "Placeholder", (), "/device:GPU:1", {"dtype": af.float32, "shape": (None, 3)})
    assert by_name["c"].attrs["value"] == TensorData(af.int32, (2,), b"\1\0\0\0\2\0\0\0")
    assert by_name["pair"].inputs == ("x", "c", "^first")
    assert by_name["pair"].attrs["T"] == (af.float32, af.int32)
    assert by_name["y"].inputs == ("pair:1",)
    assert by_name["y"].attrs["_class"] == ("loc:@x",)


@pytest.mark.parametrize("character", [chr(code) for code in range(33, 127)] + ["é", " ", "\n", ""])
@pytest.mark.parametrize("form", ["{}", "a{}", "{}a", "a/{}"])
def test_a_definition_allows_the_names_that_a_graph_allows(form: str, character: str, graph: af.Graph) -> None:
    name = form.format(character)
    if (
        not name or name.endswith("/") or name.startswith("^")
    ):  # an empty name, the full name of a scope, a control input
        return

    def scope() -> None:
        with af.name_scope(name):
            pass

    def allows(use: Callable[[], Any]) -> bool:
        try:
            use()
        except errors.OpError:
            return False
        return True

    uses = {
        "node": lambda: af.no_op(name=name),
        "scope": scope,
        "definition": lambda: NodeDef(name, "NoOp"),
        "input": lambda: InputRef.parse(name),
    }
    assert len({allows(use) for use in uses.values()}) == 1


def test_from_version_and_shapes(graph: af.Graph) -> None:
    x = af.placeholder(af.float32, [None, 3], name="x")
    version = graph.version
    af.identity(x, name="y")
    (node,) = graph.as_graph_def(from_version=version, add_shapes=True).nodes
    assert node.name == "y"
    assert node.attrs["_output_shapes"] == ((None, 3),)


def test_a_python_function_cannot_be_exported(graph: af.Graph) -> None:
    op = af.no_op(name="holder")
    op.attrs["_function"] = len
    with pytest.raises(errors.InvalidArgumentError) as caught:
        graph.as_graph_def()
    assert caught.value.node == "holder"
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__


def test_a_custom_gradient_is_not_exported(graph: af.Graph) -> None:
    x = af.placeholder(af.float64, [], name="x")

    @af.custom_gradient
    def twice_the_gradient(value: Any) -> Any:
        return af.identity(value), lambda dy: dy + dy

    y = twice_the_gradient(x)
    assert y is not x
    with af.Graph().as_default():
        found = af.import_graph_def(graph.as_graph_def(), return_elements=["x:0", y.name])
        with pytest.raises(errors.UnimplementedError):
            af.gradients(found[1], found[0])


@pytest.mark.parametrize("as_text", [True, False])
def test_graphs_are_written_to_and_read_from_files(graph: af.Graph, tmp_path: Path, as_text: bool) -> None:
    af.constant([[1.5, 2.5]], name="c")
    path = af.train.write_graph(graph, tmp_path / "new", "graph.def", as_text)
    assert path == str(tmp_path / "new" / "graph.def")
    assert af.train.read_graph(path) == graph.as_graph_def()
    assert af.train.write_graph(GraphDef(), tmp_path / "new", "graph.def", as_text) == path
    assert af.train.read_graph(path) == GraphDef()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["graph.def"]
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2])
    with pytest.raises(errors.DataLossError) as caught:
        af.train.read_graph(path)
    assert path in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes on Windows")
def test_pipes_and_folders_are_not_replaced(tmp_path: Path) -> None:
    """A new file is moved to its name. For a device such as /dev/null this would replace the device itself."""
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(errors.InvalidArgumentError, match="only a file can be replaced") as raised:
            af.train.write_graph(GraphDef(), tmp_path, path.name)
        assert raised.value.actual == str(path)
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [folder, pipe]


@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        (lambda folder: af.train.read_graph(folder / "none"), errors.NotFoundError),
        (lambda folder: af.train.read_graph(folder), errors.OpError),
        (lambda folder: af.train.write_graph("graph", folder, "g"), errors.DTypeError),  # type: ignore[arg-type]  # the mistake
        (lambda folder: af.train.write_graph(GraphDef(), folder / "file", "g"), errors.OpError),
    ],
)
def test_files_that_cannot_be_opened_raise_typed_errors(
    tmp_path: Path, attempt: Callable[[Path], Any], error: type[Exception]
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(error):
        attempt(tmp_path)
